//! The listener of a sandbox's proxy, borrowed from the keeper over a connection of its own: it is given back when that closes, also when this
//! process is killed.

use super::line::{self, Version};
use super::{ANSWER_MAX, refused};
use crate::error::SandboxError;
use espalier_keeper::frame::{self, ReceiveBuffer};
use espalier_keeper::wire::{Answer, KeeperMessage, Operation, REQUEST_BYTES_MAX, Refusal, Request};
use futures::future::BoxFuture;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;

/// The egress of a sandbox.
pub enum Egress {
    /// It is the asker's.
    Ready(EgressListener),
    /// Another engine carries it, or another command; this waits until they have gone.
    Later(BoxFuture<'static, Result<EgressListener, SandboxError>>),
}

/// A listening socket in a sandbox, to be given back by dropping it.
pub struct EgressListener {
    /// Connections of the sandbox come from it.
    pub listener: std::net::TcpListener,
    /// As long as this is there, nobody else has it.
    pub held: Box<dyn Send>,
}

/// Asks; returns when it is known whether somebody else has it.
pub(super) async fn ask(socket: PathBuf, id: &str) -> Result<Egress, SandboxError> {
    // Dropped at any point, the connection closes, and with it goes what was asked.
    let asked = tokio::time::timeout(ANSWER_MAX, async {
        let mut stream = UnixStream::connect(socket).await?;
        let mut text = line::hello()?;
        let request = Request { number: 2, what: Operation::EgressListener(id.to_owned()) };
        text.extend(frame::frame(&request, REQUEST_BYTES_MAX).map_err(io::Error::other)?);
        stream.write_all(&text).await?;
        let mut asked = Asked { stream, heard: ReceiveBuffer::default(), passed: None };
        asked.greet().await?;
        let answer = asked.hear().await?;
        io::Result::Ok((asked, answer))
    });
    let late = |_| unavailable(id, format!("no answer in {} s", ANSWER_MAX.as_secs()));
    let (mut asked, answer) = asked.await.map_err(late)?.map_err(|error| unavailable(id, error))?;
    match answer {
        Ok(Answer::Later) => {
            let id = id.to_owned();
            // As long as others carry it: bounded by whoever waits.
            Ok(Egress::Later(Box::pin(async move {
                let answer = asked.hear().await.map_err(|error| unavailable(&id, error))?;
                asked.into_listener(&id, answer)
            })))
        }
        answer => asked.into_listener(id, answer).map(Egress::Ready),
    }
}

/// A connection on which the listener was asked for.
struct Asked {
    stream: UnixStream,
    heard: ReceiveBuffer,
    /// What has come with the bytes so far.
    passed: Option<OwnedFd>,
}

impl Asked {
    async fn greet(&mut self) -> io::Result<()> {
        loop {
            if let Some(text) = self.heard.line().map_err(io::Error::other)? {
                return match line::read_hello(text)? {
                    Version::Same(_) => Ok(()),
                    Version::Other { version, .. } => {
                        Err(io::Error::other(format!("the keeper speaks version {version} now")))
                    }
                };
            }
            self.more().await?;
        }
    }

    /// The next answer; the socket comes with it.
    async fn hear(&mut self) -> io::Result<Result<Answer, Refusal>> {
        loop {
            if let Some(text) = self.heard.frame().map_err(io::Error::other)? {
                // A connection that holds a listener carries nothing else.
                if let KeeperMessage::Answer { answer, .. } = serde_json::from_slice(text)? {
                    return Ok(answer);
                }
            } else {
                self.more().await?;
            }
        }
    }

    async fn more(&mut self) -> io::Result<()> {
        let receive = || espalier_keeper::receive(self.stream.as_fd());
        let (text, mut passed) = self.stream.async_io(Interest::READABLE, receive).await?;
        if text.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the keeper has gone"));
        }
        self.heard.push(&text);
        self.passed = passed.pop().or_else(|| self.passed.take());
        Ok(())
    }

    fn into_listener(
        self,
        id: &str,
        answer: Result<Answer, Refusal>,
    ) -> Result<EgressListener, SandboxError> {
        match (answer, self.passed) {
            (Ok(Answer::Done), Some(listener)) => {
                Ok(EgressListener { listener: listener.into(), held: Box::new(self.stream) })
            }
            (Err(refusal), _) => Err(refused(refusal)),
            _ => Err(unavailable(id, "unexpected response of the keeper")),
        }
    }
}

fn unavailable(id: &str, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> SandboxError {
    SandboxError::unavailable(format!("the egress of sandbox {id}"), cause)
}
