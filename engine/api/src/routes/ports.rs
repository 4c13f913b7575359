//! What listens inside a sandbox: HTTP through a proxy, any other protocol through a WebSocket.

use super::commands::at;
use super::stream::{close, send, upgraded};
use crate::http::{Api, Open, Segments, Writer};
use crate::problem::{Code, Problem};
use crate::registry::Busy;
use axum::body::Body;
use axum::extract::ws::{Message, WebSocketUpgrade};
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use espalier_agent_client::wire::Reason;
use espalier_agent_client::{Agent, AgentError};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// What listens inside.
pub(crate) fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(tunnel))
        // Every method goes through, so it has no entry of its own in the description.
        .route("/v1/sandboxes/{id}/ports/{port}", axum::routing::any(root))
        .route("/v1/sandboxes/{id}/ports/{port}/", axum::routing::any(root))
        .route("/v1/sandboxes/{id}/ports/{port}/{*path}", axum::routing::any(proxy))
}

/// Bytes on their way in each direction.
const PIPE_BYTES: usize = 64 << 10;
/// For bytes that are on their way when who asked has gone.
const LINGER_MAX: Duration = Duration::from_secs(30);
/// The head of an answer.
const ANSWER_MAX: Duration = Duration::from_secs(300);

/// Headers between two neighbours alone (RFC 9110, 7.6.1).
const HOP: [&str; 7] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
];

/// A connection to a port inside. Who carries it ends with either side, or when the sandbox does.
async fn connect(agent: &Agent, port: u16, busy: Busy) -> Result<Carried, Problem> {
    let forward = agent.forward(port, "").await.map_err(|error| match &error {
        AgentError::Refused { reason: Reason::NotFound | Reason::Io, message, .. } => {
            Problem::new(Code::NoListener, format!("port {port}: {message}"))
                .hint("start a server on 127.0.0.1 inside the sandbox; with the network `none` there is no loopback either")
        }
        _ => error.into(),
    })?;
    let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
    let gone = CancellationToken::new();
    let whole = Carried { stream: ours, _gone: gone.clone().drop_guard() };
    // Ends when both sides have, or with who asked for it: what is on its way then has some time to arrive.
    tokio::spawn(async move {
        let left = async {
            gone.cancelled().await;
            tokio::time::sleep(LINGER_MAX).await;
        };
        tokio::select! {
            carried = forward.carry(theirs) => {
                if let Err(error) = carried {
                    tracing::debug!(port, %error, "a connection to a port was closed");
                }
            }
            () = left => {}
        }
        drop(busy);
    });
    Ok(whole)
}

/// A connection to a port inside.
struct Carried {
    stream: DuplexStream,
    _gone: DropGuard,
}

impl AsyncRead for Carried {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, bytes)
    }
}

