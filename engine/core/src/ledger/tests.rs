//! The ledger against a plain model of it: every history as a list of tokens, every sampled token by name.

use super::*;
use crate::ending::StopReason;
use crate::samples::check::check;
use crate::samples::fixture::{self, group, trajectory};
use crate::samples::{Call, ExcludedHow, Segment, SpanUse, Trajectory};
use std::collections::BTreeSet;

/// xorshift64*: enough for tests, and the seed says it all.
struct TestRng(u64);

impl TestRng {
    fn new(seed: u64) -> Self {
        TestRng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn below(&mut self, n: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % u64::from(n)) as u32
    }

    fn ids(&mut self, least: u32, most: u32) -> Vec<u32> {
        let n = least + self.below(most - least + 1);
        (0..n).map(|_| self.below(40)).collect()
    }
}

/// The policy's call of this number.
fn call(number: usize, n_sampled: u32) -> Call {
    Call { turn: number as u32, ..fixture::call(&format!("c{number}"), "policy", n_sampled) }
}

fn answer(ledger: &mut Ledger, branch: BranchId, ids: &[u32], kept: usize) -> CallIndex {
    let n = ids.len() as u32;
    let logprobs = ids.iter().map(|id| -(*id as f32) / 64.0).collect();
    let number = ledger.calls().len();
    let index = ledger.record(call(number, n), Some(logprobs));
    ledger.place(branch, index, &ids[..kept]);
    index
}

fn piece(ids: &[u32], origin: Origin) -> Piece<'_> {
    Piece { ids, origin }
}

/// Finishes and checks every invariant, in all three ways.
fn settle(ledger: &Ledger, hint: &str) -> Finished {
    for way in [Trainability::Trainable, Trainability::NotTrainable, Trainability::Abandoned] {
        let stop_reason = match way {
            Trainability::Trainable => StopReason::Submitted,
            _ => StopReason::Infrastructure,
        };
        let group = group(vec![trajectory(0, stop_reason, ledger.finish(way))]);
        let found = check(&group);
        assert!(found.is_empty(), "{hint}, {way:?}: {found:#?}");
        if way != Trainability::Trainable {
            assert_eq!(group.trajectories[0].token_sums().trained, 0);
        }
        for change in [abandon as fn(&mut Trajectory), |trajectory| withhold(trajectory, "by-filter")] {
            let mut changed = group.clone();
            change(&mut changed.trajectories[0]);
            let found = check(&changed);
            assert!(found.is_empty(), "{hint}, {way:?}, changed: {found:#?}");
        }
    }
    ledger.finish(Trainability::Trainable)
}

/// `call:offset` of every trained token.
fn trained(segments: &[Segment]) -> BTreeSet<(String, u32)> {
    let mut names = BTreeSet::new();
    for segment in segments {
        for span in segment.spans.iter().filter(|span| span.usage == SpanUse::Sampled) {
            for i in 0..span.len {
                if segment.mask[(span.start + i) as usize] == 1 {
                    let new = names.insert((span.call_id.clone(), span.offset + i));
                    assert!(new, "{}:{} trains twice", span.call_id, span.offset + i);
                }
            }
        }
    }
    names
}

fn excluded(finished: &Finished) -> Vec<String> {
    let how = |how| if how == ExcludedHow::Masked { "masked" } else { "dropped" };
    let line = |e: &crate::samples::Excluded| {
        format!("{} {}+{} {} {}", e.call_id, e.offset, e.len, how(e.how), e.reason)
    };
    finished.excluded.iter().map(line).collect()
}

fn origins(segment: &Segment) -> String {
    segment.origin.iter().map(|code| char::from(b'0' + code)).collect()
}

