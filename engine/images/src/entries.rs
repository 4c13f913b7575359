//! Reads a layer's tar entry by entry: ustar, GNU and pax, sparse files too. Believes no length, and keeps nothing large in
//! memory. What an entry may do to a folder is decided in `unpack`.

use crate::fault::Fault;
use crate::sparse::{PIECES_MAX, Pieces};
use std::io::Read;

const BLOCK: usize = 512;
/// Most bytes of one extended header or long name.
const EXTENDED_MAX: u64 = 1 << 20;

/// One member of the archive.
#[derive(Debug)]
pub(crate) struct Entry {
    /// As written.
    pub(crate) path: Vec<u8>,
    pub(crate) kind: Kind,
    /// Permission bits, setuid, setgid and sticky.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: Mtime,
    /// Name and value.
    pub(crate) xattrs: Xattrs,
    /// Bytes of a file, holes included.
    pub(crate) size: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    HardLink(Vec<u8>),
    Symlink(Vec<u8>),
    Folder,
    /// Major and minor number.
    Character(u32, u32),
    Block(u32, u32),
    Fifo,
}

/// Since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mtime {
    pub(crate) seconds: i64,
    pub(crate) nanos: u32,
}

/// Names and values of extended attributes.
pub(crate) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// The archive.
pub(crate) struct Entries<R> {
    inner: R,
    /// Bytes of the present entry's data not read yet.
    data_left: u64,
    /// Bytes to the next block after the data.
    padding: u64,
    /// Offsets and lengths of what the present entry's data is; `None` where it is all of it.
    pieces: Option<Pieces>,
    /// Values of `g` headers, for all entries that follow.
    global: Pax,
}

/// What `x`, `g`, `L` and `K` headers say of the next entry.
#[derive(Clone, Debug, Default)]
struct Pax {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<Mtime>,
    xattrs: Xattrs,
    sparse: Sparse,
}

/// The three forms in which pax archives write sparse files.
#[derive(Clone, Debug, Default)]
struct Sparse {
    version: Option<(u64, u64)>,
    name: Option<Vec<u8>>,
    size: Option<u64>,
    /// Numbers in turn: offset, length.
    numbers: Vec<u64>,
    major: Option<u64>,
}

impl<R: Read> Entries<R> {
    pub(crate) fn new(inner: R) -> Entries<R> {
        Entries { inner, data_left: 0, padding: 0, pieces: None, global: Pax::default() }
    }

    /// What lies behind the archive's end.
    pub(crate) fn into_inner(self) -> R {
        self.inner
    }

