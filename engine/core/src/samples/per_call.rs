//! Rows of a trajectory cut so that each has the answer of one call as its only sampled tokens.
//!
//! A trainer that takes one sample a turn wants them so. What was sampled before is context of the row (`reused`), so that every
//! sampled token still stands as sampled in exactly one row, and the account of the trajectory stays as it was.

use super::{Origin, Segment, Span, SpanUse, Trajectory};

/// Cuts every row. One that holds a single call's answer stays as it is; one without any, which trains nothing, too.
pub fn per_call(trajectory: &mut Trajectory) {
    let before = std::mem::take(&mut trajectory.segments);
    // By row of before: the last one that it has become, which holds all its tokens.
    let mut last_of: Vec<u32> = Vec::with_capacity(before.len());
    let rows = &mut trajectory.segments;
    for segment in before {
        let parent = segment.parent_segment.map(|parent| last_of[parent as usize]);
        let first = rows.len();
        let calls = calls(&segment);
        if calls.len() < 2 {
            rows.push(Segment { parent_segment: parent, ..segment });
        } else {
            for call_id in calls {
                let mut row = row(&segment, &call_id);
                if rows.len() == first {
                    row.parent_segment = parent;
                    row.fork_at = segment.fork_at.map(|at| at.min(row.tokens.len() as u32));
                } else {
                    row.parent_segment = Some(rows.len() as u32 - 1);
                    row.fork_at = rows.last().map(|previous| previous.tokens.len() as u32);
                }
                rows.push(row);
            }
        }
        last_of.push(rows.len() as u32 - 1);
    }
}

/// The calls that a row holds as sampled, in order.
fn calls(segment: &Segment) -> Vec<String> {
    let mut calls: Vec<String> = Vec::new();
    for span in segment.spans.iter().filter(|span| span.usage == SpanUse::Sampled) {
        if !calls.contains(&span.call_id) {
            calls.push(span.call_id.clone());
        }
    }
    calls
}

