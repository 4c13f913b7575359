//! Tasks that a trainer posts while the run goes on: each played once whatever dies, no more than may wait, at the server that it names,
//! and evaluation that nobody trains on.

use crate::hosted::{RUNS, Served, allowed, model};
use crate::setting::{BOUND, Setting};
use espalier_scripted::Scripted;
use espalier_tests::place::espalier;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt;

/// An experiment without tasks, over these servers; `trainer` is TOML behind `[tasks.trainer]`.
fn experiment(name: &str, servers: &[&Scripted], trainer: &str, more: &str) -> String {
    let urls: Vec<&str> = servers.iter().map(|server| server.url()).collect();
    format!(
        "name = \"{name}\"\nseed = 7\n[tasks.trainer]\n{trainer}\n[groups]\nsize = 2\nconcurrent_rollouts = 6\n\
         retry_delay = \"10ms\"\n[models.policy]\nkind = \"llama-cpp\"\nurls = {urls:?}\nsampling = {{ max_tokens = 64 }}\n\
         [harness]\nplugin = \"fault-harness\"\nsettings = {{ fault = \"complete\", times = 3 }}\n\
         [environment]\nplugin = \"fault-environment\"\n[[rewards]]\nplugin = \"environment-reward\"\n{more}"
    )
}

fn task(name: &str, more: &Value) -> Value {
    let mut body = json!({ "client_id": name, "task": { "id": format!("t-{name}"), "instruction": "go" } });
    body.as_object_mut()
        .unwrap()
        .extend(more.as_object().into_iter().flatten().map(|(k, v)| (k.clone(), v.clone())));
    body
}

/// The groups of a run over HTTP.
struct Trainer<'a> {
    served: &'a Served,
    key: &'a str,
    run: &'a str,
}

