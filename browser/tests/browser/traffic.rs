//! Requests: events, routes, downloads, exposed functions, console.

use crate::server::{Answer, Server};
use crate::support::{context, page};
use bytes::Bytes;
use espalier_browser::{
    AbortReason, BrowserError, ContextOptions, ContinueOptions, DownloadState, Fulfill, PageEvent, Route,
    RouteHandler,
};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

fn handler(decide: impl Fn(&Route) -> Result<(), BrowserError> + Send + Sync + 'static) -> RouteHandler {
    Arc::new(move |route| {
        decide(&route).expect("decided once");
        Box::pin(async {})
    })
}

#[tokio::test]
async fn requests_and_responses_are_events() {
    let server = Server::start([
        ("/", Answer::html("<script src=/s.js></script><img src=/missing.png>")),
        (
            "/s.js",
            Answer::typed(
                "text/javascript",
                "fetch('/post', { method: 'POST', body: 'bödy', headers: { 'X-A': 'b' } })",
            ),
        ),
        ("/post", Answer::typed("application/json", "{\"a\":1}")),
    ])
    .await;
    let page = page().await;
    let mut events = page.events();
    page.goto(&server.url("/")).await.expect("a page");
    let mut posted = None;
    let mut lines = Vec::new();
    while posted.is_none() {
        match events.next_within(Duration::from_secs(20)).await.expect("an event") {
            PageEvent::Request(request) => {
                lines.push(format!("{} {}", request.method(), request.resource_type()));
            }
            PageEvent::RequestFinished(request) if request.url() == server.url("/post") => {
                posted = Some(request);
            }
            _ => {}
        }
    }
    assert_eq!(lines[0], "GET document");
    assert!(lines.contains(&"GET script".to_owned()) && lines.contains(&"GET image".to_owned()), "{lines:?}");
    assert!(lines.contains(&"POST fetch".to_owned()), "{lines:?}");
    let posted = posted.expect("the post");
    assert_eq!(posted.post_data().await, Ok(Some("bödy".to_owned())));
    assert_eq!(posted.headers()["x-a"], "b");
    let response = posted.response().expect("a response");
    assert_eq!(response.body().await, Ok(Bytes::from_static(b"{\"a\":1}")));
    assert_eq!(response.headers()["content-type"], "application/json");
    assert_eq!(posted.end().and_then(|end| end.failure), None);
}

#[tokio::test]
async fn routes_answer_refuse_and_change() {
    let server = Server::start([
        ("/", Answer::html("<title>real</title>")),
        (
            "/echo",
            Answer::dynamic(|seen| {
                Answer::typed(
                    "text/plain",
                    format!(
                        "{} {} {}",
                        seen.method,
                        seen.headers.get("x-a").cloned().unwrap_or_default(),
                        seen.body
                    ),
                )
            }),
        ),
    ])
    .await;
    let page = page().await;
    let made_up = |route: &Route| {
        route.fulfill(Fulfill {
            status: 201,
            headers: BTreeMap::from([("x-made".into(), "up".into())]),
            content_type: Some("text/html".into()),
            body: Bytes::from_static(b"<title>made up</title>"),
        })
    };
    let id = page.route("**/", handler(made_up)).await.expect("routed");
    let response = page.goto(&server.url("/")).await.expect("a page").expect("a response");
    assert_eq!((response.status(), response.headers()["x-made"].as_str()), (201, "up"));
    assert_eq!(page.title().await.as_deref(), Ok("made up"));
    page.context()
        .route("**/blocked", handler(|route| route.abort(AbortReason::Blocked)))
        .await
        .expect("routed");
    let fetch =
        |path: &str| format!("fetch('{path}').then(r => r.text()).catch(e => 'failed: ' + e.message)");
    assert_eq!(page.evaluate::<String>(&fetch("/blocked")).await.as_deref(), Ok("failed: Failed to fetch"));
    let changed = |route: &Route| {
        route.continue_with(ContinueOptions {
            method: Some("PUT".into()),
            headers: Some(BTreeMap::from([("x-a".into(), "b".into())])),
            post_data: Some(Bytes::from_static(b"data")),
            url: None,
        })
    };
    page.route("**/echo", handler(changed)).await.expect("routed");
    assert_eq!(page.evaluate::<String>(&fetch("/echo")).await.as_deref(), Ok("PUT b data"));
    // The route added last comes first; one that does not decide leaves it to the others.
    page.route("**/echo", handler(|_| Ok(()))).await.expect("routed");
    assert_eq!(page.evaluate::<String>(&fetch("/echo")).await.as_deref(), Ok("PUT b data"));
    assert_eq!(page.unroute(id).await, Ok(true));
    assert_eq!(page.unroute(id).await, Ok(false));
    page.goto(&server.url("/")).await.expect("a page");
    assert_eq!(page.title().await.as_deref(), Ok("real"));
    let aborted = page
        .route("**/", handler(|route| route.abort(AbortReason::ConnectionRefused)))
        .await
        .expect("routed");
    let error = page.goto(&server.url("/")).await.expect_err("refused");
    assert!(
        matches!(&error, BrowserError::Navigation { reason, .. } if reason == "net::ERR_CONNECTION_REFUSED"),
        "{error}"
    );
    page.unroute(aborted).await.expect("removed");
}

