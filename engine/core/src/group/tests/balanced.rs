//! Groups that are chosen out of more rollouts, by tables worked by hand from Algorithm 1 and against brute force.

use super::super::*;
use super::config;

fn bar(size: u32, bar: BarConfig) -> GroupsConfig {
    GroupsConfig { bar: Some(bar), ..config(size) }
}

/// Size 4, at most 8, strides of 2, one to three quarters positive.
fn four() -> GroupsConfig {
    bar(4, BarConfig { positive_min: 0.25, positive_max: 0.75, ..BarConfig::default() })
}

fn rewarded(reward: f64, sampled: u64) -> MemberEnd {
    MemberEnd { status: Status::Completed, reward: Some(reward), removed: false, sampled }
}

fn ends(status: Status, reward: Option<f64>) -> MemberEnd {
    MemberEnd { status, reward, removed: false, sampled: 1 }
}

/// Every stride of these ends, in the order of their places but for its first two; the verdict, and the places that were added.
fn assembled(config: &GroupsConfig, all: &[MemberEnd]) -> (Verdict, Vec<Vec<u32>>) {
    let mut group = GroupState::open(config, false);
    let mut strides = Vec::new();
    loop {
        let mut live: Vec<u32> = group.live().collect();
        live.reverse();
        let mut effects = Vec::new();
        for rollout_index in live {
            assert_eq!(effects, [], "nothing follows before the last of a stride has ended");
            let end = all[rollout_index as usize];
            effects = group.on(config, GroupEvent::RolloutEnded { rollout_index, end });
        }
        if let [GroupEffect::Close(verdict)] = &effects[..] {
            return (verdict.clone(), strides);
        }
        let added = effects.iter().map(|effect| match effect {
            GroupEffect::Add { rollout_index } => *rollout_index,
            other => panic!("{other:?}"),
        });
        strides.push(added.collect());
    }
}

fn places(config: &GroupsConfig, all: &[MemberEnd]) -> (Vec<u32>, Vec<u32>, Vec<u32>, usize) {
    let (verdict, strides) = assembled(config, all);
    (verdict.counted, verdict.replaced, verdict.not_chosen, strides.len())
}

#[test]
fn by_hand() {
    let (good, bad) = (rewarded(1.0, 5), rewarded(-1.0, 5));
    let (aborted, trap) = (ends(Status::Aborted, None), ends(Status::Failed, None));
    let late = ends(Status::TimeExceeded, Some(1.0));
    type Case<'a> = (&'a str, Vec<MemberEnd>, &'a [u32], &'a [u32], &'a [u32], usize);
    let cases: [Case<'_>; 10] = [
        ("half and half at once", vec![good, bad, good, bad], &[0, 1, 2, 3], &[], &[], 0),
        ("one positive is within the bounds", vec![bad, bad, bad, good], &[0, 1, 2, 3], &[], &[], 0),
        // After six: one positive, five negatives, of which the first three.
        ("a positive comes late", vec![bad, bad, bad, bad, bad, good], &[0, 1, 2, 5], &[], &[3, 4], 1),
        // Two of each are nearer to the middle than what came first.
        ("nearest to the middle", vec![good, good, good, good, bad, bad], &[0, 1, 4, 5], &[], &[2, 3], 1),
        ("all negative", vec![bad; 8], &[0, 1, 2, 3], &[], &[4, 5, 6, 7], 2),
        ("all positive", vec![good; 8], &[0, 1, 2, 3], &[], &[4, 5, 6, 7], 2),
        ("all failed", vec![trap; 8], &[0, 1, 2, 3], &[4, 5, 6, 7], &[], 2),
        ("all aborted", vec![aborted; 8], &[0, 1, 2, 3], &[4, 5, 6, 7], &[], 2),
        // Three usable ones are no group: positive, negatives, then the pile (time-exceeded before aborted), then what failed.
        (
            "the best of what is left",
            vec![trap, aborted, bad, trap, aborted, good, late, bad],
            &[2, 5, 6, 7],
            &[0, 1, 3, 4],
            &[],
            2,
        ),
        // Four usable ones: the pile stays out, also one with a reward.
        ("the pile is not needed", vec![late, bad, bad, good, trap, bad], &[1, 2, 3, 5], &[4], &[0], 1),
    ];
    for (name, all, counted, replaced, not_chosen, strides) in cases {
        let expected = (counted.to_vec(), replaced.to_vec(), not_chosen.to_vec(), strides);
        assert_eq!(places(&four(), &all), expected, "{name}");
    }
}

