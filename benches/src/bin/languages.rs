//! What a plugin costs in each language: the harness of `espalier plugin new`, built by its own toolchain.
//!
//! `languages [FOLDER]`: where the projects are made and built (default: a temporary folder); one that is there is used as it is. A
//! language whose toolchain is missing is left out, with the line that installs it.

use async_trait::async_trait;
use espalier_authoring::template::{New, Sources};
use espalier_authoring::{BuildError, Kind, Language, Project, build};
use espalier_benches::guests::{REPEATS, harness, host, load_twice, millis, task};
use espalier_benches::{Finding, Memory, median};
use espalier_core::chat::{CompleteOptions, Completion, Finish, Message, Role, Tool, Usage};
use espalier_core::ending::HarnessEnd;
use espalier_core::failure::Failure;
use espalier_core::host::{Branch, Conversation, Environment, Environments, Models, Observation, StepResult};
use espalier_plugin::{CancelToken, Plugin, PluginHost};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Instances that wait for a model at the same time.
const PARKED: u32 = 16;
/// Places for instances: one in an interpreted language takes many.
const PLACES: u32 = 1_024;
/// The longest until all of them wait.
const PARKING_MAX: Duration = Duration::from_secs(60);
/// Turns of a short and of a long rollout: the difference is what turns cost.
const TURNS: [u32; 2] = [10, 210];

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    match espalier_plugin::compile_if_asked() {
        Some(exit) => Ok(exit),
        None => measure().map(|()| ExitCode::SUCCESS),
    }
}

#[tokio::main]
async fn measure() -> Result<(), Box<dyn std::error::Error>> {
    let scratch = tempfile::tempdir()?;
    let folder = std::env::args().nth(1).map_or_else(|| scratch.path().to_owned(), PathBuf::from);
    let cache = tempfile::tempdir()?;
    for language in Language::ALL {
        let project = project(language, &folder)?;
        let name = language.as_str();
        if !project.output().is_file() {
            match build::build(&project, &mut |text| eprintln!("{text}")) {
                Ok(_) => {}
                Err(BuildError::Missing { what, line }) => {
                    eprintln!("{name} is left out: {what} is missing; run: {line}");
                    continue;
                }
                Err(error) => return Err(error.into()),
            }
        }
        let at_most_ms = if language == Language::Rust { 1.0 } else { 10.0 };
        load_twice(name, &project.output(), cache.path(), Some(at_most_ms)).await?;
        let host = host(cache.path(), PLACES)?;
        let plugin = host.load(&project.output()).await?;
        instantiate(name, &host, &plugin).await;
        turns(name, &host, &plugin).await?;
        parked(name, &host, &plugin).await;
    }
    Ok(())
}

fn project(language: Language, folder: &Path) -> Result<Project, Box<dyn std::error::Error>> {
    // As `make build` lays them out beside the programs.
    let program = std::env::current_exe()?;
    let library = program.ancestors().nth(2).ok_or("the program lies in no folder")?.join("lib/espalier");
    let sources =
        Sources { templates: library.join("templates"), sdks: library.join("sdk"), wit: library.join("wit") };
    let folder = folder.join(language.as_str());
    if !folder.is_dir() {
        let name = format!("harness-{}", language.as_str());
        New { name: &name, kind: Kind::Harness, language }.write(&sources, &folder)?;
    }
    Ok(Project::read(&folder)?)
}

async fn instantiate(name: &str, host: &PluginHost, plugin: &Plugin) {
    const COUNT: u32 = 100;
    let mut per_instance = Vec::new();
    for _ in 0..REPEATS {
        let took = host.time_instances(plugin, COUNT).await;
        per_instance.push(took.as_secs_f64() * 1e6 / f64::from(COUNT));
    }
    let note = format!("{COUNT} instances, made and dropped");
    Finding::new(format!("instantiate, {name}"), median(&mut per_instance), "us").note(note).print();
}

