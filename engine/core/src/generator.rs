//! Tasks made by a plugin: what it is asked for, and how a task went. Pure; who asks is the run's source of tasks.

use crate::ending::StopReason;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Longest summary of a failure, characters (RLAnything, GUI adapter).
pub const SUMMARY_CHARS_MAX: usize = 320;
/// Most summaries of one group (the same).
pub const SUMMARIES_MAX: usize = 12;
/// Batches without a valid task, one after another, that end a run.
pub const EMPTY_BATCHES_MAX: u32 = 8;

/// What a generator is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// How many tasks, from 1.
    pub count: u32,
    /// Below 2^53.
    pub seed: u64,
    /// Number of the batch, from 0.
    pub batch: u64,
    /// Tasks that the run has already.
    pub accepted: u64,
}

/// How a task went: all rollouts of one group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Statistics {
    /// Rollouts with a reward.
    pub attempts: u32,
    /// Share of them that solved it, 0 to 1.
    pub accuracy: f64,
    /// Mean number of turns.
    pub turns: f64,
    /// Endings by stop reason.
    pub endings: BTreeMap<String, u32>,
    /// Summaries of what did not solve it.
    pub failures: Vec<String>,
}

/// `adapt` of `[tasks]`: which tasks are adapted. A group whose share of solved rollouts is outside of these bounds asks the generator
/// for variants of its task (RLAnything: 0.2 and 0.8).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdaptConfig {
    /// At most this share solved it: an easier one is asked for. 0 to 1.
    pub below: f64,
    /// At least this share solved it: a harder one is asked for. 0 to 1.
    pub above: f64,
}

impl AdaptConfig {
    /// Whether a task that went like this is adapted. One that was never scored says nothing.
    pub fn wants(&self, statistics: &Statistics) -> bool {
        let Statistics { attempts, accuracy, .. } = *statistics;
        attempts > 0 && (accuracy <= self.below || accuracy >= self.above)
    }
}

/// One rollout of a group, for its task's statistics.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome<'a> {
    /// Whether it solved the task; `None`: it was not scored.
    pub solved: Option<bool>,
    /// How it ended.
    pub stop_reason: StopReason,
    /// Answers of the policy.
    pub turns: u32,
    /// What it came to in a sentence: the answer, the reason of a score, an error.
    pub summary: &'a str,
}

impl Statistics {
    /// Of the rollouts of one group.
    pub fn of(rollouts: &[Outcome<'_>]) -> Statistics {
        let scored: Vec<&Outcome<'_>> = rollouts.iter().filter(|one| one.solved.is_some()).collect();
        let solved = |one: &Outcome<'_>| one.solved == Some(true);
        let share = |part: f64| if scored.is_empty() { 0.0 } else { part / scored.len() as f64 };
        let mut endings = BTreeMap::new();
        for one in rollouts {
            *endings.entry(one.stop_reason.as_str().to_owned()).or_default() += 1;
        }
        let failures = scored.iter().filter(|one| !solved(one)).take(SUMMARIES_MAX);
        Statistics {
            attempts: u32::try_from(scored.len()).unwrap_or(u32::MAX),
            accuracy: share(scored.iter().filter(|one| solved(one)).count() as f64),
            turns: share(scored.iter().map(|one| f64::from(one.turns)).sum()),
            endings,
            failures: failures.map(|one| one.summary.chars().take(SUMMARY_CHARS_MAX).collect()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(solved: Option<bool>, turns: u32) -> Outcome<'static> {
        Outcome { solved, stop_reason: StopReason::Submitted, turns, summary: "expected `5`, answered `6`" }
    }

    #[test]
    fn the_statistics_of_a_task_are_of_the_rollouts_that_were_scored() {
        let lost = Outcome { stop_reason: StopReason::Infrastructure, ..outcome(None, 9) };
        let of = Statistics::of(&[outcome(Some(true), 2), outcome(Some(false), 4), lost]);
        assert_eq!((of.attempts, of.accuracy, of.turns), (2, 0.5, 3.0));
        assert_eq!(of.endings, BTreeMap::from([("submitted".into(), 2), ("infrastructure".into(), 1)]));
        assert_eq!(of.failures, ["expected `5`, answered `6`"]);
        let nothing = Statistics::of(&[]);
        assert_eq!((nothing.attempts, nothing.accuracy), (0, 0.0));
    }

    #[test]
    fn a_task_is_adapted_at_the_bounds_and_beyond() {
        let bounds = AdaptConfig { below: 0.2, above: 0.8 };
        let wants =
            |accuracy, attempts| bounds.wants(&Statistics { accuracy, attempts, ..Statistics::default() });
        let table = [(0.0, true), (0.2, true), (0.25, false), (0.75, false), (0.8, true), (1.0, true)];
        for (accuracy, expect) in table {
            assert_eq!(wants(accuracy, 4), expect, "{accuracy}");
        }
        assert!(!wants(0.0, 0));
    }
}
