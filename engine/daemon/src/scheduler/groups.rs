//! What the machine of a group says, carried out.

use super::{Done, GroupScored, RolloutKey, STORE_DEADLINE, Scheduler, SchedulerBackend};
use espalier_core::group::{GroupEffect, GroupEvent};
use espalier_core::rollout::Phase;
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
                GroupEffect::Score { rollouts } => {
                    let (backend, shared) = (Arc::clone(&self.backend), Arc::clone(&group.shared));
                    let deadline = backend.group_scoring_deadline(&shared);
                    let cancel = self.cancel.clone();
                    self.operate(deadline, format!("scoring group {group_index}"), async move {
                        let scored = backend.score_group(shared, rollouts, cancel).await?;
                        Ok(Done::Scored { group_index, scored })
                    });
                }
                GroupEffect::Close(verdict) => {
                    let (backend, shared) = (Arc::clone(&self.backend), Arc::clone(&group.shared));
                    let (status, scores) = (verdict.status, group.scores.take());
                    self.operate(STORE_DEADLINE, format!("closing group {group_index}"), async move {
                        backend.close_group(shared, verdict, scores).await?;
                        Ok(Done::Closed { group_index, status })
                    });
                }
                GroupEffect::Stale => self.stale(),
            }
        }
    }

    /// The rewards of a group are through. What they say is durable only when the group is closed; cut, they see it again when
    /// the run is resumed.
    pub(super) fn group_scored(&mut self, group_index: u64, scored: Option<GroupScored<W::Scores>>) {
        let Some(GroupScored { rewards, written, plugins, scores }) = scored else { return };
        let Some(group) = self.groups.get_mut(&group_index) else { return self.stale() };
        self.counts.tokens += written.tokens;
        self.counts.tokens -= written.before;
        for (rollout_index, worth) in &rewards {
            if let Some(Phase::Ended { outcome, .. }) =
                group.rollouts.get(rollout_index).map(|rollout| rollout.phase)
            {
                self.counts.count_again(outcome.reward, worth.reward);
            }
        }
        group.scores = Some(scores);
        let task = self.backend.task(&group.shared);
        self.reported(group_index, &task, &plugins);
        self.group_event(group_index, GroupEvent::Scored { rewards });
    }
}
