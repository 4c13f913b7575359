//! What a command prints as it prints it: server-sent events, or a WebSocket that takes input as well. Every byte once, with
//! its offset, so that a client goes on where it was cut.

use super::commands::{CommandView, RunCommand, SendSignal, at, unknown};
use crate::calls::{self, At};
use crate::http::{Api, Open, RequestId, Segments, Writer, header_text, parse};
use crate::problem::{Code, Problem};
use axum::extract::State;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::response::sse::{Event as Sse, KeepAlive};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::{BufMut, Bytes, BytesMut};
use espalier_agent_client::wire::{CommandSpec, Id, PollRequest, Stream};
use espalier_agent_client::{Agent, AgentError, Event, Follow, Offsets};
use http::HeaderMap;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::convert::Infallible;
use std::time::Duration;

/// A stream that is silent says so: who stands between would cut it.
pub(crate) const ALIVE_EVERY: Duration = Duration::from_secs(15);
/// Largest message of a client.
const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Messages of input that wait for a command that does not read.
pub(crate) const INPUTS_MAX: usize = 16;
/// How long the first message may take.
const FIRST_MAX: Duration = Duration::from_secs(30);
/// How long a client may take to end a connection, once it was told.
const CLOSE_MAX: Duration = Duration::from_secs(5);
/// How long a client may take a message.
const SEND_MAX: Duration = Duration::from_secs(600);

/// Where a client that was cut had come: `STDOUT:STDERR`.
pub(crate) fn last_event(headers: &HeaderMap) -> Result<Option<Offsets>, Problem> {
    let Some(text) = header_text(headers, "last-event-id") else { return Ok(None) };
    let offsets = text
        .split_once(':')
        .and_then(|(out, err)| Some(Offsets { stdout: out.parse().ok()?, stderr: err.parse().ok()? }));
    offsets.map(Some).ok_or_else(|| {
        Problem::invalid("Last-Event-ID", crate::http::shown(text), "STDOUT:STDERR, two numbers of bytes")
    })
}

fn place(at: Offsets) -> String {
    format!("{}:{}", at.stdout, at.stderr)
}

fn word(stream: Stream) -> &'static str {
    match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
    }
}

#[derive(Serialize)]
struct Printed<'a> {
    offset: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
}

/// What a stream says, as one event.
fn as_sse(event: &Event, sandbox: &str, call: &Id) -> (&'static str, String) {
    let (name, data) = match event {
        Event::Output { stream, offset, bytes } => {
            let text = std::str::from_utf8(bytes).ok();
            let base64 = text.is_none().then(|| BASE64_STANDARD.encode(bytes));
            (word(*stream), serde_json::to_string(&Printed { offset: *offset, text, base64 }))
        }
        Event::Gap { stream, from, to } => {
            ("gap", Ok(json!({ "stream": word(*stream), "from": from, "to": to }).to_string()))
        }
        Event::Ended(ended) => ("ended", serde_json::to_string(&CommandView::of(sandbox, call, Some(ended)))),
    };
    (name, data.unwrap_or_default())
}

/// Starts a command: from here on it is recorded, so that who is cut attaches to it. With its process in the sandbox.
pub(crate) async fn begin(agent: &Agent, call: &Id, spec: CommandSpec) -> Result<(Follow, u32), Problem> {
    let started = agent.start(call, spec).await?;
    Ok((agent.attach(call, Offsets::default(), false), started.pid))
}

/// Goes on with a command that is recorded.
pub(crate) async fn resume(agent: &Agent, call: &Id, from: Offsets, follow: bool) -> Result<Follow, Problem> {
    // An id that is not known is not a stream.
    let look = PollRequest { id: Some(call.clone()), bytes_max: 1, ..PollRequest::default() };
    agent.poll(look).await.map_err(|error| unknown(call, error))?;
    Ok(agent.attach(call, from, follow))
}

/// A command's events as an answer.
pub(crate) fn follow_events(follow: Follow, sandbox: String, call: Id, at: At) -> Response {
    enum Next {
        Started,
        Rest,
        Done,
    }
    let events = futures::stream::unfold((follow, Next::Started, at), move |(mut follow, next, at)| {
        let (sandbox, call) = (sandbox.clone(), call.clone());
        async move {
            let event = match next {
                Next::Started => {
                    let data = json!({ "id": calls::text(&call).unwrap_or_default() }).to_string();
                    let sse = Sse::default().event("started").id(place(follow.offsets())).data(data);
                    return Some((Ok::<_, Infallible>(sse), (follow, Next::Rest, at)));
                }
                Next::Rest => follow.next().await,
                Next::Done => return None,
            };
            match event {
                Ok(Some(event)) => {
                    let (name, data) = as_sse(&event, &sandbox, &call);
                    let sse = Sse::default().event(name).id(place(follow.offsets())).data(data);
                    Some((Ok(sse), (follow, Next::Rest, at)))
                }
                Ok(None) => None,
                Err(error) => {
                    let (name, data) = match lost(&follow, &sandbox, &call, error) {
                        Ok(view) => ("ended", serde_json::to_string(&view)),
                        Err(problem) => ("error", serde_json::to_string(&problem.document(""))),
                    };
                    let sse = Sse::default().event(name).data(data.unwrap_or_default());
                    Some((Ok(sse), (follow, Next::Done, at)))
                }
            }
        }
    });
    axum::response::sse::Sse::new(events).keep_alive(KeepAlive::new().interval(ALIVE_EVERY)).into_response()
}

