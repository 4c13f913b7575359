//! One output of one command: what was printed, within bounds. The beginning and the end are kept; between them, bytes fall
//! out when the bound is passed, and readers are told which.
//!
//! First in memory, then in a file that has no name. Memory and spill of all outputs are charged to one [`Budget`].

mod segment;

use crate::spill::Spill;
use bytes::Bytes;
use segment::Segment;

/// Bytes of one output in memory before it goes to the spill, and all that is kept where there is no spill.
pub const MEMORY_EACH: u64 = 32 << 10;

/// What all outputs together may use.
#[derive(Debug)]
pub struct Budget {
    /// Bytes in memory now.
    pub memory: u64,
    /// Most bytes in memory; an output then goes to the spill earlier.
    pub memory_max: u64,
    /// Bytes in files now.
    pub spill: u64,
    /// Most bytes in files.
    pub spill_max: u64,
}

/// What stands at an offset.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// These bytes.
    Bytes(Bytes),
    /// Nothing is left of the bytes up to this offset.
    LostUntil(u64),
    /// Nothing was printed yet.
    Nothing,
}

/// One output.
#[derive(Debug)]
pub struct Output {
    /// Bytes printed.
    total: u64,
    keep: u64,
    /// The second one begins where the disk was full: it stays in memory.
    segments: Vec<Segment>,
    disk_full: bool,
}

impl Output {
    /// Nothing yet; at most `keep` bytes will be kept, and never less than fit in memory.
    pub fn new(keep: u64) -> Output {
        Output {
            total: 0,
            keep: keep.max(MEMORY_EACH),
            segments: vec![Segment::in_memory(0)],
            disk_full: false,
        }
    }

    /// Bytes printed so far.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Whether bytes were lost because the disk was full.
    pub fn disk_full(&self) -> bool {
        self.disk_full
    }

    /// Takes what was printed.
    pub fn append(&mut self, mut bytes: &[u8], budget: &mut Budget, spill: &Spill) {
        while !bytes.is_empty() {
            let relative = self.total - self.last().base;
            self.make_room(relative, bytes.len() as u64, budget, spill);
            match self.last().write(relative, bytes) {
                Ok(written) => {
                    self.total += written as u64;
                    bytes = &bytes[written..];
                }
                Err(error) => {
                    self.disk_full |= is_full(&error);
                    self.segments.truncate(1);
                    self.segments.push(Segment::in_memory(self.total));
                }
            }
        }
    }

    /// Grows the last segment for bytes at its end, moves it to the spill, or lets it wrap.
    fn make_room(&mut self, relative: u64, length: u64, budget: &mut Budget, spill: &Spill) {
        let keep = self.keep;
        let alone = self.segments.len() == 1;
        let last = self.last();
        if last.capped() {
            return;
        }
        let wanted = relative + length;
        if last.is_memory() {
            let crowded = budget.memory + length > budget.memory_max && relative > 0;
            if wanted <= MEMORY_EACH && !crowded {
                budget.memory += last.grow_to(wanted);
                return;
            }
            let file = if alone { spill.file() } else { None };
            match file.map(|file| last.move_to(file)) {
                Some(Ok(freed)) => {
                    budget.memory -= freed;
                    budget.spill += last.size();
                }
                nowhere => {
                    let cap = MEMORY_EACH;
                    budget.memory += last.grow_to(cap);
                    last.cap();
                    self.disk_full |= nowhere.is_some_and(|moved| moved.is_err_and(|error| is_full(&error)));
                    return;
                }
            }
        }
        let room = budget.spill_max.saturating_sub(budget.spill) + last.size();
        let size = wanted.min(keep).min(room).max(last.size()).max(2);
        budget.spill += last.grow_to(size);
        if size < wanted {
            last.cap();
        }
    }

    fn last(&mut self) -> &mut Segment {
        let last = self.segments.len() - 1;
        &mut self.segments[last]
    }

    /// What stands at `from`, at most `bytes_max` of it.
    pub fn read(&self, from: u64, bytes_max: usize) -> Piece {
        if from >= self.total {
            return Piece::Nothing;
        }
        if from < self.segments[0].base {
            return Piece::LostUntil(self.segments[0].base);
        }
        let number = self.segments.iter().rposition(|segment| segment.base <= from).unwrap_or(0);
        let segment = &self.segments[number];
        let end = self.segments.get(number + 1).map_or(self.total, |next| next.base);
        match segment.read(from - segment.base, end - segment.base, bytes_max) {
            Some(Ok(bytes)) => Piece::Bytes(bytes),
            Some(Err(next)) => Piece::LostUntil((segment.base + next).min(end)),
            None => Piece::LostUntil(end),
        }
    }

    /// The first `head` and the last `tail` bytes, each once, as far as they are kept.
    pub fn excerpt(&self, head: u64, tail: u64) -> (Vec<u8>, u64, Vec<u8>) {
        let head_bytes = self.collect(0, head.min(self.total));
        let tail_from = self.total.saturating_sub(tail).max(head_bytes.len() as u64);
        let mut tail_bytes = self.collect_back(tail_from);
        if head_bytes.len() as u64 + tail_bytes.len() as u64 == self.total {
            let mut whole = head_bytes;
            whole.append(&mut tail_bytes);
            return (whole, 0, Vec::new());
        }
        let omitted = self.total - head_bytes.len() as u64 - tail_bytes.len() as u64;
        (head_bytes, omitted, tail_bytes)
    }

    /// Kept bytes from..to, up to the first that is lost.
    fn collect(&self, mut from: u64, to: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while from < to {
            let Piece::Bytes(piece) = self.read(from, usize::try_from(to - from).unwrap_or(usize::MAX))
            else {
                break;
            };
            from += piece.len() as u64;
            bytes.extend_from_slice(&piece);
        }
        bytes
    }

    /// Kept bytes from the last lost one at or after `from` up to the end.
    fn collect_back(&self, mut from: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while from < self.total {
            match self.read(from, usize::try_from(self.total - from).unwrap_or(usize::MAX)) {
                Piece::Bytes(piece) => {
                    from += piece.len() as u64;
                    bytes.extend_from_slice(&piece);
                }
                Piece::LostUntil(next) => {
                    bytes.clear();
                    from = next;
                }
                Piece::Nothing => break,
            }
        }
        bytes
    }

    /// Gives up what is kept; all of it is lost to readers.
    pub fn discard(&mut self, budget: &mut Budget) {
        for segment in self.segments.drain(..) {
            if segment.is_memory() {
                budget.memory -= segment.size();
            } else {
                budget.spill -= segment.size();
            }
        }
        self.segments.push(Segment::in_memory(self.total));
    }
}

/// Whether a device or a quota is full.
fn is_full(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::NOSPC, Errno::DQUOT].iter().any(|full| error.raw_os_error() == Some(full.raw_os_error()))
}

#[cfg(test)]
mod tests;
