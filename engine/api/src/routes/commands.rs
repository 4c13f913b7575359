//! `/v1/sandboxes/{id}/commands`: each runs once, whatever the network does.

mod forms;

use super::sandboxes::{WAIT_MAX_S, seconds};
use super::stream::{self, follow_events};
use crate::calls::{self, At};
use crate::http::{Api, Json, Query, Reader, Segments, Writer, header_text, read_body};
use crate::problem::Problem;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use espalier_agent_client::wire::{self, CommandSpec, Id, Stream};
use espalier_agent_client::{Agent, AgentError, Excerpts, Offsets, Reason};
use futures::StreamExt;
use http::{HeaderMap, StatusCode, header};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Commands, and their output as it comes.
pub(crate) fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(create, list))
        .routes(routes!(get, delete))
        .routes(routes!(output))
        .routes(routes!(input))
        .routes(routes!(signal))
        .routes(routes!(resize))
        .routes(routes!(super::stream::stream))
}

pub(crate) use forms::{
    CommandState, CommandView, Ending, RunCommand, SendSignal, SignalName, Terminal, cut,
};

/// Bound on a command where the request names none.
pub(crate) const TIMEOUT_S: f64 = 300.0;
/// Most of head or tail in an answer.
const EXCERPT_MAX: u32 = 1 << 20;
fn excerpts(head: Option<u32>, tail: Option<u32>) -> Result<Excerpts, Problem> {
    let default = Excerpts::default();
    let bound = |what: &str, given: Option<u32>, default: u32| match given.unwrap_or(default) {
        bytes if bytes <= EXCERPT_MAX => Ok(bytes),
        bytes => Err(Problem::invalid(
            what,
            bytes,
            "at most 1048576; `.../output` returns everything that is kept",
        )),
    };
    Ok(Excerpts {
        head_bytes: bound("head_bytes", head, default.head_bytes)?,
        tail_bytes: bound("tail_bytes", tail, default.tail_bytes)?,
    })
}

/// Whether the client asked for server-sent events.
pub(crate) fn wants_events(headers: &HeaderMap) -> bool {
    header_text(headers, header::ACCEPT.as_str()).is_some_and(|accept| accept.contains("text/event-stream"))
}

/// The sandbox of a request.
pub(crate) fn at(api: &Api, owner: &str, id: &str) -> Result<At, Problem> {
    let (sandbox, busy) = api.registry.running(owner, id)?;
    Ok(At { sandbox, busy })
}

/// Runs a command.
///
/// The response is sent when the command has ended or after `wait_s`; with `Accept: text/event-stream` the output is streamed
/// from the start. The command keeps running if the connection breaks.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/commands", tag = "commands", operation_id = "run_command",
    params(("id" = String, Path, description = "The id of the sandbox")), request_body = RunCommand,
    responses((status = 200, description = "The ended command, or a stream of its events", content((CommandView = "application/json"), (String = "text/event-stream"))),
        (status = 202, description = "The running command", body = CommandView)))]
pub(crate) async fn create(
    Writer(key): Writer,
    State(api): State<Api>,
    Segments(id): Segments<String>,
    headers: HeaderMap,
    Json(body): Json<RunCommand>,
) -> Result<Response, Problem> {
    let at = at(&api, &key.id, &id)?;
    let spec = body.spec(&at.sandbox)?;
    let excerpts = body.excerpts()?;
    let wait = seconds("wait_s", body.wait_s.unwrap_or(WAIT_MAX_S), WAIT_MAX_S)?;
    let (agent, call) = calls::begin(&at.sandbox, body.id.as_deref(), body.floor)?;
    if wants_events(&headers) {
        let (follow, _) = stream::begin(&agent, &call, spec).await?;
        return Ok(follow_events(follow, id, call, at));
    }
    let label = Some(spec.label.clone());
    let mut view = run(&agent, &id, &call, spec, excerpts, wait).await?;
    view.label = label;
    let status = if view.state == CommandState::Ended { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, axum::Json(view)).into_response())
}

