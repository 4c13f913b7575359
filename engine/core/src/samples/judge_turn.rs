//! Groups of a trained judge (`kind = judge-turn`): the evaluations of one turn of a rollout, compared with one another.
//!
//! Made of what a rollout's record keeps, when its own group leaves. What an evaluation is worth is RLAnything's: `R * S`, where `S`
//! is what it said and `R` what the turn came to (outcome and mean of the evaluations); one that could not be parsed is worth -2.

use super::{
    Call, ErrorNote, Group, GroupKind, GroupStatus, Origin, Parent, RewardPart, SCHEMA, Segment, Span,
    SpanUse, Timing, Trajectory,
};
use crate::ending::StopReason;
use crate::judge::{JudgeRecord, JudgeSamples, Vote};
use crate::trajectory::AttemptRecord;
use std::collections::{BTreeMap, BTreeSet};

/// What an evaluation that could not be parsed is worth (RLAnything, equation 2).
pub const UNPARSED: f64 = -2.0;

/// The groups of the judges that are trained, of one rollout of `group` that has a reward; none of any other. An answer that several
/// votes were read from trains once, with the first of them.
pub fn of_rollout(group: &Group, record: &AttemptRecord) -> Vec<Group> {
    let Some(outcome) = record.trajectory.reward else { return Vec::new() };
    let mut groups = Vec::new();
    for judge in &record.judges {
        let Some(samples) = &judge.sampled else { continue };
        let mut by_turn: BTreeMap<u32, Vec<&Vote>> = BTreeMap::new();
        for vote in &judge.votes {
            if let Some(turn) = vote.turn {
                by_turn.entry(turn).or_default().push(vote);
            }
        }
        let mut trained = BTreeSet::new();
        for (turn, votes) in by_turn {
            let mean = votes.iter().filter_map(|vote| vote.value).sum::<f64>() / votes.len() as f64;
            let of = Turn { group, record, judge, samples, turn, worth: outcome + samples.lambda * mean };
            groups.extend(of.group(&votes, &mut trained));
        }
    }
    groups
}

/// One turn that a judge has evaluated.
struct Turn<'a> {
    group: &'a Group,
    record: &'a AttemptRecord,
    judge: &'a JudgeRecord,
    samples: &'a JudgeSamples,
    turn: u32,
    /// `R` of equation 1.
    worth: f64,
}

impl Turn<'_> {
    fn group(&self, votes: &[&Vote], trained: &mut BTreeSet<String>) -> Option<Group> {
        let (group, parent) = (self.group, &self.record.trajectory);
        let group_id = format!("{}.{}.t{}", parent.traj_id, self.judge.judge, self.turn);
        let mut trajectories = Vec::new();
        for vote in votes {
            let Some(call) = self.call_of(vote).filter(|call| !trained.contains(&call.call_id)) else {
                continue;
            };
            let place = trajectories.len() as u32;
            let Some(trajectory) = self.evaluation(&group_id, place, vote, call) else { continue };
            trained.insert(call.call_id.clone());
            trajectories.push(trajectory);
        }
        let first = trajectories.first()?;
        let version = first.calls[0].versions.first().map(|(_, _, label, _)| label.clone());
        let count = trajectories.len() as u32;
        let mut group = Group {
            schema: SCHEMA.to_owned(),
            images: 0,
            run_id: group.run_id.clone(),
            group_id,
            group_index: group.group_index,
            kind: GroupKind::JudgeTurn,
            purpose: group.purpose,
            model: self.judge.model.clone(),
            parent: Some(Parent { traj_id: parent.traj_id.clone(), turn: self.turn }),
            task_id: group.task_id.clone(),
            task_hash: group.task_hash.clone(),
            environment: group.environment.clone(),
            n_requested: count,
            n_ready: count,
            dispatch_version: version.unwrap_or_default(),
            deadline_ms: None,
            status: GroupStatus::Ready,
            drop_reason: None,
            trajectories,
            replaced: Vec::new(),
            not_chosen: Vec::new(),
        };
        group.images = group.images_in_rows();
        Some(group)
    }

    /// The answer that a vote was read from.
    fn call_of(&self, vote: &Vote) -> Option<&Call> {
        let turn = self.judge.transcript.turns.get(vote.call? as usize)?;
        self.samples.calls.iter().find(|call| call.call_id == turn.call_id)
    }

    /// `None`: its tokens stand in no row, so there is nothing to train.
    fn evaluation(&self, group_id: &str, place: u32, vote: &Vote, call: &Call) -> Option<Trajectory> {
        let alone = |segment: &Segment| alone(segment, &call.call_id);
        let segments: Vec<Segment> = self.samples.segments.iter().filter_map(alone).collect();
        let trainable = segments.iter().any(|segment| segment.mask.contains(&1));
        if segments.is_empty() {
            return None;
        }
        let (name, part) = match vote.value {
            Some(value) => ("vote", RewardPart { score: value, weight: self.worth }),
            None => ("unparsed", RewardPart { score: UNPARSED, weight: 1.0 }),
        };
        let parent = &self.record.trajectory;
        let traj_id = format!("{group_id}.{place}");
        let session = call.call_id.rsplit_once('.').map_or(call.call_id.as_str(), |(session, _)| session);
        let digest = parent.plugins.get(&self.judge.judge);
        let errors = match vote.value {
            Some(_) => Vec::new(),
            None => vec![ErrorNote {
                code: "unparsed".to_owned(),
                text: "the evaluation could not be parsed".to_owned(),
            }],
        };
        Some(Trajectory {
            rollout_id: rollout_id(&traj_id),
            traj_id,
            rollout_index: place,
            attempt: parent.attempt,
            session_id: session.to_owned(),
            status: StopReason::Submitted.row().status,
            stop_reason: StopReason::Submitted,
            reward: Some(part.score * part.weight),
            reward_parts: BTreeMap::from([(format!("{}/{name}", self.judge.judge), part)]),
            turn_rewards: None,
            removed: None,
            trainable,
            timing_ms: Timing::default(),
            plugins: digest.map(|digest| (self.judge.judge.clone(), digest.clone())).into_iter().collect(),
            errors,
            calls: vec![call.clone()],
            other_calls: Vec::new(),
            segments,
            excluded: self
                .samples
                .excluded
                .iter()
                .filter(|one| one.call_id == call.call_id)
                .cloned()
                .collect(),
        })
    }
}

