//! 5,000 steps of agents in one process of Chromium: whether memory stays flat, and whether anything is left of what was closed.
//!
//! One context lives all the time, three others begin anew every 25 steps, as rollouts do. A step is an action, a description and a
//! picture. Every 500 steps, when the three have just begun anew, memory is measured after the pages' garbage is collected.

use espalier_benches::web::{Site, WebServer};
use espalier_benches::{Finding, Memory};
use espalier_browser::agent::{
    PictureFormat, PictureOptions, Session, SessionOptions, SnapshotOptions, ToolCall, ToolOptions,
};
use espalier_browser::{Browser, ContextOptions, LaunchOptions, Result};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const STEPS: usize = 5_000;
const LANES: usize = 4;
/// After so many steps of each lane its context is closed, and another opened.
const EPISODE: usize = 25;
/// Episodes of each lane between two measurements: 500 steps over all lanes.
const EPISODES: usize = 5;
const MIB: f64 = (1u64 << 20) as f64;

const HOME: &str = "<!doctype html><title>Home</title><style>li { padding: 4px }</style><h1>Home</h1><form><input aria-label=Name><button type=button>Add</button></form>
<ul></ul><a href=/other>Other</a><div style='height:2000px'></div><script>
document.querySelector('button').onclick = () => { const item = document.createElement('li'); item.textContent = document.querySelector('input').value || 'nothing';
  document.querySelector('ul').append(item); if (document.querySelectorAll('li').length > 20) document.querySelector('li').remove();
  fetch('/data').then(answer => answer.text()).then(text => document.title = text); console.log('added'); }</script>";
const OTHER: &str = "<!doctype html><title>Other</title><h1>Other</h1><a href=/>Home</a><iframe src=/inner width=300 height=80></iframe>
<button onclick='confirm(\"Sure?\")'>Ask</button><button onclick='open(\"/inner\")'>Window</button>";

