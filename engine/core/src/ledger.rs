//! The token ledger of one rollout and one model: which token ids were sent, which were sampled, and who trains them.
//!
//! A *branch* is one conversation. Its past is a path through *rows*: a row holds the tokens from where it left its
//! parent, so a fork shares its past and costs nothing, and a turn costs what it adds, whatever stands before it. A row
//! is never cut: healing and rewriting open another row that shares what stays. What trains is settled in
//! [`Ledger::finish`], when it is known which branches were given up: a sampled token trains in the first row that still
//! stands, so giving up the parent of a fork loses nothing.
//!
//! Token ids take 4 bytes each, a sampled token 4 more for its logprob; whatever else is kept is by run of tokens. The
//! module never tokenizes, renders or sends anything. Next: `finish` (rows into segments), `images` (where
//! images stand), `reconcile` (histories that
//! come back as text), `withdraw` (a trajectory that may not train after all).

mod finish;
mod images;
mod reconcile;
mod withdraw;

pub(crate) use finish::is_real;
pub use finish::{Finished, Trainability};
pub use reconcile::{HEAL_MAX, Reconciled};
pub use withdraw::{abandon, exclude, remove, restore, withhold};

use crate::samples::{Call, ImageSpan, Origin};
use std::sync::Arc;

/// Why a sampled token does not train: the words of `Excluded::reason`.
pub mod reason {
    /// Stands behind the text at which the host cut the answer.
    pub const AFTER_STOP: &str = "after-stop";
    /// The history that came back differs from here on.
    pub const DRIFT: &str = "drift";
    /// No branch that was kept holds it.
    pub const BRANCH_NOT_SELECTED: &str = "branch-not-selected";
    /// The harness said so.
    pub const HARNESS: &str = "harness";
    /// The endpoint gave no logprob, or one that is not finite or above 0.
    pub const NO_LOGPROB: &str = "no-logprob";
    /// The rollout may not train: no reward, or an ending that does not.
    pub const NOT_TRAINABLE: &str = "not-trainable";
    /// Others were chosen for the group.
    pub const NOT_CHOSEN: &str = "not-chosen";
    /// The rollout did not solve its task, and the answer did not bring it nearer ([`crate::samples::credit`]).
    pub const OUTSIDE_RISE: &str = "outside-rise-segment";
    /// The rollout did not solve its task, and nobody said which answers brought it nearer.
    pub const NO_VALUES: &str = "no-values";
    /// The rollout was not selected for an export.
    pub const NOT_SELECTED: &str = "not-selected";
    /// The attempt was retried.
    pub const ATTEMPT_ABANDONED: &str = "attempt-abandoned";
    /// Did not fit the context any more.
    pub const CONTEXT_OVERFLOW: &str = "context-overflow";
    /// The endpoint speaks text alone.
    pub const NO_TOKEN_IDS: &str = "no-token-ids";
    /// Before the reason for which the sample was removed.
    pub const REMOVED: &str = "removed: ";
}

/// A branch of one [`Ledger`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BranchId(u32);

/// A call recorded in one [`Ledger`]; calls count from 0 in the order in which they were recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallIndex(u32);

/// Tokens that were not sampled, with where they come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Token ids.
    pub ids: &'a [u32],
    /// Anything but [`Origin::Sampled`].
    pub origin: Origin,
}

/// One piece of a history that is opened anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept<'a> {
    /// The tokens `[from, to)` of the branch as it stands. A first piece from 0 is shared with the row as it stands; any
    /// other is context from here on, and its sampled tokens are `reused`.
    Range {
        /// First token.
        from: u32,
        /// Behind the last token.
        to: u32,
    },
    /// Tokens that are new here.
    New(Piece<'a>),
}

/// Why a history was opened anew: the words of `Segment::drift_kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriftKind {
    /// A tail of sampled tokens was lost and the row went on.
    Heal,
    /// The harness replaced the history.
    Rewrite,
    /// The template renders earlier turns otherwise.
    Template,
    /// An agent that speaks text sent another history.
    Text,
    /// Images were replaced by a placeholder.
    Elide,
}

impl DriftKind {
    /// The word in a segment.
    pub fn as_str(self) -> &'static str {
        match self {
            DriftKind::Heal => "heal",
            DriftKind::Rewrite => "rewrite",
            DriftKind::Template => "template",
            DriftKind::Text => "text",
            DriftKind::Elide => "elide",
        }
    }
}

/// The ledger. Positions count tokens from the start of a branch.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    calls: Vec<CallEntry>,
    rows: Vec<Row>,
    branches: Vec<Branch>,
}

#[derive(Clone, Debug)]
struct Branch {
    row: u32,
    discarded: bool,
    sampled: u64,
    turns: u32,
}

