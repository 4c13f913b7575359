//! Requests with a name: the same again, however it is written, gives what the first made; another of that name is refused.

use crate::Service;
use espalier_api::Settings;
use espalier_api::keys::Scope;
use espalier_store::Quotas;
use serde_json::Value;

struct Caller {
    service: Service,
    key: String,
}

impl Caller {
    async fn new() -> Caller {
        let service = Service::start(Settings { user_namespaces: true, ..Settings::default() }).await;
        let key = service.key(Scope::Write, Quotas::default()).await;
        Caller { service, key }
    }

    async fn ask(&self, method: &str, path: &str, name: &str, body: &str) -> (u16, Value) {
        let key = &self.key;
        let headers =
            format!("x-api-key: {key}\r\ncontent-type: application/json\r\nidempotency-key: {name}\r\n");
        let (status, _, answer) = self.service.ask(method, path, &headers, body).await;
        (status, answer)
    }

    async fn create(&self, name: &str, body: &str) -> (u16, Value) {
        self.ask("POST", "/v1/sandboxes?wait_s=30", name, body).await
    }
}

/// Two ways to say one thing.
const SAME: [(&str, &str); 14] = [
    (r#"{"memory":"64MiB"}"#, r#"{"memory":67108864}"#),
    (r#"{"memory":"1GiB","cpu":2}"#, r#"{"cpu":2.0,"memory":"1024MiB"}"#),
    (r#"{"disk":"4GiB"}"#, "{}"),
    (r#"{"image":"host","cpu":1,"memory":null}"#, "{}"),
    (r#"{"image":"127.0.0.1:1/a"}"#, r#"{"image":"docker://127.0.0.1:1/a:latest"}"#),
    (r#"{"setup":"true"}"#, r#"{"setup":["true"]}"#),
    (r#"{"setup":[]}"#, "{}"),
    (r#"{"files":{"/a":"x"}}"#, r#"{"files":{"/a":{"text":"x","mode":"0644"}}}"#),
    (r#"{"files":{"/a":{"text":"x","mode":"755"}}}"#, r#"{"files":{"/a":{"text":"x","mode":"0755"}}}"#),
    (r#"{"network":["B.org:80","a.org:443"]}"#, r#"{"network":["a.org:443","b.org:80","b.org:80"]}"#),
    (r#"{"network":"none"}"#, "{}"),
    (r#"{"lifetime_s":7200,"entrypoint":false,"user_namespaces":false}"#, "{}"),
    (r#"{"idle_s":60}"#, r#"{"idle_s":6e1}"#),
    (r#"{"labels":{"a":"1","b":"2"},"env":{}}"#, r#"{"labels":{"b":"2","a":"1"}}"#),
];

/// Two things.
const OTHER: [(&str, &str); 10] = [
    (r#"{"memory":"64MiB"}"#, r#"{"memory":"65MiB"}"#),
    (r#"{"network":"loopback"}"#, r#"{"network":"none"}"#),
    (r#"{"network":["a.org:80"]}"#, r#"{"network":["a.org:81"]}"#),
    (r#"{"setup":["a","b"]}"#, r#"{"setup":["b","a"]}"#),
    (r#"{"setup":["a","b"]}"#, r#"{"setup":"a\nb"}"#),
    (r#"{"files":{"/a":"x"}}"#, r#"{"files":{"/a":{"text":"x","mode":"0755"}}}"#),
    (r#"{"labels":{"a":"1"}}"#, "{}"),
    (r#"{"name":"a"}"#, "{}"),
    (r#"{"user_namespaces":true}"#, "{}"),
    (r#"{"env":{"a":"b"}}"#, r#"{"env":{"a":"c"}}"#),
];

#[tokio::test]
async fn a_name_stands_for_what_a_request_means_also_after_a_restart() {
    let mut caller = Caller::new().await;
    let mut made = Vec::new();
    for (number, (one, other)) in SAME.iter().enumerate() {
        let name = format!("same-{number}");
        let (status, first) = caller.create(&name, one).await;
        assert_eq!(status, 201, "{one}: {first}");
        let (status, again) = caller.create(&name, other).await;
        assert_eq!((status, &again["id"]), (201, &first["id"]), "{one} and {other}: {again}");
        made.push(first);
    }
    for (number, (one, other)) in OTHER.iter().enumerate() {
        let name = format!("other-{number}");
        assert_eq!(caller.create(&name, one).await.0, 201, "{one}");
        let (status, problem) = caller.create(&name, other).await;
        assert_eq!((status, problem["code"].as_str()), (409, Some("id-reused")), "{one} and {other}");
    }
    caller.service = caller.service.again().await;
    for (number, (_, other)) in SAME.iter().enumerate() {
        let (status, again) = caller.create(&format!("same-{number}"), other).await;
        let first = &made[number];
        assert_eq!((status, &again["id"], &again["error"]), (201, &first["id"], &first["error"]), "{again}");
        assert_eq!((&again["labels"], &again["state"]), (&first["labels"], &first["state"]));
    }
    for (number, (_, other)) in OTHER.iter().enumerate() {
        let (status, problem) = caller.create(&format!("other-{number}"), other).await;
        assert_eq!((status, problem["code"].as_str()), (409, Some("id-reused")), "{other}");
    }
    // A name stands for one request, of whatever kind.
    for path in ["fork", "checkpoints"] {
        let (status, problem) = caller.ask("POST", &format!("/v1/sandboxes/a/{path}"), "same-0", "{}").await;
        assert_eq!((status, problem["code"].as_str()), (409, Some("id-reused")), "{path}: {problem}");
    }
    // It is the key's own.
    caller.key = caller.service.key(Scope::Write, Quotas::default()).await;
    assert_ne!(caller.create("same-0", SAME[0].0).await.1["id"], made[0]["id"]);
}

#[tokio::test]
async fn a_cursor_is_a_place_whatever_stood_there() {
    let mut caller = Caller::new().await;
    for _ in 0..3 {
        caller.service.ask("POST", "/v1/sandboxes", &header(&caller.key), "{}").await;
    }
    let list = async |caller: &Caller, query: &str| {
        caller.service.ask("GET", &format!("/v1/sandboxes?{query}"), &header(&caller.key), "").await.2
    };
    let whole = list(&caller, "").await;
    assert_eq!((whole["sandboxes"].as_array().unwrap().len(), &whole["next"]), (3, &Value::Null));
    let first = list(&caller, "limit=1").await;
    let cursor = first["next"].as_str().unwrap().to_owned();
    let rest = list(&caller, &format!("after={cursor}")).await;
    let (rest, all) = (rest["sandboxes"].as_array().unwrap(), whole["sandboxes"].as_array().unwrap());
    assert_eq!(rest[..], all[1..]);
    // Nothing of it is shown any more after a restart; the place stays, and what is new stands before it.
    caller.service = caller.service.again().await;
    assert_eq!(list(&caller, &format!("after={cursor}")).await["sandboxes"], serde_json::json!([]));
    caller.service.ask("POST", "/v1/sandboxes", &header(&caller.key), "{}").await;
    assert_eq!(list(&caller, &format!("after={cursor}")).await["sandboxes"], serde_json::json!([]));
    for wrong in ["", "a", "-a", "1-", "1-a%20b", "99999999999999999999-a", "1"] {
        let (status, _, problem) = caller
            .service
            .ask("GET", &format!("/v1/sandboxes?after={wrong}"), &header(&caller.key), "")
            .await;
        assert_eq!(status, 422, "{wrong}: {problem}");
    }
}

fn header(key: &str) -> String {
    format!("x-api-key: {key}\r\ncontent-type: application/json\r\n")
}

#[tokio::test]
async fn user_namespaces_are_the_operators_to_allow() {
    let service = Service::start(Settings::default()).await;
    let key = service.key(Scope::Write, Quotas::default()).await;
    let caller = Caller { service, key };
    let (status, problem) = caller.create("a", r#"{"user_namespaces":true}"#).await;
    assert_eq!((status, problem["code"].as_str()), (422, Some("unsupported")), "{problem}");
    assert!(problem["hint"].as_str().unwrap().contains("--user-namespaces"), "{problem}");
    assert_eq!(caller.create("a", r#"{"user_namespaces":false}"#).await.0, 201);
}
