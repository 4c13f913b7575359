//! A terminal over a WebSocket, in messages of JSON.

use super::super::commands::SignalName;
use super::super::stream::{ALIVE_EVERY, INPUTS_MAX, close, send, upgraded};
use super::at;
use super::caller::SocketWriter;
use super::forms::CommandLine;
use super::jobs::{login_in_terminal, quoted};
use super::values::{self, Flag, Number, REQUEST_MAX};
use crate::calls::{self, At};
use crate::http::{Api, Open, Query, Segments, parse};
use crate::problem::{Code, Problem};
use axum::extract::State;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use espalier_agent_client::wire::{CommandSpec, Terminal, outcome::Outcome};
use espalier_agent_client::{Event, command};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use utoipa::IntoParams;

/// How long the first message may take.
const FIRST_MAX: Duration = Duration::from_secs(30);

/// Who calls.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct PtyQuery {
    /// The key, for clients that cannot set a header.
    #[serde(rename = "api_key")]
    #[param(rename = "api_key")]
    _api_key: Option<String>,
}

/// What a client says.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum ClientMessage {
    Init(Init),
    Stdin { data: String },
    Signal { sig: Option<SignalName> },
    Resize { rows: Number, cols: Number },
    Close,
}

/// What to run.
#[derive(Deserialize)]
struct Init {
    cmd: Option<CommandLine>,
    env: Option<BTreeMap<String, String>>,
    cwd: Option<String>,
    rows: Option<Number>,
    cols: Option<Number>,
    login_shell: Option<Flag>,
}

/// The size of a terminal.
fn size(rows: Number, columns: Number) -> Terminal {
    Terminal { rows: rows.within(1, u16::MAX).into(), columns: columns.within(1, u16::MAX).into() }
}

/// A signal as its service knows it: in any case, and SIGTERM for what it does not know.
fn signal(named: Option<SignalName>) -> i32 {
    const SIGTERM: i32 = 15;
    let named = named.map(|name| match name {
        SignalName::Name(text) => SignalName::Name(text.to_uppercase()),
        number => number,
    });
    named.and_then(|name| name.number().ok()).unwrap_or(SIGTERM)
}

/// Opens a terminal over a WebSocket, with JSON messages.
///
/// The client sends `{"type": "init", "cmd", "env", "cwd", "rows", "cols", "login_shell"}`, then `stdin` with `data` (base64),
/// `signal` with `sig`, `resize` with `rows` and `cols`, or `close`; other messages are ignored. It receives `ready`, `stdout`
/// with `data` (base64), `exit` with `code`, or `error` with `message`.
#[utoipa::path(get, path = "/sandboxes/{id}/exec/pty", tag = "orchard", operation_id = "orchard_pty",
    params(("id" = String, Path, description = "The id of the sandbox"), PtyQuery), responses((status = 101, description = "A WebSocket")))]
pub(crate) async fn pty(
    SocketWriter(key): SocketWriter,
    State(api): State<Api>,
    Segments(id): Segments<String>,
    Query(_key): Query<PtyQuery>,
    place: Open,
    upgrade: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
) -> Result<Response, Problem> {
    let at = at(&api, &key.id, &id, REQUEST_MAX).await?;
    let sockets = api.sockets.clone();
    Ok(upgraded(upgrade)?.on_upgrade(move |mut socket| {
        sockets.track_future(async move {
            let _place = place;
            if let Err(problem) = exchange(&mut socket, at).await {
                tell(&mut socket, &json!({ "type": "error", "message": problem.detail })).await;
            }
            close(&mut socket, 1000).await;
        })
    }))
}

async fn tell(socket: &mut WebSocket, message: &Value) -> bool {
    send(socket, Message::Text(message.to_string().into())).await
}

/// The next message; `None`: the client is gone.
async fn next(socket: &mut WebSocket) -> Option<Result<ClientMessage, Problem>> {
    loop {
        match socket.recv().await {
            Some(Ok(Message::Text(text))) => return Some(parse(text.as_bytes())),
            Some(Ok(Message::Binary(bytes))) => return Some(parse(&bytes)),
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            Some(Ok(Message::Close(_)) | Err(_)) | None => return None,
        }
    }
}

/// The next message that says something.
async fn hear(socket: &mut WebSocket) -> Option<ClientMessage> {
    loop {
        if let Ok(saying) = next(socket).await? {
            return Some(saying);
        }
    }
}

