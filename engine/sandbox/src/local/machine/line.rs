//! A connection to the keeper, shared by all who ask. One task writes and one reads: a request leaves whole or not at all, whatever
//! becomes of whoever asks, and an answer that cannot be read is that request's alone.

use crate::backend::Ended;
use espalier_keeper::frame::{self, FrameError, ReceiveBuffer};
use espalier_keeper::wire::{
    Answer, Hello, KeeperMessage, Operation, REQUEST_BYTES_MAX, Refusal, RefusalKind, Request, VERSION,
};
use parking_lot::Mutex;
use serde::Deserialize;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::task::AbortHandle;

/// Requests that are encoded and not written; whoever asks meanwhile waits. Each is at most [`REQUEST_BYTES_MAX`] long.
const QUEUE_MAX: usize = 16;
/// For writing one; a keeper that takes nothing for so long is given up.
const WRITE_MAX: Duration = Duration::from_secs(60);

/// What came of a request.
pub(super) type Answered = Result<Answer, Refusal>;
/// `None`: the keeper has gone.
type Waiting = Arc<Mutex<Option<HashMap<u64, oneshot::Sender<Answered>>>>>;

/// Why the call has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum LineError {
    /// The request is longer than the keeper takes; nothing was sent.
    #[error("the request is too long: {0}")]
    TooLong(FrameError),
    /// The connection is cut. The request may have been carried out.
    #[error("the keeper of sandboxes was killed")]
    Cut,
}

/// Who answered.
pub(super) enum Greeted {
    /// A keeper of this version.
    Same(Line, Hello),
    /// One of another version.
    Other {
        /// Its version.
        version: u64,
        /// Its process.
        pid: u64,
    },
}

/// See the module.
#[derive(Debug)]
pub(super) struct Line {
    queue: mpsc::Sender<Vec<u8>>,
    waiting: Waiting,
    next: AtomicU64,
    reader: AbortHandle,
}

impl Drop for Line {
    /// What is queued is still written: the writer ends with the queue.
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Line {
    /// Asks who is there.
    pub(super) async fn greet(
        mut stream: UnixStream,
        ended: broadcast::Sender<Ended>,
    ) -> io::Result<Greeted> {
        let (line, mut heard) = (hello()?, ReceiveBuffer::default());
        stream.write_all(&line).await?;
        let mut scratch = vec![0; 64 << 10];
        let said = loop {
            if let Some(text) = heard.line().map_err(io::Error::other)? {
                break read_hello(text)?;
            }
            match stream.read(&mut scratch).await? {
                0 => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it hung up")),
                count => heard.push(&scratch[..count]),
            }
        };
        let hello = match said {
            Version::Same(hello) => hello,
            Version::Other { version, pid } => return Ok(Greeted::Other { version, pid }),
        };
        let (read, write) = stream.into_split();
        let waiting: Waiting = Arc::new(Mutex::new(Some(HashMap::new())));
        let (queue, queued) = mpsc::channel(QUEUE_MAX);
        // Owned by the queue, and ends when the line is dropped and all in it is written, or writing fails.
        tokio::spawn(write_all(write, queued));
        // Owned by the line, and ended with it; when the keeper goes, all who wait are told by their sender's end.
        let reader = tokio::spawn(hear(read, heard, Arc::clone(&waiting), ended)).abort_handle();
        Ok(Greeted::Same(Line { queue, waiting, next: AtomicU64::new(2), reader }, hello))
    }

    /// Whether the keeper has gone.
    pub(super) fn is_cut(&self) -> bool {
        self.queue.is_closed() || self.waiting.lock().is_none()
    }

    /// Asks, and waits for the answer. Dropped before the request has its place in the queue, nothing was asked; later, it is
    /// carried out and its answer is nobody's.
    pub(super) async fn ask(&self, what: Operation) -> Result<Answered, LineError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let request =
            frame::frame(&Request { number, what }, REQUEST_BYTES_MAX).map_err(LineError::TooLong)?;
        let place = self.queue.reserve().await.map_err(|_| LineError::Cut)?;
        let (sender, answer) = oneshot::channel();
        match self.waiting.lock().as_mut() {
            Some(waiting) => waiting.insert(number, sender),
            None => return Err(LineError::Cut),
        };
        let _waits = Waits { waiting: &self.waiting, number };
        place.send(request);
        answer.await.map_err(|_| LineError::Cut)
    }
}

