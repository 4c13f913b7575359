//! The proxy's HTTP: hyper reads requests, answers them, and speaks to peers. What is asked for is checked here, and the peer is
//! sent a request written anew, so that there is one reading of it.

use super::services::{ServiceBody, direct_address};
use super::{Peer, Proxy, Refused, Target};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Bytes, Incoming};
use hyper::ext::ReasonPhrase;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Uri, Version, client, server};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use std::convert::Infallible;
use std::mem::take;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Longest head of a request.
const HEAD_BYTES_MAX: usize = 16 << 10;
const PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
/// Headers of a request that are between the client and the proxy alone.
const HOP: [HeaderName; 6] =
    [header::HOST, header::CONNECTION, KEEP_ALIVE, header::UPGRADE, header::TE, header::TRAILER];

type Answer = Response<Either<ServiceBody, Incoming>>;
/// Connections to peers: ended when this is dropped.
type Peers = Mutex<JoinSet<()>>;

/// One request of a client, or a tunnel. The head comes within `head_max`.
pub(super) async fn serve<P: Proxy>(client: TcpStream, head_max: Duration, proxy: &P) -> hyper::Result<()> {
    let peers = Peers::default();
    let shared = &peers;
    let service = service_fn(move |request| async move {
        let answered = answer(request, proxy, shared).await;
        Ok::<_, Infallible>(answered.unwrap_or_else(|(status, why)| refusal(status, &why)))
    });
    let mut builder = server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(head_max).max_buf_size(HEAD_BYTES_MAX);
    builder.half_close(true).preserve_header_case(true).auto_date_header(false);
    builder.serve_connection(TokioIo::new(client), service).with_upgrades().await?;
    let mut peers = peers.into_inner();
    while peers.join_next().await.is_some() {}
    Ok(())
}

async fn answer<P: Proxy>(
    mut request: Request<Incoming>,
    proxy: &P,
    peers: &Peers,
) -> Result<Answer, (StatusCode, String)> {
    let direct = proxy.services().and_then(|_| direct_address(request.uri()));
    let is_direct = direct.is_some();
    if let Some(address) = direct {
        *request.uri_mut() = address;
    }
    let target = target(&request).map_err(|why| (StatusCode::BAD_REQUEST, why.to_owned()))?;
    let refused = |Refused { forbidden, why }| {
        (if forbidden { StatusCode::FORBIDDEN } else { StatusCode::BAD_GATEWAY }, why)
    };
    if let Some((granted, allowed)) = proxy.services()
        && let Some(found) = granted.find(&target, allowed)
    {
        let service = found.map_err(refused)?;
        if is_direct && !service.is_direct() {
            let why = format!("{} is asked by its name alone, through the proxy", target.host);
            return Err((StatusCode::FORBIDDEN, why));
        }
        rewrite(&mut request);
        return Ok(granted.answer(service, request).await?.map(Either::Left));
    }
    let mut peer = proxy.reach(&target).await.map_err(refused)?;
    if target.tunnel {
        let client = hyper::upgrade::on(&mut request);
        spawn(peers, async move {
            if let Ok(client) = client.await {
                let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(client), &mut peer).await;
            }
        });
        let mut answer = Answer::new(Either::Left(whole(Bytes::new())));
        answer.extensions_mut().insert(ReasonPhrase::from_static(b"Connection established"));
        return Ok(answer);
    }
    let failed = |why| (StatusCode::BAD_GATEWAY, format!("{}:{}: {why}", target.host, target.port));
    let mut answer = forward(request, peer, peers).await.map_err(|error| failed(error.to_string()))?;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Err(failed("changes to a protocol that was not asked for".to_owned()));
    }
    answer.headers_mut().remove(KEEP_ALIVE);
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    Ok(answer.map(Either::Right))
}

/// Where a request leads. What servers may read in two ways is refused.
fn target<B>(request: &Request<B>) -> Result<Target, &'static str> {
    let (uri, tunnel) = (request.uri(), request.method() == Method::CONNECT);
    if uri.scheme_str() != (!tunnel).then_some("http") {
        return Err("no absolute address");
    }
    let mut encodings = request.headers().get_all(header::TRANSFER_ENCODING).iter();
    if encodings.any(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"chunked")) {
        return Err("a transfer encoding that is not known");
    }
    let authority = authority(uri);
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | ':' | '[' | ']');
    let bracket = authority.rfind(']').unwrap_or(0);
    let (host, port) = match authority[bracket..].rfind(':') {
        Some(at) => (&authority[..bracket + at], authority[bracket + at + 1..].parse().ok()),
        None => (authority, (!tunnel).then_some(80)),
    };
    if host.is_empty() || !host.chars().all(plain) {
        return Err("no host");
    }
    Ok(Target { host: host.to_owned(), port: port.ok_or("no port")?, tunnel })
}