async fn exchange(socket: &mut WebSocket, At { sandbox, busy: _busy }: At) -> Result<(), Problem> {
    let first = tokio::time::timeout(FIRST_MAX, next(socket)).await;
    let first = first.map_err(|_| Problem::new(Code::Timeout, "no first message arrived"))?;
    let init = match first.transpose()? {
        Some(ClientMessage::Init(init)) => init,
        Some(_) => return Err(Problem::new(Code::Malformed, "the first message is not `init`")),
        None => return Ok(()),
    };
    let agent = &sandbox.agent;
    let call = agent.allot();
    let (mut follow, pid) = super::super::stream::begin(agent, &call, spec(&sandbox, init)).await?;
    if !tell(socket, &json!({ "type": "ready", "pid": pid, "id": calls::text(&call) })).await {
        return Ok(());
    }
    // Input waits for a program that does not read; nothing else must wait with it.
    let (input, mut queue) = tokio::sync::mpsc::channel::<Vec<u8>>(INPUTS_MAX);
    let feed = async {
        let mut offset = 0;
        while let Some(bytes) = queue.recv().await {
            let length = bytes.len() as u64;
            agent.input(&agent.allot(), &call, offset, bytes.into(), false).await?;
            offset += length;
        }
        Ok::<_, Problem>(())
    };
    tokio::pin!(feed);
    // Where input waits, the client's end is seen by what can no more be sent to it.
    let mut alive = tokio::time::interval(ALIVE_EVERY);
    let talked = loop {
        tokio::select! {
            fed = &mut feed => break fed,
            event = follow.next() => match event {
                Ok(Some(Event::Output { bytes, .. })) => {
                    let data = BASE64_STANDARD.encode(bytes);
                    if !tell(socket, &json!({ "type": "stdout", "data": data })).await {
                        break Ok(());
                    }
                }
                Ok(Some(Event::Ended(ended))) => {
                    let code = match ended.outcome.and_then(|outcome| outcome.outcome) {
                        Some(Outcome::ExitCode(code)) => Some(code),
                        Some(Outcome::Signal(signal)) => Some(-signal),
                        _ => None,
                    };
                    tell(socket, &json!({ "type": "exit", "code": code })).await;
                    return Ok(());
                }
                Ok(Some(Event::Gap { .. })) => {}
                Ok(None) => return Ok(()),
                Err(error) => break Err(error.into()),
            },
            (place, said) = async { (input.reserve().await, hear(socket).await) } => match said {
                Some(ClientMessage::Stdin { data }) => {
                    let Ok(bytes) = values::decode(&data) else {
                        break Err(Problem::new(Code::Invalid, "stdin: `data` is not base64"));
                    };
                    if let Ok(place) = place {
                        place.send(bytes);
                    }
                }
                Some(ClientMessage::Signal { sig }) => {
                    // To the shell and what it waits for: a shell heeds a signal only when that has ended.
                    let _ = agent.signal(&agent.allot(), &call, signal(sig), true).await;
                }
                Some(ClientMessage::Resize { rows, cols }) => {
                    // One that has ended has no size.
                    let _ = agent.resize(&call, size(rows, cols)).await;
                }
                Some(ClientMessage::Init(_)) => break Err(Problem::new(Code::Malformed, "a second `init`")),
                Some(ClientMessage::Close) | None => break Ok(()),
            },
            _ = alive.tick() => {
                if !send(socket, Message::Ping(Bytes::new())).await {
                    break Ok(());
                }
            }
        }
    };
    // Nobody could attach to it again: it goes with its client.
    let _ = agent.signal(&agent.allot(), &call, 9, true).await;
    talked
}

fn spec(sandbox: &espalier_sandbox::service::Sandbox, init: Init) -> CommandSpec {
    let login = init.login_shell.is_some_and(|login| login.0);
    let program = match init.cmd {
        Some(CommandLine::Text(text)) if login => login_in_terminal(&text),
        Some(CommandLine::Text(text)) => command::script(text),
        Some(CommandLine::Words(words)) if words.is_empty() => shell(login),
        Some(CommandLine::Words(words)) if login => login_in_terminal(&quoted(&words)),
        Some(CommandLine::Words(words)) => command::arguments(words),
        None => shell(login),
    };
    let folder = calls::folder(sandbox, init.cwd.as_deref().filter(|cwd| !cwd.is_empty()));
    // 0 is the default.
    let given = |size: Option<Number>, default| size.filter(|size| size.0 != 0.0).unwrap_or(Number(default));
    CommandSpec {
        folder: folder.into(),
        environment: calls::variables(init.env.as_ref()),
        user: sandbox.user.clone().unwrap_or_default(),
        terminal: Some(size(given(init.rows, 24.0), given(init.cols, 80.0))),
        stdin_open: true,
        label: "pty".to_owned(),
        ..program
    }
}

/// The best shell there is.
fn shell(login: bool) -> CommandSpec {
    let login = if login { "-l" } else { "-i" };
    command::script(format!("exec $(command -v bash || echo sh) {login}"))
}
