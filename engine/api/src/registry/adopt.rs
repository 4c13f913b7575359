//! After a restart: takes over the sandboxes of the previous service. One whose agent does not answer at once is tried again until
//! its lease is over: by then it ends by itself, or never answers.

use super::{Entry, EntryState, LABEL, LabelRecord, Registry, now_ms};
use crate::problem::Problem;
use espalier_sandbox::backend::Placed;
use futures::StreamExt;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// How many are spoken to at once.
const AT_ONCE: usize = 32;
/// The first time, while the service does not yet take requests.
const FIRST_MAX: Duration = Duration::from_secs(3);
/// Each time after that.
const EACH_MAX: Duration = Duration::from_secs(15);
/// How many are tried again at once.
const AGAIN_AT_ONCE: usize = 256;

impl Registry {
    /// Finds the sandboxes and checkpoints that a service before this one made, and says how many run. What was half made is ended.
    pub async fn adopt(&self) -> Result<usize, Problem> {
        let placed = self.shared.sandboxes.list().await?;
        let own = placed.into_iter().filter_map(|placed| {
            let record: LabelRecord = serde_json::from_str(placed.labels.get(LABEL)?).ok()?;
            Some((placed, record))
        });
        let adopted = futures::stream::iter(own).map(|(placed, record)| async move {
            if !record.ready || now_ms() >= record.expires_ms {
                let id = placed.id.clone();
                if record.ready && let Err(error) = self.remember(record, None).await {
                    tracing::warn!(sandbox = %id, detail = %error.detail, "its request is not kept");
                }
                let _ = self.shared.sandboxes.delete(&id).await;
                return 0;
            }
            let entry = self.take_over(placed, record);
            match self.reach(&entry, FIRST_MAX).await {
                Ok(()) => 1,
                Err(error) => {
                    let id = entry.record().id;
                    tracing::warn!(sandbox = %id, %error, "a sandbox of the service before does not answer; it is tried again");
                    0
                }
            }
        });
        let count =
            adopted.buffer_unordered(AT_ONCE).fold(0, |sum: usize, one| async move { sum + one }).await;
        self.adopt_checkpoints().await?;
        Ok(count)
    }

    /// From here on it is its key's, though nobody can speak to it yet.
    fn take_over(&self, placed: Placed, record: LabelRecord) -> Arc<Entry> {
        let lease = record.lease_ms.map_or(self.shared.bounds.lease, Duration::from_millis);
        let owner = Arc::clone(&record.owner);
        let until = Instant::now() + lease.max(self.shared.bounds.lease);
        let entry = Entry::new(record, EntryState::Silent(Box::new(placed), until));
        self.tenants().entry(owner).or_default().insert(&entry);
        entry
    }

    /// Speaks to the agent of a sandbox that has not answered yet; where it answers, the sandbox runs.
    async fn reach(&self, entry: &Entry, within: Duration) -> Result<(), String> {
        let placed = match &*entry.state.borrow() {
            EntryState::Silent(placed, _) => (**placed).clone(),
            _ => return Ok(()),
        };
        let (client, lease) = (&self.shared.client, self.shared.bounds.lease);
        let attached = tokio::time::timeout(within, self.shared.sandboxes.adopt(placed, client, lease)).await;
        let sandbox = attached.map_err(|_| "no answer".to_owned())?.map_err(|error| error.to_string())?;
        let record = entry.record();
        if let Err(problem) = self.remember(record, None).await {
            return Err(problem.detail);
        }
        entry.touch();
        entry.transition(EntryState::Running(Box::new(sandbox)));
        Ok(())
    }

    /// Tries those again that have not answered. Ends with the task it is awaited in, and all it tries with it.
    pub(super) async fn reach_again(&self) {
        let mut tried: JoinSet<String> = JoinSet::new();
        let mut under_way: HashSet<String> = HashSet::new();
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Some(ended) = tried.join_next() => {
                    // A task that panicked has its sandbox tried no more; its lease ends it.
                    if let Ok(id) = ended {
                        under_way.remove(&id);
                    }
                }
                _ = tick.tick() => {
                    let silent = |entry: &Arc<Entry>| matches!(&*entry.state.borrow(), EntryState::Silent(..));
                    for entry in self.every().into_iter().filter(silent) {
                        let Some(id) = entry.backend_id() else { continue };
                        if under_way.len() < AGAIN_AT_ONCE && under_way.insert(id.clone()) {
                            let registry = self.clone();
                            tried.spawn(async move {
                                registry.try_again(&entry).await;
                                id
                            });
                        }
                    }
                }
            }
        }
    }

    async fn try_again(&self, entry: &Arc<Entry>) {
        let Err(error) = self.reach(entry, EACH_MAX).await else { return };
        let id = entry.record().id;
        let over = matches!(&*entry.state.borrow(), EntryState::Silent(_, until) if Instant::now() >= *until);
        if !over {
            tracing::info!(sandbox = %id, %error, "a sandbox of the service before still does not answer");
            return;
        }
        tracing::warn!(sandbox = %id, %error, "a sandbox of the service before did not answer until its lease was over");
        if let Err(problem) = self.delete(entry, "it did not answer until its lease was over").await {
            tracing::warn!(sandbox = %id, detail = %problem.detail, "it could not be ended");
        }
    }
}
