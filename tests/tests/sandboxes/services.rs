//! Rollouts in applications that the engine serves itself: MiniWoB++ of the installed package, solved by a scripted policy with the tools of
//! the browser.

use crate::whole::{Store, run, text};
use espalier_core::ending::StopReason;
use espalier_core::trajectory::AttemptRecord;
use espalier_store::StoreUrl;
use serde_json::{Value, json};
use std::path::Path;

/// One group of two rollouts: the answers of its scripted policy, the sections of its services and rewards.
fn experiment(store: &Path, task: &Value, answers: &str, more: &str) -> String {
    let file = store.join("services.toml");
    std::fs::write(store.join("tasks.jsonl"), format!("{task}\n")).unwrap();
    let text = format!(
        r#"name = "services"
[tasks]
source = "tasks.jsonl"
[groups]
size = 2
retry_delay = "10ms"
[browser]
[models.policy]
kind = "scripted"
answers = [{answers}]
[harness]
plugin = "gui-agent"
settings = {{ description_tokens = 1000 }}
{more}"#
    );
    std::fs::write(&file, text).unwrap();
    file.display().to_string()
}

async fn attempts(store: &Path) -> Vec<AttemptRecord> {
    let store = espalier_store::Store::open_existing(&StoreUrl::Folder(store.to_owned())).await.unwrap();
    let run = store.runs().await.unwrap().remove(0);
    let mut records = Vec::new();
    for row in store.attempts(&run.run_id, 0).await.unwrap() {
        records.extend(store.record(&row).await.unwrap());
    }
    store.close().await;
    records
}

/// `{name = ..., arguments = {...}}` of one call, as an answer of its own.
fn answer(name: &str, arguments: &Value) -> String {
    let arguments = arguments.as_object().unwrap().iter();
    let pairs: Vec<String> = arguments.map(|(key, value)| format!("{key} = {value}")).collect();
    format!("{{ tool_calls = [{{ name = \"{name}\", arguments = {{ {} }} }}] }}, ", pairs.join(", "))
}

const MINIWOB: &str = "[services.miniwob]\nkind = \"miniwob\"\n[[rewards]]\nplugin = \"miniwob-reward\"\n";

fn click_button() -> Value {
    json!({
        "id": "click-button-3",
        "instruction": "Do what the page asks.",
        "services": {"miniwob": {"task": "click-button", "seed": 3}},
        "browser": {"start_url": "http://miniwob.espalier.internal/?sid={sid}"},
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_miniwob_task_is_opened_from_the_installed_package_and_scored_by_its_end() {
    let done = answer("done", &json!({"response": "done"}));
    for (answers, reward) in [
        (answer("click", &json!({"ref": "e2"})) + &done, 1.0),
        (answer("click", &json!({"ref": "e1"})) + &done, 0.0),
        (done.clone(), 0.0),
    ] {
        let store = Store::new();
        let file = experiment(store.path(), &click_button(), &answers, MINIWOB);
        let played = run(store.path(), &["run", &file]).await;
        assert!(played.status.success(), "{}", text(&played));
        let records = attempts(store.path()).await;
        assert_eq!(records.len(), 2);
        for record in &records {
            let end = (record.trajectory.stop_reason, record.trajectory.reward);
            assert_eq!(end, (StopReason::Submitted, Some(reward)), "{:?}", record.scores);
            let extra: Value = serde_json::from_str(record.scores[0].score.extra.as_ref().unwrap()).unwrap();
            assert_eq!((&extra["task"], &extra["seed"]), (&json!("click-button"), &json!(3)));
            assert!(extra["utterance"].as_str().unwrap().starts_with("Click on the \""), "{extra}");
        }
    }
}