/// Runs a command, waits so long for its end.
pub(crate) async fn run(
    agent: &Agent,
    sandbox_id: &str,
    call: &Id,
    spec: CommandSpec,
    excerpts: Excerpts,
    wait: Duration,
) -> Result<CommandView, Problem> {
    let lost = |error| Ok(CommandView::lost(sandbox_id, call, error)?);
    if wait.is_zero() {
        if let Err(error) = agent.start(call, spec).await {
            return lost(error);
        }
        return look(agent, sandbox_id, call, excerpts, Duration::ZERO).await;
    }
    // Dropping the call leaves the command running.
    match tokio::time::timeout(wait, agent.run(call, spec, excerpts)).await {
        Ok(Err(error)) => lost(error),
        Ok(Ok(answer)) => {
            let view = CommandView::of(sandbox_id, call, answer.ended.as_ref());
            Ok(view.printed(answer.stdout.unwrap_or_default(), answer.stderr.unwrap_or_default()))
        }
        Err(_) => look(agent, sandbox_id, call, excerpts, Duration::ZERO).await,
    }
}

/// What the agent says of a command, by the name that the client knows.
pub(crate) fn unknown(call: &Id, error: AgentError) -> Problem {
    match error.reason() {
        Some(Reason::NotFound) => Problem::not_found("command", &calls::text(call).unwrap_or_default()).hint(
            "it was never started, or its record has expired: records are kept for 15 minutes after the end",
        ),
        _ => error.into(),
    }
}

/// A command as it stands, after waiting so long for its end.
pub(crate) async fn look(
    agent: &Agent,
    sandbox_id: &str,
    call: &Id,
    excerpts: Excerpts,
    wait: Duration,
) -> Result<CommandView, Problem> {
    let request = |from: Offsets, bytes_max: u32, wait: Duration| wire::PollRequest {
        id: Some(call.clone()),
        stdout_from: from.stdout,
        stderr_from: from.stderr,
        bytes_max: bytes_max.max(1),
        wait_ms: crate::registry::millis(wait),
        until_ended: true,
    };
    let head = match agent.poll(request(Offsets::default(), excerpts.head_bytes, wait)).await {
        Ok(head) => head,
        Err(error) => {
            return CommandView::lost(sandbox_id, call, error).map_err(|error| unknown(call, error));
        }
    };
    let mut view = CommandView::of(sandbox_id, call, head.ended.as_ref());
    let totals = Offsets { stdout: head.stdout_total, stderr: head.stderr_total };
    let first = |stream| runs(&head, stream).into_iter().next();
    let head_end = |stream| first(stream).map_or(0, |(from, bytes)| from.saturating_add(bytes.len() as u64));
    let tail_from = |stream, total: u64| {
        total.saturating_sub(excerpts.tail_bytes.into()).max(head_end(stream)).min(total)
    };
    let from = Offsets {
        stdout: tail_from(Stream::Stdout, totals.stdout),
        stderr: tail_from(Stream::Stderr, totals.stderr),
    };
    let tail = if from == totals {
        wire::PollAnswer::default()
    } else {
        agent.poll(request(from, excerpts.tail_bytes.max(1), Duration::ZERO)).await?
    };
    let excerpt = |stream, total: u64| {
        let head = first(stream).map(|(_, bytes)| bytes).unwrap_or_default();
        let limit = usize::try_from(total.saturating_sub(head.len() as u64)).unwrap_or(usize::MAX);
        // What comes before a gap in it is not next to the end.
        let (_, mut tail) = runs(&tail, stream).pop().unwrap_or_default();
        tail.truncate(limit);
        let omitted = total.saturating_sub(head.len() as u64).saturating_sub(tail.len() as u64);
        wire::Excerpt { head, omitted_bytes: omitted, tail }
    };
    view = view.printed(excerpt(Stream::Stdout, totals.stdout), excerpt(Stream::Stderr, totals.stderr));
    Ok(view)
}

/// What an answer has of a stream: runs of bytes without a gap, and where each begins.
fn runs(answer: &wire::PollAnswer, stream: Stream) -> Vec<(u64, Bytes)> {
    let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
    for output in answer.outputs.iter().filter(|output| output.stream() == stream) {
        match runs.last_mut() {
            Some((from, bytes)) if from.saturating_add(bytes.len() as u64) == output.offset => {
                bytes.extend_from_slice(&output.bytes);
            }
            _ => runs.push((output.offset, output.bytes.to_vec())),
        }
    }
    runs.into_iter().map(|(from, bytes)| (from, bytes.into())).collect()
}

