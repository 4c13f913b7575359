//! What time does to sandboxes: lives that are over, silence, ends that nobody asked for.

use super::{Entry, EntryState, Registry, now_ms};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::broadcast::error::RecvError;

/// How exactly lives end.
const EVERY: Duration = Duration::from_secs(1);
/// How often all are compared with what the backend has: a note of an end may be lost.
const COMPARED_EVERY: Duration = Duration::from_secs(30);

impl Registry {
    /// Ends what has to end, forgets what has had its time, tries what does not answer: for ever; ends with the task it is awaited in.
    pub async fn sweep(&self) {
        tokio::join!(self.sweep_sandboxes(), self.forget_requests(), self.reach_again());
    }

    async fn sweep_sandboxes(&self) {
        let mut ended = self.shared.sandboxes.backend().ended();
        let mut tick = tokio::time::interval(EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut compared = Instant::now();
        loop {
            tokio::select! {
                note = ended.recv() => match note {
                    Ok(note) => self.note_end(&note.sandbox, &note.how),
                    Err(RecvError::Lagged(_)) => compared -= COMPARED_EVERY,
                    Err(RecvError::Closed) => std::future::pending().await,
                },
                _ = tick.tick() => {
                    self.end_what_is_over();
                    if compared.elapsed() >= COMPARED_EVERY {
                        compared = Instant::now();
                        self.end_what_is_left();
                        self.compare().await;
                        self.compare_checkpoints().await;
                    }
                }
            }
        }
    }

    pub(super) fn every(&self) -> Vec<Arc<Entry>> {
        self.tenants().values().flat_map(|tenant| tenant.entries().cloned()).collect()
    }

    fn note_end(&self, backend_id: &str, how: &str) {
        for entry in self.every() {
            if entry.backend_id().as_deref() == Some(backend_id) {
                entry.transition(EntryState::Ended(how.to_owned(), Instant::now()));
                return;
            }
        }
    }

    fn end_what_is_over(&self) {
        let now = now_ms();
        for entry in self.every() {
            let record = entry.record();
            let silent = entry.seen.lock().elapsed();
            let busy = entry.busy.load(Ordering::Relaxed) > 0;
            let running = matches!(&*entry.state.borrow(), EntryState::Running(_));
            let how = if now >= record.expires_ms {
                "its lifetime has expired".to_owned()
            } else if let Some(idle_s) =
                record.idle_s.filter(|idle_s| running && !busy && silent.as_secs_f64() > *idle_s)
            {
                format!("it was idle for {idle_s} s")
            } else {
                continue;
            };
            if entry.state.borrow().is_over() {
                continue;
            }
            self.end(entry, how);
        }
        let shown = self.shared.bounds.shown_after;
        self.tenants().retain(|_, tenant| {
            tenant.forget_old();
            tenant.retain(|entry| match &*entry.state.borrow() {
                EntryState::Ended(_, at) | EntryState::Failed(_, at) => {
                    at.elapsed() < shown || entry.left.lock().is_some()
                }
                EntryState::Creating | EntryState::Running(_) | EntryState::Silent(..) => true,
            })
        });
    }

    fn end(&self, entry: Arc<Entry>, how: String) {
        let registry = self.clone();
        // Owned by `tasks`; the backend bounds it.
        self.shared.tasks.spawn(async move {
            if let Err(problem) = registry.delete(&entry, &how).await {
                tracing::warn!(sandbox = %entry.record().id, detail = %problem.detail, "it could not be ended");
            }
        });
    }

    /// Tries again what could not be deleted.
    fn end_what_is_left(&self) {
        for entry in self.every().into_iter().filter(|entry| entry.left.lock().is_some()) {
            self.end(entry, String::new());
        }
    }

    async fn compare(&self) {
        let running: Vec<(Arc<Entry>, String)> = self
            .every()
            .into_iter()
            .filter_map(|entry| {
                let id = entry.backend_id()?;
                Some((entry, id))
            })
            .collect();
        let Ok(there) = self.shared.sandboxes.backend().ids().await else { return };
        let there: HashSet<String> = there.into_iter().collect();
        for (entry, id) in running {
            if !there.contains(&id) {
                entry.transition(EntryState::Ended("it is gone".to_owned(), Instant::now()));
            }
        }
    }
}