impl AsyncWrite for Carried {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

fn port(text: &str) -> Result<u16, Problem> {
    let port = text.parse().ok().filter(|port| *port != 0);
    port.ok_or_else(|| Problem::invalid("the port", crate::http::shown(text), "1 to 65535"))
}

/// `.../ports/{port}` itself.
pub(crate) async fn root(
    writer: Writer,
    state: State<Api>,
    Segments((id, port)): Segments<(String, String)>,
    place: Open,
    request: Request,
) -> Result<Response, Problem> {
    proxy(writer, state, Segments((id, port, String::new())), place, request).await
}

/// Passes a request on to what listens inside, and its answer back.
pub(crate) async fn proxy(
    Writer(key): Writer,
    State(api): State<Api>,
    Segments((id, named, _)): Segments<(String, String, String)>,
    place: Open,
    request: Request,
) -> Result<Response, Problem> {
    let at = at(&api, &key.id, &id)?;
    let port = port(&named)?;
    let prefix = format!("/v1/sandboxes/{id}/ports/{named}");
    let stream = connect(&at.sandbox.agent, port, at.busy).await?;
    pass_on(stream, port, &prefix, request, (&api.sockets, place)).await
}

/// The same over a connection to the port. What listens there is a stranger: it changes the protocol only to one that the client has
/// asked for. `sockets` has the connection from then on, and keeps its place among those that are open.
async fn pass_on(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    port: u16,
    prefix: &str,
    mut request: Request,
    (sockets, place): (&TaskTracker, Open),
) -> Result<Response, Problem> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| bad(port, &error))?;
    // Ends with the answer's body, or with what the connection was changed into.
    tokio::spawn(connection.with_upgrades());
    // As it was sent, not as it was matched: percent signs stay what they are.
    let raw = request.uri().path_and_query().map_or("/", |whole| whole.as_str());
    let rest = raw.strip_prefix(prefix).unwrap_or(raw);
    let rest = if rest.starts_with('/') { rest.to_owned() } else { format!("/{rest}") };
    let target: Uri =
        rest.parse().map_err(|_| Problem::new(Code::Malformed, "the path cannot be passed on"))?;
    let asked = upgrade_asked_for(&request);
    let client = asked.is_some().then(|| hyper::upgrade::on(&mut request));
    let (mut parts, body) = request.into_parts();
    parts.uri = target;
    parts.version = http::Version::HTTP_11;
    let host = parts.headers.get(header::HOST).cloned();
    for name in [header::AUTHORIZATION.as_str(), "x-api-key"] {
        parts.headers.remove(name);
    }
    plain(&mut parts.headers, asked.as_ref());
    parts.headers.insert(header::HOST, value(&format!("127.0.0.1:{port}")));
    parts.headers.insert("x-forwarded-prefix", value(prefix));
    if let Some(host) = host {
        parts.headers.insert("x-forwarded-host", host);
    }
    let sent = sender.send_request(http::Request::from_parts(parts, body));
    let answer = tokio::time::timeout(ANSWER_MAX, sent).await.map_err(|_| {
        Problem::new(Code::Timeout, format!("port {port} did not answer for {} s", ANSWER_MAX.as_secs()))
    })?;
    let mut answer = answer.map_err(|error| bad(port, &error))?;
    let mut protocol = None;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        let said = answer.headers().get(header::UPGRADE).cloned();
        let (Some(client), Some(said)) = (client, said.filter(|said| names_one_of(said, asked.as_ref())))
        else {
            let detail = format!(
                "the server on port {port} switched to a protocol that was not requested (status 101)"
            );
            return Err(Problem::new(Code::NoListener, detail)
                .hint("request one with `Connection: upgrade` and `Upgrade`, over HTTP/1.1"));
        };
        let inside = hyper::upgrade::on(&mut answer);
        // Ends with either side.
        sockets.spawn(async move {
            let _place = place;
            if let (Ok(client), Ok(inside)) = tokio::join!(client, inside) {
                let (mut client, mut inside) = (TokioIo::new(client), TokioIo::new(inside));
                let _ = tokio::io::copy_bidirectional(&mut client, &mut inside).await;
            }
        });
        protocol = Some(said);
    }
    let (mut parts, body) = answer.into_parts();
    plain(&mut parts.headers, protocol.as_ref());
    Ok(Response::from_parts(parts, Body::new(body)).into_response())
}

/// The protocols that a client asks to change to, where it does (RFC 9110, 7.8).
fn upgrade_asked_for(request: &Request) -> Option<HeaderValue> {
    let words = |name: HeaderName| {
        let values = request.headers().get_all(name).iter().filter_map(|value| value.to_str().ok());
        values
            .flat_map(|text| text.split(','))
            .map(|word| word.trim().to_ascii_lowercase())
            .collect::<Vec<_>>()
    };
    let connected = words(header::CONNECTION).iter().any(|word| word == "upgrade");
    let protocols = words(header::UPGRADE).join(", ");
    let asked = request.version() == http::Version::HTTP_11 && connected && !protocols.is_empty();
    asked.then(|| HeaderValue::from_str(&protocols).ok()).flatten()
}

/// Whether an answer changes to one of the protocols that were asked for.
fn names_one_of(said: &HeaderValue, asked: Option<&HeaderValue>) -> bool {
    let text = |value: &HeaderValue| value.to_str().unwrap_or_default().trim().to_ascii_lowercase();
    let said = text(said);
    asked.is_some_and(|asked| text(asked).split(", ").any(|asked| !asked.is_empty() && asked == said))
}

/// Takes away what is between two neighbours alone, and says anew what changes the protocol.
fn plain(headers: &mut HeaderMap, protocol: Option<&HeaderValue>) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|names| names.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in HOP {
        headers.remove(name);
    }
    headers.remove(header::UPGRADE);
    if let Some(protocol) = protocol {
        headers.insert(header::UPGRADE, protocol.clone());
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    }
}

fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

fn bad(port: u16, error: &hyper::Error) -> Problem {
    Problem::new(Code::NoListener, format!("the server on port {port} does not speak HTTP: {error}"))
        .hint("other protocols go through `/v1/sandboxes/{id}/tunnels/{port}`")
}

/// Connects to a port inside the sandbox. The bytes are sent as binary messages of a WebSocket.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/tunnels/{port}", tag = "ports", operation_id = "tunnel",
    params(("id" = String, Path, description = "The id of the sandbox"), ("port" = u16, Path, description = "A port on 127.0.0.1 inside the sandbox", minimum = 1)),
    responses((status = 101, description = "A WebSocket")))]