#[test]
fn a_conversation_becomes_one_row() {
    let mut ledger = Ledger::new();
    let branch = ledger.open(&[piece(&[1, 2, 3], Origin::Prompt)]);
    answer(&mut ledger, branch, &[10, 11, 12, 13], 3);
    ledger.extend(branch, &[piece(&[4], Origin::Template), piece(&[5, 6], Origin::Environment)]);
    answer(&mut ledger, branch, &[20, 21], 2);
    ledger.extend(branch, &[piece(&[7], Origin::Environment)]);
    assert_eq!(*ledger.prompt(branch, &[9]), [1, 2, 3, 10, 11, 12, 4, 5, 6, 20, 21, 7, 9]);
    assert_eq!((ledger.len(branch), ledger.sampled(branch), ledger.turns(branch)), (12, 6, 2));

    let finished = settle(&ledger, "one row");
    assert_eq!(finished.segments.len(), 1);
    let row = &finished.segments[0];
    assert_eq!(
        row.tokens,
        [1, 2, 3, 10, 11, 12, 4, 5, 6, 20, 21],
        "what follows the last answer trains nothing"
    );
    assert_eq!(origins(row), "00011132211");
    assert_eq!(row.mask, [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1]);
    assert_eq!(row.prompt_len, 3);
    assert_eq!(row.logprobs[3], -10.0 / 64.0);
    assert_eq!(row.version_runs, [(3, 3, "base".into()), (9, 2, "base".into())]);
    assert_eq!(excluded(&finished), ["c0 3+1 dropped after-stop"]);
}

#[test]
fn giving_up_the_parent_of_a_fork_loses_nothing() {
    let mut ledger = Ledger::new();
    let parent = ledger.open(&[piece(&[1, 2], Origin::Prompt)]);
    answer(&mut ledger, parent, &[10, 11], 2);
    let child = ledger.fork(parent);
    answer(&mut ledger, parent, &[20, 21], 2);
    answer(&mut ledger, child, &[30], 1);

    let both = settle(&ledger, "both stand");
    assert_eq!(both.segments.iter().map(origins).collect::<Vec<_>>(), ["001111", "00001"]);
    assert_eq!((both.segments[1].parent_segment, both.segments[1].fork_at), (Some(0), Some(4)));
    assert_eq!(both.segments[1].spans[0].usage, SpanUse::Reused);

    ledger.discard(parent);
    let one = settle(&ledger, "the parent is given up");
    assert_eq!(one.segments.iter().map(origins).collect::<Vec<_>>(), ["00111"]);
    assert_eq!(excluded(&one), ["c1 0+2 dropped branch-not-selected"]);

    ledger.discard(child);
    let none = settle(&ledger, "all are given up");
    assert!(none.segments.is_empty());
    assert_eq!(excluded(&none).len(), 3);
}

#[test]
fn a_parent_that_says_no_more_is_part_of_its_fork() {
    let mut ledger = Ledger::new();
    let parent = ledger.open(&[piece(&[1], Origin::Prompt)]);
    answer(&mut ledger, parent, &[10], 1);
    let child = ledger.fork(parent);
    let grandchild = ledger.fork(child);
    ledger.extend(parent, &[piece(&[5], Origin::Environment)]);
    answer(&mut ledger, grandchild, &[11], 1);
    let finished = settle(&ledger, "nested forks");
    assert_eq!(finished.segments.iter().map(origins).collect::<Vec<_>>(), ["011"]);
}

#[test]
fn a_fork_of_what_was_given_up_stands_on_its_own() {
    let mut ledger = Ledger::new();
    let stem = ledger.open(&[piece(&[1], Origin::Prompt)]);
    ledger.discard(stem);
    let fork = ledger.fork(stem);
    answer(&mut ledger, fork, &[10], 1);
    assert_eq!(trained(&settle(&ledger, "a stem").segments).len(), 1);
}

