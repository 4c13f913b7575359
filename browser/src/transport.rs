//! The byte streams to a browser process: messages end with a NUL byte.
//!
//! A message is written by the task that sends it where the stream has room; what does not fit waits in a buffer that
//! one task empties. Callers wait for room before they add to a full buffer. Nothing here knows what a message means.

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use rustix::pipe::fcntl_setpipe_size;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::unix::pipe::pipe;
use tokio::sync::Notify;

/// Bytes that may wait to be written before callers wait for room.
const OUTGOING_BYTES_SOFT: usize = 8 << 20;
/// Bytes that may wait at all; a browser that reads so little is taken for dead.
const OUTGOING_BYTES_MAX: usize = 256 << 20;
/// The longest message that is read: a screenshot of a very long page is 100 MB.
pub(crate) const MESSAGE_BYTES_MAX: usize = 512 << 20;
/// What the kernel is asked to hold in each pipe, so that a screenshot takes few wake-ups.
const PIPE_BYTES: usize = 1 << 20;
const READ_BYTES: usize = 64 << 10;
/// How long a stream may take to close.
const SHUTDOWN_BOUND: Duration = Duration::from_secs(1);

/// The browser's ends of the two pipes.
pub(crate) struct BrowserEnds {
    /// It reads commands here.
    pub(crate) commands: OwnedFd,
    /// It writes answers and events here.
    pub(crate) answers: OwnedFd,
}

/// Two pipes: our ends, and those for the browser.
pub(crate) fn open() -> io::Result<(MessageWriter, MessageReader, BrowserEnds)> {
    let (to_browser, commands) = pipe()?;
    let (answers, from_browser) = pipe()?;
    // A smaller pipe costs speed only.
    let _ = fcntl_setpipe_size(&to_browser, PIPE_BYTES);
    let _ = fcntl_setpipe_size(&from_browser, PIPE_BYTES);
    let ends = BrowserEnds { commands: commands.into_blocking_fd()?, answers: answers.into_blocking_fd()? };
    Ok((MessageWriter::new(Box::new(to_browser)), MessageReader::new(Box::new(from_browser)), ends))
}

pub(crate) struct MessageWriter {
    outgoing: Mutex<Outgoing>,
    /// Wakes callers that wait for room.
    room: Notify,
}

struct Outgoing {
    stream: Box<dyn AsyncWrite + Send + Unpin>,
    waiting: BytesMut,
    /// Whether the stream may hold bytes that it has not passed on.
    unflushed: bool,
    closed: bool,
    /// That of the writing task: whoever writes, it is the one that is woken where the stream has room again.
    waker: Option<Waker>,
}

impl MessageWriter {
    pub(crate) fn new(stream: Box<dyn AsyncWrite + Send + Unpin>) -> MessageWriter {
        let outgoing =
            Outgoing { stream, waiting: BytesMut::new(), unflushed: false, closed: false, waker: None };
        MessageWriter { outgoing: Mutex::new(outgoing), room: Notify::new() }
    }

