//! A plugin that fails again and again: the run stops early, tells the whole error, and the same command goes on with the
//! mended plugin, without sampling what only a reward has failed.

use crate::setting::{BOUND, Left, Parts, Setting, plain_tasks};
use espalier_core::samples::{GroupStatus, TokenSums, check};
use espalier_daemon::engine::{EngineError, RunEnd};
use espalier_daemon::output::problem::Problem;
use espalier_scripted::{Options, Scripted, by_text};
use espalier_tests::place::{espalier, plugin_folder};
use std::collections::BTreeSet;

const TASKS: usize = 32;
/// Rollouts that a run of 32 groups of 4 makes of a plugin that always fails: each is replaced once.
const POTENTIAL: u64 = 256;
/// Requests of one rollout.
const REQUESTS: u64 = 2;
const SAMPLES: &str = "plugin = \"fault-harness\"\nsettings = { fault = \"complete\", times = 2 }";
const BROKEN_REWARD: &str = "[[rewards]]\nplugin = \"./brevity.wasm\"\nsettings = { fault = \"unmended\" }";
const BROKEN_HARNESS: &str = "plugin = \"./agent.wasm\"\nsettings = { fault = \"unmended\" }";
const OFF: &str = "size = 4\nplugin_failures_max = 0";
const ON: &str = "size = 4";

async fn server() -> Scripted {
    Scripted::start(Options::new(by_text(|_| "well".to_owned()))).await.unwrap()
}

/// An experiment with a component of its own, in the folder of its file.
fn setting(parts: &Parts<'_>, plugin: &str, file: &str) -> Setting {
    let setting = Setting::new(&plain_tasks(TASKS), parts);
    let component = plugin_folder().join(format!("{plugin}.wasm"));
    std::fs::copy(component, setting.file().with_file_name(file)).unwrap();
    setting
}

/// Writes over the component's state: another digest, and no fault any more.
pub(crate) fn repair(setting: &Setting, file: &str) {
    let path = setting.file().with_file_name(file);
    let mut bytes = std::fs::read(&path).unwrap();
    let state = b"state of the plugin: unmended";
    let at = bytes.windows(state.len()).position(|bytes| bytes == state).unwrap();
    bytes[at..][..state.len()].copy_from_slice(b"state of the plugin: mended!!");
    std::fs::write(&path, bytes).unwrap();
}

async fn stopped(setting: &Setting) -> EngineError {
    let error = setting.run_with(setting.options()).await.unwrap_err();
    assert!(matches!(error, EngineError::PluginFails(_)), "{error}");
    error
}

