//! Tasks that a trainer posts while the run goes on: read out of the store in the order of their places, where whoever serves the run
//! has put them.
//!
//! A task that the experiment has no means for is rejected, and no group takes its place: its trainer is told why when it asks.

use super::stream::Tally;
use super::tasks::{Asked, Provided, RejectedTask, Slot, line_text, read_task};
use crate::experiment::{ExperimentFile, TrainerConfig};
use crate::progress::ProgressSender;
use crate::scheduler::{Next, SourceFailed, TaskSource};
use async_trait::async_trait;
use espalier_core::limits::LimitsFile;
use espalier_store::{PostedTask, RunWriter, StoreError, TaskQueue};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Tasks that are read ahead; the reader waits when there are more.
const READ_AHEAD: usize = 16;
/// Tasks of one look into the store.
const AT_ONCE: u32 = 64;
/// How often the store is asked for what other processes have posted.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Looks in a row that may fail, and the delay between them.
const TRIES: u32 = 8;
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// A queue of posted tasks, and what they have to keep to.
#[derive(Debug)]
pub(super) struct PostedQueue {
    settings: TaskQueue,
    /// `[limits]`.
    pub(super) limits: LimitsFile,
    /// What the experiment has for its tasks.
    pub(super) provided: Provided,
    /// What came until now.
    pub(super) tally: Tally,
    /// Where it was closed before this session: how many groups its tasks have.
    groups: Mutex<Option<u64>>,
}

impl PostedQueue {
    pub(super) fn new(trainer: &TrainerConfig, file: &ExperimentFile, provided: Provided) -> PostedQueue {
        let settings = TaskQueue {
            waiting_max: trainer.waiting_max,
            endpoints: trainer.endpoints.clone(),
            sizes: file.groups.bar.is_none(),
            group_size: file.groups.size,
            limits: file.limits.clone(),
        };
        let (limits, tally, groups) = (file.limits.clone(), Tally::default(), Mutex::new(None));
        PostedQueue { settings, limits, provided, tally, groups }
    }

    /// Lets tasks be posted, and looks at what earlier sessions were given.
    pub(super) async fn open(&self, run: &RunWriter) -> Result<(), StoreError> {
        run.open_task_queue(&self.settings).await?;
        let closed = run.store().task_queue(run.run_id()).await?.is_some_and(|(_, closed)| closed);
        let (posted, rejected) = run.store().posted_counts(run.run_id()).await?;
        self.tally.set_tasks(posted - rejected);
        *self.groups.lock() = closed.then_some(posted - rejected);
        Ok(())
    }

    /// Whether the queue was closed before this session, and all its groups are.
    pub(super) fn all_closed(&self, closed: &BTreeSet<u64>) -> bool {
        self.groups.lock().is_some_and(|groups| groups == closed.len() as u64)
    }

    /// The task as groups take it; else why none can.
    async fn slot(&self, run: &RunWriter, posted: &PostedTask) -> Result<Result<Slot, String>, StoreError> {
        let bytes = run.store().blobs().read_whole(&posted.task_text).await?;
        let read = || {
            let text = line_text(&bytes)?;
            let task = read_task(text, &self.limits).map_err(|(why, _)| why)?;
            self.provided.check(&task)?;
            let PostedTask { group_size: size, purpose, endpoint, .. } = posted.clone();
            let asked = Asked { size, purpose, endpoint };
            Ok(Slot { text: Some(text.to_owned()), asked, ..Slot::new(Arc::new(task), posted.repeat) })
        };
        Ok(read())
    }
}

/// What the reader has found next.
enum Found {
    Task(u64, Box<Slot>),
    End,
    Failed(String),
}

/// The tasks of a run as its trainer posts them. Owner of the task that reads them: it ends with this.
pub(super) struct PostedTasks {
    found: mpsc::Receiver<Found>,
    /// Found, and not given to a group yet.
    head: Option<Found>,
    reader: JoinHandle<()>,
}

