//! `sandbox.suspend_after`, from the experiment file to the processes of a sandbox.

use crate::whole::{Store, json, run, text};
use espalier_scripted::{Options, Scripted, by_text};
use espalier_tests::place::binary;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Until some sandbox of the store is suspended, at most a minute. On a thread of its own: the model's answer waits for it.
fn is_suspended(store: &Path) -> bool {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(60) {
        let listed = std::process::Command::new(binary())
            .env("ESPALIER_STORE", store)
            .args(["sandbox", "list", "--json"])
            .output()
            .unwrap();
        let listed: Value = serde_json::from_slice(&listed.stdout).unwrap_or_default();
        if listed.as_array().is_some_and(|all| all.iter().any(|one| one["suspended"] == true)) {
            return true;
        }
    }
    false
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_rollouts_sandbox_is_suspended_while_its_model_takes_long_and_works_again_afterwards() {
    let store = Store::new();
    let suspended = Arc::new(AtomicUsize::new(0));
    let policy = {
        let (folder, suspended) = (store.path().to_owned(), Arc::clone(&suspended));
        move |prompt: &str| {
            let block = |command: &str| format!("```bash\n{command}\n```");
            if !prompt.contains("first command") {
                return block("echo first command; sleep 3600 & echo $! > /root/pid");
            }
            suspended.fetch_add(usize::from(is_suspended(&folder)), Ordering::Relaxed);
            if prompt.contains("still there") {
                return block("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT");
            }
            block("kill -0 $(cat /root/pid) && touch /root/done && echo still there")
        }
    };
    let scripted = Scripted::start(Options::new(by_text(policy))).await.unwrap();
    let task = r#"{"id":"t","instruction":"Work.","private":{"tests":{"script":"test -e /root/done"}}}"#;
    std::fs::write(store.path().join("tasks.jsonl"), task.to_owned() + "\n").unwrap();
    let experiment = format!(
        "name = \"suspend\"\n[tasks]\nsource = \"tasks.jsonl\"\n[groups]\nsize = 1\n\
         [models.policy]\nkind = \"llama-cpp\"\nurl = \"{}\"\n\
         [harness]\nplugin = \"bash-agent\"\n[harness.settings]\nmode = \"fenced\"\nfence = \"bash\"\nmax_turns = 3\nformat_errors_max = 1\n\
         [sandbox]\nsuspend_after = \"100ms\"\n[[rewards]]\nplugin = \"check-reward\"\n",
        scripted.url()
    );
    let file = store.path().join("suspend.toml");
    std::fs::write(&file, experiment).unwrap();
    let played = run(store.path(), &["run", &file.display().to_string()]).await;
    assert!(played.status.success(), "{}", text(&played));
    let runs = json(store.path(), &["list"]).await;
    assert_eq!(
        (runs[0]["scored"].as_u64(), runs[0]["solved"].as_u64()),
        (Some(1), Some(1)),
        "{}",
        text(&played)
    );
    assert_eq!(suspended.load(Ordering::Relaxed), 2, "suspended during the second and the third answer");
    assert!(store.sandboxes().await.is_empty());
}
