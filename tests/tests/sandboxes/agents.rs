//! Agents that are not plugins: mini-swe-agent of PyPI, in sandboxes, against a scripted model behind the one port that they
//! may reach.

use crate::whole::{Store, json, run, text};
use espalier_scripted::{Options, Scripted, by_text};
use serde_json::Value;
use std::path::Path;

/// What the model answers: by the task's words, and by what it has seen so far.
fn answer(prompt: &str) -> String {
    let block = |command: &str| format!("THOUGHT: so be it.\n\n```mswea_bash_command\n{command}\n```");
    let submit = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat given";
    let seen = prompt.matches("<returncode>").count();
    if prompt.contains("Never stop") {
        return block("true");
    }
    if prompt.contains("Talk") {
        return "I would rather talk.".to_owned();
    }
    if prompt.contains("Wait") {
        return block("sleep 25");
    }
    match (prompt.contains("Mend it"), seen) {
        (true, 0) => block("sed -i s/broken/mended/ given; env | grep -c ^http_proxy="),
        _ => block(submit),
    }
}

/// Puts packages into a sandbox, as `/opt/agent`, and keeps that as an image.
pub(crate) async fn image(store: &Path, agent: &Path) -> String {
    assert!(agent.is_dir(), "no {}: run `cargo xtask setup tests`", agent.display());
    let said = |output: std::process::Output| {
        assert!(output.status.success(), "{}", text(&output));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let id = said(run(store, &["sandbox", "create"]).await);
    let packages = format!("{id}:/opt/agent");
    said(run(store, &["sandbox", "cp", &agent.display().to_string(), &packages]).await);
    let kept = said(run(store, &["sandbox", "checkpoint", &id]).await);
    said(run(store, &["sandbox", "delete", &id]).await);
    format!("checkpoint:{kept}")
}

fn task(id: &str, instruction: &str) -> String {
    let task = serde_json::json!({
        "id": id,
        "instruction": instruction,
        "sandbox": { "workdir": "/root/work", "files": { "/root/work/given": "broken\n" } },
        "private": { "tests": { "script": "grep -q mended given", "in": "fresh" } },
    });
    task.to_string() + "\n"
}

#[tokio::test]
async fn an_agent_of_pypi_plays_in_its_sandbox_and_its_end_has_a_cause() {
    let scripted = Scripted::start(Options::new(by_text(answer))).await.unwrap();
    let port = scripted.url().rsplit_once(':').unwrap().1.to_owned();
    let store = Store::new();
    let image = image(store.path(), &xtask::setup::command_line_agent()).await;
    let tasks = [
        task("mend", "Mend it."),
        task("idle", "Say that you are done."),
        task("endless", "Never stop."),
        task("talk", "Talk to me."),
        task("wait", "Wait."),
    ];
    std::fs::write(store.path().join("tasks.jsonl"), tasks.concat()).unwrap();
    let sets = [
        format!("tasks.source={}", store.path().join("tasks.jsonl").display()),
        "groups.concurrent_rollouts=2".to_owned(),
        "groups.score_time_exceeded=true".to_owned(),
        "harness.settings.command.6=agent.step_limit=4".to_owned(),
        "harness.settings.timeout_s=20".to_owned(),
        format!("harness.settings.env.MODEL_URL=\"{}\"", scripted.url()),
        format!("sandbox.image={image}"),
        format!("sandbox.network={{ allow = [\"127.0.0.1:{port}\"] }}"),
    ];
    let mut arguments = vec!["run", "experiments/command-agent.toml"];
    sets.iter().for_each(|set| arguments.extend(["--set", set]));
    let played = run(store.path(), &arguments).await;
    assert!(played.status.success(), "{}", text(&played));
    let shown = json(store.path(), &["show", "command-agent", "--all"]).await;
    let attempts = shown["group_list"].as_array().unwrap();
    let of = |id: &str| -> &Value {
        let group = attempts.iter().find(|group| group["task_id"] == id).unwrap();
        &group["attempts"][0]
    };
    let told = |id: &str| (of(id)["stop_reason"].as_str().unwrap(), of(id)["reward"].as_f64());
    assert_eq!(told("mend"), ("submitted", Some(1.0)), "{shown:#}");
    assert_eq!(told("idle"), ("submitted", Some(0.0)));
    assert_eq!(told("endless"), ("limit-turns", Some(0.0)));
    assert_eq!(told("talk"), ("limit-format", Some(0.0)));
    assert_eq!(told("wait"), ("limit-wall", Some(0.0)));
    // What it left is with the rollout: its answer, its own trajectory, how it ended.
    let rollout = of("mend")["traj_id"].as_str().unwrap();
    let record = json(store.path(), &["show", rollout]).await;
    let report = &record["report"];
    assert_eq!(report["answer"], "mended\n", "{record:#}");
    let data: Value = serde_json::from_str(report["data"].as_str().unwrap()).unwrap();
    assert_eq!((&data["ended"], &data["exit_status"]), (&"exit code 0".into(), &"Submitted".into()));
    assert!(data["trajectory"].is_string(), "{data}");
    let asked = scripted.recorded();
    assert!(
        asked.len() >= 10 && asked.iter().all(|one| one.route == "/v1/chat/completions"),
        "{}",
        asked.len()
    );
    assert!(store.sandboxes().await.is_empty());
}
