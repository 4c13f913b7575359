//! What descriptions of pages cost, against playwright-mcp's of the same pages, and whether they name all that can be acted on.

use crate::{pages, peers::Peer};
use espalier_benches::Finding;
use espalier_browser::agent::{ScriptWorld, Session, SessionOptions, SnapshotOptions, ToolOptions};
use espalier_browser::{Browser, ContextOptions};
use serde::Deserialize;
use serde_json::json;
use std::path::Path;

/// How long a text is.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct Size {
    pub(crate) bytes: u64,
    /// By o200k_base.
    pub(crate) tokens: u64,
}

/// What can be acted on in the viewport, found without the library: by names of elements, roles and attributes, where a user
/// could hit it, and the page does not hide it from assistive technology. The name is what its label, the first line of its text or its
/// attributes say first.
const INTERACTIVE: &str = r#"(() => {
  const kinds = "a[href], button, input:not([type=hidden]), select, textarea, summary, [role=button], [role=link], [role=checkbox], " +
    "[role=radio], [role=switch], [role=tab], [role=menuitem], [role=option], [role=textbox], [contenteditable=true], [onclick], [tabindex='0']";
  const found = [];
  for (const element of document.querySelectorAll(kinds)) {
    if (!element.checkVisibility({ visibilityProperty: true, opacityProperty: true }) || element.matches(":disabled, [aria-hidden=true] *, [aria-hidden=true]")) continue;
    const box = element.getClientRects()[0];
    if (box === undefined || box.width < 2 || box.height < 2) continue;
    const [left, right] = [Math.max(box.left, 0), Math.min(box.right, innerWidth)];
    const [top, bottom] = [Math.max(box.top, 0), Math.min(box.bottom, innerHeight)];
    if (right - left < 2 || bottom - top < 2) continue;
    const hit = document.elementFromPoint((left + right) / 2, (top + bottom) / 2);
    if (hit === null || !(element.contains(hit) || (element.labels ?? []).length > 0 && [...element.labels].some((label) => label.contains(hit)))) continue;
    const labelled = (element.getAttribute("aria-labelledby") ?? "").split(" ").map((id) => document.getElementById(id)?.textContent ?? "").join(" ");
    const label = element.labels?.[0];
    const own = label === undefined ? "" : [...label.childNodes].filter((node) => node.nodeType === 3).map((node) => node.data).join(" ");
    const names = [labelled, element.getAttribute("aria-label"), own, /^(button|submit|reset)$/.test(element.type) ? element.value : "",
      /^(INPUT|SELECT|TEXTAREA)$/.test(element.tagName) ? "" : (element.innerText ?? "").trim().split("\n")[0], element.querySelector("img")?.alt, element.title, element.placeholder];
    found.push((names.find((name) => (name ?? "").trim() !== "") ?? "").replace(/\s+/g, " ").trim().slice(0, 40));
  }
  return found;
})()"#;

struct Case {
    url: String,
    prepare: String,
}

pub(crate) async fn measure(
    origin: &str,
    miniwob: &Path,
    browser: &Browser,
    mcp: &mut Peer,
) -> Result<(), String> {
    let mut names: Vec<String> = std::fs::read_dir(miniwob.join("miniwob"))
        .map_err(|error| format!("{}: {error}", miniwob.display()))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.ends_with(".html"))
        .collect();
    names.sort();
    let start = crate::miniwob_start(1);
    let small =
        names.iter().map(|name| Case { url: format!("{origin}/miniwob/{name}"), prepare: start.clone() });
    let large = pages::all()
        .into_iter()
        .map(|(path, _)| Case { url: format!("{origin}{path}"), prepare: "null".to_owned() });
    let (small, large): (Vec<Case>, Vec<Case>) = (small.collect(), large.collect());
    compare(&format!("{} pages of MiniWoB++", small.len()), &small, browser, mcp).await?;
    compare(&format!("{} larger pages", large.len()), &large, browser, mcp).await
}