fn main() -> ExitCode {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    match runtime.block_on(run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("browser_steps: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What is there at one moment.
struct Mark {
    chromium_mib: f64,
    own_mib: f64,
    targets: usize,
}

async fn run() -> Result<()> {
    let mut site = Site::default();
    site.pages.insert("/", HOME.to_owned());
    site.pages.insert("/other", OTHER.to_owned());
    site.pages.insert("/inner", "<title>Inner</title><p>Inner</p><button>Nothing</button>".to_owned());
    site.pages.insert("/data", "Data".to_owned());
    let server = WebServer::start(site).await.expect("a port");
    let root = std::fs::read_to_string("/proc/self/status")
        .is_ok_and(|status| status.lines().any(|line| line.starts_with("Uid:\t0\t")));
    let browser = Browser::launch(LaunchOptions { no_sandbox: root, ..LaunchOptions::default() }).await?;
    let origin = server.origin();
    let mut lanes = Vec::new();
    for _ in 0..LANES {
        lanes.push(open(&browser, &origin).await?);
    }
    let began = Instant::now();
    let mut marks = Vec::new();
    let mut done = 0;
    while done < STEPS {
        for _ in 0..EPISODES {
            let work = lanes.iter().enumerate().map(|(lane, session)| episode(session, &origin, lane));
            futures::future::try_join_all(work).await?;
            done += LANES * EPISODE;
            for lane in lanes.iter_mut().skip(1) {
                std::mem::replace(lane, open(&browser, &origin).await?).close().await;
            }
        }
        let mark = mark(&browser, &lanes).await?;
        eprintln!(
            "  {done} steps in {:.0} s: Chromium {:.1} MiB, this process {:.1} MiB, {} pages and frames",
            began.elapsed().as_secs_f64(),
            mark.chromium_mib,
            mark.own_mib,
            mark.targets
        );
        marks.push(mark);
    }
    let last = marks.last().expect("a mark");
    let first = &marks[0];
    let most = |of: fn(&Mark) -> f64| marks.iter().map(of).fold(0.0, f64::max);
    let seconds = began.elapsed().as_secs_f64();
    Finding::new("5,000 steps in one process", seconds, "s").print();
    Finding::new(
        "Chromium's memory after 5,000 steps, of that after 500",
        last.chromium_mib / first.chromium_mib,
        "x",
    )
    .at_most(1.1)
    .note(format!("{:.1} MiB, at most {:.1}", first.chromium_mib, most(|mark| mark.chromium_mib)))
    .print();
    // What the library keeps of pages, each kind with a bound, is not full after 500.
    Finding::new("own memory after 5,000 steps above that after 500", last.own_mib - first.own_mib, "MiB")
        .at_most(4.0)
        .note(format!("{:.1} MiB, at most {:.1}", first.own_mib, most(|mark| mark.own_mib)))
        .print();
    Finding::new("targets that are left of closed contexts", last.targets as f64 - LANES as f64, "targets")
        .at_most(0.0)
        .print();
    for session in lanes {
        session.close().await;
    }
    Finding::new("contexts that are left at the end", browser.contexts().len() as f64, "contexts")
        .at_most(0.0)
        .print();
    browser.close().await;
    Ok(())
}

async fn open(browser: &Browser, origin: &str) -> Result<Session> {
    let context = browser.new_context(ContextOptions::default()).await?;
    let tools = ToolOptions { refs: true, ..ToolOptions::default() };
    let session = Session::open(context, SessionOptions { tools, ..SessionOptions::default() }).await?;
    session.goto(origin).await?;
    Ok(session)
}

/// Steps of one episode, and back to one tab that shows the first page.
async fn episode(session: &Session, origin: &str, lane: usize) -> Result<()> {
    for step in 0..EPISODE {
        let snapshot = session
            .snapshot(SnapshotOptions { changes: step % 3 != 0, ..SnapshotOptions::default() })
            .await?;
        let call = action(&session.context().pages()[0].url(), origin, step + lane, &snapshot.refs);
        session.act(&[call]).await?;
        let picture = PictureOptions { format: PictureFormat::Jpeg, ..PictureOptions::default() };
        session.screenshot(picture).await?;
        while session.tabs().await?.len() > 1 {
            session.act(&[ToolCall::new("close_tab", json!({}))]).await?;
        }
    }
    session.goto(origin).await.map(drop)
}

fn action(url: &str, origin: &str, step: usize, refs: &[String]) -> ToolCall {
    let reference = |at: usize| refs.get(at % refs.len().max(1)).cloned().unwrap_or_else(|| "e1".to_owned());
    match step % 6 {
        0 => ToolCall::new("write", json!({ "ref": reference(0), "message": format!("text {step}") })),
        1 | 2 => ToolCall::new("click", json!({ "ref": reference(step / 6 + 1) })),
        3 => ToolCall::new("scroll", json!({ "direction": if step % 12 == 3 { "down" } else { "up" } })),
        4 if url.ends_with("/other") => ToolCall::new("goto_url", json!({ "url": origin })),
        4 => ToolCall::new("goto_url", json!({ "url": format!("{origin}/other") })),
        _ => ToolCall::new("click", json!({ "point_2d": [100, 100] })),
    }
}

async fn mark(browser: &Browser, lanes: &[Session]) -> Result<Mark> {
    const BOUND: Duration = Duration::from_secs(20);
    let mut targets = 0;
    for session in lanes {
        for page in session.context().pages() {
            page.devtools("HeapProfiler.collectGarbage", json!({}), BOUND).await?;
        }
    }
    // Processes of closed pages take a moment to end.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let page = lanes[0].context().pages().remove(0);
    let told = page.devtools("Target.getTargets", json!({}), BOUND).await?;
    let is_page = |target: &&Value| matches!(target["type"].as_str(), Some("page" | "iframe" | "worker"));
    targets += told["targetInfos"].as_array().map_or(0, |all| all.iter().filter(is_page).count());
    Ok(Mark {
        chromium_mib: browser.memory_bytes().await? as f64 / MIB,
        own_mib: Memory::of_this_process().held_bytes as f64 / MIB,
        targets,
    })
}
