//! What of a file exists: its data between its holes, found by `SEEK_DATA` and `SEEK_HOLE`, so that time and space go with the
//! bytes that are there and not with the size that the file says.

use crate::archive::PartReader;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Cursor, Read};

/// Offsets and lengths, in order and apart.
pub(crate) type Pieces = Vec<(u64, u64)>;

/// Most pieces of one file: what readers of sparse entries take.
pub(crate) const PIECES_MAX: usize = 1 << 18;
/// Files with less hole than this are written as they read: an entry that tells of holes is itself some blocks.
const HOLES_MIN: u64 = 16 << 10;
/// The first length of holes that are filled where there are too many pieces; doubled while there still are.
const FILL_MIN: u64 = 8 << 10;
/// How many times the bytes that exist may be written so.
const FILL_FACTOR: u64 = 16;

/// The pieces of a file, and where its holes are too many for `pieces_max`, the shortest filled. `None`: even then too many.
pub(crate) fn pieces(file: &File, size: u64, pieces_max: usize) -> io::Result<Option<Pieces>> {
    let (mut pieces, mut fill, mut exists, mut at) = (Pieces::new(), FILL_MIN, 0_u64, 0);
    while at < size {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            // Nothing but a hole up to the end.
            Err(Errno::NXIO) => break,
            // The file system knows no holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(error) => return Err(error.into()),
        };
        let end = match rustix::fs::seek(file, SeekFrom::Hole(start)) {
            Ok(end) if end > start => end.min(size),
            _ => size,
        };
        if start >= size {
            break;
        }
        pieces.push((start, end - start));
        exists += end - start;
        at = end;
        while pieces.len() > pieces_max.saturating_mul(2) {
            fill_holes(&mut pieces, fill);
            fill = fill.saturating_mul(2);
        }
    }
    while pieces.len() > pieces_max {
        fill_holes(&mut pieces, fill);
        fill = fill.saturating_mul(2);
    }
    let written: u64 = pieces.iter().map(|(_, length)| length).sum();
    Ok((written <= exists.saturating_mul(FILL_FACTOR)).then_some(pieces))
}

/// Joins pieces with holes of up to this length between them.
fn fill_holes(pieces: &mut Pieces, longest: u64) {
    let mut joined = Pieces::with_capacity(pieces.len());
    for (offset, length) in pieces.drain(..) {
        match joined.last_mut() {
            Some((before, own)) if offset - (*before + *own) <= longest => *own = offset + length - *before,
            _ => joined.push((offset, length)),
        }
    }
    *pieces = joined;
}

/// Whether a file of this size with these pieces is worth an entry that tells of its holes.
pub(crate) fn is_sparse(pieces: &[(u64, u64)], size: u64) -> bool {
    size - pieces.iter().map(|(_, length)| length).sum::<u64>() >= HOLES_MIN
}

/// The data of a GNU sparse entry, version 1.0: the map in decimal lines, filled up to a block, then the pieces. With its length.
pub(crate) fn data<'a>(file: &'a File, pieces: &'a [(u64, u64)], size: u64) -> (impl Read + 'a, u64) {
    // A file that ends with a hole ends with an empty piece, as GNU tar writes it.
    let end = pieces.last().is_none_or(|(offset, length)| offset + length < size).then_some((size, 0));
    let all = || pieces.iter().copied().chain(end);
    let mut map = format!("{}\n", all().count());
    for (offset, length) in all() {
        map.push_str(&format!("{offset}\n{length}\n"));
    }
    let mut map = map.into_bytes();
    map.resize(map.len().next_multiple_of(512), 0);
    let length = map.len() as u64 + pieces.iter().map(|(_, length)| length).sum::<u64>();
    let mut left = pieces.iter();
    let next = move || left.next().map(|(offset, length)| PartReader::new(file, *offset, *length));
    (Cursor::new(map).chain(Row { next, now: None }), length)
}

/// Readers one after another.
struct Row<N, R> {
    next: N,
    now: Option<R>,
}

impl<R: Read, N: FnMut() -> Option<R>> Read for Row<N, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.now.is_none() {
                self.now = (self.next)();
            }
            let Some(now) = &mut self.now else { return Ok(0) };
            match now.read(buffer)? {
                0 if !buffer.is_empty() => self.now = None,
                count => return Ok(count),
            }
        }
    }
}

/// Copies what exists of a file into an empty one of the same size.
pub(crate) fn copy(from: &File, to: &File) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    let size = from.metadata()?.len();
    to.set_len(size)?;
    let mut buffer = vec![0; 128 << 10];
    // With no bound on their number no hole is filled.
    for (mut at, mut left) in pieces(from, size, usize::MAX)?.unwrap_or_default() {
        while left > 0 {
            let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let count = from.read_at(&mut buffer[..most], at)?;
            if count == 0 {
                break;
            }
            to.write_all_at(&buffer[..count], at)?;
            at += count as u64;
            left -= count as u64;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn too_many_pieces_are_joined_over_the_shortest_holes() {
        let block = 64 << 10;
        let file = tempfile::tempfile().unwrap();
        // Twelve pairs of blocks with one block between the two, and sixteen to the next pair.
        for pair in 0..12_u64 {
            for number in [0, 2] {
                file.write_all_at(&vec![1; block as usize], (pair * 19 + number) * block).unwrap();
            }
        }
        let size = 1 << 40;
        file.set_len(size).unwrap();
        let count = |most| pieces(&file, size, most).unwrap().map(|pieces| pieces.len());
        assert_eq!(count(100), Some(24));
        assert_eq!(count(12), Some(12));
        assert_eq!(count(1), Some(1));
        let far = tempfile::tempfile().unwrap();
        for number in 0..4_u64 {
            far.write_all_at(b"x", number << 36).unwrap();
        }
        assert_eq!(pieces(&far, 4 << 36, 4).unwrap().unwrap().len(), 4);
        assert_eq!(pieces(&far, 4 << 36, 3).unwrap(), None, "far more zeros than bytes");
    }
}
