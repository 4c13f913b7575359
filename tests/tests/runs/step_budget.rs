//! Turns in stages: raised when the rewards have stopped rising, and kept by a run that was killed.

use crate::kills::{end, engine};
use crate::setting::{Parts, Setting, plain_tasks};
use espalier_core::ending::StopReason;
use espalier_scripted::{Options, Scripted, by_text};
use espalier_tests::export::printed;
use espalier_tests::results::results;
use std::collections::BTreeMap;
use std::time::Duration;

/// It never submits: each rollout takes all the turns that it has.
const HARNESS: &str = "plugin = \"fault-harness\"\nsettings = { fault = \"complete\", times = 40 }";
/// The reward is the same for all of them.
const WORLD: &str = "[[rewards]]\nplugin = \"fault-reward\"\n\
                     [step_budget]\nturns = [2, 4, 5]\nwindow = 2";
const TASKS: usize = 14;

/// By group: the turns of the store, and those that its rollouts took.
pub(crate) async fn turns(setting: &Setting) -> Vec<(u32, u64)> {
    let store = setting.store().await;
    let run = store.runs().await.unwrap().remove(0);
    let mut all = Vec::new();
    for group in store.groups(&run.run_id).await.unwrap() {
        let attempts = store.attempts(&run.run_id, group.opened.group_index).await.unwrap();
        let taken = attempts.iter().map(|attempt| attempt.turns).max().unwrap_or(0);
        all.push((group.opened.step_budget.expect("each group has a stage"), taken));
    }
    store.close().await;
    all
}

/// Kills the engine after each rollout or so, until it ends by itself; how often.
pub(crate) async fn killed_to_the_end(setting: &Setting) -> usize {
    let mut kills = 0;
    let mut durable = 0;
    loop {
        let mut child = engine(setting).spawn().unwrap();
        let deadline = std::time::Instant::now() + crate::setting::BOUND;
        while child.try_wait().unwrap().is_none() && results(&setting.store_folder()).await.len() <= durable {
            assert!(std::time::Instant::now() < deadline, "a group closes, or the run ends");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{:?}", end(child).await);
            return kills;
        }
        child.kill().await.unwrap();
        kills += 1;
        durable = results(&setting.store_folder()).await.len();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_turns_of_a_run_are_raised_by_rule_and_kept_over_kills() {
    let latency = Duration::from_millis(20);
    let options = Options { latency, ..Options::new(by_text(|_| "well".to_owned())) };
    let server = Scripted::start(options).await.unwrap();
    let parts = Parts {
        url: server.url(),
        model: "",
        harness: HARNESS,
        world: WORLD,
        groups: "size = 1\nconcurrent_rollouts = 1",
        limits: "",
    };
    let setting = Setting::new(&plain_tasks(TASKS), &parts);
    let kills = killed_to_the_end(&setting).await;
    assert!(kills >= 3, "{kills} kills");
    let turns = turns(&setting).await;
    assert!(turns.iter().all(|(stage, taken)| u64::from(*stage) == *taken), "{turns:?}");
    // Four groups without a rise end a stage; the next group may open while the last of them closes.
    let first =
        |stage: u32| turns.iter().position(|(turns, _)| *turns == stage).expect("each stage is reached");
    let (second, third) = (first(4), first(5));
    assert!(
        (4..=5).contains(&second) && (4..=5).contains(&(third - second)),
        "{turns:?} after {kills} kills"
    );
    assert!(turns.is_sorted(), "no stage is gone back from: {turns:?}");
    let left = setting.left().await;
    assert!(left.finals().all(|(_, record)| record.trajectory.stop_reason == StopReason::LimitTurns));

    let shown = printed(&setting.store_folder(), &["show", "test"]).await;
    let told = format!("step budget: 2 turns from g0, 4 turns from g{second}, 5 turns from g{third}");
    assert!(shown.contains(&told), "{shown}");
    let json = printed(&setting.store_folder(), &["show", "test", "--json"]).await;
    let json: BTreeMap<String, serde_json::Value> = serde_json::from_str(&json).unwrap();
    assert_eq!(json["step_budget"][1], serde_json::json!({ "from_group": second, "turns": 4 }));
}

#[test]
fn stages_that_cannot_be_are_refused_at_their_place() {
    let refused = |budget: &str, limits: &str| {
        let parts = Parts {
            url: "http://127.0.0.1:1",
            model: "",
            harness: HARNESS,
            world: budget,
            groups: "",
            limits,
        };
        let setting = Setting::new(&plain_tasks(1), &parts);
        let read = espalier_daemon::experiment::Experiment::read(&setting.file(), &[]);
        read.err().map(|error| error.to_string()).unwrap_or_default()
    };
    let told = refused("[step_budget]\nturns = [30, 15]", "");
    assert!(
        told.contains("`step_budget.turns` is [30, 15], expected numbers of 1 to 10000, ascending"),
        "{told}"
    );
    let told = refused("[step_budget]\nturns = [15, 30]", "turns = 15");
    assert!(told.contains("`limits.turns` and `step_budget` both say how many turns"), "{told}");
    assert_eq!(refused("[step_budget]\nturns = [15, 30]", ""), "");
}