/// Every token that was sampled stands in the store once, every group is full and sound, and nothing ran that need not.
async fn check_books(setting: &Setting, server: &Scripted) -> Left {
    let left = setting.left().await;
    assert_eq!(left.groups, [Some(GroupStatus::Ready); TASKS]);
    let mut sums = TokenSums::default();
    let mut calls = 0;
    for (_, record) in left.finals().chain(left.abandoned()) {
        sums += record.trajectory.token_sums();
        calls += record.trajectory.calls.len() as u64;
    }
    assert!(sums.close(), "{sums:?}");
    assert_eq!(calls, server.counts().answered, "each request stands in one record");
    let store = setting.store().await;
    let run = store.runs().await.unwrap().remove(0);
    assert_eq!(run.tokens, sums);
    for index in 0..TASKS as u64 {
        let content = store.group_content(&run.run_id, index).await.unwrap();
        assert_eq!(content.group.trajectories.len(), 4);
        assert_eq!(check::check(&content.group), []);
        assert!(content.group.trajectories.iter().all(|one| one.trainable && one.token_sums().trained > 0));
    }
    store.close().await;
    left
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reward_that_always_panics_stops_the_run_and_is_scored_again_when_it_is_repaired() {
    let server = server().await;
    let parts = Parts {
        url: server.url(),
        model: "",
        harness: SAMPLES,
        world: BROKEN_REWARD,
        groups: ON,
        limits: "",
    };
    let setting = setting(&parts, "fault-reward", "brevity.wasm");
    let error = stopped(&setting).await;
    let problem = Problem::from(error);
    assert_eq!(problem.exit.code(), 2);
    let told = &problem.message;
    assert!(told.contains("reward brevity panicked at") && told.contains("index out of bounds"), "{told}");
    assert!(problem.hint.unwrap().contains("run the same command again"));

    let requests = server.counts().requests;
    let left = setting.left().await;
    let ended = left.finals().count() as u64;
    println!(
        "stopped after {ended} rollouts and {requests} requests, of {POTENTIAL} and {}",
        POTENTIAL * REQUESTS
    );
    assert!((16..=80).contains(&ended), "{ended}");
    assert!(left.groups.contains(&None), "it is left open");

    // The same command without a change stops again.
    stopped(&setting).await;
    repair(&setting, "brevity.wasm");
    let sampled: BTreeSet<String> =
        setting.left().await.finals().map(|(row, _)| row.traj_id.clone()).collect();
    let summary = setting.run().await;
    assert_eq!(summary.state, RunEnd::Finished);
    let left = check_books(&setting, &server).await;
    let kept = left.finals().filter(|(row, _)| sampled.contains(&row.traj_id)).count() as u64;
    assert_eq!(summary.counts.scored_again, kept, "what was sampled is scored, under its own number");
    assert!(kept >= 16 && summary.counts.sampled_again == 0);
    for (row, record) in left.finals() {
        let told = record.logs.iter().any(|line| line.text.contains("scored again, without sampling"));
        assert_eq!(told, sampled.contains(&row.traj_id), "{}", row.traj_id);
    }
    assert_eq!(summary.counts.tokens, left_tokens(&left));
    assert_eq!((summary.counts.ended(), summary.counts.scored), (128, 128));
    assert!(summary.causes.list.is_empty(), "{:?}", summary.causes);
}

fn left_tokens(left: &Left) -> TokenSums {
    let mut sums = TokenSums::default();
    for (_, record) in left.finals().chain(left.abandoned()) {
        sums += record.trajectory.token_sums();
    }
    sums
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_finished_run_whose_reward_is_repaired_is_scored_again_without_a_request() {
    let server = server().await;
    let parts = Parts {
        url: server.url(),
        model: "",
        harness: SAMPLES,
        world: BROKEN_REWARD,
        groups: OFF,
        limits: "",
    };
    let setting = setting(&parts, "fault-reward", "brevity.wasm");
    let summary = setting.run().await;
    assert_eq!((summary.counts.ended(), summary.counts.replacements), (POTENTIAL, POTENTIAL / 2));
    let [cause] = &summary.causes.list[..] else { panic!("{:?}", summary.causes) };
    assert_eq!((cause.rollouts, summary.causes.more), (POTENTIAL, 0));
    let requests = server.counts().requests;
    assert_eq!(requests, POTENTIAL * REQUESTS);
    // Nothing has changed: nothing is done.
    let again = setting.run().await;
    assert_eq!((again.counts.ended(), again.counts.scored_again), (POTENTIAL, 0));

    repair(&setting, "brevity.wasm");
    let summary = setting.run().await;
    assert_eq!((summary.counts.scored_again, summary.counts.ended(), summary.counts.scored), (128, 128, 128));
    check_books(&setting, &server).await;
    assert_eq!(server.counts().requests, requests, "nothing is sampled");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_harness_that_always_panics_stops_the_run_and_runs_again_when_it_is_repaired() {
    let server = server().await;
    let world = "[[rewards]]\nplugin = \"environment-reward\"";
    let parts =
        Parts { url: server.url(), model: "", harness: BROKEN_HARNESS, world, groups: ON, limits: "" };
    let setting = setting(&parts, "fault-harness", "agent.wasm");
    let error = stopped(&setting).await.to_string();
    assert!(error.contains("harness agent panicked at"), "{error}");
    let left = setting.left().await;
    let ended = left.finals().count();
    println!("stopped after {ended} rollouts, of {POTENTIAL}");
    assert!((16..=80).contains(&ended), "{ended}");
    repair(&setting, "agent.wasm");
    let summary = setting.run().await;
    assert_eq!((summary.state, summary.counts.scored_again), (RunEnd::Finished, 0));
    let left = setting.left().await;
    assert_eq!(left.groups, [Some(GroupStatus::Ready); TASKS]);
    assert_eq!((left.finals().count(), summary.counts.ended()), (128, 128));
    assert!(left.abandoned().count() >= ended, "what was tried stays on the books");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_environment_that_always_panics_stops_the_run() {
    let server = server().await;
    let world = "[environment]\nplugin = \"fault-environment\"\nsettings = { fault = \"panic\" }\n\
                 [[rewards]]\nplugin = \"environment-reward\"";
    let harness = "plugin = \"fault-harness\"\nsettings = { fault = \"swallow-environment\" }";
    let parts = Parts { url: server.url(), model: "", harness, world, groups: ON, limits: "" };
    let setting = Setting::new(&plain_tasks(TASKS), &parts);
    let error = stopped(&setting).await.to_string();
    assert!(error.contains("environment fault-environment panicked at"), "{error}");
    assert!(setting.left().await.finals().count() <= 80);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_policy_or_its_limits_can_cause_never_stops_a_run() {
    let server = server().await;
    for (harness, limits) in [
        // Limits of the guest, a budget that is ignored, and a failure that the harness returns.
        ("fault = \"memory\"", ""),
        ("fault = \"recurse\"", ""),
        ("fault = \"ignore-budget\"", "turns = 1"),
        ("fault = \"own-failure\"", ""),
    ] {
        let harness = format!("plugin = \"fault-harness\"\nsettings = {{ {harness} }}");
        let (url, world) = (server.url(), "[[rewards]]\nplugin = \"environment-reward\"");
        let groups = "size = 4\nplugin_failures_max = 4";
        let setting = Setting::new(
            &plain_tasks(5),
            &Parts { url, model: "", harness: &harness, world, groups, limits },
        );
        let summary = setting.run().await;
        assert_eq!((summary.state, summary.counts.ended()), (RunEnd::Finished, 40), "{harness}");
        assert_eq!(summary.causes.list.len(), 1, "{:?}", summary.causes);
    }
}

/// What a command printed, in a pipe, and its exit code.
async fn command(setting: &Setting, arguments: &[&str]) -> (i32, String, String) {
    let mut command = espalier(&setting.store_folder());
    // What `task check` keeps goes with the setting.
    command.args(arguments).env("TMPDIR", setting.file().parent().unwrap());
    let output = tokio::time::timeout(BOUND, command.output()).await.unwrap().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_end_with_the_causes_whole() {
    let server = server().await;
    let parts = Parts {
        url: server.url(),
        model: "",
        harness: SAMPLES,
        world: BROKEN_REWARD,
        groups: OFF,
        limits: "",
    };
    let setting = setting(&parts, "fault-reward", "brevity.wasm");
    let file = setting.file();
    let file = file.to_str().unwrap();
    let whole = |printed: &str, rollouts: &str| {
        let is_cause = |line: &&str| {
            line.trim_start().starts_with(rollouts) && line.contains("reward brevity panicked at")
        };
        let line = printed.lines().find(is_cause).unwrap_or_else(|| panic!("{rollouts} in {printed}"));
        assert!(line.contains("index out of bounds: the len is 0 but the index is 7"), "{line}");
    };
    let (code, printed, _) = command(&setting, &["run", file, "--limit", "2"]).await;
    assert_eq!(code, 1);
    whole(&printed, "16 rollouts: ");
    let (_, printed, _) = command(&setting, &["show", "test"]).await;
    whole(&printed, "16 rollouts: ");
    let (_, printed, _) = command(&setting, &["show", "test", "--json"]).await;
    let shown: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(shown["causes"]["list"][0]["rollouts"], 16);
    assert_eq!(shown["causes"]["list"][0]["failure"]["class"], "panic");

    let (code, printed, told) = command(&setting, &["task", "check", file, "--limit", "3", "--keep"]).await;
    assert_eq!(code, 1, "{told}");
    whole(&printed, "3 rollouts: ");
    let kept = told.lines().find_map(|line| line.split_once("espalier --store ")?.1.split(' ').next());
    let kept = kept.unwrap_or_else(|| panic!("{told}"));
    let (code, printed, told) = command(&setting, &["--store", kept, "show", "test-idle"]).await;
    assert_eq!(code, 0, "{told}");
    whole(&printed, "3 rollouts: ");

    let (code, _, told) = command(&setting, &["run", file, "--set", "groups.plugin_failures_max=16"]).await;
    assert_eq!(code, 2, "{told}");
    assert!(told.contains("reward brevity panicked at"), "{told}");
}