/// What the error of a stream means for its command, which had begun.
fn lost(follow: &Follow, sandbox: &str, call: &Id, error: AgentError) -> Result<CommandView, Problem> {
    // Behind its end only what it left running is lost.
    if follow.has_ended() { Err(error.into()) } else { Ok(CommandView::lost(sandbox, call, error)?) }
}

/// What a client says first on a WebSocket.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Opening {
    Start(Box<RunCommand>),
    Attach(Attach),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Attach {
    id: String,
    #[serde(default)]
    stdout_from: u64,
    #[serde(default)]
    stderr_from: u64,
    #[serde(default)]
    follow: bool,
}

/// What it says later.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum ClientMessage {
    StdinEnd(u64),
    Resize(super::commands::Terminal),
    Signal(SendSignal),
}

/// Runs a command over a WebSocket, or attaches to one.
///
/// The first message is text: `{"start": COMMAND}`, as for `run_command`, or `{"attach": {"id", "stdout_from", "stderr_from",
/// "follow"}}`. The service sends text, `{"event": "started" | "gap" | "ended" | "error", ...}`, and binary messages: one byte (1
/// standard output, 2 standard error), the offset in eight bytes, big endian, the bytes. The client sends binary messages: the
/// offset in its input in eight bytes, big endian, the bytes; and text: `{"stdin_end": OFFSET}`, `{"resize": {"rows",
/// "columns"}}`, `{"signal": {"signal", "tree"}}`. A terminal is a command with `terminal` and `stdin_open`.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/stream", tag = "commands", operation_id = "stream_command",
    params(("id" = String, Path, description = "The id of the sandbox")),
    responses((status = 101, description = "A WebSocket")))]
pub(crate) async fn stream(
    Writer(key): Writer,
    State(api): State<Api>,
    Segments(id): Segments<String>,
    axum::Extension(request): axum::Extension<RequestId>,
    place: Open,
    upgrade: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
) -> Result<Response, Problem> {
    let at = at(&api, &key.id, &id)?;
    let sockets = api.sockets.clone();
    Ok(upgraded(upgrade)?.on_upgrade(move |mut socket| {
        sockets.track_future(async move {
            let _place = place;
            let talked = exchange(&mut socket, &id, at).await;
            let code = match talked {
                Ok(()) => 1000,
                Err(problem) => {
                    tell(
                        &mut socket,
                        "error",
                        &serde_json::to_value(problem.document(&request.0)).unwrap_or_default(),
                    )
                    .await;
                    // What the client did, or what the service could not.
                    if problem.code.status().is_client_error() { 1008 } else { 1011 }
                }
            };
            close(&mut socket, code).await;
        })
    }))
}

/// A WebSocket, with its bounds.
pub(crate) fn upgraded(
    upgrade: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
) -> Result<WebSocketUpgrade, Problem> {
    let upgrade = upgrade.map_err(|error| {
        Problem::new(Code::Malformed, format!("not a WebSocket request: {}", error.body_text()))
            .hint("connect with a WebSocket client")
    })?;
    Ok(upgrade.max_message_size(MESSAGE_BYTES_MAX).max_frame_size(MESSAGE_BYTES_MAX))
}

/// Ends a WebSocket in order, if the client takes it: its own end is waited for. A connection that is closed before loses what
/// was sent last, where the client is still sending.
pub(crate) async fn close(socket: &mut WebSocket, code: u16) {
    let frame = Message::Close(Some(CloseFrame { code, reason: "".into() }));
    let closed = async {
        if socket.send(frame).await.is_ok() {
            while let Some(Ok(_)) = socket.recv().await {}
        }
    };
    let _ = tokio::time::timeout(CLOSE_MAX, closed).await;
}

/// Sends a message; whether the client took it.
pub(crate) async fn send(socket: &mut WebSocket, message: Message) -> bool {
    matches!(tokio::time::timeout(SEND_MAX, socket.send(message)).await, Ok(Ok(())))
}

async fn tell(socket: &mut WebSocket, event: &str, more: &serde_json::Value) -> bool {
    let mut whole = json!({ "event": event });
    if let (Some(whole), Some(more)) = (whole.as_object_mut(), more.as_object()) {
        whole.extend(more.clone());
    }
    send(socket, Message::Text(whole.to_string().into())).await
}

