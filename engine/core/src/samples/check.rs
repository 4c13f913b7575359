//! The invariants of `group/v1`, checked on every group before it leaves.
//!
//! The check is by what a group says, not by how it was made: it knows nothing of the ledger. Order: the group, each
//! trajectory, its calls, its rows ([`mod@self`]'s `rows`), then the account of every sampled token (`account`).

mod account;
mod rows;

use super::{Call, Group, GroupKind, GroupStatus, SCHEMA, Trajectory};
use crate::ending::Status;
use crate::ledger::reason;
use std::collections::{HashMap, HashSet};
use std::fmt;

/// Which invariant is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rule {
    /// `schema` is `group/v1`.
    Schema,
    /// `n_ready` counts trajectories with a reward; `ready` has exactly `n_requested` of them, `short` fewer.
    Counts,
    /// Trajectory, rollout and call ids, and rollout indices, are unique.
    Unique,
    /// What was replaced has no reward, and was not removed.
    Replaced,
    /// What was not chosen has a reward or was removed, and does not train.
    NotChosen,
    /// What was removed has no reward and no rewards of turns, and all its sampled tokens are excluded as `removed: REASON`; no
    /// others are.
    Removed,
    /// `calls` are to the group's model, `other_calls` are not.
    Model,
    /// `status` is that of the row of `stop_reason`.
    Ending,
    /// A reward is finite.
    Reward,
    /// Without reward, or failed or aborted, or of an ending that does not train: not trainable.
    Trainable,
    /// Versions cover the call's tokens in order.
    CallVersions,
    /// All arrays of a row have its length.
    Lengths,
    /// `prompt_len` is the index of the first sampled token, the row's length where there is none.
    PromptLen,
    /// Masks are 0 or 1 and origins known.
    Codes,
    /// Mask 1 stands only at origin 1 with a logprob that is finite and at most 0.
    Mask,
    /// Logprobs are finite, and 0 where nothing was sampled.
    Logprobs,
    /// Advantages and rewards of tokens are finite.
    Finite,
    /// Spans are in order, inside the row, do not overlap, and lie inside their call.
    Spans,
    /// Sampled spans hold origin 1, reused ones origin 0, and each token of origin 1 lies in a sampled span.
    SpanOrigin,
    /// Version runs are in order and cover each trained token with its call's label.
    VersionRuns,
    /// A row's parent comes before it and shares `fork_at` tokens with it; a judge's group names what it judges.
    Parent,
    /// Images lie inside the row, in order, without overlap, where nothing is sampled; `images` of the group counts them.
    Images,
    /// A sampled token stands as sampled in at most one row.
    Once,
    /// For each call, trained, masked and dropped tokens are its tokens, each once.
    Account,
    /// A row that may not train trains nothing; in one that may, every exclusion has a reason of its own.
    Reason,
}

/// One broken invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub rule: Rule,
    /// Trajectory, row and call it was found at.
    pub place: String,
    /// What is wrong, with the values.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({:?})", self.place, self.text, self.rule)
    }
}

/// Every broken invariant of a group; of one kind in one row, the first.
pub fn check(group: &Group) -> Vec<Violation> {
    let mut report = Report { place: format!("group {}", group.group_id), found: Vec::new() };
    group_rules(group, &mut report);
    let mut call_ids = HashSet::new();
    let places = [(&group.trajectories, false), (&group.replaced, true), (&group.not_chosen, false)];
    for (trajectory, replaced) in places
        .into_iter()
        .flat_map(|(all, replaced)| all.iter().map(move |trajectory| (trajectory, replaced)))
    {
        report.place = format!("trajectory {}", trajectory.traj_id);
        report.ensure(!replaced || trajectory.reward.is_none(), Rule::Replaced, || {
            "replaced, but it has a reward".into()
        });
        report.ensure(!replaced || trajectory.removed.is_none(), Rule::Replaced, || {
            "replaced, but its sample was removed, which is not replaced".into()
        });
        trajectory_rules(trajectory, &group.model, &mut report);
        for call in trajectory.calls.iter().chain(&trajectory.other_calls) {
            report.ensure(call_ids.insert(call.call_id.as_str()), Rule::Unique, || {
                format!("call {} stands twice", call.call_id)
            });
        }
        let calls: HashMap<&str, &Call> =
            trajectory.calls.iter().map(|call| (call.call_id.as_str(), call)).collect();
        for (index, segment) in trajectory.segments.iter().enumerate() {
            report.place = format!("trajectory {}, segment {index}", trajectory.traj_id);
            let parent = segment
                .parent_segment
                .map(|parent| trajectory.segments[..index].get(parent as usize).ok_or(parent));
            rows::check(segment, parent, &calls, &mut report);
        }
        report.place = format!("trajectory {}", trajectory.traj_id);
        account::check(trajectory, &mut report);
    }
    report.found
}

/// What was found so far, and where the check stands.
struct Report {
    place: String,
    found: Vec<Violation>,
}

impl Report {
    fn ensure(&mut self, holds: bool, rule: Rule, text: impl FnOnce() -> String) -> bool {
        if !holds {
            self.found.push(Violation { rule, place: self.place.clone(), text: text() });
        }
        holds
    }
}

