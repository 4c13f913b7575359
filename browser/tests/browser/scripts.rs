//! Scripts: values both ways, handles, errors.

use crate::support::page;
use espalier_browser::{BrowserError, JsArg, JsValue};
use serde_json::json;
use std::time::Duration;

#[tokio::test]
async fn values_come_back_as_rust_types() {
    let page = page().await;
    assert_eq!(page.evaluate::<i64>("1 + 1").await, Ok(2));
    assert_eq!(page.evaluate::<Option<i64>>("undefined").await, Ok(None));
    assert_eq!(
        page.evaluate::<String>("Promise.resolve('späte Antwort')").await.as_deref(),
        Ok("späte Antwort")
    );
    let value: serde_json::Value =
        page.evaluate("({ a: [1, null], b: { c: true } })").await.expect("a value");
    assert_eq!(value, json!({ "a": [1, null], "b": { "c": true } }));
    assert!(page.evaluate::<f64>("NaN").await.expect("a number").is_nan());
    assert_eq!(page.evaluate::<f64>("-Infinity").await, Ok(f64::NEG_INFINITY));
    assert_eq!(page.evaluate::<String>("12345678901234567890n").await.as_deref(), Ok("12345678901234567890"));
    page.evaluate::<()>("undefined").await.expect("nothing");
    assert!(matches!(page.evaluate::<i64>("'text'").await, Err(BrowserError::Invalid { .. })));
}

#[tokio::test]
async fn values_keep_what_json_cannot_say() {
    let page = page().await;
    let value = page
        .evaluate_value(
            "(() => { const o = { u: undefined, n: NaN, z: -0, b: 12n, d: new Date(0), r: /a+/gi,
               m: new Map([['k', new Set([1])]]), f: () => 1, e: document.body }; o.self = o; return o; })()",
        )
        .await
        .expect("a value");
    assert_eq!(value.get("u"), Some(&JsValue::Undefined));
    assert!(value.get("n").and_then(JsValue::as_f64).is_some_and(f64::is_nan));
    assert!(value.get("z").and_then(JsValue::as_f64).is_some_and(f64::is_sign_negative));
    assert_eq!(value.get("b"), Some(&JsValue::BigInt("12".into())));
    assert_eq!(value.get("d"), Some(&JsValue::Date("1970-01-01T00:00:00.000Z".into())));
    assert_eq!(value.get("r"), Some(&JsValue::RegExp { pattern: "a+".into(), flags: "gi".into() }));
    let set = JsValue::Set(vec![JsValue::Number(1.0)]);
    assert_eq!(value.get("m"), Some(&JsValue::Map(vec![(JsValue::String("k".into()), set)])));
    assert_eq!(value.get("f"), Some(&JsValue::Other("function".into())));
    assert_eq!(value.get("self"), Some(&JsValue::Reference));
    let cyclic = page.evaluate::<serde_json::Value>("(() => { const o = {}; o.o = o; return o; })()").await;
    assert!(matches!(cyclic, Err(BrowserError::Invalid { .. })), "{cyclic:?}");
}

#[tokio::test]
async fn arguments_go_in() {
    let page = page().await;
    assert_eq!(page.call::<f64>("(a, b) => a + b", &[1.into(), 2.5.into()]).await, Ok(3.5));
    let texts = page
        .call::<Vec<String>>(
            "(...args) => args.map(arg => Object.is(arg, -0) ? '-0' : typeof arg + ':' + String(arg))",
            &[
                JsArg::Undefined,
                f64::NAN.into(),
                (-0.0).into(),
                JsArg::BigInt("7".into()),
                "é".into(),
                json!({ "a": 1 }).into(),
            ],
        )
        .await
        .expect("texts");
    assert_eq!(
        texts,
        ["undefined:undefined", "number:NaN", "-0", "bigint:7", "string:é", "object:[object Object]"]
    );
}

#[tokio::test]
async fn handles_hold_objects() {
    let page = page().await;
    let handle = page.evaluate_handle("({ list: [1, 2, 3], name: 'x' })").await.expect("a handle");
    assert_eq!(handle.call::<i32>("(object, i) => object.list[i]", &[2.into()]).await, Ok(3));
    let list = handle.property("list").await.expect("a property");
    assert_eq!(list.kind(), "array");
    assert_eq!(list.json::<Vec<i32>>().await, Ok(vec![1, 2, 3]));
    let same: bool =
        page.call("(a, b) => a.list === b", &[(&handle).into(), (&list).into()]).await.expect("a bool");
    assert!(same);
    let number = page.evaluate_handle("1").await;
    assert!(matches!(number, Err(BrowserError::Invalid { .. })), "{number:?}");
    let body = page.evaluate_handle("document.body").await.expect("a node");
    assert!(body.is_node());
    page.goto("data:text/html,<p>next").await.expect("a page");
    let stale = list.json::<Vec<i32>>().await;
    assert!(matches!(stale, Err(BrowserError::Stale | BrowserError::Navigated)), "{stale:?}");
}

#[tokio::test]
async fn errors_of_scripts_are_typed() {
    let page = page().await;
    match page.evaluate::<()>("(() => { throw new TypeError('no'); })()").await {
        Err(BrowserError::Script { message, stack }) => {
            assert_eq!(message, "TypeError: no");
            assert!(stack.contains("at "), "{stack}");
        }
        other => panic!("{other:?}"),
    }
    match page.evaluate::<()>("Promise.reject('just text')").await {
        Err(BrowserError::Script { message, .. }) => assert_eq!(message, "just text"),
        other => panic!("{other:?}"),
    }
    match page.evaluate::<()>("1 +").await {
        Err(BrowserError::Script { message, .. }) => assert!(message.starts_with("SyntaxError"), "{message}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_script_that_never_returns_ends_at_its_deadline_and_the_page_lives() {
    let page = page().await;
    page.context().set_default_timeout(Duration::from_millis(300));
    let error = page.evaluate::<()>("while (true) {}").await.expect_err("it never returns");
    assert_eq!(error.to_string(), "timed out after 300 ms: waiting for the script to return");
    page.context().set_default_timeout(Duration::from_secs(30));
    assert_eq!(page.evaluate::<i32>("3").await, Ok(3));
    page.context().set_default_timeout(Duration::from_millis(300));
    assert!(page.evaluate::<()>("new Promise(() => {})").await.expect_err("it never returns").is_timeout());
}

#[tokio::test]
async fn a_script_whose_document_goes_away_says_so() {
    let page = page().await;
    let waiting = tokio::spawn({
        let page = page.clone();
        async move { page.evaluate::<()>("new Promise(() => {})").await }
    });
    assert_eq!(page.evaluate::<i32>("1").await, Ok(1));
    page.goto("data:text/html,<p>next").await.expect("a page");
    assert_eq!(waiting.await.expect("no panic"), Err(BrowserError::Navigated));
}

#[tokio::test]
async fn content_is_set_and_read() {
    let page = page().await;
    page.set_content("<!doctype html><title>Tést</title><p id=a>text</p><img src='data:,'>")
        .await
        .expect("content");
    assert_eq!(page.title().await.as_deref(), Ok("Tést"));
    let content = page.content().await.expect("content");
    assert!(content.starts_with("<!DOCTYPE html><html><head><title>Tést"), "{content}");
    assert_eq!(
        page.evaluate::<String>("document.getElementById('a').textContent").await.as_deref(),
        Ok("text")
    );
}
