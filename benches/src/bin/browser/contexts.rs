//! Many contexts: memory of each in one process and with a process each, and steps in a second.

use crate::{options, peers::Peer};
use espalier_benches::Finding;
use espalier_browser::agent::{
    PictureFormat, PictureOptions, Session, SessionOptions, SnapshotOptions, ToolCall, ToolOptions,
};
use espalier_browser::{Browser, BrowserContext, ContextOptions, Result};
use serde::Deserialize;
use serde_json::json;
use std::time::{Duration, Instant};

const CONTEXTS: usize = 50;
/// Each is as large as the others, so that fewer than [`CONTEXTS`] say what one takes.
const BROWSERS: usize = 12;
const AT_ONCE: usize = 16;
const SECONDS: u64 = 15;

#[derive(Deserialize)]
struct Steps {
    steps: f64,
    seconds: f64,
}

pub(crate) async fn measure(origin: &str, playwright: &mut Peer) -> std::result::Result<(), String> {
    let url = format!("{origin}/shop");
    let small = format!("{origin}/miniwob/click-test.html");
    memory("a page of MiniWoB++", &small, Some(0.3)).await.map_err(|error| error.to_string())?;
    memory("a shop of 80 products", &url, None).await.map_err(|error| error.to_string())?;
    let command = json!({ "do": "steps", "url": url, "contexts": AT_ONCE, "seconds": SECONDS });
    let theirs: Steps = playwright.ask(command).await?;
    let ours = steps(&url).await.map_err(|error| error.to_string())?;
    let (ours, theirs) = (ours, theirs.steps / theirs.seconds);
    let what = format!("steps in {AT_ONCE} contexts at once, a click, a description and a picture each");
    Finding::new(&what, ours, "steps/s").note(format!("Playwright {theirs:.1} steps/s")).print();
    Finding::new(format!("{what}, of Playwright's"), ours / theirs, "x").print();
    Ok(())
}

async fn open(browser: &Browser, url: &str) -> Result<BrowserContext> {
    let context = browser.new_context(ContextOptions::default()).await?;
    context.new_page().await?.goto(url).await?;
    Ok(context)
}

/// Proportional set sizes: memory that processes share counts once. What the page itself takes, nobody shares.
async fn memory(page: &str, url: &str, share: Option<f64>) -> Result<()> {
    const MIB: f64 = (1u64 << 20) as f64;
    let browser = Browser::launch(options()).await?;
    let mut contexts = Vec::new();
    for _ in 0..CONTEXTS {
        contexts.push(open(&browser, url).await?);
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let shared = browser.memory_bytes().await? as f64 / CONTEXTS as f64 / MIB;
    drop(contexts);
    browser.close().await;
    let mut browsers = Vec::new();
    for _ in 0..BROWSERS {
        let browser = Browser::launch(options()).await?;
        let context = open(&browser, url).await?;
        browsers.push((browser, context));
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut apart = 0.0;
    for (browser, _) in &browsers {
        apart += browser.memory_bytes().await? as f64 / BROWSERS as f64 / MIB;
    }
    for (browser, _) in browsers {
        browser.close().await;
    }
    let what = format!("memory a context with {page}, {CONTEXTS} in one browser");
    Finding::new(&what, shared, "MiB")
        .note(format!("with a browser each {apart:.1} MiB, of {BROWSERS} browsers"))
        .print();
    let finding = Finding::new(format!("{what}, of that with a browser each"), shared / apart, "x");
    share.map_or(finding.clone(), |share| finding.at_most(share)).print();
    Ok(())
}

async fn steps(url: &str) -> Result<f64> {
    let browser = Browser::launch(options()).await?;
    let mut sessions = Vec::new();
    for _ in 0..AT_ONCE {
        let context = browser.new_context(ContextOptions::default()).await?;
        let tools = ToolOptions { refs: true, ..ToolOptions::default() };
        let session = Session::open(context, SessionOptions { tools, ..SessionOptions::default() }).await?;
        session.goto(url).await?;
        sessions.push(session);
    }
    let began = Instant::now();
    let work = sessions.iter().map(|session| async move {
        let mut steps = 0u32;
        let mut snapshot = session.snapshot(SnapshotOptions::default()).await?;
        while began.elapsed() < Duration::from_secs(SECONDS) {
            let line = snapshot.text.split("button \"Add to cart\" ").nth(1 + steps as usize % 8);
            let reference = line.and_then(|rest| rest.split_ascii_whitespace().next()).unwrap_or("e1");
            session.act(&[ToolCall::new("click", json!({ "ref": reference }))]).await?;
            snapshot = session.snapshot(SnapshotOptions::default()).await?;
            let picture =
                PictureOptions { format: PictureFormat::Jpeg, quality: 80, ..PictureOptions::default() };
            session.screenshot(picture).await?;
            steps += 1;
        }
        Ok::<u32, espalier_browser::BrowserError>(steps)
    });
    let done: u32 = futures::future::try_join_all(work).await?.into_iter().sum();
    let took = began.elapsed().as_secs_f64();
    browser.close().await;
    Ok(f64::from(done) / took)
}
