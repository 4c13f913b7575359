//! What hosting a guest costs: instantiation, one import call, one turn of a harness around its model, memory and maps of
//! a parked instance, compiling cold and from the cache.
//!
//! `plugin_host [DIST] [PARKED ...]`: the folder of built guests (default `plugins/dist`), and how many instances to park
//! (default 1000 10000).

use async_trait::async_trait;
use espalier_benches::guests::{REPEATS, harness, host, load_twice, millis, task};
use espalier_benches::{Finding, Memory, median};
use espalier_core::chat::{CompleteOptions, Completion, Finish, Message, Role, Tool, Usage};
use espalier_core::ending::HarnessEnd;
use espalier_core::failure::Failure;
use espalier_core::host::{Branch, Conversation, Environments, Models};
use espalier_plugin::{CancelToken, EnvironmentRun, Plugin, PluginHost};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Import calls in one measured run.
const CALLS: u64 = 100_000;

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    match espalier_plugin::compile_if_asked() {
        Some(exit) => Ok(exit),
        None => measure().map(|()| ExitCode::SUCCESS),
    }
}

#[tokio::main]
async fn measure() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let dist = PathBuf::from(arguments.next().unwrap_or_else(|| "plugins/dist".to_owned()));
    let mut parked: Vec<u32> = arguments.map(|count| count.parse()).collect::<Result<_, _>>()?;
    if parked.is_empty() {
        parked = vec![1_000, 10_000];
    }
    let cache = tempfile::tempdir()?;
    for (guest, file) in
        [("rust", "fault-harness"), ("javascript", "react-text-js"), ("python", "react-text-py")]
    {
        let path = dist.join(format!("{file}.wasm"));
        if !path.is_file() {
            eprintln!("{} is missing: run `make build`", path.display());
            continue;
        }
        let at_most_ms = if guest == "rust" { 1.0 } else { 10.0 };
        load_twice(guest, &path, cache.path(), Some(at_most_ms)).await?;
        let host = host(cache.path(), parked.iter().copied().max().unwrap_or(1))?;
        let plugin = host.load(&path).await?;
        instantiate(guest, &host, &plugin).await;
        if guest == "rust" {
            import_call(&host, &plugin).await;
            turns(&host, &dist).await?;
            for count in &parked {
                park(guest, &host, &plugin, *count).await;
            }
        }
    }
    Ok(())
}

/// Making and dropping an instance.
async fn instantiate(guest: &str, host: &PluginHost, plugin: &Plugin) {
    let count = if guest == "rust" { 2_000 } else { 100 };
    let mut per_instance = Vec::new();
    for _ in 0..REPEATS {
        let took = host.time_instances(plugin, count).await;
        per_instance.push(took.as_secs_f64() * 1e6 / f64::from(count));
    }
    let found = Finding::new(format!("instantiate, {guest}"), median(&mut per_instance), "us");
    let found = if guest == "rust" { found.at_most(10.0) } else { found };
    found.note(format!("{count} instances, made and dropped")).print();
}

/// `random.below` in a loop: the whole way from the guest through the gate and back, the loop subtracted.
async fn import_call(host: &PluginHost, plugin: &Arc<Plugin>) {
    let asked = Arc::new(AtomicU32::new(0));
    let mut per_call = Vec::new();
    for _ in 0..REPEATS {
        let mut took = [0.0; 2];
        for (calls, took) in [0, CALLS].into_iter().zip(&mut took) {
            let started = Instant::now();
            let run = harness(plugin, &json!({ "fault": "calls", "times": calls }), &asked);
            let outcome = host.run_harness(run, task()).await;
            assert!(matches!(outcome.end, HarnessEnd::Returned(Ok(_))), "{:?}", outcome.end);
            *took = started.elapsed().as_secs_f64() * 1e9;
        }
        per_call.push((took[1] - took[0]) / CALLS as f64);
    }
    Finding::new("import call", median(&mut per_call), "ns")
        .at_most(150.0)
        .note("random.below, from Rust")
        .print();
}

