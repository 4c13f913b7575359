//! Connections of engines to the keeper: lines of JSON, never waited for.

use crate::local::wire::{Request, Said};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

/// Longest request, and most that an engine may leave unread before it is cut off.
const BYTES_MAX: usize = 16 << 20;

/// See the module.
#[derive(Debug)]
pub(super) struct Line {
    /// Not blocking.
    pub stream: UnixStream,
    heard: Vec<u8>,
    unsaid: Vec<u8>,
}

impl Line {
    /// A new connection.
    pub(super) fn new(stream: UnixStream) -> std::io::Result<Line> {
        stream.set_nonblocking(true)?;
        Ok(Line { stream, heard: Vec::new(), unsaid: Vec::new() })
    }

    /// What has come. `None`: the engine has gone, or speaks another language.
    pub(super) fn hear(&mut self) -> Option<Vec<Request>> {
        let mut scratch = [0; 16 << 10];
        let mut open = true;
        loop {
            match self.stream.read(&mut scratch) {
                Ok(0) => {
                    open = false;
                    break;
                }
                Ok(count) => self.heard.extend_from_slice(&scratch[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
            if self.heard.len() > BYTES_MAX {
                return None;
            }
        }
        let mut requests = Vec::new();
        while let Some(end) = self.heard.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.heard.drain(..=end).collect();
            requests.push(serde_json::from_slice(&line).ok()?);
        }
        (open || !requests.is_empty()).then_some(requests)
    }

    /// Says something, as far as the engine listens; the rest later. False: it does not listen any more.
    pub(super) fn say(&mut self, said: &Said) -> bool {
        let Ok(text) = serde_json::to_vec(said) else { return false };
        self.unsaid.extend(text);
        self.unsaid.push(b'\n');
        self.go_on()
    }

    /// Goes on with what was not taken.
    pub(super) fn go_on(&mut self) -> bool {
        while !self.unsaid.is_empty() {
            match self.stream.write(&self.unsaid) {
                Ok(0) => return false,
                Ok(count) => drop(self.unsaid.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return self.unsaid.len() <= BYTES_MAX,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Whether something waits to be taken.
    pub(super) fn is_behind(&self) -> bool {
        !self.unsaid.is_empty()
    }
}
