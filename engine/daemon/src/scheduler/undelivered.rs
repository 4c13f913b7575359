//! Back-pressure of trainers: no further group opens while too many are not delivered, and a run may wait for them at its end.
//!
//! The loop knows at once which groups it has closed; what trainers are done with it hears later, through a channel. So the bound is never
//! exceeded by groups of this session, however late it hears.

use super::{Scheduler, SchedulerBackend};
use espalier_core::samples::GroupStatus;
use tokio::sync::watch;

/// How many groups may be undelivered, those that are open included.
#[derive(Clone, Debug)]
pub struct UndeliveredBound {
    /// So many.
    pub groups_max: u64,
    /// Groups that trainers are done with: acknowledged or dropped. Falls when a trainer goes back to an earlier step.
    pub done: watch::Receiver<u64>,
    /// Whether the run waits at its end until trainers are done with all groups.
    pub waits_at_end: bool,
}

impl<W: SchedulerBackend> Scheduler<W> {
    /// Groups that closed for trainers and that these are not done with; 0 where nothing bounds them.
    pub(super) fn undelivered(&self) -> u64 {
        let Some(bound) = &self.undelivered else { return 0 };
        let closed = |status| self.counts.groups_closed.get(&status).copied().unwrap_or(0);
        (closed(GroupStatus::Ready) + closed(GroupStatus::Short)).saturating_sub(*bound.done.borrow())
    }

    /// Whether nothing is left to do but to wait until trainers are done.
    pub(super) fn waits_at_end(&self) -> bool {
        let waits = self.undelivered.as_ref().is_some_and(|bound| bound.waits_at_end);
        waits && self.nothing_left() && self.undelivered() > 0
    }

    /// Whether no further group may open before a trainer is done with one, or one closes that is not delivered.
    pub(super) fn is_held_up(&self) -> bool {
        let live = (self.groups.len() + self.opening.len()) as u64;
        self.undelivered.as_ref().is_some_and(|bound| self.undelivered() + live >= bound.groups_max)
    }
}

/// Until trainers are done with more groups, or fewer.
pub(super) async fn changed(bound: Option<&mut UndeliveredBound>) {
    if let Some(bound) = bound
        && bound.done.changed().await.is_ok()
    {
        return;
    }
    // Nobody tells, or not any more.
    std::future::pending::<()>().await;
}
