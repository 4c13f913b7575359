use super::*;
use crate::RolloutServices;
use espalier_core::failure::Failure;
use espalier_core::host::service::Services;
use espalier_core::service::{ServiceConfig, ServiceKind};
use espalier_core::task::Task;
use std::path::Path;

/// Mail, which has operations; notes, which has none; MiniWoB++ with one task.
fn services() -> Arc<RunServices> {
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let mail = json!({
        "state": {"folders": {"inbox": {}, "archive": {}}, "messages": {"m1": {"folder": "inbox"}}},
        "operations": {"file": {
            "arguments": {"id": {"type": "string", "key_of": "/messages"}, "folder": {"type": "string", "key_of": "/folders"}},
            "effects": [{"set": {"path": "/messages/{id}/folder", "value": {"$argument": "folder"}}}]
        }}
    });
    write("mail/app.json", &mail.to_string());
    write("mail/index.html", "<title>Mail</title>");
    write("notes/app.json", "{}");
    write("notes/index.html", "<title>Notes</title>");
    write("miniwob/core/core.js", "");
    write("miniwob/miniwob/click-button.html", "<body><script src=\"../core/core.js\"></script></body>");
    write("miniwob/miniwob/terminal.html", "<body></body>");
    let kinds = [("mail", ServiceKind::App), ("notes", ServiceKind::App), ("miniwob", ServiceKind::Miniwob)];
    let config = |(name, kind): (&str, ServiceKind)| {
        (name.to_owned(), ServiceConfig { kind, folder: Some(Path::new(name).to_owned()) })
    };
    let configs = kinds.map(config).into_iter().collect();
    Arc::new(RunServices::read(&configs, |path| folder.path().join(path), || None).unwrap())
}

/// A rollout of a task with sessions of all three, its id and the value of its cookie.
struct Rollout {
    services: RolloutServices,
    run: Arc<RunServices>,
    sid: String,
    token: String,
}

