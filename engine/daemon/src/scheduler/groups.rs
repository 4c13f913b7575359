//! What the machine of a group says, carried out.

use super::{Done, GroupScored, RolloutKey, STORE_DEADLINE, Scheduler, SchedulerBackend};
use espalier_core::group::{GroupEffect, GroupEvent, GroupState, GroupsConfig};
use espalier_core::rollout::{Phase, Rollout};
use espalier_core::samples::TokenSums;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::time::Instant;

/// A group that is open.
pub(super) struct OpenGroup<W: SchedulerBackend> {
    pub(super) shared: Arc<W::Group>,
    /// `[groups]`, with as many rollouts as its task asks for.
    pub(super) config: GroupsConfig,
    pub(super) state: GroupState,
    pub(super) rollouts: BTreeMap<u32, Rollout>,
    /// Of the records that were written in this session.
    pub(super) tokens: BTreeMap<u32, TokenSums>,
    /// From the end of its common scoring to its close.
    pub(super) scores: Option<W::Scores>,
    /// Whether its deadline has passed.
    pub(super) overdue: bool,
}

impl<W: SchedulerBackend> Scheduler<W> {
    pub(super) fn group_event(&mut self, group_index: u64, event: GroupEvent) {
        let Some(group) = self.groups.get_mut(&group_index) else { return self.stale() };
        let effects = group.state.on(&group.config, event);
        self.group_effects(group_index, effects);
    }

    pub(super) fn group_effects(&mut self, group_index: u64, effects: Vec<GroupEffect>) {
        for effect in effects {
            let Some(group) = self.groups.get_mut(&group_index) else { return };
            match effect {
                GroupEffect::Add { rollout_index } => {
                    // One that ran in an earlier session goes on with its numbers.
                    group.rollouts.entry(rollout_index).or_default();
                    self.counts.added += 1;
                    self.counts.replacements += u64::from(self.config.bar.is_none());
                    self.queue.insert(RolloutKey { group_index, rollout_index }, Instant::now());
                }
                GroupEffect::Drop { rollouts } => {
                    self.counts.dropped += rollouts.len() as u64;
                    for rollout_index in rollouts {
                        let rollout = RolloutKey { group_index, rollout_index };
                        if self.queue.remove(&rollout).is_none() && self.timers.remove_backoff(rollout) {
                            self.backing_off -= 1;
                        }
                    }
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
                    if self.config.bar.is_some() {
                        self.counts.replacements += verdict.replaced.len() as u64;
                    }
                    self.counts.not_chosen += verdict.not_chosen.len() as u64;
                    for rollout_index in &verdict.not_chosen {
                        let trained = group.tokens.get(rollout_index).map_or(0, |tokens| tokens.trained);
                        self.counts.tokens.trained -= trained;
                        self.counts.tokens.masked += trained;
                    }
                    self.operate(STORE_DEADLINE, format!("closing group {group_index}"), async move {
                        backend.close_group(shared, verdict, scores).await?;
                        Ok(Done::Closed { group_index, status })
                    });
                }
                GroupEffect::Stale => self.stale(),
            }
        }
    }

    /// The deadline of the group has passed. One that has closed meanwhile needs nothing.
    pub(super) fn group_overdue(&mut self, group_index: u64) {
        let Some(group) = self.groups.get_mut(&group_index).filter(|group| group.state.verdict().is_none())
        else {
            return;
        };
        group.overdue = true;
        self.counts.groups_overdue += 1;
        self.drop_overdue(group_index);
    }

    /// Drops what does not run of a group whose deadline has passed.
    pub(super) fn drop_overdue(&mut self, group_index: u64) {
        let Some(group) = self.groups.get(&group_index).filter(|group| group.overdue) else { return };
        // One that has a result to be scored again is there.
        let runs = |rollout: &Rollout| match rollout.phase {
            Phase::Running { .. } | Phase::Storing { .. } | Phase::Discarding { .. } => true,
            _ => rollout.unscored.is_some(),
        };
        let running = group.rollouts.iter().filter(|(_, rollout)| runs(rollout)).map(|(index, _)| *index);
        let running = running.collect();
        self.group_event(group_index, GroupEvent::DeadlinePassed { running });
    }

    /// A record of this rollout was written; one whose second scoring came to nothing stays as it was.
    pub(super) fn measured(&mut self, rollout: RolloutKey, tokens: TokenSums) {
        if tokens.sampled > 0
            && let Some(group) = self.groups.get_mut(&rollout.group_index)
        {
            group.tokens.insert(rollout.rollout_index, tokens);
        }
    }

    /// Tokens of the rollout's result.
    pub(super) fn sampled(&self, rollout: RolloutKey) -> u64 {
        let group = self.groups.get(&rollout.group_index);
        let written = group.and_then(|group| group.tokens.get(&rollout.rollout_index));
        let earlier = || self.sampled_before.get(&rollout).copied();
        written.map(|tokens| tokens.sampled).or_else(earlier).unwrap_or_default()
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