async fn exchange(socket: &mut WebSocket, sandbox: &str, at: At) -> Result<(), Problem> {
    let late = || Problem::new(Code::Timeout, "no first message arrived");
    let first = loop {
        match tokio::time::timeout(FIRST_MAX, socket.recv()).await.map_err(|_| late())? {
            Some(Ok(Message::Text(text))) => break text,
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            Some(Ok(_)) => {
                return Err(Problem::new(Code::Malformed, "the first message is not text")
                    .hint(r#"begin with {"start": {"command": "..."}} or {"attach": {"id": "..."}}"#));
            }
            Some(Err(_)) | None => return Ok(()),
        }
    };
    let (follow, call) = match parse(first.as_bytes())? {
        Opening::Start(body) => {
            let spec = body.spec(&at.sandbox)?;
            let (agent, call) = calls::begin(&at.sandbox, body.id.as_deref(), body.floor)?;
            (begin(&agent, &call, spec).await?.0, call)
        }
        Opening::Attach(Attach { id, stdout_from: stdout, stderr_from: stderr, follow }) => {
            let call = calls::parse("attach.id", &id)?;
            (resume(&at.sandbox.agent, &call, Offsets { stdout, stderr }, follow).await?, call)
        }
    };
    let id = calls::text(&call).unwrap_or_default();
    if !tell(socket, "started", &json!({ "id": id })).await {
        return Ok(());
    }
    converse(socket, sandbox, &at, follow, &call).await
}

/// Both ways, until the command has ended or the client is gone.
async fn converse(
    socket: &mut WebSocket,
    sandbox: &str,
    at: &At,
    mut follow: Follow,
    call: &Id,
) -> Result<(), Problem> {
    // Input waits for a command that does not read; output must not wait with it, nor the client's end be overlooked.
    let (input, mut queue) = tokio::sync::mpsc::channel::<(u64, Bytes, bool)>(INPUTS_MAX);
    let (agent, target) = (at.sandbox.agent.clone(), call.clone());
    let feed = async move {
        while let Some((offset, bytes, end)) = queue.recv().await {
            let taken = agent.input(&agent.allot(), &target, offset, bytes, end).await;
            match taken {
                Ok(taken) if taken.closed => break,
                Ok(_) => {}
                // Whoever follows the output tells it.
                Err(AgentError::Lost(_)) => break,
                Err(error) => return Err(Problem::from(error)),
            }
        }
        // What comes now is for nobody.
        while queue.recv().await.is_some() {}
        Ok(())
    };
    tokio::pin!(feed);
    let mut alive = tokio::time::interval(ALIVE_EVERY);
    loop {
        tokio::select! {
            event = follow.next() => match event {
                Err(error) => {
                    let view = lost(&follow, sandbox, call, error)?;
                    tell(socket, "ended", &serde_json::to_value(view).unwrap_or_default()).await;
                    return Ok(());
                }
                Ok(Some(Event::Output { stream, offset, bytes })) => {
                    let mut message = BytesMut::with_capacity(9 + bytes.len());
                    message.put_u8(if stream == Stream::Stdout { 1 } else { 2 });
                    message.put_u64(offset);
                    message.put_slice(&bytes);
                    if !send(socket, Message::Binary(message.freeze())).await {
                        return Ok(());
                    }
                }
                Ok(Some(Event::Gap { stream, from, to })) => {
                    tell(socket, "gap", &json!({ "stream": word(stream), "from": from, "to": to })).await;
                }
                Ok(Some(Event::Ended(ended))) => {
                    let view = CommandView::of(sandbox, call, Some(&ended));
                    tell(socket, "ended", &serde_json::to_value(view).unwrap_or_default()).await;
                }
                Ok(None) => return Ok(()),
            },
            // Full: the client waits, as at a pipe.
            (place, message) = async { (input.reserve().await, socket.recv().await) } => match message {
                Some(Ok(Message::Binary(bytes))) if bytes.len() >= 8 => {
                    let mut offset = [0; 8];
                    offset.copy_from_slice(&bytes[..8]);
                    if let Ok(place) = place {
                        place.send((u64::from_be_bytes(offset), bytes.slice(8..), false));
                    }
                }
                Some(Ok(Message::Binary(_))) => {
                    return Err(Problem::new(Code::Malformed, "a binary message starts with its offset in eight bytes"));
                }
                Some(Ok(Message::Text(text))) => match parse(text.as_bytes())? {
                    ClientMessage::StdinEnd(offset) => {
                        if let Ok(place) = place {
                            place.send((offset, Bytes::new(), true));
                        }
                    }
                    ClientMessage::Resize(terminal) => at.sandbox.agent.resize(call, terminal.into()).await?,
                    ClientMessage::Signal(signal) => {
                        let (agent, number) = (&at.sandbox.agent, signal.signal.number()?);
                        agent.signal(&agent.allot(), call, number, signal.tree.unwrap_or(false)).await?;
                    }
                },
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Close(_)) | Err(_)) | None => return Ok(()),
            },
            _ = alive.tick() => {
                if !send(socket, Message::Ping(Bytes::new())).await {
                    return Ok(());
                }
            }
            ended = &mut feed => ended?,
        }
    }
}
