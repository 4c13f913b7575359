//! Sandboxes that are ready before they are asked for.

mod pools;

use super::{Purpose, Sandbox, Sandboxes, random_id};
use crate::error::SandboxError;
use espalier_core::sandbox::SandboxSpec;
use parking_lot::MutexGuard;
use pools::Wanted;
use std::collections::BTreeMap;

pub(super) use pools::{Kind, Pools};

/// Label of a sandbox that is kept ready.
const WARM: &str = "espalier.warm";

impl Sandboxes {
    /// As [`Sandboxes::create`], or takes one that is kept ready; afterwards another of its kind is made ready, see [`Sandboxes::keep_warm`].
    pub async fn create_warm(&self, spec: &SandboxSpec, purpose: &Purpose) -> Result<Sandbox, SandboxError> {
        let kind = Kind::of(spec, purpose);
        let ready = self.warm().take(&kind);
        let sandbox = match ready {
            Some(ready) => match self.take_over(ready, purpose).await {
                Ok(sandbox) => sandbox,
                // One that has ended meanwhile is simply not taken.
                Err(_) => self.make(spec, purpose).await?,
            },
            None => self.make(spec, purpose).await?,
        };
        self.refill(kind, spec, purpose);
        Ok(sandbox)
    }

    /// Keeps up to this many sandboxes ready, of all kinds together; those of the kind that was used least recently go first. 0
    /// ends it.
    pub fn keep_warm(&self, count: usize) {
        let surplus = self.warm().bound(count);
        surplus.iter().for_each(|sandbox| drop(self.hold(sandbox)));
    }

    /// How many are kept ready, without those that are being made.
    pub fn warm_ready(&self) -> usize {
        self.warm().ready()
    }

    pub(super) fn warm(&self) -> MutexGuard<'_, Pools<Sandbox>> {
        self.shared.warm.lock()
    }

    /// One that was kept ready becomes its user's own, or is ended.
    async fn take_over(&self, ready: Sandbox, purpose: &Purpose) -> Result<Sandbox, SandboxError> {
        let on_drop = self.hold(&ready);
        let mut labels: BTreeMap<String, Option<String>> =
            purpose.labels.iter().map(|(name, value)| (name.clone(), Some(value.clone()))).collect();
        labels.insert(WARM.to_owned(), None);
        self.shared.backend.relabel(&ready.placed.id, labels).await?;
        let sandbox = self.speak(ready.placed.clone(), &purpose.client, purpose.lease).await?;
        on_drop.release();
        Ok(sandbox)
    }

    fn refill(&self, kind: Kind, spec: &SandboxSpec, purpose: &Purpose) {
        let Wanted { make, surplus } = self.warm().wanted(&kind);
        surplus.iter().for_each(|sandbox| drop(self.hold(sandbox)));
        if !make {
            return;
        }
        let (service, spec) = (self.clone(), spec.clone());
        let nobody = Purpose {
            labels: BTreeMap::from([(WARM.to_owned(), "yes".to_owned())]),
            client: format!("warm-{}", random_id()),
            ..purpose.clone()
        };
        let mut filling = self.shared.filling.lock();
        while filling.try_join_next().is_some() {}
        // Ends with its one sandbox; a failure is told by the next create that makes its own. Ended by `close`.
        let fill = async move {
            let made = service.make(&spec, &nobody).await;
            if let Err(error) = &made {
                tracing::debug!(%error, "no warm sandbox");
            }
            let unwanted = service.warm().put(kind, made.ok());
            unwanted.iter().for_each(|sandbox| drop(service.hold(sandbox)));
        };
        filling.spawn_on(fill, &self.shared.runtime);
    }
}