    /// The next member; what is left of the one before is skipped.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>, Fault> {
        self.skip(self.data_left + self.padding)?;
        (self.data_left, self.padding, self.pieces) = (0, 0, None);
        let mut said = self.global.clone();
        loop {
            let Some(header) = self.header()? else { return Ok(None) };
            let size = number(header.entry_size(), "size")?;
            match header.as_bytes()[156] {
                b'x' => {
                    let bytes = self.extended(size)?;
                    said.read(&bytes)?;
                }
                b'g' => {
                    let bytes = self.extended(size)?;
                    self.global.read(&bytes)?;
                    said.read(&bytes)?;
                }
                b'L' => said.path = Some(up_to_zero(self.extended(size)?)),
                b'K' => said.link = Some(up_to_zero(self.extended(size)?)),
                flag => return self.entry(&header, flag, size, said).map(Some),
            }
        }
    }

    /// Hands over the data of the present entry, each piece with its offset in the file.
    pub(crate) fn data(
        &mut self,
        mut each: impl FnMut(u64, &[u8]) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut buffer = vec![0; 128 << 10];
        let pieces = self.pieces.take().unwrap_or_else(|| vec![(0, self.data_left)]);
        for (mut offset, mut left) in pieces {
            while left > 0 {
                let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                let count = self.inner.read(&mut buffer[..most]).map_err(Fault::Read)?;
                if count == 0 {
                    return Err(Fault::bad("it ends within a file"));
                }
                each(offset, &buffer[..count])?;
                offset += count as u64;
                left -= count as u64;
                self.data_left -= count as u64;
            }
        }
        Ok(())
    }

    fn entry(&mut self, header: &tar::Header, flag: u8, size: u64, said: Pax) -> Result<Entry, Fault> {
        let mut path = match (&said.sparse.name, &said.path) {
            (Some(name), _) | (None, Some(name)) => name.clone(),
            (None, None) => header.path_bytes().into_owned(),
        };
        let link = || {
            let named = said.link.clone().or_else(|| header.link_name_bytes().map(|name| name.into_owned()));
            named.filter(|name| !name.is_empty()).ok_or_else(|| Fault::bad("a link without a target"))
        };
        let device = || -> Result<(u32, u32), Fault> {
            let part = |part: std::io::Result<Option<u32>>| Ok(number(part, "device")?.unwrap_or(0));
            Ok((part(header.device_major())?, part(header.device_minor())?))
        };
        let kind = match flag {
            0 | b'0' if path.ends_with(b"/") => Kind::Folder,
            0 | b'0' | b'7' | b'S' => Kind::File,
            b'1' => Kind::HardLink(link()?),
            b'2' => Kind::Symlink(link()?),
            b'3' => device().map(|(major, minor)| Kind::Character(major, minor))?,
            b'4' => device().map(|(major, minor)| Kind::Block(major, minor))?,
            b'5' => Kind::Folder,
            b'6' => Kind::Fifo,
            other => {
                let other = char::from(other).escape_default().to_string();
                return Err(Fault::bad(format!("an entry of the unknown kind '{other}'")));
            }
        };
        // Only files have data, whatever the others say; one whose name ends like a folder's is an old form of that.
        let stored = if matches!(flag, 0 | b'0' | b'7' | b'S') { said.size.unwrap_or(size) } else { 0 };
        self.data_left = stored;
        self.padding = (BLOCK as u64 - stored % BLOCK as u64) % BLOCK as u64;
        let mut size = stored;
        if kind == Kind::File {
            if flag == b'S' {
                size = self.old_sparse(header)?;
            } else if let Some((real, pieces)) = self.pax_sparse(&said.sparse)? {
                size = real;
                self.pieces = Some(pieces);
            }
        }
        self.check_pieces(size)?;
        while path.len() > 1 && path.ends_with(b"/") {
            path.pop();
        }
        let id = |said: Option<u64>, own: std::io::Result<u64>, what| -> Result<u32, Fault> {
            let id = said.map_or_else(|| number(own, what), Ok)?;
            let most = u64::from(u32::MAX);
            if id < most { Ok(id as u32) } else { Err(Fault::bad(format!("{what} {id} is too large"))) }
        };
        let own_mtime = || -> Result<Mtime, Fault> {
            Ok(Mtime { seconds: number(header.mtime(), "mtime")? as i64, nanos: 0 })
        };
        Ok(Entry {
            uid: id(said.uid, header.uid(), "uid")?,
            gid: id(said.gid, header.gid(), "gid")?,
            mode: number(header.mode(), "mode")? & 0o7777,
            mtime: said.mtime.map_or_else(own_mtime, Ok)?,
            xattrs: said.xattrs,
            path,
            kind,
            size,
        })
    }

    fn header(&mut self) -> Result<Option<tar::Header>, Fault> {
        let mut header = tar::Header::new_old();
        let Some(()) = self.block(header.as_mut_bytes())? else { return Ok(None) };
        let bytes = header.as_bytes();
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let others = || bytes[..148].iter().chain(&bytes[156..]);
        let unsigned = others().map(|byte| u32::from(*byte)).sum::<u32>() + 8 * 32;
        let signed = others().map(|byte| i32::from(*byte as i8)).sum::<i32>() + 8 * 32;
        let said = number(header.cksum(), "checksum")?;
        if said != unsigned && i64::from(said) != i64::from(signed) {
            return Err(Fault::bad("wrong checksum of a header"));
        }
        Ok(Some(header))
    }

    /// `None` at the end.
    fn block(&mut self, block: &mut [u8; BLOCK]) -> Result<Option<()>, Fault> {
        let mut filled = 0;
        while filled < BLOCK {
            match self.inner.read(&mut block[filled..]).map_err(Fault::Read)? {
                0 if filled == 0 => return Ok(None),
                0 => return Err(Fault::bad("it ends within a header")),
                count => filled += count,
            }
        }
        Ok(Some(()))
    }

    fn extended(&mut self, size: u64) -> Result<Vec<u8>, Fault> {
        if size > EXTENDED_MAX {
            return Err(Fault::bad(format!("an extended header of {size} bytes, at most {EXTENDED_MAX}")));
        }
        let mut bytes = vec![0; (size as usize).next_multiple_of(BLOCK)];
        self.inner.read_exact(&mut bytes).map_err(Fault::Read)?;
        bytes.truncate(size as usize);
        Ok(bytes)
    }

    fn skip(&mut self, bytes: u64) -> Result<(), Fault> {
        let copied =
            std::io::copy(&mut (&mut self.inner).take(bytes), &mut std::io::sink()).map_err(Fault::Read)?;
        if copied == bytes { Ok(()) } else { Err(Fault::bad("it ends within a file")) }
    }

    /// GNU's own form: four pieces in the header, more in blocks behind it.
    fn old_sparse(&mut self, header: &tar::Header) -> Result<u64, Fault> {
        let gnu = header.as_gnu().ok_or_else(|| Fault::bad("a sparse file in a header that is not GNU's"))?;
        let mut pieces = Vec::new();
        let mut add = |part: &tar::GnuSparseHeader| -> Result<(), Fault> {
            if !part.is_empty() {
                pieces
                    .push((number(part.offset(), "sparse offset")?, number(part.length(), "sparse length")?));
            }
            if pieces.len() > PIECES_MAX {
                Err(Fault::bad("a sparse file of too many pieces"))
            } else {
                Ok(())
            }
        };
        for part in &gnu.sparse {
            add(part)?;
        }
        let mut more = gnu.is_extended();
        while more {
            let mut block = tar::GnuExtSparseHeader::new();
            self.block(block.as_mut_bytes())?.ok_or_else(|| Fault::bad("it ends within a header"))?;
            for part in block.sparse() {
                add(part)?;
            }
            more = block.is_extended();
        }
        self.pieces = Some(pieces);
        number(gnu.real_size(), "size of a sparse file")
    }

    fn pax_sparse(&mut self, said: &Sparse) -> Result<Option<(u64, Pieces)>, Fault> {
        let numbers = match (said.version, said.numbers.is_empty()) {
            (Some((1, 0)), _) => self.sparse_map()?,
            (Some((0, _)), _) | (None, false) => said.numbers.clone(),
            (None, true) => return Ok(None),
            (Some((major, minor)), _) => {
                return Err(Fault::bad(format!("a sparse file of the unknown version {major}.{minor}")));
            }
        };
        let size = said.size.ok_or_else(|| Fault::bad("a sparse file without a size"))?;
        if numbers.len() % 2 != 0 {
            return Err(Fault::bad("a sparse file with half a piece"));
        }
        Ok(Some((size, numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())))
    }

    /// Version 1.0: decimal numbers, a line each, at the begin of the data and filled up to a block.
    fn sparse_map(&mut self) -> Result<Vec<u64>, Fault> {
        let mut numbers = Vec::new();
        let (mut wanted, mut digits, mut value) = (None, 0, 0_u64);
        while wanted.is_none_or(|wanted| numbers.len() < wanted) {
            let mut block = [0; BLOCK];
            if self.data_left < BLOCK as u64 || self.block(&mut block)?.is_none() {
                return Err(Fault::bad("it ends within the map of a sparse file"));
            }
            self.data_left -= BLOCK as u64;
            for byte in block {
                match byte {
                    b'0'..=b'9' if digits < 18 => {
                        (digits, value) = (digits + 1, value * 10 + u64::from(byte - b'0'));
                    }
                    b'\n' if digits > 0 => {
                        match wanted {
                            None if value as usize > PIECES_MAX => {
                                return Err(Fault::bad("a sparse file of too many pieces"));
                            }
                            None => wanted = Some(value as usize * 2),
                            Some(_) => numbers.push(value),
                        }
                        (digits, value) = (0, 0);
                    }
                    _ => return Err(Fault::bad("the map of a sparse file is not a list of numbers")),
                }
                if wanted.is_some_and(|wanted| numbers.len() == wanted) {
                    break;
                }
            }
        }
        Ok(numbers)
    }

    /// Pieces lie in order, within the file, and are all of the data.
    fn check_pieces(&self, size: u64) -> Result<(), Fault> {
        let Some(pieces) = &self.pieces else { return Ok(()) };
        let (mut end, mut stored) = (0_u64, 0_u64);
        for (offset, length) in pieces {
            if *offset < end {
                return Err(Fault::bad("the pieces of a sparse file overlap"));
            }
            let sums = (offset.checked_add(*length), stored.checked_add(*length));
            let (Some(to), Some(sum)) = sums else {
                return Err(Fault::bad("a sparse file too large to exist"));
            };
            (end, stored) = (to, sum);
        }
        if end > size || stored != self.data_left {
            return Err(Fault::bad("the pieces of a sparse file do not fit its size"));
        }
        Ok(())
    }
}

