//! Events and effects of groups, by tables.

mod balanced;

use super::*;

fn config(size: u32) -> GroupsConfig {
    GroupsConfig { size, ..GroupsConfig::default() }
}

fn end(reward: Option<f64>) -> MemberEnd {
    let status = if reward.is_some() { Status::Completed } else { Status::Failed };
    MemberEnd { status, reward, removed: false, sampled: 0 }
}

fn ended(rollout_index: u32, reward: Option<f64>) -> GroupEvent {
    GroupEvent::RolloutEnded { rollout_index, end: end(reward) }
}

fn add(rollout_index: u32) -> Vec<GroupEffect> {
    vec![GroupEffect::Add { rollout_index }]
}

fn close(
    status: GroupStatus,
    reason: Option<&str>,
    counted: &[u32],
    replaced: &[u32],
    n: u32,
) -> Vec<GroupEffect> {
    vec![GroupEffect::Close(Verdict {
        status,
        drop_reason: reason.map(str::to_owned),
        counted: counted.to_vec(),
        replaced: replaced.to_vec(),
        not_chosen: vec![],
        n_ready: n,
    })]
}

/// Sends the events; all but the last must lead to the effects given, the last to `expect`.
fn play(config: &GroupsConfig, events: &[(GroupEvent, Vec<GroupEffect>)]) -> GroupState {
    play_from(GroupState::open(config, false), config, events)
}

fn play_from(
    mut group: GroupState,
    config: &GroupsConfig,
    events: &[(GroupEvent, Vec<GroupEffect>)],
) -> GroupState {
    for (event, effects) in events {
        assert_eq!(&group.on(config, event.clone()), effects, "{event:?} in {group:?}");
    }
    group
}

#[test]
fn a_full_group_is_ready() {
    let group = play(
        &config(2),
        &[
            (ended(1, Some(0.0)), vec![]),
            (ended(0, Some(1.0)), close(GroupStatus::Ready, None, &[0, 1], &[], 2)),
        ],
    );
    assert_eq!(group.verdict().unwrap().n_ready, 2);
}

#[test]
fn one_crash_never_loses_a_group() {
    play(
        &config(2),
        &[
            (ended(0, None), add(2)),
            (ended(2, None), add(3)),
            (ended(3, Some(1.0)), vec![]),
            (ended(1, Some(0.0)), close(GroupStatus::Ready, None, &[1, 3], &[0, 2], 2)),
        ],
    );
}

#[test]
fn replacements_are_bounded_then_the_group_is_short_or_failed() {
    let bounded = GroupsConfig { replacements: Some(1), ..config(3) };
    play(
        &bounded,
        &[
            (ended(0, None), add(3)),
            (ended(3, None), vec![]),
            (ended(1, Some(1.0)), vec![]),
            (ended(2, Some(1.0)), close(GroupStatus::Short, None, &[1, 2, 3], &[0], 2)),
        ],
    );
    play(
        &bounded,
        &[
            (ended(3, None), vec![GroupEffect::Stale]),
            (ended(2, None), add(3)),
            (ended(3, None), vec![]),
            (ended(1, None), vec![]),
            (
                ended(0, Some(1.0)),
                close(
                    GroupStatus::Failed,
                    Some("1 of 3 rollouts have a reward, 2 needed"),
                    &[0, 2, 3],
                    &[1],
                    1,
                ),
            ),
        ],
    );
}

#[test]
fn a_rollout_ends_once() {
    play(
        &config(2),
        &[
            (ended(0, Some(1.0)), vec![]),
            (ended(0, None), vec![GroupEffect::Stale]),
            (ended(7, None), vec![GroupEffect::Stale]),
            (ended(1, Some(1.0)), close(GroupStatus::Ready, None, &[0, 1], &[], 2)),
            (ended(1, Some(0.0)), vec![GroupEffect::Stale]),
        ],
    );
}

