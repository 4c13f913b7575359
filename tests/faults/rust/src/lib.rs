//! A harness that fails as its task says: one mode for each way in which plugins fail.

use espalier_sdk::wit::espalier::base::blobs;
use espalier_sdk::wit::espalier::base::log::Level;
use espalier_sdk::wit::espalier::model::conversations;
use espalier_sdk::{Conversation, Failure, Report, TaskView, Tools, invalid, log, other};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use std::collections::HashMap;
use std::hint::black_box;

/// What an experiment can set.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Lines of a flood.
    #[serde(default = "many")]
    #[schemars(range(min = 1))]
    pub lines: u64,
}

fn many() -> u64 {
    10_000
}

#[derive(Deserialize)]
struct Data {
    mode: String,
}

#[derive(Deserialize, JsonSchema)]
struct Sum {
    a: f64,
    b: f64,
}

/// What is done before the first call: a test writes another word over this one in the component.
static START: &str = "start: as usual";

#[cfg(target_arch = "wasm32")]
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = construct;

#[cfg(target_arch = "wasm32")]
extern "C" fn construct() {
    if black_box(START).ends_with("a panic ") {
        panic!("a panic in a constructor");
    }
    while black_box(START).ends_with("no stop ") {}
}

pub fn run(task: TaskView, settings: Settings) -> Result<Report, Failure> {
    let Data { mode } = task.data_as()?;
    match mode.as_str() {
        "loop" => endless(),
        "memory" => hoard(),
        "stack" => Ok(Report::submitted().data(descend(1))),
        "panic" => panic!("a panic on purpose"),
        "wrong-json" => Ok(Report::submitted().data(HashMap::from([((1, 2), 3)]))),
        "unknown-tool" => use_tools(),
        "invalid-handle" => Ok(Report::submitted().data(forged_handle())),
        "foreign-blob" => Ok(Report::submitted().data(blobs::stat("of-another-rollout")?.length)),
        "call-after-end" => go_on(),
        "random" => Ok(Report::submitted().data(drawn()?)),
        "log-flood" => flood(settings.lines),
        "error" => Err(other("no-plan", "a failure on purpose")),
        "oversized" => Ok(Report::submitted().answer("x".repeat(20 << 20))),
        "network" => network(),
        _ => Ok(Report::submitted().data(&mode)),
    }
}

fn endless() -> ! {
    let mut rounds = 0u64;
    loop {
        rounds = black_box(rounds + 1);
    }
}

fn hoard() -> ! {
    let mut pieces = Vec::new();
    loop {
        pieces.push(black_box(vec![1u8; 1 << 20]));
    }
}

fn descend(depth: u64) -> u64 {
    let frame = black_box([depth; 16]);
    descend(depth + 1) + frame[3]
}

fn use_tools() -> Result<Report, Failure> {
    let mut tools = Tools::new().add("add", "Adds two numbers.", |Sum { a, b }| Ok((a + b).to_string()));
    let mut chat = Conversation::with("policy");
    chat.tools(&tools).user("Use a tool.");
    let answer = chat.complete()?;
    tools.answer(&answer, &mut chat);
    Ok(Report::submitted().answer(chat.complete()?.text))
}

/// A number that is no handle of this plugin's.
fn forged_handle() -> u32 {
    let forged = unsafe { conversations::Conversation::from_handle(4_711) };
    forged.usage().turns
}

/// Goes on after its budget of turns is used up.
fn go_on() -> ! {
    let mut chat = Conversation::with("policy");
    chat.user("Go on.");
    loop {
        let _ = chat.complete();
    }
}

/// What differs from run to run in a program of its own.
fn drawn() -> Result<serde_json::Value, Failure> {
    let numbers: HashMap<u32, u32> = (0..100).map(|number| (number, number)).collect();
    let order: Vec<&u32> = numbers.keys().collect();
    Ok(json!({ "random": espalier_sdk::random_below(1 << 50)?, "order": order }))
}

fn flood(lines: u64) -> Result<Report, Failure> {
    for _ in 0..lines {
        log(Level::Info, &"x".repeat(1_024));
    }
    Ok(Report::submitted())
}

fn network() -> Result<Report, Failure> {
    std::fs::read_to_string("/etc/passwd").expect_err("there are no files");
    std::net::TcpStream::connect("127.0.0.1:80").map_err(invalid)?;
    Ok(Report::submitted())
}

espalier_sdk::harness!(Settings, run);
