//! Browsers that run in a sandbox of their task, beside its servers and files.

use crate::browsers::attempts;
use crate::whole::{Store, run, text};
use espalier_core::ending::StopReason;
use std::path::Path;

/// A page with a download, served in the sandbox itself.
const SETUP: &str = "mkdir -p /srv/www && cd /srv/www \
    && printf '<title>Reports</title><a href=report.csv download>report</a><a href=report.csv download=report.csv>again</a>' > index.html \
    && printf 'month,total\\n5,42\\n' > report.csv \
    && (setsid python3 -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 &) \
    && for i in $(seq 100); do python3 -c 'import urllib.request as u; u.urlopen(\"http://127.0.0.1:8000/\")' 2>/dev/null && exit 0; sleep 0.1; done; exit 1";

fn experiment(store: &Path, browser: &str, more: &str) -> String {
    let task = serde_json::json!({
        "id": "t",
        "instruction": "Download the report.",
        "sandbox": { "setup": SETUP, "processes_max": 2048 },
        "browser": { "start_url": "http://127.0.0.1:8000/", "sandbox": "main" },
        "private": { "tests": { "script": "cmp /tmp/downloads/report.csv /srv/www/report.csv && ls '/tmp/downloads/report (1).csv'" } },
    });
    std::fs::write(store.join("tasks.jsonl"), format!("{task}\n")).unwrap();
    let file = store.join("machine.toml");
    let text = format!(
        r#"name = "machine"
[tasks]
source = "tasks.jsonl"
[groups]
size = 1
attempts = 1
replacements = 0
retry_delay = "10ms"
[sandbox]
network = "loopback"
memory = "1GiB"
user_namespaces = true
[browser]
{browser}
[models.policy]
kind = "scripted"
answers = [
  {{ tool_calls = [{{ name = "click", arguments = {{ ref = "e1" }} }}] }},
  {{ tool_calls = [{{ name = "click", arguments = {{ ref = "e2" }} }}] }},
  {{ tool_calls = [{{ name = "done", arguments = {{ response = "downloaded" }} }}] }},
]
[harness]
plugin = "gui-agent"
settings = {{ description_tokens = 400 }}
[[rewards]]
plugin = "check-reward"
[[rewards]]
plugin = "page-state"
settings = {{ checks = [{{ expression = "document.title", equals = "Reports" }}] }}
{more}"#
    );
    std::fs::write(&file, text).unwrap();
    file.display().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_in_the_tasks_sandbox_reaches_its_server_and_leaves_its_downloads_there() {
    let store = Store::new();
    let played = run(store.path(), &["run", &experiment(store.path(), "", "")]).await;
    assert!(played.status.success(), "{}", text(&played));
    let records = attempts(store.path()).await;
    let [record] = &records[..] else { panic!("{} attempts", records.len()) };
    let shown = format!("{:?}", record.trajectory.errors);
    assert_eq!(record.trajectory.stop_reason, StopReason::Submitted, "{shown}");
    assert_eq!(record.trajectory.reward, Some(2.0), "{shown} {:?}", record.scores);
    let results = format!("{:?}", record.transcript.turns[0].results);
    assert!(results.contains("Downloaded \\\"report.csv\\\" (17 bytes)"), "{results}");
    assert_eq!(record.sandboxes.len(), 1, "the browser has none of its own");
    assert!(store.sandboxes().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_chromium_cannot_start_in_is_told_with_its_task() {
    let store = Store::new();
    let file = experiment(store.path(), "", "");
    for (from, to, expect) in [
        (
            "\"sandbox\":\"main\"",
            "\"sandbox\":\"other\"",
            "browser.sandbox \"other\": invalid sandbox \"other\"",
        ),
        ("\"start_url\"", "\"network\":\"none\",\"start_url\"", "expected no `browser.network` beside it"),
        ("127.0.0.1:8000/\"", "shop.espalier.internal/\"", "the task has no service \"shop\""),
    ] {
        let tasks = store.path().join("tasks.jsonl");
        let text_before = std::fs::read_to_string(&tasks).unwrap();
        assert!(text_before.contains(from), "{from} in {text_before}");
        std::fs::write(&tasks, text_before.replacen(from, to, 1)).unwrap();
        let refused = run(store.path(), &["run", &file]).await;
        assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
        assert!(text(&refused).contains(expect), "{expect}: {}", text(&refused));
        std::fs::write(&tasks, text_before).unwrap();
    }
    let refused = run(store.path(), &["run", &file, "--set", "sandbox.user_namespaces=false"]).await;
    assert!(text(&refused).contains("needs `user_namespaces = true` in `[sandbox]`"), "{}", text(&refused));
    // One that is not there is found when it is opened, and nothing is scored.
    let sets = ["--set", "browser.executable=\"no-such-browser\"", "--set", "browser.sandbox=\"main\""];
    let played = run(store.path(), &[&["run", &file][..], &sets].concat()).await;
    assert!(!text(&played).contains("panicked"), "{}", text(&played));
    let records = attempts(store.path()).await;
    let [record] = &records[..] else { panic!("{} attempts: {}", records.len(), text(&played)) };
    assert_eq!((record.trajectory.stop_reason, record.trajectory.reward), (StopReason::Infrastructure, None));
    let errors = format!("{:?}", record.trajectory.errors);
    assert!(errors.contains("none of no-such-browser"), "{errors}");
}
