//! The clock of pages, in the manner of Playwright.

use crate::server::{Answer, Server};
use crate::support::page;
use espalier_browser::{BrowserError, Page};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const COUNT: &str = "globalThis.calls = []; setInterval(() => calls.push(Date.now()), 1000);
  setTimeout(() => globalThis.late = Date.now(), 2500);";

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

async fn now(page: &Page) -> f64 {
    page.evaluate("Date.now()").await.expect("a time")
}

#[tokio::test]
async fn a_paused_clock_goes_on_when_it_is_told() {
    let page = page().await;
    let clock = page.context().clock();
    clock.install(at(1000)).await.expect("installed");
    clock.pause_at(at(2000)).await.expect("paused");
    assert_eq!(now(&page).await, 2_000_000.0);
    page.evaluate::<()>(COUNT).await.expect("timers");
    clock.run_for(Duration::from_millis(3500)).await.expect("it runs");
    let calls = page.evaluate::<Vec<f64>>("calls").await;
    assert_eq!(calls, Ok(vec![2_001_000.0, 2_002_000.0, 2_003_000.0]));
    assert_eq!(page.evaluate::<f64>("late").await, Ok(2_002_500.0));
    clock.fast_forward(Duration::from_secs(3600)).await.expect("it jumps");
    assert_eq!(page.evaluate::<usize>("calls.length").await, Ok(4), "called once");
    assert_eq!(now(&page).await, 5_603_500.0);
    let error = clock.pause_at(at(10)).await.expect_err("past");
    assert!(error.to_string().contains("the clock shows 5603500 ms"), "{error}");
    clock.resume().await.expect("it goes on");
    page.wait_for_function::<bool>("() => Date.now() > 5603500 + 50", &[]).await.expect("it goes on");
}

#[tokio::test]
async fn new_documents_and_frames_have_the_same_clock() {
    let server = Server::start([
        ("/", Answer::html("<script>globalThis.first = Date.now()</script><iframe src=/inner></iframe>")),
        ("/inner", Answer::html("<script>globalThis.first = Date.now()</script>")),
    ])
    .await;
    let page = page().await;
    let clock = page.context().clock();
    clock.install(at(5000)).await.expect("installed");
    clock.pause_at(at(6000)).await.expect("paused");
    page.goto(&server.url("/")).await.expect("loaded");
    let second = page.context().new_page().await.expect("a page");
    second.goto(&server.url("/inner")).await.expect("loaded");
    for frame in page.frames().into_iter().chain(second.frames()) {
        assert_eq!(frame.evaluate::<f64>("first").await, Ok(6_000_000.0), "{frame:?}");
    }
    clock.run_for(Duration::from_secs(1)).await.expect("it runs");
    page.reload().await.expect("loaded");
    assert_eq!(page.evaluate::<f64>("first").await, Ok(6_001_000.0));
}

#[tokio::test]
async fn a_fixed_time_is_that_of_date_only() {
    let page = page().await;
    let clock = page.context().clock();
    clock.set_fixed_time(at(7000)).await.expect("fixed");
    let waited = "new Promise(resolve => setTimeout(() => resolve([Date.now(), new Date().getTime()]), 50))";
    assert_eq!(page.evaluate::<Vec<f64>>(waited).await, Ok(vec![7_000_000.0; 2]), "timers go on");
    clock.set_system_time(at(8000)).await.expect("set");
    let date = now(&page).await;
    assert!((8_000_000.0..8_030_000.0).contains(&date), "{date}");
    clock.pause_at(at(9000)).await.expect("paused");
    assert_eq!(now(&page).await, 9_000_000.0);
    let told =
        "[new Date(5).getTime(), Date.UTC(1970), new Date() instanceof Date, typeof Date(), Date.length,
      Intl.DateTimeFormat('en', { timeZone: 'UTC' }).format()].join()";
    assert_eq!(page.evaluate::<String>(told).await.as_deref(), Ok("5,0,true,string,7,1/1/1970"));
    let error = clock.install(UNIX_EPOCH - Duration::from_secs(1)).await.expect_err("before 1970");
    assert!(matches!(error, BrowserError::Invalid { .. }), "{error}");
}