impl Pax {
    /// Records `LENGTH KEY=VALUE\n`; values may hold any byte.
    fn read(&mut self, mut bytes: &[u8]) -> Result<(), Fault> {
        while !bytes.is_empty() {
            let refused = || Fault::bad("an extended header that is not a list of records");
            let space = bytes.iter().take(20).position(|byte| *byte == b' ').ok_or_else(refused)?;
            let length = decimal(&bytes[..space]).ok_or_else(refused)? as usize;
            let record = bytes.get(space + 1..length).ok_or_else(refused)?;
            let record = record.strip_suffix(b"\n").ok_or_else(refused)?;
            let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(refused)?;
            self.record(&record[..equals], &record[equals + 1..])?;
            bytes = &bytes[length..];
        }
        if let (Some(major), None) = (self.sparse.major, self.sparse.version) {
            self.sparse.version = Some((major, 0));
        }
        Ok(())
    }

    fn record(&mut self, key: &[u8], value: &[u8]) -> Result<(), Fault> {
        let text = String::from_utf8_lossy(key).into_owned();
        let decimal = || {
            let shown = String::from_utf8_lossy(value);
            decimal(value).ok_or_else(|| Fault::bad(format!("{text} {shown:?} in an extended header")))
        };
        // An empty value takes an earlier one back.
        let full = (!value.is_empty()).then(|| value.to_vec());
        match text.as_str() {
            "path" => self.path = full,
            "linkpath" => self.link = full,
            "size" => self.size = Some(decimal()?),
            "uid" => self.uid = Some(decimal()?),
            "gid" => self.gid = Some(decimal()?),
            "mtime" => {
                let shown = String::from_utf8_lossy(value);
                let mtime = Mtime::parse(value);
                self.mtime =
                    Some(mtime.ok_or_else(|| Fault::bad(format!("mtime {shown:?} in an extended header")))?);
            }
            "GNU.sparse.major" => self.sparse.major = Some(decimal()?),
            "GNU.sparse.minor" => self.sparse.version = Some((self.sparse.major.unwrap_or(0), decimal()?)),
            "GNU.sparse.name" => self.sparse.name = full,
            "GNU.sparse.realsize" | "GNU.sparse.size" => self.sparse.size = Some(decimal()?),
            "GNU.sparse.offset" | "GNU.sparse.numbytes" => self.sparse.numbers.push(decimal()?),
            "GNU.sparse.map" => {
                let numbers = value.split(|byte| *byte == b',').map(self::decimal);
                let numbers = numbers.collect::<Option<Vec<u64>>>();
                self.sparse.numbers =
                    numbers.ok_or_else(|| Fault::bad("the map of a sparse file is not a list"))?;
            }
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    self.xattrs.retain(|(other, _)| other != name);
                    self.xattrs.push((name.to_vec(), value.to_vec()));
                }
            }
        }
        if self.sparse.numbers.len() > 2 * PIECES_MAX {
            return Err(Fault::bad("a sparse file of too many pieces"));
        }
        Ok(())
    }
}

