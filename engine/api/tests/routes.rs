//! What holds for every route: its description is a decision, it needs a key, its errors are problem documents.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

#[path = "routes/bounds.rs"]
mod bounds;
#[path = "routes/delivery.rs"]
mod delivery;
#[path = "routes/disk.rs"]
mod disk;
#[path = "routes/requests.rs"]
mod requests;

use espalier_api::keys::{Scope, make_key};
use espalier_api::registry::Bounds;
use espalier_api::{Server, Settings, openapi};
use espalier_images::ImageOptions;
use espalier_sandbox::backend::Backend;
use espalier_sandbox::local::machine::Config;
use espalier_sandbox::local::{Local, Services};
use espalier_sandbox::service::Sandboxes;
use espalier_store::{Quotas, Store};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[test]
fn the_description_is_a_decision() {
    insta::assert_snapshot!("openapi", openapi());
}

#[test]
fn every_operation_has_a_name_a_summary_and_problems() {
    let document: Value = serde_json::from_str(&openapi()).unwrap();
    let mut names = std::collections::BTreeSet::new();
    for (path, method, operation) in operations(&document) {
        let name = operation["operationId"].as_str().unwrap_or_default().to_owned();
        assert!(names.insert(name.clone()) && !name.is_empty(), "{method} {path}: {name}");
        assert!(operation["summary"].as_str().is_some_and(|text| !text.is_empty()), "{method} {path}");
        assert!(operation["responses"]["default"]["content"]["application/problem+json"].is_object());
    }
    assert!(names.len() > 40);
    let text = document.to_string();
    for named in text.split("#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next()) {
        assert!(document["components"]["schemas"][named].is_object(), "nothing describes {named}");
    }
}

fn operations(document: &Value) -> Vec<(String, String, Value)> {
    let paths = document["paths"].as_object().unwrap();
    let all = paths.iter().flat_map(|(path, item)| {
        let methods = item.as_object().unwrap().iter();
        methods.map(move |(method, operation)| (path.clone(), method.to_uppercase(), operation.clone()))
    });
    all.filter(|(_, method, _)| method != "PARAMETERS").collect()
}

struct Service {
    address: SocketAddr,
    store: Arc<Store>,
    folder: Arc<tempfile::TempDir>,
    serving: tokio::task::JoinHandle<()>,
}

impl Service {
    /// Over a backend that starts nothing before it is asked for a sandbox, and then cannot.
    async fn start(settings: Settings) -> Service {
        Service::start_in(Arc::new(tempfile::tempdir().unwrap()), settings).await
    }

    /// The same over what another left.
    async fn start_in(folder: Arc<tempfile::TempDir>, settings: Settings) -> Service {
        let config = Config {
            folder: folder.path().join("sandboxes"),
            keeper: vec!["/nowhere/keeper".into()],
            agent: "/nowhere/agent".into(),
        };
        let local = Arc::new(Local::open(config, ImageOptions::default(), Services::default()).unwrap());
        Service::start_over(local, folder, settings).await
    }

    /// The same over any backend.
    async fn start_over(
        backend: Arc<dyn Backend>,
        folder: Arc<tempfile::TempDir>,
        settings: Settings,
    ) -> Service {
        let store = Arc::new(Store::open(&folder.path().to_str().unwrap().parse().unwrap()).await.unwrap());
        let sandboxes = Sandboxes::new(backend);
        let here = "127.0.0.1:0".parse().unwrap();
        let server =
            Server::bind(here, None, sandboxes, Arc::clone(&store), None, Bounds::default(), settings)
                .await
                .unwrap();
        let address = server.address().unwrap();
        // Without a backend there is nothing to be found.
        let _ = server.registry().adopt().await;
        let serving = tokio::spawn(server.serve(std::future::pending()));
        Service { address, store, folder, serving }
    }

    /// Ends this one as if it were killed; the next one over the same store.
    async fn again(self) -> Service {
        let folder = self.end().await;
        Service::start_in(folder, Settings::default()).await
    }

    /// The same over another backend.
    async fn again_over(self, backend: Arc<dyn Backend>) -> Service {
        let folder = self.end().await;
        Service::start_over(backend, folder, Settings::default()).await
    }

    async fn end(self) -> Arc<tempfile::TempDir> {
        self.serving.abort();
        let _ = self.serving.await;
        self.store.close().await;
        self.folder
    }

    async fn key(&self, scope: Scope, quotas: Quotas) -> String {
        let (key, told) = make_key("test", &[scope], quotas, 1);
        self.store.add_key(&key).await.unwrap();
        told
    }

    /// One request on a connection of its own.
    async fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> (u16, String, Value) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut answer));
        read.await.expect("an answer").unwrap();
        let text = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.to_lowercase(), serde_json::from_str(body).unwrap_or(Value::Null))
    }
}

