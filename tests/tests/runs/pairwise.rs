//! A reward of groups that asks a model: `pairwise`, by a judge that is told by script what to prefer.

use crate::setting::{Left, Parts, Setting, plain_tasks};
use espalier_core::samples::GroupStatus;
use espalier_daemon::engine::{RunEnd, RunSummary};
use espalier_scripted::{Options, Scripted, by_text};
use espalier_tests::export;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The answers of a question, in the order in which they are shown.
fn shown(prompt: &str) -> (&str, &str) {
    let (_, rest) = prompt.split_once("# Answer A\n\n").unwrap();
    let (a, rest) = rest.split_once("\n\n# Answer B\n\n").unwrap();
    (a, rest.split_once("\n\n# Question").unwrap().0)
}

/// Prefers the longer answer.
fn longer(prompt: &str) -> String {
    let (a, b) = shown(prompt);
    match a.len().cmp(&b.len()) {
        std::cmp::Ordering::Greater => "\\boxed{A}".to_owned(),
        std::cmp::Ordering::Less => "\\boxed{B}".to_owned(),
        std::cmp::Ordering::Equal => "\\boxed{tie}".to_owned(),
    }
}

/// What a run of one group left, whose rollouts gave these answers, one after another.
struct Played {
    setting: Setting,
    summary: RunSummary,
    left: Left,
    requests: u64,
}

async fn play(
    answers: &'static [&'static str],
    judge: impl Fn(&str) -> String + Send + Sync + 'static,
    more: &str,
) -> Played {
    let asked = AtomicUsize::new(0);
    let answer = move |_: &str| answers[asked.fetch_add(1, Ordering::SeqCst) % answers.len()].to_owned();
    let policy = Scripted::start(Options::new(by_text(answer))).await.unwrap();
    let server = Scripted::start(Options::new(by_text(judge))).await.unwrap();
    let world = format!(
        "[models.judge]\nkind = \"llama-cpp\"\nurl = \"{}\"\nsampling = {{ max_tokens = 64 }}\n\
         [[group_rewards]]\nplugin = \"pairwise\"\nmodel = \"judge\"\n{more}",
        server.url()
    );
    let groups = format!(
        "size = {}\nreplacements = 0\nconcurrent_rollouts = 1\nfilters = [\"deviation\"]",
        answers.len()
    );
    let harness = "plugin = \"answer\"";
    let parts = Parts { url: policy.url(), harness, world: &world, groups: &groups, limits: "", model: "" };
    let setting = Setting::new(&plain_tasks(1), &parts);
    let summary = setting.run().await;
    assert_eq!(summary.state, RunEnd::Finished);
    let left = setting.left().await;
    Played { setting, summary, left, requests: server.counts().requests }
}

fn rewards(left: &Left) -> Vec<Option<f64>> {
    left.finals().map(|(_, record)| record.trajectory.reward).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rollout_is_worth_the_share_of_comparisons_that_it_wins() {
    let played = play(&["a", "ccc", "bb", "cc"], longer, "").await;
    assert_eq!(played.requests, 12, "six pairs, in both orders");
    assert_eq!(rewards(&played.left), [Some(0.0), Some(1.0), Some(0.5), Some(0.5)]);
    assert_eq!(played.left.groups, [Some(GroupStatus::Ready)]);
    let records: Vec<_> = played.left.finals().map(|(_, record)| record).collect();
    assert_eq!(records[2].scores[0].score.reason, "won 1.5 of 3 comparisons");
    // What was asked about the group stands with the first of its rollouts.
    let calls: Vec<usize> = records.iter().map(|record| record.trajectory.other_calls.len()).collect();
    assert_eq!(calls, [12, 0, 0, 0]);
    assert_eq!(
        (records[0].judges[0].judge.as_str(), records[0].judges[0].transcript.turns.len()),
        ("pairwise", 12)
    );
    let folder = tempfile::tempdir().unwrap();
    let files = export::files(&played.setting.store_folder(), "test", folder.path()).await;
    assert_eq!(export::groups(&files[0]).len(), 1);
    export::checked_by_python(&files);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_prefers_a_place_says_nothing_and_the_group_is_filtered() {
    let first = |_: &str| "\\boxed{A}".to_owned();
    let played = play(&["a", "bb", "ccc"], first, "").await;
    assert_eq!(rewards(&played.left), [Some(0.5); 3], "each order says the other thing: ties");
    assert_eq!(played.left.groups, [Some(GroupStatus::Filtered)]);
    let once = play(&["a", "bb"], first, "settings = { swap = false }").await;
    assert_eq!((rewards(&once.left), once.requests), (vec![Some(1.0), Some(0.0)], 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_says_nothing_does_not_count_and_nothing_is_guessed() {
    // About the shortest answer it says nothing.
    let quiet = |prompt: &str| {
        let (a, b) = shown(prompt);
        if a == "a" || b == "a" { "both are fine".to_owned() } else { longer(prompt) }
    };
    let played = play(&["bb", "ccc", "dddd"], quiet, "").await;
    assert_eq!(rewards(&played.left), [Some(0.0), Some(0.5), Some(1.0)]);
    let played = play(&["a", "bb", "ccc"], quiet, "attempts = 2").await;
    assert_eq!(rewards(&played.left), [None; 3], "which is not 0");
    assert_eq!(
        (played.left.groups.clone(), played.summary.counts.scored),
        (vec![Some(GroupStatus::Failed)], 0)
    );
    assert_eq!(played.requests, 2 * 4, "asked again once, and no second order where the first says nothing");
    let (_, record) = played.left.finals().next().unwrap();
    let error = &record.trajectory.errors[0].text;
    assert!(error.contains("none of the 2 comparisons of rollout 0 has a verdict"), "{error}");
    assert_eq!(record.trajectory.other_calls.len(), 8, "every try is in the books");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_has_limits_of_its_own_and_no_model_unless_one_is_named() {
    let played = play(&["a", "bb"], longer, "limits = { calls = 1 }\nattempts = 1").await;
    let (_, record) = played.left.finals().next().unwrap();
    let error = &record.trajectory.errors[0].text;
    assert!(error.contains("budget used up: turns"), "{error}");
}