/// A harness plays 201 turns with a model that answers at once: the time between an answer and the next question, at
/// turns 1, 50 and 200. In it: the answer into the guest and what the guest makes of it, a step in the environment's
/// instance, the message behind it, four calls through the gate, each recorded.
async fn turns(host: &PluginHost, dist: &Path) -> Result<(), Box<dyn std::error::Error>> {
    const TURNS: usize = 201;
    let plugin = host.load(&dist.join("react-text.wasm")).await?;
    let world = host.load(&dist.join("fault-environment.wasm")).await?;
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); TURNS];
    for _ in 0..41 {
        let clock = Arc::new(Mutex::new(Vec::with_capacity(TURNS)));
        let asked = Arc::new(AtomicU32::new(0));
        let mut run = harness(&plugin, &json!({ "prompt": "", "max_turns": TURNS }), &asked);
        let environments = host.environment(EnvironmentRun {
            settings: world.check_settings(&json!({}))?,
            plugin: Arc::clone(&world),
            alias: "world".to_owned(),
            task: Arc::new(task()),
            seed: 7,
            start_ms: 0,
            meter: Arc::clone(&run.meter),
        });
        run.settings = plugin.check_settings(&json!({ "prompt": "", "max_turns": TURNS }))?;
        run.capabilities.models = Some(Arc::new(Prompt(Arc::clone(&clock))));
        run.capabilities.environments = Some(Arc::clone(&environments) as Arc<dyn Environments>);
        let outcome = host.run_harness(run, task()).await;
        assert!(matches!(outcome.end, HarnessEnd::Returned(Ok(_))), "{:?}", outcome.end);
        environments.end_episode().await;
        let clock = clock.lock().expect("nothing panics while it holds this lock");
        for (turn, pair) in clock.windows(2).enumerate() {
            times[turn].push(pair[1].duration_since(pair[0]).as_secs_f64() * 1e6);
        }
    }
    // Neighbours are taken together, so that a page fault is not a trend.
    let mut around = |turn: usize| {
        let from = turn.saturating_sub(5).max(1);
        let mut medians: Vec<f64> =
            times[from..(from + 10).min(TURNS - 1)].iter_mut().map(|values| median(values)).collect();
        median(&mut medians)
    };
    let at = [1, 50, 195];
    let cost = at.map(&mut around);
    for (turn, us) in [1, 50, 200].iter().zip(cost) {
        Finding::new(format!("guest and call record, one turn at turn {turn}"), us, "us").print();
    }
    let growth = cost.iter().fold(0.0_f64, |most, us| most.max(us / cost[0]));
    Finding::new("guest and call record, dearest of these turns against turn 1", growth, "x")
        .at_most(1.2)
        .note("with a step in the environment; medians of ten neighbouring turns, 41 runs")
        .print();
    Ok(())
}

/// A model that answers at once, and notes when.
struct Prompt(Arc<Mutex<Vec<Instant>>>);

#[async_trait]
impl Models for Prompt {
    async fn open(&self, _: &str, _: Vec<Message>, _: Vec<Tool>) -> Result<Box<dyn Conversation>, Failure> {
        Ok(Box::new(Prompt(Arc::clone(&self.0))))
    }
}

#[async_trait]
impl Conversation for Prompt {
    async fn append(&mut self, _: Vec<Message>) -> Result<(), Failure> {
        Ok(())
    }
    async fn complete(&mut self, _: CompleteOptions) -> Result<Completion, Failure> {
        self.0.lock().expect("nothing panics while it holds this lock").push(Instant::now());
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
        Err(Failure::Invalid("no forks here".to_owned()))
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

/// Rollouts that wait for a model: resident memory and maps of the process by rollout, everything of the host included.
async fn park(guest: &str, host: &PluginHost, plugin: &Arc<Plugin>, count: u32) {
    let asked = Arc::new(AtomicU32::new(0));
    let before = Memory::of_this_process();
    let started = Instant::now();
    let cancel = CancelToken::new();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..count {
        let mut run = harness(plugin, &json!({ "fault": "complete", "times": 1 }), &asked);
        run.cancel = cancel.clone();
        let host = host.clone();
        tasks.spawn(async move { host.run_harness(run, task()).await.end });
    }
    while asked.load(Ordering::SeqCst) < count {
        if let Some(ended) = tasks.try_join_next() {
            eprintln!("an instance ended instead of waiting: {ended:?}");
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let took = started.elapsed();
    let after = Memory::of_this_process();
    let per_instance = |before: u64, after: u64| after.saturating_sub(before) as f64 / f64::from(count);
    Finding::new(
        format!("parked rollout, {count} of them"),
        per_instance(before.held_bytes, after.held_bytes) / 1024.0,
        "KiB",
    )
    .at_most(74.0)
    .note(format!(
        "{guest}; 50 KiB for the instance and 24 for the rest; resident, shared pages counted for each map: {:.0}; \
         {:.1} maps each in use; all parked after {:.0} ms",
        per_instance(before.resident_bytes, after.resident_bytes) / 1024.0,
        per_instance(before.maps, after.maps),
        millis(took)
    ))
    .print();
    cancel.cancel();
    while tasks.join_next().await.is_some() {}
}
