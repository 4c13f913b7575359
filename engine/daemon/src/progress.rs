//! How far a run is: counters that the scheduler alone writes and anybody may watch.
//!
//! They are a view: dropping one loses nothing, and none of them steers.

use espalier_core::ending::StopReason;
use espalier_core::samples::{GroupStatus, TokenSums};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tokio::sync::watch;

/// What a run is doing. A run goes through the stages in this order; through `Paused` and `Draining` only when it is told to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Reads the tasks.
    #[default]
    Tasks,
    /// Opens the store and takes the run's lock.
    Store,
    /// Loads plugins and checks their settings.
    Plugins,
    /// Starts, reaches and probes the models.
    Models,
    /// Rolls out.
    Rollouts,
    /// Admits nothing until it is resumed.
    Paused,
    /// Admits nothing more and waits for what runs.
    Draining,
    /// Is over.
    Done,
}

/// A snapshot. Counts cover the whole run, resumed parts included, unless a field says otherwise.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// What it is doing.
    pub stage: Stage,
    /// The run, once its lock was taken, and whether it was there before.
    pub run: Option<(String, bool)>,
    /// Tasks that were read, and lines that were rejected.
    pub tasks: u64,
    /// Lines of the task file that were rejected.
    pub tasks_rejected: u64,
    /// Groups that are wanted in all; grows where filtered ones are replenished. `None`: as many as tasks come.
    pub groups_wanted: Option<u64>,
    /// Rollouts could begin, and the task of the next group is not there yet.
    pub waits_for_task: bool,
    /// No further group opens before trainers are done with one (`delivery.undelivered_max`).
    pub waits_for_trainer: bool,
    /// All groups of this session are closed; it may still wait until trainers are done with them (`delivery.socket`).
    pub all_closed: bool,
    /// Groups that trainers are not done with; 0 where nothing bounds them.
    pub undelivered: u64,
    /// The counters.
    pub counts: Counts,
    /// Plugins that groups of this session opened with another component than the group before, in order.
    pub plugins_changed: Vec<PluginChange>,
}

/// A plugin whose component is another than before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginChange {
    /// Its alias in the run.
    pub plugin: String,
    /// Digest until then.
    pub was: String,
    /// Digest from then on.
    pub is: String,
    /// The first group with it; `None`: no group has it, it is what the next run would take.
    pub from_group: Option<u64>,
}

impl PluginChange {
    /// What differs between two groups, or the last group and now.
    pub fn between(
        was: &BTreeMap<String, String>,
        is: &BTreeMap<String, String>,
        from_group: Option<u64>,
    ) -> Vec<PluginChange> {
        let differs = |(plugin, is): (&String, &String)| {
            let was = was.get(plugin).filter(|was| *was != is)?.clone();
            Some(PluginChange { plugin: plugin.clone(), was, is: is.clone(), from_group })
        };
        is.iter().filter_map(differs).collect()
    }
}

/// Finds the first group of each component, whatever order groups open in.
#[derive(Debug, Default)]
pub struct VersionLog {
    /// Digests by alias of the last group before those below.
    last: BTreeMap<String, String>,
    /// Groups that open, or have opened behind one that does.
    opening: BTreeMap<u64, Option<BTreeMap<String, String>>>,
}

impl VersionLog {
    /// After a group with these digests.
    pub fn after(last: BTreeMap<String, String>) -> VersionLog {
        VersionLog { last, opening: BTreeMap::new() }
    }

    /// A group begins to open.
    pub fn begin(&mut self, group_index: u64) {
        self.opening.insert(group_index, None);
    }

    /// It has opened with these components, or `None`: it does not, or had opened before. What changed as far as it is certain.
    pub fn end(&mut self, group_index: u64, digests: Option<BTreeMap<String, String>>) -> Vec<PluginChange> {
        match digests {
            Some(digests) => drop(self.opening.insert(group_index, Some(digests))),
            None => drop(self.opening.remove(&group_index)),
        }
        let mut changed = Vec::new();
        while let Some(first) = self.opening.first_entry() {
            let Some(digests) = first.get().clone() else { break };
            changed.extend(PluginChange::between(&self.last, &digests, Some(*first.key())));
            self.last = digests;
            first.remove();
        }
        changed
    }
}