fn rollout(run: &Arc<RunServices>) -> Rollout {
    let services =
        r#"{"mail":{"state":{"owner":"ann"}},"notes":{},"miniwob":{"task":"click-button","seed":3}}"#;
    let task = Task::parse(&format!(r#"{{"id":"t","instruction":"x","services":{services}}}"#)).unwrap();
    run.check(&task).unwrap();
    let services = RolloutServices::open(Arc::clone(run), &task);
    let session = services.session().unwrap();
    Rollout { services, run: Arc::clone(run), sid: session.sid, token: session.token }
}

impl Rollout {
    /// What its page is answered: status, and the body as JSON where it is that.
    fn page(&self, name: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let path = path.replace("SID", &self.sid);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("cookie", format!("other=1; {SESSION_COOKIE}={}", self.token))
            .body(Bytes::from(if body.is_null() { String::new() } else { body.to_string() }))
            .unwrap();
        answered(&self.run, name, request)
    }

    /// What its reward is answered.
    async fn key(&self, name: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let request = ServiceRequest {
            name: name.to_owned(),
            method: method.to_owned(),
            path: path.to_owned(),
            body: if body.is_null() { Vec::new() } else { body.to_string().into_bytes() },
        };
        let response = self.services.request(request).await.unwrap();
        (response.status, serde_json::from_slice(&response.body).unwrap())
    }
}

fn answered(run: &RunServices, name: &str, request: Request<Bytes>) -> (u16, Value) {
    let response = run.answer(name, request);
    let body = response.body();
    let value =
        serde_json::from_slice(body).unwrap_or_else(|_| String::from_utf8_lossy(body).into_owned().into());
    (response.status().as_u16(), value)
}

fn code(answer: &(u16, Value)) -> (u16, &str) {
    (answer.0, answer.1["error"]["code"].as_str().unwrap_or_default())
}

const NONE: Value = Value::Null;

#[tokio::test]
async fn an_application_with_operations_changes_by_them_alone() {
    let run = services();
    let own = rollout(&run);
    assert_eq!(own.page("mail", "GET", "/?sid=SID", &NONE), (200, json!("<title>Mail</title>")));
    let (status, state) = own.page("mail", "GET", "/state?sid=SID", &NONE);
    assert_eq!(
        (status, &state["owner"], &state["messages"]["m1"]["folder"]),
        (200, &json!("ann"), &json!("inbox"))
    );
    let file = json!({"name": "file", "arguments": {"id": "m1", "folder": "archive"}});
    assert_eq!(own.page("mail", "POST", "/operation?sid=SID", &file).0, 200);
    let nowhere = json!({"name": "file", "arguments": {"id": "m1", "folder": "nowhere"}});
    let refused = own.page("mail", "POST", "/operation?sid=SID", &nowhere);
    assert_eq!(code(&refused), (422, "refused"));
    assert_eq!(refused.1["error"]["message"], "argument \"folder\": there is no such entry in /folders");
    let unknown = own.page("mail", "POST", "/operation?sid=SID", &json!({"name": "win"}));
    assert_eq!(unknown.1["error"]["message"], "unknown operation \"win\": expected one of file");
    let (status, states) = own.key("mail", "GET", "/go", &NONE).await;
    let expect =
        json!([{"path": "/messages/m1/folder", "change": "changed", "before": "inbox", "after": "archive"}]);
    assert_eq!((status, &states["state_diff"], &states["differences"]), (200, &expect, &json!(1)));
    assert_eq!(states["initial_state"]["messages"]["m1"]["folder"], "inbox");
    assert_eq!(states["current_state"]["messages"]["m1"]["folder"], "archive");
}

#[tokio::test]
async fn what_needs_the_key_is_refused_to_pages() {
    let run = services();
    let own = rollout(&run);
    let state = json!({"messages": {"m1": {"folder": "archive"}}});
    for action in ["set", "reset", "set_current"] {
        let answer = own.page("mail", "POST", "/post?sid=SID", &json!({"action": action, "state": state}));
        assert_eq!(code(&answer), (403, "needs-key"), "{action}");
    }
    assert_eq!(code(&own.page("mail", "GET", "/go?sid=SID", &NONE)), (403, "needs-key"));
    let unknown = own.page("mail", "POST", "/post?sid=SID", &json!({"action": "win"}));
    assert_eq!(code(&unknown), (400, "bad-request"));
    assert_eq!(own.page("mail", "GET", "/app.json", &NONE).0, 404, "what makes a task is not for its page");
    // The task has set the initial state already; the golden state of a task is put there with the key.
    assert_eq!(
        code(&own.key("mail", "POST", "/post", &json!({"action": "set", "state": {}})).await),
        (409, "refused")
    );
    let merge = json!({"action": "set_current", "merge": true, "state": state});
    let (status, answer) = own.key("mail", "POST", "/post", &merge).await;
    assert_eq!((status, &answer["state"]["owner"]), (200, &json!("ann")));
    assert_eq!(own.key("mail", "GET", "/go", &NONE).await.1["differences"], 1);
    assert_eq!(own.key("mail", "POST", "/post", &json!({"action": "reset"})).await.0, 200);
    assert_eq!(own.key("mail", "GET", "/go", &NONE).await.1["differences"], 0);
}

#[tokio::test]
async fn an_application_without_operations_takes_any_state_of_its_page() {
    let run = services();
    let own = rollout(&run);
    let post = |state: Value, merge: bool| {
        own.page(
            "notes",
            "POST",
            "/post?sid=SID",
            &json!({"action": "set_current", "state": state, "merge": merge}),
        )
    };
    assert_eq!(post(json!({"a": {"b": 1}}), false).0, 200);
    assert_eq!(post(json!({"a": {"c": 2}}), true).1["state"], json!({"a": {"b": 1, "c": 2}}));
    for forbidden in ["__proto__", "constructor", "prototype"] {
        let answer = post(json!({"a": {forbidden: {"admin": true}}}), true);
        assert_eq!(code(&answer), (422, "refused"), "{forbidden}");
    }
    assert_eq!(code(&post(json!({"a": "x".repeat(STATE_BYTES_MAX)}), false)), (422, "refused"));
    assert_eq!(code(&post(json!({"a": "x".repeat(JSON_BYTES_MAX)}), false)), (413, "too-large"));
    assert_eq!(code(&post(json!([]), false)), (422, "refused"));
    assert_eq!(own.key("notes", "GET", "/state", &NONE).await.1, json!({"a": {"b": 1, "c": 2}}));
    assert_eq!(own.key("notes", "POST", "/post", &json!({"action": "set", "state": {"n": 1}})).await.0, 200);
    assert_eq!(own.key("notes", "GET", "/go", &NONE).await.1["initial_state"], json!({"n": 1}));
}

#[tokio::test]
async fn a_session_is_that_of_its_browser() {
    let run = services();
    let (own, other) = (rollout(&run), rollout(&run));
    let foreign = format!("/state?sid={}", other.sid);
    assert_eq!(code(&own.page("mail", "GET", &foreign, &NONE)), (403, "not-your-session"));
    assert_eq!(code(&own.page("mail", "GET", "/state", &NONE)), (400, "bad-request"));
    let request = |cookie: &str, origin: &str| {
        let target = format!("/state?sid={}", own.sid);
        let request = Request::builder()
            .uri(target)
            .header("cookie", cookie.to_owned())
            .header("origin", origin.to_owned());
        answered(&run, "mail", request.body(Bytes::new()).unwrap())
    };
    let cookie = format!("{SESSION_COOKIE}={}", own.token);
    assert_eq!(request(&cookie, "http://mail.espalier.internal").0, 200);
    // Another service is the same site to a browser, but another origin.
    assert_eq!(code(&request(&cookie, "http://notes.espalier.internal")), (403, "other-origin"));
    assert_eq!(code(&request(&cookie, "null")), (403, "other-origin"));
    let replayed = format!("{SESSION_COOKIE}={}", other.token);
    assert_eq!(code(&request(&replayed, "http://mail.espalier.internal")), (403, "not-your-session"));
    assert_eq!(code(&request("", "http://mail.espalier.internal")), (403, "not-your-session"));
    drop(own.services);
    assert_eq!(
        code(&request(&cookie, "http://mail.espalier.internal")),
        (403, "not-your-session"),
        "it is over"
    );
    let request = |name: &str| ServiceRequest {
        name: name.to_owned(),
        method: "GET".to_owned(),
        path: "/state".to_owned(),
        body: Vec::new(),
    };
    let failure = other.services.request(request("shop")).await.unwrap_err();
    assert_eq!(
        failure,
        Failure::Invalid("service \"shop\": this rollout has mail, miniwob, notes".to_owned())
    );
    let ended = RolloutServices::ended(Arc::clone(&run));
    let failure = ended.request(request("mail")).await.unwrap_err();
    assert_eq!(failure, Failure::Unavailable("services: the sessions ended with their rollout".to_owned()));
    assert!(ended.was_missed());
}

#[tokio::test]
async fn uploads_are_the_sessions_own_and_bounded() {
    let run = services();
    let (own, other) = (rollout(&run), rollout(&run));
    let upload = |name: &str, length: usize| {
        let target = format!("/upload?sid=SID&name={name}");
        own.page("mail", "POST", &target, &json!("x".repeat(length)))
    };
    assert_eq!(upload("a+b.txt", 3), (200, json!({"name": "a b.txt", "size": 5})));
    assert_eq!(own.page("mail", "GET", "/files/SID/a%20b.txt", &NONE), (200, json!("xxx")));
    let foreign = format!("/files/{}/a%20b.txt", own.sid);
    assert_eq!(code(&other.page("mail", "GET", &foreign, &NONE)), (403, "not-your-session"));
    for name in ["..%2F..%2Fapp.json", ".hidden", "a%2Fb", "a%00b", ""] {
        assert_eq!(code(&upload(name, 1)), (422, "refused"), "{name}");
    }
    for path in [
        "/files/SID/../../app.json",
        "/files/SID/..%2F..%2Fapp.json",
        "/../app.json",
        "/..%2Fnotes%2Fapp.json",
    ] {
        assert_eq!(own.page("mail", "GET", path, &NONE).0, 404, "{path}");
    }
    assert_eq!(code(&upload("big", UPLOAD_BYTES_MAX)), (413, "too-large"));
    for number in 0..7 {
        assert_eq!(upload(&format!("f{number}"), UPLOAD_BYTES_MAX - 2).0, 200);
    }
    assert_eq!(code(&upload("one-more", UPLOAD_BYTES_MAX - 2)), (422, "refused"));
    let request = Request::builder()
        .uri(format!("/files/{}/a%20b.txt", own.sid))
        .header("cookie", format!("{SESSION_COOKIE}={}", own.token))
        .body(Bytes::new())
        .unwrap();
    let response = run.answer("mail", request);
    assert_eq!(response.headers()["content-disposition"], "attachment", "no page of the application");
    assert_eq!(response.headers()["content-type"], "application/octet-stream");
}

#[tokio::test]
async fn an_episode_of_miniwob_is_opened_and_told() {
    let run = services();
    let own = rollout(&run);
    let request = |path: &str| {
        let cookie = format!("{SESSION_COOKIE}={}", own.token);
        let request = Request::builder().uri(path.replace("SID", &own.sid)).header("cookie", cookie);
        run.answer("miniwob", request.body(Bytes::new()).unwrap())
    };
    let first = request("/?sid=SID");
    assert_eq!(first.status(), 302);
    let place = first.headers()["location"].to_str().unwrap().to_owned();
    assert_eq!(place, format!("/miniwob/click-button.html?sid={}", own.sid));
    let page = request(&place);
    let policy = page.headers()["content-security-policy"].to_str().unwrap().to_owned();
    let page = String::from_utf8(page.into_body().to_vec()).unwrap();
    assert!(page.contains("Math.seedrandom(seed)"));
    let nonce = policy.split("script-src 'nonce-").nth(1).unwrap().split('\'').next().unwrap();
    assert_eq!(
        policy,
        format!("script-src 'nonce-{nonce}'; script-src-attr 'none'; object-src 'none'; base-uri 'none'")
    );
    assert_eq!((nonce.len(), page.matches(&format!("<script nonce={nonce}")).count()), (32, 2));
    assert_eq!(request("/miniwob/terminal.html?sid=SID").status(), 404, "a page of another task");
    let script = request("/core/core.js");
    assert_eq!(script.headers()["content-security-policy"], MINIWOB_POLICY);
    let forged = own.page("miniwob", "POST", "/report?sid=SID", &json!({"secret": "", "raw_reward": 1}));
    assert_eq!(code(&forged), (422, "refused"));
    let secret = page.split("secret = \"").nth(1).unwrap().split('"').next().unwrap();
    let told = own.page("miniwob", "POST", "/report?sid=SID", &json!({"secret": secret, "raw_reward": 1}));
    assert_eq!(told.0, 200);
    let expect =
        json!({"task": "click-button", "seed": 3, "utterance": null, "done": true, "raw_reward": 1.0});
    assert_eq!(own.key("miniwob", "GET", "/state", &NONE).await, (200, expect));
    let stranger = Request::builder().uri(place).body(Bytes::new()).unwrap();
    let page = run.answer("miniwob", stranger).into_body();
    assert!(!String::from_utf8_lossy(&page).contains("secret"), "another's page is no episode");
}

#[test]
fn a_task_says_what_fits_its_services() {
    let run = services();
    let check = |services: &str, expect: Result<(), &str>| {
        let task = Task::parse(&format!(r#"{{"id":"t","instruction":"x","services":{services}}}"#)).unwrap();
        assert_eq!(run.check(&task), expect.map_err(str::to_owned), "{services}");
    };
    check(r#"{"mail":{}}"#, Ok(()));
    check(r#"{"shop":{}}"#, Err("needs the service `shop`, but the experiment has no `[services.shop]`"));
    check(
        r#"{"mail":{"seed":1}}"#,
        Err("services.mail.seed is for MiniWoB, and the service is an application: expected `state`"),
    );
    check(
        r#"{"miniwob":{"task":"win"}}"#,
        Err("services.miniwob.task \"win\": not one of the 2 tasks of MiniWoB++"),
    );
}

#[test]
fn what_cannot_be_served_is_refused_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    let check = |name: &str, kind: ServiceKind, path: Option<&str>, key: &str, expect: &str| {
        let config = ServiceConfig { kind, folder: path.map(|path| Path::new(path).to_owned()) };
        let configs = [(name.to_owned(), config)].into_iter().collect();
        let error = RunServices::read(&configs, |path| folder.path().join(path), || None).unwrap_err();
        let problem = error.problem.replace(&folder.path().display().to_string(), "FOLDER");
        assert_eq!((error.key, problem.as_str()), (key, expect));
        assert!(!error.hint.is_empty());
    };
    check("mail", ServiceKind::App, None, "kind", "an `app` needs a `folder`");
    check("mail", ServiceKind::App, Some("no"), "folder", "FOLDER/no: no such folder");
    check("mail", ServiceKind::App, Some("empty"), "folder", "FOLDER/empty: no `index.html` in it");
    check("m", ServiceKind::Miniwob, None, "kind", "the Python package `miniwob` was not found");
    check("m", ServiceKind::Miniwob, Some("empty"), "folder", "FOLDER/empty: no `core/core.js` in it");
    check(
        "Mail",
        ServiceKind::App,
        None,
        "",
        "service name \"Mail\" must begin with a letter a to z; letters, digits and `-` follow, 63 at most",
    );
}
