//! A command that was started in a sandbox.

use super::machine::{Machine, excerpts, size};
use super::output::expired;
use async_trait::async_trait;
use bytes::Bytes;
use espalier_agent_client::wire::{CommandSpec, PollAnswer, PollRequest, Stream};
use espalier_agent_client::{AgentError, Id};
use espalier_core::failure::Failure;
use espalier_core::host::sandbox::{Channel, Outcome, Piece, Process, Show, TerminalSize};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, OnceCell};

/// Longest wait of one question to the agent. A longer wait is asked for in steps, counted by what was asked and never by a
/// clock: what is asked follows from the answers alone.
const POLL_WAIT_MAX: Duration = Duration::from_secs(60);

fn millis_of(wait: Duration) -> u64 {
    u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
}

/// See the module.
pub(super) struct Started {
    machine: Arc<Machine>,
    id: Id,
    pid: u32,
    /// As it was started: the agent answers the same call again with its end.
    spec: CommandSpec,
    show: Show,
    outcome: OnceCell<Outcome>,
    stdin: Arc<Mutex<Stdin>>,
}

/// How far its input was written. Whoever writes holds it, and goes on when the caller has gone.
struct Stdin {
    offset: u64,
    closed: bool,
}

impl Started {
    pub(super) fn new(machine: Arc<Machine>, id: Id, pid: u32, spec: CommandSpec, show: Show) -> Started {
        let stdin = Stdin { offset: spec.stdin.len() as u64, closed: false };
        let stdin = Arc::new(Mutex::new(stdin));
        Started { machine, id, pid, spec, show, outcome: OnceCell::new(), stdin }
    }

    async fn look(&self, request: PollRequest) -> Result<PollAnswer, AgentError> {
        let request = PollRequest { id: Some(self.id.clone()), ..request };
        self.machine.agent.poll(request).await.map_err(expired)
    }

    async fn ask(&self, request: PollRequest) -> Result<PollAnswer, Failure> {
        self.machine.said(self.look(request).await)
    }

    /// Whether it ended, waiting for it.
    async fn ended_after(&self, wait: Duration) -> Result<bool, AgentError> {
        let request = PollRequest {
            stdout_from: u64::MAX,
            stderr_from: u64::MAX,
            bytes_max: 1,
            wait_ms: millis_of(wait),
            until_ended: true,
            ..PollRequest::default()
        };
        Ok(self.look(request).await?.ended.is_some())
    }

    async fn input(&self, bytes: Vec<u8>, end: bool) -> Result<u64, Failure> {
        // Its id is that of the call under way, however long the one before is still written.
        let change = self.machine.change();
        let mut stdin = Arc::clone(&self.stdin).lock_owned().await;
        if stdin.closed {
            return match end {
                true => Ok(0),
                false => Err(Failure::Invalid("its input was closed before".to_owned())),
            };
        }
        let (machine, target) = (Arc::clone(&self.machine), self.id.clone());
        // Ends when the command has taken the bytes or reads no more, or when the sandbox is lost; bounded by the command.
        let writing = tokio::spawn(async move {
            let bytes = Bytes::from(bytes);
            let answer = machine.agent.input(&change, &target, stdin.offset, bytes, end).await;
            let answer = machine.said(answer.map_err(expired))?;
            let taken = answer.taken.saturating_sub(stdin.offset);
            stdin.offset = stdin.offset.max(answer.taken);
            stdin.closed |= end;
            Ok(taken)
        });
        writing.await.unwrap_or_else(|error| Err(Failure::Unavailable(format!("writing input: {error}"))))
    }
}

#[async_trait]
impl Process for Started {
    fn begin(&self, call: u64) {
        self.machine.begin(call);
    }

    fn pid(&self) -> u32 {
        self.pid
    }

    async fn poll(&self) -> Result<Option<Outcome>, Failure> {
        if let Some(outcome) = self.outcome.get() {
            return Ok(Some(outcome.clone()));
        }
        let ended = self.ended_after(Duration::ZERO).await;
        // It was started: whatever is lost is lost under it.
        let is_lost = matches!(ended, Err(AgentError::Lost(_)));
        match self.machine.said(ended) {
            Err(Failure::Unavailable(why)) if is_lost => return Ok(Some(Outcome::unknown(why))),
            Ok(true) => {}
            ended => return ended.map(|_| None),
        }
        let outcome = self.outcome.get_or_try_init(async || {
            let machine = &self.machine;
            let answer = machine.agent.run(&self.id, self.spec.clone(), excerpts(self.show)).await;
            machine.outcome(&self.id, answer.map_err(expired), self.show).await
        });
        Ok(Some(outcome.await?.clone()))
    }

    async fn read(
        &self,
        channel: Channel,
        offset: u64,
        length: u32,
        wait: Duration,
    ) -> Result<Piece, Failure> {
        let stream = match channel {
            Channel::Stdout => Stream::Stdout,
            Channel::Stderr => Stream::Stderr,
        };
        let from = |asked: Stream| if asked == stream { offset } else { u64::MAX };
        let mut left = wait;
        let answer = loop {
            let step = left.min(POLL_WAIT_MAX);
            let request = PollRequest {
                stdout_from: from(Stream::Stdout),
                stderr_from: from(Stream::Stderr),
                bytes_max: length.max(1),
                wait_ms: millis_of(step),
                ..PollRequest::default()
            };
            let answer = self.ask(request).await?;
            left -= step;
            let news = !answer.outputs.is_empty() || !answer.gaps.is_empty() || answer.ended.is_some();
            if news || left.is_zero() {
                break answer;
            }
        };
        let total = match stream {
            Stream::Stdout => answer.stdout_total,
            Stream::Stderr => answer.stderr_total,
        };
        let mut piece = Piece { offset, bytes: Vec::new(), total, ended: answer.ended.is_some() };
        for output in answer.outputs.iter().filter(|output| output.stream() == stream) {
            match piece.offset + piece.bytes.len() as u64 == output.offset {
                true => piece.bytes.extend_from_slice(&output.bytes),
                false if piece.bytes.is_empty() => {
                    piece.offset = output.offset;
                    piece.bytes.extend_from_slice(&output.bytes);
                }
                // Behind a gap: for the next read.
                false => break,
            }
        }
        piece.bytes.truncate(length as usize);
        if piece.bytes.is_empty() {
            let gaps = answer.gaps.iter().filter(|gap| gap.stream() == stream);
            piece.offset = gaps.map(|gap| gap.to).fold(offset, u64::max);
        }
        Ok(piece)
    }

    async fn write_stdin(&self, bytes: Vec<u8>) -> Result<u64, Failure> {
        self.input(bytes, false).await
    }

    async fn close_stdin(&self) -> Result<(), Failure> {
        self.input(Vec::new(), true).await.map(drop)
    }

    async fn resize(&self, to: TerminalSize) -> Result<(), Failure> {
        self.machine.said(self.machine.agent.resize(&self.id, size(to)).await.map_err(expired))
    }

    async fn signal(&self, number: u8, tree: bool) -> Result<u32, Failure> {
        let change = self.machine.change();
        let answer = self.machine.agent.signal(&change, &self.id, number.into(), tree).await;
        Ok(self.machine.said(answer.map_err(expired))?.reached)
    }

    async fn ended(&self, within: Duration) -> Result<bool, Failure> {
        if self.outcome.initialized() {
            return Ok(true);
        }
        let mut left = within;
        loop {
            let step = left.min(POLL_WAIT_MAX);
            if self.machine.said(self.ended_after(step).await)? {
                return Ok(true);
            }
            left -= step;
            if left.is_zero() {
                return Ok(false);
            }
        }
    }
}
