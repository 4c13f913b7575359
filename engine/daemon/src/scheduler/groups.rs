//! What the machine of a group says, carried out.

use super::{Done, RolloutKey, STORE_DEADLINE, Scheduler, SchedulerBackend};
use espalier_core::group::{GroupEffect, GroupEvent};
use std::sync::Arc;
use tokio::time::Instant;

impl<W: SchedulerBackend> Scheduler<W> {
    pub(super) fn group_event(&mut self, group_index: u64, event: GroupEvent) {
        let Some(group) = self.groups.get_mut(&group_index) else { return self.stale() };
        let effects = group.state.on(&self.config, event);
        self.group_effects(group_index, effects);
    }

    pub(super) fn group_effects(&mut self, group_index: u64, effects: Vec<GroupEffect>) {
        for effect in effects {
            let Some(group) = self.groups.get_mut(&group_index) else { return };
            match effect {
                GroupEffect::Add { rollout_index } => {
                    // One that ran in an earlier session goes on with its numbers.
                    group.rollouts.entry(rollout_index).or_default();
                    self.counts.replacements += 1;
                    self.queue.insert(RolloutKey { group_index, rollout_index }, Instant::now());
                }
                GroupEffect::Close(verdict) => {
                    let (backend, shared) = (Arc::clone(&self.backend), Arc::clone(&group.shared));
                    let status = verdict.status;
                    self.operate(STORE_DEADLINE, format!("closing group {group_index}"), async move {
                        backend.close_group(shared, verdict).await?;
                        Ok(Done::Closed { group_index, status })
                    });
                }
                GroupEffect::Stale => self.stale(),
            }
        }
    }
}
