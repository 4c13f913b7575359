//! After a restart: the sandboxes of the service before are this one's.

use super::{Entry, LABEL, Record, Registry, State, now_ms};
use crate::problem::Problem;
use futures::StreamExt;
use std::sync::Arc;
use std::time::Duration;

/// How many are spoken to at once.
const AT_ONCE: usize = 32;
/// One of them.
const EACH_MAX: Duration = Duration::from_secs(15);

impl Registry {
    /// Finds the sandboxes and checkpoints that a service before this one made, and says how many run. What was half made is ended.
    pub async fn adopt(&self) -> Result<usize, Problem> {
        let placed = self.shared.sandboxes.list().await?;
        let own = placed.into_iter().filter_map(|placed| {
            let record: Record = serde_json::from_str(placed.labels.get(LABEL)?).ok()?;
            Some((placed, record))
        });
        let adopted = futures::stream::iter(own).map(|(placed, record)| async move {
            if !record.ready || now_ms() >= record.expires_ms {
                let _ = self.shared.sandboxes.delete(&placed.id).await;
                return 0;
            }
            let (client, lease) = (&self.shared.client, self.shared.bounds.lease);
            let (id, backend_id) = (record.id.clone(), placed.id.clone());
            let attached = tokio::time::timeout(EACH_MAX, self.shared.sandboxes.adopt(placed, client, lease)).await;
            match attached {
                Ok(Ok(sandbox)) => {
                    let owner = Arc::clone(&record.owner);
                    let entry = Entry::new(record, State::Running(Box::new(sandbox)));
                    self.tenants().entry(owner).or_default().insert(id, entry);
                    1
                }
                other => {
                    let error = other.map_or_else(|_| "no answer".to_owned(), |attached| {
                        attached.err().map(|error| error.to_string()).unwrap_or_default()
                    });
                    tracing::warn!(sandbox = %id, %error, "a sandbox of the service before does not answer; it is ended");
                    let _ = self.shared.sandboxes.delete(&backend_id).await;
                    0
                }
            }
        });
        let count = adopted.buffer_unordered(AT_ONCE).fold(0, |sum, one| async move { sum + one }).await;
        self.drop_passing().await?;
        Ok(count)
    }
}