#[test]
fn ties_go_to_completed_then_to_short_then_to_early_ones() {
    let truncated = MemberEnd { status: Status::Truncated, ..rewarded(1.0, 1) };
    let all = [
        truncated,
        rewarded(1.0, 9),
        rewarded(2.0, 7),
        rewarded(1.0, 7),
        rewarded(0.0, 3),
        rewarded(0.0, 3),
        rewarded(0.0, 2),
        rewarded(0.0, 3),
    ];
    let whole = bar(4, BarConfig { stride: Some(8), ..BarConfig::default() });
    assert_eq!(places(&whole, &all), (vec![2, 3, 4, 6], vec![], vec![0, 1, 5, 7], 0));
    let five = bar(5, BarConfig { positive_min: 0.2, positive_max: 0.8, ..BarConfig::default() });
    // 2.5 rounds to 2, not to 3: two positives and three negatives.
    let (good, bad) = (rewarded(1.0, 1), rewarded(0.0, 1));
    let all = [good, good, good, bad, bad, bad, bad, good];
    let five = GroupsConfig { bar: Some(BarConfig { stride: Some(8), ..five.bar.unwrap() }), ..five };
    assert_eq!(places(&five, &all).0, [0, 1, 3, 4, 5]);
}

#[test]
fn what_comes_late_is_stale_and_what_is_removed_does_not_count() {
    let removed = MemberEnd { removed: true, ..ends(Status::Completed, None) };
    let all = [removed, rewarded(1.0, 1), rewarded(0.0, 1), rewarded(0.0, 1), rewarded(0.0, 1), removed];
    let (verdict, strides) = assembled(&four(), &all);
    assert_eq!((&verdict.counted[..], &verdict.not_chosen[..]), (&[1, 2, 3, 4][..], &[0, 5][..]));
    assert_eq!((verdict.status, verdict.n_ready, strides), (GroupStatus::Ready, 4, vec![vec![4, 5]]));
    let known: Vec<(u32, MemberEnd)> = (0..).zip(all).collect();
    let (mut group, effects) = GroupState::resume(&four(), false, &known);
    assert_eq!(effects, [GroupEffect::Close(verdict)]);
    for rollout_index in [0, 6] {
        let event = GroupEvent::RolloutEnded { rollout_index, end: all[0] };
        assert_eq!(group.on(&four(), event), [GroupEffect::Stale]);
    }
}

#[test]
fn filters_and_sizes_look_at_those_that_were_chosen() {
    let filtered = GroupsConfig { filters: vec![Filter::NoAborted, Filter::Deviation], ..four() };
    let aborted = ends(Status::Aborted, None);
    let verdict = |all: &[MemberEnd]| {
        let verdict = assembled(&filtered, all).0;
        (verdict.status, verdict.drop_reason)
    };
    let (good, bad) = (rewarded(1.0, 1), rewarded(0.0, 1));
    assert_eq!(verdict(&[good, bad, aborted, bad, bad, aborted]), (GroupStatus::Ready, None));
    let all = [good, bad, bad, aborted, aborted, aborted, aborted, aborted];
    let told = Some("no-aborted: 1 aborted".to_owned());
    assert_eq!(verdict(&all), (GroupStatus::Filtered, told));
    assert_eq!(verdict(&[bad; 8]).0, GroupStatus::Filtered);
    let told = Some("0 of 4 rollouts have a reward, 2 needed".to_owned());
    assert_eq!(verdict(&[aborted; 8]), (GroupStatus::Failed, told));
}