impl Drop for PostedTasks {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl PostedTasks {
    pub(super) fn open(queue: Arc<PostedQueue>, run: RunWriter, progress: ProgressSender) -> PostedTasks {
        let (sender, found) = mpsc::channel(READ_AHEAD);
        let reader = Reader { queue, run, progress, sender };
        let reader = tokio::spawn(async move { reader.read().await });
        PostedTasks { found, head: None, reader }
    }
}

#[async_trait]
impl TaskSource for PostedTasks {
    type Task = Slot;

    async fn next(&mut self, group_index: u64) -> Result<Next<Slot>, SourceFailed> {
        if self.head.is_none() {
            let gone = || Found::Failed("the task that reads them has ended".to_owned());
            self.head = Some(self.found.recv().await.unwrap_or_else(gone));
        }
        match self.head.take() {
            Some(Found::Task(place, slot)) if place == group_index => Ok(Next::Task(*slot)),
            // What was between them was rejected.
            Some(later @ Found::Task(place, _)) if place > group_index => {
                self.head = Some(later);
                Ok(Next::Skip)
            }
            Some(Found::Task(place, _)) => {
                Err(SourceFailed::Posted(format!("that of group {place} was read for group {group_index}")))
            }
            Some(Found::Failed(why)) => Err(SourceFailed::Posted(why)),
            Some(Found::End) | None => {
                self.head = Some(Found::End);
                Ok(Next::End)
            }
        }
    }

    fn groups(&self) -> Option<u64> {
        None
    }
}

/// Reads the queue to its end.
struct Reader {
    queue: Arc<PostedQueue>,
    run: RunWriter,
    progress: ProgressSender,
    sender: mpsc::Sender<Found>,
}

impl Reader {
    async fn read(&self) {
        let mut posts = self.run.store().task_posts(self.run.run_id());
        let (mut from, mut failures) = (0, 0);
        loop {
            // Before looking: what is posted meanwhile is not missed.
            posts.borrow_and_update();
            match self.look(&mut from).await {
                Ok(Look::More) => failures = 0,
                Ok(Look::Nothing) => {
                    failures = 0;
                    let _ = tokio::time::timeout(LOOK_EVERY, posts.changed()).await;
                }
                Ok(Look::Over) => return,
                Err(error) if failures < TRIES => {
                    failures += 1;
                    tracing::warn!(%error, "cannot read posted tasks");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                Err(error) => return drop(self.sender.send(Found::Failed(error.to_string())).await),
            }
        }
    }

    /// One look into the store, from this place on.
    async fn look(&self, from: &mut u64) -> Result<Look, StoreError> {
        let (tasks, last) = self.run.store().posted_tasks(self.run.run_id(), *from, AT_ONCE).await?;
        let more = tasks.len() == AT_ONCE as usize;
        // Counted once for all of them: the count is one over all that was ever posted.
        if !tasks.is_empty() {
            self.publish().await?;
        }
        for posted in tasks {
            match self.queue.slot(&self.run, &posted).await? {
                Ok(slot) => {
                    if self.sender.send(Found::Task(posted.place, Box::new(slot))).await.is_err() {
                        return Ok(Look::Over);
                    }
                }
                Err(reason) => {
                    self.reject(posted.place, reason).await?;
                    self.publish().await?;
                }
            }
            *from = posted.place + 1;
        }
        if last {
            // Nobody is left to tell where the run has ended.
            let _ = self.sender.send(Found::End).await;
            return Ok(Look::Over);
        }
        Ok(if more { Look::More } else { Look::Nothing })
    }

    async fn reject(&self, place: u64, reason: String) -> Result<(), StoreError> {
        tracing::warn!(group = place, "a posted task is rejected: {reason}");
        self.run.reject_task(place, &reason).await?;
        self.queue.tally.reject(RejectedTask { line: place + 1, column: None, reason });
        Ok(())
    }

    async fn publish(&self) -> Result<(), StoreError> {
        let (posted, rejected) = self.run.store().posted_counts(self.run.run_id()).await?;
        self.queue.tally.set_tasks(posted - rejected);
        self.progress.send_modify(|progress| {
            progress.tasks = posted - rejected;
            progress.tasks_rejected = rejected;
        });
        Ok(())
    }
}

/// What a look has come to.
enum Look {
    /// There is more already.
    More,
    /// There is nothing more yet.
    Nothing,
    /// There will be nothing more, or nobody wants it.
    Over,
}