/// The commands of a sandbox, without their output.
#[derive(Serialize, ToSchema)]
pub(crate) struct CommandList {
    /// The commands.
    commands: Vec<CommandView>,
}

/// Lists the commands that are running or still recorded.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/commands", tag = "commands", operation_id = "list_commands",
    params(("id" = String, Path, description = "The id of the sandbox")), responses((status = 200, body = CommandList)))]
pub(crate) async fn list(
    Reader(key): Reader,
    State(api): State<Api>,
    Segments(id): Segments<String>,
) -> Result<axum::Json<CommandList>, Problem> {
    let At { sandbox, busy } = at(&api, &key.id, &id)?;
    let listed = sandbox.agent.list().await?;
    drop(busy);
    let commands = listed.into_iter().filter(|listed| !listed.shell).filter_map(|listed| {
        let call = listed.id?;
        calls::text(&call)?;
        let mut view = CommandView::of(&id, &call, listed.ended.as_ref());
        view.label = Some(listed.label);
        (view.stdout_bytes, view.stderr_bytes) = (listed.stdout_total, listed.stderr_total);
        Some(view)
    });
    Ok(axum::Json(CommandList { commands: commands.collect() }))
}

/// What to return of a command.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct LookQuery {
    /// How long to wait for the command to end, in seconds; default 0.
    #[param(minimum = 0, maximum = 600)]
    wait_s: Option<f64>,
    /// How many bytes to return from the start of each output; default 32768.
    #[param(maximum = 1_048_576)]
    head_bytes: Option<u32>,
    /// How many bytes to return from the end of each output; default 32768.
    #[param(maximum = 1_048_576)]
    tail_bytes: Option<u32>,
    /// For a stream: the offset in standard output to start from.
    stdout_from: Option<u64>,
    /// For a stream: the offset in standard error to start from.
    stderr_from: Option<u64>,
    /// For a stream: continue after the end of the command with the output of processes it left running; default false.
    follow: Option<bool>,
}

/// Returns a command.
///
/// With `Accept: text/event-stream` the output is streamed, from the offsets in the query or in `Last-Event-ID`
/// (`STDOUT:STDERR`).
#[utoipa::path(get, path = "/v1/sandboxes/{id}/commands/{command}", tag = "commands", operation_id = "get_command",
    params(("id" = String, Path, description = "The id of the sandbox"), ("command" = String, Path, description = "The id of the command"), LookQuery),
    responses((status = 200, description = "The command, or a stream of its events", content((CommandView = "application/json"), (String = "text/event-stream")))))]
pub(crate) async fn get(
    Reader(key): Reader,
    State(api): State<Api>,
    Segments((id, command)): Segments<(String, String)>,
    Query(query): Query<LookQuery>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let at = at(&api, &key.id, &id)?;
    let call = calls::parse("the command's id", &command)?;
    if wants_events(&headers) {
        let named =
            Offsets { stdout: query.stdout_from.unwrap_or(0), stderr: query.stderr_from.unwrap_or(0) };
        let from = stream::last_event(&headers)?.unwrap_or(named);
        let goes_on = query.follow.unwrap_or(false);
        let follow = stream::resume(&at.sandbox.agent, &call, from, goes_on).await?;
        return Ok(follow_events(follow, id, call, at));
    }
    let wait = seconds("wait_s", query.wait_s.unwrap_or(0.0), WAIT_MAX_S)?;
    let excerpts = excerpts(query.head_bytes, query.tail_bytes)?;
    let view = look(&at.sandbox.agent, &id, &call, excerpts, wait).await?;
    Ok(axum::Json(view).into_response())
}

/// One of the two outputs of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OutputStream {
    /// Standard output.
    #[default]
    Stdout,
    /// Standard error.
    Stderr,
}

/// The part of the output to return.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutputQuery {
    /// The output to return; default `stdout`.
    stream: Option<OutputStream>,
    /// The offset of the first byte; default 0.
    from: Option<u64>,
}