#[test]
fn a_rewrite_keeps_the_old_row_and_carries_what_stays() {
    let mut ledger = Ledger::new();
    let branch = ledger.open(&[piece(&[1, 2], Origin::Prompt)]);
    answer(&mut ledger, branch, &[10, 11, 12], 3);
    ledger.extend(branch, &[piece(&[3], Origin::Environment)]);
    answer(&mut ledger, branch, &[20], 1);
    let pieces = [
        Kept::Range { from: 0, to: 3 },
        Kept::New(piece(&[9], Origin::Prompt)),
        Kept::Range { from: 4, to: 5 },
        Kept::Range { from: 6, to: 7 },
    ];
    ledger.rewrite(branch, &pieces, DriftKind::Template);
    assert_eq!(*ledger.prompt(branch, &[]), [1, 2, 10, 9, 12, 20]);
    answer(&mut ledger, branch, &[30], 1);

    let finished = settle(&ledger, "rewrite");
    assert_eq!(finished.segments.iter().map(origins).collect::<Vec<_>>(), ["0011121", "0000001"]);
    let row = &finished.segments[1];
    assert_eq!(
        (row.parent_segment, row.fork_at, row.drift_kind.as_deref()),
        (Some(0), Some(3), Some("template"))
    );
    let spans: Vec<_> =
        row.spans.iter().map(|span| (span.call_id.as_str(), span.offset, span.start)).collect();
    assert_eq!(spans, [("c0", 0, 2), ("c0", 2, 4), ("c1", 0, 5), ("c2", 0, 6)]);

    ledger.discard(branch);
    assert!(settle(&ledger, "a rewritten branch is given up").segments.is_empty());
}

