//! What is recorded: HAR, Chromium's trace; and virtual time.

use crate::server::{Answer, Server};
use crate::support::{browser, page};
use espalier_browser::{ContextOptions, HarOptions, HarRecorder};
use serde_json::json;
use std::time::{Duration, UNIX_EPOCH};

#[tokio::test]
async fn traffic_is_recorded_as_har() {
    let server = Server::start([
        ("/", Answer::html("<script src='/s.js?a=1&b'></script>")),
        ("/s.js", Answer::typed("text/javascript", "window.ran = 1")),
        ("/old", Answer::redirect("/")),
        ("/raw", Answer::typed("application/octet-stream", vec![0xff, 0x00])),
        ("/close", Answer::Close),
    ])
    .await;
    let page = page().await;
    let recorder = HarRecorder::start(page.context(), HarOptions { bodies: true, ..HarOptions::default() });
    page.goto(&server.url("/old")).await.expect("a page");
    let post = "fetch('/raw', { method: 'POST', body: 'sent' }).then(r => r.arrayBuffer()).then(() => 1)";
    page.evaluate::<i32>(post).await.expect("fetched");
    page.evaluate::<i32>("fetch('/close').catch(() => 1)").await.expect("failed");
    let second = page.context().new_page().await.expect("a page");
    second.goto(&server.url("/")).await.expect("a page");
    let har = recorder.finish(Duration::from_secs(30)).await.expect("an archive");
    let log = &har["log"];
    assert_eq!((&log["version"], &log["_dropped"]), (&json!("1.2"), &json!(0)));
    assert_eq!(log["pages"].as_array().map(Vec::len), Some(2));
    let entries = log["entries"].as_array().expect("entries");
    let find = |path: &str| {
        let url = server.url(path);
        entries
            .iter()
            .find(|entry| entry["request"]["url"] == json!(url))
            .unwrap_or_else(|| panic!("no {path}: {har:#}"))
    };
    assert_eq!(find("/old")["response"]["status"], json!(302));
    assert_eq!(find("/old")["response"]["redirectURL"], json!("/"));
    let script = find("/s.js?a=1&b");
    assert_eq!(script["response"]["content"]["text"], json!("window.ran = 1"));
    assert_eq!(script["request"]["queryString"], json!([{"name":"a","value":"1"},{"name":"b","value":""}]));
    assert_eq!(find("/raw")["request"]["postData"]["text"], json!("sent"));
    assert_eq!(find("/raw")["response"]["content"]["text"], json!("/wA="));
    assert_eq!(find("/raw")["response"]["content"]["encoding"], json!("base64"));
    assert_eq!(find("/close")["response"]["_error"], json!("net::ERR_EMPTY_RESPONSE"));
    assert!(script["startedDateTime"].as_str().is_some_and(|at| at.ends_with('Z') && at.len() == 24));
}

#[tokio::test]
async fn chromium_traces_itself() {
    let browser = browser().await;
    browser.start_tracing(&["devtools.timeline", "blink"]).await.expect("started");
    assert!(browser.start_tracing(&["blink"]).await.is_err(), "one at a time");
    let page = browser
        .new_context(ContextOptions::default())
        .await
        .expect("a context")
        .new_page()
        .await
        .expect("a page");
    page.set_content("<h1>traced</h1>").await.expect("content");
    let trace = browser.stop_tracing(Duration::from_secs(60)).await.expect("a trace");
    let trace: serde_json::Value = serde_json::from_slice(&trace).expect("JSON");
    assert!(trace["traceEvents"].as_array().is_some_and(|events| !events.is_empty()));
}

#[tokio::test]
async fn virtual_time_goes_on_as_asked() {
    let server = Server::start([(
        "/",
        Answer::html("<script>window.ticks = []; setInterval(() => ticks.push(Date.now()), 1000)</script>"),
    )])
    .await;
    let page = page().await;
    page.goto(&server.url("/")).await.expect("a page");
    page.pause_time(Some(UNIX_EPOCH + Duration::from_secs(1_000_000_000))).await.expect("paused");
    page.evaluate::<()>("ticks.length = 0").await.expect("emptied");
    page.advance_time(Duration::from_millis(3500)).await.expect("advanced");
    let ticks: Vec<f64> = page.evaluate("ticks").await.expect("ticks");
    assert!((3..=4).contains(&ticks.len()), "{ticks:?}");
    assert!(ticks.iter().all(|tick| (1e12..1e12 + 10_000.0).contains(tick)), "{ticks:?}");
    page.advance_time(Duration::from_secs(60)).await.expect("a minute in no time");
    assert_eq!(page.evaluate::<usize>("ticks.length").await, Ok(ticks.len() + 60));
    let before: f64 = page.evaluate("Date.now()").await.expect("a time");
    page.advance_time(Duration::from_millis(250)).await.expect("advanced");
    assert_eq!(page.evaluate::<f64>("Date.now()").await, Ok(before + 250.0));
}
