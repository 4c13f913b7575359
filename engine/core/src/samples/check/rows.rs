//! One row: lengths, codes, spans, versions.

use super::{Report, Rule};
use crate::ledger::is_real;
use crate::samples::{Call, Origin, Segment, SpanUse};
use std::collections::HashMap;

const SAMPLED: u8 = Origin::Sampled as u8;

/// `parent`: the row named by `parent_segment`, or its number where there is none before this one.
pub(super) fn check(
    segment: &Segment,
    parent: Option<Result<&Segment, u32>>,
    calls: &HashMap<&str, &Call>,
    report: &mut Report,
) {
    let length = segment.tokens.len();
    let optional = |values: &Option<Vec<f32>>| values.as_ref().is_none_or(|values| values.len() == length);
    let lengths = segment.mask.len() == length
        && segment.origin.len() == length
        && segment.logprobs.len() == length
        && optional(&segment.advantages)
        && optional(&segment.token_rewards);
    if !report.ensure(lengths, Rule::Lengths, || format!("{length} tokens, but not all arrays have as many"))
    {
        return;
    }
    let first = segment.origin.iter().position(|code| *code == SAMPLED).unwrap_or(length);
    report.ensure(segment.prompt_len as usize == first, Rule::PromptLen, || {
        format!("prompt_len is {}, the first sampled token stands at {first}", segment.prompt_len)
    });
    tokens(segment, report);
    spans(segment, calls, report);
    version_runs(segment, calls, report);
    images(segment, report);
    match parent {
        None => {
            report.ensure(segment.fork_at.is_none(), Rule::Parent, || "fork_at without a parent".into());
        }
        Some(Err(number)) => {
            report.ensure(false, Rule::Parent, || format!("parent_segment {number} does not come before it"));
        }
        Some(Ok(parent)) => {
            let shared = segment.fork_at.unwrap_or(0) as usize;
            let same = shared <= length
                && shared <= parent.tokens.len()
                && segment.tokens[..shared] == parent.tokens[..shared];
            report.ensure(same, Rule::Parent, || format!("does not share {shared} tokens with its parent"));
        }
    }
}

fn inside(start: u32, len: u32, length: usize) -> bool {
    u64::from(start) + u64::from(len) <= length as u64
}

fn images(segment: &Segment, report: &mut Report) {
    let length = segment.tokens.len();
    let mut behind = 0;
    for image in &segment.images {
        let fits = image.len > 0 && image.start >= behind && inside(image.start, image.len, length);
        if !report.ensure(fits, Rule::Images, || {
            format!(
                "image [{}, +{}) overlaps another, or reaches past {length} tokens",
                image.start, image.len
            )
        }) {
            return;
        }
        behind = image.start + image.len;
        let sampled = segment.origin[image.start as usize..behind as usize].contains(&SAMPLED);
        report.ensure(!sampled, Rule::Images, || format!("image at {} holds sampled tokens", image.start));
    }
}

fn tokens(segment: &Segment, report: &mut Report) {
    let columns = || segment.mask.iter().zip(&segment.origin).zip(&segment.logprobs).enumerate();
    if let Some((at, ((mask, code), _))) =
        columns().find(|(_, ((mask, code), _))| **mask > 1 || Origin::from_code(**code).is_none())
    {
        report.ensure(false, Rule::Codes, || format!("token {at} has mask {mask}, origin {code}"));
    }
    if let Some((at, ((_, code), logprob))) = columns()
        .find(|(_, ((mask, code), logprob))| **mask == 1 && (**code != SAMPLED || !is_real(**logprob)))
    {
        report
            .ensure(false, Rule::Mask, || format!("token {at} trains with origin {code}, logprob {logprob}"));
    }
    if let Some((at, ((_, code), logprob))) = columns()
        .find(|(_, ((_, code), logprob))| !logprob.is_finite() || (**code != SAMPLED && **logprob != 0.0))
    {
        report.ensure(false, Rule::Logprobs, || format!("token {at} has origin {code}, logprob {logprob}"));
    }
    for (name, values) in [("advantages", &segment.advantages), ("token_rewards", &segment.token_rewards)] {
        let infinite = values.iter().flatten().enumerate().find(|(_, value)| !value.is_finite());
        if let Some((at, value)) = infinite {
            report.ensure(false, Rule::Finite, || format!("{name}[{at}] is {value}"));
        }
    }
}

fn spans(segment: &Segment, calls: &HashMap<&str, &Call>, report: &mut Report) {
    let length = segment.tokens.len();
    let mut behind = 0;
    let mut in_span = vec![false; length];
    for span in &segment.spans {
        let call = calls.get(span.call_id.as_str());
        let in_call = match (call, span.usage) {
            (Some(call), _) => u64::from(span.offset) + u64::from(span.len) <= u64::from(call.n_sampled),
            // A past that another trajectory sampled is only context here.
            (None, SpanUse::Reused) => true,
            (None, SpanUse::Sampled) => false,
        };
        let fits = span.len > 0 && span.start >= behind && inside(span.start, span.len, length) && in_call;
        if !report.ensure(fits, Rule::Spans, || {
            format!(
                "span [{}, +{}) of call {} at offset {} overlaps, or leaves row or call",
                span.start, span.len, span.call_id, span.offset
            )
        }) {
            continue;
        }
        behind = span.start + span.len;
        let range = span.start as usize..behind as usize;
        let expected = match span.usage {
            SpanUse::Sampled => {
                in_span[range.clone()].fill(true);
                Origin::Sampled
            }
            SpanUse::Reused => Origin::Prompt,
        };
        report.ensure(
            segment.origin[range].iter().all(|code| *code == expected as u8),
            Rule::SpanOrigin,
            || {
                format!(
                    "{:?} span at {} holds another origin than {}",
                    span.usage, span.start, expected as u8
                )
            },
        );
    }
    if let Some(at) = (0..length).find(|at| segment.origin[*at] == SAMPLED && !in_span[*at]) {
        report.ensure(false, Rule::SpanOrigin, || format!("token {at} is sampled, but in no sampled span"));
    }
}

fn version_runs(segment: &Segment, calls: &HashMap<&str, &Call>, report: &mut Report) {
    let length = segment.tokens.len();
    let mut labels: Vec<Option<&str>> = vec![None; length];
    let mut behind = 0;
    for (start, len, label) in &segment.version_runs {
        let fits = *start >= behind && inside(*start, *len, length);
        if !report
            .ensure(fits, Rule::VersionRuns, || format!("run [{start}, +{len}) overlaps or leaves the row"))
        {
            return;
        }
        behind = start + len;
        labels[*start as usize..behind as usize].fill(Some(label));
    }
    for span in segment.spans.iter().filter(|span| span.usage == SpanUse::Sampled) {
        let Some(call) = calls.get(span.call_id.as_str()) else { continue };
        let mut versions = call.versions.iter().peekable();
        let end = (span.start as usize).saturating_add(span.len as usize).min(length);
        for (at, label) in labels.iter().enumerate().take(end).skip(span.start as usize) {
            let offset = span.offset.saturating_add(at as u32 - span.start);
            if segment.mask[at] != 1 {
                continue;
            }
            while versions.next_if(|(from, len, ..)| from.saturating_add(*len) <= offset).is_some() {}
            let expected = versions.peek().map(|(.., label, _)| label.as_str());
            if label.is_none() || *label != expected {
                report.ensure(false, Rule::VersionRuns, || {
                    format!("token {at} trains with version {label:?}, its call says {expected:?}")
                });
                return;
            }
        }
    }
}
