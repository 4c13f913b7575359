//! What of a group is done again when a run is resumed, so that the group still comes out at its size.

use super::{BarConfig, GroupState, GroupsConfig, MemberEnd};
use crate::ending::Status;

/// How a rollout of an earlier session ended, for [`again`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Past {
    /// With a reward, or removed: it keeps its place and stays as it is.
    Rewarded,
    /// Without one, for good.
    Unrewarded,
    /// Without one, because what failed it may be repaired by now: it can be run again.
    RunAgain,
    /// The same, by a reward alone: it can be scored again.
    ScoreAgain,
}

/// What is done again of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Again {
    /// Rollouts whose results become attempts that others follow, ascending.
    pub run: Vec<u32>,
    /// Rollouts whose results are scored again, ascending.
    pub score: Vec<u32>,
}

impl Again {
    /// Whether nothing is done again.
    pub fn is_empty(&self) -> bool {
        self.run.is_empty() && self.score.is_empty()
    }
}

/// What is done again of a group, given how its rollouts ended (by place, ascending).
///
/// Which of those that may be done again stay: as many as there are results in the places of replacements that nothing else
/// accounts for, so that the group can still come out at its size; and no more are scored again than it has room for.
pub fn again(config: &GroupsConfig, ends: &[(u32, Past)]) -> Again {
    let is_kept = |past: Past| matches!(past, Past::Rewarded | Past::Unrewarded);
    let last_kept = ends.iter().filter(|(_, past)| is_kept(*past)).map(|(index, _)| index + 1).max();
    let last_kept = last_kept.unwrap_or(0);
    let unrewarded = ends.iter().filter(|(_, past)| *past == Past::Unrewarded).count() as u32;
    let stay = last_kept.saturating_sub(config.size).saturating_sub(unrewarded) as usize;
    let of = |kind: Past| ends.iter().filter(move |(_, past)| *past == kind).map(|(index, _)| *index);
    let staying: Vec<u32> = (of(Past::RunAgain).chain(of(Past::ScoreAgain)))
        .filter(|index| *index < last_kept)
        .take(stay)
        .collect();
    let kept: Vec<(u32, MemberEnd)> = ends
        .iter()
        .filter(|(index, past)| is_kept(*past) || staying.contains(index))
        .map(|(index, past)| {
            let reward = (*past == Past::Rewarded).then_some(0.0);
            (*index, MemberEnd { status: Status::Completed, reward, removed: false, sampled: 0 })
        })
        .collect();
    if config.bar.is_some() {
        return in_their_places(config, ends);
    }
    let live: Vec<u32> = GroupState::resume(config, false, &kept).0.live().collect();
    let mut again = Again::default();
    for (index, past) in ends.iter().filter(|(index, _)| !staying.contains(index)) {
        match past {
            Past::ScoreAgain if live.contains(index) => again.score.push(*index),
            Past::ScoreAgain | Past::RunAgain => again.run.push(*index),
            Past::Rewarded | Past::Unrewarded => {}
        }
    }
    again
}

