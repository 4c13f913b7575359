//! One sound group, and for each invariant a change that breaks it.

use super::*;
use crate::ending::StopReason;
use crate::ledger::{DriftKind, Kept, Ledger, Piece, Trainability, remove};
use crate::samples::{Excluded, ExcludedHow, ImageSpan, Origin, Span, SpanUse, fixture};
use std::collections::BTreeSet;

/// A call whose first token is of an older version than the rest.
fn call(id: &str, model: &str, n_sampled: u32) -> Call {
    let versions = vec![(0, 1, "a".into(), None), (1, n_sampled - 1, "b".into(), Some(4))];
    Call { versions, ..fixture::call(id, model, n_sampled) }
}

/// Two rows: [prompt, c0 (4 of 5 kept), environment, c1] and, after a rewrite, [prompt, c0 again, c2].
fn trajectory(number: u32, trainability: Trainability) -> Trajectory {
    let id = |call: &str| format!("t{number}.{call}");
    let mut ledger = Ledger::new();
    let branch = ledger.open(&[Piece { ids: &[1, 2, 3], origin: Origin::Prompt }]);
    let answer = |ledger: &mut Ledger, name: &str, ids: &[u32], kept: usize| {
        let call = call(&id(name), "policy", ids.len() as u32);
        let index = ledger.record(call, Some(vec![-0.5; ids.len()]));
        ledger.place(branch, index, &ids[..kept]);
    };
    answer(&mut ledger, "c0", &[10, 11, 12, 13, 14], 4);
    ledger.extend(branch, &[Piece { ids: &[4, 5], origin: Origin::Environment }]);
    answer(&mut ledger, "c1", &[20, 21], 2);
    ledger.rewrite(branch, &[Kept::Range { from: 0, to: 7 }], DriftKind::Rewrite);
    answer(&mut ledger, "c2", &[30, 31, 32], 3);
    let finished = ledger.finish(trainability);
    let stop_reason = match trainability {
        Trainability::Trainable => StopReason::Submitted,
        _ => StopReason::GuestTrap,
    };
    let other_calls = vec![call(&id("judge"), "judge", 2)];
    Trajectory { other_calls, ..fixture::trajectory(number, stop_reason, finished) }
}

fn sound() -> Group {
    let trajectories = vec![trajectory(0, Trainability::Trainable), trajectory(2, Trainability::Trainable)];
    let replaced = vec![trajectory(1, Trainability::NotTrainable)];
    Group { replaced, ..fixture::group(trajectories) }
}

/// Images of the first row, counted.
fn with_images(group: &mut Group, places: &[(u32, u32)]) {
    let image = |&(start, len): &(u32, u32)| ImageSpan { digest: "d".into(), start, len };
    group.trajectories[0].segments[0].images = places.iter().map(image).collect();
    group.images = group.images_in_rows();
}

#[test]
fn a_sound_group_has_no_violation() {
    assert_eq!(check(&sound()), []);
    let mut group = sound();
    with_images(&mut group, &[(0, 1), (1, 2)]);
    assert_eq!(check(&group), []);
    assert_eq!(group.images, 2);
}

