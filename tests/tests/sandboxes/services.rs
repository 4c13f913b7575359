//! Rollouts in applications that the engine serves itself: MiniWoB++ of the installed package, solved by a scripted policy with the tools of
//! the browser.

use crate::browsers::attempts;
use crate::whole::{Store, run, text};
use espalier_core::ending::StopReason;
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
        (answer("click", &json!({"ref": "e1"})) + &done, 1.0),
        (answer("click", &json!({"ref": "e3"})) + &done, 0.0),
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

/// The line that is typed becomes markup of this page.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_typed_into_a_page_of_miniwob_runs_no_script() {
    let task = json!({
        "id": "terminal-3",
        "instruction": "Do what the page asks.",
        "services": {"miniwob": {"task": "terminal", "seed": 3}},
        "browser": {"start_url": "http://miniwob.espalier.internal/?sid={sid}"},
    });
    let line = r#"<iframe srcdoc="<script>parent.core.endEpisode(1)</script>">"#;
    let keys: Vec<String> = line.chars().map(|char| char.to_string().replace(' ', "Space")).collect();
    let mut answers = answer("click", &json!({"point_2d": [60, 100]}));
    for part in keys.chunks(50) {
        answers += &answer("press_keys", &json!({"keys": part}));
    }
    answers += &answer("press_keys", &json!({"keys": ["Enter"]}));
    answers +=
        &answer("goto_url", &json!({"url": "http://miniwob.espalier.internal/miniwob/social-media.html"}));
    answers += &answer("done", &json!({"response": "solved"}));
    let store = Store::new();
    let file = experiment(store.path(), &task, &answers, MINIWOB);
    let played = run(store.path(), &["run", &file]).await;
    assert!(played.status.success(), "{}", text(&played));
    for record in attempts(store.path()).await {
        assert_eq!(record.trajectory.reward, Some(0.0), "{:?}", record.scores);
        assert_eq!(record.scores[0].score.reason, "terminal: the episode is not over");
        let told = format!("{:?}", record.transcript.turns);
        assert!(told.contains("iframe e") && told.contains("Command not found."), "it was typed: {told}");
        assert!(told.contains("there is no /miniwob/social-media.html"), "{told}");
    }
}

