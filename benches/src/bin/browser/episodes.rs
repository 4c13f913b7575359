//! Whole steps: episodes of MiniWoB++ by one policy, carried out by each driver in its own way: how long a step takes until what it
//! led to can be seen, what the description of the page costs, and whether the episode is solved.

use crate::peers::Peer;
use espalier_benches::{Finding, median};
use espalier_browser::agent::{
    ScriptWorld, Session, SessionOptions, SnapshotOptions, StepOutcome, ToolCall, ToolOptions,
};
use espalier_browser::{Browser, ContextOptions};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Instant;

const ORACLE: &str = include_str!("../../../peers/miniwob_oracle.js");
const TASKS: [&str; 20] = [
    "click-test",
    "click-test-2",
    "click-button",
    "click-link",
    "click-dialog",
    "click-dialog-2",
    "click-tab",
    "click-tab-2",
    "click-collapsible",
    "click-checkboxes",
    "click-option",
    "click-widget",
    "focus-text",
    "focus-text-2",
    "enter-text",
    "enter-text-dynamic",
    "enter-password",
    "login-user",
    "use-autocomplete",
    "navigate-tree",
];
const SEEDS: [u32; 2] = [1, 2];
/// More than any of the episodes needs.
const STEPS_MAX: usize = 12;

/// What became of the episodes of one driver.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Played {
    solved: u32,
    episodes: u32,
    /// Steps in which nothing could be done yet.
    waits: u32,
    /// From the action until the driver is ready for the next.
    action_ms: Vec<f64>,
    /// What it takes to describe the page.
    look_ms: Vec<f64>,
    /// Of all descriptions that were made.
    bytes: u64,
    tokens: u64,
    #[serde(skip)]
    texts: Vec<String>,
    errors: Vec<String>,
}

/// The step after the next look at the page.
#[derive(Deserialize)]
struct Next {
    kind: String,
    #[serde(default)]
    selector: String,
    #[serde(default)]
    text: String,
}

pub(crate) async fn measure(
    origin: &str,
    browser: &Browser,
    playwright: &mut Peer,
    mcp: &mut Peer,
    gym: &mut Peer,
) -> Result<(), String> {
    let asked = |extra: Value| {
        let mut command = json!({ "do": "episodes", "base": origin, "tasks": TASKS, "seeds": SEEDS });
        let fields = command.as_object_mut().expect("an object");
        fields.extend(extra.as_object().cloned().unwrap_or_default());
        command
    };
    let mut ours = ours(origin, browser).await.map_err(|error| error.to_string())?;
    let auto = playwright.ask(asked(json!({ "wait": "auto", "look": true }))).await?;
    let fixed = playwright.ask(asked(json!({ "wait": "fixed", "look": false }))).await?;
    let idle = playwright.ask(asked(json!({ "wait": "network-idle", "look": false }))).await?;
    let mcp_played: Played = mcp.ask(asked(json!({}))).await?;
    let gym_played: Played = gym.ask(asked(json!({}))).await?;
    let texts = std::mem::take(&mut ours.texts);
    for size in mcp.ask::<Vec<crate::descriptions::Size>>(json!({ "do": "tokens", "texts": texts })).await? {
        ours.bytes += size.bytes;
        ours.tokens += size.tokens;
    }
    let solved = f64::from(ours.solved);
    tell("this library", &mut ours);
    for (name, mut played) in [
        ("Playwright, its auto-waiting alone", auto),
        ("Playwright, a fixed wait of 0.5 s", fixed),
        ("Playwright, until the network is idle", idle),
        ("playwright-mcp", mcp_played),
        ("BrowserGym (with its observation)", gym_played),
    ] {
        tell(name, &mut played);
        let name = format!("episodes solved above those of {name}");
        Finding::new(name, solved - f64::from(played.solved), "episodes").at_least(0.0).print();
        if played.bytes > 0 {
            let share = |own: u64, peer: u64| own as f64 / peer as f64;
            let note = "what each step shows to a model, first whole, then what changed; o200k_base";
            let bytes = share(ours.bytes, played.bytes);
            Finding::new("bytes of descriptions in episodes, of playwright-mcp's", bytes, "x")
                .at_most(0.2)
                .note(note)
                .print();
            let tokens = share(ours.tokens, played.tokens);
            Finding::new("tokens of descriptions in episodes, of playwright-mcp's", tokens, "x")
                .at_most(0.2)
                .note(note)
                .print();
        }
    }
    Ok(())
}