#[tokio::test]
async fn every_route_wants_a_key_but_those_that_say_so() {
    let service = Service::start(Settings::default()).await;
    let document: Value = serde_json::from_str(&openapi()).unwrap();
    for (path, method, operation) in operations(&document) {
        let asked = path
            .replace("{id}", "a")
            .replace("{run}", "a")
            .replace("{group}", "a.g0")
            .replace("{model}", "policy")
            .replace("{command}", "a.1.1")
            .replace("{shell}", "a.1.1")
            .replace("{port}", "80");
        let (status, head, problem) = service.ask(&method, &asked, "", "").await;
        if operation["security"].is_null() {
            assert!(status == 200 || status == 503, "{method} {path}: {status}");
            continue;
        }
        // Its clients are refused before there is a WebSocket, which is always 403.
        if path == "/sandboxes/{id}/exec/pty" {
            assert_eq!((status, &problem["code"]), (403, &json!("forbidden")));
            continue;
        }
        assert_eq!(status, 401, "{method} {path}");
        assert!(
            head.contains("application/problem+json") && head.contains("www-authenticate: bearer"),
            "{head}"
        );
        assert_eq!(problem["code"], "unauthenticated");
        assert!(head.contains(&format!("x-request-id: {}", problem["request_id"].as_str().unwrap())));
    }
    let proxied = service.ask("PATCH", "/v1/sandboxes/a/ports/80/x", "", "").await;
    assert_eq!(proxied.0, 401);
}

#[tokio::test]
async fn a_key_does_what_its_scopes_say() {
    let service = Service::start(Settings::default()).await;
    let header = |key: &str| format!("authorization: Bearer {key}\r\ncontent-type: application/json\r\n");
    let reads = header(&service.key(Scope::Read, Quotas::default()).await);
    let observes = header(&service.key(Scope::Metrics, Quotas::default()).await);
    assert_eq!(service.ask("GET", "/v1/sandboxes", &reads, "").await.0, 200);
    let refused = service.ask("POST", "/v1/sandboxes", &reads, "{}").await;
    assert_eq!((refused.0, &refused.2["code"]), (403, &json!("forbidden")));
    assert!(refused.2["hint"].as_str().unwrap().contains("--scopes sandboxes:write"));
    assert_eq!(service.ask("GET", "/v1/sandboxes/a/stream", &reads, "").await.0, 403);
    assert_eq!(service.ask("GET", "/v1/sandboxes/a/ports/80", &reads, "").await.0, 403);
    assert_eq!(service.ask("GET", "/v1/sandboxes", &observes, "").await.0, 403);
    let (status, head, _) = service.ask("GET", "/metrics", &observes, "").await;
    assert!(status == 200 && head.contains("application/openmetrics-text"), "{head}");
}