impl Mtime {
    /// `-?SECONDS[.FRACTION]`.
    fn parse(text: &[u8]) -> Option<Mtime> {
        let (negative, text) = match text.strip_prefix(b"-") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let mut parts = text.splitn(2, |byte| *byte == b'.');
        let seconds = i64::try_from(decimal(parts.next()?)?).ok()?;
        let fraction = parts.next().unwrap_or_default();
        let mut nanos = 0;
        for place in 0..9 {
            let digit = fraction.get(place).copied().unwrap_or(b'0');
            nanos = nanos * 10 + u32::from(digit.checked_sub(b'0').filter(|digit| *digit < 10)?);
        }
        Some(match (negative, nanos) {
            (false, nanos) => Mtime { seconds, nanos },
            (true, 0) => Mtime { seconds: -seconds, nanos },
            (true, nanos) => Mtime { seconds: -seconds - 1, nanos: 1_000_000_000 - nanos },
        })
    }
}

fn decimal(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|c| c.is_ascii_digit()))?.parse().ok()
}

fn number<T>(field: std::io::Result<T>, what: &str) -> Result<T, Fault> {
    field.map_err(|_| Fault::bad(format!("the {what} in a header is not a number")))
}

fn up_to_zero(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    bytes.truncate(end);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_extended_headers_may_hold_any_byte() {
        let mut pax = Pax::default();
        pax.read(b"30 SCHILY.xattr.user.x=a\n=\0b \n12 path=a b\n20 mtime=-1.2500000\n").unwrap();
        assert_eq!(pax.xattrs, [(b"user.x".to_vec(), b"a\n=\0b ".to_vec())]);
        assert_eq!(pax.path.unwrap(), b"a b");
        assert_eq!(pax.mtime.unwrap(), Mtime { seconds: -2, nanos: 750_000_000 });
        for bad in
            ["5 a=", "x a=b\n", "99999999999999999999999 a=b\n", "7 a=bc", "6 abc\n", "11 uid=-1 \n", "1 "]
        {
            assert!(Pax::default().read(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