#[test]
fn a_table_that_cannot_be_is_refused_with_its_key() {
    let check = |bar: BarConfig| bar.check(4).map_err(|(key, problem)| format!("{key} {problem}"));
    let default = BarConfig::default;
    assert_eq!(check(default()), Ok(()));
    for (bar, told) in [
        (
            BarConfig { rollouts_max: Some(3), ..default() },
            "rollouts_max is 3, expected 4 (groups.size) to 4096",
        ),
        (BarConfig { stride: Some(0), ..default() }, "stride is 0, expected 1 to 4096"),
        (BarConfig { positive_min: -0.5, ..default() }, "positive_min is -0.5, expected 0 to 1"),
        (BarConfig { positive_max: 0.25, ..default() }, "positive_max is 0.25, expected 0.375 to 1"),
        (
            BarConfig { positive_min: 0.3, positive_max: 0.4, ..default() },
            "positive_max is 0.4: no number of 4 rollouts is a share from 0.3 to 0.4",
        ),
    ] {
        assert_eq!(check(bar), Err(told.to_owned()));
    }
}

struct Draw(u64);

impl Draw {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }

    fn end(&mut self) -> MemberEnd {
        let reward = self.below(3) as f64 - 1.0;
        let (status, reward) = match self.below(8) {
            0..=3 => (Status::Completed, Some(reward)),
            4 => (Status::Truncated, Some(reward)),
            5 => (Status::TimeExceeded, (self.below(2) == 0).then_some(reward)),
            6 => (Status::Aborted, None),
            _ => (Status::Failed, None),
        };
        let removed = status == Status::Completed && self.below(8) == 0;
        MemberEnd { status, reward: reward.filter(|_| !removed), removed, sampled: self.below(4) }
    }
}

/// The definition by brute force: of all groups there are, the best by the words of Algorithm 1.
fn best_of_all(config: &GroupsConfig, all: &[MemberEnd]) -> (Vec<u32>, usize) {
    let (size, bar) = (config.size as usize, config.bar.as_ref().unwrap());
    let usable =
        |end: &MemberEnd| matches!(end.status, Status::Completed | Status::Truncated) && end.reward.is_some();
    let order = |index: usize| {
        let end = &all[index];
        let statuses =
            [Status::Completed, Status::Truncated, Status::TimeExceeded, Status::Aborted, Status::Failed];
        (statuses.iter().position(|status| *status == end.status), end.sampled, index)
    };
    let of = |set: u32| (0..all.len()).filter(move |index| set & (1 << index) != 0);
    let positives = |set: u32| of(set).filter(|index| all[*index].reward.unwrap_or(0.0) > 0.0).count();
    let middle = (bar.positive_min + bar.positive_max) / 2.0 * size as f64;
    // Half to even, of a number that is not negative.
    let whole = middle.floor() as usize;
    let up = middle - middle.floor() > 0.5 || (middle - middle.floor() == 0.5 && whole % 2 == 1);
    let best = whole + usize::from(up);
    let choose = |there: usize, least: f64, most: f64| {
        let sets = (0u32..1 << there).filter(|set| {
            let share = positives(*set) as f64 / size as f64;
            set.count_ones() as usize == size
                && of(*set).all(|index| usable(&all[index]))
                && (least..=most).contains(&share)
        });
        // Nearest to the middle, then fewer positives, then by rank within each class.
        sets.min_by_key(|set| {
            let ranks = |positive: bool| {
                let mut of_class: Vec<_> = of(*set)
                    .filter(|index| (all[*index].reward.unwrap() > 0.0) == positive)
                    .map(order)
                    .collect();
                of_class.sort();
                of_class
            };
            (positives(*set).abs_diff(best), positives(*set), ranks(true), ranks(false))
        })
    };
    let (mut there, mut strides) = (bar.first_stride(config.size) as usize, 0);
    loop {
        if let Some(set) = choose(there, bar.positive_min, bar.positive_max) {
            return (of(set).map(|index| index as u32).collect(), strides);
        }
        let next = bar.stride(config.size).min(bar.rollouts_max(config.size) - there as u32) as usize;
        if next == 0 {
            break;
        }
        (there, strides) = (there + next, strides + 1);
    }
    if let Some(set) = choose(there, 0.0, 1.0) {
        return (of(set).map(|index| index as u32).collect(), strides);
    }
    let class = |index: usize| match &all[index] {
        end if usable(end) => usize::from(end.reward.unwrap() <= 0.0),
        end if matches!(end.status, Status::TimeExceeded | Status::Aborted) => 2,
        _ => 3,
    };
    let mut ranked: Vec<usize> = (0..there).collect();
    ranked.sort_by_key(|index| (class(*index), order(*index)));
    let mut first: Vec<u32> = ranked.into_iter().take(size).map(|index| index as u32).collect();
    first.sort_unstable();
    (first, strides)
}