/// Returns the output of a command so far, as raw bytes.
///
/// Bytes that are no longer kept are left out; the header `Espalier-Gap: FROM-TO` gives their range if it is known at the start.
/// `Espalier-End` is the offset after the last byte: if the body is shorter, bytes were left out.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/commands/{command}/output", tag = "commands", operation_id = "command_output",
    params(("id" = String, Path, description = "The id of the sandbox"), ("command" = String, Path, description = "The id of the command"), OutputQuery),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream")))]
pub(crate) async fn output(
    Reader(key): Reader,
    State(api): State<Api>,
    Segments((id, command)): Segments<(String, String)>,
    Query(query): Query<OutputQuery>,
) -> Result<Response, Problem> {
    let At { sandbox, busy } = at(&api, &key.id, &id)?;
    let call = calls::parse("the command's id", &command)?;
    let stdout = query.stream.unwrap_or_default() == OutputStream::Stdout;
    let stream = if stdout { Stream::Stdout } else { Stream::Stderr };
    let from = query.from.unwrap_or(0);
    let ask = move |agent: Agent, call: Id, at: u64| async move {
        // The other stream from its end on: nothing of it.
        let other = u64::MAX >> 1;
        let request = wire::PollRequest {
            id: Some(call),
            stdout_from: if stdout { at } else { other },
            stderr_from: if stdout { other } else { at },
            bytes_max: EXCERPT_MAX,
            wait_ms: 0,
            until_ended: false,
        };
        agent.poll(request).await
    };
    let agent = sandbox.agent.clone();
    let first = ask(agent.clone(), call.clone(), from).await?;
    let end = if stdout { first.stdout_total } else { first.stderr_total };
    let gap = first.gaps.iter().find(|gap| gap.stream() == stream).map(|gap| (gap.from, gap.to));
    let body = futures::stream::try_unfold((Some(first), from, busy), move |(waiting, at, busy)| {
        let (agent, call) = (agent.clone(), call.clone());
        async move {
            let answer = match waiting {
                Some(answer) => answer,
                None if at >= end => return Ok(None),
                None => ask(agent, call, at).await.map_err(std::io::Error::other)?,
            };
            let past = answer.gaps.iter().filter(|gap| gap.stream() == stream).map(|gap| gap.to).max();
            let runs = runs(&answer, stream);
            match runs.last().map(|(from, bytes)| from.saturating_add(bytes.len() as u64)) {
                Some(next) => {
                    let bytes: Vec<u8> = runs.into_iter().flat_map(|(_, bytes)| bytes).collect();
                    Ok(Some((Bytes::from(bytes), (None, next, busy))))
                }
                None => match past.filter(|past| *past > at) {
                    Some(past) => Ok(Some((Bytes::new(), (None, past, busy)))),
                    None => Ok::<_, std::io::Error>(None),
                },
            }
        }
    });
    let mut response = axum::body::Body::from_stream(body.boxed()).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/octet-stream"));
    headers.insert("espalier-end", end.into());
    if let Some((from, to)) = gap
        && let Ok(value) = format!("{from}-{to}").parse()
    {
        headers.insert("espalier-gap", value);
    }
    Ok(response)
}

/// The position of the input.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct InputQuery {
    /// The offset of the first byte in the whole input of the command.
    offset: u64,
    /// Close standard input after these bytes; default false.
    end: Option<bool>,
    /// How long to wait until all bytes are accepted, in seconds; default 60.
    #[param(minimum = 0, maximum = 600)]
    wait_s: Option<f64>,
}

/// How much of the input was accepted.
#[derive(Serialize, ToSchema)]
pub(crate) struct InputTaken {
    /// The offset up to which all bytes were accepted.
    taken: u64,
    /// Whether the command has closed its standard input; further bytes are never accepted.
    closed: bool,
}

/// Writes to the standard input of a command.
///
/// The response is sent when all bytes are accepted, or after `wait_s`; the rest stays queued for the command. Bytes that were
/// accepted before are skipped, so a request can safely be repeated.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/commands/{command}/input", tag = "commands", operation_id = "command_input",
    params(("id" = String, Path, description = "The id of the sandbox"), ("command" = String, Path, description = "The id of the command"), InputQuery,
        ("Espalier-Call" = Option<String>, Header, description = "The id of the call, as `SESSION.EPOCH.COUNTER; floor=N`")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = InputTaken)))]
