//! The component's exports.

espalier_sdk::bindings!("harness-plugin");

use crate::faults::misbehave;
use bindings::espalier::base::log::{Level, write};
use bindings::espalier::base::types::TaskView;
use bindings::espalier::base::{clock, random};
use bindings::espalier::environment::environments;
use bindings::espalier::model::conversations::{self, Conversation, Options, Tool};
use bindings::espalier::model::messages::{Message, Part, Role, ToolCall, ToolResult};
use bindings::espalier::plugin::reports::{Outcome, Report};
use bindings::exports::espalier::base::configurable;
use bindings::exports::espalier::plugin::harness::Guest;
use espalier_sdk::{schemars, serde};

/// What goes wrong.
#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(crate = "espalier_sdk::serde", deny_unknown_fields)]
#[schemars(crate = "espalier_sdk::schemars")]
struct Settings {
    /// Name of the fault; `none` behaves.
    #[serde(default = "none")]
    fault: String,
    /// How often, where the fault counts.
    #[serde(default)]
    times: u64,
    /// Images that stay, of `screens`.
    #[serde(default)]
    keep: u32,
}

fn none() -> String {
    "none".to_owned()
}

struct Plugin;

impl configurable::Guest for Plugin {
    fn settings_schema() -> String {
        espalier_sdk::schema_of::<Settings>()
    }
}

impl Guest for Plugin {
    fn run(task: TaskView) -> Result<Report, Failure> {
        report_panics();
        let Settings { fault, times, keep } = settings()?;
        misbehave(&fault);
        let report =
            |outcome, data: &str| Ok(Report { outcome, answer: None, data: data.to_owned(), extra: None });
        match fault.as_str() {
            "sandbox" => {
                let told = crate::sandbox::tour()?;
                report(Outcome::Submitted, &espalier_sdk::serde_json::to_string(&told).map_err(invalid)?)
            }
            "invalid-json" => report(Outcome::Submitted, "{\"cut"),
            "flood" => {
                for _ in 0..times {
                    write(Level::Info, &"x".repeat(1024), None);
                }
                report(Outcome::Submitted, "null")
            }
            "import-loop" => loop {
                clock::now_ms();
            },
            "ignore-budget" => {
                let conversation = open_conversation()?;
                loop {
                    let _ = conversation.complete(&options());
                }
            }
            "obey-budget" => {
                let conversation = open_conversation()?;
                loop {
                    conversation.complete(&options())?;
                }
            }
            "spin-after-budget" => {
                let conversation = open_conversation()?;
                while conversation.complete(&options()).is_ok() {}
                misbehave("loop");
                report(Outcome::Submitted, "null")
            }
            "swallow" => {
                let answered =
                    open_conversation().and_then(|conversation| conversation.complete(&options()).map(drop));
                report(Outcome::GaveUp, if answered.is_err() { "\"lost\"" } else { "\"answered\"" })
            }
            "retry-unavailable" => {
                let conversation = open_conversation()?;
                let first = conversation.complete(&options()).is_err();
                let second = conversation.complete(&options()).is_ok();
                report(Outcome::Submitted, &format!("[{first}, {second}]"))
            }
            "complete" => {
                let conversation = conversations::open("policy", &[say(&task.instruction)], &[])?;
                for _ in 0..times {
                    conversation.complete(&options())?;
                }
                report(Outcome::Submitted, "null")
            }
            "calls" => {
                for _ in 0..times {
                    random::below(1 << 20)?;
                }
                report(Outcome::Submitted, "null")
            }
            "clock" => {
                let first = clock::now_ms();
                let _ = conversations::open("policy", &[say("go")], &[])?.complete(&options())?;
                let drawn = random::bytes(4)?;
                let data = format!("[{}, {}, {drawn:?}]", first, clock::now_ms());
                report(Outcome::Submitted, &data)
            }
            "steps" => {
                let world = environments::open()?;
                let early = world.step("early").is_err();
                world.reset()?;
                for _ in 0..times {
                    world.step("act")?;
                }
                let late = world.step("late").is_err();
                report(Outcome::Submitted, &format!("[{early}, {late}]"))
            }
            "swallow-environment" => {
                let world = environments::open()?;
                let _ = world.reset();
                let _ = world.step("act");
                report(Outcome::GaveUp, "null")
            }
            "blob" => report(Outcome::Submitted, &blob()?),
            "image" => {
                let kept = bindings::espalier::base::blobs::put(PIXEL, "image/png")?;
                let image = Message { role: Role::User, parts: vec![Part::Image(kept)], extra: None };
                let conversation = open_conversation()?;
                conversation.complete(&options())?;
                conversation.append(&[image])?;
                conversation.complete(&options())?;
                report(Outcome::Submitted, "null")
            }
            "screens" => {
                let conversation = open_conversation()?;
                conversation.complete(&options())?;
                for turn in 0..times {
                    conversation.append(&[screen(turn)?])?;
                    conversation.elide_images(keep)?;
                    conversation.complete(&options())?;
                }
                report(Outcome::Submitted, "null")
            }
            "tools" => {
                let conversation = conversations::open("policy", &[say("go")], &[click()])?;
                for turn in 0..times {
                    let answer = conversation.complete(&options())?;
                    if answer.tool_calls.is_empty() {
                        break;
                    }
                    let mut results: Vec<Message> = answer.tool_calls.iter().map(clicked).collect();
                    if keep > 0 {
                        results.push(picture(turn)?);
                    }
                    conversation.append(&results)?;
                    conversation.elide_images(keep)?;
                }
                report(Outcome::Submitted, "null")
            }
            "handles" => {
                let conversation = open_conversation()?;
                let mut forks: Vec<Conversation> = Vec::new();
                while let Ok(fork) = conversation.fork() {
                    forks.push(fork);
                }
                report(Outcome::Submitted, &forks.len().to_string())
            }
            "own-failure" => Err(invalid("a failure of my own")),
            _ => report(Outcome::Submitted, "null"),
        }
    }
}

