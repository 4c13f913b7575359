//! Medians of the calls that everything else is made of: `cargo run --release -p espalier-browser --example measure`.

use espalier_browser::agent::{Session, SessionOptions, SnapshotOptions, ToolCall};
use espalier_browser::{
    Browser, BrowserError, ContextOptions, DeterministicOptions, LaunchOptions, RemoteOptions, Result,
};
use std::process::Stdio;
use std::time::{Duration, Instant};

#[tokio::main]
async fn main() -> Result<()> {
    let no_sandbox = std::env::args().any(|arg| arg == "--no-sandbox");
    let options = || LaunchOptions { no_sandbox, ..LaunchOptions::default() };
    let mut launches = Vec::new();
    for _ in 0..10 {
        let start = Instant::now();
        let browser = Browser::launch(options()).await?;
        launches.push(start.elapsed());
        browser.close().await;
    }
    report("launch", launches);
    let browser = Browser::launch(options()).await?;
    report("round trip", round_trips(&browser).await?);
    let remote = over_standard_streams(&options()).await?;
    report("round trip over standard streams", round_trips(&remote).await?);
    remote.close().await;
    let mut pages = Vec::new();
    for _ in 0..20 {
        let start = Instant::now();
        let context = browser.new_context(ContextOptions::default()).await?;
        context.new_page().await?;
        pages.push(start.elapsed());
        context.close().await?;
    }
    report("new context and page", pages);
    let page = browser.new_context(ContextOptions::default()).await?.new_page().await?;
    let mut evaluations = Vec::new();
    for _ in 0..2000 {
        let start = Instant::now();
        page.evaluate::<i32>("1 + 1").await?;
        evaluations.push(start.elapsed());
    }
    report("evaluate 1 + 1", evaluations);
    page.set_content(
        "<input id=i style='position:fixed;left:10px;top:10px'><button style='margin:100px'>Go</button>",
    )
    .await?;
    let button = page.locator("button");
    let (mut clicks, mut located, mut typed, mut pictures) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..100 {
        let start = Instant::now();
        page.mouse().click(20.0, 20.0).await?;
        clicks.push(start.elapsed());
        let start = Instant::now();
        page.keyboard().type_text("hello world").await?;
        typed.push(start.elapsed());
        let start = Instant::now();
        button.click().await?;
        located.push(start.elapsed());
    }
    report("click at a place", clicks);
    report("type 11 characters", typed);
    report("locator.click", located);
    for _ in 0..20 {
        let start = Instant::now();
        page.screenshot().await?;
        pictures.push(start.elapsed());
    }
    report("picture, PNG", pictures);
    agents(&browser).await?;
    steps(&browser).await?;
    browser.close().await;
    Ok(())
}

/// Steps of an agent, a click and a picture: as they come, and in a deterministic episode on a page at rest and on one
/// with a timer and an animation.
async fn steps(browser: &Browser) -> Result<()> {
    let still = "<button>Go</button>";
    let busy = "<button>Go</button><p id=n></p><script>let k = 0; setInterval(() => n.textContent = ++k, 50);
      const step = () => requestAnimationFrame(step); step();</script>";
    let plain = browser.new_context(ContextOptions::default()).await?;
    let deterministic = Some(DeterministicOptions::default());
    let fixed = browser.new_context(ContextOptions { deterministic, ..ContextOptions::default() }).await?;
    for (what, html, context) in [
        ("click and picture", still, &plain),
        ("deterministic step and picture, page at rest", still, &fixed),
        ("click and picture, busy page", busy, &plain),
        ("deterministic step and picture, busy page", busy, &fixed),
    ] {
        let page = context.new_page().await?;
        page.set_content(html).await?;
        let mut times = Vec::new();
        for _ in 0..50 {
            let start = Instant::now();
            match context.virtual_time() {
                Ok(_) => page.step(page.locator("button").click()).await?,
                Err(_) => page.locator("button").click().await?,
            }
            page.screenshot().await?;
            times.push(start.elapsed());
        }
        report(what, times);
        page.close().await?;
    }
    Ok(())
}

async fn round_trips(browser: &Browser) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    for _ in 0..2000 {
        let start = Instant::now();
        browser.ping(Duration::from_secs(5)).await?;
        times.push(start.elapsed());
    }
    Ok(times)
}

/// A browser that this library does not start.
async fn over_standard_streams(options: &LaunchOptions) -> Result<Browser> {
    let failed = |error: std::io::Error| BrowserError::Launch { reason: error.to_string() };
    let folder = tempfile::tempdir().map_err(failed)?;
    let argv = options.command_line(folder.path())?.over_standard_streams();
    let mut command = tokio::process::Command::new(&argv[0]);
    command.args(&argv[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(failed)?;
    let (reader, writer) = (child.stdout.take().expect("piped"), child.stdin.take().expect("piped"));
    let ended = async move {
        let status = child.wait().await;
        drop(folder);
        status.map_or_else(|error| error.to_string(), |status| status.to_string())
    };
    let remote = RemoteOptions { ended: Some(Box::pin(ended)), ..RemoteOptions::default() };
    Browser::over(reader, writer, remote).await
}

/// Steps of an agent with the wait for the page, and how long page descriptions are.
async fn agents(browser: &Browser) -> Result<()> {
    const PAGES: [(&str, &str); 6] = [
        ("table", include_str!("../tests/conformance/pages/table.html")),
        ("names", include_str!("../tests/conformance/pages/names.html")),
        ("shadow", include_str!("../tests/conformance/pages/shadow.html")),
        ("states", include_str!("../tests/conformance/pages/states.html")),
        ("visibility", include_str!("../tests/conformance/pages/visibility.html")),
        ("tree", include_str!("../tests/conformance/pages/tree.html")),
    ];
    let context = browser.new_context(ContextOptions::default()).await?;
    let session = Session::open(context, SessionOptions::default()).await?;
    let page = session.context().pages().remove(0);
    for (name, html) in PAGES {
        page.set_content(html).await?;
        let snapshot = session.snapshot(SnapshotOptions::default()).await?;
        let (bytes, of) = (snapshot.text.len(), html.len());
        println!("description of {name}: {bytes} bytes, {} tokens, of {of} bytes of HTML", snapshot.tokens);
    }
    page.set_content(
        "<button style='position:fixed;inset:0' onclick='this.textContent = Date.now()'>Go</button>",
    )
    .await?;
    let mut steps = Vec::new();
    let click = [ToolCall::new("click", serde_json::json!({ "point_2d": [500, 500] }))];
    for _ in 0..50 {
        let start = Instant::now();
        session.act(&click).await?;
        steps.push(start.elapsed());
    }
    report("agent's click with the wait for the page", steps);
    Ok(())
}

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let (half, most) = (times[times.len() / 2], times[times.len() * 9 / 10]);
    println!("{what}: p50 {:.3} ms, p90 {:.3} ms", half.as_secs_f64() * 1e3, most.as_secs_f64() * 1e3);
}