/// Host and port, as they were written.
fn authority(uri: &Uri) -> &str {
    let whole = uri.authority().map_or("", |authority| authority.as_str());
    whole.rsplit_once('@').map_or(whole, |(_, host)| host)
}

/// A request as its peer is to see it.
fn rewrite(request: &mut Request<Incoming>) {
    // The name that was checked is the one that is asked for.
    let host = HeaderValue::from_str(authority(request.uri())).expect("it was part of an address");
    let path = request.uri().path_and_query().cloned().map_or_else(Uri::default, Uri::from);
    let all = take(request.headers_mut());
    let headers = request.headers_mut();
    headers.insert(header::HOST, host);
    for (name, value) in &all {
        if !HOP.contains(name) && !name.as_str().starts_with("proxy-") {
            headers.append(name, value.clone());
        }
    }
    *request.uri_mut() = path;
    *request.version_mut() = Version::HTTP_11;
}

/// Asks the peer. One connection, one request: the next one is looked at anew.
async fn forward(
    mut request: Request<Incoming>,
    peer: Peer,
    peers: &Peers,
) -> hyper::Result<Response<Incoming>> {
    rewrite(&mut request);
    request.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    let mut builder = client::conn::http1::Builder::new();
    let (mut sender, connection) = builder.preserve_header_case(true).handshake(TokioIo::new(peer)).await?;
    spawn(peers, async move { drop(connection.await) });
    sender.send_request(request).await
}

/// Owned by `peers`.
fn spawn(peers: &Peers, carry: impl Future<Output = ()> + Send + 'static) {
    peers.lock().spawn(carry);
}

fn whole(body: Bytes) -> ServiceBody {
    Full::new(body).boxed_unsync()
}

fn refusal(status: StatusCode, why: &str) -> Answer {
    let mut answer = Answer::new(Either::Left(whole(format!("espalier: {why}\n").into_bytes().into())));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    answer.headers_mut().insert(PROXY_STATUS, proxy_status(status, why));
    answer
}

