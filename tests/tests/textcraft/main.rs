//! The environment `textcraft` against the package whose behaviour it has: the same recipes, goals and actions must give
//! the same observations, rewards and ends. Once by the plugin's logic, once through the built component.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod episodes;

use episodes::{Episode, episode};
use espalier_core::host::Environments;
use espalier_core::limits::{Limits, LimitsFile};
use espalier_core::meter::Meter;
use espalier_core::task::TaskView;
use espalier_plugin::{Compiler, EnvironmentRun, Plugin, PluginHost, PluginHostConfig};
use espalier_textcraft::world::Game;
use serde::Deserialize;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use xtask::tasks::book::Book;
use xtask::{place, setup};

/// Any number will do; a failure names it.
const SEED: u64 = 20_260_707;

#[derive(Debug, PartialEq, Deserialize)]
struct Seen {
    observation: String,
    reward: f64,
    done: bool,
}

/// The package, in a process of its own.
struct Peer {
    child: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    fn start() -> Peer {
        let script = place::root().join("tests/tests/textcraft/peer.py");
        let mut child = Command::new(setup::data_python())
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("textcraft is installed (cargo xtask setup data)");
        let ask = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Peer { child, ask, answers }
    }

    fn play(&mut self, episode: &Episode) -> Vec<Seen> {
        let line = serde_json::json!({ "goal": episode.task.goal, "actions": episode.actions });
        writeln!(self.ask, "{line}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer:?} to {line}"))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn book() -> Book {
    Book::read(&place::recipes().expect("textcraft is installed")).unwrap()
}

/// By the plugin's logic.
fn played(episode: &Episode) -> Vec<Seen> {
    let mut world = Game::new(&episode.task).unwrap();
    let mut seen = Vec::new();
    for action in &episode.actions {
        let step = world.step(action);
        seen.push(Seen { observation: step.observation, reward: step.reward, done: step.done });
        if step.done {
            break;
        }
    }
    seen
}

#[track_caller]
fn assert_same(number: u32, episode: &Episode, ours: &[Seen], theirs: &[Seen]) {
    for (place, action) in episode.actions.iter().enumerate().take(ours.len().max(theirs.len())) {
        assert_eq!(
            ours.get(place),
            theirs.get(place),
            "seed {SEED}, episode {number}, goal {:?}, action {place}: {action:?} of {:?}",
            episode.task.goal,
            episode.actions
        );
    }
}

#[test]
fn the_book_has_what_the_package_has() {
    let book = book();
    assert_eq!(book.goals().len(), 544);
    let task = book.world("stick", &book.recipes);
    assert_eq!(task.commands.len(), 612);
    assert_eq!(task.raw.unwrap().len(), 132);
    let depths: Vec<usize> = (0..=5)
        .map(|depth| book.goals().into_iter().filter(|goal| book.depth(goal) == depth).count())
        .collect();
    assert_eq!(depths, [0, 125, 291, 117, 11, 0]);
}

#[test]
fn the_logic_answers_as_the_package_does() {
    let book = book();
    let mut peer = Peer::start();
    let (mut steps, mut refused, mut goals) = (0, 0, 0);
    for number in 0..300 {
        let episode = episode(&book, SEED, number, |goal| book.world(goal, &book.recipes));
        let ours = played(&episode);
        assert_same(number, &episode, &ours, &peer.play(&episode));
        steps += ours.len();
        refused += ours.iter().filter(|seen| seen.observation.starts_with("Could not")).count();
        goals += ours.iter().filter(|seen| seen.done).count();
    }
    println!("seed {SEED}: 300 episodes, {steps} steps, {refused} refused, {goals} goals reached");
    // The episodes are worth comparing only while they do all three: succeed, fail, and arrive.
    assert!(refused * 5 > steps && refused * 5 < steps * 4, "{refused} of {steps} refused");
    assert!(goals >= 30, "{goals}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_component_answers_as_the_package_does() {
    let book = book();
    let folder = tempfile::tempdir().unwrap();
    let host = PluginHost::new(PluginHostConfig {
        cache_dir: Some(folder.path().to_owned()),
        compiler: Compiler::InProcess,
        guest_threads: 1,
        instances_max: 4,
        io: tokio::runtime::Handle::current(),
    })
    .unwrap();
    let path = place::dist().join("textcraft.wasm");
    let plugin = host.load(&path).await.expect("plugins are built (cargo xtask plugins)");
    let mut peer = Peer::start();
    for number in 0..300 {
        let episode = episode(&book, SEED, number, |goal| book.world(goal, &book.recipes));
        let ours = played_by_component(&host, &plugin, &episode).await;
        assert_same(number, &episode, &ours, &peer.play(&episode));
    }
}

/// Through the host, as a harness's calls go.
async fn played_by_component(host: &PluginHost, plugin: &Arc<Plugin>, episode: &Episode) -> Vec<Seen> {
    let limits = Limits::resolve(&LimitsFile::default(), &LimitsFile::default()).unwrap();
    let environments = host.environment(EnvironmentRun {
        plugin: Arc::clone(plugin),
        alias: "textcraft".to_owned(),
        task: Arc::new(TaskView {
            id: "episode".to_owned(),
            instruction: String::new(),
            environment: None,
            sandboxes: Vec::new(),
            tags: Vec::new(),
            data: serde_json::to_string(&episode.task).unwrap(),
            private_data: None,
        }),
        settings: plugin.check_settings(&serde_json::json!({})).unwrap(),
        seed: SEED,
        start_ms: 0,
        meter: Arc::new(Meter::new(limits)),
    });
    let mut world = environments.open().await.unwrap();
    let first = world.reset().await.unwrap();
    assert_eq!(first.text, episode.task.opening());
    let mut seen = Vec::new();
    for action in &episode.actions {
        let step = world.step(action.clone()).await.unwrap();
        seen.push(Seen { observation: step.observation.text, reward: step.reward.unwrap(), done: step.done });
        if step.done {
            break;
        }
    }
    environments.end_episode().await;
    seen
}
