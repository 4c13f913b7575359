//! Rows into segments: which rows stand, who trains each sampled token, and why the rest does not.

use super::{CallEntry, Ledger, What, reason};
use crate::samples::{Call, Excluded, ExcludedHow, Origin, Segment, Span, SpanUse};

/// Whether the tokens of an attempt may train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trainability {
    /// It has a reward, and its ending trains.
    Trainable,
    /// Its rows are delivered, all masked: no reward, or an ending that does not train.
    NotTrainable,
    /// It was retried: no rows, all dropped.
    Abandoned,
}

/// What a ledger comes to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Finished {
    /// In the order in which they were recorded.
    pub calls: Vec<Call>,
    /// Rows that hold at least one sampled token, in the order in which they were opened.
    pub segments: Vec<Segment>,
    /// Every sampled token that does not train, by call and offset.
    pub excluded: Vec<Excluded>,
}

/// A row that becomes a segment: the path up to its last sampled token.
struct Candidate {
    /// The row opened for it, which may hold no sampled token of its own.
    tip: u32,
    row: u32,
    end: u32,
}

/// Up to where a row's tokens belong to a segment already, and to which.
#[derive(Clone, Copy)]
struct Claim {
    to: u32,
    segment: u32,
}

impl Ledger {
    /// Settles who trains what. The ledger stays as it is, so this may be asked again with another answer.
    pub fn finish(&self, trainability: Trainability) -> Finished {
        let mut excluded = Excludes::new(self.calls.len());
        let mut segments = Vec::new();
        let mut claims: Vec<Option<Claim>> = vec![None; self.rows.len()];
        if trainability == Trainability::Abandoned {
            for (call, entry) in self.calls.iter().enumerate() {
                excluded.add(
                    call as u32,
                    0,
                    entry.call.n_sampled,
                    ExcludedHow::Dropped,
                    reason::ATTEMPT_ABANDONED,
                );
            }
        } else {
            let mut segment_of = vec![None; self.rows.len()];
            for candidate in self.candidates() {
                segment_of[candidate.tip as usize] = Some(segments.len() as u32);
                let segment = self.segment(&candidate, trainability, &claims, &segment_of, &mut excluded);
                for (row, to) in self.path_to(candidate.row, candidate.end) {
                    let claim = &mut claims[row as usize];
                    if claim.is_none_or(|claim| claim.to < to) {
                        *claim = Some(Claim { to, segment: segments.len() as u32 });
                    }
                }
                segments.push(segment);
            }
            self.drop_the_rest(&claims, &mut excluded);
        }
        Finished {
            calls: self.calls.iter().map(|entry| entry.call.clone()).collect(),
            segments,
            excluded: excluded.into_list(&self.calls),
        }
    }

    /// The rows that stand, each cut behind its last sampled token; a row that is the beginning of another is left out,
    /// since the longer one trains all of it.
    fn candidates(&self) -> Vec<Candidate> {
        let mut stands = vec![false; self.rows.len()];
        for branch in self.branches.iter().filter(|branch| !branch.discarded) {
            let mut at = Some(branch.row);
            while let Some(row) = at
                && !std::mem::replace(&mut stands[row as usize], true)
            {
                at = self.rows[row as usize].previous;
            }
        }
        let mut longest: Vec<Option<Candidate>> = self.rows.iter().map(|_| None).collect();
        for tip in (0..self.rows.len() as u32).filter(|row| stands[*row as usize]) {
            if let Some((row, end)) = self.last_sampled(tip) {
                let best = &mut longest[row as usize];
                if best.as_ref().is_none_or(|best| best.end < end) {
                    *best = Some(Candidate { tip, row, end });
                }
            }
        }
        let mut reach = vec![0; self.rows.len()];
        for candidate in longest.iter().flatten() {
            let mut at = candidate.row;
            while let Some(parent) = self.rows[at as usize].parent {
                reach[parent as usize] = self.rows[at as usize].start.max(reach[parent as usize]);
                at = parent;
            }
        }
        let mut kept: Vec<Candidate> = longest
            .into_iter()
            .flatten()
            .filter(|candidate| candidate.end > reach[candidate.row as usize])
            .collect();
        kept.sort_by_key(|candidate| candidate.tip);
        kept
    }