pub(crate) async fn tunnel(
    Writer(key): Writer,
    State(api): State<Api>,
    Segments((id, named)): Segments<(String, String)>,
    place: Open,
    upgrade: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
) -> Result<Response, Problem> {
    let at = at(&api, &key.id, &id)?;
    let port = port(&named)?;
    let upgrade = upgraded(upgrade)?;
    let stream = connect(&at.sandbox.agent, port, at.busy).await?;
    let sockets = api.sockets.clone();
    Ok(upgrade.on_upgrade(move |mut socket| {
        sockets.track_future(async move {
            let _place = place;
            let (mut reading, mut writing) = tokio::io::split(stream);
            let (input, mut queue) = tokio::sync::mpsc::channel::<Bytes>(1);
            let feed = async move {
                while let Some(bytes) = queue.recv().await {
                    // An empty message says that nothing follows.
                    let written =
                        if bytes.is_empty() { writing.shutdown().await } else { writing.write_all(&bytes).await };
                    if bytes.is_empty() || written.is_err() {
                        return;
                    }
                }
            };
            tokio::pin!(feed);
            let mut feeding = true;
            loop {
                let mut bytes = BytesMut::with_capacity(16 << 10);
                tokio::select! {
                    read = reading.read_buf(&mut bytes) => match read {
                        Ok(1..) => {
                            if !send(&mut socket, Message::Binary(bytes.freeze())).await {
                                return;
                            }
                        }
                        Ok(0) | Err(_) => break,
                    },
                    // What nobody reads any more is dropped; an answer to it may still come.
                    () = &mut feed, if feeding => feeding = false,
                    (place, message) = async { (input.reserve().await, socket.recv().await) } => match message {
                        Some(Ok(Message::Binary(bytes))) => {
                            if let Ok(place) = place {
                                place.send(bytes);
                            }
                        }
                        Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                        Some(Ok(_) | Err(_)) | None => return,
                    },
                }
            }
            close(&mut socket, 1000).await;
        })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is passed back where a server inside answers so.
    async fn answer(
        version: http::Version,
        headers: &[(&str, &str)],
        said: &'static str,
    ) -> (u16, Vec<String>) {
        let (ours, mut theirs) = tokio::io::duplex(1 << 16);
        let server = tokio::spawn(async move {
            let mut heard = Vec::new();
            while !heard.ends_with(b"\r\n\r\n") && theirs.read_buf(&mut heard).await.unwrap() > 0 {}
            theirs.write_all(said.as_bytes()).await.unwrap();
            (String::from_utf8(heard).unwrap(), theirs)
        });
        let mut request = http::Request::builder().version(version).uri("/v1/sandboxes/a/ports/80/x");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).unwrap();
        let passed =
            pass_on(ours, 80, "/v1/sandboxes/a/ports/80", request, (&TaskTracker::new(), Open::default()))
                .await;
        let (heard, _open) = server.await.unwrap();
        let status = passed.map_or_else(|problem| problem.code.status(), |response| response.status());
        let upgrade =
            heard.lines().filter(|line| line.starts_with("upgrade") || line.starts_with("connection"));
        (status.as_u16(), upgrade.map(str::to_owned).collect())
    }

    #[tokio::test]
    async fn a_protocol_is_changed_only_as_the_client_asked() {
        use http::Version;
        let changed = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
        let silent = "HTTP/1.1 101 Switching Protocols\r\n\r\n";
        let other = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n";
        let plain = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        let asks = [("connection", "keep-alive, Upgrade"), ("upgrade", "WebSocket")];
        let two = [("connection", "upgrade"), ("upgrade", "h2c, websocket")];
        let half = [("upgrade", "websocket")];
        type Case<'a> = (Version, &'a [(&'a str, &'a str)], &'static str, u16);
        let cases: [Case<'_>; 9] = [
            (Version::HTTP_11, &asks, changed, 101),
            (Version::HTTP_11, &two, changed, 101),
            (Version::HTTP_11, &asks, plain, 200),
            (Version::HTTP_11, &asks, other, 502),
            (Version::HTTP_11, &asks, silent, 502),
            (Version::HTTP_11, &[], changed, 502),
            (Version::HTTP_11, &[], silent, 502),
            (Version::HTTP_11, &half, changed, 502),
            (Version::HTTP_2, &asks, changed, 502),
        ];
        for (version, headers, said, expect) in cases {
            let (status, passed_on) = answer(version, headers, said).await;
            assert_eq!(status, expect, "{version:?} {headers:?} {said:?}");
            let asked = expect == 101 || (headers == asks && version == Version::HTTP_11);
            assert_eq!(!passed_on.is_empty(), asked, "{version:?} {headers:?}: {passed_on:?}");
        }
    }
}