fn tell(name: &str, played: &mut Played) {
    let note = format!(
        "{} steps, {} of them waits; {} of {} episodes solved{}",
        played.action_ms.len() + played.waits as usize,
        played.waits,
        played.solved,
        played.episodes,
        played.errors.first().map(|error| format!("; {error}")).unwrap_or_default()
    );
    let middle = median(&mut played.action_ms);
    let mean = played.action_ms.iter().sum::<f64>() / played.action_ms.len().max(1) as f64;
    Finding::new(format!("action and wait, {name}: median"), middle, "ms").note(note).print();
    Finding::new(format!("action and wait, {name}: mean"), mean, "ms").print();
    if !played.look_ms.is_empty() {
        let look = median(&mut played.look_ms);
        Finding::new(format!("description of the page, {name}: median"), look, "ms").print();
    }
}

/// By the agent layer: by references where the description has them, as a model would.
async fn ours(origin: &str, browser: &Browser) -> espalier_browser::Result<Played> {
    let mut played = Played::default();
    for task in TASKS {
        for seed in SEEDS {
            let context = browser.new_context(ContextOptions::default()).await?;
            let tools = ToolOptions { refs: true, ..ToolOptions::default() };
            let session =
                Session::open(context, SessionOptions { tools, ..SessionOptions::default() }).await?;
            session.goto(&format!("{origin}/miniwob/{task}.html")).await?;
            let start = crate::miniwob_start(seed);
            session.evaluate(&start, ScriptWorld::Main).await?;
            let mut options = SnapshotOptions::default();
            for _ in 0..STEPS_MAX {
                let began = Instant::now();
                let snapshot = session.snapshot(options).await?;
                played.look_ms.push(began.elapsed().as_secs_f64() * 1e3);
                played.texts.push(snapshot.text);
                options.changes = true;
                let next = session.evaluate(ORACLE, ScriptWorld::Main).await?;
                let Ok(next) = serde_json::from_value::<Next>(next) else { break };
                if next.kind == "wait" {
                    played.waits += 1;
                    session.act(&[ToolCall::new("wait", json!({ "seconds": 0.5 }))]).await?;
                    continue;
                }
                let calls = calls(&session, &next).await?;
                let began = Instant::now();
                let steps = session.act(&calls).await?;
                played.action_ms.push(began.elapsed().as_secs_f64() * 1e3);
                for step in steps {
                    if !matches!(step.outcome, StepOutcome::Done) {
                        played.errors.push(format!("{task}: {}", step.text));
                    }
                    played.texts.push(step.text);
                }
            }
            played.episodes += 1;
            let reward = session.evaluate("WOB_RAW_REWARD_GLOBAL", ScriptWorld::Main).await?;
            played.solved += u32::from(reward.as_f64().is_some_and(|reward| reward > 0.0));
            session.close().await;
        }
    }
    Ok(played)
}

/// Where the oracle points: the middle of the element that can be seen.
async fn calls(session: &Session, next: &Next) -> espalier_browser::Result<Vec<ToolCall>> {
    let selector = serde_json::to_string(&next.selector).expect("a text");
    let place = format!(
        "(() => {{ const element = document.querySelector({selector}); element.scrollIntoViewIfNeeded(); \
         const box = [...element.getClientRects()][0]; \
         return [(box.left + box.width / 2) / innerWidth * 1000, (box.top + box.height / 2) / innerHeight * 1000]; }})()"
    );
    let point = session.evaluate(&place, ScriptWorld::Main).await?;
    let click = ToolCall::new("click", json!({ "point_2d": point }));
    Ok(match next.kind.as_str() {
        "fill" => vec![click, ToolCall::new("write", json!({ "message": next.text }))],
        _ => vec![click],
    })
}