#[tokio::test]
async fn what_is_wrong_with_a_request_is_said() {
    let settings = Settings { json_bytes_max: 1000, ..Settings::default() };
    let service = Service::start(settings).await;
    let quotas = Quotas { sandboxes: Some(1), memory: Some(1 << 30), ..Quotas::default() };
    let key = service.key(Scope::Write, quotas).await;
    let header = format!("x-api-key: {key}\r\ncontent-type: application/json\r\n");
    let check = async |method: &str, path: &str, body: &str, status: u16, code: &str, detail: &str| {
        let (found, _, problem) = service.ask(method, path, &header, body).await;
        assert_eq!((found, problem["code"].as_str()), (status, Some(code)), "{method} {path}: {problem}");
        let text = problem["detail"].as_str().unwrap();
        assert!(text.contains(detail), "{method} {path} {body}: {text}");
    };
    check("POST", "/v1/sandboxes", "{", 400, "malformed", "not valid JSON").await;
    check(
        "POST",
        "/v1/sandboxes",
        r#"{"imag":"x"}"#,
        422,
        "invalid",
        "unknown field `imag`, expected one of `image`",
    )
    .await;
    check("POST", "/v1/sandboxes", r#"{"cpu":"x"}"#, 422, "invalid", "`cpu`: invalid type").await;
    check(
        "POST",
        "/v1/sandboxes",
        r#"{"cpu":0}"#,
        422,
        "invalid",
        r#"invalid cpu "0": expected 0.01 to 1024 cores"#,
    )
    .await;
    check(
        "POST",
        "/v1/sandboxes",
        r#"{"memory":"2GiB"}"#,
        429,
        "quota-exceeded",
        "2GiB of memory; its quota is 1GiB",
    )
    .await;
    check("POST", "/v1/sandboxes", r#"{"lifetime_s":-1}"#, 422, "invalid", "invalid lifetime_s `-1`").await;
    check("POST", "/v1/sandboxes?wait=1", "{}", 422, "invalid", "unknown field `wait`").await;
    check("POST", "/v1/sandboxes", r#"{"image":"checkpoint:abc"}"#, 422, "invalid", "set `checkpoint` in")
        .await;
    // Nor by the routes of another service's forms: checkpoints have owners.
    check(
        "POST",
        "/sandboxes",
        r#"{"image":"checkpoint:abc","block_network":true}"#,
        422,
        "invalid",
        "set `checkpoint` in",
    )
    .await;
    check(
        "POST",
        "/v1/sandboxes",
        r#"{"labels":{"espalier.api":"x"}}"#,
        422,
        "invalid",
        "not beginning with `espalier.`",
    )
    .await;
    check(
        "POST",
        "/v1/sandboxes",
        &format!(r#"{{"name":"{}"}}"#, "x".repeat(2000)),
        413,
        "payload-too-large",
        "more than 1000 bytes",
    )
    .await;
    check("GET", "/v1/sandboxes/nobody", "", 404, "not-found", r#"no sandbox "nobody""#).await;
    check("POST", "/v1/sandboxes/nobody/commands", r#"{"command":"true"}"#, 404, "not-found", "nobody").await;
    check("GET", "/v1/sandbox", "", 404, "not-found", "there is no route /v1/sandbox").await;
    check("PUT", "/v1/sandboxes", "", 405, "method-not-allowed", "PUT is not allowed").await;
    let plain = format!("x-api-key: {key}\r\ncontent-type: text/plain\r\n");
    let (status, _, problem) = service.ask("POST", "/v1/sandboxes", &plain, "{}").await;
    assert_eq!((status, problem["code"].as_str()), (415, Some("unsupported-media-type")));
}

#[tokio::test]
async fn orchards_routes_answer_keys_as_its_service_does() {
    let service = Service::start(Settings::default()).await;
    let (key, read) = (
        service.key(Scope::Write, Quotas::default()).await,
        service.key(Scope::Read, Quotas::default()).await,
    );
    let wrong = format!("{key}x");
    let socket =
        "upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==";
    let table = [
        // What the client sends; the answers to GET, to DELETE and to a WebSocket (403: before it is one).
        (String::new(), [401, 401, 403]),
        ("x-api-key: ".to_owned(), [401, 401, 403]),
        (format!("x-api-key: {wrong}"), [403, 403, 403]),
        (format!("authorization: Bearer {wrong}"), [403, 403, 403]),
        (format!("x-api-key: {wrong}\r\nauthorization: Bearer {key}"), [403, 403, 403]),
        (format!("x-api-key: {key}"), [404, 200, 404]),
        (format!("x-api-key: {key}\r\nauthorization: Basic bmV0OnJj"), [404, 200, 404]),
        (format!("x-api-key: {key}\r\nauthorization: Bearer {wrong}"), [404, 200, 404]),
        (format!("authorization: Bearer {key}"), [404, 200, 404]),
        (format!("x-api-key: {read}"), [404, 403, 403]),
        (format!("sec-websocket-protocol: other, api_key.{key}"), [401, 401, 404]),
        (format!("sec-websocket-protocol: api_key.{wrong}"), [401, 401, 403]),
    ];
    for (sent, expected) in table {
        let headers = if sent.is_empty() { sent.clone() } else { format!("{sent}\r\n") };
        let pty = format!("{headers}{socket}\r\n");
        let found = [
            service.ask("GET", "/sandboxes/a", &headers, "").await.0,
            service.ask("DELETE", "/sandboxes/a", &headers, "").await.0,
            service.ask("GET", "/sandboxes/a/exec/pty", &pty, "").await.0,
        ];
        assert_eq!(found, expected, "{sent}");
    }
    for (query, expected) in [(&key, 404), (&wrong, 403), (&String::new(), 403)] {
        let pty = format!("/sandboxes/a/exec/pty?api_key={query}");
        assert_eq!(service.ask("GET", &pty, &format!("{socket}\r\n"), "").await.0, expected, "{query}");
    }
    let wrong = format!("x-api-key: {wrong}\r\n");
    assert_eq!(service.ask("GET", "/resources", &wrong, "").await.0, 403);
    // The service's own routes keep to 401.
    assert_eq!(service.ask("GET", "/v1/sandboxes/a", &wrong, "").await.0, 401);
}

/// The bodies that make a sandbox at Orchard's service, those of its client first, and the time to become ready that is told.
#[tokio::test]
async fn orchards_sandboxes_are_asked_for_in_all_its_forms() {
    let service = Service::start(Settings::default()).await;
    let key = service.key(Scope::Write, Quotas::default()).await;
    let head = format!("x-api-key: {key}\r\n");
    let json = format!("{head}content-type: application/json\r\n");
    let table = [
        (json!({"image": "host", "block_network": true}), 3600),
        (json!({"image": "host", "block_network": false, "cpu": "2", "memory": "4Gi"}), 3600),
        (json!({"image": "host", "block_network": true, "sandbox_id": "pre-1234abcd", "timeout": 600}), 600),
        (json!({"image": "host"}), 3600),
        (
            json!({"image": "host", "block_network": null, "sandbox_id": null, "cpu": null, "memory": null,
                "timeout": null, "labels": null}),
            3600,
        ),
        (json!({"image": "host", "sandbox_id": "", "cpu": "", "memory": "", "timeout": 0}), 3600),
        (json!({"image": "host", "cpu": 2, "memory": 1_073_741_824}), 3600),
        (json!({"image": "host", "cpu": "500m", "memory": "0.5Gi", "timeout": 7200.0}), 7200),
        (json!({"image": "host", "timeout": "60", "block_network": "false"}), 60),
        (json!({"image": "host", "timeout": 0.5}), 1),
        (json!({"image": "host", "timeout": -1}), 1),
        (json!({"image": "host", "timeout": 1_000_000_000, "block_network": 1}), 604_800),
        (json!({"image": "host", "namespace": "what it does not know", "timeout": 1}), 1),
    ];
    for (body, ready_within) in table {
        let (status, _, made) = service.ask("POST", "/sandboxes", &json, &body.to_string()).await;
        assert_eq!(status, 200, "{body}: {made}");
        // A whole number: its client puts it into the query of the wait that follows.
        assert_eq!(made["timeout"], json!(ready_within), "{body}");
        // However short the time to become ready is, the sandbox lives for its two hours.
        let lives = made["expires_at"].as_f64().unwrap() - made["created_at"].as_f64().unwrap();
        assert!(lives >= 7200.0, "{body}: {lives}");
        if let Some(id) = body["sandbox_id"].as_str().filter(|id| !id.is_empty()) {
            assert_eq!(made["sandbox_id"], id);
        }
        let id = made["sandbox_id"].as_str().unwrap();
        for wait in
            ["timeout=7200.0", "timeout=3600", "timeout=604800", "timeout=1&timeout=7200.0", "other=1"]
        {
            // Here none can be made, which is an answer.
            let (status, _, waited) =
                service.ask("GET", &format!("/sandboxes/{id}/wait?{wait}"), &head, "").await;
            assert_eq!((status, &waited["status"]), (200, &json!("failed")), "{wait}: {waited}");
        }
        for _ in 0..2 {
            let (status, _, gone) = service.ask("DELETE", &format!("/sandboxes/{id}"), &head, "").await;
            assert_eq!((status, gone), (200, json!({"sandbox_id": id, "status": "deleted"})));
        }
    }
    let body = r#"{"image":"host"}"#;
    for kind in
        ["", "content-type: application/json; charset=utf-8\r\n", "content-type: application/x+json\r\n"]
    {
        let (status, _, made) = service.ask("POST", "/sandboxes", &format!("{head}{kind}"), body).await;
        assert_eq!(status, 200, "{kind}: {made}");
    }
    for wrong in ["timeout=x", "timeout=", "timeout=nan"] {
        let (status, ..) = service.ask("GET", &format!("/sandboxes/a/wait?{wrong}"), &head, "").await;
        assert_eq!(status, 422, "{wrong}");
    }
    for wrong in [json!({}), json!({"image": null}), json!({"image": "host", "timeout": "soon"})] {
        assert_eq!(service.ask("POST", "/sandboxes", &json, &wrong.to_string()).await.0, 422, "{wrong}");
    }
}

#[tokio::test]
async fn a_head_that_does_not_come_ends_the_connection() {
    let settings = Settings { head_max: Duration::from_millis(300), ..Settings::default() };
    let service = Service::start(settings).await;
    // The last one is a whole begin of HTTP/2: the preface and empty settings.
    let begins: [&[u8]; 5] = [
        b"",
        b"PRI * HT",
        b"GET /health HTTP/1.1\r\nhost: te",
        b"GET /health HTTP/1.1\r\nhost: test\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
    ];
    for begin in begins {
        let mut slow = TcpStream::connect(service.address).await.unwrap();
        slow.write_all(begin).await.unwrap();
        let mut rest = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(20), slow.read_to_end(&mut rest));
        // Cut, or told that it took too long: both end it.
        let _ = read.await.unwrap_or_else(|_| panic!("{:?} holds its place", String::from_utf8_lossy(begin)));
    }
    assert_eq!(service.ask("GET", "/health", "", "").await.0, 200);
}
