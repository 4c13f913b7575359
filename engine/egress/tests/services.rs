//! Services of the engine behind the proxy of a sandbox, over real connections.
#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use espalier_egress::{Allowed, Caller, Service, Services, Shared, serve};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Request, Response, StatusCode, header};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Says what it was asked, or never answers.
fn services() -> Services {
    let echo = Service::new(|request: Request<Bytes>| async move {
        if request.uri().path() == "/never" {
            std::future::pending::<()>().await;
        }
        let caller = request.extensions().get::<Caller>().cloned().unwrap();
        let said = format!(
            "{} {} of {} by {}: {} bytes, {:?}",
            request.method(),
            request.uri(),
            request.headers()[header::HOST].to_str().unwrap(),
            caller.sandbox,
            request.body().len(),
            request.headers().get("x-own"),
        );
        let mut answer = Response::new(Bytes::from(said));
        *answer.status_mut() = StatusCode::CREATED;
        // Not its own to say.
        answer.headers_mut().insert(header::CONTENT_LENGTH, 1.into());
        answer.headers_mut().insert(header::CONNECTION, "x-hop".parse().unwrap());
        answer
    });
    // As `echo`, for clients that know of no proxies, with more time and refusals of its own.
    let patient = echo.clone().direct().within(Duration::from_secs(90)).refusing(|status, why| {
        let body = Full::new(Bytes::from(format!("own: {why}"))).boxed_unsync();
        Response::builder().status(status).body(body).unwrap()
    });
    Services::new(move |name| match name {
        "echo" => Some(echo.clone()),
        "patient" => Some(patient.clone()),
        _ => None,
    })
}

/// A connection to a proxy with these rules.
async fn connect(rules: &[&str]) -> TcpStream {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let rules: Vec<String> = rules.iter().map(|rule| (*rule).to_owned()).collect();
    let allowed = Allowed::parse(&rules).unwrap();
    tokio::spawn(serve("s1".to_owned(), listener, allowed, services(), Shared::default()));
    TcpStream::connect(address).await.unwrap()
}

/// The answer's first line and body.
async fn exchange(stream: &mut TcpStream, request: &[u8]) -> (String, String) {
    // The proxy may have said no before it read all.
    let _ = stream.write_all(request).await;
    let mut heard = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&heard).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.to_ascii_lowercase();
            let length =
                length.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()).unwrap_or("0");
            if body.len() >= length.parse().unwrap() {
                assert!(!head.contains("x-hop"), "{head}");
                return (head.lines().next().unwrap().to_owned(), body.to_owned());
            }
        }
        assert!(stream.read_buf(&mut heard).await.unwrap() > 0, "cut after {text}");
    }
}

#[tokio::test]
async fn requests_are_answered_one_after_the_other() {
    let mut stream = connect(&["service:echo"]).await;
    for (request, expect) in [
        (
            "GET http://echo.espalier.internal/a?b=c HTTP/1.1\r\nHost: forged\r\nX-Own: 1\r\n\r\n",
            "GET /a?b=c of echo.espalier.internal by s1: 0 bytes, Some(\"1\")",
        ),
        (
            "POST http://Echo.espalier.internal:80 HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
            "POST / of Echo.espalier.internal:80 by s1: 3 bytes, None",
        ),
        (
            "PUT http://echo.espalier.internal/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
            "PUT / of echo.espalier.internal by s1: 2 bytes, None",
        ),
    ] {
        let (status, body) = exchange(&mut stream, request.as_bytes()).await;
        assert_eq!((&*status, &*body), ("HTTP/1.1 201 Created", expect));
    }
}

