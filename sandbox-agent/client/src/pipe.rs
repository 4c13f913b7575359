//! A command's standard input and output as byte streams: for programs that speak a protocol over them.
//!
//! Nothing is lost silently: cuts of the connection are healed, a reader that is slower than the command makes it wait as at a
//! full pipe, and what cannot be had any more is a [`PipeError`]. Memory is bounded on both sides, whatever the command prints.

use crate::agent::Agent;
use crate::error::AgentError;
use crate::output::{Event, Follow, Offsets};
use crate::wire::{CommandSpec, Ended, Id, Stream};
use bytes::{Bytes, BytesMut};
use espalier_agent_protocol::v1::Reason;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::sync::{oneshot, watch};

/// Bytes that wait on this side, each way. The connection holds another 1 MiB of output.
const BUFFER_BYTES: usize = 256 << 10;
/// Calls after which the agent may forget them: it keeps 2048 records of all kinds.
const CALLS_PER_ACK: usize = 64;
/// Bytes of standard error that are kept: the last.
const STDERR_BYTES: usize = 16 << 10;
/// For the end of input after the pipe was dropped.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// A command that was started by [`Agent::pipe`].
///
/// The parts may be used and dropped apart. When all three are dropped, standard input is closed and nobody reads any more; the
/// command is not killed: [`Agent::signal`] does that.
#[derive(Debug)]
pub struct Pipe {
    /// Names the command, as for [`Agent::signal`].
    pub id: Id,
    /// Process id inside the sandbox.
    pub pid: u32,
    /// Its standard output. Ends with the command; fails with a [`PipeError`] where bytes are lost.
    pub reader: PipeReader,
    /// Its standard input. Shutting it down, or dropping it, closes standard input.
    pub writer: PipeWriter,
    /// How it ended.
    pub ended: PipeEnd,
}

/// See [`Pipe::reader`]. After it is dropped, output is read and thrown away as long as [`Pipe::ended`] is kept.
#[derive(Debug)]
pub struct PipeReader {
    bytes: DuplexStream,
    shared: Shared,
}

/// See [`Pipe::writer`]. What was written and flushed may still be on its way.
#[derive(Debug)]
pub struct PipeWriter {
    bytes: DuplexStream,
    shared: Shared,
}

/// See [`Pipe::ended`]: a future.
#[derive(Debug)]
pub struct PipeEnd {
    ended: oneshot::Receiver<PipeEnded>,
    shared: Shared,
}

/// How a command ended, and the last 16 KiB of its standard error.
#[derive(Clone, Debug)]
pub struct PipeEnded {
    /// Its outcome and what it used.
    pub ended: Ended,
    /// The end of its standard error.
    pub stderr: Bytes,
}

/// Why a pipe carries nothing any more, though the command may run on.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PipeError {
    /// Output that the agent no longer has: the disk of the sandbox was full, or nobody read for 30 s.
    #[error("bytes {from} to {to} of the command's output are lost")]
    OutputLost {
        /// Offset of the first lost byte.
        from: u64,
        /// Offset after the last.
        to: u64,
    },
    /// The sandbox is lost, or its agent refused a call.
    #[error("the pipe to the command is broken")]
    Agent(#[source] Arc<AgentError>),
}

impl PipeError {
    fn as_io(&self) -> io::Error {
        let kind = match self {
            PipeError::OutputLost { .. } => io::ErrorKind::InvalidData,
            PipeError::Agent(_) => io::ErrorKind::ConnectionAborted,
        };
        io::Error::new(kind, self.clone())
    }
}

/// What the parts have in common.
#[derive(Clone, Debug)]
struct Shared {
    /// Why the pipe broke, the first time.
    failure: Arc<OnceLock<PipeError>>,
    /// Both tasks learn by it that all parts were dropped.
    _alive: watch::Receiver<()>,
}

impl Shared {
    fn check(&self) -> io::Result<()> {
        self.failure.get().map_or(Ok(()), |failure| Err(failure.as_io()))
    }
}

impl Agent {
    /// Starts a command and connects its standard input and output. What `spec` says of input comes first; a command in a shell or
    /// on a terminal is refused as [`Reason::Invalid`].
    ///
    /// Its tasks end with the command, when the sandbox is lost, or soon after all parts of the pipe were dropped.
    pub async fn pipe(&self, id: &Id, spec: CommandSpec) -> Result<Pipe, AgentError> {
        if spec.shell.is_some() || spec.terminal.is_some() {
            let why = "a pipe to a command in a shell or on a terminal";
            return Err(AgentError::refused(Reason::Invalid, why));
        }
        let offset = spec.stdin.len() as u64;
        let spec = CommandSpec { stdin_open: true, wait_for_reader: true, ..spec };
        let pid = self.start(id, spec).await?.pid;
        let (reader, output) = tokio::io::duplex(BUFFER_BYTES);
        let (writer, input) = tokio::io::duplex(BUFFER_BYTES);
        let (end, ended) = oneshot::channel();
        let (dropped, alive) = watch::channel(());
        let shared = Shared { failure: Arc::default(), _alive: alive };
        let task =
            Carry { agent: self.clone(), failure: Arc::clone(&shared.failure), dropped: Arc::new(dropped) };
        tokio::spawn(task.clone().write(input, id.clone(), offset));
        tokio::spawn(task.read(self.attach(id, Offsets::default(), false), output, end));
        Ok(Pipe {
            id: id.clone(),
            pid,
            reader: PipeReader { bytes: reader, shared: shared.clone() },
            writer: PipeWriter { bytes: writer, shared: shared.clone() },
            ended: PipeEnd { ended, shared },
        })
    }
}

