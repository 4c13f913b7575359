//! Histories that come back as text: where they leave what was sampled, and what that costs.
//!
//! An agent that speaks text sends the whole history with each request. Its tokens are compared with the branch's: from
//! the first that differs the incoming ones count. A short loss is *healed* (the row goes on, the lost tail is dropped);
//! a long one opens a new row, and the old one trains whole.

use super::{BranchId, DriftKind, Ledger, Piece, Row, What};
use crate::samples::Origin;

/// Most sampled tokens that are given up to keep one row going.
pub const HEAL_MAX: u32 = 16;

/// What an incoming history meant for a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reconciled {
    /// The branch as it stood, with more behind it.
    Extended,
    /// It differs from `at` on; the `lost` sampled tokens behind are dropped, `drift`, and the row goes on.
    Healed {
        /// Tokens that still agree.
        at: u32,
        /// At most the bound that was given.
        lost: u32,
    },
    /// It differs from `at` on, or ends there: a new row; the old one stays and trains whole.
    NewSegment {
        /// Tokens that agree, shared by both rows.
        at: u32,
    },
}

impl Ledger {
    /// Brings a branch in line with a history that came back as text. `incoming` is all of it, tokenized, up to and with
    /// the prompt for the next answer; text of earlier answers comes with [`Origin::Prompt`].
    ///
    /// A history that ends inside the branch is not drift but a second answer to an earlier question: a new row, nothing
    /// is lost. Where a new row opens, answers that stand unchanged behind the difference are carried as `reused`.
    pub fn reconcile(&mut self, branch: BranchId, incoming: &[Piece<'_>], heal_max: u32) -> Reconciled {
        let row = self.branch(branch).row;
        let ids: Vec<u32> = incoming.iter().flat_map(|piece| piece.ids).copied().collect();
        let at = self.common_prefix(row, &ids);
        if at == self.rows[row as usize].end() {
            self.extend_from(row, incoming, at, |origin| origin);
            return Reconciled::Extended;
        }
        let lost = self.sampled_behind(row, at);
        if lost <= heal_max && at < ids.len() as u32 {
            let healed = self.branch_off(row, at);
            self.rows[healed as usize].previous = self.rows[row as usize].previous;
            self.rows[healed as usize].kind = Some(DriftKind::Heal);
            for (holder, end) in self.path(row) {
                let holder = &mut self.rows[holder as usize];
                if end > at {
                    let from = at.max(holder.start);
                    holder.drift_from = Some(holder.drift_from.map_or(from, |drift| drift.min(from)));
                }
            }
            self.extend_from(healed, incoming, at, |origin| match origin {
                Origin::Prompt => Origin::Healed,
                other => other,
            });
            self.branches[branch.0 as usize].row = healed;
            return Reconciled::Healed { at, lost };
        }
        let opened = self.branch_off(row, at);
        self.rows[opened as usize].previous = Some(row);
        self.rows[opened as usize].kind = Some(DriftKind::Text);
        self.extend_carrying(row, opened, incoming, &ids, at);
        self.branches[branch.0 as usize].row = opened;
        Reconciled::NewSegment { at }
    }

    fn common_prefix(&self, row: u32, ids: &[u32]) -> u32 {
        for (index, end) in self.path(row) {
            let row = &self.rows[index as usize];
            let own = &row.ids[..(end - row.start) as usize];
            let rest = &ids[(row.start as usize).min(ids.len())..];
            let same = own.iter().zip(rest).take_while(|(one, two)| one == two).count();
            if same < own.len() {
                return row.start + same as u32;
            }
        }
        self.rows[row as usize].end()
    }

    fn sampled_behind(&self, row: u32, at: u32) -> u32 {
        let mut lost = 0;
        self.visit_runs(&self.path(row), at, self.rows[row as usize].end(), |_, _, ids, what| {
            if matches!(what, What::Sampled { .. }) {
                lost += ids.len() as u32;
            }
        });
        lost
    }

    /// Adds what stands in `incoming` from position `at` on.
    fn extend_from(&mut self, row: u32, incoming: &[Piece<'_>], at: u32, origin: impl Fn(Origin) -> Origin) {
        let row = &mut self.rows[row as usize];
        let mut start = 0;
        for piece in incoming {
            let skip = (at as usize).saturating_sub(start).min(piece.ids.len());
            row.push(&piece.ids[skip..], What::Context(origin(piece.origin)));
            start += piece.ids.len();
        }
    }

    /// As `extend_from`, and whole answers of the old row that stand in the incoming ids, in order, keep their names.
    fn extend_carrying(&mut self, old: u32, new: u32, incoming: &[Piece<'_>], ids: &[u32], at: u32) {
        let mut answers: Vec<(Vec<u32>, What)> = Vec::new();
        self.visit_runs(&self.path(old), at, self.rows[old as usize].end(), |_, _, ids, what| {
            if let What::Sampled { call, offset } | What::Carried { call, offset } = what {
                answers.push((ids.to_vec(), What::Carried { call, offset }));
            }
        });
        let mut marks: Vec<(usize, usize, What)> = Vec::new();
        let mut from = at as usize;
        for (answer, what) in answers {
            if let Some(found) = find(&ids[from..], &answer) {
                marks.push((from + found, from + found + answer.len(), what));
                from += found + answer.len();
            }
        }
        let row: &mut Row = &mut self.rows[new as usize];
        let mut marks = marks.into_iter().peekable();
        let mut start = 0;
        for piece in incoming {
            let end = start + piece.ids.len();
            let mut low = start.max(at as usize);
            while low < end {
                match marks.peek().copied() {
                    // An answer may run over the piece's end: its rest was added with it.
                    Some((mark, mark_end, _)) if mark_end <= low => {
                        debug_assert!(mark < mark_end, "empty answers are never found");
                        marks.next();
                    }
                    Some((mark, mark_end, what)) if mark <= low => {
                        if mark == low {
                            row.push(&ids[mark..mark_end], what);
                        }
                        low = mark_end.min(end);
                    }
                    next => {
                        let high = next.map_or(end, |(mark, ..)| mark.min(end));
                        row.push(&ids[low..high], What::Context(piece.origin));
                        low = high;
                    }
                }
            }
            start = end;
        }
    }
}

/// Where `needle` stands in `ids`, if it does and is not empty.
fn find(ids: &[u32], needle: &[u32]) -> Option<usize> {
    let first = *needle.first()?;
    (0..=ids.len().checked_sub(needle.len())?).find(|i| ids[*i] == first && ids[*i..].starts_with(needle))
}