/// Negative, so that it is never a rollout's; exact in a double.
fn rollout_id(traj_id: &str) -> i64 {
    let hash = blake3::hash(traj_id.as_bytes());
    let first = u64::from_be_bytes(hash.as_bytes()[..8].try_into().expect("a hash has 32 bytes"));
    -1 - (first >> 11) as i64
}

/// A row in which this call alone is sampled; what other calls sampled in it is only context. `None`: nothing of it stands there.
fn alone(segment: &Segment, call_id: &str) -> Option<Segment> {
    let is_own = |span: &Span| span.usage == SpanUse::Sampled && span.call_id == call_id;
    let own: Vec<(u32, u32)> =
        segment.spans.iter().filter(|span| is_own(span)).map(|span| (span.start, span.len)).collect();
    let first = own.first()?.0;
    let mut row = Segment { parent_segment: None, fork_at: None, prompt_len: first, ..segment.clone() };
    for span in row.spans.iter_mut().filter(|span| span.usage == SpanUse::Sampled && span.call_id != call_id)
    {
        span.usage = SpanUse::Reused;
        let range = span.start as usize..(span.start + span.len) as usize;
        row.mask[range.clone()].fill(0);
        row.origin[range.clone()].fill(Origin::Prompt as u8);
        row.logprobs[range].fill(0.0);
    }
    let inside = |(start, len, label): &(u32, u32, String)| {
        let parts = own.iter().filter_map(|(from, count)| {
            let (begin, end) = ((*start).max(*from), (start + len).min(from + count));
            (begin < end).then(|| (begin, end - begin, label.clone()))
        });
        parts.collect::<Vec<_>>()
    };
    row.version_runs = segment.version_runs.iter().flat_map(inside).collect();
    Some(row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::{Message, Role};
    use crate::ledger::{Ledger, Piece, Trainability};
    use crate::samples::{check, fixture};
    use crate::trajectory::{Transcript, Turn as Answer};

    fn vote(turn: Option<u32>, value: Option<f64>, call: Option<u32>) -> Vote {
        Vote { turn, value, text: String::new(), call, extra: None }
    }

    fn answer(call_id: &str) -> Answer {
        Answer {
            index: 0,
            conversation: 0,
            call_id: call_id.to_owned(),
            message: Message::text(Role::Assistant, ""),
            tool_calls: vec![],
            malformed: None,
            finish: "stop".to_owned(),
            usage: crate::chat::Usage::default(),
            results: vec![],
            images_elided: 0,
            calls_at: Vec::new(),
        }
    }

    /// A judge that was asked for three evaluations of turn 0 in one conversation after another, and for two of turn 1 in a single one.
    fn judge() -> JudgeRecord {
        let mut ledger = Ledger::new();
        let prompt = |ids: &'static [u32]| Piece { ids, origin: Origin::Prompt };
        let mut transcript = Transcript::default();
        let ids: Vec<String> = (0..5).map(|n| format!("r0.judge0.0.{n}")).collect();
        for id in &ids[..3] {
            let branch = ledger.open(&[prompt(&[1, 2, 3])]);
            let call = ledger.record(fixture::call(id, "judge", 2), Some(vec![-0.5, -0.25]));
            ledger.place(branch, call, &[7, 8]);
        }
        let branch = ledger.open(&[prompt(&[4, 5])]);
        for id in &ids[3..] {
            let call = ledger.record(fixture::call(id, "judge", 2), Some(vec![-0.5, -0.25]));
            ledger.place(branch, call, &[9, 10]);
        }
        transcript.turns = ids.iter().map(|id| answer(id)).collect();
        let finished = ledger.finish(Trainability::Trainable);
        JudgeRecord {
            judge: "llm-judge".to_owned(),
            model: "judge".to_owned(),
            votes: vec![
                vote(Some(0), Some(1.0), Some(0)),
                vote(Some(0), None, Some(1)),
                vote(Some(0), Some(-1.0), Some(2)),
                vote(Some(1), Some(1.0), Some(3)),
                vote(Some(1), Some(1.0), Some(4)),
                vote(Some(1), Some(1.0), None),
                vote(None, Some(1.0), Some(4)),
            ],
            transcript,
            sampled: Some(JudgeSamples {
                lambda: 0.5,
                calls: finished.calls,
                segments: finished.segments,
                excluded: finished.excluded,
            }),
        }
    }

    fn record(reward: Option<f64>) -> AttemptRecord {
        let stop = if reward.is_some() { StopReason::Submitted } else { StopReason::GuestTrap };
        let trajectory = Trajectory {
            reward,
            ..fixture::trajectory(0, stop, Ledger::new().finish(Trainability::Trainable))
        };
        AttemptRecord {
            instruction: None,
            trajectory,
            transcript: Transcript::default(),
            steps: vec![],
            host_calls: vec![],
            logs: vec![],
            log_bytes_dropped: 0,
            report: None,
            scores: vec![],
            judges: vec![judge()],
            blobs: vec![],
            sandboxes: vec![],
            failures: vec![],
            withheld: false,
            seed: None,
            edges: vec![],
            edges_missing: 0,
        }
    }

    #[test]
    fn the_evaluations_of_a_turn_are_a_group_and_each_is_worth_what_the_turn_says_of_it() {
        let record = record(Some(1.0));
        let parent = fixture::group(vec![record.trajectory.clone()]);
        let groups = of_rollout(&parent, &record);
        let told: Vec<_> = groups
            .iter()
            .map(|group| {
                let rewards: Vec<f64> = group.trajectories.iter().filter_map(|one| one.reward).collect();
                (group.group_id.as_str(), group.parent.as_ref().map(|parent| parent.turn), rewards)
            })
            .collect();
        // Turn 0: 1 + 0.5 * (1 + 0 - 1) / 3 = 1. Turn 1: 1 + 0.5 * 1.
        let expect = [
            ("t0.llm-judge.t0", Some(0), vec![1.0, -2.0, -1.0]),
            ("t0.llm-judge.t1", Some(1), vec![1.5, 1.5]),
        ];
        assert_eq!(told, expect);
        for group in &groups {
            assert_eq!(check::check(group), [], "{}", group.group_id);
            assert_eq!((group.kind, group.model.as_str()), (GroupKind::JudgeTurn, "judge"));
            for trajectory in &group.trajectories {
                let sums = trajectory.token_sums();
                assert_eq!((sums.sampled, sums.trained), (2, 2));
                assert!(trajectory.rollout_id < 0);
            }
        }
        // The second evaluation in the same conversation has the first as context.
        let second = &groups[1].trajectories[1].segments[0];
        assert_eq!((second.prompt_len, second.mask.as_slice()), (4, &[0, 0, 0, 0, 1, 1][..]));
        assert_eq!(second.origin, [0, 0, 0, 0, 1, 1]);
    }

    #[test]
    fn a_rollout_without_a_reward_has_none() {
        let record = record(None);
        assert_eq!(of_rollout(&fixture::group(vec![record.trajectory.clone()]), &record), []);
    }
}
