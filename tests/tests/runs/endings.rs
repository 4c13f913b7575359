//! Each row of the table of endings, reached by a real component, a real environment and a real store. (The row
//! `out-of-memory` is of sandboxes, and in their tests.)

use crate::setting::{Left, Parts, Setting, plain_tasks};
use espalier_core::control::{Command, RunPhase, StopMode};
use espalier_core::ending::{Status, StopReason};
use espalier_core::samples::GroupStatus;
use espalier_daemon::control;
use espalier_daemon::engine::RunEnd;
use espalier_scripted::{Fault, Faults, Options, Scripted, by_text};
use std::time::Duration;

const WORLD: &str = r#"
[environment]
plugin = "fault-environment"
[[rewards]]
plugin = "environment-reward"
"#;
const GROUPS: &str = "size = 2\nreplacements = 0\nattempts = 2";

async fn server(answer: &'static str, latency: Duration) -> Scripted {
    let options = Options { latency, ..Options::new(by_text(move |_| answer.to_owned())) };
    Scripted::start(options).await.unwrap()
}

/// Runs one group of two and returns what it left.
async fn play(url: &str, harness: &str, world: &str, limits: &str) -> Left {
    let parts = Parts { url, model: "", harness, world, groups: GROUPS, limits };
    let setting = Setting::new(&plain_tasks(1), &parts);
    let summary = setting.run().await;
    assert_eq!(summary.state, RunEnd::Finished);
    assert_eq!((summary.counts.ended(), summary.counts.running), (2, 0));
    setting.left().await
}

fn check(left: &Left, stop_reason: StopReason, reward: Option<f64>) {
    let ends: Vec<_> = left.finals().map(|(_, record)| &record.trajectory).collect();
    assert_eq!(ends.len(), 2, "{}", stop_reason.as_str());
    for trajectory in &ends {
        assert_eq!(trajectory.stop_reason, stop_reason, "{:?}", trajectory.errors);
        assert_eq!(trajectory.reward, reward, "{:?}", trajectory.errors);
        assert_eq!(trajectory.trainable, stop_reason.row().trainable && reward.is_some());
        let explained = matches!(stop_reason.row().status, Status::Failed | Status::Aborted);
        assert!(!explained || !trajectory.errors.is_empty(), "a failure says what happened");
    }
    let group = if reward.is_some() { GroupStatus::Ready } else { GroupStatus::Failed };
    assert_eq!(left.groups, [Some(group)]);
}

