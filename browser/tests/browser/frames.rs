//! Frames of the same and of other processes, popups, crashes.

use crate::server::{Answer, Server};
use crate::support::{context, page};
use espalier_browser::{BrowserError, ContextOptions, Frame, Page, PageEvent};
use std::time::Duration;

/// A page of one site with a frame of another, so that the frame has a process of its own.
async fn nested() -> (Server, Page) {
    let server = Server::start([
        (
            "/outer",
            Answer::dynamic(|seen| {
                let port = seen.headers["host"].rsplit_once(':').expect("a port").1.to_owned();
                Answer::html(&format!(
                    "<h1>outer</h1><iframe name=inner src='http://b.localhost:{port}/inner'></iframe>"
                ))
            }),
        ),
        ("/inner", Answer::html("<h1>inner</h1><iframe name=leaf src=/leaf></iframe>")),
        ("/leaf", Answer::html("<h1>leaf</h1>")),
        ("/same", Answer::html("<h1>same</h1><iframe name=leaf src=/leaf></iframe>")),
    ])
    .await;
    let page = page().await;
    page.goto(&server.at("a.localhost", "/outer")).await.expect("a page");
    (server, page)
}

async fn heading(frame: &Frame) -> String {
    frame.evaluate("document.querySelector('h1').textContent").await.expect("a heading")
}

#[tokio::test]
async fn frames_of_other_processes_are_frames() {
    let (server, page) = nested().await;
    let names: Vec<String> = page.frames().iter().map(Frame::name).collect();
    assert_eq!(names, ["", "inner", "leaf"]);
    let inner = page.frame_named("inner").expect("the frame");
    assert_eq!(inner.url(), server.at("b.localhost", "/inner"));
    assert_eq!(inner.parent(), Some(page.main_frame()));
    assert_eq!(heading(&inner).await, "inner");
    let leaf = page.frame_at("**/leaf").expect("the frame");
    assert_eq!(leaf.parent(), Some(inner.clone()));
    assert_eq!(heading(&leaf).await, "leaf");
    assert_eq!(heading(&page.main_frame()).await, "outer");
    let same: bool = inner
        .evaluate("(() => { try { return !!parent.document } catch { return false } })()")
        .await
        .expect("a bool");
    assert!(!same, "the frame is of another origin");
}

#[tokio::test]
async fn frames_move_between_processes() {
    let (server, page) = nested().await;
    let inner = page.frame_named("inner").expect("the frame");
    inner.goto(&server.at("a.localhost", "/same")).await.expect("into the parent's process");
    assert_eq!(heading(&inner).await, "same");
    assert_eq!(page.frames().len(), 3);
    let leaf = inner.children().pop().expect("a child");
    assert_eq!(heading(&leaf).await, "leaf");
    inner.goto(&server.at("c.localhost", "/inner")).await.expect("into a third process");
    assert_eq!(heading(&inner).await, "inner");
    assert!(leaf.is_detached());
    let error = leaf.evaluate::<i32>("1").await;
    assert_eq!(error, Err(BrowserError::Detached));
    page.evaluate::<()>("document.querySelector('iframe').remove()").await.expect("removed");
    assert!(inner.is_detached());
    assert_eq!(inner.evaluate::<i32>("1").await, Err(BrowserError::Detached));
    assert_eq!(page.frames().len(), 1);
}

#[tokio::test]
async fn waits_in_a_removed_frame_end() {
    let (_server, page) = nested().await;
    let inner = page.frame_named("inner").expect("the frame");
    let waiting = tokio::spawn({
        let inner = inner.clone();
        async move { inner.evaluate::<()>("new Promise(() => {})").await }
    });
    assert_eq!(inner.evaluate::<i32>("1").await, Ok(1));
    page.evaluate::<()>("document.querySelector('iframe').remove()").await.expect("removed");
    let error = waiting.await.expect("no panic").expect_err("the frame is gone");
    assert!(matches!(error, BrowserError::Detached | BrowserError::Navigated), "{error}");
}

#[tokio::test]
async fn popups_are_pages_with_an_opener() {
    let server = Server::start([
        ("/", Answer::html("<title>opener</title>")),
        ("/popup", Answer::html("<title>popup</title>")),
    ])
    .await;
    let page = page().await;
    page.goto(&server.url("/")).await.expect("a page");
    let mut events = page.events();
    let popup = page
        .context()
        .wait_for_page(async { page.evaluate::<()>("void (window.popup = open('/popup'))").await })
        .await
        .expect("a popup");
    popup.wait_for_url("**/popup").await.expect("it loads");
    assert_eq!(popup.title().await.as_deref(), Ok("popup"));
    assert_eq!(popup.opener(), Some(page.clone()));
    assert_eq!(page.context().pages().len(), 2);
    let mut told = None;
    while let (None, Some(event)) = (&told, events.next_within(Duration::from_secs(10)).await) {
        if let PageEvent::Popup(popup) = event {
            told = Some(popup);
        }
    }
    assert_eq!(told, Some(popup.clone()));
    let mut ends = popup.events();
    page.evaluate::<()>("window.popup.close()").await.expect("closed");
    let mut last = None;
    while let Some(event) = ends.next_within(Duration::from_secs(10)).await {
        last = Some(event);
    }
    assert!(matches!(last, Some(PageEvent::Closed)), "{last:?}");
    assert_eq!(popup.evaluate::<i32>("1").await, Err(BrowserError::Closed { what: "page" }));
}

#[tokio::test]
async fn a_crashed_page_is_reported_and_neighbours_go_on() {
    let context = context(ContextOptions::default()).await;
    let page = context.new_page().await.expect("a page");
    let neighbour = context.new_page().await.expect("a page");
    let mut events = page.events();
    let waiting = tokio::spawn({
        let page = page.clone();
        async move { page.evaluate::<()>("new Promise(() => {})").await }
    });
    assert_eq!(page.evaluate::<i32>("1").await, Ok(1));
    let crash = page.goto("chrome://crash").await;
    assert!(
        matches!(&crash, Err(BrowserError::Crashed { .. } | BrowserError::Navigation { .. })),
        "{crash:?}"
    );
    assert!(matches!(waiting.await.expect("no panic"), Err(BrowserError::Crashed { what: "page", .. })));
    assert!(matches!(page.evaluate::<i32>("1").await, Err(BrowserError::Crashed { .. })));
    let mut crashed = false;
    while let (false, Some(event)) = (crashed, events.next_within(Duration::from_secs(10)).await) {
        crashed = matches!(event, PageEvent::Crashed);
    }
    assert!(crashed, "the crash is an event");
    assert_eq!(neighbour.evaluate::<i32>("2").await, Ok(2));
    page.close().await.expect("a crashed page can be closed");
    assert_eq!(context.pages(), vec![neighbour]);
}
