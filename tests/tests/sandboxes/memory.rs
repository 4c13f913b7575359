//! Rollouts that run out of memory, by the real program: repeated with more of it, up to the highest level.

use crate::whole::{Store, json, run, text};
use serde_json::{Value, json as value};

/// Takes so many MiB, and uses them.
fn take(mebibytes: u32) -> String {
    format!("python3 -c 'x = b\"x\" * ({mebibytes} << 20); print(len(x))'")
}

fn task(id: &str, harness: &str, tests: &str) -> String {
    let task = value!({
        "id": id,
        "instruction": harness,
        "sandbox": { "workdir": "/root/work", "setup": "mkdir -p /root/work" },
        "private": { "tests": { "script": tests, "in": "fresh" } },
    });
    task.to_string() + "\n"
}

async fn play(store: &Store, tasks: &[String], sandbox: &str) -> Value {
    std::fs::write(store.path().join("tasks.jsonl"), tasks.concat()).unwrap();
    let experiment = format!(
        r#"
name = "memory"
[tasks]
source = "tasks.jsonl"
[groups]
size = 1
retry_delay = "10ms"
[harness]
plugin = "command-agent"
settings = {{ command = "sh {{prompt_file}}", outcomes = {{ "3" = "gave-up" }} }}
[sandbox]
cpu = 0.5
memory = "96MiB"
{sandbox}
[[rewards]]
plugin = "check-reward"
"#
    );
    std::fs::write(store.path().join("memory.toml"), experiment).unwrap();
    let played = run(store.path(), &["run", &store.path().join("memory.toml").display().to_string()]).await;
    assert!(played.status.success(), "{}", text(&played));
    json(store.path(), &["show", "memory", "--all"]).await
}

/// `stop_reason` of each attempt, and the reward of the last.
fn ends<'a>(shown: &'a Value, id: &str) -> (Vec<&'a str>, Option<f64>) {
    let groups = shown["group_list"].as_array().unwrap();
    let group = groups.iter().find(|group| group["task_id"] == id).unwrap();
    let attempts = group["attempts"].as_array().unwrap();
    let reasons = attempts.iter().map(|attempt| attempt["stop_reason"].as_str().unwrap()).collect();
    (reasons, attempts.last().unwrap()["reward"].as_f64())
}

#[tokio::test]
async fn who_runs_out_of_memory_is_tried_again_with_more_of_it() {
    let store = Store::new();
    let tasks = [
        task("small", "true", "true"),
        task("large", &take(200), "true"),
        // A process of the command, and not the command itself.
        task("child", &format!("{} || exit 0", take(200)), "true"),
        task("larger", &take(500), "true"),
        // At the highest level it is what the policy asked for, and scored.
        task("largest", &take(2_000), "true"),
        task("tests", "true", &take(500)),
        task("largest-tests", "true", &take(2_000)),
    ];
    let shown = play(&store, &tasks, r#"escalate = { levels = 2, cpu = 0.25, memory = "256MiB" }"#).await;
    let (again, submitted) = ("out-of-memory", "submitted");
    assert_eq!(ends(&shown, "small"), (vec![submitted], Some(1.0)), "{shown:#}");
    assert_eq!(ends(&shown, "large"), (vec![again, submitted], Some(1.0)));
    assert_eq!(ends(&shown, "child"), (vec![again, submitted], Some(1.0)));
    assert_eq!(ends(&shown, "larger"), (vec![again, again, submitted], Some(1.0)));
    assert_eq!(ends(&shown, "largest"), (vec![again, again, "limit-calls"], Some(1.0)));
    assert_eq!(ends(&shown, "tests"), (vec![submitted], Some(1.0)), "scoring rises by itself");
    assert_eq!(ends(&shown, "largest-tests"), (vec![submitted], Some(0.0)));
    assert_eq!(shown["endings_abandoned"][again], 6);
    let words = text(&run(store.path(), &["show", "memory"]).await);
    assert!(words.contains("tried again after") && words.contains(again), "{words}");

    let groups = shown["group_list"].as_array().unwrap();
    let larger = groups.iter().find(|group| group["task_id"] == "larger").unwrap();
    let rollout = larger["attempts"][2]["traj_id"].as_str().unwrap();
    let record = json(store.path(), &["show", rollout]).await;
    let had = |number: usize| {
        let one = &record["sandboxes"][number];
        (one["level"].as_u64(), one["cpu"].as_f64(), one["memory"].as_u64(), one["fresh"].as_bool())
    };
    assert_eq!(had(0), (Some(2), Some(1.0), Some(608 << 20), Some(false)), "{record:#}");
    assert_eq!(had(1), (Some(2), Some(1.0), Some(608 << 20), Some(true)), "what scores it has as much");
    let words = text(&run(store.path(), &["show", rollout]).await);
    assert!(words.contains("main: 1 core, 608MiB, level 2, fresh, for a reward"), "{words}");
    let why = larger["attempts"][1]["error"].as_str().unwrap();
    assert!(why.ends_with("it had 352MiB (level 1), the next try has 608MiB"), "{why}");
    assert!(store.sandboxes().await.is_empty());
}

#[tokio::test]
async fn without_levels_a_command_that_is_killed_for_memory_is_an_outcome() {
    let store = Store::new();
    let tasks =
        [task("large", &take(200), "true"), task("child", &format!("{} || exit 3", take(200)), "true")];
    let shown = play(&store, &tasks, "escalate = { levels = 0 }").await;
    assert_eq!(ends(&shown, "large"), (vec!["limit-calls"], Some(1.0)), "{shown:#}");
    assert_eq!(ends(&shown, "child"), (vec!["gave-up"], Some(1.0)));
}
