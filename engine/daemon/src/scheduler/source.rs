//! Where the tasks of new groups come from.

use async_trait::async_trait;

/// Gives tasks as they come. Owner: the run's loop, which asks for one at a time, and only when a group may open.
///
/// A source may be late (the next task is not there yet), endless, and longer than anybody knows. Which task a group got is
/// durable with the group; a source is never asked for that of a group that an earlier session opened.
#[async_trait]
pub trait TaskSource: Send {
    /// What a group is about.
    type Task: Send + 'static;

    /// The task of the group at this place, waiting for it as long as it takes. Cancel-safe: a task that was not returned is returned by
    /// the next call.
    async fn next(&mut self, group_index: u64) -> Result<Next<Self::Task>, SourceFailed>;

    /// Groups that there are tasks for in all, where that is known.
    fn groups(&self) -> Option<u64>;
}

/// What a source has for a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next<T> {
    /// The task of the group.
    Task(T),
    /// No group takes this place, now or in a later session: ask for the next one.
    Skip,
    /// There is no further task.
    End,
}

impl<T> From<Option<T>> for Next<T> {
    fn from(task: Option<T>) -> Next<T> {
        task.map_or(Next::End, Next::Task)
    }
}

/// Why no more tasks come, though there may be some. What has begun goes on to its end, and the run stays open.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceFailed {
    /// A stream cannot be read any further.
    #[error("the task stream failed: {0}")]
    Stream(String),
    /// A task generator makes nothing that is a task.
    #[error("the task generator {0}")]
    Generator(String),
    /// What was made cannot be kept.
    #[error("generated tasks cannot be kept: {0}")]
    Lost(String),
    /// Tasks that a trainer posted cannot be read, or not be rejected.
    #[error("posted tasks: {0}")]
    Posted(String),
}

/// The next task, where one is wanted.
pub(super) async fn next<T: Send + 'static>(
    source: &mut dyn TaskSource<Task = T>,
    wanted: Option<u64>,
) -> Result<Next<T>, SourceFailed> {
    match wanted {
        Some(group_index) => source.next(group_index).await,
        None => std::future::pending().await,
    }
}