    /// Sends one message without waiting. Once the stream is closed nothing is sent, and `run` has ended.
    pub(crate) fn send(&self, message: &[u8]) {
        let mut outgoing = self.outgoing.lock();
        if outgoing.closed {
            return;
        }
        outgoing.waiting.extend_from_slice(message);
        outgoing.waiting.extend_from_slice(&[0]);
        // Without a waker the writing task has not begun; it writes first of all.
        let waker = outgoing.waker.clone().unwrap_or_else(|| Waker::noop().clone());
        outgoing.flush(&mut Context::from_waker(&waker));
        if outgoing.waiting.len() > OUTGOING_BYTES_MAX {
            outgoing.close();
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

    /// The writing task: empties the buffer whenever the stream has room, until it is closed, and closes the stream.
    pub(crate) async fn run(&self) {
        poll_fn(|cx| {
            let mut outgoing = self.outgoing.lock();
            outgoing.waker = Some(cx.waker().clone());
            outgoing.flush(cx);
            if outgoing.closed || outgoing.waiting.len() < OUTGOING_BYTES_SOFT {
                self.room.notify_waiters();
            }
            if outgoing.closed { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        let mut stream = {
            let mut outgoing = self.outgoing.lock();
            std::mem::replace(&mut outgoing.stream, Box::new(tokio::io::sink()))
        };
        // The browser sees the end of its commands in any case, as the stream is dropped.
        let _ = tokio::time::timeout(SHUTDOWN_BOUND, stream.shutdown()).await;
    }

    /// Nothing more is sent; both the writing task and those who wait for room are woken.
    pub(crate) fn close(&self) {
        self.outgoing.lock().close();
        self.room.notify_waiters();
    }
}

impl Outgoing {
    fn close(&mut self) {
        self.closed = true;
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Writes what the stream takes now.
    fn flush(&mut self, cx: &mut Context<'_>) {
        while !self.closed && (self.unflushed || !self.waiting.is_empty()) {
            if self.waiting.is_empty() {
                match Pin::new(&mut self.stream).poll_flush(cx) {
                    Poll::Ready(Ok(())) => self.unflushed = false,
                    Poll::Ready(Err(_)) => self.close(),
                    Poll::Pending => return,
                }
                continue;
            }
            match Pin::new(&mut self.stream).poll_write(cx, &self.waiting) {
                Poll::Ready(Ok(written)) if written > 0 => {
                    let _ = self.waiting.split_to(written);
                    self.unflushed = true;
                }
                Poll::Ready(_) => self.close(),
                Poll::Pending => return,
            }
        }
    }
}

pub(crate) struct MessageReader {
    stream: Box<dyn AsyncRead + Send + Unpin>,
    buffer: BytesMut,
    /// Bytes of `buffer` that are known to hold no end of a message.
    scanned: usize,
}

impl MessageReader {
    pub(crate) fn new(stream: Box<dyn AsyncRead + Send + Unpin>) -> MessageReader {
        MessageReader { stream, buffer: BytesMut::new(), scanned: 0 }
    }

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
            match self.stream.read_buf(&mut self.buffer).await {
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
    use tokio::net::unix::pipe::{Receiver, Sender};

    /// Messages through a browser that sends back what it reads.
    async fn echo(
        writer: MessageWriter,
        mut reader: MessageReader,
        mut from: impl AsyncRead + Send + Unpin + 'static,
        mut to: impl AsyncWrite + Send + Unpin + 'static,
    ) {
        let writer = Arc::new(writer);
        // One message before the writing task begins.
        writer.send(b"first");
        let writing = tokio::spawn({
            let writer = Arc::clone(&writer);
            async move { writer.run().await }
        });
        let echo = tokio::spawn(async move {
            let _ = tokio::io::copy(&mut from, &mut to).await;
            let _ = to.shutdown().await;
        });
        let long = vec![b'x'; 5 << 20];
        for message in [&b"a"[..], &b""[..], &long, &b"last"[..]] {
            writer.send(message);
        }
        for expected in [&b"first"[..], &b"a"[..], &b""[..], &long, &b"last"[..]] {
            assert_eq!(reader.next().await.expect("a message"), expected);
        }
        writer.close();
        writing.await.expect("no panic");
        echo.await.expect("it sees the end of its input");
        assert!(reader.next().await.is_none());
        writer.send(b"late");
    }

    #[tokio::test]
    async fn messages_arrive_whole_through_pipes() {
        let (writer, reader, ends) = open().expect("pipes");
        let from = Receiver::from_owned_fd(ends.commands).expect("pipe");
        let to = Sender::from_owned_fd(ends.answers).expect("pipe");
        echo(writer, reader, from, to).await;
    }

    #[tokio::test]
    async fn messages_arrive_whole_through_any_streams() {
        let (ours, theirs) = tokio::io::duplex(1000);
        let (our_reader, our_writer) = tokio::io::split(ours);
        let (from, to) = tokio::io::split(theirs);
        let writer = MessageWriter::new(Box::new(tokio::io::BufWriter::new(our_writer)));
        echo(writer, MessageReader::new(Box::new(our_reader)), from, to).await;
    }
}