/// The beginning of a PNG, which nobody here decodes.
const PIXEL: &[u8] = b"\x89PNG\r\n\x1a\n";

fn click() -> Tool {
    let parameters =
        r#"{"type": "object", "properties": {"at": {"type": "array", "items": {"type": "integer"}}}}"#;
    Tool { name: "click".to_owned(), description: "Clicks.".to_owned(), parameters: parameters.to_owned() }
}

fn clicked(call: &ToolCall) -> Message {
    let text = format!("{} {}: done", call.name, call.arguments);
    let result = ToolResult { call_id: call.id.clone(), text, is_error: false };
    Message { role: Role::Tool, parts: vec![Part::ToolResult(result)], extra: None }
}

/// A screen by itself, as `gui-agent` shows it.
fn picture(turn: u64) -> Result<Message, Failure> {
    let pixels = [PIXEL, format!("screen {turn}").as_bytes()].concat();
    let image = bindings::espalier::base::blobs::put(&pixels, "image/png")?;
    Ok(Message { role: Role::User, parts: vec![Part::Image(image)], extra: None })
}

/// What a tool answers, with a screen beside it. No two screens are the same.
fn screen(turn: u64) -> Result<Message, Failure> {
    let pixels = [PIXEL, format!("screen {turn}").as_bytes()].concat();
    let image = bindings::espalier::base::blobs::put(&pixels, "image/png")?;
    let result =
        ToolResult { call_id: format!("call-{turn}"), text: format!("clicked {turn}: "), is_error: false };
    Ok(Message { role: Role::Tool, parts: vec![Part::ToolResult(result), Part::Image(image)], extra: None })
}

fn say(text: &str) -> Message {
    Message { role: Role::User, parts: vec![Part::Text(text.to_owned())], extra: None }
}

fn open_conversation() -> Result<Conversation, Failure> {
    conversations::open("policy", &[say("go")], &[])
}

fn options() -> Options {
    Options { max_tokens: None, stop: Vec::new(), temperature: None, tool_choice: None, extra: None }
}

/// Keeps a blob and reads it back; an invented reference and a large slice are refused.
fn blob() -> Result<String, Failure> {
    use bindings::espalier::base::blobs;
    let kept = blobs::put("aé€".as_bytes(), "text/plain")?;
    let text = blobs::read_text(&kept, 0, 2)?;
    let foreign = blobs::stat("invented").is_err();
    let large = blobs::read(&kept, 0, u32::MAX).is_err();
    Ok(format!("[\"{text}\", {foreign}, {large}, {}]", blobs::stat(&kept)?.length))
}

bindings::export!(Plugin with_types_in bindings);