#[test]
fn each_invariant_is_missed_when_it_is_broken() {
    type Break = fn(&mut Group);
    let cases: Vec<(&str, Rule, Break)> = vec![
        ("another schema", Rule::Schema, |g| g.schema = "group/v2".into()),
        ("a wrong count", Rule::Counts, |g| g.n_ready = 1),
        ("ready with one too few", Rule::Counts, |g| g.n_requested = 3),
        ("short with all", Rule::Counts, |g| g.status = GroupStatus::Short),
        ("a trajectory twice", Rule::Unique, |g| g.trajectories[1].traj_id = "t0".into()),
        ("a rollout twice", Rule::Unique, |g| g.trajectories[1].rollout_id = 0),
        ("an index twice", Rule::Unique, |g| g.replaced[0].rollout_index = 0),
        ("a call twice", Rule::Unique, |g| g.trajectories[1].other_calls[0].call_id = "t0.c0".into()),
        ("replaced with a reward", Rule::Replaced, |g| g.replaced[0].reward = Some(0.0)),
        ("a foreign call", Rule::Model, |g| g.trajectories[0].calls[0].model = "judge".into()),
        ("an own call among others", Rule::Model, |g| {
            g.trajectories[0].other_calls[0].model = "policy".into();
        }),
        ("a status of another row", Rule::Ending, |g| g.trajectories[0].status = Status::Truncated),
        ("a reward that is not a number", Rule::Reward, |g| g.trajectories[0].reward = Some(f64::NAN)),
        ("trainable without a reward", Rule::Trainable, |g| g.trajectories[0].reward = None),
        ("trainable, but failed", Rule::Trainable, |g| {
            g.replaced[0].trainable = true;
            g.replaced[0].reward = Some(1.0);
        }),
        ("trainable, but its time was over", Rule::Trainable, |g| {
            g.trajectories[0].stop_reason = StopReason::LimitWall;
            g.trajectories[0].status = Status::TimeExceeded;
        }),
        ("versions with a gap", Rule::CallVersions, |g| g.trajectories[0].calls[0].versions[0].1 = 0),
        ("versions past the end", Rule::CallVersions, |g| g.trajectories[0].calls[0].versions[1].1 = 9),
        ("a short mask", Rule::Lengths, |g| g.trajectories[0].segments[0].mask.truncate(1)),
        ("a short origin", Rule::Lengths, |g| g.trajectories[0].segments[0].origin.truncate(1)),
        ("short logprobs", Rule::Lengths, |g| g.trajectories[0].segments[0].logprobs.truncate(1)),
        ("short advantages", Rule::Lengths, |g| g.trajectories[0].segments[0].advantages = Some(vec![0.0])),
        ("short rewards", Rule::Lengths, |g| g.trajectories[0].segments[0].token_rewards = Some(vec![])),
        ("an infinite advantage", Rule::Finite, |g| {
            let row = &mut g.trajectories[0].segments[0];
            row.advantages = Some(vec![f32::INFINITY; row.tokens.len()]);
        }),
        ("a reward of a token that is not a number", Rule::Finite, |g| {
            let row = &mut g.trajectories[0].segments[0];
            row.token_rewards = Some(vec![f32::NAN; row.tokens.len()]);
        }),
        ("a wrong prompt length", Rule::PromptLen, |g| g.trajectories[0].segments[0].prompt_len = 2),
        ("a mask of 2", Rule::Codes, |g| g.trajectories[0].segments[0].mask[0] = 2),
        ("an unknown origin", Rule::Codes, |g| g.trajectories[0].segments[0].origin[0] = 5),
        ("a prompt token that trains", Rule::Mask, |g| g.trajectories[0].segments[0].mask[0] = 1),
        ("a positive logprob", Rule::Mask, |g| g.trajectories[0].segments[0].logprobs[3] = 0.1),
        ("an infinite logprob", Rule::Mask, |g| {
            g.trajectories[0].segments[0].logprobs[3] = f32::NEG_INFINITY;
        }),
        ("a logprob that is not a number", Rule::Logprobs, |g| {
            g.replaced[0].segments[0].logprobs[3] = f32::NAN;
        }),
        ("a logprob of the prompt", Rule::Logprobs, |g| g.trajectories[0].segments[0].logprobs[0] = -0.1),
        ("a span past the row", Rule::Spans, |g| g.trajectories[0].segments[0].spans[1].start = 10),
        ("spans that overlap", Rule::Spans, |g| g.trajectories[0].segments[0].spans[1].start = 6),
        ("a span past its call", Rule::Spans, |g| g.trajectories[0].segments[0].spans[0].offset = 3),
        ("an empty span", Rule::Spans, |g| g.trajectories[0].segments[1].spans[0].len = 0),
        ("a span of an unknown call", Rule::Spans, |g| {
            g.trajectories[0].segments[0].spans[0].call_id = "x".into();
        }),
        ("spans past any number", Rule::Spans, |g| {
            let span = &mut g.trajectories[0].segments[0].spans[1];
            (span.start, span.len) = (u32::MAX, u32::MAX);
        }),
        ("a reused span as sampled", Rule::SpanOrigin, |g| {
            g.trajectories[0].segments[1].spans[0].usage = SpanUse::Sampled;
        }),
        ("sampled without a span", Rule::SpanOrigin, |g| {
            drop(g.trajectories[0].segments[0].spans.remove(0));
        }),
        ("a trained token without a version", Rule::VersionRuns, |g| {
            drop(g.trajectories[0].segments[0].version_runs.remove(0));
        }),
        ("another version than the call's", Rule::VersionRuns, |g| {
            g.trajectories[0].segments[0].version_runs[0].2 = "b".into();
        }),
        ("a version run past the row", Rule::VersionRuns, |g| {
            g.trajectories[0].segments[0].version_runs[3].1 = 9;
        }),
        ("a parent behind it", Rule::Parent, |g| g.trajectories[0].segments[0].parent_segment = Some(1)),
        ("a fork without a parent", Rule::Parent, |g| g.trajectories[0].segments[0].fork_at = Some(1)),
        ("more shared than is", Rule::Parent, |g| g.trajectories[0].segments[1].fork_at = Some(8)),
        ("an image past the row", Rule::Images, |g| with_images(g, &[(10, 2)])),
        ("an image of nothing", Rule::Images, |g| with_images(g, &[(0, 0)])),
        ("two images in one place", Rule::Images, |g| with_images(g, &[(0, 2), (1, 2)])),
        ("an image that was sampled", Rule::Images, |g| with_images(g, &[(2, 2)])),
        ("an image that is not counted", Rule::Images, |g| {
            with_images(g, &[(0, 2)]);
            g.images = 0;
        }),
        ("a token in two rows", Rule::Once, |g| {
            let again = g.trajectories[0].segments[0].clone();
            g.trajectories[0].segments.push(again);
        }),
        ("a token that nobody names", Rule::Account, |g| g.trajectories[0].excluded.clear()),
        ("a token that trains and is dropped", Rule::Account, |g| {
            g.trajectories[0].excluded[0].offset = 3;
            g.trajectories[0].excluded[0].len = 2;
        }),
        ("a token dropped twice", Rule::Account, |g| {
            let again = g.trajectories[0].excluded[0].clone();
            g.trajectories[0].excluded.push(again);
        }),
        ("masked, but in no row", Rule::Account, |g| g.trajectories[0].excluded[0].how = ExcludedHow::Masked),
        ("excluded past the call", Rule::Account, |g| g.trajectories[0].excluded[0].len = 2),
        ("an unknown call excluded", Rule::Account, |g| {
            g.trajectories[0].excluded.push(Excluded {
                call_id: "x".into(),
                offset: 0,
                len: 1,
                how: ExcludedHow::Dropped,
                reason: "drift".into(),
            });
        }),
        ("masked without a reason", Rule::Account, |g| g.trajectories[0].segments[0].mask[3] = 0),
        ("a reason without words", Rule::Reason, |g| g.trajectories[0].excluded[0].reason.clear()),
        ("not trainable is not a reason where it trains", Rule::Reason, |g| {
            g.trajectories[0].excluded[0].reason = "not-trainable".into();
        }),
        ("removed, but it has a reward", Rule::Removed, |g| {
            g.trajectories[0].removed = Some("captcha".into());
        }),
        ("removed without a reason", Rule::Removed, |g| {
            remove(&mut g.trajectories[0], "captcha");
            g.trajectories[0].removed = Some(String::new());
        }),
        ("removed, but a token has another reason", Rule::Removed, |g| {
            remove(&mut g.trajectories[0], "captcha");
            g.trajectories[0].excluded[0].reason = "drift".into();
        }),
        ("excluded for a removal that was none", Rule::Removed, |g| {
            g.trajectories[0].excluded[0].reason = "removed: captcha".into();
        }),
        ("removed and replaced", Rule::Replaced, |g| remove(&mut g.replaced[0], "captcha")),
        ("not chosen, but trainable", Rule::NotChosen, |g| {
            g.not_chosen = vec![trajectory(3, Trainability::Trainable)];
        }),
        ("not chosen, without a reward to be chosen by", Rule::NotChosen, |g| {
            g.not_chosen = vec![trajectory(3, Trainability::NotTrainable)];
        }),
        ("a token that trains where none may", Rule::Reason, |g| g.replaced[0].segments[0].mask[3] = 1),
    ];
    let mut broken = BTreeSet::new();
    for (name, rule, change) in cases {
        let mut group = sound();
        change(&mut group);
        let found = check(&group);
        assert!(found.iter().any(|violation| violation.rule == rule), "{name}: {found:#?}");
        broken.insert(rule);
    }
    let all = Rule::Schema as u8..=Rule::Reason as u8;
    assert_eq!(broken.len(), all.count(), "every rule is broken by a case");
}