/// Where rollouts are chosen, none stands in the place of another: all that may be done again is, where it is. What is scored again must
/// be part of the group from the start; of a stride that may not come again, it is run again if it does.
fn in_their_places(config: &GroupsConfig, ends: &[(u32, Past)]) -> Again {
    let kept = ends.iter().filter(|(_, past)| matches!(past, Past::Rewarded | Past::Unrewarded));
    let started = |bar: &BarConfig| match kept.map(|(index, _)| *index).max() {
        Some(last) => bar.started_with(config.size, last),
        None => bar.first_stride(config.size),
    };
    let started = config.bar.as_ref().map_or(config.size, started);
    let mut again = Again::default();
    for (index, past) in ends {
        match past {
            Past::ScoreAgain if *index < started => again.score.push(*index),
            Past::ScoreAgain | Past::RunAgain => again.run.push(*index),
            Past::Rewarded | Past::Unrewarded => {}
        }
    }
    again
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::GroupEvent;
    use crate::samples::GroupStatus;

    #[test]
    fn what_is_done_again_leaves_a_group_of_its_size() {
        let run = |index| (index, Past::RunAgain);
        let score = |index| (index, Past::ScoreAgain);
        let rewarded = |index| (index, Past::Rewarded);
        let gone = |index| (index, Past::Unrewarded);
        type Case<'a> = (&'a [(u32, Past)], &'a [u32], &'a [u32]);
        let cases: [Case<'_>; 9] = [
            (&[run(0), rewarded(1), run(2), run(3), run(4)], &[0, 2, 3, 4], &[]),
            // A replacement that has a reward keeps what it replaced.
            (&[run(0), run(1), run(2), run(3), run(4), rewarded(5)], &[2, 3, 4], &[]),
            (&[rewarded(0), rewarded(1)], &[], &[]),
            // The first so many are scored again; replacements that are no longer needed are given up.
            (
                &[score(0), score(1), score(2), score(3), score(4), score(5), score(6), score(7)],
                &[4, 5, 6, 7],
                &[0, 1, 2, 3],
            ),
            (&[score(0), rewarded(1), score(2), score(3), score(4)], &[4], &[0, 2, 3]),
            (&[score(0), score(1), score(2), score(3), score(4), rewarded(5)], &[], &[2, 3, 4]),
            // What is run again costs more: of two, it is the one that stays replaced.
            (&[score(0), run(1), rewarded(2), rewarded(3), rewarded(4)], &[], &[0]),
            (&[score(0), run(1), rewarded(2)], &[1], &[0]),
            // One that ended for good has its replacement.
            (&[gone(0), score(1), score(2), score(3), score(4), score(5)], &[5], &[1, 2, 3, 4]),
        ];
        let config = GroupsConfig { size: 4, min_size: Some(4), ..GroupsConfig::default() };
        for (ends, run_again, score_again) in cases {
            let again = again(&config, ends);
            assert_eq!((&again.run[..], &again.score[..]), (run_again, score_again), "{ends:?}");
            let end = |rewarded| MemberEnd {
                status: if rewarded { Status::Completed } else { Status::Aborted },
                reward: rewarded.then_some(1.0),
                removed: false,
                sampled: 0,
            };
            let done_again = |index: &u32| again.run.contains(index) || again.score.contains(index);
            let kept: Vec<_> = ends
                .iter()
                .filter(|(index, _)| !done_again(index))
                .map(|(index, past)| (*index, end(*past == Past::Rewarded)))
                .collect();
            let (mut group, _) = GroupState::resume(&config, false, &kept);
            let live: Vec<u32> = group.live().collect();
            assert!(again.score.iter().all(|index| live.contains(index)), "{live:?}");
            for rollout_index in live {
                group.on(&config, GroupEvent::RolloutEnded { rollout_index, end: end(true) });
            }
            let verdict = group.verdict().unwrap();
            assert_eq!((verdict.status, verdict.counted.len()), (GroupStatus::Ready, 4), "{ends:?}");
        }
    }

    #[test]
    fn where_rollouts_are_chosen_each_is_done_again_in_its_place() {
        let bar = BarConfig { rollouts_max: Some(8), stride: Some(2), ..BarConfig::default() };
        let config = GroupsConfig { size: 4, bar: Some(bar), ..GroupsConfig::default() };
        let score = |index| (index, Past::ScoreAgain);
        let rewarded = |index| (index, Past::Rewarded);
        let of = |ends: &[(u32, Past)]| {
            let again = again(&config, ends);
            (again.run, again.score)
        };
        assert_eq!(of(&[score(0), (1, Past::RunAgain), rewarded(2), rewarded(3)]), (vec![1], vec![0]));
        // The second stride may not come again: what only a reward failed there is run again if it does.
        let ends = [score(0), score(1), rewarded(2), rewarded(3), score(4), score(5)];
        assert_eq!(of(&ends), (vec![4, 5], vec![0, 1]));
        // With a result that stays, it has come: places 4 and 5 are of one stride.
        let ends = [score(0), rewarded(1), rewarded(2), rewarded(3), score(4), rewarded(5)];
        assert_eq!(of(&ends), (vec![], vec![0, 4]));
        assert_eq!(of(&[(0, Past::Unrewarded), rewarded(1), rewarded(2), rewarded(3)]), (vec![], vec![]));
    }
}