#[test]
fn filters_keep_back_with_a_reason() {
    let check = |filters: &[Filter], rewards: [f64; 2], expect: Option<&str>| {
        let config = GroupsConfig { filters: filters.to_vec(), ..config(2) };
        let status = if expect.is_some() { GroupStatus::Filtered } else { GroupStatus::Ready };
        play(
            &config,
            &[
                (ended(0, Some(rewards[0])), vec![]),
                (ended(1, Some(rewards[1])), close(status, expect, &[0, 1], &[], 2)),
            ],
        );
    };
    check(&[], [0.0, 0.0], None);
    check(&[Filter::Deviation], [0.0, 1.0], None);
    check(&[Filter::Deviation], [1.0, 1.0], Some("deviation: 0 over 2 rewards"));
    check(&[Filter::Positive], [1.0, 1.0], None);
    check(&[Filter::Positive], [0.0, -1.0], Some("positive: none of 2 rewards is above 0"));
    check(&[Filter::Deviation, Filter::Positive], [0.0, 0.0], Some("deviation: 0 over 2 rewards"));
    let aborted = GroupsConfig { filters: vec![Filter::NoAborted], replacements: Some(0), ..config(3) };
    let abort = MemberEnd { status: Status::Aborted, reward: None, removed: false, sampled: 0 };
    play(
        &aborted,
        &[
            (GroupEvent::RolloutEnded { rollout_index: 0, end: abort }, vec![]),
            (ended(1, Some(0.0)), vec![]),
            (
                ended(2, Some(1.0)),
                close(GroupStatus::Filtered, Some("no-aborted: 1 aborted"), &[0, 1, 2], &[], 2),
            ),
        ],
    );
}

/// Whatever the order of the ends and wherever the engine is killed, the group closes alike.
#[test]
fn resumed_at_any_event_it_closes_alike() {
    let config = GroupsConfig { replacements: Some(2), ..config(3) };
    let reward_of = |index: u32| if index.is_multiple_of(2) { None } else { Some(f64::from(index)) };
    let mut verdicts = Vec::new();
    for order in 0..9u32 {
        for kill_after in 0..6usize {
            let mut known: Vec<(u32, MemberEnd)> = Vec::new();
            let (mut group, mut effects) = GroupState::resume(&config, false, &[]);
            let verdict = loop {
                if let Some(GroupEffect::Close(verdict)) = effects.first() {
                    break verdict.clone();
                }
                let live: Vec<u32> = group.live().collect();
                let place = if order < 6 { order as usize } else { known.len() * order as usize };
                let index = live[place % live.len()];
                known.push((index, end(reward_of(index))));
                effects = group.on(&config, ended(index, reward_of(index)));
                if known.len() == kill_after {
                    (group, effects) = GroupState::resume(&config, false, &known);
                }
            };
            verdicts.push(verdict);
        }
    }
    assert!(verdicts.iter().all(|verdict| *verdict == verdicts[0]), "{verdicts:#?}");
    assert_eq!(verdicts[0].n_ready, 2);
    assert_eq!(verdicts[0].replaced, [0, 2]);
}

#[test]
fn a_replacement_that_ended_before_an_earlier_one_is_kept() {
    let config = config(2);
    let (mut group, effects) =
        GroupState::resume(&config, false, &[(0, end(None)), (1, end(None)), (3, end(Some(1.0)))]);
    assert_eq!((effects, group.live().collect::<Vec<_>>()), (vec![], vec![2]));
    assert_eq!(group.on(&config, ended(2, Some(0.0))), close(GroupStatus::Ready, None, &[2, 3], &[0, 1], 2));
}

#[test]
fn settings_out_of_range_are_named() {
    assert_eq!(config(4).check(), Ok(()));
    let message = |config: GroupsConfig| config.check().unwrap_err().to_string();
    assert_eq!(message(config(0)), "invalid groups.size 0: expected 1 to 4096");
    assert_eq!(
        message(GroupsConfig { min_size: Some(5), ..config(4) }),
        "invalid groups.min_size 5: expected 1 to 4"
    );
    assert_eq!(
        message(GroupsConfig { attempts: 0, ..config(4) }),
        "invalid groups.attempts 0: expected 1 to 100"
    );
    assert_eq!((config(4).min_size(), config(1).min_size(), config(4).replacements()), (2, 1, 4));
}

fn score(rollouts: &[u32]) -> Vec<GroupEffect> {
    vec![GroupEffect::Score { rollouts: rollouts.to_vec() }]
}

fn scored<const N: usize>(rewards: [(u32, Option<f64>); N]) -> GroupEvent {
    let worth = |(index, reward)| (index, GroupReward { reward, removed: false });
    GroupEvent::Scored { rewards: rewards.into_iter().map(worth).collect() }
}

