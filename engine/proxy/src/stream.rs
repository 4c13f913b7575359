//! Answers as server-sent events. An answer is sampled whole before its events are written; until then a comment every few seconds keeps
//! connections and clients waiting.

use crate::Body;
use crate::session::Call;
use crate::wire::{Api, Asked};
use bytes::Bytes;
use http::{HeaderValue, Response, header};
use http_body_util::{BodyExt, StreamBody};

use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

/// How long the head of a stream waits for its answer, so that what fails at once has a status of its own.
pub(crate) const HEAD_AFTER: Duration = Duration::from_secs(3);
/// Between two comments; clients give up after 30 s and more.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// Longest text of one event: an answer of usual length is several.
const PIECE_BYTES: usize = 512;

/// One event.
pub(crate) struct Event {
    /// Its name, where the API names them.
    pub(crate) name: Option<&'static str>,
    /// Its data, in one line.
    pub(crate) data: String,
}

impl Event {
    fn bytes(&self) -> Bytes {
        let name = self.name.map(|name| format!("event: {name}\n")).unwrap_or_default();
        format!("{name}data: {}\n\n", self.data).into()
    }
}

/// A body, and what writes it. Events wait where the client reads slowly.
pub(crate) fn open() -> (mpsc::Sender<Bytes>, Body) {
    let (sender, receiver) = mpsc::channel(16);
    let pieces = futures::stream::unfold(receiver, |mut receiver| async move {
        let bytes: Bytes = receiver.recv().await?;
        Some((Ok::<_, Infallible>(http_body::Frame::data(bytes)), receiver))
    });
    (sender, StreamBody::new(pieces).boxed_unsync())
}

/// The head of a stream.
pub(crate) fn response(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// Writes the events of a call. Ends early where nobody reads them; the call goes on.
pub(crate) async fn write(writer: mpsc::Sender<Bytes>, api: Api, asked: &Asked, call: &Call) {
    let mut ticks = interval(KEEPALIVE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let outcome = call.outcome();
    tokio::pin!(outcome);
    let outcome = loop {
        tokio::select! {
            biased;
            outcome = &mut outcome => break outcome,
            _ = ticks.tick() => {
                if writer.send(Bytes::from_static(b": waiting for the model\n\n")).await.is_err() {
                    return;
                }
            }
        }
    };
    let events = match &outcome {
        Ok(answered) => api.events(asked, answered, call.number),
        Err(refused) => vec![api.error_event(refused)],
    };
    for event in &events {
        if writer.send(event.bytes()).await.is_err() {
            return;
        }
    }
    // The client has read all but what the channel holds.
    if outcome.is_ok() && !writer.is_closed() {
        call.deliver();
    }
}

/// A text in pieces, as if it came by and by; none where it is empty.
pub(crate) fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let end = if rest.len() <= PIECE_BYTES { rest.len() } else { rest.floor_char_boundary(PIECE_BYTES) };
        let (piece, behind) = rest.split_at(end);
        rest = behind;
        (!piece.is_empty()).then_some(piece)
    })
}
