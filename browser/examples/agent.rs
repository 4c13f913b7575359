//! A browser by tools, from the command line: `cargo run -p espalier-browser --example agent -- [--no-sandbox] URL`. Reads one
//! call a line, such as `click {"ref": "e3"}`, and prints its step and what changed on the page. `tools` prints the schemas.

use espalier_browser::agent::{Session, SessionOptions, SnapshotOptions, StepOutcome, ToolCall, ToolOptions};
use espalier_browser::{Browser, ContextOptions, LaunchOptions, Result};
use tokio::io::{AsyncBufReadExt, BufReader};

#[tokio::main]
async fn main() -> Result<()> {
    let no_sandbox = std::env::args().any(|arg| arg == "--no-sandbox");
    let url = std::env::args()
        .skip(1)
        .find(|arg| !arg.starts_with("--"))
        .unwrap_or_else(|| "about:blank".to_owned());
    let browser = Browser::launch(LaunchOptions { no_sandbox, ..LaunchOptions::default() }).await?;
    let context = browser.new_context(ContextOptions::default()).await?;
    let tools = ToolOptions { refs: true, ..ToolOptions::default() };
    let session = Session::open(context, SessionOptions { tools, ..SessionOptions::default() }).await?;
    println!("{}", session.goto(&url).await?.text);
    println!("{}", session.snapshot(SnapshotOptions::default()).await?.text);
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let (name, arguments) = line.split_once(' ').unwrap_or((&line, "{}"));
        if name == "tools" {
            println!("{}", serde_json::to_string_pretty(&session.tools()).expect("schemas are JSON"));
            continue;
        }
        let steps = session.act(&[ToolCall::new(name, arguments.into())]).await?;
        for step in &steps {
            println!("{}", step.text);
        }
        if steps.iter().any(|step| matches!(step.outcome, StepOutcome::Ended { .. })) {
            break;
        }
        let changes = SnapshotOptions { changes: true, ..SnapshotOptions::default() };
        println!("{}", session.snapshot(changes).await?.text);
    }
    session.close().await;
    browser.close().await;
    Ok(())
}
