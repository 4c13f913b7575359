//! Start and end of browsers, contexts and pages.

use crate::support::{browser, members, options, page, profile};
use espalier_browser::{Browser, BrowserError, ContextOptions, LaunchOptions};
use std::time::Duration;

#[tokio::test]
async fn a_browser_starts_and_ends_without_leaving_anything() {
    let browser = browser().await;
    assert!(browser.version().contains("Chrome"), "{}", browser.version());
    let group = browser.process_group().expect("a group");
    let profile = profile(group);
    assert!(profile.is_dir(), "{}", profile.display());
    assert!(browser.memory_bytes().await.expect("memory") > 10 << 20);
    browser.ping(Duration::from_secs(10)).await.expect("it answers");
    browser.close().await;
    assert_eq!(members(group), Vec::<u32>::new(), "processes are left");
    assert!(!profile.exists(), "{} is left", profile.display());
    assert_eq!(browser.failure(), Some(BrowserError::Closed { what: "browser" }));
    assert!(browser.new_context(ContextOptions::default()).await.is_err());
}

#[tokio::test]
async fn its_profile_folder_goes_with_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let env = vec![("TMPDIR".to_owned(), folder.path().display().to_string())];
    let kept = folder.path().join("kept");
    let browser = Browser::launch(LaunchOptions { user_data_dir: Some(kept.clone()), env, ..options() })
        .await
        .expect("the browser starts");
    browser.close().await;
    assert!(kept.is_dir(), "a folder of the caller's stays");
}

#[tokio::test]
async fn a_program_that_is_no_browser_is_an_error_with_its_words() {
    let options =
        LaunchOptions { executable: Some("/bin/sh".into()), timeout: Duration::from_secs(20), ..options() };
    let error = Browser::launch(options).await.expect_err("sh is no browser");
    let text = error.to_string();
    assert!(text.starts_with("browser did not start: ") && text.contains("exit status"), "{text}");
}

#[tokio::test]
async fn chromium_as_root_with_its_sandbox_says_what_is_wrong() {
    if !options().no_sandbox {
        return;
    }
    let error = Browser::launch(LaunchOptions { no_sandbox: false, ..options() })
        .await
        .expect_err("no sandbox as root");
    assert!(error.to_string().contains("hint: run it as another user, or set `no_sandbox: true`"), "{error}");
}

#[tokio::test]
async fn a_killed_browser_is_told_to_all_at_once() {
    let browser = browser().await;
    let context = browser.new_context(ContextOptions::default()).await.expect("a context");
    let page = context.new_page().await.expect("a page");
    let waiting = tokio::spawn({
        let page = page.clone();
        async move { page.evaluate::<i32>("new Promise(() => {})").await }
    });
    assert_eq!(page.evaluate::<i32>("1 + 1").await, Ok(2));
    let group = rustix::process::Pid::from_raw(browser.process_group().expect("a group").cast_signed())
        .expect("a group");
    rustix::process::kill_process_group(group, rustix::process::Signal::KILL).expect("killed");
    let error = waiting.await.expect("no panic").expect_err("the browser died");
    assert!(matches!(&error, BrowserError::Crashed { what: "browser process", .. }), "{error}");
    assert!(matches!(page.evaluate::<i32>("1").await, Err(BrowserError::Crashed { .. })));
    assert!(matches!(context.new_page().await, Err(BrowserError::Crashed { .. })));
    assert!(matches!(
        browser.new_context(ContextOptions::default()).await,
        Err(BrowserError::Crashed { .. })
    ));
}

#[tokio::test]
async fn dropping_the_last_handle_ends_the_browser() {
    let page = page().await;
    let browser = page.context().browser();
    let group = browser.process_group().expect("a group");
    let ended = {
        let browser = browser.clone();
        drop(page);
        browser
    };
    ended.close().await;
    drop(browser);
    assert_eq!(members(group), Vec::<u32>::new());
}

#[tokio::test]
async fn calls_on_closed_contexts_fail_at_once_and_neighbours_go_on() {
    let browser = browser().await;
    let one = browser.new_context(ContextOptions::default()).await.expect("a context");
    let other = browser.new_context(ContextOptions::default()).await.expect("a context");
    let page = one.new_page().await.expect("a page");
    let neighbour = other.new_page().await.expect("a page");
    let waiting = tokio::spawn({
        let page = page.clone();
        async move { page.evaluate::<i32>("new Promise(() => {})").await }
    });
    assert_eq!(page.evaluate::<i32>("1").await, Ok(1));
    one.close().await.expect("closed");
    let closed = BrowserError::Closed { what: "context" };
    assert_eq!(waiting.await.expect("no panic"), Err(closed.clone()));
    assert_eq!(page.evaluate::<i32>("1").await, Err(closed.clone()));
    assert_eq!(page.goto("about:blank").await.map(drop), Err(closed.clone()));
    assert_eq!(one.new_page().await.map(drop), Err(closed));
    assert_eq!(neighbour.evaluate::<i32>("2").await, Ok(2));
    one.close().await.expect("closing twice does nothing");
}

#[tokio::test]
async fn pages_close() {
    let page = page().await;
    let context = page.context().clone();
    let second = context.new_page().await.expect("a page");
    assert_eq!(context.pages(), vec![page.clone(), second.clone()]);
    page.close().await.expect("closed");
    assert_eq!(context.pages(), vec![second]);
    assert_eq!(page.evaluate::<i32>("1").await, Err(BrowserError::Closed { what: "page" }));
    page.close().await.expect("closing twice does nothing");
}