    /// Where the last sampled token of a path stands: its row, and the position behind it.
    fn last_sampled(&self, row: u32) -> Option<(u32, u32)> {
        let (mut at, mut to) = (row, self.rows[row as usize].end());
        loop {
            let row = &self.rows[at as usize];
            let mut end = row.end();
            for run in row.runs.iter().rev() {
                if run.start < to && matches!(run.what, What::Sampled { .. }) {
                    return Some((at, end.min(to)));
                }
                end = run.start;
            }
            to = row.start;
            at = row.parent?;
        }
    }

    fn segment(
        &self,
        candidate: &Candidate,
        trainability: Trainability,
        claims: &[Option<Claim>],
        segment_of: &[Option<u32>],
        excluded: &mut Excludes,
    ) -> Segment {
        let path = self.path_to(candidate.row, candidate.end);
        let length = candidate.end as usize;
        let mut out = Segment {
            tokens: Vec::with_capacity(length),
            mask: vec![0; length],
            origin: vec![0; length],
            logprobs: vec![0.0; length],
            prompt_len: candidate.end,
            ..Segment::default()
        };
        self.visit_runs(&path, 0, candidate.end, |row, start, ids, what| {
            out.tokens.extend_from_slice(ids);
            let len = ids.len() as u32;
            match what {
                What::Context(origin) => out.origin[start as usize..][..ids.len()].fill(origin as u8),
                What::Carried { call, offset } => {
                    self.push_span(&mut out.spans, call, SpanUse::Reused, [offset, start, len]);
                }
                What::Sampled { call, offset } => {
                    let claimed =
                        claims[row as usize].map_or(start, |claim| claim.to.clamp(start, start + len));
                    let reused = claimed - start;
                    self.push_span(&mut out.spans, call, SpanUse::Reused, [offset, start, reused]);
                    let sampled = [offset + reused, claimed, len - reused];
                    self.push_span(&mut out.spans, call, SpanUse::Sampled, sampled);
                    if reused < len {
                        out.prompt_len = out.prompt_len.min(claimed);
                        self.train(
                            &mut out,
                            call,
                            offset + reused,
                            claimed,
                            len - reused,
                            trainability,
                            excluded,
                        );
                    }
                }
            }
        });
        out.images = self.images_between(candidate.row, 0, candidate.end).cloned().collect();
        let shared = path.iter().rev().find_map(|(row, to)| {
            claims[*row as usize]
                .filter(|claim| claim.to > self.rows[*row as usize].start)
                .map(|claim| (claim.segment, claim.to.min(*to)))
        });
        let replaced = self.rows[candidate.tip as usize].previous.and_then(|row| segment_of[row as usize]);
        (out.parent_segment, out.fork_at) = match (shared, replaced) {
            (Some((segment, at)), _) => (Some(segment), Some(at)),
            (None, Some(segment)) => (Some(segment), Some(0)),
            (None, None) => (None, None),
        };
        out.drift_kind = path
            .iter()
            .rev()
            .find_map(|(row, _)| self.rows[*row as usize].kind)
            .map(|kind| kind.as_str().to_owned());
        out
    }

