//! The form in which sandboxes hand out changes, as far as it takes to leave some out: events of the agent's protocol
//! (`ChangeEvent` in `agent.proto`), each behind its length. An event is a change, a piece of the content of the latest change, or
//! the end. What is not understood is kept as it is.

/// Longest event, in bytes; contents come in pieces far smaller.
const EVENT_BYTES_MAX: usize = 8 << 20;

/// One change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change<'a> {
    /// Absolute.
    pub path: &'a [u8],
    /// There was nothing.
    pub added: bool,
    /// What stood there is gone.
    pub removed: bool,
    /// There is a folder now.
    pub folder: bool,
    /// There is something other than a file or a folder now, such as a link.
    pub link: bool,
}

/// What the host handed out is none of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Reads events out of bytes that come in pieces.
#[derive(Debug, Default)]
pub struct Filter {
    buffer: Vec<u8>,
    leaving_out: bool,
}

impl Filter {
    /// Takes a piece; each change is asked whether it is kept, and what is kept is appended.
    pub fn push(
        &mut self,
        piece: &[u8],
        keep: &mut dyn FnMut(Change<'_>) -> bool,
        kept: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Malformed> {
        self.buffer.extend_from_slice(piece);
        let mut at = 0;
        while let Some((length, head)) = varint(&self.buffer[at..]) {
            let length = usize::try_from(length).map_err(|_| Malformed)?;
            if length > EVENT_BYTES_MAX {
                return Err(Malformed);
            }
            let Some(event) = self.buffer.get(at + head..at + head + length) else { break };
            let (field, body) = fields(event).next().unwrap_or(Ok((0, Value::Number(0))))?;
            match (field, body) {
                (1, Value::Bytes(change)) => self.leaving_out = !keep(read(change)?),
                (2, _) => {}
                _ => self.leaving_out = false,
            }
            if !self.leaving_out {
                kept(&self.buffer[at..at + head + length]);
            }
            at += head + length;
        }
        self.buffer.drain(..at);
        if self.buffer.len() > EVENT_BYTES_MAX + 10 { Err(Malformed) } else { Ok(()) }
    }

    /// Whether everything was taken.
    pub fn finish(self) -> Result<(), Malformed> {
        if self.buffer.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}

fn read(change: &[u8]) -> Result<Change<'_>, Malformed> {
    const REMOVED: u64 = 2;
    const FILE: u64 = 1;
    const FOLDER: u64 = 2;
    // What is left out of a message is 0.
    let mut read = Change { added: true, ..Change::default() };
    let mut kind = 0;
    for field in fields(change) {
        match field? {
            (1, Value::Number(action)) => {
                read.removed = action == REMOVED;
                read.added = action == 0;
            }
            (2, Value::Bytes(path)) => read.path = path,
            (3, Value::Bytes(stat)) => {
                for field in fields(stat) {
                    if let (1, Value::Number(number)) = field? {
                        kind = number;
                    }
                }
            }
            _ => {}
        }
    }
    read.folder = kind == FOLDER;
    read.link = !read.removed && kind != FILE && kind != FOLDER;
    if read.path.starts_with(b"/") { Ok(read) } else { Err(Malformed) }
}

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// A number of the protocol's form, and how many bytes it takes; `None` where it is cut.
fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0;
    for (at, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * at as u32).min(63);
        if byte & 0x80 == 0 {
            return Some((value, at + 1));
        }
    }
    None
}

/// The fields of a message, by number.
fn fields(mut bytes: &[u8]) -> impl Iterator<Item = Result<(u64, Value<'_>), Malformed>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let found = field(bytes);
        bytes = found.as_ref().map_or(&[][..], |(_, rest)| rest);
        Some(found.map(|(field, _)| field).ok_or(Malformed))
    })
}

fn field(bytes: &[u8]) -> Option<((u64, Value<'_>), &[u8])> {
    let (key, taken) = varint(bytes)?;
    let bytes = &bytes[taken..];
    let (value, rest) = match key & 7 {
        0 => {
            let (number, taken) = varint(bytes)?;
            (Value::Number(number), &bytes[taken..])
        }
        1 => (Value::Bytes(bytes.get(..8)?), &bytes[8..]),
        2 => {
            let (length, taken) = varint(bytes)?;
            let end = taken.checked_add(usize::try_from(length).ok()?)?;
            (Value::Bytes(bytes.get(taken..end)?), &bytes[end..])
        }
        5 => (Value::Bytes(bytes.get(..4)?), &bytes[4..]),
        _ => return None,
    };
    Some(((key >> 3, value), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(field: u8, bytes: &[u8]) -> Vec<u8> {
        [&[field << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
    }

    fn event(field: u8, bytes: &[u8]) -> Vec<u8> {
        let inner = message(field, bytes);
        [&[u8::try_from(inner.len()).unwrap()], &inner[..]].concat()
    }

    fn change(action: u8, path: &str, kind: u8) -> Vec<u8> {
        let stat = message(3, &[8, kind, 16, 1]);
        event(1, &[&[8, action][..], &message(2, path.as_bytes()), &stat].concat())
    }

    #[test]
    fn what_is_left_out_goes_with_its_content() {
        let parts = [
            change(0, "/w/a", 1),
            event(2, b"content of a"),
            change(1, "/w/conftest.py", 1),
            event(2, b"evil"),
            event(2, b"more"),
            change(2, "/w/gone", 0),
            change(0, "/w/folder", 2),
            event(3, &[8, 1]),
        ];
        let whole = parts.concat();
        // In pieces of every size.
        for size in [1, 3, 7, 1000] {
            let (mut filter, mut out, mut seen) = (Filter::default(), Vec::new(), Vec::new());
            for piece in whole.chunks(size) {
                let mut keep = |change: Change<'_>| {
                    seen.push((
                        String::from_utf8(change.path.to_vec()).unwrap(),
                        change.removed,
                        change.folder,
                    ));
                    !change.path.ends_with(b"conftest.py")
                };
                filter.push(piece, &mut keep, &mut |bytes| out.extend_from_slice(bytes)).unwrap();
            }
            filter.finish().unwrap();
            assert_eq!(out, [&parts[..2].concat(), &parts[5..].concat()].map(|part| &part[..]).concat());
            let expect = [
                ("/w/a", false, false),
                ("/w/conftest.py", false, false),
                ("/w/gone", true, false),
                ("/w/folder", false, true),
            ];
            assert_eq!(seen, expect.map(|(path, removed, folder)| (path.to_owned(), removed, folder)));
        }
    }

    #[test]
    fn what_is_cut_or_wrong_is_refused() {
        let push = |bytes: &[u8]| {
            let mut filter = Filter::default();
            filter.push(bytes, &mut |_| true, &mut |_| {}).and_then(|()| filter.finish())
        };
        assert_eq!(push(&change(0, "/w/a", 1)), Ok(()));
        assert_eq!(push(&change(0, "/w/a", 1)[..5]), Err(Malformed));
        assert_eq!(push(&change(0, "relative", 1)), Err(Malformed));
        assert_eq!(push(&[0xff, 0xff, 0xff, 0xff, 0x0f]), Err(Malformed));
        assert_eq!(push(&event(1, &[0x0b])), Err(Malformed));
        assert_eq!(push(&[0]), Ok(()));
    }
}