#[test]
fn each_reason_for_a_mask_is_named() {
    let mut ledger = Ledger::new();
    let branch = ledger.open(&[piece(&[1], Origin::Prompt)]);
    let odd = [-0.5, f32::NAN, f32::NEG_INFINITY, 0.0, 0.25];
    let uneven = ledger.record(call(0, 5), Some(odd.to_vec()));
    ledger.place(branch, uneven, &[10, 11, 12, 13, 14]);
    let silent = ledger.record(call(1, 2), None);
    ledger.place(branch, silent, &[20, 21]);
    let told = answer(&mut ledger, branch, &[30], 1);
    ledger.set_trainable(told, false);
    let short = ledger.record(call(3, 2), Some(vec![-0.5]));
    ledger.place(branch, short, &[40, 41]);
    ledger.record(call(4, 3), Some(vec![-0.5; 3]));
    let mut text = call(5, 7);
    text.versions.clear();
    ledger.record_text(text);
    let finished = settle(&ledger, "reasons");
    assert_eq!(finished.segments[0].mask, [0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    assert!(finished.segments[0].logprobs.iter().all(|logprob| logprob.is_finite()));
    assert_eq!(
        excluded(&finished),
        [
            "c0 1+2 masked no-logprob",
            "c0 4+1 masked no-logprob",
            "c1 0+2 masked no-logprob",
            "c2 0+1 masked harness",
            "c3 0+2 masked no-logprob",
            "c4 0+3 dropped branch-not-selected",
            "c5 0+7 dropped no-token-ids",
        ]
    );
    let not = ledger.finish(Trainability::NotTrainable);
    assert!(not.excluded.iter().take(4).all(|excluded| excluded.reason == "not-trainable"));
}

#[test]
fn what_was_withheld_and_is_restored_is_as_it_would_have_been() {
    let mut ledger = Ledger::new();
    let branch = ledger.open(&[piece(&[1], Origin::Prompt)]);
    let odd = [-0.5, f32::NAN, -0.5, -0.5, 0.25];
    let uneven = ledger.record(call(0, 5), Some(odd.to_vec()));
    ledger.place(branch, uneven, &[10, 11, 12, 13, 14]);
    let told = answer(&mut ledger, branch, &[30], 1);
    ledger.set_trainable(told, false);
    answer(&mut ledger, branch, &[40, 41], 2);
    let mut whole = trajectory(0, StopReason::Submitted, ledger.finish(Trainability::Trainable));
    whole.trainable = true;
    let mut changed = whole.clone();
    withhold(&mut changed, reason::NOT_TRAINABLE);
    let sums = changed.token_sums();
    assert_eq!((sums.trained, sums.masked), (0, 8), "{sums:?}");
    restore(&mut changed, reason::NOT_TRAINABLE);
    assert_eq!(changed, whole);
}

#[test]
fn versions_cover_every_token_whatever_the_endpoint_said() {
    let run = |offset, len, label: &str| (offset, len, label.to_owned(), None);
    let cases = [
        (vec![], vec![run(0, 10, "unknown")]),
        (vec![run(0, 10, "a")], vec![run(0, 10, "a")]),
        (vec![run(0, 4, "a"), run(4, 6, "b")], vec![run(0, 4, "a"), run(4, 6, "b")]),
        (vec![run(2, 2, "a"), run(6, 9, "b")], vec![run(0, 6, "a"), run(6, 4, "b")]),
        (vec![run(5, 5, "b"), run(0, 6, "a")], vec![run(0, 5, "a"), run(5, 5, "b")]),
        (vec![run(0, 10, "a"), run(10, 3, "b")], vec![run(0, 10, "a")]),
    ];
    for (mut given, expected) in cases {
        let was = format!("{given:?}");
        cover(&mut given, 10);
        assert_eq!(given, expected, "{was}");
    }
    let mut ledger = Ledger::new();
    let branch = ledger.open(&[piece(&[1], Origin::Prompt)]);
    let mut updated = call(0, 6);
    updated.versions = vec![run(0, 2, "step-8"), run(2, 4, "step-9")];
    let index = ledger.record(updated, Some(vec![-0.1; 6]));
    ledger.place(branch, index, &[10, 11, 12, 13]);
    let finished = settle(&ledger, "versions");
    assert_eq!(finished.segments[0].version_runs, [(1, 2, "step-8".into()), (3, 2, "step-9".into())]);
}

#[test]
fn a_token_has_one_place() {
    let mut ledger = Ledger::new();
    let branch = ledger.open(&[]);
    let index = answer(&mut ledger, branch, &[1], 1);
    let twice = std::panic::catch_unwind(move || ledger.place(branch, index, &[1]));
    assert!(twice.is_err());
}

#[test]
fn a_drift_in_the_last_tokens_of_a_long_turn_loses_a_handful() {
    for from_end in 1..=5 {
        let mut ledger = Ledger::new();
        let branch = ledger.open(&[piece(&[1, 2], Origin::Prompt)]);
        let sampled: Vec<u32> = (0..28_000).map(|i| 100 + i % 997).collect();
        answer(&mut ledger, branch, &sampled, sampled.len());
        let at = sampled.len() - from_end;
        let mut came_back = sampled.clone();
        came_back[at] = 7;
        let incoming = [
            piece(&[1, 2], Origin::Prompt),
            piece(&came_back, Origin::Prompt),
            piece(&[3, 4], Origin::Environment),
        ];
        let outcome = ledger.reconcile(branch, &incoming, HEAL_MAX);
        assert_eq!(outcome, Reconciled::Healed { at: at as u32 + 2, lost: from_end as u32 });
        answer(&mut ledger, branch, &[50], 1);
        let finished = settle(&ledger, "long turn");
        assert_eq!(finished.segments.len(), 1);
        assert_eq!(finished.segments[0].drift_kind.as_deref(), Some("heal"));
        let sums = trajectory(0, StopReason::Submitted, finished.clone()).token_sums();
        assert!(sums.dropped <= 16 && sums.trained == 28_001 - sums.dropped, "{sums:?}");
        assert_eq!(excluded(&finished), [format!("c0 {at}+{from_end} dropped drift")]);
        let tail: String = origins(&finished.segments[0])[at + 2..].into();
        assert_eq!(tail, format!("{}221", "4".repeat(from_end)));
    }
}

#[test]
fn more_than_a_handful_opens_a_row_and_the_old_one_trains_whole() {
    let mut ledger = Ledger::new();
    let branch = ledger.open(&[piece(&[1, 2], Origin::Prompt)]);
    let first: Vec<u32> = (100..130).collect();
    answer(&mut ledger, branch, &first, 30);
    ledger.extend(branch, &[piece(&[3], Origin::Environment)]);
    let second: Vec<u32> = (200..210).collect();
    answer(&mut ledger, branch, &second, 10);
    let incoming = [
        piece(&[1, 9], Origin::Prompt),
        piece(&first, Origin::Prompt),
        piece(&[3], Origin::Environment),
        piece(&second, Origin::Prompt),
        piece(&[4], Origin::Environment),
    ];
    assert_eq!(ledger.reconcile(branch, &incoming, HEAL_MAX), Reconciled::NewSegment { at: 1 });
    answer(&mut ledger, branch, &[50], 1);
    let finished = settle(&ledger, "an early change");
    assert_eq!(finished.segments.len(), 2);
    assert!(finished.excluded.is_empty());
    let reused: Vec<_> = finished.segments[1]
        .spans
        .iter()
        .map(|span| (span.call_id.as_str(), span.start, span.len, span.usage))
        .collect();
    assert_eq!(
        reused,
        [("c0", 2, 30, SpanUse::Reused), ("c1", 33, 10, SpanUse::Reused), ("c2", 44, 1, SpanUse::Sampled)]
    );
}

#[test]
fn asking_an_earlier_question_again_is_no_drift() {
    let mut ledger = Ledger::new();
    let branch = ledger.open(&[piece(&[1, 2], Origin::Prompt)]);
    answer(&mut ledger, branch, &[10, 11], 2);
    let again = [piece(&[1, 2], Origin::Prompt)];
    assert_eq!(ledger.reconcile(branch, &again, HEAL_MAX), Reconciled::NewSegment { at: 2 });
    answer(&mut ledger, branch, &[12], 1);
    let finished = settle(&ledger, "a second answer");
    assert_eq!(trained(&finished.segments).len(), 3);
    assert!(finished.excluded.is_empty());
}

#[test]
fn healing_one_branch_leaves_its_fork_whole() {
    let mut ledger = Ledger::new();
    let branch = ledger.open(&[piece(&[1], Origin::Prompt)]);
    answer(&mut ledger, branch, &[10, 11, 12], 3);
    let fork = ledger.fork(branch);
    let incoming = [piece(&[1, 10, 7], Origin::Prompt), piece(&[5], Origin::Environment)];
    assert_eq!(ledger.reconcile(branch, &incoming, HEAL_MAX), Reconciled::Healed { at: 2, lost: 2 });
    answer(&mut ledger, branch, &[20], 1);
    let finished = settle(&ledger, "the fork holds the tail");
    assert_eq!(trained(&finished.segments).len(), 4);
    ledger.discard(fork);
    let finished = settle(&ledger, "nobody holds the tail");
    assert_eq!(excluded(&finished), ["c0 1+2 dropped drift"]);
}

/// What a branch should be.
#[derive(Clone, Default)]
struct Mirror {
    /// Each token, with its name where it was sampled in this context.
    tokens: Vec<(u32, Option<(String, u32)>)>,
    /// Names that rows of the past train.
    closed: BTreeSet<(String, u32)>,
    discarded: bool,
}

impl Mirror {
    fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|(id, _)| *id).collect()
    }

    fn close(&mut self) {
        self.closed.extend(self.tokens.iter().filter_map(|(_, name)| name.clone()));
    }

    fn add(&mut self, ids: &[u32]) {
        self.tokens.extend(ids.iter().map(|id| (*id, None)));
    }
}