/// Forgets whoever waits no more.
struct Waits<'a> {
    waiting: &'a Waiting,
    number: u64,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = self.waiting.lock().as_mut() {
            waiting.remove(&self.number);
        }
    }
}

/// The first line of a connection.
pub(super) fn hello() -> io::Result<Vec<u8>> {
    frame::line(&Request { number: 1, what: Operation::Hello }).map_err(io::Error::other)
}

/// What a keeper says first.
pub(super) enum Version {
    Same(Hello),
    Other { version: u64, pid: u64 },
}

/// Reads it; of another version no more is understood than its number and process.
pub(super) fn read_hello(text: &[u8]) -> io::Result<Version> {
    let value: serde_json::Value = serde_json::from_slice(text)?;
    let of = |name: &str| {
        value.pointer(&format!("/answer/answer/Ok/hello/{name}")).and_then(|value| value.as_u64())
    };
    match (of("version"), of("pid")) {
        (Some(version), _) if version == u64::from(VERSION) => match serde_json::from_value(value)? {
            KeeperMessage::Answer { answer: Ok(Answer::Hello(hello)), .. } => Ok(Version::Same(hello)),
            _ => Err(io::Error::other("it did not identify itself")),
        },
        (Some(version), Some(pid)) => Ok(Version::Other { version, pid }),
        _ => Err(io::Error::other("it did not identify itself")),
    }
}

async fn write_all(mut write: OwnedWriteHalf, mut queue: mpsc::Receiver<Vec<u8>>) {
    while let Some(request) = queue.recv().await {
        if !matches!(tokio::time::timeout(WRITE_MAX, write.write_all(&request)).await, Ok(Ok(()))) {
            // Half of one may be written: nothing follows it.
            return;
        }
    }
}

async fn hear(
    mut read: OwnedReadHalf,
    mut heard: ReceiveBuffer,
    waiting: Waiting,
    ended: broadcast::Sender<Ended>,
) {
    let mut scratch = vec![0; 64 << 10];
    'open: loop {
        loop {
            match heard.frame() {
                Ok(Some(text)) => take(text, &waiting, &ended),
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(%error, "the keeper of sandboxes sent a message that is too long");
                    break 'open;
                }
            }
        }
        match read.read(&mut scratch).await {
            Ok(count) if count > 0 => heard.push(&scratch[..count]),
            _ => break,
        }
    }
    // Every waiting sender is dropped here.
    waiting.lock().take();
}

/// Gives an answer to whoever waits for it.
fn take(text: &[u8], waiting: &Waiting, ended: &broadcast::Sender<Ended>) {
    let (number, answer) = match serde_json::from_slice(text) {
        Ok(KeeperMessage::Answer { number, answer }) => (number, answer),
        Ok(KeeperMessage::Ended { sandbox, how }) => {
            let _ = ended.send(Ended { sandbox, how });
            return;
        }
        Err(error) => {
            tracing::warn!(%error, "unexpected message of the keeper of sandboxes");
            let Ok(Numbered { answer: Number { number } }) = serde_json::from_slice(text) else { return };
            let text = format!("cannot read the response of the keeper of sandboxes: {error}");
            (number, Err(Refusal::new(RefusalKind::Failed, text)))
        }
    };
    let mut waiting = waiting.lock();
    if let Some(sender) = waiting.as_mut().and_then(|waiting| waiting.remove(&number)) {
        // Whoever asked may have gone.
        let _ = sender.send(answer);
    }
}

/// As much of an answer as says whose it is.
#[derive(Deserialize)]
struct Numbered {
    answer: Number,
}

#[derive(Deserialize)]
struct Number {
    number: u64,
}