/// That the answer is the proxy's own, and why (RFC 9209).
fn proxy_status(status: StatusCode, why: &str) -> HeaderValue {
    let error = match status {
        StatusCode::FORBIDDEN => "http_request_denied",
        StatusCode::BAD_REQUEST => "http_request_error",
        _ => "destination_unavailable",
    };
    let plain = |letter: char| if matches!(letter, ' '..='~') { letter } else { '?' };
    let quoted = why.chars().map(plain).collect::<String>().replace('\\', "\\\\").replace('"', "\\\"");
    let value = HeaderValue::try_from(format!("espalier; error={error}; details=\"{quoted}\""));
    value.unwrap_or_else(|_| HeaderValue::from_static("espalier; error=proxy_internal_error"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// Lets everything through to one peer, and keeps where it was asked to.
    struct ToPeer {
        peer: std::net::SocketAddr,
        asked: Mutex<Option<Target>>,
    }

    impl Proxy for ToPeer {
        const SOCKS: bool = false;

        async fn reach(&self, target: &Target) -> Result<Peer, Refused> {
            *self.asked.lock() = Some(target.clone());
            let (from, to) = TcpStream::connect(self.peer).await.unwrap().into_split();
            Ok(tokio::io::join(from.take(u64::MAX), to))
        }
    }

    /// What a peer that gives this answer to each connection was sent, where the proxy was asked to connect to, and what the client
    /// was answered, which sends this and then no more.
    async fn exchange(sent: &str, answer: &'static str) -> (Option<String>, Option<Target>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = ToPeer { peer: listener.local_addr().unwrap(), asked: Mutex::default() };
        let peer = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut heard = Vec::new();
            while !is_whole(&heard) && stream.read_buf(&mut heard).await.unwrap() > 0 {}
            stream.write_all(answer.as_bytes()).await.unwrap();
            String::from_utf8(heard).unwrap()
        });
        let own = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(own.local_addr().unwrap()).await.unwrap();
        let (served, _) = own.accept().await.unwrap();
        client.write_all(sent.as_bytes()).await.unwrap();
        client.shutdown().await.unwrap();
        let mut answered = String::new();
        let (_, _) = tokio::join!(
            serve(served, Duration::from_secs(10), &proxy),
            client.read_to_string(&mut answered)
        );
        let asked = proxy.asked.into_inner();
        let heard = if asked.is_some() { Some(peer.await.unwrap()) } else { None };
        (heard, asked, answered)
    }

    /// Whether a peer has heard a request, or what comes first in a tunnel.
    fn is_whole(heard: &[u8]) -> bool {
        let heard = String::from_utf8_lossy(heard);
        let Some((head, body)) = heard.split_once("\r\n\r\n") else { return heard == "first" };
        match head.to_ascii_lowercase() {
            head if head.contains("transfer-encoding: chunked") => body.ends_with("0\r\n\r\n"),
            head if head.contains("content-length: 3") => body.len() >= 3,
            head if head.contains("content-length: 5") => body.len() >= 5,
            _ => true,
        }
    }

    const EMPTY: &str = "HTTP/1.1 204 No Content\r\n\r\n";

    #[tokio::test]
    async fn requests_are_understood() {
        let check = async |sent: &str, expect: Result<(&str, u16, &str), &str>| {
            let (heard, asked, answered) = exchange(sent, EMPTY).await;
            match expect {
                Ok((host, port, peer)) => {
                    let tunnel = sent.starts_with("CONNECT");
                    let target = Target { host: host.to_owned(), port, tunnel };
                    assert_eq!((heard.as_deref(), asked), (Some(peer), Some(target)), "{sent}");
                    let first = if tunnel { "HTTP/1.1 200 Connection established\r\n\r\n" } else { "" };
                    assert!(
                        answered.starts_with(&format!("{first}HTTP/1.1 204 No Content\r\n")),
                        "{answered}"
                    );
                }
                Err(expect) => {
                    assert_eq!(heard, None, "{sent}");
                    assert!(answered.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{answered}");
                    assert!(answered.ends_with(expect), "{answered}");
                }
            }
        };
        check("CONNECT a.org:443 HTTP/1.1\r\n\r\nfirst", Ok(("a.org", 443, "first"))).await;
        check("CONNECT [::1]:443 HTTP/1.1\r\n\r\nfirst", Ok(("[::1]", 443, "first"))).await;
        check("CONNECT a.org HTTP/1.1\r\n\r\n", Err("espalier: no port\n")).await;
        check(
            "GET http://u:p@a.org/x?y HTTP/1.1\r\nHost: b.org\r\nProxy-Connection: keep-alive\r\nA: b\r\n\r\n",
            Ok(("a.org", 80, "GET /x?y HTTP/1.1\r\nHost: a.org\r\nA: b\r\nconnection: close\r\n\r\n")),
        )
        .await;
        check(
            "GET http://a.org:8080 HTTP/1.1\r\n\r\n",
            Ok(("a.org", 8080, "GET / HTTP/1.1\r\nhost: a.org:8080\r\nconnection: close\r\n\r\n")),
        )
        .await;
        check(
            "GET http://[::1]?a HTTP/1.1\r\n\r\n",
            Ok(("[::1]", 80, "GET /?a HTTP/1.1\r\nhost: [::1]\r\nconnection: close\r\n\r\n")),
        )
        .await;
        check("GET /x HTTP/1.1\r\nHost: a.org\r\n\r\n", Err("espalier: no absolute address\n")).await;
        check("GET http://a.org:99999/ HTTP/1.1\r\n\r\n", Err("")).await;
        check("GET http://%61.org/ HTTP/1.1\r\n\r\n", Err("")).await;
        check("GET http://:80/ HTTP/1.1\r\n\r\n", Err("")).await;
        check("GET http://a.org/ HTTP/1.1 x\r\n\r\n", Err("")).await;
        check("GET http://a.org/ HTTP/2\r\n\r\n", Err("")).await;
        check("hello\r\n\r\n", Err("")).await;
    }

    #[tokio::test]
    async fn what_can_be_read_in_two_ways_is_refused() {
        for header in [
            "Connection : keep-alive",
            " Host: b.org",
            "Host: b.org\rX: y",
            "A: \0",
            "no colon",
            "Content-Length: 3\r\nContent-Length: 4",
            "Content-Length: +3",
            "Content-Length: 3, 3",
            "Content-Length:",
            "Transfer-Encoding: gzip, chunked",
            "Transfer-Encoding: identity",
        ] {
            let sent = format!("POST http://a.org/ HTTP/1.1\r\n{header}\r\n\r\n");
            let (heard, _, answered) = exchange(&sent, EMPTY).await;
            assert_eq!(heard, None, "{header:?}");
            assert!(answered.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{header:?}: {answered}");
        }
        // What hyper reads in one way is sent in that way.
        for (sent, expect) in [
            ("X-Y: 1\nHost: b.org\r\n\r\n", "Host: a.org\r\nX-Y: 1\r\nconnection: close\r\n\r\n"),
            (
                "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nabc",
                "host: a.org\r\nTransfer-Encoding: chunked\r\nconnection: close\r\n\r\n0\r\n\r\n",
            ),
            (
                "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
                "host: a.org\r\nContent-Length: 3\r\nconnection: close\r\n\r\nabc",
            ),
        ] {
            let (heard, ..) = exchange(&format!("POST http://a.org/ HTTP/1.1\r\n{sent}"), EMPTY).await;
            assert_eq!(heard, Some(format!("POST / HTTP/1.1\r\n{expect}")), "{sent:?}");
        }
    }

    #[tokio::test]
    async fn one_body_is_carried_and_nothing_after_it() {
        for (sent, expect) in [
            ("\r\nGET http://b.org/ HTTP/1.1\r\n\r\n", ""),
            ("Content-Length: 3\r\n\r\nabcGET /", "abc"),
            (
                "Transfer-Encoding: Chunked\r\nTrailer: T\r\n\r\n3;x=y\r\nabc\r\n0A\r\n0123456789\r\n0\r\nT: t\r\n\r\nGET /",
                "3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n",
            ),
        ] {
            let (heard, _, answered) =
                exchange(&format!("POST http://a.org/ HTTP/1.1\r\n{sent}"), EMPTY).await;
            let heard = heard.unwrap();
            assert_eq!(heard.split_once("\r\n\r\n").map(|(_, body)| body), Some(expect), "{sent:?}");
            assert_eq!(answered.matches("HTTP/1.1").count(), 1, "{answered}");
        }
        // A body that is not whole is not whole for the peer either.
        for body in ["3\r\nabcd\r\n0\r\n\r\n", "3\nabc\r\n0\r\n\r\n", "+3\r\nabc\r\n0\r\n\r\n", "-1\r\n", ""]
        {
            let sent = format!("POST http://a.org/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{body}");
            let (heard, _, answered) = exchange(&sent, EMPTY).await;
            assert!(!is_whole(heard.unwrap().as_bytes()), "{body:?}");
            assert!(!answered.contains("204"), "{body:?}: {answered}");
        }
        let (heard, ..) =
            exchange("POST http://a.org/ HTTP/1.1\r\nContent-Length: 5\r\n\r\nabc", EMPTY).await;
        assert!(!is_whole(heard.unwrap().as_bytes()));
    }

    #[tokio::test]
    async fn answers_come_as_the_peer_gave_them() {
        let ask = "GET http://a.org/ HTTP/1.1\r\n\r\n";
        for (answer, expect) in [
            (
                "HTTP/1.1 200 Fine\r\nX-Y: z\r\nConnection: keep-alive\r\nKeep-Alive: timeout=5\r\nContent-Length: 3\r\n\r\nabc",
                "HTTP/1.1 200 Fine\r\nX-Y: z\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc",
            ),
            ("HTTP/1.0 200 OK\r\n\r\nabc", "HTTP/1.0 200 OK\r\nconnection: close\r\n\r\nabc"),
            (
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nconnection: close\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            ),
        ] {
            assert_eq!(exchange(ask, answer).await.2, expect);
        }
        for answer in ["", "hello", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"] {
            let (_, _, answered) = exchange(ask, answer).await;
            assert!(answered.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{answer:?}: {answered}");
            assert!(answered.contains("espalier: a.org:80: "), "{answered}");
        }
    }

    #[tokio::test]
    async fn a_head_is_bounded_in_bytes_and_time() {
        let long = format!("GET http://a.org/ HTTP/1.1\r\nA: {}\r\n\r\n", "b".repeat(HEAD_BYTES_MAX));
        let (heard, _, answered) = exchange(&long, EMPTY).await;
        assert_eq!(heard, None);
        assert!(answered.starts_with("HTTP/1.1 431 "), "{answered}");
        let own = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(own.local_addr().unwrap()).await.unwrap();
        let (served, _) = own.accept().await.unwrap();
        client.write_all(b"GET http://a.org/ HTTP/1.1\r\nA: b").await.unwrap();
        let proxy = ToPeer { peer: own.local_addr().unwrap(), asked: Mutex::default() };
        let ended = serve(served, Duration::from_millis(50), &proxy).await;
        assert!(ended.unwrap_err().is_timeout());
    }
}
