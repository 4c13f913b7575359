//! The calls that everything else is made of, against Playwright's: in turns, so that both meet the same busy machine.

use crate::{options, peers::Peer};
use espalier_benches::{Finding, median};
use espalier_browser::{Browser, ContextOptions, ImageFormat, Result, ScreenshotOptions, Viewport};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const ROUNDS: usize = 3;
const CALLS: usize = 100;
const HTML: &str =
    "<input id=i style='position:fixed;left:10px;top:10px'><button style='margin:100px'>Go</button>";

/// Samples in ms by the name of what was done.
type Times = BTreeMap<String, Vec<f64>>;

/// What is compared: its name in a finding, of whose share something is promised.
const TABLE: [(&str, &str, Option<f64>); 9] = [
    ("launch", "launch", None),
    ("round_trip", "round trip to the browser", Some(0.5)),
    ("evaluate", "evaluate 1 + 1", None),
    ("click", "click at a place", Some(0.8)),
    ("locator_click", "click of a locator", None),
    ("type", "type 11 characters", Some(0.6)),
    ("context", "new context and page", None),
    ("png", "picture of 1280 x 1000, PNG", None),
    ("jpeg", "picture of 1280 x 1000, JPEG", None),
];

pub(crate) async fn measure(playwright: &mut Peer) -> std::result::Result<(), String> {
    let (mut ours, mut theirs) = (Times::new(), Times::new());
    for _ in 0..ROUNDS {
        let round: Times =
            playwright.ask(json!({ "do": "primitives", "html": HTML, "calls": CALLS })).await?;
        round.into_iter().for_each(|(name, times)| theirs.entry(name).or_default().extend(times));
        Box::pin(one_round(&mut ours)).await.map_err(|error| error.to_string())?;
    }
    for (key, what, share) in TABLE {
        let take = |times: &mut Times| median(times.get_mut(key).map_or(&mut [][..], Vec::as_mut_slice));
        let (own, peer) = (take(&mut ours), take(&mut theirs));
        Finding::new(what, own, "ms").note(format!("median; Playwright {peer:.3} ms")).print();
        let finding = Finding::new(format!("{what}, of Playwright's"), own / peer, "x");
        share.map_or(finding.clone(), |share| finding.at_most(share)).print();
    }
    Ok(())
}

async fn one_round(times: &mut Times) -> Result<()> {
    for _ in 0..3 {
        let began = Instant::now();
        let browser = Browser::launch(options()).await?;
        note(times, "launch", began);
        browser.close().await;
    }
    let browser = Browser::launch(options()).await?;
    let viewport = Viewport { width: 1280, height: 1000 };
    let context_options = || ContextOptions { viewport, ..ContextOptions::default() };
    for _ in 0..CALLS / 10 {
        let began = Instant::now();
        let context = browser.new_context(context_options()).await?;
        context.new_page().await?;
        note(times, "context", began);
        context.close().await?;
    }
    let page = browser.new_context(context_options()).await?.new_page().await?;
    page.set_content(HTML).await?;
    for _ in 0..CALLS * 5 {
        let began = Instant::now();
        browser.ping(Duration::from_secs(5)).await?;
        note(times, "round_trip", began);
        let began = Instant::now();
        page.evaluate::<i32>("1 + 1").await?;
        note(times, "evaluate", began);
    }
    let button = page.locator("button");
    for _ in 0..CALLS {
        let began = Instant::now();
        page.mouse().click(20.0, 20.0).await?;
        note(times, "click", began);
        let began = Instant::now();
        page.keyboard().type_text("hello world").await?;
        note(times, "type", began);
        let began = Instant::now();
        button.click().await?;
        note(times, "locator_click", began);
    }
    for _ in 0..CALLS / 5 {
        let began = Instant::now();
        page.screenshot().await?;
        note(times, "png", began);
        let began = Instant::now();
        let jpeg = ScreenshotOptions { format: ImageFormat::Jpeg(80), ..ScreenshotOptions::default() };
        page.screenshot_with(jpeg).await?;
        note(times, "jpeg", began);
    }
    browser.close().await;
    Ok(())
}

fn note(times: &mut Times, name: &str, began: Instant) {
    times.entry(name.to_owned()).or_default().push(began.elapsed().as_secs_f64() * 1e3);
}