#[test]
fn ten_thousand_random_groups_against_brute_force() {
    let seed = 0xba5e_ba11;
    println!("seed {seed}");
    let mut draw = Draw(seed);
    let bounds = [(0.375, 0.625), (0.25, 0.75), (0.0, 1.0), (0.5, 0.5), (0.2, 0.6), (0.0, 0.4)];
    let (mut early, mut fallen_back) = (0, 0);
    for round in 0..10_000 {
        let size = draw.below(4) as u32 + 2;
        let (positive_min, positive_max) = bounds[draw.below(bounds.len() as u64) as usize];
        let most = size + draw.below(5) as u32;
        let stride = (draw.below(2) == 0).then(|| draw.below(4) as u32 + 1);
        let bar = BarConfig { rollouts_max: Some(most), stride, positive_min, positive_max };
        if bar.check(size).is_err() {
            continue;
        }
        let config = GroupsConfig { bar: Some(bar), size, ..GroupsConfig::default() };
        let all: Vec<MemberEnd> = (0..most).map(|_| draw.end()).collect();
        let (verdict, strides) = assembled(&config, &all);
        let told = format!("round {round}: {config:?} {all:?}");
        assert_eq!((verdict.counted.clone(), strides.len()), best_of_all(&config, &all), "{told}");
        let there = config.first_rollouts() as usize + strides.iter().map(Vec::len).sum::<usize>();
        let mut accounted = [&verdict.counted[..], &verdict.replaced, &verdict.not_chosen].concat();
        accounted.sort_unstable();
        assert_eq!(accounted, (0..there as u32).collect::<Vec<_>>(), "{told}");
        early += usize::from(there < all.len());
        fallen_back += usize::from(verdict.n_ready < size);

        // Killed after any number of ends, in any order, it comes to the same.
        let mut known: Vec<(u32, MemberEnd)> = (0..).zip(all.iter().copied().take(there)).collect();
        for place in (1..known.len()).rev() {
            known.swap(place, draw.below(place as u64 + 1) as usize);
        }
        let first = config.first_rollouts();
        known.sort_by_key(|(index, _)| *index >= first);
        known.truncate(draw.below(there as u64 + 1) as usize);
        let whole_first = known.iter().filter(|(index, _)| *index < first).count() == first as usize;
        if known.iter().any(|(index, _)| *index >= first) && !whole_first {
            continue;
        }
        let (mut group, mut effects) = GroupState::resume(&config, false, &known);
        loop {
            let Some(rollout_index) = group.live().next() else { break };
            let end = all[rollout_index as usize];
            effects = group.on(&config, GroupEvent::RolloutEnded { rollout_index, end });
        }
        assert_eq!(effects, [GroupEffect::Close(verdict)], "{told} killed with {known:?}");
    }
    assert!(early > 1_000 && fallen_back > 1_000, "{early} {fallen_back}");
}
