//! Navigations and waits: what loads, what fails, and what takes no time at all.

use crate::server::{Answer, Server};
use crate::support::{context, page};
use espalier_browser::{BrowserError, ContextOptions, GotoOptions, LoadState, PageEvent, Response};
use std::time::Duration;

fn until(wait_until: LoadState) -> GotoOptions {
    GotoOptions { wait_until, ..GotoOptions::default() }
}

fn within(ms: u64) -> GotoOptions {
    GotoOptions { timeout: Some(Duration::from_millis(ms)), ..GotoOptions::default() }
}

#[tokio::test]
async fn goto_returns_the_response() {
    let server = Server::start([
        ("/a", Answer::html("<title>a</title>")),
        ("/old", Answer::redirect("/a")),
        ("/gone", Answer::html("gone").status(410)),
    ])
    .await;
    let page = page().await;
    let response = page.goto(&server.url("/old")).await.expect("a page").expect("a response");
    assert_eq!((response.status(), response.url()), (200, server.url("/a").as_str()));
    assert_eq!(response.text().await.as_deref(), Ok("<title>a</title>"));
    let before = response.request().redirected_from().expect("a redirect");
    assert_eq!(before.response().map(|response| response.status()), Some(302));
    assert_eq!(page.url(), server.url("/a"));
    assert_eq!(page.title().await.as_deref(), Ok("a"));
    let gone = page.goto(&server.url("/gone")).await.expect("a page").expect("a response");
    assert_eq!((gone.status(), gone.ok()), (410, false));
    assert_eq!(page.goto("about:blank").await.map(|response| response.is_none()), Ok(true));
}

#[tokio::test]
async fn goto_waits_as_far_as_asked() {
    let server = Server::start([
        ("/slow-image", Answer::html("<p id=p>here</p><img src=/never>")),
        ("/slow-script", Answer::html("<p id=p>here</p><script src=/never></script>")),
        ("/never", Answer::Hang),
        ("/half", Answer::HangInBody("<p id=p>half</p>".repeat(200))),
        (
            "/idle",
            Answer::html(
                "<script>setTimeout(() => fetch('/late').then(() => window.late = 1), 100)</script>",
            ),
        ),
        ("/late", Answer::typed("text/plain", "late")),
    ])
    .await;
    let page = page().await;
    page.goto_with(&server.url("/half"), until(LoadState::Commit)).await.expect("committed");
    page.goto_with(&server.url("/slow-image"), until(LoadState::DomContentLoaded)).await.expect("parsed");
    assert_eq!(page.evaluate::<String>("p.textContent").await.as_deref(), Ok("here"));
    let error =
        page.goto_with(&server.url("/slow-image"), within(300)).await.expect_err("its image never comes");
    let url = server.url("/slow-image");
    assert_eq!(error.to_string(), format!("timed out after 300 ms: waiting for {url} to be loaded (Load)"));
    let options = GotoOptions { wait_until: LoadState::DomContentLoaded, ..within(300) };
    assert!(
        page.goto_with(&server.url("/slow-script"), options).await.expect_err("never parsed").is_timeout()
    );
    page.goto_with(&server.url("/idle"), until(LoadState::NetworkIdle)).await.expect("idle");
    assert_eq!(page.evaluate::<i32>("window.late").await, Ok(1));
}

#[tokio::test]
async fn a_second_hash_navigation_does_not_hang() {
    let server = Server::start([("/", Answer::html("<p id=p>text</p>"))]).await;
    let page = page().await;
    page.goto(&server.url("/")).await.expect("a page");
    page.evaluate::<()>("void (window.mark = 1)").await.expect("a mark");
    for hash in ["#one", "#two", "#two"] {
        let response = page.goto(&server.url(&format!("/{hash}"))).await.expect("the same page");
        assert!(response.is_none());
        assert_eq!(page.url(), server.url(&format!("/{hash}")));
    }
    assert_eq!(page.evaluate::<i32>("window.mark").await, Ok(1), "the document stayed");
    let mut events = page.events();
    page.expect_navigation(async { page.evaluate::<()>("history.pushState(null, '', '/pushed')").await })
        .await
        .expect("a change within the document");
    assert_eq!(page.url(), server.url("/pushed"));
    let event = events.next_within(Duration::from_secs(10)).await;
    assert!(matches!(event, Some(PageEvent::NavigatedWithinDocument(_))), "{event:?}");
    assert_eq!(server.seen_at("/").len(), 1);
}