#[test]
fn what_was_not_chosen_keeps_its_reward_and_its_account_closes() {
    let mut group = sound();
    let mut one = trajectory(3, Trainability::Trainable);
    let before = one.token_sums();
    crate::ledger::withhold(&mut one, crate::ledger::reason::NOT_CHOSEN);
    let sums = one.token_sums();
    assert_eq!((sums.trained, sums.masked), (0, before.masked + before.trained));
    group.not_chosen = vec![one];
    assert_eq!(check(&group), []);
    assert_eq!(group.not_chosen[0].reward, Some(1.0));
}

#[test]
fn a_removed_sample_is_worth_nothing_and_its_account_closes() {
    let mut group = sound();
    let before = group.trajectories[0].token_sums();
    group.trajectories[0].turn_rewards = Some(vec![Some(1.0)]);
    remove(&mut group.trajectories[0], "captcha");
    (group.n_ready, group.status) = (1, GroupStatus::Short);
    assert_eq!(check(&group), []);
    let one = &group.trajectories[0];
    assert_eq!((one.reward, one.turn_rewards.as_ref(), one.trainable), (None, None, false));
    assert_eq!(one.removed.as_deref(), Some("captcha"));
    let sums = one.token_sums();
    assert_eq!((sums.sampled, sums.trained, sums.dropped), (before.sampled, 0, before.dropped));
    // That of the token behind the stop, too.
    assert!(one.excluded.iter().all(|excluded| excluded.reason == "removed: captcha"), "{:?}", one.excluded);
    let text = serde_json::to_value(one).unwrap();
    assert_eq!((&text["removed"], &text["reward"]), (&"captcha".into(), &serde_json::Value::Null));
    assert_eq!(
        serde_json::to_value(&group.trajectories[1]).unwrap().get("removed"),
        None,
        "left out where it was not"
    );
}

#[test]
fn a_past_that_another_trajectory_sampled_is_only_context() {
    let mut group = sound();
    let row = &mut group.trajectories[0].segments[0];
    row.spans.insert(
        0,
        Span { call_id: "elsewhere".into(), offset: 40, start: 1, len: 2, usage: SpanUse::Reused },
    );
    assert_eq!(check(&group), []);
}

#[test]
fn a_violation_names_its_place() {
    let mut group = sound();
    group.trajectories[1].segments[0].prompt_len = 2;
    let found = check(&group);
    let text = "trajectory t2, segment 0: prompt_len is 2, the first sampled token stands at 3 (PromptLen)";
    assert_eq!(found[0].to_string(), text);
}
