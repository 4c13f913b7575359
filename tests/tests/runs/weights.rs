//! New weights come while a run goes on: what `espalier weights` says, what answers are labelled with, and what becomes of a server that
//! fails.

use crate::kills::{end, engine, first_result};
use crate::setting::{Setting, plain_tasks};
use crate::told::said;
use espalier_scripted::{Options, Scripted, by_text, tokenizer_json};
use std::collections::BTreeSet;
use std::time::Duration;

async fn server() -> Scripted {
    let latency = Duration::from_millis(30);
    Scripted::start(Options { latency, ..Options::new(by_text(|_| "well".to_owned())) }).await.unwrap()
}

/// Two servers of a model that loads weights from paths.
fn setting(servers: [&Scripted; 2]) -> Setting {
    let setting = Setting::empty();
    std::fs::write(setting.file().with_file_name("tasks.jsonl"), plain_tasks(5000)).unwrap();
    std::fs::write(setting.file().with_file_name("tokenizer.json"), tokenizer_json()).unwrap();
    let text = format!(
        r#"name = "test"
[tasks]
source = "tasks.jsonl"
[groups]
size = 2
concurrent_rollouts = 8
[models.policy]
kind = "vllm"
urls = ["{}", "{}"]
tokenizer = "tokenizer.json"
sampling = {{ max_tokens = 16 }}
[harness]
plugin = "fault-harness"
settings = {{ fault = "complete", times = 3 }}
[environment]
plugin = "fault-environment"
[[rewards]]
plugin = "environment-reward"
"#,
        servers[0].url(),
        servers[1].url(),
    );
    std::fs::write(setting.file(), text).unwrap();
    setting
}

/// What was said, without what differs from run to run.
fn steady(text: &str, servers: [&Scripted; 2]) -> String {
    let text = text.replace(servers[0].url(), "http://one").replace(servers[1].url(), "http://two");
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_unit = |at: usize| words.get(at).is_some_and(|unit| ["ms", "s"].contains(unit));
        let is_time = |at: usize| words[at].parse::<f64>().is_ok() && is_unit(at + 1);
        let told = (0..words.len()).filter(|at| *at == 0 || !is_time(at - 1));
        told.map(|at| if is_time(at) { "TIME" } else { words[at] }).collect::<Vec<_>>().join(" ")
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_have_the_label_of_the_weights_that_sampled_them() {
    let (one, two) = (server().await, server().await);
    let servers = [&one, &two];
    let setting = setting(servers);
    let told = async |arguments: &[&str]| steady(&said(&setting, arguments).await, servers);
    let child = engine(&setting).spawn().unwrap();
    first_result(&setting).await;
    insta::assert_snapshot!(
        told(&["weights", "test", "step-1", "--path", "/w/1", "--train-step", "1"]).await
    );
    two.break_routes(&["/collective_rpc"]);
    insta::assert_snapshot!(
        told(&["weights", "test", "step-2", "--path", "/w/2", "--train-step", "2"]).await
    );
    let before = two.counts().requests;
    first_result_of(&setting, "step-2").await;
    assert_eq!(two.counts().requests, before, "it gets no calls");
    insta::assert_snapshot!(told(&["weights", "test", "step-3"]).await);
    insta::assert_snapshot!(told(&["weights", "test", "step-3", "--path", "/w", "--model", "judge"]).await);
    assert!(told(&["stop", "test", "--now"]).await.ends_with("exit 0"));
    assert_eq!(end(child).await.status.code(), Some(130));
    let shown = told(&["show", "test"]).await;
    let lines: Vec<&str> = shown.lines().skip_while(|line| !line.starts_with("weights")).take(3).collect();
    insta::assert_snapshot!(lines.join("\n"));
    insta::assert_snapshot!(told(&["weights", "test", "step-3", "--path", "/w"]).await);

    // The next session knows the steps, and which server has other weights.
    let before = two.counts().requests;
    let child = engine(&setting).spawn().unwrap();
    let count = labels(&setting).await.1;
    while labels(&setting).await.1 == count {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    said(&setting, &["stop", "test", "--now"]).await;
    end(child).await;
    assert_eq!(two.counts().requests, before, "it gets no calls in the next session either");
    let (labels, _) = labels(&setting).await;
    let expect = [("base", None), ("step-1", Some(1)), ("step-2", Some(2))];
    assert_eq!(labels, expect.map(|(label, step)| (label.to_owned(), step)).into());
}

/// The labels of all answers with their steps, and how many answers there are.
async fn labels(setting: &Setting) -> (BTreeSet<(String, Option<i64>)>, usize) {
    let store = setting.store().await;
    let run = store.runs().await.unwrap().remove(0);
    let (mut labels, mut count) = (BTreeSet::new(), 0);
    for group in store.groups(&run.run_id).await.unwrap() {
        for attempt in store.attempts(&run.run_id, group.opened.group_index).await.unwrap() {
            for call in
                store.record(&attempt).await.unwrap().into_iter().flat_map(|record| record.trajectory.calls)
            {
                count += 1;
                labels.extend(call.versions.into_iter().map(|(_, _, label, step)| (label, step)));
            }
        }
    }
    store.close().await;
    (labels, count)
}

async fn first_result_of(setting: &Setting, label: &str) {
    for _ in 0..600 {
        if labels(setting).await.0.iter().any(|(has, _)| has == label) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("nothing was sampled with {label} within 30 s");
}