fn group_rules(group: &Group, report: &mut Report) {
    report.ensure(group.schema == SCHEMA, Rule::Schema, || format!("schema is {:?}", group.schema));
    report.ensure(group.kind != GroupKind::JudgeTurn || group.parent.is_some(), Rule::Parent, || {
        "a judge's group names no parent".into()
    });
    report.ensure(group.images == group.images_in_rows(), Rule::Images, || {
        format!("images is {}, its rows hold {}", group.images, group.images_in_rows())
    });
    let rewarded = group.trajectories.iter().filter(|trajectory| trajectory.reward.is_some()).count();
    report.ensure(group.n_ready as usize == rewarded, Rule::Counts, || {
        format!("n_ready is {}, {rewarded} trajectories have a reward", group.n_ready)
    });
    let (ready, requested) = (group.n_ready, group.n_requested);
    let fits = match group.status {
        GroupStatus::Ready => ready == requested,
        GroupStatus::Short => ready < requested,
        GroupStatus::Stale | GroupStatus::Failed | GroupStatus::Filtered => true,
    };
    report.ensure(fits, Rule::Counts, || {
        format!("{} with {ready} of {requested} trajectories", group.status.as_str())
    });
    let (mut ids, mut rollouts, mut indices) = (HashSet::new(), HashSet::new(), HashSet::new());
    for trajectory in &group.not_chosen {
        report.ensure(!trajectory.trainable, Rule::NotChosen, || {
            format!("trajectory {} was not chosen, but is trainable", trajectory.traj_id)
        });
        report.ensure(trajectory.reward.is_some() || trajectory.removed.is_some(), Rule::NotChosen, || {
            format!("trajectory {} was not chosen, but has no reward to be chosen by", trajectory.traj_id)
        });
    }
    for trajectory in group.all() {
        let unique = ids.insert(trajectory.traj_id.as_str())
            & rollouts.insert(trajectory.rollout_id)
            & indices.insert(trajectory.rollout_index);
        report.ensure(unique, Rule::Unique, || {
            format!(
                "trajectory {}, rollout {} or index {} stands twice",
                trajectory.traj_id, trajectory.rollout_id, trajectory.rollout_index
            )
        });
    }
}

fn trajectory_rules(trajectory: &Trajectory, model: &str, report: &mut Report) {
    let row = trajectory.stop_reason.row();
    report.ensure(trajectory.status == row.status, Rule::Ending, || {
        format!("{} is never {}", trajectory.stop_reason.as_str(), trajectory.status.as_str())
    });
    report.ensure(trajectory.reward.is_none_or(f64::is_finite), Rule::Reward, || {
        format!("reward is {:?}", trajectory.reward)
    });
    let may_train = trajectory.reward.is_some()
        && row.trainable
        && !matches!(trajectory.status, Status::Failed | Status::Aborted);
    report.ensure(may_train || !trajectory.trainable, Rule::Trainable, || {
        format!("trainable with reward {:?}, {}", trajectory.reward, trajectory.stop_reason.as_str())
    });
    for excluded in &trajectory.excluded {
        let of_the_whole =
            [reason::NOT_TRAINABLE, reason::ATTEMPT_ABANDONED].contains(&excluded.reason.as_str());
        let own = !(excluded.reason.is_empty() || trajectory.trainable && of_the_whole);
        report.ensure(own, Rule::Reason, || {
            format!("call {} is excluded with reason {:?}", excluded.call_id, excluded.reason)
        });
    }
    removed(trajectory, report);
    let trains = trajectory.segments.iter().any(|segment| segment.mask.contains(&1));
    report.ensure(trajectory.trainable || !trains, Rule::Reason, || {
        "not trainable, but tokens have mask 1".into()
    });
    for call in &trajectory.calls {
        report.ensure(call.model == model, Rule::Model, || {
            format!("call {} is to {}, the group's model is {model}", call.call_id, call.model)
        });
    }
    for call in &trajectory.other_calls {
        report.ensure(call.model != model, Rule::Model, || {
            format!("call {} is to the group's model, but stands in other_calls", call.call_id)
        });
    }
    for call in trajectory.calls.iter().chain(&trajectory.other_calls) {
        let end = call
            .versions
            .iter()
            .try_fold(0u32, |at, (offset, len, ..)| if *offset == at { at.checked_add(*len) } else { None });
        report.ensure(end == Some(call.n_sampled), Rule::CallVersions, || {
            format!("versions of call {} do not cover its {} tokens", call.call_id, call.n_sampled)
        });
    }
}

/// The account says whether every token is excluded; this, that each exclusion has the one reason.
fn removed(trajectory: &Trajectory, report: &mut Report) {
    let of_removal = trajectory.removed.as_ref().map(|why| format!("{}{why}", reason::REMOVED));
    let other = trajectory.excluded.iter().find(|excluded| match &of_removal {
        Some(reason) => excluded.reason != *reason,
        None => excluded.reason.starts_with(reason::REMOVED),
    });
    report.ensure(other.is_none(), Rule::Removed, || {
        let excluded = other.expect("one was found");
        format!(
            "call {} is excluded with reason {:?}, the sample was removed for {:?}",
            excluded.call_id, excluded.reason, trajectory.removed
        )
    });
    let Some(why) = &trajectory.removed else { return };
    let bare = trajectory.reward.is_none() && trajectory.turn_rewards.is_none() && !trajectory.trainable;
    report.ensure(bare && !why.is_empty(), Rule::Removed, || {
        format!(
            "removed for {why:?}, with reward {:?}, trainable: {}",
            trajectory.reward, trajectory.trainable
        )
    });
}

#[cfg(test)]
mod tests;