#[tokio::test]
async fn handlers_that_panic_do_not_wedge_the_page() {
    let server = Server::start([("/", Answer::html("<title>real</title>"))]).await;
    let page = page().await;
    page.route("**/", Arc::new(|_| Box::pin(async { panic!("a panic of the test") }))).await.expect("routed");
    page.goto(&server.url("/")).await.expect("the request goes on");
    page.on_dialog(|_| async { panic!("a panic of the test") });
    assert_eq!(page.evaluate::<bool>("confirm('?')").await, Ok(false));
    page.expose_function("fails", |_| async { panic!("a panic of the test") }).await.expect("exposed");
    match page.evaluate::<()>("fails()").await {
        Err(BrowserError::Script { message, .. }) => assert!(message.contains("fails panicked"), "{message}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn routes_hold_in_popups_frames_and_workers() {
    let server = Server::start([
        ("/", Answer::html("<iframe src=/frame></iframe>")),
        ("/frame", Answer::html("frame")),
        (
            "/worker.js",
            Answer::typed(
                "text/javascript",
                "fetch('/secret').then(r => r.text()).then(t => postMessage(t), () => postMessage('failed'))",
            ),
        ),
        ("/secret", Answer::typed("text/plain", "secret")),
    ])
    .await;
    let page = page().await;
    page.context()
        .route("**/secret", handler(|route| route.abort(AbortReason::Blocked)))
        .await
        .expect("routed");
    page.goto(&server.url("/")).await.expect("a page");
    let fetch = "fetch('/secret').then(r => r.text()).catch(() => 'failed')";
    let frame = page.frames().pop().expect("a frame");
    assert_eq!(frame.evaluate::<String>(fetch).await.as_deref(), Ok("failed"));
    let worker = "new Promise(r => { new Worker('/worker.js').onmessage = e => r(e.data) })";
    assert_eq!(page.evaluate::<String>(worker).await.as_deref(), Ok("failed"));
    let popup = page
        .context()
        .wait_for_page(async { page.evaluate::<()>("void open('/secret')").await })
        .await
        .expect("a popup");
    popup.wait_for_load_state(espalier_browser::LoadState::Load).await.expect("loaded");
    assert_eq!(server.seen_at("/secret").len(), 0, "nothing reached the server");
}

#[tokio::test]
async fn downloads_are_kept_until_the_context_ends() {
    let server = Server::start([
        ("/", Answer::html("<a id=a href=/file download='näme.txt'>get</a>")),
        ("/file", Answer::typed("text/plain", "content of the file")),
    ])
    .await;
    let page = page().await;
    page.goto(&server.url("/")).await.expect("a page");
    let mut events = page.events();
    page.evaluate::<()>("a.click()").await.expect("clicked");
    let download = loop {
        let event = events.next_within(Duration::from_secs(20)).await.expect("an event");
        if let PageEvent::Download(download) = event {
            break download;
        }
    };
    assert_eq!(download.suggested_name(), "näme.txt");
    assert_eq!(download.url(), server.url("/file"));
    let path = download.path(Duration::from_secs(20)).await.expect("a file");
    assert_eq!(download.state(), DownloadState::Complete);
    assert_eq!(std::fs::read_to_string(&path).expect("a file"), "content of the file");
    let saved = tempfile::tempdir().expect("a folder");
    download.save_as(saved.path().join("saved"), Duration::from_secs(20)).await.expect("saved");
    assert_eq!(std::fs::read_to_string(saved.path().join("saved")).expect("a file"), "content of the file");
    page.context().close().await.expect("closed");
    drop((page, download));
}

#[tokio::test]
async fn a_context_may_take_no_downloads() {
    let server = Server::start([
        ("/", Answer::html("<a id=a href=/file download>get</a>")),
        ("/file", Answer::typed("text/plain", "x")),
    ])
    .await;
    let context = context(ContextOptions { accept_downloads: false, ..ContextOptions::default() }).await;
    let page = context.new_page().await.expect("a page");
    page.goto(&server.url("/")).await.expect("a page");
    let mut events = page.events();
    page.evaluate::<()>("a.click()").await.expect("clicked");
    let download = loop {
        let event = events.next_within(Duration::from_secs(20)).await.expect("an event");
        if let PageEvent::Download(download) = event {
            break download;
        }
    };
    let error = download.path(Duration::from_secs(20)).await.expect_err("there is no file");
    assert!(error.to_string().contains("takes no downloads"), "{error}");
}

#[tokio::test]
async fn exposed_functions_and_init_scripts() {
    let server = Server::start([("/", Answer::html("<script>window.seen = window.early</script>"))]).await;
    let page = page().await;
    page.expose_function("add", |args| async move {
        let numbers: Option<Vec<i64>> = args.iter().map(serde_json::Value::as_i64).collect();
        numbers.map(|numbers| json!(numbers.iter().sum::<i64>())).ok_or_else(|| "numbers only".to_owned())
    })
    .await
    .expect("exposed");
    assert_eq!(page.evaluate::<i64>("add(1, 2)").await, Ok(3), "in the page that is open");
    page.add_init_script("window.early = 'early'").await.expect("added");
    page.goto(&server.url("/")).await.expect("a page");
    assert_eq!(page.evaluate::<String>("window.seen").await.as_deref(), Ok("early"));
    assert_eq!(page.evaluate::<i64>("add(3, 4, 5)").await, Ok(12), "and in the next one");
    match page.evaluate::<i64>("add('x')").await {
        Err(BrowserError::Script { message, .. }) => assert_eq!(message, "Error: numbers only"),
        other => panic!("{other:?}"),
    }
    assert!(page.expose_function("add", |_| async { Ok(json!(0)) }).await.is_err(), "the name is taken");
    assert!(page.expose_function("not a name", |_| async { Ok(json!(0)) }).await.is_err());
    let context = page.context().clone();
    context.expose_function("whole", |_| async { Ok(json!("context")) }).await.expect("exposed");
    assert_eq!(page.evaluate::<String>("whole()").await.as_deref(), Ok("context"));
    let other = context.new_page().await.expect("a page");
    other.goto(&server.url("/")).await.expect("a page");
    assert_eq!(other.evaluate::<String>("whole()").await.as_deref(), Ok("context"));
    assert_eq!(other.evaluate::<String>("typeof add").await.as_deref(), Ok("undefined"));
}

#[tokio::test]
async fn a_flood_of_console_messages_loses_the_oldest() {
    let page = page().await;
    let mut events = page.events();
    page.evaluate::<()>("console.log('first', 1, { a: 1 }); console.error('second'); setTimeout(() => { throw new Error('late') })")
        .await
        .expect("written");
    let mut kinds = Vec::new();
    while kinds.len() < 3 {
        match events.next_within(Duration::from_secs(20)).await.expect("an event") {
            PageEvent::Console(message) => kinds.push(format!("{}: {}", message.kind, message.text)),
            PageEvent::ScriptError(error) => kinds.push(format!("thrown: {}", error.message)),
            _ => {}
        }
    }
    assert_eq!(kinds, ["log: first 1 Object", "error: second", "thrown: Error: late"]);
    page.evaluate::<()>("for (let i = 0; i < 20000; i++) console.log(i)").await.expect("written");
    let (messages, lost) = page.console_messages();
    assert_eq!((messages.len(), lost), (500, 20_002 - 500));
    assert_eq!(messages.last().map(|message| message.text.as_str()), Some("19999"));
    assert!(events.dropped() > 0, "nobody read the events");
    assert_eq!(page.evaluate::<i32>("1").await, Ok(1));
}