#[tokio::test]
async fn navigating_to_a_download_is_typed_and_the_next_navigation_works() {
    let server = Server::start([
        ("/", Answer::html("<title>home</title>")),
        (
            "/file",
            Answer::typed("application/octet-stream", "data")
                .header("content-disposition", "attachment; filename=f.bin"),
        ),
        ("/empty", Answer::html("").status(204)),
    ])
    .await;
    let page = page().await;
    page.goto(&server.url("/")).await.expect("a page");
    let url = server.url("/file");
    assert_eq!(page.goto(&url).await.map(drop), Err(BrowserError::Download { url: url.clone() }));
    assert_eq!(page.url(), server.url("/"));
    assert_eq!(page.title().await.as_deref(), Ok("home"));
    let nothing = page.goto(&server.url("/empty")).await.map(drop);
    assert!(
        matches!(&nothing, Err(BrowserError::Navigation { reason, .. }) if reason == "net::ERR_ABORTED"),
        "{nothing:?}"
    );
    page.goto(&server.url("/#x")).await.expect("the next navigation works");
    let clicked =
        page.expect_navigation(async { page.evaluate::<()>("void (location.href = '/file')").await }).await;
    assert_eq!(clicked.map(drop), Err(BrowserError::Download { url }));
}

#[tokio::test]
async fn failed_navigations_name_their_reason() {
    let server = Server::start([
        ("/loop", Answer::redirect("/loop")),
        ("/close", Answer::Close),
        ("/hang", Answer::Hang),
        ("/", Answer::html("<title>home</title>")),
    ])
    .await;
    let page = page().await;
    let reason = |result: Result<Option<Response>, BrowserError>| match result {
        Err(BrowserError::Navigation { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(reason(page.goto(&server.url("/loop")).await), "net::ERR_TOO_MANY_REDIRECTS");
    assert_eq!(reason(page.goto(&server.url("/close")).await), "net::ERR_EMPTY_RESPONSE");
    assert_eq!(reason(page.goto("http://127.0.0.1:1/").await), "net::ERR_UNSAFE_PORT");
    for round in 0..10 {
        assert_eq!(reason(page.goto("http://does-not-exist.invalid/").await), "net::ERR_NAME_NOT_RESOLVED");
        // Chromium's page for it has come: nothing is asked of one that is about to go.
        assert_eq!(page.evaluate::<i64>("1 + 1").await.expect("asked after a failure"), 2, "{round}");
    }
    assert!(reason(page.goto("no address").await).contains("invalid URL"));
    let error = page.goto_with(&server.url("/hang"), within(300)).await.expect_err("it hangs");
    assert_eq!(
        error.to_string(),
        format!("timed out after 300 ms: waiting for {} to answer", server.url("/hang"))
    );
    page.goto(&server.url("/")).await.expect("the page is none the worse");
    assert_eq!(
        reason(
            page.expect_navigation(async { page.evaluate::<()>("void (location.href = '/close')").await })
                .await
        ),
        "net::ERR_EMPTY_RESPONSE"
    );
    page.goto(&server.url("/")).await.expect("a page");
    assert_eq!(page.title().await.as_deref(), Ok("home"));
}

#[tokio::test]
async fn history_and_reload() {
    let server =
        Server::start([("/1", Answer::html("<title>1</title>")), ("/2", Answer::html("<title>2</title>"))])
            .await;
    let page = page().await;
    assert_eq!(page.go_back().await, Ok(false), "there is nothing to go back to");
    page.goto(&server.url("/1")).await.expect("a page");
    page.goto(&server.url("/2")).await.expect("a page");
    assert_eq!(page.go_back().await, Ok(true));
    assert_eq!(page.title().await.as_deref(), Ok("1"));
    assert_eq!(page.go_forward().await, Ok(true));
    assert_eq!(page.title().await.as_deref(), Ok("2"));
    assert_eq!(page.go_forward().await, Ok(false));
    let seen = server.seen_at("/2").len();
    page.reload().await.expect("reloaded").expect("a response");
    assert!(server.seen_at("/2").len() > seen);
    page.goto(&server.url("/2#a")).await.expect("a hash");
    assert_eq!(page.go_back().await, Ok(true));
    assert_eq!(page.url(), server.url("/2"));
}

#[tokio::test]
async fn beforeunload_does_not_wedge_navigation() {
    let server = Server::start([
        (
            "/",
            Answer::html(
                "<button>x</button><script>onbeforeunload = event => event.preventDefault()</script>",
            ),
        ),
        ("/next", Answer::html("<title>next</title>")),
    ])
    .await;
    let page = page().await;
    page.goto(&server.url("/")).await.expect("a page");
    // Pages may ask only after the user has touched them; scripts of ours count as such.
    page.evaluate::<i32>("1").await.expect("a gesture");
    page.goto(&server.url("/next")).await.expect("the question is answered");
    assert_eq!(page.title().await.as_deref(), Ok("next"));
    page.goto(&server.url("/")).await.expect("a page");
    page.evaluate::<i32>("1").await.expect("a gesture");
    page.close_asking().await.expect("closed");
}

#[tokio::test]
async fn a_navigation_that_is_replaced_ends() {
    let server = Server::start([("/hang", Answer::Hang), ("/", Answer::html("<title>home</title>"))]).await;
    let page = page().await;
    let first = tokio::spawn({
        let (page, url) = (page.clone(), server.url("/hang"));
        async move { page.goto(&url).await.map(drop) }
    });
    let mut events = page.events();
    while !matches!(events.next_within(Duration::from_secs(10)).await, Some(PageEvent::Request(_)) | None) {}
    page.goto(&server.url("/")).await.expect("the second goes through");
    let first = first.await.expect("no panic");
    assert!(
        matches!(&first, Err(BrowserError::Navigation { reason, .. }) if reason == "net::ERR_ABORTED"),
        "{first:?}"
    );
}

#[tokio::test]
async fn client_redirects_end_at_the_last_page() {
    let server = Server::start([
        ("/first", Answer::html("<script>location.replace('/second')</script>")),
        ("/second", Answer::html("<title>second</title>")),
    ])
    .await;
    let page = page().await;
    page.goto(&server.url("/first")).await.expect("a page");
    page.wait_for_url("**/second").await.expect("the second page");
    assert_eq!(page.title().await.as_deref(), Ok("second"));
    page.context().set_default_timeout(Duration::from_millis(200));
    let error = page.wait_for_url("**/third").await.expect_err("there is none");
    let url = server.url("/second");
    assert_eq!(
        error.to_string(),
        format!("timed out after 200 ms: waiting for the address to match **/third; it is {url}")
    );
}

#[tokio::test]
async fn a_page_in_an_endless_loop_does_not_hold_others() {
    let server =
        Server::start([("/spin", Answer::html("<script>setTimeout(() => { while (true) {} }, 0)</script>"))])
            .await;
    let context = context(ContextOptions::default()).await;
    let page = context.new_page().await.expect("a page");
    let neighbour = context.new_page().await.expect("a page");
    let _ = page.goto_with(&server.url("/spin"), until(LoadState::Commit)).await;
    context.set_default_timeout(Duration::from_millis(500));
    let mut answer = page.evaluate::<i32>("1").await;
    while answer.is_ok() {
        answer = page.evaluate::<i32>("1").await;
    }
    assert!(answer.expect_err("the page spins").is_timeout());
    context.set_default_timeout(Duration::from_secs(30));
    assert_eq!(neighbour.evaluate::<i32>("2").await, Ok(2));
    page.close().await.expect("it can be closed");
}