    /// Marks `len` tokens of a call, which this row holds as sampled, as trained or masked.
    #[expect(clippy::too_many_arguments, reason = "one place of one call in one row")]
    fn train(
        &self,
        out: &mut Segment,
        call: u32,
        offset: u32,
        start: u32,
        len: u32,
        trainability: Trainability,
        excluded: &mut Excludes,
    ) {
        let entry = &self.calls[call as usize];
        let whole = match trainability {
            Trainability::Trainable if entry.trainable => None,
            Trainability::Trainable => Some(reason::HARNESS),
            Trainability::NotTrainable | Trainability::Abandoned => Some(reason::NOT_TRAINABLE),
        };
        for i in 0..len {
            let at = (start + i) as usize;
            out.origin[at] = Origin::Sampled as u8;
            let logprob = entry
                .logprobs
                .as_ref()
                .map(|values| values[(offset + i) as usize])
                .filter(|logprob| is_real(*logprob));
            out.logprobs[at] = logprob.unwrap_or(0.0);
            let why = whole.or(if logprob.is_none() { Some(reason::NO_LOGPROB) } else { None });
            match why {
                None => out.mask[at] = 1,
                Some(why) => excluded.add(call, offset + i, 1, ExcludedHow::Masked, why),
            }
        }
        for (version_offset, version_len, label, _) in &entry.call.versions {
            let (low, high) =
                ((*version_offset).max(offset), (version_offset + version_len).min(offset + len));
            if low >= high {
                continue;
            }
            let (run_start, run_len) = (start + low - offset, high - low);
            match out.version_runs.last_mut() {
                Some((last, last_len, last_label))
                    if *last + *last_len == run_start && last_label == label =>
                {
                    *last_len += run_len;
                }
                _ => out.version_runs.push((run_start, run_len, label.clone())),
            }
        }
    }

    /// Adds a span, or lengthens the last one where a row was cut in the middle of an answer.
    fn push_span(&self, spans: &mut Vec<Span>, call: u32, usage: SpanUse, [offset, start, len]: [u32; 3]) {
        if len == 0 {
            return;
        }
        let call_id = &self.calls[call as usize].call.call_id;
        match spans.last_mut() {
            Some(last)
                if last.call_id == *call_id
                    && last.usage == usage
                    && last.start + last.len == start
                    && last.offset + last.len == offset =>
            {
                last.len += len;
            }
            _ => spans.push(Span { call_id: call_id.clone(), offset, start, len, usage }),
        }
    }

    /// Sampled tokens that no segment holds.
    fn drop_the_rest(&self, claims: &[Option<Claim>], excluded: &mut Excludes) {
        for (index, row) in self.rows.iter().enumerate() {
            let from = claims[index].map_or(row.start, |claim| claim.to);
            self.visit_runs(&[(index as u32, row.end())], from, row.end(), |_, start, ids, what| {
                let What::Sampled { call, offset } = what else { return };
                let len = ids.len() as u32;
                let held = row.drift_from.map_or(len, |drift| drift.clamp(start, start + len) - start);
                excluded.add(call, offset, held, ExcludedHow::Dropped, reason::BRANCH_NOT_SELECTED);
                excluded.add(call, offset + held, len - held, ExcludedHow::Dropped, reason::DRIFT);
            });
        }
        for (call, entry) in self.calls.iter().enumerate() {
            let kept = entry.kept.unwrap_or(0);
            excluded.add(call as u32, kept, entry.call.n_sampled - kept, ExcludedHow::Dropped, entry.dropped);
        }
    }
}

/// Whether a logprob is one: finite and at most 0.
pub(crate) fn is_real(logprob: f32) -> bool {
    logprob.is_finite() && logprob <= 0.0
}

/// Excluded runs by call, joined where they touch.
struct Excludes(Vec<Vec<(u32, u32, ExcludedHow, &'static str)>>);

impl Excludes {
    fn new(calls: usize) -> Self {
        Excludes(vec![Vec::new(); calls])
    }

    fn add(&mut self, call: u32, offset: u32, len: u32, how: ExcludedHow, why: &'static str) {
        if len == 0 {
            return;
        }
        let runs = &mut self.0[call as usize];
        match runs.last_mut() {
            Some((last, last_len, last_how, last_why))
                if *last + *last_len == offset && *last_how == how && *last_why == why =>
            {
                *last_len += len;
            }
            _ => runs.push((offset, len, how, why)),
        }
    }

    fn into_list(self, calls: &[CallEntry]) -> Vec<Excluded> {
        let mut list = Vec::new();
        for (mut runs, entry) in self.0.into_iter().zip(calls) {
            runs.sort_by_key(|(offset, ..)| *offset);
            for (offset, len, how, why) in runs {
                list.push(Excluded {
                    call_id: entry.call.call_id.clone(),
                    offset,
                    len,
                    how,
                    reason: why.to_owned(),
                });
            }
        }
        list
    }
}
