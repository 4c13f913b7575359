//! A finished trajectory that may not train after all: its tokens change sides, the sums stay closed.

use super::reason;
use crate::samples::{Excluded, ExcludedHow, Span, SpanUse, Trajectory};

/// Masks every token that trains, with `why`; rows stay. For a trajectory whose reward failed.
pub fn withhold(trajectory: &mut Trajectory, why: &str) {
    trajectory.trainable = false;
    exclude(trajectory, why, |_| true);
}

/// Masks every token of these calls that trains, with `why`; rows stay.
pub fn exclude(trajectory: &mut Trajectory, why: &str, of: impl Fn(&str) -> bool) {
    for segment in &mut trajectory.segments {
        let is_meant = |span: &&Span| span.usage == SpanUse::Sampled && of(&span.call_id);
        for span in segment.spans.iter().filter(is_meant) {
            let mask = &mut segment.mask[span.start as usize..][..span.len as usize];
            let mut i = 0;
            while i < mask.len() {
                let trained = mask[i..].iter().take_while(|bit| **bit == 1).count();
                if trained > 0 {
                    mask[i..i + trained].fill(0);
                    trajectory.excluded.push(Excluded {
                        call_id: span.call_id.clone(),
                        offset: span.offset + i as u32,
                        len: trained as u32,
                        how: ExcludedHow::Masked,
                        reason: why.to_owned(),
                    });
                }
                i += trained.max(1);
            }
        }
    }
}

/// Undoes [`withhold`] with the same `why`: the rollout has a reward after all.
pub fn restore(trajectory: &mut Trajectory, why: &str) {
    trajectory.trainable = true;
    let is_withheld = |one: &Excluded| one.how == ExcludedHow::Masked && one.reason == why;
    let (withheld, rest): (Vec<Excluded>, Vec<Excluded>) =
        std::mem::take(&mut trajectory.excluded).into_iter().partition(is_withheld);
    trajectory.excluded = rest;
    for segment in &mut trajectory.segments {
        for span in segment.spans.iter().filter(|span| span.usage == SpanUse::Sampled) {
            for run in withheld.iter().filter(|run| run.call_id == span.call_id) {
                let from = run.offset.max(span.offset);
                let to = (run.offset + run.len).min(span.offset + span.len);
                if from < to {
                    let start = (span.start + from - span.offset) as usize;
                    segment.mask[start..][..(to - from) as usize].fill(1);
                }
            }
        }
    }
}

/// Marks the sample as removed: no reward, nothing trains, and every sampled token is excluded as `removed: WHY`, whatever else
/// would have excluded it. Rows stay. This is not undone.
pub fn remove(trajectory: &mut Trajectory, why: &str) {
    let reason = format!("{}{why}", reason::REMOVED);
    withhold(trajectory, &reason);
    for excluded in &mut trajectory.excluded {
        excluded.reason.clone_from(&reason);
    }
    trajectory.reward = None;
    trajectory.turn_rewards = None;
    trajectory.removed = Some(why.to_owned());
}

/// Takes the rows away and drops every sampled token, `attempt-abandoned`: the attempt is tried again.
pub fn abandon(trajectory: &mut Trajectory) {
    trajectory.trainable = false;
    trajectory.removed = None;
    trajectory.segments.clear();
    trajectory.excluded = trajectory
        .calls
        .iter()
        .filter(|call| call.n_sampled > 0)
        .map(|call| Excluded {
            call_id: call.call_id.clone(),
            offset: 0,
            len: call.n_sampled,
            how: ExcludedHow::Dropped,
            reason: reason::ATTEMPT_ABANDONED.to_owned(),
        })
        .collect();
}
