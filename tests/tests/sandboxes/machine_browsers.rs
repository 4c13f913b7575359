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
  {{ tool_calls = [{{ name = "click", arguments = {{ ref = "e1" }} }}, {{ name = "wait", arguments = {{ seconds = 5 }} }}] }},
  {{ tool_calls = [{{ name = "click", arguments = {{ ref = "e2" }} }}, {{ name = "wait", arguments = {{ seconds = 5 }} }}] }},
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
    // A busy machine begins a download after its click has been answered.
    let results =
        record.transcript.turns.iter().map(|turn| format!("{:?}", turn.results)).collect::<String>();
    assert!(results.contains("Downloaded \\\"report.csv\\\" (17 bytes)"), "{results}");
    assert_eq!(record.sandboxes.len(), 1, "the browser has none of its own");
    assert!(store.sandboxes().await.is_empty());
}

/// The agent, which puts downloads there, may write where commands of the sandbox may not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_in_place_of_the_folder_of_downloads_is_not_followed() {
    let store = Store::new();
    let file = experiment(store.path(), "", "");
    let tasks = store.path().join("tasks.jsonl");
    let mut task: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&tasks).unwrap()).unwrap();
    task["sandbox"]["setup"] =
        format!("mkdir -p /srv/elsewhere && ln -s /srv/elsewhere /tmp/downloads && {SETUP}").into();
    task["private"]["tests"]["script"] = "test -L /tmp/downloads && ! ls -A /srv/elsewhere | grep .".into();
    std::fs::write(&tasks, format!("{task}\n")).unwrap();
    let played = run(store.path(), &["run", &file]).await;
    assert!(played.status.success(), "{}", text(&played));
    let records = attempts(store.path()).await;
    let [record] = &records[..] else { panic!("{} attempts", records.len()) };
    assert_eq!(record.trajectory.reward, Some(2.0), "{:?} {:?}", record.trajectory.errors, record.scores);
    let results =
        record.transcript.turns.iter().map(|turn| format!("{:?}", turn.results)).collect::<String>();
    assert!(results.contains("symbolic links"), "{results}");
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

/// Serves a page whose button takes 500 MiB, and one that kills the browser.
const SERVER: &str = r#"
import http.server, os, signal
PAGE = b"""<title>Idle</title><button onclick="for (let i = 0; i < 500; i++) (window.all ??= []).push(new Uint8Array(1 << 20).fill(1)); document.title = 'Taken'">take</button>
<a href=/kill>kill</a><a href=/file download=file>file</a>"""
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        for pid in os.listdir('/proc') if self.path == '/kill' else []:
            try:
                if pid.isdigit() and b'espalier-browser' in open(f'/proc/{pid}/cmdline', 'rb').read():
                    os.kill(int(pid), signal.SIGKILL)
            except OSError:
                pass
        self.send_response(503 if self.path == '/busy' else 200)
        self.send_header('Content-Type', 'text/html')
        self.end_headers()
        self.wfile.write(PAGE)
http.server.ThreadingHTTPServer(('127.0.0.1', 8000), Handler).serve_forever()
"#;
const SERVE: &str = "(setsid python3 /srv/server.py >/dev/null 2>&1 &); for i in $(seq 100); do python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8000))' 2>/dev/null && exit 0; sleep 0.1; done; exit 1";

/// One rollout that clicks once; how its attempts ended, with errors and results of tools.
async fn click(
    store: &Store,
    reference: &str,
    path: &str,
    (sandbox, sets): (serde_json::Value, &[&str]),
) -> Vec<(StopReason, Option<f64>, String)> {
    let file = experiment(store.path(), "", "");
    let mut own = serde_json::json!({
        "files": { "/srv/server.py": SERVER }, "setup": SERVE, "processes_max": 2048,
    });
    own.as_object_mut().unwrap().extend(sandbox.as_object().unwrap().clone());
    let task = serde_json::json!({
        "id": "t",
        "instruction": "Click.",
        "sandbox": own,
        "browser": { "start_url": format!("http://127.0.0.1:8000{path}"), "sandbox": "main" },
        "private": { "tests": { "script": "true" } },
    });
    std::fs::write(store.path().join("tasks.jsonl"), format!("{task}\n")).unwrap();
    let answers = format!(
        "models.policy.answers=[{{ tool_calls = [{{ name = 'click', arguments = {{ ref = '{reference}' }} }}] }}, {{ tool_calls = [{{ name = 'done', arguments = {{ response = 'done' }} }}] }}]"
    );
    let title = "rewards=[{ plugin = 'check-reward' }]";
    let mut arguments = vec!["run", &file, "--set", &answers, "--set", title, "--set", "groups.attempts=2"];
    arguments.extend(sets.iter().flat_map(|set| ["--set", set]));
    let played = run(store.path(), &arguments).await;
    assert!(!text(&played).contains("panicked"), "{}", text(&played));
    let records = attempts(store.path()).await;
    let ends = records.iter().map(|record| {
        let told = record.transcript.turns.iter().map(|turn| &turn.results).collect::<Vec<_>>();
        let told = format!("{:?} {told:?}", record.trajectory.errors);
        (record.trajectory.stop_reason, record.trajectory.reward, told)
    });
    let ends = ends.collect();
    assert!(store.sandboxes().await.is_empty(), "sandboxes are left: {ends:?}");
    ends
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_that_is_killed_for_memory_is_tried_again_with_more_of_it() {
    let store = Store::new();
    let sets =
        ["sandbox.memory=\"400MiB\"", "sandbox.escalate={ levels = 1, cpu = 0.25, memory = \"1GiB\" }"];
    let ends = click(&store, "e1", "/", (serde_json::json!({}), &sets)).await;
    let [first, second] = &ends[..] else { panic!("{ends:?}") };
    assert_eq!((first.0, first.1), (StopReason::OutOfMemory, None), "{ends:?}");
    assert!(first.2.contains("it had 400MiB (level 0), the next try has 1424MiB"), "{ends:?}");
    assert_eq!((second.0, second.1), (StopReason::Submitted, Some(1.0)), "{ends:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_that_is_killed_in_the_tasks_sandbox_and_an_error_page_are_infrastructure() {
    for (path, reference, expect) in
        [("/", "e2", "browser"), ("/busy", "e1", "http://127.0.0.1:8000/busy was answered with status 503")]
    {
        let store = Store::new();
        let ends = click(&store, reference, path, (serde_json::json!({}), &[])).await;
        assert_eq!(ends.len(), 2, "{ends:?}");
        for (reason, reward, told) in &ends {
            assert_eq!((*reason, *reward), (StopReason::Infrastructure, None), "{ends:?}");
            assert!(told.contains(expect), "{expect}: {told}");
        }
    }
}