/// The row up to the end of the answer of a call, which alone is sampled in it.
fn row(segment: &Segment, call_id: &str) -> Segment {
    let is_own = |span: &Span| span.usage == SpanUse::Sampled && span.call_id == call_id;
    let own: Vec<(u32, u32)> = segment
        .spans
        .iter()
        .filter(|span| is_own(span))
        .map(|span| (span.start, span.start + span.len))
        .collect();
    let end = own.iter().map(|(_, end)| *end).max().unwrap_or(0);
    let length = end as usize;
    let is_sampled =
        |at: usize| own.iter().any(|(start, end)| (*start as usize..*end as usize).contains(&at));
    let mut row = Segment {
        tokens: segment.tokens[..length].to_vec(),
        prompt_len: own.iter().map(|(start, _)| *start).min().unwrap_or(end),
        mask: segment.mask[..length].to_vec(),
        origin: segment.origin[..length].to_vec(),
        logprobs: segment.logprobs[..length].to_vec(),
        drift_kind: segment.drift_kind.clone(),
        advantages: segment.advantages.as_ref().map(|values| values[..length].to_vec()),
        token_rewards: segment.token_rewards.as_ref().map(|values| values[..length].to_vec()),
        images: segment.images.iter().filter(|image| image.start < end).cloned().collect(),
        ..Segment::default()
    };
    for at in (0..length).filter(|at| !is_sampled(*at)) {
        row.mask[at] = 0;
        row.logprobs[at] = 0.0;
        if row.origin[at] == Origin::Sampled as u8 {
            row.origin[at] = Origin::Prompt as u8;
        }
        for values in row.advantages.iter_mut().chain(&mut row.token_rewards) {
            values[at] = 0.0;
        }
    }
    row.spans = (segment.spans.iter().filter(|span| span.start < end))
        .map(|span| Span {
            usage: if is_own(span) { SpanUse::Sampled } else { SpanUse::Reused },
            ..span.clone()
        })
        .collect();
    for (start, len, label) in &segment.version_runs {
        for (from, to) in &own {
            let (low, high) = ((*start).max(*from), (start + len).min(*to));
            if low < high {
                row.version_runs.push((low, high - low, label.clone()));
            }
        }
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ending::StopReason;
    use crate::ledger::{DriftKind, Kept, Ledger, Piece, Trainability};
    use crate::samples::check::check;
    use crate::samples::{ImageSpan, fixture};

    /// Two answers in a row, then a history that was opened anew with one more; the last token of the second is cut.
    fn trajectory(trainability: Trainability) -> Trajectory {
        let mut ledger = Ledger::new();
        let prompt = |ids| Piece { ids, origin: Origin::Prompt };
        let branch = ledger.open(&[prompt(&[1, 2, 3])]);
        let answer = |ledger: &mut Ledger, name: &str, ids: &[u32], kept: usize| {
            let call = fixture::call(name, "policy", ids.len() as u32);
            let index = ledger.record(call, Some(vec![-0.5; ids.len()]));
            ledger.place(branch, index, &ids[..kept]);
        };
        answer(&mut ledger, "c0", &[10, 11], 2);
        ledger.extend(branch, &[Piece { ids: &[4, 5], origin: Origin::Environment }]);
        answer(&mut ledger, "c1", &[20, 21, 22], 2);
        ledger.rewrite(
            branch,
            &[Kept::Range { from: 0, to: 1 }, Kept::New(prompt(&[9])), Kept::Range { from: 3, to: 9 }],
            DriftKind::Elide,
        );
        ledger.extend(branch, &[Piece { ids: &[6], origin: Origin::Environment }]);
        answer(&mut ledger, "c2", &[30], 1);
        ledger.extend(branch, &[Piece { ids: &[7], origin: Origin::Environment }]);
        answer(&mut ledger, "c3", &[40], 1);
        let stop_reason = match trainability {
            Trainability::Trainable => StopReason::Submitted,
            _ => StopReason::GuestTrap,
        };
        fixture::trajectory(0, stop_reason, ledger.finish(trainability))
    }

    fn told(segment: &Segment) -> String {
        let text = |values: &[u8]| values.iter().map(ToString::to_string).collect::<String>();
        let spans: Vec<String> = (segment.spans.iter())
            .map(|span| {
                format!(
                    "{}{}+{}",
                    if span.usage == SpanUse::Sampled { "" } else { "~" },
                    span.call_id,
                    span.len
                )
            })
            .collect();
        format!(
            "{:?} {} {} p{} {} {:?}@{:?} {:?}",
            segment.tokens,
            text(&segment.mask),
            text(&segment.origin),
            segment.prompt_len,
            spans.join(" "),
            segment.parent_segment,
            segment.fork_at,
            segment.drift_kind.as_deref(),
        )
    }

    #[test]
    fn each_answer_has_a_row_that_ends_with_it_and_trains_it_alone() {
        let mut one = trajectory(Trainability::Trainable);
        let whole = one.clone();
        assert_eq!(one.segments.len(), 2);
        per_call(&mut one);
        let rows: Vec<String> = one.segments.iter().map(told).collect();
        assert_eq!(
            rows,
            [
                "[1, 2, 3, 10, 11] 00011 00011 p3 c0+2 None@None None",
                "[1, 2, 3, 10, 11, 4, 5, 20, 21] 000000011 000002211 p7 ~c0+2 c1+2 Some(0)@Some(5) None",
                "[1, 9, 10, 11, 4, 5, 20, 21, 6, 30] 0000000001 0000220021 p9 ~c0+2 ~c1+2 c2+1 Some(1)@Some(1) Some(\"elide\")",
                "[1, 9, 10, 11, 4, 5, 20, 21, 6, 30, 7, 40] 000000000001 000022002021 p11 ~c0+2 ~c1+2 ~c2+1 c3+1 \
                 Some(2)@Some(10) Some(\"elide\")",
            ]
        );
        assert_eq!((one.token_sums(), &one.excluded), (whole.token_sums(), &whole.excluded));
        assert_eq!(check(&fixture::group(vec![one.clone()])), []);
        let again = one.clone();
        per_call(&mut one);
        assert_eq!(one, again, "a row of one answer stays as it is");
    }

    #[test]
    fn images_stand_in_every_row_behind_them_and_what_does_not_train_stays_so() {
        let mut one = trajectory(Trainability::NotTrainable);
        let image = |start| ImageSpan { digest: format!("d{start}"), start, len: 1 };
        one.segments[0].images = vec![image(1), image(5)];
        per_call(&mut one);
        let digests: Vec<usize> = one.segments.iter().map(|row| row.images.len()).collect();
        assert_eq!(digests, [1, 2, 0, 0]);
        let group = fixture::group(vec![one]);
        assert_eq!((group.images, check(&group)), (3, vec![]));
    }
}