/// What both tasks have.
#[derive(Clone)]
struct Carry {
    agent: Agent,
    failure: Arc<OnceLock<PipeError>>,
    dropped: Arc<watch::Sender<()>>,
}

impl Carry {
    fn fail(&self, error: PipeError) {
        // Both ways are told of the first.
        let _ = self.failure.set(error);
    }

    /// Output from the agent to the reader, until the command has ended.
    async fn read(self, mut follow: Follow, mut output: DuplexStream, end: oneshot::Sender<PipeEnded>) {
        let mut stderr = BytesMut::new();
        loop {
            let next = tokio::select! {
                next = follow.next() => next,
                () = self.dropped.closed() => return,
            };
            match next {
                Ok(Some(Event::Output { stream: Stream::Stdout, bytes, .. })) => {
                    tokio::select! {
                        // A reader that was dropped wants no more of it.
                        _ = output.write_all(&bytes) => {}
                        () = self.dropped.closed() => return,
                    }
                }
                Ok(Some(Event::Output { stream: Stream::Stderr, bytes, .. })) => {
                    keep_last(&mut stderr, &bytes);
                }
                Ok(Some(Event::Gap { stream: Stream::Stdout, from, to })) => {
                    return self.fail(PipeError::OutputLost { from, to });
                }
                Ok(Some(Event::Gap { stream: Stream::Stderr, .. })) => {}
                Ok(Some(Event::Ended(ended))) => {
                    let _ = end.send(PipeEnded { ended: *ended, stderr: stderr.freeze() });
                    return;
                }
                Ok(None) => return self.fail(PipeError::Agent(Arc::new(without_end()))),
                Err(error) => return self.fail(PipeError::Agent(Arc::new(error))),
            }
        }
    }

    /// Input from the writer to the agent, until it is closed on one side or the other.
    async fn write(self, mut input: DuplexStream, target: Id, mut offset: u64) {
        let mut bytes = BytesMut::with_capacity(BUFFER_BYTES);
        let mut answered = Vec::new();
        loop {
            let end = match input.read_buf(&mut bytes).await {
                Ok(count) => count == 0,
                Err(_) => return,
            };
            let id = self.agent.allot();
            let piece = bytes.split().freeze();
            offset += piece.len() as u64;
            let writing = self.agent.input(&id, &target, offset - piece.len() as u64, piece, end);
            let answer = tokio::select! {
                answer = writing => answer,
                () = self.late() => return self.agent.settle(&id),
            };
            match answer {
                // It reads no more: the writer sees a broken pipe.
                Ok(answer) if end || answer.closed => return,
                Ok(_) => answered.push(id),
                Err(error) => return self.fail(PipeError::Agent(Arc::new(error))),
            }
            bytes.reserve(BUFFER_BYTES);
            if answered.len() >= CALLS_PER_ACK
                && let Err(error) = self.agent.ack(std::mem::take(&mut answered)).await
            {
                return self.fail(PipeError::Agent(Arc::new(error)));
            }
        }
    }

    /// Some time after all parts were dropped.
    async fn late(&self) {
        self.dropped.closed().await;
        tokio::time::sleep(CLOSE_MAX).await;
    }
}

fn without_end() -> AgentError {
    AgentError::Protocol("output without an end".to_owned())
}

fn keep_last(kept: &mut BytesMut, bytes: &[u8]) {
    let bytes = &bytes[bytes.len().saturating_sub(STDERR_BYTES)..];
    let surplus = (kept.len() + bytes.len()).saturating_sub(STDERR_BYTES);
    let _ = kept.split_to(surplus);
    kept.extend_from_slice(bytes);
}

impl AsyncRead for PipeReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.bytes).poll_read(context, buffer))?;
        let is_end = buffer.filled().len() == before && buffer.remaining() > 0;
        Poll::Ready(if is_end { self.shared.check() } else { Ok(()) })
    }
}

impl AsyncWrite for PipeWriter {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.shared.check()?;
        Pin::new(&mut self.bytes).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.check()?;
        Pin::new(&mut self.bytes).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.bytes).poll_shutdown(context)
    }
}

impl Future for PipeEnd {
    type Output = Result<PipeEnded, PipeError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = ready!(Pin::new(&mut self.ended).poll(context));
        let broken = || PipeError::Agent(Arc::new(without_end()));
        Poll::Ready(ended.map_err(|_| self.shared.failure.get().cloned().unwrap_or_else(broken)))
    }
}
