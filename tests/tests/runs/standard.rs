//! The experiments of the standard plugins, as they are in the repository but for their models: scripted ones.

use crate::setting::{Left, Setting};
use espalier_core::samples::GroupStatus;
use espalier_core::trajectory::AttemptRecord;
use espalier_daemon::engine::RunEnd;
use espalier_scripted::{Options, Scripted, by_text};
use std::collections::BTreeMap;

/// Plays an experiment with these models. Every model of it must be named.
async fn play(name: &str, models: &[(&str, &Scripted)]) -> Left {
    let mut sets: Vec<String> = Vec::new();
    for (model, server) in models {
        sets.push(format!("models.{model}.embedded=false"));
        sets.push(format!("models.{model}.url=\"{}\"", server.url()));
    }
    let setting = Setting::empty();
    let summary = setting.run_named(&format!("experiments/{name}.toml"), &sets).await;
    assert_eq!(summary.state, RunEnd::Finished, "{name}");
    setting.left().await
}

/// Answers what stands behind the first text that the prompt contains, in its last message; else `otherwise`.
async fn model(rules: &'static [(&'static str, &'static str)], otherwise: &'static str) -> Scripted {
    let answer = move |prompt: &str| {
        let rule = rules.iter().find(|(part, _)| prompt.contains(part));
        rule.map_or(otherwise, |(_, answer)| answer).to_owned()
    };
    Scripted::start(Options::new(by_text(answer))).await.unwrap()
}

/// The rewards of a run by task, each once.
fn rewards(left: &Left) -> BTreeMap<String, Vec<f64>> {
    let mut rewards: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (row, record) in left.finals() {
        let reward = record.trajectory.reward.expect("every rollout is scored");
        let index = row.traj_id.split(".g").nth(1).unwrap().split('.').next().unwrap();
        let of_group = rewards.entry(index.to_owned()).or_default();
        of_group.push(reward);
    }
    for of_group in rewards.values_mut() {
        of_group.sort_by(f64::total_cmp);
        of_group.dedup();
    }
    rewards
}

fn told(pairs: &[(&str, &[f64])]) -> BTreeMap<String, Vec<f64>> {
    pairs.iter().map(|(group, rewards)| ((*group).to_owned(), rewards.to_vec())).collect()
}

fn reason(record: &AttemptRecord) -> &str {
    &record.scores[0].score.reason
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exact_match() {
    let policy = model(&[("France", " paris.\n"), ("hexagon", "six"), ("north", "South\n")], "").await;
    let left = play("exact-match", &[("policy", &policy)]).await;
    assert_eq!(rewards(&left), told(&[("0", &[0.0]), ("1", &[1.0]), ("2", &[1.0])]));
    let (_, first) = left.finals().next().unwrap();
    assert_eq!(reason(first), "expected `Paris`, answered `paris.`");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numeric_match() {
    let rules =
        &[("17 + 25", "17 and 25.\nAnswer: 42"), ("3 / 8", "Answer: 3/8"), ("1,250", "Answer: 5,003")];
    let policy = model(rules, "").await;
    let left = play("numeric-match", &[("policy", &policy)]).await;
    assert_eq!(rewards(&left), told(&[("0", &[1.0]), ("1", &[1.0]), ("2", &[1.0])]), "within a thousandth");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_schema() {
    let rules = &[
        ("Lovelace", "```json\n{\"name\": \"Ada Lovelace\", \"born\": 1815}\n```"),
        ("Danube", "{\"name\": \"Ulm\", \"river\": \"Rhine\"}"),
    ];
    let policy = model(rules, "").await;
    let left = play("json-schema", &[("policy", &policy)]).await;
    let rewards = rewards(&left);
    assert!((rewards["0"][0] - 1.1).abs() < 1e-9, "{rewards:?}");
    assert!(rewards["1"][0] > 0.0 && rewards["1"][0] < 0.1, "a part of it is right: {rewards:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn llm_judge() {
    let policy = model(&[("France", "Paris"), ("hexagon", "seven"), ("north", "South")], "").await;
    // The judge is told what is known of the solution.
    let rules =
        &[("# Final answer\n\nseven", "7 is not 6: \\boxed{0}"), ("what is known", "right: \\boxed{1}")];
    let judge = model(rules, "no verdict").await;
    let left = play("llm-judge", &[("policy", &policy), ("judge", &judge)]).await;
    assert_eq!(rewards(&left), told(&[("0", &[1.0]), ("1", &[0.0]), ("2", &[1.0])]));
    assert!(left.finals().all(|(_, record)| record.judges[0].votes.len() == 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pairwise() {
    let policy = model(&[], "Paris").await;
    let judge = model(&[], "\\boxed{A}").await;
    let left = play("pairwise", &[("policy", &policy), ("judge", &judge)]).await;
    assert_eq!(left.groups, [Some(GroupStatus::Ready); 3]);
    assert_eq!(rewards(&left), told(&[("0", &[0.5]), ("1", &[0.5]), ("2", &[0.5])]), "all say the same");
    assert_eq!(judge.counts().requests, 0, "so nobody need be asked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn length_penalty() {
    let policy = model(&[("France", "Paris"), ("hexagon", "6"), ("north", "east")], "").await;
    let left = play("length-penalty", &[("policy", &policy)]).await;
    // All are of one length.
    assert_eq!(rewards(&left), told(&[("0", &[1.0]), ("1", &[1.0]), ("2", &[0.0])]));
    let (_, first) = left.finals().next().unwrap();
    assert!(first.trajectory.reward_parts.contains_key("length-penalty/reward"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crafting_tasks() {
    let policy = model(&[], "get 1 nothing at all\n").await;
    let left = play("crafting-tasks", &[("policy", &policy)]).await;
    assert_eq!(left.groups, [Some(GroupStatus::Ready); 12]);
    assert!(rewards(&left).values().all(|rewards| rewards[..] == [0.0]));
}