#[derive(Clone, Debug)]
struct CallEntry {
    call: Call,
    /// `None`: the endpoint gave none. Else one for each sampled token.
    logprobs: Option<Vec<f32>>,
    /// Tokens that were put into a row; `None`: it was put nowhere.
    kept: Option<u32>,
    /// Why the tokens that were put nowhere are dropped.
    dropped: &'static str,
    trainable: bool,
}

#[derive(Clone, Debug)]
struct Row {
    /// The row that holds what stands before `start`, always up to `start`.
    parent: Option<u32>,
    start: u32,
    ids: Vec<u32>,
    /// Ascending, the first at `start`; empty where the row holds no token of its own.
    runs: Vec<Run>,
    /// The row that this one took the place of in its conversation and that still trains.
    previous: Option<u32>,
    kind: Option<DriftKind>,
    /// From here on the row was lost to drift by the branch that held it.
    drift_from: Option<u32>,
    /// Among its own tokens, in order; positions as those of the branch.
    images: Vec<ImageSpan>,
}

/// Tokens of one kind from `start` to the next run, or to the end of the row.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: u32,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Context(Origin),
    /// From `offset` on, sampled here.
    Sampled {
        call: u32,
        offset: u32,
    },
    /// From `offset` on, carried here out of another row.
    Carried {
        call: u32,
        offset: u32,
    },
}

impl Row {
    fn end(&self) -> u32 {
        self.start + self.ids.len() as u32
    }

    fn push(&mut self, ids: &[u32], what: What) {
        if ids.is_empty() {
            return;
        }
        let merges = match (self.runs.last(), what) {
            (Some(Run { what: What::Context(last), .. }), What::Context(origin)) => *last == origin,
            _ => false,
        };
        if !merges {
            self.runs.push(Run { start: self.end(), what });
        }
        grow(&mut self.ids, ids.len());
        self.ids.extend_from_slice(ids);
    }
}

/// Makes room in steps of a quarter: doubling would cost up to 8 bytes a token instead of 5.
fn grow<T>(values: &mut Vec<T>, more: usize) {
    if values.capacity() - values.len() < more {
        values.reserve_exact(more.max(values.len() / 4));
    }
}

impl Ledger {
    /// A ledger with nothing in it.
    pub fn new() -> Self {
        Ledger::default()
    }

