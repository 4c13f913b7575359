//! A sandbox's way out, borrowed from the keeper over a connection of its own: it is given back when that closes, also when this
//! process is killed.

use super::wire::{Answer, Request, Said, What};
use super::{ANSWER_MAX, keeper, refused};
use crate::backend::{Door, LentDoor};
use crate::error::SandboxError;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;

/// Asks; returns when it is known whether somebody else has it.
pub(super) async fn ask(socket: PathBuf, id: &str) -> Result<Door, SandboxError> {
    let failed = |error: &dyn std::fmt::Display| unavailable(id, error);
    let mut stream = UnixStream::connect(socket).await.map_err(|error| failed(&error))?;
    let request = Request { number: 1, what: What::Door(id.to_owned()) };
    let mut text = serde_json::to_vec(&request).map_err(|error| failed(&error))?;
    text.push(b'\n');
    stream.write_all(&text).await.map_err(|error| failed(&error))?;
    let heard = tokio::time::timeout(ANSWER_MAX, hear(&stream)).await;
    let late = || failed(&format!("no answer in {} s", ANSWER_MAX.as_secs()));
    match heard.map_err(|_| late())?.map_err(|error| failed(&error))? {
        (_, Some(door)) => Ok(Door::Lent(lent(stream, door))),
        (text, None) => match answer(&text) {
            Some(Ok(Answer::Later)) => {
                let id = id.to_owned();
                // As long as others carry it: bounded by whoever waits.
                Ok(Door::Later(Box::pin(async move {
                    match hear(&stream).await {
                        Ok((_, Some(door))) => Ok(lent(stream, door)),
                        Ok((text, None)) => Err(match answer(&text) {
                            Some(Err(refusal)) => refused(refusal),
                            _ => unavailable(&id, &"the keeper has gone"),
                        }),
                        Err(error) => Err(unavailable(&id, &error)),
                    }
                })))
            }
            Some(Err(refusal)) => Err(refused(refusal)),
            _ => Err(failed(&"the keeper answered another question")),
        },
    }
}

fn unavailable(id: &str, error: &dyn std::fmt::Display) -> SandboxError {
    SandboxError::Unavailable(format!("the way out of sandbox {id}: {error}"))
}

fn lent(stream: UnixStream, door: OwnedFd) -> LentDoor {
    LentDoor { listener: door.into(), held: Box::new(stream) }
}

/// One message: its text, and the socket where it brought one.
async fn hear(stream: &UnixStream) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let mut whole = Vec::new();
    loop {
        let receive = || keeper::receive(stream.as_fd());
        let (text, mut passed) = stream.async_io(Interest::READABLE, receive).await?;
        if text.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        whole.extend(text);
        if whole.ends_with(b"\n") || !passed.is_empty() {
            return Ok((whole, passed.pop()));
        }
    }
}

fn answer(text: &[u8]) -> Option<Result<Answer, super::Refusal>> {
    match serde_json::from_slice(text).ok()? {
        Said::Answer { answer, .. } => Some(answer),
        Said::Ended { .. } => None,
    }
}
