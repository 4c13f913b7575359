//! Rewards of a group with sandboxes: the matrix of unit tests against one worked by hand, and what rollouts changed, compared when
//! their sandboxes are gone. And sandboxes that a generator of tasks makes.

use crate::whole::{Store, run, text};
use espalier_core::trajectory::{AttemptRecord, PluginScore};
use espalier_scripted::{Options, Scripted, by_text};
use espalier_store::{AttemptState, StoreUrl};
use serde_json::Value;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The records of the rollouts of a store's only group.
async fn records(store: &Path) -> Vec<AttemptRecord> {
    let store = espalier_store::Store::open_existing(&StoreUrl::Folder(store.to_owned())).await.unwrap();
    let run = store.runs().await.unwrap().remove(0);
    let mut records = Vec::new();
    for row in store.attempts(&run.run_id, 0).await.unwrap() {
        if matches!(row.state, AttemptState::Final(_)) {
            records.push(store.record(&row).await.unwrap().unwrap());
        }
    }
    store.close().await;
    records
}

fn score<'a>(record: &'a AttemptRecord, name: &str) -> Option<&'a PluginScore> {
    record.scores.iter().find(|scored| scored.score.name == name)
}

/// Four programs that should print the largest of some integers, and the tests that each author wrote. The first two are right; the
/// third prints the first number, the last one the largest size.
const PROGRAMS: [(&str, &str); 4] = [
    (
        "print(max(map(int, input().split())))",
        r#"[{"input": "1 2", "output": "2"}, {"input": "-1 -2", "output": "-1"}, {"input": "4", "output": "4"}]"#,
    ),
    (
        "print(sorted(map(int, input().split()))[-1])",
        r#"[{"input": "5 5", "output": "6"}, {"input": "2 1", "output": "2"}]"#,
    ),
    ("print(input().split()[0])", "I have none."),
    ("print(max(abs(int(n)) for n in input().split()))", r#"[{"input": "-3 -9", "output": "9"}]"#),
];

/// Worked by hand: two tests of the task (`3 9 2` is 9, `-5 -7` is -5), then those that were written, in order.
const MATRIX: [&str; 4] = ["11111010", "11111010", "01011010", "10101011"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn solutions_against_tests_are_the_matrix_worked_by_hand() {
    let asked = AtomicUsize::new(0);
    let answer = move |prompt: &str| {
        let own = PROGRAMS.iter().find(|(program, _)| prompt.contains(program));
        match own {
            Some((_, tests)) => format!("Here:\n```json\n{tests}\n```"),
            None => {
                let (program, _) = PROGRAMS[asked.fetch_add(1, Ordering::SeqCst) % 4];
                format!("```python\n{program}\n```")
            }
        }
    };
    let policy = Scripted::start(Options::new(by_text(answer))).await.unwrap();
    let store = Store::new();
    let url = format!("models.policy.url=\"{}\"", policy.url());
    let sets = ["models.policy.embedded=false", &url, "groups.concurrent_rollouts=1"];
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    let arguments: Vec<&str> = ["run", "experiments/unit-tests.toml"].into_iter().chain(sets).collect();
    let played = run(store.path(), &arguments).await;
    assert!(played.status.success(), "{}", text(&played));
    let records = records(store.path()).await;
    let told: Vec<String> =
        records.iter().map(|record| score(record, "reward").unwrap().score.reason.clone()).collect();
    for (place, (told, row)) in told.iter().zip(MATRIX).enumerate() {
        assert!(told.ends_with(&format!("all tests: {row}")), "{place}: {told}");
    }
    let rewards: Vec<Option<f64>> = records.iter().map(|record| record.trajectory.reward).collect();
    assert_eq!(rewards, [Some(0.75), Some(0.75), Some(0.5), Some(0.625)]);
    // Of the written tests: three that all right ones pass and that find 1, 1 and no wrong one; one that no right one passes and no
    // wrong one either, one that finds none; one that only a wrong one passes.
    let tests: Vec<Option<f64>> =
        records.iter().map(|record| score(record, "tests").map(|scored| scored.score.value)).collect();
    assert_eq!(tests, [Some(2.0 / 3.0), Some(0.0), None, Some(-1.0)]);
    let extra: Value =
        serde_json::from_str(score(&records[0], "tests").unwrap().score.extra.as_ref().unwrap()).unwrap();
    let each: Vec<&Value> = extra["tests"].as_array().unwrap().iter().map(|test| &test["reward"]).collect();
    assert_eq!(each, [1.0, 1.0, 0.0]);
    assert!(store.sandboxes().await.is_empty(), "fresh ones are ended");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_rollouts_changed_is_compared_when_their_sandboxes_are_gone() {
    let asked = AtomicUsize::new(0);
    let answer = move |_: &str| {
        let number = asked.fetch_add(1, Ordering::SeqCst);
        format!("```bash\necho {number} > out; echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```")
    };
    let policy = Scripted::start(Options::new(by_text(answer))).await.unwrap();
    let store = Store::new();
    let folder = store.path();
    let task = r#"{"id":"t","instruction":"x","private":{"unit_tests":[{"script":"grep -q 1 out"},{"script":"test -e out"}]}}"#;
    std::fs::write(folder.join("tasks.jsonl"), format!("{task}\n")).unwrap();
    let experiment = format!(
        "name = \"changes\"\n[tasks]\nsource = \"tasks.jsonl\"\n[groups]\nsize = 2\nconcurrent_rollouts = 1\n\
         [models.policy]\nkind = \"llama-cpp\"\nurl = \"{}\"\n[harness]\nplugin = \"bash-agent\"\n\
         settings = {{ mode = \"fenced\", fence = \"bash\", max_turns = 2 }}\n[sandbox]\nmemory = \"64MiB\"\n\
         [[group_rewards]]\nplugin = \"unit-tests\"\ngrants = [\"changes\"]\nsettings = {{ solution = \"changes\" }}\n\
         [[group_rewards]]\nplugin = \"fault-group-reward\"\ngrants = [\"changes\"]\nweight = 0.0\n\
         settings = {{ fault = \"changes\" }}\n",
        policy.url()
    );
    let file = folder.join("changes.toml");
    std::fs::write(&file, experiment).unwrap();
    let played = run(folder, &["run", &file.display().to_string()]).await;
    assert!(played.status.success(), "{}", text(&played));
    let records = records(folder).await;
    assert_eq!(records.len(), 2);
    for (place, (record, reward)) in records.iter().zip([0.5, 1.0]).enumerate() {
        assert_eq!(record.trajectory.reward, Some(reward), "{:?}", record.scores);
        assert!(record.blobs.iter().any(|(name, _)| name == "changes:main"));
        let seen = record.scores.iter().find(|scored| scored.plugin == "fault-group-reward").unwrap();
        let expect = format!(
            "out: {place}; 8 fresh, then bound; open: invalid: sandbox `main`: the sandboxes of the rollouts are gone"
        );
        assert!(seen.score.reason.starts_with(&expect), "{}", seen.score.reason);
    }
    assert!(store.sandboxes().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_generator_makes_sandboxes_of_its_own_with_a_grant_and_none_without() {
    let store = Store::new();
    let folder = store.path();
    let experiment = |grants: &str| {
        format!(
            "name = \"made\"\n[tasks]\nplugin = \"fault-generator\"\nlimit = 1\n{grants}\n\
             settings = {{ fault = \"sandbox\" }}\n[groups]\nsize = 1\n[harness]\nplugin = \"idle\"\n[sandbox]\n\
             memory = \"64MiB\"\n[[rewards]]\nplugin = \"environment-reward\"\n"
        )
    };
    let file = folder.join("made.toml");
    let arguments = ["run", &*file.display().to_string()].map(str::to_owned);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    std::fs::write(&file, experiment("")).unwrap();
    let refused = run(folder, &arguments).await;
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    assert!(text(&refused).contains("made no valid task in 8 batches"), "{}", text(&refused));
    assert!(text(&refused).contains("not granted: espalier:sandbox/creation"), "{}", text(&refused));

    std::fs::write(&file, experiment("grants = [\"sandbox\"]")).unwrap();
    let played = run(folder, &[&arguments[..], &["--new"]].concat()).await;
    assert!(played.status.success(), "{}", text(&played));
    let opened = espalier_store::Store::open_existing(&StoreUrl::Folder(folder.to_owned())).await.unwrap();
    let mut told = Vec::new();
    for run in opened.runs().await.unwrap() {
        for task in opened.generated_tasks(&run.run_id).await.unwrap() {
            let bytes = opened.blobs().read_whole(&task.task_text).await.unwrap();
            let task: Value = serde_json::from_slice(&bytes).unwrap();
            told.push(task["instruction"].as_str().unwrap().to_owned());
        }
    }
    opened.close().await;
    assert_eq!(told, ["made; 8 at a time, then bound; invalid"]);
    assert!(store.sandboxes().await.is_empty(), "they end with the call");
}