fn fault(name: &str, times: u64) -> String {
    format!("plugin = \"fault-harness\"\nsettings = {{ fault = \"{name}\", times = {times} }}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endings_that_are_scored() {
    let server = server("well", Duration::ZERO).await;
    let url = server.url();
    // Three steps and a late one, half a point each.
    check(&play(url, &fault("steps", 3), WORLD, "").await, StopReason::Submitted, Some(2.0));
    check(&play(url, &fault("swallow", 0), WORLD, "").await, StopReason::GaveUp, Some(0.0));
    check(&play(url, &fault("obey-budget", 0), WORLD, "turns = 3").await, StopReason::LimitTurns, Some(0.0));
    let left = play(url, &fault("obey-budget", 0), WORLD, "sampled_tokens = 12").await;
    check(&left, StopReason::LimitTokens, Some(0.0));
    check(&play(url, &fault("calls", 99), WORLD, "host_calls = 9").await, StopReason::LimitCalls, Some(0.0));
    let react = "plugin = \"react-text\"\nsettings = { format_errors_max = 2 }";
    check(&play(url, react, WORLD, "").await, StopReason::LimitFormat, Some(0.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endings_by_a_defect_of_a_plugin() {
    let server = server("well", Duration::ZERO).await;
    let url = server.url();
    check(&play(url, &fault("ignore-budget", 0), WORLD, "turns = 1").await, StopReason::BudgetIgnored, None);
    check(&play(url, &fault("panic", 0), WORLD, "").await, StopReason::GuestTrap, None);
    check(&play(url, &fault("own-failure", 0), WORLD, "").await, StopReason::HarnessFailure, None);
    let world = "[environment]\nplugin = \"fault-environment\"\nsettings = { fault = \"panic\" }\n\
                 [[rewards]]\nplugin = \"environment-reward\"";
    let left = play(url, &fault("swallow-environment", 0), world, "").await;
    check(&left, StopReason::EnvironmentFailure, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rollout_whose_time_is_over() {
    let server = server("well", Duration::from_millis(50)).await;
    let limits = "rollout_wall = \"400ms\"\nturns = 10000";
    let left = play(server.url(), &fault("obey-budget", 0), WORLD, limits).await;
    check(&left, StopReason::LimitWall, None);

    let groups = format!("{GROUPS}\nscore_time_exceeded = true");
    let harness = fault("obey-budget", 0);
    let parts =
        Parts { url: server.url(), model: "", harness: &harness, world: WORLD, groups: &groups, limits };
    let setting = Setting::new(&plain_tasks(1), &parts);
    setting.run().await;
    let left = setting.left().await;
    for (_, record) in left.finals() {
        let trajectory = &record.trajectory;
        assert_eq!((trajectory.stop_reason, trajectory.reward), (StopReason::LimitWall, Some(0.0)));
        assert!(!trajectory.trainable);
    }
    assert_eq!(left.groups, [Some(GroupStatus::Ready)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_whose_time_is_over() {
    let server = server("well", Duration::from_millis(250)).await;
    let limits = "turn_wall = \"100ms\"\nrollout_wall = \"60s\"";
    let left = play(server.url(), &fault("obey-budget", 0), WORLD, limits).await;
    check(&left, StopReason::LimitTurnWall, None);
    // Turns that are quick enough are as many as there are.
    let limits = "turn_wall = \"30s\"\nturns = 2";
    let left = play(server.url(), &fault("obey-budget", 0), WORLD, limits).await;
    check(&left, StopReason::LimitTurns, Some(0.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_is_no_score_whatever_the_harness_makes_of_it() {
    let server = server("well", Duration::ZERO).await;
    server.set_faults(&Faults::always(Fault::Status(503)));
    let left = play(server.url(), &fault("swallow", 0), WORLD, "").await;
    check(&left, StopReason::Infrastructure, None);
    let abandoned: Vec<_> = left.abandoned().collect();
    assert_eq!(abandoned.len(), 2, "one retry each");
    for (row, record) in abandoned {
        assert_eq!((row.attempt, record.trajectory.stop_reason), (0, StopReason::Infrastructure));
        assert!(record.trajectory.segments.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_rollout_is_cancelled_and_runs_again() {
    let server = server("well", Duration::from_millis(150)).await;
    let harness = fault("complete", 8);
    let parts =
        Parts { url: server.url(), model: "", harness: &harness, world: WORLD, groups: GROUPS, limits: "" };
    let setting = Setting::new(&plain_tasks(1), &parts);
    let (commander, commands) = control::channel();
    let mut options = setting.options();
    options.drain = Duration::from_millis(100);
    let run = setting.run_told(options, commands);
    let teller = async {
        // In the middle of the answers, however long the start took.
        while server.counts().requests < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        commander.ask(Command::Stop(StopMode::Drain)).await.unwrap()
    };
    let (summary, answer) = tokio::join!(run, teller);
    assert_eq!((answer.phase, answer.running), (RunPhase::Draining, 2));
    assert_eq!(summary.unwrap().state, RunEnd::Stopped);
    let left = setting.left().await;
    assert_eq!((left.finals().count(), left.abandoned().count(), &left.groups[..]), (0, 2, &[None][..]));
    for (_, record) in left.abandoned() {
        assert_eq!(record.trajectory.stop_reason, StopReason::Cancelled);
        let sums = record.trajectory.token_sums();
        assert_eq!((sums.dropped, sums.trained), (sums.sampled, 0), "{sums:?}");
    }
    let summary = setting.run_with(setting.options()).await.unwrap();
    assert_eq!(summary.state, RunEnd::Finished);
    let left = setting.left().await;
    check(&left, StopReason::Submitted, Some(0.0));
    assert!(left.finals().all(|(row, _)| row.attempt == 1), "numbers go on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reward_that_fails_is_null_and_never_zero() {
    let server = server("well", Duration::ZERO).await;
    for (name, code) in [
        ("panic", "reward-failure"),
        ("nan", "reward-failure"),
        ("failure", "scoring-infrastructure"),
        ("nameless", "reward-failure"),
        ("import-loop", "scoring-wall"),
    ] {
        let world = format!(
            "[environment]\nplugin = \"fault-environment\"\n[[rewards]]\nplugin = \"environment-reward\"\n\
             [[rewards]]\nplugin = \"fault-reward\"\nattempts = 2\nsettings = {{ fault = \"{name}\" }}"
        );
        // Calls enough for the loop to meet the clock first.
        let limits = "scoring_wall = \"500ms\"\nhost_calls = 10000000";
        let left = play(server.url(), &fault("complete", 1), &world, limits).await;
        check(&left, StopReason::Submitted, None);
        for (_, record) in left.finals() {
            let errors = &record.trajectory.errors;
            assert_eq!(errors.len(), 1, "{errors:?}");
            assert_eq!(errors[0].code, code);
            assert!(errors[0].text.starts_with("fault-reward: "), "{errors:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rollouts_of_a_group_start_in_the_same_world() {
    let server = server("well", Duration::ZERO).await;
    let harness = "plugin = \"react-text\"\nsettings = { format_errors_max = 1 }";
    let left = play(server.url(), harness, WORLD, "").await;
    let openings: Vec<_> = left
        .finals()
        .map(|(_, record)| record.transcript.conversations[0].opening.last().unwrap().joined_text())
        .collect();
    assert_eq!(openings[0], openings[1]);
    assert!(openings[0].contains("drew"), "{}", openings[0]);
}
