//! A list of entries in a file without a name.

use super::walk::Entry;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Bytes of an entry beside its path.
const FIXED: usize = 4 + 3 * 4 + 6 * 8;
/// Bytes read at once.
const AHEAD: usize = 64 << 10;

/// A finished list.
#[derive(Clone, Debug)]
pub(super) struct List {
    file: Arc<File>,
    pub(super) entries: u64,
}

/// A list that grows.
pub(super) struct Writer {
    file: BufWriter<File>,
    entries: u64,
}

impl Writer {
    pub(super) fn new(file: File) -> Writer {
        Writer { file: BufWriter::with_capacity(AHEAD, file), entries: 0 }
    }

    pub(super) fn put(&mut self, entry: &Entry) -> io::Result<()> {
        self.entries += 1;
        let length = u32::try_from(entry.path.len()).map_err(io::Error::other)?;
        for word in [length, entry.kind, entry.user, entry.group] {
            self.file.write_all(&word.to_ne_bytes())?;
        }
        let (modified, changed) = (entry.modified, entry.changed);
        let times = [modified.0.cast_unsigned(), modified.1, changed.0.cast_unsigned(), changed.1];
        for word in [entry.size, entry.inode].into_iter().chain(times) {
            self.file.write_all(&word.to_ne_bytes())?;
        }
        self.file.write_all(&entry.path)
    }

    pub(super) fn finish(self) -> io::Result<List> {
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        Ok(List { file: Arc::new(file), entries: self.entries })
    }
}

/// Reads a list from its start.
pub(super) struct Reader {
    file: Arc<File>,
    left: u64,
    at: u64,
    ahead: Vec<u8>,
    used: usize,
}

impl List {
    pub(super) fn read(&self) -> Reader {
        Reader { file: Arc::clone(&self.file), left: self.entries, at: 0, ahead: Vec::new(), used: 0 }
    }
}

impl Reader {
    pub(super) fn next(&mut self) -> io::Result<Option<Entry>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let fixed: [u8; FIXED] = self.take(FIXED)?.try_into().map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let word = |at: usize| u32::from_ne_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
        let long = |number: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&fixed[16 + number * 8..24 + number * 8]);
            u64::from_ne_bytes(bytes)
        };
        let path = self.take(usize::try_from(word(0)).map_err(io::Error::other)?)?;
        Ok(Some(Entry {
            path,
            kind: word(4),
            user: word(8),
            group: word(12),
            size: long(0),
            inode: long(1),
            modified: (long(2).cast_signed(), long(3)),
            changed: (long(4).cast_signed(), long(5)),
        }))
    }

    fn take(&mut self, count: usize) -> io::Result<Vec<u8>> {
        while self.ahead.len() - self.used < count {
            self.ahead.drain(..self.used);
            self.used = 0;
            let filled = self.ahead.len();
            self.ahead.resize(filled + AHEAD, 0);
            let read = self.file.read_at(&mut self.ahead[filled..], self.at)?;
            self.ahead.truncate(filled + read);
            self.at += read as u64;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let bytes = self.ahead[self.used..self.used + count].to_vec();
        self.used += count;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spill::Spill;

    #[test]
    fn what_was_put_in_comes_out() {
        let entry = |number: u64| Entry {
            path: format!("/{number}").repeat(1 + number as usize % 50).into_bytes(),
            kind: number as u32,
            user: 1,
            group: 2,
            size: number,
            inode: u64::MAX - number,
            modified: (-5, number),
            changed: (i64::MAX, 9),
        };
        let mut writer = Writer::new(Spill::Memory.file().unwrap());
        for number in 0..5000 {
            writer.put(&entry(number)).unwrap();
        }
        let list = writer.finish().unwrap();
        let mut reader = list.read();
        for number in 0..5000 {
            assert_eq!(reader.next().unwrap(), Some(entry(number)));
        }
        assert_eq!(reader.next().unwrap(), None);
    }
}
