//! What the loop tells whoever watches.

use super::{Scheduler, SchedulerBackend};
use crate::progress::{Progress, Stage};
use espalier_core::control::RunPhase;

impl<W: SchedulerBackend> Scheduler<W> {
    pub(super) fn publish(&mut self) {
        self.counts.groups_open = self.groups.len() as u64;
        self.counts.queued = self.queue.len() as u64;
        self.counts.running = u64::from(self.permits_used);
        self.counts.backing_off = self.backing_off;
        let stage = match self.phase {
            RunPhase::Admitting => Stage::Rollouts,
            RunPhase::Paused => Stage::Paused,
            RunPhase::Draining | RunPhase::Cancelling | RunPhase::Aborted => Stage::Draining,
        };
        let (groups_wanted, counts, undelivered) = (self.known_target(), &self.counts, self.undelivered());
        let waits_for_task = self.pulling.is_some();
        let all_closed = self.nothing_left();
        let waits_for_trainer = self.waits_at_end() || (self.is_held_up() && self.next_group < self.target());
        self.progress.send_modify(|progress: &mut Progress| {
            progress.stage = stage;
            progress.groups_wanted = groups_wanted;
            progress.waits_for_task = waits_for_task;
            progress.waits_for_trainer = waits_for_trainer;
            progress.all_closed = all_closed;
            progress.undelivered = undelivered;
            progress.counts.clone_from(counts);
        });
    }
}