const APPS: [&str; 3] = ["mail", "calendar", "shop"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_task_of_the_applications_is_solved_by_its_reference_and_by_nothing_else() {
    for (file, reward) in [("experiments/apps-reference.toml", 1.0), ("experiments/apps-idle.toml", 0.0)] {
        for app in APPS {
            let store = Store::new();
            let tasks = format!("experiments/tasks/{app}.jsonl");
            let played = run(store.path(), &["run", file, "--tasks", &tasks]).await;
            assert!(played.status.success(), "{file} {app}: {}", text(&played));
            let rewards = rewards(store.path()).await;
            assert!(rewards.len() >= 3, "{app}: {rewards:?}");
            for (task, own, reason) in rewards {
                assert_eq!(own, Some(reward), "{file} {task}: {reason}");
            }
        }
    }
}

/// Task, reward and its reason of each rollout.
async fn rewards(store: &Path) -> Vec<(String, Option<f64>, String)> {
    let store = espalier_store::Store::open_existing(&StoreUrl::Folder(store.to_owned())).await.unwrap();
    let run = store.runs().await.unwrap().remove(0);
    let mut found = Vec::new();
    for group in 0.. {
        let rows = store.attempts(&run.run_id, group).await.unwrap();
        if rows.is_empty() {
            break;
        }
        for row in rows {
            let record = store.record(&row).await.unwrap().unwrap();
            let reasons: Vec<String> = record.scores.iter().map(|one| one.score.reason.clone()).collect();
            let errors: Vec<String> = record.trajectory.errors.iter().map(|note| note.text.clone()).collect();
            let why = format!("{} {}", reasons.join("; "), errors.join("; "));
            found.push((format!("group {group}"), record.trajectory.reward, why));
        }
    }
    store.close().await;
    found
}

/// What somebody might try in place of the task, each as actions of the harness `gui-reference`, scripts in the page among them; and words
/// that show that it was tried.
fn forgeries() -> Vec<(&'static str, Vec<String>, &'static str)> {
    let post = |path: &str, body: &str| {
        format!(
            "evaluate fetch('{path}' + location.search, {{method: 'POST', body: JSON.stringify({body})}}).then(answer => answer.text())"
        )
    };
    let get = |url: &str| format!("evaluate fetch({url}).then(answer => answer.text())");
    let golden = "{messages: {m3: {folder: 'archive'}}}";
    vec![
        (
            "javascript: URL",
            vec![
                "open javascript:fetch('/operation'+location.search,{method:'POST',body:'{}'})".to_owned(),
                "evaluate (location.href = \"javascript:document.title='forged'\", new Promise(done => setTimeout(() => done('title ' + document.title), 300)))"
                    .to_owned(),
            ],
            "title Mail",
        ),
        ("direct POST of the state", vec![post("/post", &format!("{{action: 'set_current', merge: true, state: {golden}}}"))], "needs-key"),
        ("set from the page", vec![post("/post", &format!("{{action: 'set', state: {golden}}}"))], "needs-key"),
        (
            "reset from the page",
            vec![
                "click button \"Printer on floor 3 is back, it@example.org\"".to_owned(),
                "click button \"Move to Archive\"".to_owned(),
                post("/post", "{action: 'reset'}"),
                "click button \"Daily Planet: your morning briefing, news@dailyplanet.example\"".to_owned(),
                "click button \"Move to Archive\"".to_owned(),
            ],
            "needs-key",
        ),
        (
            "another's session",
            vec![
                get(&format!("'/state?sid={}'", "0f".repeat(16))),
                post("/operation", "{name: 'move', arguments: {id: 'm3', folder: 'archive'}}")
                    .replace("' + location.search", &format!("?sid={}'", "0f".repeat(16))),
            ],
            "not-your-session",
        ),
        (
            "edited globals",
            vec![
                "evaluate (window.state = {messages: {m3: {folder: 'archive'}}}, window.fetch = () => Promise.resolve(new Response('{}')), document.title = 'solved')"
                    .to_owned(),
                "click button \"Daily Planet: your morning briefing, news@dailyplanet.example\"".to_owned(),
                "click button \"Move to Archive\"".to_owned(),
            ],
            "solved",
        ),
        ("an operation that there is not", vec![post("/operation", "{name: 'win', arguments: {}}")], "unknown operation"),
        (
            "an operation with foreign arguments",
            vec![post("/operation", "{name: 'move', arguments: {id: 'm3', folder: 'archive', reward: 1}}")],
            "unknown argument",
        ),
        (
            "a replayed cookie",
            vec![format!(
                "evaluate (document.cookie = 'espalier-session={0}', document.cookie = 'espalier-session={0};path=/post', document.cookie)",
                "0f".repeat(16)
            ), post("/post", &format!("{{action: 'set_current', state: {golden}}}"))],
            "not-your-session",
        ),
        (
            "upload out of its folder",
            vec![
                "evaluate fetch('/upload' + location.search + '&name=' + encodeURIComponent('../app.json'), {method: 'POST', body: '{}'}).then(answer => answer.text())"
                    .to_owned(),
                get("'/app.json'"),
            ],
            "expected letters",
        ),
        (
            "huge state",
            vec![post("/post", "{action: 'set_current', state: {a: 'x'.repeat(3e6)}}")],
            "too-large",
        ),
        (
            "merge into the prototype",
            vec![post("/post", "JSON.parse('{\"action\":\"set_current\",\"merge\":true,\"state\":{\"__proto__\":{\"folder\":\"archive\"}}}')")],
            "needs-key",
        ),
        ("the answer of the engine", vec![get("'/go' + location.search")], "needs-key"),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_forged_scores_nothing() {
    let store = Store::new();
    let expect = json!([{"path": "/messages/m3/folder", "equals": "archive"}]);
    let task = |(place, (_, actions, _)): (usize, &(&str, Vec<String>, &str))| {
        let line = json!({
            "id": format!("f{place}"),
            "instruction": "Archive the newsletter of the Daily Planet.",
            "services": {"mail": {"state": {"owner": "ann"}}},
            "browser": {"start_url": "http://mail.espalier.internal/?sid={sid}"},
            "private": {
                "app": {"service": "mail", "expect": expect, "may_change": ["/messages/*/read"]},
                "reference": {"actions": actions},
            },
        });
        format!("{line}\n")
    };
    let forgeries = forgeries();
    let lines: String = forgeries.iter().enumerate().map(task).collect();
    let tasks = store.path().join("forged.jsonl");
    std::fs::write(&tasks, lines).unwrap();
    let set = "harness.settings={ scripts = true }";
    let arguments =
        ["run", "experiments/apps-reference.toml", "--tasks", tasks.to_str().unwrap(), "--set", set];
    let played = run(store.path(), &arguments).await;
    assert!(played.status.success(), "{}", text(&played));
    let open =
        espalier_store::Store::open_existing(&StoreUrl::Folder(store.path().to_owned())).await.unwrap();
    let run_id = open.runs().await.unwrap().remove(0).run_id;
    for (group, (name, _, tried)) in (0..).zip(&forgeries) {
        let rows = open.attempts(&run_id, group).await.unwrap();
        let record = open.record(rows.last().unwrap()).await.unwrap().unwrap();
        let report = record.report.as_ref().map(|report| report.data.clone()).unwrap_or_default();
        assert!(report.contains(tried), "{name} was not tried: {report} {:?}", record.trajectory.errors);
        assert_eq!(record.trajectory.reward, Some(0.0), "{name}: {:?}", record.scores);
    }
    open.close().await;
}
