//! Numbers and texts have bounds, what is kept counts for its key, and no value ends anything but its own request.

use crate::Service;
use espalier_api::Settings;
use espalier_api::keys::Scope;
use espalier_store::Quotas;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn header(key: &str) -> String {
    format!("authorization: Bearer {key}\r\ncontent-type: application/json\r\n")
}

/// Numbers at the ends of what 64 bits and a double hold, and beyond.
const NUMBERS: [&str; 20] = [
    "-1e308",
    "-9223372036854775809",
    "-9223372036854775808",
    "-2147483649",
    "-1",
    "-0.0",
    "0",
    "5e-324",
    "0.0001",
    "1",
    "4294967295",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1e19",
    "1.7976931348623157e308",
    "1e400",
];

#[tokio::test]
async fn a_number_at_its_extreme_is_refused_or_held_to() {
    let service = Service::start(Settings::default()).await;
    let quotas = Quotas {
        sandboxes: Some(u64::MAX),
        cpu: Some(f64::MAX),
        memory: Some(u64::MAX),
        ..Quotas::default()
    };
    let headers = header(&service.key(Scope::Write, quotas).await);
    let observes = header(&service.key(Scope::Metrics, Quotas::default()).await);
    let mut bodies = Vec::new();
    for number in NUMBERS {
        for field in ["cpu", "memory", "disk", "files_max", "processes_max", "lifetime_s", "idle_s"] {
            bodies.push(("POST", "/v1/sandboxes?wait_s=0".to_owned(), format!("{{\"{field}\":{number}}}")));
        }
        for unit in ["", "B", "KiB", "GiB"] {
            let size = format!("{{\"memory\":\"{number}{unit}\",\"disk\":\"{number}{unit}\"}}");
            bodies.push(("POST", "/v1/sandboxes?wait_s=0".to_owned(), size));
        }
        bodies.push(("POST", format!("/v1/sandboxes?wait_s={number}"), r#"{"memory":"64EiB"}"#.to_owned()));
        bodies.push(("GET", format!("/v1/sandboxes?limit={number}"), String::new()));
        bodies.push(("GET", format!("/v1/sandboxes?after={number}-a"), String::new()));
    }
    for (method, path, body) in &bodies {
        let (status, _, answer) = service.ask(method, path, &headers, body).await;
        assert!(
            matches!(status, 200 | 201 | 202 | 400 | 422 | 429),
            "{method} {path} {body}: {status} {answer}"
        );
        // Whatever is being made meanwhile.
        let (status, _, _) = service.ask("GET", "/metrics", &observes, "").await;
        assert_eq!(status, 200, "after {method} {path} {body}");
        let (status, _, used) = service.ask("GET", "/resources", &headers, "").await;
        assert_eq!(status, 200, "after {method} {path} {body}: {used}");
    }
}

#[tokio::test]
async fn a_text_has_a_bound_and_is_not_repeated_whole() {
    let service = Service::start(Settings::default()).await;
    let headers = header(&service.key(Scope::Write, Quotas::default()).await);
    let long = "x".repeat(2 << 20);
    let many = |one: Value, count: usize| vec![one; count];
    let pairs = |count: usize| (0..count).map(|number| (format!("/f{number}"), json!(""))).collect::<Value>();
    for body in [
        json!({ "image": long }),
        json!({ "user": long }),
        json!({ "workdir": format!("/{long}") }),
        json!({ "name": long }),
        json!({ "checkpoint": long }),
        json!({ "checkpoint": "a", "image": long }),
        json!({ "labels": { &long: "x" } }),
        json!({ "labels": { "x": long } }),
        json!({ "labels": pairs(65) }),
        json!({ "env": { &long: "x" } }),
        json!({ "env": { "x": long } }),
        json!({ "files": { format!("/{long}"): "x" } }),
        json!({ "files": pairs(10_001) }),
        json!({ "files": { "/f": { "text": "x", "mode": long } } }),
        json!({ "setup": many(json!("true"), 1_001) }),
        json!({ "network": [format!("a.org:{}80", "0".repeat(2 << 20))] }),
        json!({ "network": many(json!("a.org:80"), 257) }),
        json!({ "require": [long] }),
        json!({ "require": many(json!("x"), 65) }),
        json!({ "memory": long }),
        json!({ &long: 1 }),
    ] {
        let text = body.to_string();
        let shown: String = text.chars().take(80).collect();
        let (status, _, problem) = service.ask("POST", "/v1/sandboxes", &headers, &text).await;
        assert!(matches!(status, 404 | 422), "{shown}: {status}");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.len() < 5_000, "{shown}: {} bytes", detail.len());
    }
    // Nothing of it is kept.
    assert_eq!(service.ask("GET", "/v1/sandboxes", &headers, "").await.2["sandboxes"], json!([]));
}

/// A request whose body is sent but for its last byte.
async fn begin(service: &Service, key: &str, bytes: usize) -> TcpStream {
    let mut stream = TcpStream::connect(service.address).await.unwrap();
    let head = format!(
        "POST /v1/sandboxes HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {bytes}\r\n{}\r\n",
        header(key)
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // One that is refused is not read to its end.
    let _ = stream.write_all(&vec![b' '; bytes - 1]).await;
    stream
}

async fn status(mut stream: TcpStream) -> u16 {
    let _ = stream.write_all(b"x").await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).split(' ').nth(1).unwrap_or("0").parse().unwrap()
}

#[tokio::test]
async fn bodies_of_one_key_leave_room_for_those_of_another() {
    let settings = Settings { bodies_bytes_max: 160_000, ..Settings::default() };
    let service = Service::start(settings).await;
    let first = service.key(Scope::Write, Quotas::default()).await;
    let other = service.key(Scope::Write, Quotas::default()).await;
    let mut begun = Vec::new();
    for _ in 0..20 {
        begun.push(begin(&service, &first, 10_000).await);
    }
    // Half of the memory is the first key's at most: the rest of its requests are told so before they have ended.
    let answered = begun.iter_mut().map(async |stream: &mut TcpStream| {
        let mut head = [0; 12];
        stream.read_exact(&mut head).await.map(|_| String::from_utf8_lossy(&head).into_owned())
    });
    let refused = answered.collect::<FuturesUnordered<_>>().take(12).collect::<Vec<_>>();
    let refused = tokio::time::timeout(Duration::from_secs(60), refused).await.expect("most are refused");
    // What was not read of a body may cut the connection before the answer is seen.
    assert!(refused.iter().flatten().all(|head| head == "HTTP/1.1 429"), "{refused:?}");
    assert!(refused.iter().any(Result::is_ok), "{refused:?}");
    let beside = begin(&service, &other, 10_000).await;
    assert_eq!(status(beside).await, 400, "read whole: not valid JSON");
}

/// Many small values take far more memory than their bytes.
#[tokio::test]
async fn the_values_of_a_body_are_bounded_before_they_are_read() {
    let service = Service::start(Settings::default()).await;
    let headers = header(&service.key(Scope::Write, Quotas::default()).await);
    for (field, open, entry, close) in
        [("env", '{', "\"k\":\"\"", '}'), ("files", '{', "\"/f\":\"\"", '}'), ("setup", '[', "\"\"", ']')]
    {
        let body = format!("{{\"{field}\":{open}{}{close}}}", vec![entry; 200_000].join(","));
        let (status, _, problem) = service.ask("POST", "/v1/sandboxes", &headers, &body).await;
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert!(status == 422 && detail.contains("values`: expected at most"), "{field}: {status} {detail}");
    }
    // Commas in a text are none.
    let script = json!({ "setup": [",".repeat(200_000)], "image": "no such image" }).to_string();
    let (_, _, problem) = service.ask("POST", "/v1/sandboxes", &headers, &script).await;
    assert!(!problem["detail"].as_str().unwrap_or_default().contains("values"), "{problem}");
}

/// A request whose body stops in the middle, on a connection that stays open.
async fn half(service: &Service, headers: &str) -> TcpStream {
    let mut stream = TcpStream::connect(service.address).await.unwrap();
    let request =
        format!("POST /v1/sandboxes HTTP/1.1\r\nhost: test\r\ncontent-length: 1000\r\n{headers}\r\n{{");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

async fn status_of(stream: &mut TcpStream) -> String {
    let mut line = vec![0; 12];
    let read = tokio::time::timeout(Duration::from_secs(30), stream.read_exact(&mut line));
    read.await.expect("an answer").unwrap();
    String::from_utf8_lossy(&line[9..]).into_owned()
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let settings = Settings { body_max: Duration::from_millis(100), ..Settings::default() };
    let service = Service::start(settings).await;
    let headers = header(&service.key(Scope::Write, Quotas::default()).await);
    assert_eq!(status_of(&mut half(&service, &headers).await).await, "504");
}

#[tokio::test]
async fn requests_that_are_open_are_shared_by_keys() {
    let service = Service::start(Settings { connections_max: 8, ..Settings::default() }).await;
    let headers = header(&service.key(Scope::Write, Quotas::default()).await);
    let other = header(&service.key(Scope::Write, Quotas::default()).await);
    // Half of them may be one key's: of five, one is refused, whichever comes last.
    let mut open = Vec::new();
    for _ in 0..5 {
        open.push(half(&service, &headers).await);
    }
    let mut answers: FuturesUnordered<_> = open.iter_mut().map(status_of).collect();
    assert_eq!(answers.next().await.unwrap(), "429");
    drop(answers);
    assert_eq!(service.ask("GET", "/v1/sandboxes", &other, "").await.0, 200);
    // What is closed is free again.
    drop(open);
    let again = async {
        while service.ask("GET", "/v1/sandboxes", &headers, "").await.0 != 200 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), again).await.expect("the places come back");
}

/// The backend here cannot even be reached: what a key has not is known without it.
#[tokio::test]
async fn checkpoints_of_others_cost_nothing() {
    let service = Service::start(Settings::default()).await;
    let headers = header(&service.key(Scope::Write, Quotas::default()).await);
    assert_eq!(service.ask("GET", "/v1/checkpoints", &headers, "").await.2["checkpoints"], json!([]));
    assert_eq!(service.ask("GET", "/v1/checkpoints/x", &headers, "").await.0, 404);
    assert_eq!(service.ask("DELETE", "/v1/checkpoints/x", &headers, "").await.0, 404);
}