#[tokio::test]
async fn a_service_may_be_reached_at_the_proxy_s_own_address() {
    let rules = ["service:echo", "service:patient"];
    for (request, expect) in [
        (
            "GET /patient.espalier.internal/a?b=c HTTP/1.1\r\nHost: 127.0.0.1:3128\r\n\r\n",
            ("HTTP/1.1 201 Created", "GET /a?b=c of patient.espalier.internal by s1: 0 bytes, None"),
        ),
        (
            "GET /echo.espalier.internal/a HTTP/1.1\r\nHost: 127.0.0.1:3128\r\n\r\n",
            (
                "HTTP/1.1 403 Forbidden",
                "espalier: echo.espalier.internal is asked by its name alone, through the proxy\n",
            ),
        ),
        (
            "GET /other.espalier.internal/a HTTP/1.1\r\nHost: 127.0.0.1:3128\r\n\r\n",
            (
                "HTTP/1.1 403 Forbidden",
                "espalier: other.espalier.internal:80 is not in the sandbox's allow-list\n",
            ),
        ),
        (
            "GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1:3128\r\n\r\n",
            ("HTTP/1.1 400 Bad Request", "espalier: no absolute address\n"),
        ),
    ] {
        let mut stream = connect(&rules).await;
        let (status, body) = exchange(&mut stream, request.as_bytes()).await;
        assert_eq!((&*status, &*body), expect, "{request}");
    }
}

#[tokio::test]
async fn what_was_not_granted_is_refused_like_any_address() {
    let rules = ["service:echo", "service:gone", "*.espalier.internal:443", "other.espalier.internal:80"];
    for (request, status, why) in [
        ("GET http://other.espalier.internal/", "403 Forbidden", "not in the sandbox's allow-list"),
        ("GET http://espalier.internal/", "403 Forbidden", "not in the sandbox's allow-list"),
        ("GET http://echo.espalier.internal:8080/", "403 Forbidden", "not in the sandbox's allow-list"),
        ("CONNECT echo.espalier.internal:443", "403 Forbidden", "not in the sandbox's allow-list"),
        ("CONNECT echo.espalier.internal:80", "403 Forbidden", "takes plain HTTP requests"),
        ("GET http://gone.espalier.internal/", "502 Bad Gateway", "this engine has no service `gone`"),
    ] {
        let mut stream = connect(&rules).await;
        let (first, body) = exchange(&mut stream, format!("{request} HTTP/1.1\r\n\r\n").as_bytes()).await;
        assert_eq!((first, body.contains(why)), (format!("HTTP/1.1 {status}"), true), "{request}: {body}");
    }
    // Over SOCKS neither: 2 is "not allowed".
    let mut stream = connect(&rules).await;
    let name = b"echo.espalier.internal";
    let asked = [&[5, 1, 0, 5, 1, 0, 3, name.len() as u8], &name[..], &[0, 80]].concat();
    stream.write_all(&asked).await.unwrap();
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, [5, 0, 5, 2]);
}

#[tokio::test]
async fn bodies_are_bounded() {
    let most: usize = 16 << 20;
    for (length, expect) in [(most, "HTTP/1.1 201 Created"), (most + 1, "HTTP/1.1 413 Payload Too Large")] {
        let mut stream = connect(&["service:echo"]).await;
        let head =
            format!("POST http://echo.espalier.internal/ HTTP/1.1\r\nContent-Length: {length}\r\n\r\n");
        let (status, body) = exchange(&mut stream, &[head.as_bytes(), &vec![b'x'; length]].concat()).await;
        assert_eq!(status, expect, "{body}");
    }
}

#[tokio::test(start_paused = true)]
async fn time_is_bounded() {
    let mut stream = connect(&["service:echo"]).await;
    for request in [
        "GET http://echo.espalier.internal/never HTTP/1.1\r\n\r\n",
        // A body that never comes.
        "POST http://echo.espalier.internal/ HTTP/1.1\r\nContent-Length: 3\r\n\r\n",
    ] {
        let (status, body) = exchange(&mut stream, request.as_bytes()).await;
        assert_eq!(status, "HTTP/1.1 504 Gateway Timeout");
        assert_eq!(body, "espalier: no answer of the service in 30 s\n");
        stream = connect(&["service:echo"]).await;
    }
    let mut stream = connect(&["service:patient"]).await;
    let (status, body) =
        exchange(&mut stream, b"GET http://patient.espalier.internal/never HTTP/1.1\r\n\r\n").await;
    assert_eq!((&*status, &*body), ("HTTP/1.1 504 Gateway Timeout", "own: no answer of the service in 90 s"));
}
