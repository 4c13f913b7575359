//! Environments and rewards: what they record, and how each of their faults is told.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

mod support;

use espalier_core::ending::{HarnessEnd, Outcome, Report};
use espalier_core::host::{Blobs, Environments};
use espalier_core::limits::Limits;
use espalier_core::meter::Meter;
use espalier_core::trajectory::{RolloutView, Step};
use espalier_plugin::{Plugin, ScoreError, World};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use support::{Case, environment, guest, host, score, short, task};

async fn play(settings: serde_json::Value, harness: serde_json::Value) -> Played {
    let harness_plugin = guest("fault-harness").await;
    let meter = Arc::new(Meter::new(short()));
    let world = environment(settings, &meter).await;
    let mut case = Case::new(harness);
    case.meter = Some(meter);
    case.environments = Some(Arc::clone(&world) as Arc<dyn Environments>);
    let outcome = case.run(&host(), &harness_plugin).await;
    world.end_episode().await;
    Played { end: outcome.end, steps: world.steps(), failure: world.failure() }
}

struct Played {
    end: HarnessEnd,
    steps: Vec<Step>,
    failure: Option<String>,
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_are_recorded_and_misuse_is_invalid() {
    let played = play(json!({ "last": "never" }), json!({ "fault": "steps", "times": 3 })).await;
    assert_eq!(played.failure, None);
    let HarnessEnd::Returned(Ok(report)) = &played.end else { panic!("{:?}", played.end) };
    assert_eq!(report.data, "[true, false]", "a step before reset is refused");
    let actions: Vec<&str> = played.steps.iter().map(|step| step.action.as_str()).collect();
    assert_eq!(actions, ["act", "act", "act", "late"]);
    assert_eq!(played.steps[0].observation, "did act");
    assert_eq!(played.steps[0].reward, Some(0.5));

    let played = play(json!({ "last": "act" }), json!({ "fault": "steps", "times": 1 })).await;
    let HarnessEnd::Returned(Ok(report)) = &played.end else { panic!("{:?}", played.end) };
    assert_eq!(report.data, "[true, true]", "a step after done is refused");
    assert_eq!(played.steps.len(), 1);
    assert!(played.steps[0].done);
}

#[tokio::test(flavor = "multi_thread")]
async fn worlds_with_one_seed_start_alike_and_open_once() {
    let meter = Arc::new(Meter::new(short()));
    let mut seen = Vec::new();
    for _ in 0..2 {
        let world = environment(json!({}), &meter).await;
        let mut open = world.open().await.unwrap();
        assert!(world.open().await.is_err(), "once in a rollout");
        seen.push(open.reset().await.unwrap().text);
        assert_eq!(open.actions().await.unwrap(), ["act"]);
        world.end_episode().await;
        assert!(open.step("act".to_owned()).await.is_err(), "closed");
        assert_eq!(world.failure(), None, "a call after close is misuse");
    }
    assert_eq!(seen[0], seen[1]);
    assert!(seen[0].starts_with("task-1 at 1700000000000 drew "), "{}", seen[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_starts_the_record_anew() {
    let meter = Arc::new(Meter::new(short()));
    let world = environment(json!({ "last": "end" }), &meter).await;
    let mut open = world.open().await.unwrap();
    open.reset().await.unwrap();
    open.step("act".to_owned()).await.unwrap();
    open.step("end".to_owned()).await.unwrap();
    assert!(open.step("more".to_owned()).await.is_err());
    open.reset().await.unwrap();
    open.step("again".to_owned()).await.unwrap();
    let actions: Vec<String> = world.steps().into_iter().map(|step| step.action).collect();
    assert_eq!(actions, ["again"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_fault_of_an_environment_is_evidence() {
    for (fault, at, said) in [
        ("loop", "reset", "in provider.reset after host call 0 (settings.get): guest trap (cpu)"),
        ("loop", "step", "in provider.step after host call 3 (settings.get): guest trap (cpu)"),
        ("memory", "step", "guest trap (memory)"),
        (
            "panic",
            "step",
            "guest trap (panic): wasm trap: wasm `unreachable` instruction executed: panicked at",
        ),
        ("recurse", "step", "guest trap (stack)"),
        (
            "import-loop",
            "step",
            "guest trap (budget-ignored): continued for 16 host calls or 5s after `budget used up: host-calls`",
        ),
        ("nan", "step", "guest trap (invalid data): the step's reward is NaN; a reward is finite"),
        ("invalid-json", "step", "guest trap (invalid data): the step's info is not valid JSON"),
        ("failure", "step", "environment world failed in step: invalid: a failure of my own"),
        ("failure", "reset", "environment world failed in reset: invalid: a failure of my own"),
    ] {
        let settings = json!({ "fault": fault, "at": at });
        let played = play(settings, json!({ "fault": "swallow-environment" })).await;
        let HarnessEnd::Returned(Ok(report)) = &played.end else { panic!("{:?}", played.end) };
        assert_eq!(report.outcome, Outcome::GaveUp);
        let failure = played.failure.unwrap_or_else(|| panic!("{fault} at {at} left no evidence"));
        assert!(failure.contains(said), "{fault} at {at}: {failure}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_world_that_moved_unseen_is_not_played_on() {
    let harness = guest("fault-harness").await;
    let limits =
        Limits { guest_cpu: Duration::from_secs(2), import_wall: Duration::from_millis(100), ..short() };
    let meter = Arc::new(Meter::new(limits));
    let world = environment(json!({ "fault": "loop", "at": "reset" }), &meter).await;
    let mut case = Case::fault("swallow-environment");
    case.meter = Some(meter);
    case.environments = Some(Arc::clone(&world) as Arc<dyn Environments>);
    let outcome = case.run(&host(), &harness).await;
    let failures: Vec<_> = outcome.host_calls.iter().filter_map(|call| call.failure.as_deref()).collect();
    assert_eq!(
        failures,
        [
            "unavailable: environment.reset did not end within limits.import_wall = 100ms",
            "unavailable: environment world: reset did not end in time, and the world is unknown since",
        ]
    );
    assert!(world.failure().is_some());
    tokio::time::timeout(Duration::from_secs(30), world.end_episode()).await.expect("bounded");
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_is_bounded_and_its_faults_end_nothing() {
    for fault in ["panic", "loop"] {
        let meter = Arc::new(Meter::new(Limits { guest_cpu: Duration::from_millis(50), ..short() }));
        let world = environment(json!({ "fault": fault, "at": "close" }), &meter).await;
        world.open().await.unwrap().reset().await.unwrap();
        tokio::time::timeout(Duration::from_secs(30), world.end_episode()).await.expect("bounded");
        assert_eq!(world.failure(), None);
    }
}

fn view(steps: &[(&str, Option<f64>)]) -> RolloutView {
    RolloutView {
        rollout_id: "r-1".to_owned(),
        task: task(),
        status: "completed".to_owned(),
        stop_reason: "submitted".to_owned(),
        report: Some(Report {
            outcome: Outcome::Submitted,
            answer: None,
            data: "null".to_owned(),
            extra: None,
        }),
        turns: Vec::new(),
        steps: steps
            .iter()
            .map(|(observation, reward)| Step {
                turn: 0,
                action: "act".to_owned(),
                observation: (*observation).to_owned(),
                reward: *reward,
                done: false,
                info: "{}".to_owned(),
            })
            .collect(),
        blobs: Vec::new(),
        extra: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reward_scores_on_a_frozen_clock() {
    let outcome = score("none", view(&[("a", Some(0.25)), ("b", None), ("c", Some(1.0))]), short()).await;
    let scores = outcome.result.unwrap();
    assert_eq!((scores[0].name.as_str(), scores[0].value), ("reward", 1.25));
    assert_eq!(scores[0].reason, "3 steps, clock moved by 0");
    assert_eq!(outcome.host_calls.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_observation_reaches_a_reward_as_a_blob() {
    let long = "é".repeat(60_000);
    let outcome = score("blob", view(&[(&long, None)]), short()).await;
    assert_eq!(outcome.result.unwrap()[0].reason, "65536 of 120000");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_fault_of_a_reward_is_an_error_and_no_score() {
    for (fault, said) in [
        ("loop", "guest trap (cpu)"),
        ("memory", "guest trap (memory)"),
        ("panic", "a panic on purpose"),
        ("recurse", "guest trap (stack)"),
        ("import-loop", "guest trap (budget-ignored)"),
        ("nan", "reward fault-reward: invalid data: score `reward` is NaN; a score is finite"),
        ("infinite", "reward fault-reward: invalid data: score `reward` is inf; a score is finite"),
        ("turn", "reward fault-reward: invalid data: score `reward` is about turn 99, the rollout has 0"),
        ("nameless", "reward fault-reward: invalid data: a score without a name"),
        ("failure", "reward fault-reward failed: unavailable: no ground to score on"),
    ] {
        let error = score(fault, view(&[]), short()).await.result.unwrap_err();
        assert!(error.to_string().contains(said), "{fault}: {error}");
        assert_eq!(error.is_worth_a_retry(), fault == "failure", "{fault}");
    }
    let limits =
        Limits { scoring_wall: Duration::from_millis(50), guest_cpu: Duration::from_secs(60), ..short() };
    let error = score("loop", view(&[]), limits).await.result.unwrap_err();
    assert_eq!(
        error,
        ScoreError::TimedOut { plugin: "reward fault-reward".to_owned(), wall: Duration::from_millis(50) }
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_of_another_world_is_refused_by_name() {
    let reward: Arc<Plugin> = guest("fault-reward").await;
    assert_eq!(reward.world(), World::Reward);
    let outcome = Case::new(json!({})).run(&host(), &reward).await;
    let HarnessEnd::Trapped(text) = &outcome.end else { panic!("{:?}", outcome.end) };
    assert!(text.ends_with("fault-reward.wasm is a reward-plugin; expected a harness-plugin"), "{text}");
    let blobs = support::MemoryBlobs::default();
    assert!(blobs.stat("blob-0").await.is_err());
}
