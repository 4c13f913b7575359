//! The pipes to a browser process: messages end with a NUL byte.
//!
//! A message is written by the task that sends it where the pipe has room; what does not fit waits in a buffer that one
//! task empties. Callers wait for room before they add to a full buffer. Nothing here knows what a message means.

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use rustix::pipe::fcntl_setpipe_size;
use std::io;
use std::os::fd::OwnedFd;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::{Receiver, Sender, pipe};
use tokio::sync::Notify;

/// Bytes that may wait to be written before callers wait for room.
const OUTGOING_BYTES_SOFT: usize = 8 << 20;
/// Bytes that may wait at all; a browser that reads so little is taken for dead.
const OUTGOING_BYTES_MAX: usize = 256 << 20;
/// The longest message that is read: a screenshot of a very long page is 100 MB.
const MESSAGE_BYTES_MAX: usize = 512 << 20;
/// What the kernel is asked to hold in each pipe, so that a screenshot takes few wake-ups.
const PIPE_BYTES: usize = 1 << 20;
const READ_BYTES: usize = 64 << 10;

/// The browser's ends of the two pipes.
pub(crate) struct BrowserEnds {
    /// It reads commands here.
    pub(crate) commands: OwnedFd,
    /// It writes answers and events here.
    pub(crate) answers: OwnedFd,
}

/// Two pipes: our ends, and those for the browser.
pub(crate) fn open() -> io::Result<(PipeWriter, PipeReader, BrowserEnds)> {
    let (to_browser, commands) = pipe()?;
    let (answers, from_browser) = pipe()?;
    // A smaller pipe costs speed only.
    let _ = fcntl_setpipe_size(&to_browser, PIPE_BYTES);
    let _ = fcntl_setpipe_size(&from_browser, PIPE_BYTES);
    let ends = BrowserEnds { commands: commands.into_blocking_fd()?, answers: answers.into_blocking_fd()? };
    let writer =
        PipeWriter { pipe: to_browser, outgoing: Mutex::default(), work: Notify::new(), room: Notify::new() };
    Ok((writer, PipeReader { pipe: from_browser, buffer: BytesMut::new(), scanned: 0 }, ends))
}

pub(crate) struct PipeWriter {
    pipe: Sender,
    outgoing: Mutex<Outgoing>,
    /// Wakes the writing task.
    work: Notify,
    /// Wakes callers that wait for room.
    room: Notify,
}

#[derive(Default)]
struct Outgoing {
    waiting: BytesMut,
    closed: bool,
}

impl PipeWriter {
    /// Sends one message without waiting. Once the pipe is closed nothing is sent, and `run` has ended.
    pub(crate) fn send(&self, message: &[u8]) {
        let mut outgoing = self.outgoing.lock();
        if outgoing.closed {
            return;
        }
        outgoing.waiting.extend_from_slice(message);
        outgoing.waiting.extend_from_slice(&[0]);
        self.flush(&mut outgoing);
        if outgoing.waiting.len() > OUTGOING_BYTES_MAX {
            outgoing.closed = true;
        }
        if outgoing.closed || !outgoing.waiting.is_empty() {
            self.work.notify_one();
        }
    }

    /// Waits until the buffer is below its bound.
    pub(crate) async fn has_room(&self) {
        loop {
            let room = self.room.notified();
            {
                let outgoing = self.outgoing.lock();
                if outgoing.closed || outgoing.waiting.len() < OUTGOING_BYTES_SOFT {
                    return;
                }
            }
            room.await;
        }
    }

    /// The writing task: empties the buffer whenever the pipe has room, until the pipe is closed.
    pub(crate) async fn run(&self) {
        loop {
            self.work.notified().await;
            loop {
                {
                    let mut outgoing = self.outgoing.lock();
                    self.flush(&mut outgoing);
                    if outgoing.waiting.len() < OUTGOING_BYTES_SOFT {
                        self.room.notify_waiters();
                    }
                    if outgoing.closed {
                        return;
                    }
                    if outgoing.waiting.is_empty() {
                        break;
                    }
                }
                if self.pipe.writable().await.is_err() {
                    self.close();
                    return;
                }
            }
        }
    }

    /// Nothing more is sent; both the writing task and those who wait for room are woken.
    pub(crate) fn close(&self) {
        self.outgoing.lock().closed = true;
        self.work.notify_one();
        self.room.notify_waiters();
    }

    fn flush(&self, outgoing: &mut Outgoing) {
        while !outgoing.waiting.is_empty() && !outgoing.closed {
            match self.pipe.try_write(&outgoing.waiting) {
                Ok(written) => {
                    let _ = outgoing.waiting.split_to(written);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => outgoing.closed = true,
            }
        }
    }
}

pub(crate) struct PipeReader {
    pipe: Receiver,
    buffer: BytesMut,
    /// Bytes of `buffer` that are known to hold no end of a message.
    scanned: usize,
}

impl PipeReader {
    /// The next message without its NUL. `None`: the browser closed its end, or sent too long a message.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(end) = self.buffer[self.scanned..].iter().position(|byte| *byte == 0) {
                let message = self.buffer.split_to(self.scanned + end).freeze();
                let _ = self.buffer.split_to(1);
                self.scanned = 0;
                return Some(message);
            }
            self.scanned = self.buffer.len();
            if self.scanned > MESSAGE_BYTES_MAX {
                return None;
            }
            self.buffer.reserve(READ_BYTES);
            match self.pipe.read_buf(&mut self.buffer).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tokio::io::AsyncWriteExt;

    #[tokio::test]
    async fn messages_arrive_whole_whatever_their_size() {
        let (writer, mut reader, ends) = open().expect("pipes");
        let writer = Arc::new(writer);
        tokio::spawn({
            let writer = Arc::clone(&writer);
            async move { writer.run().await }
        });
        // A browser that sends back what it reads.
        let mut from = Receiver::from_owned_fd(ends.commands).expect("pipe");
        let mut to = Sender::from_owned_fd(ends.answers).expect("pipe");
        let echo = tokio::spawn(async move {
            let _ = tokio::io::copy(&mut from, &mut to).await;
            let _ = to.shutdown().await;
        });
        let long = vec![b'x'; 5 << 20];
        for message in [&b"a"[..], &b""[..], &long, &b"last"[..]] {
            writer.send(message);
        }
        for expected in [&b"a"[..], &b""[..], &long, &b"last"[..]] {
            assert_eq!(reader.next().await.expect("a message"), expected);
        }
        writer.close();
        echo.abort();
        let _ = echo.await;
        assert!(reader.next().await.is_none());
        writer.send(b"late");
    }
}