#[test]
fn rewards_of_a_group_see_all_that_count_and_filters_see_what_they_say() {
    let config = GroupsConfig { filters: vec![Filter::Deviation], ..config(2) };
    let open = || GroupState::open(&config, true);
    // Equal rewards of their own, told apart by the group.
    let events = [
        (ended(0, None), add(2)),
        (ended(2, Some(1.0)), vec![]),
        (ended(1, Some(1.0)), score(&[1, 2])),
        (ended(1, Some(1.0)), vec![GroupEffect::Stale]),
        (scored([(1, Some(0.5)), (2, Some(1.5))]), close(GroupStatus::Ready, None, &[1, 2], &[0], 2)),
        (scored([(1, Some(9.0))]), vec![GroupEffect::Stale]),
    ];
    play_from(open(), &config, &events);
    // The other way round.
    let events = [
        (ended(0, Some(0.0)), vec![]),
        (ended(1, Some(1.0)), score(&[0, 1])),
        (
            scored([(0, Some(1.0)), (1, Some(1.0))]),
            close(GroupStatus::Filtered, Some("deviation: 0 over 2 rewards"), &[0, 1], &[], 2),
        ),
    ];
    play_from(open(), &config, &events);
    // Nothing to be seen, or not yet asked for.
    let bounded = GroupsConfig { replacements: Some(0), ..config.clone() };
    let failed = Some("0 of 2 rollouts have a reward, 2 needed");
    let events = [
        (scored([(0, Some(1.0))]), vec![GroupEffect::Stale]),
        (ended(0, None), vec![]),
        (ended(1, None), close(GroupStatus::Failed, failed, &[0, 1], &[], 0)),
    ];
    play_from(GroupState::open(&bounded, true), &bounded, &events);
}

#[test]
fn a_reward_of_a_group_that_fails_replaces_nobody() {
    let config = config(2);
    let events = [
        (ended(0, Some(0.0)), vec![]),
        (ended(1, Some(1.0)), score(&[0, 1])),
        (
            scored([(0, None), (1, None)]),
            close(GroupStatus::Failed, Some("0 of 2 rollouts have a reward, 2 needed"), &[0, 1], &[], 0),
        ),
    ];
    play_from(GroupState::open(&config, true), &config, &events);
    let all = [(0, end(Some(0.0))), (1, end(Some(1.0)))];
    let (_, effects) = GroupState::resume(&config, true, &all);
    assert_eq!(effects, score(&[0, 1]), "a run that was killed meanwhile scores them again");
}

#[test]
fn a_removed_sample_keeps_its_place_and_counts_for_nothing() {
    let removed = |rollout_index| GroupEvent::RolloutEnded {
        rollout_index,
        end: MemberEnd { status: Status::Completed, reward: None, removed: true, sampled: 0 },
    };
    let filtered = |filters: &[Filter]| GroupsConfig { filters: filters.to_vec(), ..config(3) };
    // No replacement; `ready` would mean three rewards.
    play(
        &config(3),
        &[
            (removed(0), vec![]),
            (ended(1, Some(1.0)), vec![]),
            (ended(2, Some(0.0)), close(GroupStatus::Short, None, &[0, 1, 2], &[], 2)),
        ],
    );
    // One that failed is replaced as ever, beside it.
    play(
        &config(3),
        &[
            (ended(0, None), add(3)),
            (removed(1), vec![]),
            (ended(2, Some(0.0)), vec![]),
            (ended(3, Some(1.0)), close(GroupStatus::Short, None, &[1, 2, 3], &[0], 2)),
        ],
    );
    // Filters see the others alone.
    let deviation = Some("deviation: 0 over 2 rewards");
    play(
        &filtered(&[Filter::NoAborted, Filter::Deviation]),
        &[
            (removed(0), vec![]),
            (ended(1, Some(1.0)), vec![]),
            (ended(2, Some(1.0)), close(GroupStatus::Filtered, deviation, &[0, 1, 2], &[], 2)),
        ],
    );
    let too_few = Some("1 of 3 rollouts have a reward (2 removed), 2 needed");
    play(
        &config(3),
        &[
            (removed(0), vec![]),
            (removed(1), vec![]),
            (ended(2, Some(1.0)), close(GroupStatus::Failed, too_few, &[0, 1, 2], &[], 1)),
        ],
    );
    // By a reward of the group.
    let worth = |reward: Option<f64>| GroupReward { reward, removed: reward.is_none() };
    let rewards = [(0, worth(Some(1.0))), (1, worth(None))].into();
    let too_few = Some("1 of 2 rollouts have a reward (1 removed), 2 needed");
    play_from(
        GroupState::open(&config(2), true),
        &config(2),
        &[
            (ended(0, Some(1.0)), vec![]),
            (ended(1, Some(1.0)), score(&[0, 1])),
            (GroupEvent::Scored { rewards }, close(GroupStatus::Failed, too_few, &[0, 1], &[], 1)),
        ],
    );
    let gone = MemberEnd { status: Status::Completed, reward: None, removed: true, sampled: 0 };
    let (group, effects) = GroupState::resume(&config(2), false, &[(0, gone), (1, end(Some(1.0)))]);
    assert_eq!(group.live().count(), 0, "a resumed run replaces it no more");
    let too_few = Some("1 of 2 rollouts have a reward (1 removed), 2 needed");
    assert_eq!(effects, close(GroupStatus::Failed, too_few, &[0, 1], &[], 1));
}

