//! Bytes from one offset on, in memory or a file. Linear until capped; then the first half stays and the second half is a
//! ring of the newest.

use bytes::Bytes;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

#[derive(Debug)]
enum Store {
    Memory(Vec<u8>),
    File { file: File, size: u64 },
}

/// See the module.
#[derive(Debug)]
pub(super) struct Segment {
    /// Offset in the output of its first byte.
    pub(super) base: u64,
    store: Store,
    capped: bool,
}

impl Segment {
    pub(super) fn in_memory(base: u64) -> Segment {
        Segment { base, store: Store::Memory(Vec::new()), capped: false }
    }

    pub(super) fn is_memory(&self) -> bool {
        matches!(self.store, Store::Memory(_))
    }

    pub(super) fn capped(&self) -> bool {
        self.capped
    }

    /// Bytes charged for it.
    pub(super) fn size(&self) -> u64 {
        match &self.store {
            Store::Memory(bytes) => bytes.len() as u64,
            Store::File { size, .. } => *size,
        }
    }

    /// Makes it at least this large; returns by how much it grew.
    pub(super) fn grow_to(&mut self, wanted: u64) -> u64 {
        let before = self.size();
        let wanted = wanted.max(before);
        match &mut self.store {
            Store::Memory(bytes) => {
                let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
                if wanted > bytes.capacity() {
                    // Small outputs stay small; the cap is never passed.
                    bytes.reserve_exact(wanted.next_power_of_two().max(256) - bytes.len());
                }
                bytes.resize(wanted, 0);
            }
            Store::File { size, .. } => *size = wanted,
        }
        wanted - before
    }

    /// From here on it does not grow, but wraps.
    pub(super) fn cap(&mut self) {
        self.capped = true;
    }

    /// From memory to a file; returns the bytes of memory that this freed.
    pub(super) fn move_to(&mut self, file: File) -> io::Result<u64> {
        let Store::Memory(bytes) = &self.store else { return Ok(0) };
        file.write_all_at(bytes, 0)?;
        let size = bytes.len() as u64;
        self.store = Store::File { file, size };
        Ok(size)
    }

    /// First byte of the ring, and its length.
    fn ring(&self) -> (u64, u64) {
        let head = self.size() / 2;
        (head, self.size() - head)
    }

    /// Where the byte at `offset` stands, and how many follow it there in order.
    fn place(&self, offset: u64) -> (u64, u64) {
        let (head, ring) = self.ring();
        if !self.capped || offset < head {
            let until = if self.capped { head } else { self.size() };
            return (offset, until.saturating_sub(offset));
        }
        let turn = (offset - head) % ring;
        (head + turn, ring - turn)
    }

    /// Writes as much as stands in one place.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        let (place, room) = self.place(offset);
        let length = usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len());
        match &mut self.store {
            Store::Memory(store) => {
                let place = usize::try_from(place).unwrap_or(usize::MAX);
                store[place..place + length].copy_from_slice(&bytes[..length]);
            }
            Store::File { file, .. } => file.write_all_at(&bytes[..length], place)?,
        }
        Ok(length)
    }

    /// Bytes at `offset` where `end` were written; else the first offset after it that is kept. `None`: nothing is left.
    pub(super) fn read(&self, offset: u64, end: u64, bytes_max: usize) -> Option<Result<Bytes, u64>> {
        if self.size() == 0 {
            return None;
        }
        let (head, ring) = self.ring();
        let oldest = if self.capped { end.saturating_sub(ring).max(head) } else { 0 };
        if offset >= head && offset < oldest {
            return Some(Err(oldest));
        }
        let (place, run) = self.place(offset);
        let length = run.min(end - offset).min(bytes_max as u64);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        match &self.store {
            Store::Memory(bytes) => {
                let place = usize::try_from(place).unwrap_or(usize::MAX);
                Some(Ok(Bytes::copy_from_slice(&bytes[place..place + length])))
            }
            Store::File { file, .. } => {
                let mut bytes = vec![0; length];
                match file.read_exact_at(&mut bytes, place) {
                    Ok(()) => Some(Ok(bytes.into())),
                    Err(_) => None,
                }
            }
        }
    }
}
