//! Processes shared by contexts, and what happens to ill ones.

use crate::support::options;
use espalier_browser::{BrowserError, BrowserPool, ContextOptions, IllReason, PoolOptions};
use std::time::Duration;

fn pool(change: impl FnOnce(&mut PoolOptions)) -> BrowserPool {
    let mut pool = PoolOptions {
        launch: options(),
        share_without_sandbox: true,
        processes_max: 2,
        contexts_per_process: 2,
        check_every: Duration::from_millis(100),
        ..PoolOptions::default()
    };
    change(&mut pool);
    BrowserPool::new(pool).expect("a pool")
}

#[tokio::test]
async fn contexts_share_processes_up_to_the_limits() {
    let pool = pool(|options| options.wait = Duration::from_millis(300));
    let mut contexts = Vec::new();
    for _ in 0..4 {
        contexts.push(pool.new_context(ContextOptions::default()).await.expect("a context"));
    }
    let filled: Vec<usize> = pool.members().iter().map(|member| member.contexts).collect();
    assert_eq!(filled, [2, 2]);
    let error = pool.new_context(ContextOptions::default()).await.expect_err("all places are taken");
    assert_eq!(error.to_string(), "timed out after 300 ms: waiting for a place in the pool; all 4 are taken");
    let page = contexts[3].new_page().await.expect("a page");
    contexts.truncate(3);
    assert_eq!(
        page.evaluate::<i32>("1").await,
        Err(BrowserError::Closed { what: "context" }),
        "dropped with its place"
    );
    let again = pool.new_context(ContextOptions::default()).await.expect("the place is free");
    let page = again.new_page().await.expect("a page");
    assert_eq!(page.evaluate::<i32>("1").await, Ok(1));
    pool.close().await;
    assert_eq!(page.evaluate::<i32>("1").await, Err(BrowserError::Closed { what: "browser" }));
    assert!(pool.new_context(ContextOptions::default()).await.is_err());
}

#[tokio::test]
async fn a_killed_process_is_replaced_and_neighbours_go_on() {
    let pool = pool(|options| options.contexts_per_process = 1);
    let dying = pool.new_context(ContextOptions::default()).await.expect("a context");
    let neighbour = pool.new_context(ContextOptions::default()).await.expect("a context");
    let page = dying.new_page().await.expect("a page");
    let beside = neighbour.new_page().await.expect("a page");
    let browser = dying.browser();
    let group = rustix::process::Pid::from_raw(browser.process_group().expect("a group").cast_signed())
        .expect("a group");
    rustix::process::kill_process_group(group, rustix::process::Signal::KILL).expect("killed");
    assert!(matches!(browser.ended().await, BrowserError::Crashed { .. }));
    assert!(matches!(page.evaluate::<i32>("1").await, Err(BrowserError::Crashed { .. })));
    drop(dying);
    let next = pool.new_context(ContextOptions::default()).await.expect("a context in a new process");
    assert_eq!(next.new_page().await.expect("a page").evaluate::<i32>("2").await, Ok(2));
    assert_eq!(beside.evaluate::<i32>("3").await, Ok(3));
    pool.close().await;
}

#[tokio::test]
async fn processes_that_are_too_large_or_too_old_get_no_more_contexts() {
    let pool = pool(|options| {
        options.memory_bytes_max = 1;
        options.processes_max = 1;
    });
    let mut illnesses = pool.illnesses();
    let first = pool.new_context(ContextOptions::default()).await.expect("a context");
    let page = first.new_page().await.expect("a page");
    assert_eq!(illnesses.next_within(Duration::from_secs(60)).await, Some(IllReason::Memory));
    assert_eq!(page.evaluate::<i32>("1").await, Ok(1), "its contexts go on");
    let second = pool.new_context(ContextOptions::default()).await.expect("a context in a new process");
    assert_ne!(first.browser().process_group(), second.browser().process_group());
    let old = first.browser();
    drop((first, page));
    assert_eq!(pool.members().len(), 1, "the ill process is gone from the pool with its last context");
    old.close().await;
    pool.close().await;
    assert!(BrowserPool::new(PoolOptions { processes_max: 0, ..PoolOptions::default() }).is_err());
}

#[tokio::test]
async fn a_process_that_does_not_answer_is_killed_and_its_contexts_told() {
    let pool = pool(|options| options.answer_within = Duration::from_secs(1));
    let context = pool.new_context(ContextOptions::default()).await.expect("a context");
    let page = context.new_page().await.expect("a page");
    let group =
        rustix::process::Pid::from_raw(context.browser().process_group().expect("a group").cast_signed())
            .expect("a group");
    rustix::process::kill_process_group(group, rustix::process::Signal::STOP).expect("stopped");
    let error = page.evaluate::<i32>("1").await.expect_err("it does not answer");
    assert_eq!(error.to_string(), "the browser process crashed: it did not answer");
    let next = pool.new_context(ContextOptions::default()).await.expect("a context in a new process");
    assert_eq!(next.new_page().await.expect("a page").evaluate::<i32>("2").await, Ok(2));
    pool.close().await;
}

#[tokio::test]
async fn without_chromiums_sandbox_nothing_is_shared_unless_asked_for() {
    let pool = pool(|options| {
        options.share_without_sandbox = false;
        options.launch.no_sandbox = true;
    });
    let one = pool.new_context(ContextOptions::default()).await.expect("a context");
    let other = pool.new_context(ContextOptions::default()).await.expect("a context");
    assert_ne!(one.browser().process_group(), other.browser().process_group());
    pool.close().await;
}