impl Trainer<'_> {
    async fn post(&self, name: &str, more: Value) -> (u16, Value) {
        let path = format!("/v1/runs/{}/tasks", self.run);
        self.served.ask(self.key, "POST", &path, &task(name, &more)).await
    }

    async fn posted(&self, name: &str, more: Value) -> String {
        let (status, posted) = self.post(name, more).await;
        assert_eq!(status, 201, "{posted}");
        posted["group_id"].as_str().unwrap().to_owned()
    }

    async fn group(&self, group: &str, wait_ms: u64) -> (u16, Value) {
        let path = format!("/v1/runs/{}/groups/{group}?form=json&wait_ms={wait_ms}", self.run);
        self.served.ask(self.key, "GET", &path, &Value::Null).await
    }

    /// Waits for the rows of a group.
    async fn rows(&self, group: &str) -> Value {
        loop {
            let (status, answer) = self.group(group, 60_000).await;
            if status != 202 {
                assert_eq!(status, 200, "{answer}");
                return answer;
            }
        }
    }

    async fn close(&self) -> (u16, Value) {
        self.served.ask(self.key, "POST", &format!("/v1/runs/{}/tasks:close", self.run), &Value::Null).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_played_once_whatever_dies_between_its_post_and_its_group() {
    let server = model(20).await;
    let setting = Setting::empty();
    let mut served = Served::start(&setting.store_folder(), &[&allowed(&server)]).await;
    let key = served.key(RUNS).await;
    let run = served.begin(&key, &json!({ "experiment": experiment("driven", &[&server], "", "") })).await;
    let run = run["run_id"].as_str().unwrap().to_owned();
    let mut groups = Vec::new();
    for round in 0..3 {
        let trainer = Trainer { served: &served, key: &key, run: &run };
        for (n, more) in
            [json!({ "group_size": 3 }), json!({}), json!({ "purpose": "eval" })].iter().enumerate()
        {
            let name = format!("r{round}-{n}");
            let group = trainer.posted(&name, more.clone()).await;
            let (status, again) = trainer.post(&name, more.clone()).await;
            assert_eq!(
                (status, again["group_id"].as_str()),
                (200, Some(&*group)),
                "the same request is the same task"
            );
            groups.push(group);
        }
        let (status, problem) = trainer.post(&format!("r{round}-0"), json!({})).await;
        assert_eq!((status, &problem["code"]), (409, &json!("id-reused")), "{problem}");
        served.kill().await;
        served = Served::start(&setting.store_folder(), &[&allowed(&server)]).await;
    }
    let trainer = Trainer { served: &served, key: &key, run: &run };
    let (mut sizes, mut trajectories) = (Vec::new(), BTreeSet::new());
    for group in &groups {
        let rows = trainer.rows(group).await;
        assert_eq!((&rows["group_id"], &rows["status"]), (&json!(group), &json!("ready")));
        let all = rows["trajectories"].as_array().unwrap();
        assert_eq!(rows["n_requested"], json!(all.len()));
        sizes.push((all.len(), rows["purpose"].as_str().map(str::to_owned)));
        trajectories.extend(all.iter().map(|one| one["traj_id"].to_string()));
    }
    let of_round = || [(3, None), (2, None), (2, Some("eval".to_owned()))];
    assert_eq!(sizes, (0..3).flat_map(|_| of_round()).collect::<Vec<(usize, Option<String>)>>());
    assert_eq!(trajectories.len(), 21);
    // Evaluation is leased by nobody, and no trainer is waited for because of it.
    let lease = json!({ "model": "policy", "max": 64 });
    let (status, leased) = served.ask(&key, "POST", &format!("/v1/runs/{run}/groups:lease"), &lease).await;
    assert_eq!(status, 200, "{leased}");
    let leased: BTreeSet<&str> =
        leased["groups"].as_array().unwrap().iter().map(|one| one["group_id"].as_str().unwrap()).collect();
    let trains = groups.iter().enumerate().filter(|(n, _)| n % 3 != 2).map(|(_, group)| group.as_str());
    assert_eq!(leased, trains.collect());
    // The run is open until it is told that no more come.
    let begun = Instant::now();
    while served.until(&key, &run, &["running"]).await["counts"]["groups"] != json!({ "ready": 9 }) {
        assert!(begun.elapsed() < BOUND, "its counters follow");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(trainer.close().await, (200, json!({ "tasks": 9 })));
    let view = served.until(&key, &run, &["finished"]).await;
    assert_eq!(view["counts"]["groups"], json!({ "ready": 9 }));
    let (status, problem) = trainer.post("late", json!({})).await;
    assert_eq!((status, &problem["code"]), (409, &json!("conflict")), "{problem}");
    assert_eq!(trainer.post("r0-1", json!({})).await.0, 200, "it has that one");
    let shown = espalier(&setting.store_folder()).args(["show", &run]).output().await.unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert_eq!(shown.matches("ready, eval").count(), 3, "{shown}");
    for (purpose, count) in [("train", 6), ("eval", 3)] {
        let mut command = espalier(&setting.store_folder());
        command.args(["export", &run, "--format", "group-jsonl", "--out", "-", "--purpose", purpose]);
        let exported = String::from_utf8(command.output().await.unwrap().stdout).unwrap();
        assert_eq!(exported.lines().count(), count, "{purpose}");
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_pushes_back_and_what_cannot_be_played_says_why() {
    let (first, second) = (model(0).await, model(0).await);
    let setting = Setting::empty();
    let allow = [allowed(&first), allowed(&second)];
    let served = Served::start(&setting.store_folder(), &allow.each_ref().map(String::as_str)).await;
    let key = served.key(RUNS).await;
    let trainer = format!("waiting_max = 2\nendpoints = [{:?}]", second.url());
    let text = experiment("bounded", &[&first, &second], &trainer, "");
    let run = served.begin(&key, &json!({ "experiment": text })).await;
    let run = run["run_id"].as_str().unwrap();
    let trainer = Trainer { served: &served, key: &key, run };
    let (status, _) = served.ask(&key, "POST", &format!("/v1/runs/{run}/pause"), &Value::Null).await;
    assert_eq!(status, 200);
    served.until(&key, run, &["paused"]).await;
    let at_second = json!({ "endpoint": format!("{}/v1", second.url()), "group_size": 4 });
    let one = trainer.posted("one", at_second.clone()).await;
    let (status, state) = trainer.group(&one, 0).await;
    assert_eq!((status, &state["state"], &state["size"]), (202, &json!("waiting"), &json!(4)), "{state}");
    // The experiment has no sandboxes: whether a task can be played is the engine's to say. What it rejects waits no longer.
    let with_sandbox = json!({ "task": { "id": "s", "instruction": "go", "sandbox": { "image": "host" } } });
    let rejected = trainer.posted("sandbox", with_sandbox).await;
    let (status, problem) = trainer.group(&rejected, 60_000).await;
    let why = problem["detail"].as_str().unwrap();
    assert!(
        status == 422 && why.contains("needs a sandbox, but the experiment has no `[sandbox]`"),
        "{problem}"
    );
    trainer.posted("two", at_second.clone()).await;
    let mut stream = served
        .open(
            "POST",
            &format!("/v1/runs/{run}/tasks"),
            &format!("x-api-key: {key}\r\ncontent-type: application/json\r\n"),
            task("three", &json!({})).to_string().as_bytes(),
        )
        .await;
    let mut answer = String::new();
    tokio::time::timeout(BOUND, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 429") && answer.to_lowercase().contains("retry-after: 1"),
        "{answer}"
    );
    assert_eq!(trainer.post("one", at_second.clone()).await.0, 200, "a repeat takes no place");
    served.ask(&key, "POST", &format!("/v1/runs/{run}/resume"), &Value::Null).await;
    assert_eq!(trainer.rows(&one).await["trajectories"].as_array().unwrap().len(), 4);
    let sampled =
        |server: &Scripted| server.recorded().iter().filter(|one| one.route.contains("completion")).count();
    assert_eq!(sampled(&first), 0, "they are played where they asked to be");
    assert!(sampled(&second) >= 12);
    for (more, words) in [
        (json!({ "endpoint": first.url() }), "is not allowed in this run"),
        (json!({ "group_size": 0 }), "group_size"),
        (json!({ "task": { "id": "t" } }), "instruction"),
        (json!({ "purpose": "fun" }), "purpose"),
    ] {
        let (status, problem) = trainer.post("bad", more).await;
        assert!((400..=422).contains(&status) && problem["detail"].to_string().contains(words), "{problem}");
    }
    trainer.posted("last", json!({})).await;
    assert_eq!(trainer.close().await.0, 200);
    let view = served.until(&key, run, &["finished"]).await;
    assert_eq!(view["counts"]["groups"], json!({ "ready": 3 }), "the place of the rejected one stays empty");
    // A run with a file takes no tasks.
    let text = experiment("filed", &[&first, &second], "", "").replace("[tasks.trainer]", "[tasks]");
    let tasks = crate::setting::plain_tasks(1);
    let filed = served.begin(&key, &json!({ "experiment": text, "tasks": tasks })).await;
    let trainer = Trainer { run: filed["run_id"].as_str().unwrap(), ..trainer };
    let (status, problem) = trainer.post("one", json!({})).await;
    assert!(status == 409 && problem["hint"].as_str().unwrap().contains("[tasks.trainer]"), "{problem}");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_of_the_command_line_takes_tasks_from_any_service_over_its_store() {
    let server = model(0).await;
    let setting = Setting::empty();
    std::fs::write(setting.file(), experiment("plain", &[&server], "", "")).unwrap();
    let begin = || {
        let mut command = espalier(&setting.store_folder());
        command.arg("run").arg(setting.file());
        command
    };
    let mut engine = begin().spawn().unwrap();
    let served = Served::start(&setting.store_folder(), &[]).await;
    let key = served.key(RUNS).await;
    served.until(&key, "plain", &["running"]).await;
    let trainer = Trainer { served: &served, key: &key, run: "plain" };
    let mut groups = Vec::new();
    // The engine opens its queue when it is there.
    let begun = Instant::now();
    while groups.is_empty() {
        match trainer.post("one", json!({})).await {
            (201, posted) => groups.push(posted["group_id"].as_str().unwrap().to_owned()),
            (status, problem) => assert!(status == 409 && begun.elapsed() < BOUND, "{problem}"),
        }
    }
    trainer.rows(&groups[0]).await;
    engine.kill().await.unwrap();
    // Nobody works on it: the task waits for the next engine.
    groups.push(trainer.posted("two", json!({})).await);
    let engine = begin().spawn().unwrap();
    trainer.rows(&groups[1]).await;
    assert_eq!(trainer.close().await, (200, json!({ "tasks": 2 })));
    let ended = tokio::time::timeout(BOUND, engine.wait_with_output()).await.unwrap().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    // It is done, and says so without a model.
    drop(server);
    let again = tokio::time::timeout(BOUND, begin().output()).await.unwrap().unwrap();
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    served.stop().await;
}