    /// Opens a conversation with its first prompt.
    pub fn open(&mut self, prompt: &[Piece<'_>]) -> BranchId {
        let row = self.add_row(None, 0);
        self.branches.push(Branch { row, discarded: false, sampled: 0, turns: 0 });
        let branch = BranchId((self.branches.len() - 1) as u32);
        self.extend(branch, prompt);
        branch
    }

    /// Adds tokens that were not sampled.
    pub fn extend(&mut self, branch: BranchId, pieces: &[Piece<'_>]) {
        let row = self.branch(branch).row as usize;
        for piece in pieces {
            assert!(piece.origin != Origin::Sampled, "sampled tokens come with their call");
            self.rows[row].push(piece.ids, What::Context(piece.origin));
        }
    }

    /// Takes note of a call as soon as its answer has arrived. Until [`Ledger::place`] puts it into a branch its tokens
    /// are dropped, `branch-not-selected`. `logprobs` that do not give one value for each of `call.n_sampled` tokens count
    /// as none. Versions that leave tokens out are filled from their neighbours.
    pub fn record(&mut self, mut call: Call, logprobs: Option<Vec<f32>>) -> CallIndex {
        cover(&mut call.versions, call.n_sampled);
        let logprobs = logprobs.filter(|values| values.len() == call.n_sampled as usize);
        let dropped = reason::BRANCH_NOT_SELECTED;
        self.calls.push(CallEntry { call, logprobs, kept: None, dropped, trainable: true });
        CallIndex((self.calls.len() - 1) as u32)
    }

    /// Takes note of a call of an endpoint that speaks text: `n_sampled` as its usage says, all dropped, `no-token-ids`.
    pub fn record_text(&mut self, call: Call) -> CallIndex {
        let index = self.record(call, None);
        self.calls[index.0 as usize].dropped = reason::NO_TOKEN_IDS;
        index
    }

    /// Puts the answer of a call behind a branch: `kept` are its first tokens, what stands behind them was sampled past
    /// the cut and is dropped, `after-stop`.
    ///
    /// Panics where the call has been put somewhere already or sampled fewer tokens: a token has one place.
    pub fn place(&mut self, branch: BranchId, call: CallIndex, kept: &[u32]) {
        let entry = &mut self.calls[call.0 as usize];
        assert!(entry.kept.is_none(), "call {} has its place already", entry.call.call_id);
        assert!(kept.len() <= entry.call.n_sampled as usize, "more tokens than were sampled");
        entry.kept = Some(kept.len() as u32);
        entry.dropped = reason::AFTER_STOP;
        let state = &mut self.branches[branch.0 as usize];
        state.sampled += u64::from(entry.call.n_sampled);
        state.turns += 1;
        self.rows[state.row as usize].push(kept, What::Sampled { call: call.0, offset: 0 });
    }

    /// A second branch with the same past.
    pub fn fork(&mut self, branch: BranchId) -> BranchId {
        let state = self.branch(branch).clone();
        let (parent, previous, at) = {
            let row = &self.rows[state.row as usize];
            // A row without tokens of its own is skipped, so that forks of forks stay shallow.
            match row.parent {
                Some(parent) if row.ids.is_empty() && row.kind.is_none() => (parent, row.previous, row.start),
                _ => (state.row, row.previous, row.end()),
            }
        };
        let row = self.add_row(Some(parent), at);
        self.rows[row as usize].previous = previous;
        self.branches.push(Branch { row, discarded: false, ..state });
        BranchId((self.branches.len() - 1) as u32)
    }

    /// Gives a branch up. Tokens that another branch holds stay.
    pub fn discard(&mut self, branch: BranchId) {
        self.branches[branch.0 as usize].discarded = true;
    }

    /// Opens a new row for a branch, made of pieces of its past and of new tokens. The row as it stood stays and trains.
    pub fn rewrite(&mut self, branch: BranchId, pieces: &[Kept<'_>], kind: DriftKind) {
        let old = self.branch(branch).row;
        let (shared, rest) = match pieces.split_first() {
            Some((Kept::Range { from: 0, to }, rest)) => (*to, rest),
            _ => (0, pieces),
        };
        let row = self.branch_off(old, shared);
        self.rows[row as usize].previous = Some(old);
        self.rows[row as usize].kind = Some(kind);
        for piece in rest {
            match piece {
                Kept::New(piece) => self.rows[row as usize].push(piece.ids, What::Context(piece.origin)),
                Kept::Range { from, to } => self.carry(old, row, *from, *to),
            }
        }
        self.branches[branch.0 as usize].row = row;
    }

    /// Says whether the tokens of a call may train. They may unless told otherwise.
    pub fn set_trainable(&mut self, call: CallIndex, trainable: bool) {
        self.calls[call.0 as usize].trainable = trainable;
    }

    /// Says why the answer of a call ended, once it is known whether it was cut or calls tools.
    pub fn set_finish(&mut self, call: CallIndex, finish: &str) {
        finish.clone_into(&mut self.calls[call.0 as usize].call.finish);
    }

    /// Tokens of a branch.
    pub fn len(&self, branch: BranchId) -> u32 {
        self.rows[self.branch(branch).row as usize].end()
    }

    /// The last token of a branch.
    pub fn last(&self, branch: BranchId) -> Option<u32> {
        let (mut row, mut end) = (self.branch(branch).row, self.len(branch));
        loop {
            let holder = &self.rows[row as usize];
            if end > holder.start {
                return Some(holder.ids[(end - holder.start) as usize - 1]);
            }
            (row, end) = (holder.parent?, end.min(holder.start));
        }
    }

    /// Whether nothing was recorded or opened yet.
    pub fn is_empty(&self) -> bool {
        self.branches.is_empty() && self.calls.is_empty()
    }

    /// Tokens sampled in a conversation, the past of a fork and what was cut off included.
    pub fn sampled(&self, branch: BranchId) -> u64 {
        self.branch(branch).sampled
    }

    /// Answers in a conversation, the past of a fork included.
    pub fn turns(&self, branch: BranchId) -> u32 {
        self.branch(branch).turns
    }

    /// The ids of a branch with `more` behind them: what is sent. Copies the context; nothing else here does.
    pub fn prompt(&self, branch: BranchId, more: &[u32]) -> Arc<[u32]> {
        let row = self.branch(branch).row;
        let mut ids = Vec::with_capacity(self.rows[row as usize].end() as usize + more.len());
        for (row, end) in self.path(row) {
            let row = &self.rows[row as usize];
            ids.extend_from_slice(&row.ids[..(end - row.start) as usize]);
        }
        ids.extend_from_slice(more);
        ids.into()
    }

    /// The calls in the order in which they were recorded.
    pub fn calls(&self) -> impl ExactSizeIterator<Item = &Call> {
        self.calls.iter().map(|entry| &entry.call)
    }

    /// Bytes on the heap, the calls' own texts left out.
    pub fn heap_bytes(&self) -> usize {
        let rows =
            self.rows.iter().map(|row| row.ids.capacity() * 4 + row.runs.capacity() * size_of::<Run>());
        let calls =
            self.calls.iter().map(|entry| entry.logprobs.as_ref().map_or(0, |values| values.capacity() * 4));
        rows.sum::<usize>()
            + calls.sum::<usize>()
            + self.rows.capacity() * size_of::<Row>()
            + self.calls.capacity() * size_of::<CallEntry>()
            + self.branches.capacity() * size_of::<Branch>()
    }

    fn branch(&self, branch: BranchId) -> &Branch {
        &self.branches[branch.0 as usize]
    }

    fn add_row(&mut self, parent: Option<u32>, start: u32) -> u32 {
        self.rows.push(Row {
            parent,
            start,
            ids: Vec::new(),
            runs: Vec::new(),
            previous: None,
            kind: None,
            drift_from: None,
            images: Vec::new(),
        });
        (self.rows.len() - 1) as u32
    }

    /// A new row that shares the first `at` tokens of `row`'s path.
    fn branch_off(&mut self, row: u32, at: u32) -> u32 {
        assert!(at <= self.rows[row as usize].end(), "a row shares only what there is");
        let mut parent = Some(row);
        while let Some(holder) = parent
            && at <= self.rows[holder as usize].start
        {
            parent = self.rows[holder as usize].parent;
        }
        self.add_row(parent, at)
    }

    /// The rows of a path from the first to the last, each with the position up to which it counts.
    fn path(&self, row: u32) -> Vec<(u32, u32)> {
        self.path_to(row, self.rows[row as usize].end())
    }

    fn path_to(&self, row: u32, end: u32) -> Vec<(u32, u32)> {
        let mut path = vec![(row, end)];
        let mut at = row;
        while let Some(parent) = self.rows[at as usize].parent {
            path.push((parent, self.rows[at as usize].start));
            at = parent;
        }
        path.reverse();
        path
    }

    /// Calls `visit` with each run of `row`'s path inside `[from, to)`: its ids, what they are, and where they stand.
    fn visit_runs(
        &self,
        path: &[(u32, u32)],
        from: u32,
        to: u32,
        mut visit: impl FnMut(u32, u32, &[u32], What),
    ) {
        for &(index, end) in path {
            let row = &self.rows[index as usize];
            let (low, high) = (from.max(row.start), to.min(end));
            if low >= high {
                continue;
            }
            let first = row.runs.partition_point(|run| run.start <= low).saturating_sub(1);
            for (i, run) in row.runs.iter().enumerate().skip(first) {
                let run_end = row.runs.get(i + 1).map_or(row.end(), |next| next.start);
                let (start, stop) = (run.start.max(low), run_end.min(high));
                if start >= stop {
                    break;
                }
                let what = match run.what {
                    What::Context(origin) => What::Context(origin),
                    What::Sampled { call, offset } => {
                        What::Sampled { call, offset: offset + start - run.start }
                    }
                    What::Carried { call, offset } => {
                        What::Carried { call, offset: offset + start - run.start }
                    }
                };
                let ids = &row.ids[(start - row.start) as usize..(stop - row.start) as usize];
                visit(index, start, ids, what);
            }
        }
    }

    fn carry(&mut self, old: u32, new: u32, from: u32, to: u32) {
        assert!(to <= self.rows[old as usize].end(), "a row carries only what there is");
        let mut parts: Vec<(Vec<u32>, What)> = Vec::new();
        self.visit_runs(&self.path(old), from, to, |_, _, ids, what| {
            let what = match what {
                What::Sampled { call, offset } => What::Carried { call, offset },
                other => other,
            };
            parts.push((ids.to_vec(), what));
        });
        let images: Vec<ImageSpan> = self.images_between(old, from, to).cloned().collect();
        let row = &mut self.rows[new as usize];
        let at = row.end();
        for (ids, what) in parts {
            row.push(&ids, what);
        }
        row.images
            .extend(images.into_iter().map(|image| ImageSpan { start: image.start - from + at, ..image }));
    }
}

/// Makes version runs cover `[0, n)` in order: gaps take the label before them, a gap at the front the first label;
/// without any label there is nothing to fill from, and it says `unknown`.
fn cover(versions: &mut Vec<(u32, u32, String, Option<i64>)>, n: u32) {
    let exact = versions.iter().try_fold(0, |at, (offset, len, ..)| (*offset == at).then_some(at + len));
    if exact == Some(n) && versions.iter().all(|(_, len, ..)| *len > 0) {
        return;
    }
    versions.retain(|(offset, len, ..)| *offset < n && *len > 0);
    versions.sort_by_key(|(offset, ..)| *offset);
    if n == 0 {
        return;
    }
    if versions.is_empty() {
        versions.push((0, n, "unknown".into(), None));
        return;
    }
    versions.dedup_by_key(|(offset, ..)| *offset);
    versions[0].0 = 0;
    for i in 0..versions.len() {
        let end = versions.get(i + 1).map_or(n, |next| next.0);
        versions[i].1 = end - versions[i].0;
    }
}

#[cfg(test)]
mod tests;