async fn compare(what: &str, cases: &[Case], browser: &Browser, mcp: &mut Peer) -> Result<(), String> {
    let (mut texts, mut bare, mut named, mut missing) = (Vec::new(), Vec::new(), 0, Vec::new());
    for case in cases {
        let described = describe(browser, case).await.map_err(|error| format!("{}: {error}", case.url))?;
        named += described.interactive;
        missing.extend(described.missing.into_iter().map(|name| format!("{}: {name}", case.url)));
        texts.push(described.text);
        bare.push(described.bare);
    }
    let pages: Vec<_> =
        cases.iter().map(|case| json!({ "url": case.url, "prepare": case.prepare })).collect();
    let theirs: Vec<Size> = mcp.ask(json!({ "do": "describe", "pages": pages })).await?;
    let ours: Vec<Size> = mcp.ask(json!({ "do": "tokens", "texts": texts })).await?;
    let bare: Vec<Size> = mcp.ask(json!({ "do": "tokens", "texts": bare })).await?;
    for (case, (own, peer)) in cases.iter().zip(ours.iter().zip(&theirs)) {
        let path = case.url.splitn(4, '/').nth(3).unwrap_or_default();
        eprintln!(
            "  {path}: {} tokens of {} ({} bytes of {})",
            own.tokens, peer.tokens, own.bytes, peer.bytes
        );
    }
    let sum = |sizes: &[Size], of: fn(&Size) -> u64| sizes.iter().map(of).sum::<u64>() as f64;
    for (unit, of) in [("bytes", (|size| size.bytes) as fn(&Size) -> u64), ("tokens", |size| size.tokens)] {
        let (own, peer) = (sum(&ours, of), sum(&theirs, of));
        Finding::new(format!("{unit} of a description, {what}"), own / cases.len() as f64, unit)
            .note(format!("playwright-mcp {:.0}", peer / cases.len() as f64))
            .print();
        Finding::new(format!("{unit} of a description, {what}, of playwright-mcp's"), own / peer, "x")
            .at_most(0.2)
            .note(format!("the text of the pages alone is {:.2}", sum(&bare, of) / peer))
            .print();
    }
    for name in &missing {
        eprintln!("  not named: {name}");
    }
    Finding::new(
        format!("interactive elements in the viewport without a name there, {what}"),
        missing.len() as f64,
        "elements",
    )
    .at_most(0.0)
    .note(format!("of {named}, found without the library"))
    .print();
    Ok(())
}

struct Described {
    text: String,
    /// The text that is seen, over the whole page.
    bare: String,
    interactive: usize,
    missing: Vec<String>,
}

async fn describe(browser: &Browser, case: &Case) -> espalier_browser::Result<Described> {
    let context = browser.new_context(ContextOptions::default()).await?;
    let tools = ToolOptions { refs: true, ..ToolOptions::default() };
    let session = Session::open(context, SessionOptions { tools, ..SessionOptions::default() }).await?;
    session.goto(&case.url).await?;
    session.evaluate(&case.prepare, ScriptWorld::Main).await?;
    session.settle().await?;
    let snapshot = session.snapshot(SnapshotOptions::default()).await?;
    let bare = session.evaluate("document.body.innerText", ScriptWorld::Main).await?;
    let bare = bare.as_str().unwrap_or_default().to_owned();
    let interactive = session.evaluate(INTERACTIVE, ScriptWorld::Main).await?;
    let interactive: Vec<String> = serde_json::from_value(interactive).unwrap_or_default();
    let mut missing: Vec<String> = interactive
        .iter()
        .filter(|name| {
            let quoted = serde_json::to_string(name).expect("a text");
            !snapshot.text.contains(quoted.trim_matches('"'))
        })
        .cloned()
        .collect();
    if snapshot.refs.len() < interactive.len() {
        missing.push(format!("{} references for {} elements", snapshot.refs.len(), interactive.len()));
    }
    if snapshot.truncated > 0 {
        missing.push(format!("{} left out to be short", snapshot.truncated));
    }
    session.close().await;
    Ok(Described { text: snapshot.text, bare, interactive: interactive.len(), missing })
}