/// Counters of groups, rollouts and attempts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// Groups that are open.
    pub groups_open: u64,
    /// Groups that closed, by status.
    pub groups_closed: BTreeMap<GroupStatus, u64>,
    /// Rollouts that wait for a permit.
    pub queued: u64,
    /// Rollouts that hold a permit.
    pub running: u64,
    /// Rollouts that wait for their next attempt.
    pub backing_off: u64,
    /// Rollouts that ended for good, by the attempt that counts.
    pub endings: BTreeMap<StopReason, u64>,
    /// Fresh rollouts in the place of ones that ended without a reward.
    pub replacements: u64,
    /// Rollouts with a reward, or removed, that were not chosen for their group.
    pub not_chosen: u64,
    /// Rollouts beyond those that groups open with.
    pub added: u64,
    /// Rollouts with a reward.
    pub scored: u64,
    /// Rollouts that solved their task: [`is_solved`].
    pub solved: u64,
    /// Sum of all rewards.
    pub reward_sum: f64,
    /// Attempts whose record is durable, abandoned ones included.
    pub attempts: u64,
    /// Tokens over all attempts.
    pub tokens: TokenSums,
    /// Rollouts that had ended before this session: no part of its speed.
    pub resumed_rollouts: u64,
    /// Tokens that had been sampled before this session.
    pub resumed_tokens: u64,
    /// Rollouts that were scored again in this session, without sampling.
    pub scored_again: u64,
    /// Rollouts of this session that could not be scored again, and were sampled again.
    pub sampled_again: u64,
    /// Groups of this session whose deadline passed before they had closed.
    pub groups_overdue: u64,
    /// Rollouts of these that had not run, and did not any more.
    pub dropped: u64,
    /// Events of this session that came late, twice or from nowhere, and were dropped.
    pub stale_events: u64,
}

impl Stage {
    /// All of them, in order.
    pub const ALL: [Stage; 8] = [
        Stage::Tasks,
        Stage::Store,
        Stage::Plugins,
        Stage::Models,
        Stage::Rollouts,
        Stage::Paused,
        Stage::Draining,
        Stage::Done,
    ];

    /// As services say it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Stage::Tasks => "tasks",
            Stage::Store => "store",
            Stage::Plugins => "plugins",
            Stage::Models => "models",
            Stage::Rollouts => "rollouts",
            Stage::Paused => "paused",
            Stage::Draining => "draining",
            Stage::Done => "done",
        }
    }
}

impl Counts {
    /// Rollouts that ended for good.
    pub fn ended(&self) -> u64 {
        self.endings.values().sum()
    }

    /// Mean over the rollouts with a reward; `None` before the first.
    pub fn mean_reward(&self) -> Option<f64> {
        (self.scored > 0).then(|| self.reward_sum / self.scored as f64)
    }

    /// Takes back a rollout that had ended so, and is done again.
    pub(crate) fn take_back_end(&mut self, stop_reason: StopReason) {
        if let Some(n) = self.endings.get_mut(&stop_reason) {
            *n = n.saturating_sub(1);
        }
        self.endings.retain(|_, n| *n > 0);
    }

    /// Counts one rollout that ended for good.
    pub(crate) fn count_end(&mut self, stop_reason: StopReason, reward: Option<f64>) {
        *self.endings.entry(stop_reason).or_default() += 1;
        self.count_again(None, reward);
    }

    /// Counts the reward of one rollout in the place of the one that it had.
    pub(crate) fn count_again(&mut self, before: Option<f64>, reward: Option<f64>) {
        if let Some(before) = before {
            self.scored = self.scored.saturating_sub(1);
            self.reward_sum -= before;
            self.solved = self.solved.saturating_sub(u64::from(is_solved(before)));
        }
        if let Some(reward) = reward {
            self.scored += 1;
            self.reward_sum += reward;
            self.solved += u64::from(is_solved(reward));
        }
    }
}

/// Whether a reward says that the task is solved: at least 1, but for rounding (1e-9).
pub fn is_solved(reward: f64) -> bool {
    reward >= 1.0 - 1e-9
}

/// Where the engine writes its progress; each snapshot takes the place of the last.
pub type ProgressSender = watch::Sender<Progress>;

/// Where it is read.
pub type ProgressReceiver = watch::Receiver<Progress>;

/// A sender with a first, empty snapshot.
pub fn channel() -> (ProgressSender, ProgressReceiver) {
    watch::channel(Progress::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_of_its_first_group_in_whatever_order_they_open() {
        let of = |digest: &str| BTreeMap::from([("h".to_owned(), digest.to_owned())]);
        let mut log = VersionLog::after(of("1"));
        (4..9).for_each(|group| log.begin(group));
        let told = |changed: Vec<PluginChange>| -> Vec<(String, u64)> {
            changed.into_iter().map(|change| (change.is, change.from_group.unwrap())).collect()
        };
        assert_eq!(told(log.end(8, Some(of("3")))), []);
        assert_eq!(told(log.end(6, Some(of("2")))), []);
        // One that had opened before keeps what it had, and says nothing.
        assert_eq!(told(log.end(4, None)), []);
        assert_eq!(told(log.end(5, Some(of("2")))), [("2".to_owned(), 5)]);
        assert_eq!(told(log.end(7, Some(of("3")))), [("3".to_owned(), 7)]);
        log.begin(9);
        assert_eq!(told(log.end(9, Some(of("3")))), []);
    }
}
