//! Judges: asked before rewards, by a model of their own; a judge that fails is never a 0.

use crate::setting::{Left, Parts, Setting, plain_tasks};
use espalier_core::samples::GroupStatus;
use espalier_daemon::engine::{RunEnd, RunSummary};
use espalier_scripted::{Options, Scripted, by_text};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Two requests, then it submits.
const TWICE: &str = "plugin = \"fault-harness\"\nsettings = { fault = \"complete\", times = 2 }";
const GROUPS: &str = "size = 2\nreplacements = 0\nconcurrent_rollouts = 1";

/// Runs one group of two whose judge answers these texts, over and over.
async fn play(answers: &'static [&'static str], judge: &str) -> (RunSummary, Left, u64) {
    let policy = Scripted::start(Options::new(by_text(|_| "well".to_owned()))).await.unwrap();
    let asked = AtomicUsize::new(0);
    let answer = move |_: &str| answers[asked.fetch_add(1, Ordering::SeqCst) % answers.len()].to_owned();
    let server = Scripted::start(Options::new(by_text(answer))).await.unwrap();
    let world = format!(
        "[models.judge]\nkind = \"llama-cpp\"\nurl = \"{}\"\nsampling = {{ max_tokens = 64 }}\n\
         [[judges]]\nplugin = \"llm-judge\"\n{judge}",
        server.url()
    );
    let parts =
        Parts { url: policy.url(), harness: TWICE, world: &world, groups: GROUPS, limits: "", model: "" };
    let setting = Setting::new(&plain_tasks(1), &parts);
    let summary = setting.run().await;
    assert_eq!(summary.state, RunEnd::Finished);
    let requests = server.counts().requests;
    (summary, setting.left().await, requests)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn votes_on_the_outcome_are_the_reward_and_no_part_of_what_trains() {
    let (summary, left, requests) =
        play(&["\\boxed{1}", "so \\boxed{0}", "\\boxed{1}"], "weight = 2.0").await;
    assert_eq!(left.groups, [Some(GroupStatus::Ready)]);
    assert_eq!((summary.counts.scored, requests), (2, 6));
    for (_, record) in left.finals() {
        let trajectory = &record.trajectory;
        assert_eq!(trajectory.reward, Some(2.0));
        let names: Vec<&str> = trajectory.reward_parts.keys().map(String::as_str).collect();
        assert_eq!(names, ["llm-judge/outcome-votes", "llm-judge/reward"]);
        let [judge] = &record.judges[..] else { panic!("{:?}", record.judges) };
        // Answered at once, in whatever order.
        let mut values: Vec<f64> = judge.votes.iter().map(|vote| vote.value.unwrap()).collect();
        values.sort_by(f64::total_cmp);
        assert_eq!(values, [0.0, 1.0, 1.0]);
        assert!(judge.votes.iter().all(|vote| vote.turn.is_none()));
        assert_eq!(judge.sampled, None);
        assert_eq!(trajectory.other_calls.len(), 3);
        assert!(trajectory.other_calls.iter().all(|call| call.model == "judge"));
        assert!(trajectory.calls.iter().all(|call| call.model == "policy"));
        assert!(trajectory.plugins.contains_key("llm-judge"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn votes_on_turns_are_averaged_into_their_rewards() {
    let judge = "votes = 0.5\nsettings = { about = \"turns\", votes = 2, lowest = -1.0 }";
    let (_, left, requests) = play(&["\\boxed{1}", "\\boxed{1}", "\\boxed{-1}", "who knows"], judge).await;
    assert_eq!(requests, 8, "two rollouts, two turns, two votes");
    for (_, record) in left.finals() {
        // The second turn: a vote of -1 and one that counts 0.
        assert_eq!(record.trajectory.turn_rewards, Some(vec![Some(0.5), Some(-0.25)]));
        assert_eq!(record.trajectory.reward, Some(0.0), "turns alone are no outcome");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_cannot_be_parsed_is_asked_again_and_then_null() {
    for (on_failure, asked) in [("retry", 2 * 3 * 2), ("null", 2 * 3)] {
        let judge = format!("on_failure = \"{on_failure}\"\nattempts = 2");
        let (summary, left, requests) = play(&["no verdict"], &judge).await;
        assert_eq!(requests, asked, "{on_failure}");
        assert_eq!((summary.counts.scored, summary.counts.reward_sum), (0, 0.0));
        assert_eq!(left.groups, [Some(GroupStatus::Failed)]);
        for (_, record) in left.finals() {
            assert_eq!(record.trajectory.reward, None, "which is not 0");
            let error = &record.trajectory.errors[0].text;
            assert!(
                error.contains("judge llm-judge failed") && error.contains("no verdict on the outcome"),
                "{error}"
            );
            assert_eq!(record.trajectory.other_calls.len() as u64, asked / 2, "every try is in the books");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_judge_has_limits_of_its_own() {
    let judge = "limits = { calls = 2 }\nattempts = 1";
    let (_, left, requests) = play(&["\\boxed{1}"], judge).await;
    assert_eq!(requests, 0, "three votes are over two calls");
    for (_, record) in left.finals() {
        let error = &record.trajectory.errors[0].text;
        assert!(error.contains("budget used up: turns"), "{error}");
    }
}
