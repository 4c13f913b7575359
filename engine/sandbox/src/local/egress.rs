//! What leaves allow-listed sandboxes, as far as this engine carries it: a proxy for each, with a listener that the keeper lends.

use super::machine::{Egress, EgressListener, Machine};
use crate::error::SandboxError;
use espalier_egress::{Allowed, Services, Shared, serve};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use tokio::task::AbortHandle;

/// The proxies that this engine carries or waits for, by sandbox.
pub(super) struct EgressProxies {
    carried: Mutex<HashMap<String, AbortHandle>>,
    /// What allow-lists may name of this engine.
    services: Services,
    /// What they share.
    shared: Shared,
}

impl EgressProxies {
    pub(super) fn new(services: Services) -> EgressProxies {
        EgressProxies { carried: Mutex::default(), services, shared: Shared::default() }
    }

    /// Carries it until it is closed. Where another engine does, or another command: from when that one is gone.
    pub(super) async fn open(
        &self,
        machine: &Machine,
        id: &str,
        rules: &[String],
    ) -> Result<(), SandboxError> {
        if self.carried().contains_key(id) {
            return Ok(());
        }
        let allowed = Allowed::parse(rules)?;
        let egress = machine.egress(id).await?;
        let (sandbox, services, shared) = (id.to_owned(), self.services.clone(), self.shared.clone());
        // Owned by `carried`; aborted when the sandbox ends.
        let carrying = tokio::spawn(async move {
            let listener = match egress {
                Egress::Ready(listener) => Ok(listener),
                Egress::Later(later) => later.await,
            };
            match listener {
                Ok(EgressListener { listener, held }) => {
                    serve(sandbox, listener, allowed, services, shared).await;
                    drop(held);
                }
                Err(error) => tracing::debug!(%sandbox, %error, "another engine holds the egress"),
            }
        });
        if let Some(other) = self.carried().insert(id.to_owned(), carrying.abort_handle()) {
            other.abort();
        }
        Ok(())
    }

    /// Carries it no longer.
    pub(super) fn close(&self, id: &str) {
        if let Some(carried) = self.carried().remove(id) {
            carried.abort();
        }
    }

    fn carried(&self) -> MutexGuard<'_, HashMap<String, AbortHandle>> {
        self.carried.lock()
    }
}

impl Drop for EgressProxies {
    fn drop(&mut self) {
        self.carried().drain().for_each(|(_, carried)| carried.abort());
    }
}