/// One answer of a model that answers at once, and the step in a world that does nothing: all of it the guest's and the host's.
async fn turns(
    name: &str,
    host: &PluginHost,
    plugin: &Arc<Plugin>,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut per_turn = Vec::new();
    for _ in 0..REPEATS {
        let mut took = [0.0; 2];
        for (turns, took) in TURNS.into_iter().zip(&mut took) {
            let mut job = harness(plugin, &json!({}), &Arc::default());
            job.settings = plugin.check_settings(&json!({ "max_turns": turns }))?;
            job.capabilities.models = Some(Arc::new(Ready));
            job.capabilities.environments = Some(Arc::new(Empty));
            let started = Instant::now();
            let outcome = host.run_harness(job, task()).await;
            *took = started.elapsed().as_secs_f64() * 1e6;
            if !matches!(outcome.end, HarnessEnd::Returned(Ok(_))) {
                return Err(format!("the harness in {name} ended with {:?}", outcome.end).into());
            }
        }
        per_turn.push((took[1] - took[0]) / f64::from(TURNS[1] - TURNS[0]));
    }
    let note = "an answer, a step and the message behind it: two to three host calls";
    Finding::new(format!("one turn, {name}"), median(&mut per_turn), "us").note(note).print();
    Ok(())
}

async fn parked(name: &str, host: &PluginHost, plugin: &Arc<Plugin>) {
    let asked = Arc::new(AtomicU32::new(0));
    let before = Memory::of_this_process();
    let cancel = CancelToken::new();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..PARKED {
        let mut job = harness(plugin, &json!({}), &asked);
        job.settings = plugin.check_settings(&json!({})).expect("all settings have defaults");
        job.capabilities.environments = Some(Arc::new(Empty));
        job.cancel = cancel.clone();
        let host = host.clone();
        tasks.spawn(async move { host.run_harness(job, task()).await.end });
    }
    let started = Instant::now();
    while asked.load(Ordering::SeqCst) < PARKED {
        if let Some(ended) = tasks.try_join_next() {
            eprintln!("an instance ended instead of waiting: {ended:?}");
            return;
        }
        if started.elapsed() > PARKING_MAX {
            eprintln!("{} of {PARKED} instances in {name} wait for a model", asked.load(Ordering::SeqCst));
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let held = Memory::of_this_process().held_bytes.saturating_sub(before.held_bytes);
    let note = format!("{PARKED} of them, waiting for a model after {:.0} ms", millis(started.elapsed()));
    Finding::new(format!("parked rollout, {name}"), held as f64 / f64::from(PARKED) / 1024.0, "KiB")
        .note(note)
        .print();
    cancel.cancel();
    while tasks.join_next().await.is_some() {}
}

/// A model that answers at once.
struct Ready;

#[async_trait]
impl Models for Ready {
    async fn open(&self, _: &str, _: Vec<Message>, _: Vec<Tool>) -> Result<Box<dyn Conversation>, Failure> {
        Ok(Box::new(Ready))
    }
}

#[async_trait]
impl Conversation for Ready {
    async fn append(&mut self, _: Vec<Message>) -> Result<(), Failure> {
        Ok(())
    }
    async fn complete(&mut self, _: CompleteOptions) -> Result<Completion, Failure> {
        Ok(Completion {
            message: Message::text(Role::Assistant, "I will act.\nAction: act"),
            tool_calls: Vec::new(),
            malformed: None,
            finish: Finish::Stop,
            usage: Usage::default(),
            call: None,
        })
    }
    async fn complete_many(&mut self, _: u32, _: CompleteOptions) -> Result<Vec<Branch>, Failure> {
        Err(Failure::Invalid("one answer at a time here".to_owned()))
    }
    fn discard(&mut self) {}
    async fn fork(&mut self) -> Result<Box<dyn Conversation>, Failure> {
        Ok(Box::new(Ready))
    }
    async fn rewrite(&mut self, _: Vec<Message>) -> Result<(), Failure> {
        Ok(())
    }
    async fn elide_images(&mut self, _: u32) -> Result<u32, Failure> {
        Ok(0)
    }
    fn set_trainable(&mut self, _: u32, _: bool) -> Result<(), Failure> {
        Ok(())
    }
    fn usage(&self) -> Usage {
        Usage::default()
    }
}

/// A world in which nothing happens.
struct Empty;

#[async_trait]
impl Environments for Empty {
    async fn open(&self) -> Result<Box<dyn Environment>, Failure> {
        Ok(Box::new(Empty))
    }
}

#[async_trait]
impl Environment for Empty {
    async fn reset(&mut self) -> Result<Observation, Failure> {
        Ok(Observation { text: "There is nothing here.".to_owned(), ..Observation::default() })
    }
    async fn step(&mut self, _: String) -> Result<StepResult, Failure> {
        let observation = self.reset().await?;
        Ok(StepResult { observation, info: "null".to_owned(), ..StepResult::default() })
    }
    async fn actions(&mut self) -> Result<Vec<String>, Failure> {
        Ok(Vec::new())
    }
}
