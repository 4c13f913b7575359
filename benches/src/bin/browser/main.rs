//! The browser library against Playwright, playwright-mcp and BrowserGym, in one run with one Chromium: single calls, whole steps of
//! an agent, descriptions of pages, many contexts.
//!
//! `ESPALIER_BROWSER_PEERS` is a folder with `playwright-core`, `@playwright/mcp` and `gpt-tokenizer` of npm,
//! `ESPALIER_BROWSER_PEERS_PYTHON` a Python with `browsergym-core` and `miniwob`. Arguments name the parts to measure: `primitives`,
//! `episodes`, `descriptions`, `contexts`.

mod contexts;
mod descriptions;
mod episodes;
mod pages;
mod peers;
mod primitives;

use espalier_benches::web::{Site, WebServer};
use espalier_browser::{Browser, LaunchOptions};
use peers::Peer;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    match runtime.block_on(run(&std::env::args().skip(1).collect::<Vec<_>>())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("browser: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(parts: &[String]) -> Result<(), String> {
    let wanted = |part: &str| parts.is_empty() || parts.iter().any(|named| named == part);
    let miniwob = miniwob()?;
    let mut site = Site::default();
    site.pages.extend(pages::all());
    for folder in ["miniwob", "core", "common"] {
        let beginning: &'static str = match folder {
            "miniwob" => "/miniwob/",
            "core" => "/core/",
            _ => "/common/",
        };
        site.folders.push((beginning, miniwob.join(folder)));
    }
    let server = WebServer::start(site).await.map_err(|error| format!("no server: {error}"))?;
    let origin = server.origin();
    let mut playwright = Peer::node("Playwright", "browser_playwright.mjs")?;
    if wanted("primitives") {
        primitives::measure(&mut playwright).await?;
    }
    if wanted("contexts") {
        contexts::measure(&origin, &mut playwright).await?;
    }
    if wanted("descriptions") || wanted("episodes") {
        let mut mcp = Peer::node("playwright-mcp", "browser_mcp.mjs")?;
        let browser = Browser::launch(options()).await.map_err(|error| error.to_string())?;
        if wanted("descriptions") {
            descriptions::measure(&origin, &miniwob, &browser, &mut mcp).await?;
        }
        if wanted("episodes") {
            let mut gym = Peer::python("BrowserGym", "browser_gym.py")?;
            episodes::measure(&origin, &browser, &mut playwright, &mut mcp, &mut gym).await?;
            gym.ask::<Value>(json!({ "do": "end" })).await?;
        }
        browser.close().await;
        mcp.ask::<Value>(json!({ "do": "end" })).await?;
    }
    playwright.ask::<Value>(json!({ "do": "end" })).await.map(drop)
}

/// Chromium as each driver starts it.
pub(crate) fn options() -> LaunchOptions {
    let root = std::fs::read_to_string("/proc/self/status")
        .is_ok_and(|status| status.lines().any(|line| line.starts_with("Uid:\t0\t")));
    LaunchOptions { executable: peers::chromium(), no_sandbox: root, ..LaunchOptions::default() }
}

/// The folder of the pages of PyPI's `miniwob`.
fn miniwob() -> Result<PathBuf, String> {
    let python = std::env::var_os("ESPALIER_BROWSER_PEERS_PYTHON")
        .ok_or("ESPALIER_BROWSER_PEERS_PYTHON is not set (`make bench` does)")?;
    let script = "import importlib.util, pathlib; print(pathlib.Path(importlib.util.find_spec('miniwob').origin).parent / 'html')";
    let output = Command::new(python).args(["-c", script]).output().map_err(|error| error.to_string())?;
    match String::from_utf8_lossy(&output.stdout).trim() {
        "" => Err(format!("no `miniwob`: {}", String::from_utf8_lossy(&output.stderr).trim())),
        folder => Ok(PathBuf::from(folder)),
    }
}

/// Starts an episode of a page of MiniWoB++ once it is loaded, images too, and waits until it is there.
pub(crate) fn miniwob_start(seed: u32) -> String {
    format!(
        "(async () => {{ const soon = () => new Promise(resolve => setTimeout(resolve, 20));
           while (document.readyState !== 'complete' || document.querySelector('#click-canvas') === null) await soon();
           Math.seedrandom({seed}); core.EPISODE_MAX_TIME = 1e6; core.startEpisodeReal();
           while (!WOB_TASK_READY) await soon(); return null; }})()"
    )
}