fn passed(running: &[u32]) -> GroupEvent {
    GroupEvent::DeadlinePassed { running: running.to_vec() }
}

fn drop_of(rollouts: &[u32]) -> GroupEffect {
    GroupEffect::Drop { rollouts: rollouts.to_vec() }
}

#[test]
fn a_group_closes_by_its_deadline_with_what_is_there() {
    // Nothing runs: it closes at once.
    let closed = close(GroupStatus::Short, None, &[0, 2], &[], 2);
    play(
        &config(4),
        &[
            (ended(0, Some(1.0)), vec![]),
            (ended(2, Some(0.0)), vec![]),
            (passed(&[]), [vec![drop_of(&[1, 3])], closed].concat()),
            (passed(&[]), vec![]),
            (ended(1, Some(1.0)), vec![GroupEffect::Stale]),
        ],
    );
    // What runs is waited for, and not replaced; a straggler that fails and would be tried again is dropped, too.
    let reason = "1 of 3 rollouts have a reward when its deadline passed, 2 needed";
    let failed = close(GroupStatus::Failed, Some(reason), &[0, 1], &[], 1);
    play(
        &config(3),
        &[
            (passed(&[0, 1, 2]), vec![]),
            (ended(0, None), vec![]),
            (ended(1, Some(1.0)), vec![]),
            (passed(&[]), [vec![drop_of(&[2])], failed].concat()),
        ],
    );
    // A replacement that has not run leaves its rollout in its place; one that has ended takes it.
    let closed = close(GroupStatus::Short, None, &[1, 2, 3], &[0], 2);
    play(
        &config(3),
        &[
            (ended(0, None), add(3)),
            (ended(3, None), add(4)),
            (ended(1, Some(1.0)), vec![]),
            (ended(2, Some(0.5)), vec![]),
            (passed(&[]), [vec![drop_of(&[4])], closed].concat()),
        ],
    );
    // Nothing ran at all.
    let reason = "0 of 2 rollouts have a reward when its deadline passed, 2 needed";
    let failed = close(GroupStatus::Failed, Some(reason), &[], &[], 0);
    play(&config(2), &[(passed(&[]), [vec![drop_of(&[0, 1])], failed].concat())]);
}

#[test]
fn strides_end_at_the_deadline_and_rewards_of_the_group_see_what_is_there() {
    let bar = BarConfig { rollouts_max: Some(8), stride: Some(2), ..BarConfig::default() };
    let balanced = GroupsConfig { bar: Some(bar), ..config(2) };
    let chosen = |counted: &[u32], not_chosen: &[u32], n_ready| {
        let (status, drop_reason) = (GroupStatus::Ready, None);
        let (counted, not_chosen) = (counted.to_vec(), not_chosen.to_vec());
        GroupEffect::Close(Verdict { status, drop_reason, counted, replaced: vec![], not_chosen, n_ready })
    };
    play(
        &balanced,
        &[
            (ended(0, Some(1.0)), vec![]),
            (ended(1, Some(1.0)), [add(2), add(3)].concat()),
            (ended(3, Some(1.0)), vec![]),
            // No further stride: the best that there is.
            (passed(&[]), vec![drop_of(&[2]), chosen(&[0, 1], &[3], 2)]),
        ],
    );
    let group = GroupState::open(&config(3), true);
    let rewards = [(0, 2.0), (1, 3.0)]
        .map(|(index, reward)| (index, GroupReward { reward: Some(reward), removed: false }));
    play_from(
        group,
        &config(3),
        &[
            (ended(0, Some(0.0)), vec![]),
            (ended(1, Some(0.0)), vec![]),
            (passed(&[]), vec![drop_of(&[2]), GroupEffect::Score { rollouts: vec![0, 1] }]),
            (passed(&[]), vec![]),
            (
                GroupEvent::Scored { rewards: rewards.into() },
                close(GroupStatus::Short, None, &[0, 1], &[], 2),
            ),
        ],
    );
}