pub(crate) async fn input(
    Writer(key): Writer,
    State(api): State<Api>,
    Segments((id, command)): Segments<(String, String)>,
    Query(query): Query<InputQuery>,
    headers: HeaderMap,
    request: Request,
) -> Result<axum::Json<InputTaken>, Problem> {
    let at = at(&api, &key.id, &id)?;
    let target = calls::parse("the command's id", &command)?;
    let bytes = read_body(&api, request).await?;
    let wait = seconds("wait_s", query.wait_s.unwrap_or(60.0), WAIT_MAX_S)?;
    let (agent, call) = calls::begin_by_header(&at.sandbox, &headers)?;
    let all = agent.input(&call, &target, query.offset, bytes, query.end.unwrap_or(false));
    let taken = match tokio::time::timeout(wait, all).await {
        Ok(taken) => taken?,
        Err(_) => agent.input(&agent.allot(), &target, query.offset, Bytes::new(), false).await?,
    };
    Ok(axum::Json(InputTaken { taken: taken.taken, closed: taken.closed }))
}

/// The result of sending a signal.
#[derive(Serialize, ToSchema)]
pub(crate) struct SignalSent {
    /// How many processes received the signal.
    reached: u32,
}

/// Sends a signal to a command.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/commands/{command}/signal", tag = "commands", operation_id = "signal_command",
    params(("id" = String, Path, description = "The id of the sandbox"), ("command" = String, Path, description = "The id of the command"),
        ("Espalier-Call" = Option<String>, Header, description = "The id of the call, as `SESSION.EPOCH.COUNTER; floor=N`")),
    request_body = SendSignal, responses((status = 200, body = SignalSent)))]
pub(crate) async fn signal(
    Writer(key): Writer,
    State(api): State<Api>,
    Segments((id, command)): Segments<(String, String)>,
    headers: HeaderMap,
    Json(body): Json<SendSignal>,
) -> Result<axum::Json<SignalSent>, Problem> {
    let at = at(&api, &key.id, &id)?;
    let target = calls::parse("the command's id", &command)?;
    let (agent, call) = calls::begin_by_header(&at.sandbox, &headers)?;
    let sent = agent.signal(&call, &target, body.signal.number()?, body.tree.unwrap_or(false)).await?;
    Ok(axum::Json(SignalSent { reached: sent.reached }))
}

/// Resizes the terminal of a command.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/commands/{command}/resize", tag = "commands", operation_id = "resize_command",
    params(("id" = String, Path, description = "The id of the sandbox"), ("command" = String, Path, description = "The id of the command")),
    request_body = Terminal, responses((status = 204, description = "The terminal was resized")))]
pub(crate) async fn resize(
    Writer(key): Writer,
    State(api): State<Api>,
    Segments((id, command)): Segments<(String, String)>,
    Json(body): Json<Terminal>,
) -> Result<StatusCode, Problem> {
    let at = at(&api, &key.id, &id)?;
    let target = calls::parse("the command's id", &command)?;
    at.sandbox.agent.resize(&target, body.into()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Deletes a command: kills its processes and removes its record. Its id cannot be used again.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}/commands/{command}", tag = "commands", operation_id = "delete_command",
    params(("id" = String, Path, description = "The id of the sandbox"), ("command" = String, Path, description = "The id of the command")),
    responses((status = 204, description = "The command was deleted")))]
pub(crate) async fn delete(
    Writer(key): Writer,
    State(api): State<Api>,
    Segments((id, command)): Segments<(String, String)>,
) -> Result<StatusCode, Problem> {
    let at = at(&api, &key.id, &id)?;
    let target = calls::parse("the command's id", &command)?;
    let agent = &at.sandbox.agent;
    let call = agent.allot();
    agent.signal(&call, &target, 9, true).await?;
    // Its end is noted once it is reaped.
    let ended = wire::PollRequest {
        id: Some(target.clone()),
        wait_ms: 5_000,
        until_ended: true,
        ..wire::PollRequest::default()
    };
    agent.poll(ended).await?;
    agent.ack(vec![target]).await?;
    Ok(StatusCode::NO_CONTENT)
}