#[test]
fn random_rewrites_of_history_always_close() {
    let mut outcomes = [0; 3];
    for seed in 0..600 {
        let mut rng = TestRng::new(seed);
        let mut ledger = Ledger::new();
        let prompt = rng.ids(1, 12);
        let mut branches = vec![(ledger.open(&[piece(&prompt, Origin::Prompt)]), Mirror::default())];
        branches[0].1.add(&prompt);
        for _ in 0..30 {
            let (pick, alone) = (rng.below(branches.len() as u32) as usize, branches.len() == 1);
            let (branch, mirror) = &mut branches[pick];
            match rng.below(12) {
                0..4 => {
                    let ids = rng.ids(1, 40);
                    let kept = ids.len() - rng.below(3).min(ids.len() as u32 - 1) as usize;
                    let number = ledger.calls().len();
                    answer(&mut ledger, *branch, &ids, kept);
                    let named = ids[..kept].iter().enumerate();
                    mirror.tokens.extend(named.map(|(i, id)| (*id, Some((format!("c{number}"), i as u32)))));
                }
                4..6 => {
                    let ids = rng.ids(0, 6);
                    ledger.extend(*branch, &[piece(&ids, Origin::Environment)]);
                    mirror.add(&ids);
                }
                6 => {
                    let fork = ledger.fork(*branch);
                    let mirror = Mirror { discarded: false, ..mirror.clone() };
                    branches.push((fork, mirror));
                }
                7 if !alone => {
                    ledger.discard(*branch);
                    mirror.discarded = true;
                }
                8 => {
                    let length = mirror.tokens.len() as u32;
                    let to = rng.below(length + 1);
                    let from = to + rng.below(length - to + 1);
                    let new = rng.ids(0, 5);
                    let pieces = [
                        Kept::Range { from: 0, to },
                        Kept::New(piece(&new, Origin::Prompt)),
                        Kept::Range { from, to: length },
                    ];
                    ledger.rewrite(*branch, &pieces, DriftKind::Rewrite);
                    mirror.close();
                    let tail: Vec<u32> = mirror.ids()[from as usize..].to_vec();
                    mirror.tokens.truncate(to as usize);
                    mirror.add(&new);
                    mirror.add(&tail);
                }
                _ => {
                    let mut ids = mirror.ids();
                    let at = if rng.below(2) == 0 {
                        rng.below(ids.len() as u32 + 1)
                    } else {
                        (ids.len() as u32).saturating_sub(rng.below(20))
                    } as usize;
                    match rng.below(4) {
                        0 if at < ids.len() => ids[at] = 41,
                        1 => ids.insert(at, 42),
                        2 if at < ids.len() => drop(ids.remove(at)),
                        _ => ids.truncate(at),
                    }
                    let new = rng.ids(0, 6);
                    let incoming = [piece(&ids, Origin::Prompt), piece(&new, Origin::Environment)];
                    let all: Vec<u32> = ids.iter().chain(&new).copied().collect();
                    let same =
                        mirror.tokens.iter().zip(&all).take_while(|((one, _), two)| one == *two).count();
                    match ledger.reconcile(*branch, &incoming, HEAL_MAX) {
                        Reconciled::Extended => {
                            assert_eq!(same, mirror.tokens.len(), "seed {seed}");
                            outcomes[0] += 1;
                        }
                        Reconciled::Healed { at, lost } => {
                            assert_eq!(at as usize, same, "seed {seed}");
                            let gone = mirror.tokens[same..].iter().filter(|(_, name)| name.is_some());
                            assert_eq!(lost as usize, gone.count(), "seed {seed}");
                            assert!(lost <= HEAL_MAX, "seed {seed}");
                            outcomes[1] += 1;
                        }
                        Reconciled::NewSegment { at } => {
                            assert_eq!(at as usize, same, "seed {seed}");
                            mirror.close();
                            outcomes[2] += 1;
                        }
                    }
                    mirror.tokens.truncate(same);
                    mirror.add(&all[same..]);
                }
            }
            for (branch, mirror) in &branches {
                assert_eq!(*ledger.prompt(*branch, &[]), *mirror.ids(), "seed {seed}");
            }
        }
        let finished = settle(&ledger, &format!("seed {seed}"));
        let mut expected = BTreeSet::new();
        for (_, mirror) in branches.iter_mut().filter(|(_, mirror)| !mirror.discarded) {
            mirror.close();
            expected.extend(mirror.closed.iter().cloned());
        }
        assert_eq!(trained(&finished.segments), expected, "seed {seed}");
    }
    assert!(outcomes.iter().all(|count| *count > 200), "every outcome is met: {outcomes:?}");
}

#[test]
fn a_ledger_takes_at_most_12_bytes_a_token() {
    let mut ledger = Ledger::new();
    let branch = ledger.open(&[piece(&[1; 400], Origin::Prompt)]);
    for _ in 0..40 {
        answer(&mut ledger, branch, &[2; 256], 256);
        ledger.extend(branch, &[piece(&[3; 4], Origin::Template), piece(&[4; 252], Origin::Environment)]);
    }
    let tokens = f64::from(ledger.len(branch));
    let calls = ledger.calls().len() * size_of::<CallEntry>();
    let each = (ledger.heap_bytes() - calls) as f64 / tokens;
    assert!(each <= 12.0, "{each} bytes a token");
}
