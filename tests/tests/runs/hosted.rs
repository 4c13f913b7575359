//! Runs over HTTP: the same as here, each for its own key, through restarts, told something on the way, watched by many.

use crate::setting::{BOUND, Setting, plain_tasks};
use espalier_scripted::{Options, Scripted, by_text};
use espalier_store::Store;
use espalier_tests::place::{espalier, plugin_folder, repository};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::process::{Child, Command};

/// `espalier serve` over a store. Killed when dropped.
pub(crate) struct Served {
    child: Child,
    address: String,
    store: std::path::PathBuf,
    /// What the service says, kept flowing.
    _said: tokio::task::JoinHandle<()>,
}

impl Served {
    pub(crate) async fn start(store: &Path, more: &[&str]) -> Served {
        let mut command = espalier(store);
        command.args(["serve", "--listen", "127.0.0.1:0", "--drain", "5s"]).args(more);
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = tokio::time::timeout(BOUND, lines.next_line()).await.expect("it begins").unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
        let said = tokio::spawn(async move {
            while let Ok(Some(line)) = errors.next_line().await {
                println!("serve: {line}");
            }
        });
        let first = first.expect("the service listens");
        let address = first.strip_prefix("listening on http://").expect("an address").to_owned();
        Served { child, address, store: store.to_owned(), _said: said }
    }

    pub(crate) async fn key(&self, more: &[&str]) -> String {
        let mut command = espalier(&self.store);
        command.args(["key", "create", "test"]).args(more);
        let output = command.output().await.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    pub(crate) async fn open(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body).await.unwrap();
        stream
    }

    /// One request on a connection of its own.
    pub(crate) async fn ask(&self, key: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let headers = format!("x-api-key: {key}\r\ncontent-type: application/json\r\n");
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut stream = self.open(method, path, &headers, body.as_bytes()).await;
        let mut answer = Vec::new();
        tokio::time::timeout(BOUND, stream.read_to_end(&mut answer)).await.expect("an answer").unwrap();
        let text = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap_or(Value::Null))
    }

    pub(crate) async fn begin(&self, key: &str, body: &Value) -> Value {
        let (status, run) = self.ask(key, "POST", "/v1/runs", body).await;
        assert!(status == 201 || status == 200, "{run}");
        run
    }

    /// Waits until the run is in one of these states.
    pub(crate) async fn until(&self, key: &str, run: &str, states: &[&str]) -> Value {
        let begun = Instant::now();
        loop {
            let (status, view) = self.ask(key, "GET", &format!("/v1/runs/{run}"), &Value::Null).await;
            if status == 200 && states.contains(&view["state"].as_str().unwrap()) {
                return view;
            }
            assert!(begun.elapsed() < BOUND, "{view}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn stop(mut self) {
        let pid = rustix::process::Pid::from_raw(self.child.id().unwrap() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        tokio::time::timeout(BOUND, self.child.wait()).await.expect("the service ends").unwrap();
    }

    pub(crate) async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }
}

/// One client of a run's events.
struct Events {
    lines: Lines<BufReader<OwnedReadHalf>>,
    _write: tokio::net::tcp::OwnedWriteHalf,
    last: u64,
}

impl Events {
    async fn open(served: &Served, key: &str, run: &str, after: u64) -> Events {
        let headers = format!("x-api-key: {key}\r\nlast-event-id: {after}\r\n");
        let stream =
            served.open("GET", &format!("/v1/runs/{run}/events?counters=false"), &headers, b"").await;
        let (read, write) = stream.into_split();
        Events { lines: BufReader::new(read).lines(), _write: write, last: after }
    }

    /// The next event: its kind and what it says; `None`: the stream has ended.
    async fn next(&mut self) -> Option<(String, Value)> {
        let mut kind = None;
        loop {
            let line = tokio::time::timeout(BOUND, self.lines.next_line()).await.expect("an event");
            let Ok(Some(line)) = line else { return None };
            if let Some(id) = line.strip_prefix("id: ") {
                let id: u64 = id.parse().unwrap();
                assert_eq!(id, self.last + 1, "an event was lost, or came twice");
                self.last = id;
            } else if let Some(event) = line.strip_prefix("event: ") {
                kind = Some(event.to_owned());
            } else if let (Some(data), Some(kind)) = (line.strip_prefix("data: "), kind.take()) {
                let data: Value = serde_json::from_str(data).unwrap();
                return Some((kind, data["data"].clone()));
            }
        }
    }

    async fn rest(&mut self) -> Vec<(String, Value)> {
        let mut all = Vec::new();
        while let Some(event) = self.next().await {
            all.push(event);
        }
        all
    }
}

pub(crate) async fn model(latency_ms: u64) -> Scripted {
    let latency = Duration::from_millis(latency_ms);
    Scripted::start(Options { latency, ..Options::new(by_text(|_| "well".to_owned())) }).await.unwrap()
}

/// The flag that allows a model's server.
pub(crate) fn allowed(server: &Scripted) -> String {
    format!("--model-server={}", server.url().trim_start_matches("http://"))
}

fn experiment(name: &str, server: &Scripted, harness: &str) -> String {
    format!(
        "name = \"{name}\"\nseed = 7\n[tasks]\nsource = \"tasks.jsonl\"\n[groups]\nsize = 2\nconcurrent_rollouts = 6\n\
         retry_delay = \"10ms\"\n[models.policy]\nkind = \"llama-cpp\"\nurl = \"{}\"\nsampling = {{ max_tokens = 64 }}\n\
         [harness]\nplugin = \"{harness}\"\nsettings = {{ fault = \"complete\", times = 3 }}\n\
         [environment]\nplugin = \"fault-environment\"\n[[rewards]]\nplugin = \"environment-reward\"\n",
        server.url()
    )
}

pub(crate) const RUNS: &[&str] = &["--scopes", "runs:write,plugins:write"];

/// The same counters, whoever counts: what is under way for a moment left out.
fn steady(view: &Value) -> Value {
    let mut counts = view["counts"].clone();
    let fields = counts.as_object_mut().unwrap();
    for of_the_moment in ["queued", "running", "backing_off", "added"] {
        fields.remove(of_the_moment);
    }
    counts
}

async fn accounts(store: &Path, run_id: &str) -> Value {
    let store = Store::open_existing(&store.display().to_string().parse().unwrap()).await.unwrap();
    let totals = store.run_totals(run_id).await.unwrap();
    assert!(totals.tokens.close(), "{:?}", totals.tokens);
    let row = store.run(run_id).await.unwrap();
    let endings: BTreeMap<_, _> = totals.endings.iter().map(|(reason, n)| (reason.as_str(), n)).collect();
    let tokens = totals.tokens;
    let groups: BTreeMap<_, _> = row.groups.iter().map(|(status, n)| (status.as_str(), n)).collect();
    store.close().await;
    json!({
        "endings": endings, "groups": groups, "turns": totals.turns, "calls": totals.calls,
        "tokens": [tokens.sampled, tokens.trained, tokens.masked, tokens.dropped],
        "solved": row.rollouts.solved, "rewarded": row.rollouts.rewarded, "reward": row.rollouts.reward_sum,
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_over_http_is_the_run_that_it_is_here() {
    let server = model(0).await;
    let (here, there) = (Setting::empty(), Setting::empty());
    let text = experiment("same", &server, "fault-harness");
    std::fs::write(here.file(), &text).unwrap();
    std::fs::write(here.file().with_file_name("tasks.jsonl"), plain_tasks(20)).unwrap();
    let summary = here.run().await;
    let served = Served::start(&there.store_folder(), &[&allowed(&server)]).await;
    let key = served.key(RUNS).await;
    let body = json!({ "experiment": text, "tasks": plain_tasks(20) });
    let run = served.begin(&key, &body).await;
    let run_id = run["run_id"].as_str().unwrap();
    let view = served.until(&key, run_id, &["finished"]).await;
    assert_eq!(
        accounts(&here.store_folder(), &summary.run_id).await,
        accounts(&there.store_folder(), run_id).await
    );
    assert_eq!(view["summary"]["counts"]["scored"], json!(summary.counts.scored));
    assert_eq!((&view["problem"], &view["live"], &view["own"]), (&Value::Null, &Value::Null, &json!(true)));
    // The same request is the same run; its events say what its store says.
    let (status, again) = served.ask(&key, "POST", "/v1/runs", &body).await;
    assert_eq!((status, &again["run_id"]), (200, &run["run_id"]));
    served.until(&key, run_id, &["finished"]).await;
    let events = Events::open(&served, &key, run_id, 0).await.rest().await;
    let of = |kind: &str| events.iter().filter(|(event, _)| event == kind).count();
    assert_eq!((of("group-opened"), of("group-closed"), of("rollout-ended")), (20, 20, 40));
    assert_eq!((of("run-started"), of("run-ended")), (2, 2), "{events:?}");
    // Behind the last one there is nothing, and a client need not come again.
    let headers = format!("x-api-key: {key}\r\nlast-event-id: {}\r\n", events.len());
    let mut stream = served.open("GET", &format!("/v1/runs/{run_id}/events"), &headers, b"").await;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_is_said_as_it_is_here_and_files_of_the_machine_stay_unread() {
    let server = model(0).await;
    let folder = Setting::empty();
    let secret = folder.file().with_file_name("secret.jsonl");
    std::fs::write(&secret, plain_tasks(1)).unwrap();
    let served = Served::start(&folder.store_folder(), &[&allowed(&server)]).await;
    let key = served.key(RUNS).await;
    let text = experiment("wrong", &server, "fault-harness");
    let said = async |change: &dyn Fn(&mut Value)| {
        let mut body = json!({ "experiment": text, "tasks": plain_tasks(2) });
        change(&mut body);
        let (status, problem) = served.ask(&key, "POST", "/v1/runs", &body).await;
        let place = &problem["place"];
        let place =
            if place.is_null() { String::new() } else { format!(" at {}:{}", place["line"], place["text"]) };
        let part = |name: &str| problem[name].as_str().unwrap_or_default().to_owned();
        let detail =
            part("detail").replace(server.url(), "URL").replace(&*secret.to_string_lossy(), "SECRET");
        let shown = format!("{status} {}: {detail}{place}\nhint: {}", part("code"), part("hint"));
        assert!(!shown.contains(folder.store_folder().to_str().unwrap()), "{shown}");
        shown.replace(server.url(), "URL").replace(&*secret.to_string_lossy(), "SECRET")
    };
    let set = |key: &'static str| move |body: &mut Value| body["set"] = json!([key]);
    insta::assert_snapshot!(
        said(&|body| body["experiment"] = json!(text.replace("seed = 7", "sed = 7"))).await
    );
    insta::assert_snapshot!(said(&set("groups.size=0")).await);
    let unknown = said(&set("harness.plugin=\"nothing-here\"")).await;
    assert!(
        unknown
            .contains("no plugin `nothing-here`: looked for nothing-here.wasm in the plugins of the service"),
        "{unknown}"
    );
    insta::assert_snapshot!(said(&set("harness.plugin=\"fault-environment\"")).await);
    insta::assert_snapshot!(said(&|body| body["tasks"] = json!("{}\n")).await);
    let missing = "/nowhere/else.jsonl";
    let of_path = async |path: &str| {
        let source = format!("tasks.source={path:?}");
        let change = |body: &mut Value| {
            body.as_object_mut().unwrap().remove("tasks");
            body["set"] = json!([source]);
        };
        let told = said(&change).await;
        told.replace(path, "PATH").replace("SECRET", "PATH")
    };
    let (there, not_there) = (of_path(&secret.to_string_lossy()).await, of_path(missing).await);
    assert_eq!(there, not_there, "whether a file exists is nobody's business");
    insta::assert_snapshot!(there);
    for path in ["../secret.jsonl", "-", "/dev/stdin", "/proc/self/environ"] {
        assert!(of_path(path).await.starts_with("422 invalid: `tasks.source` is"), "{path}");
    }
    for set in [
        "harness.plugin=\"/etc/passwd.wasm\"",
        "models.policy.tokenizer=\"/etc/passwd\"",
        "models.policy.template=\"../../x\"",
        "rewards.0.plugin=\"../x.wasm\"",
        "models.policy.url=\"http://169.254.169.254\"",
        "models.policy.api_key_env=\"HOME\"",
        "services.a={ kind = \"app\", folder = \"/etc\" }",
    ] {
        let told = said(&|body| body["set"] = json!([set])).await;
        assert!(told.starts_with("422 invalid: `"), "{set}: {told}");
    }
    // A key without sandboxes has none through a run, either.
    let told = said(&set("sandbox={ image = \"host\" }")).await;
    assert!(told.starts_with("422 invalid: the run needs sandboxes"), "{told}");
    // Nothing of all this is a run.
    let (_, list) = served.ask(&key, "GET", "/v1/runs", &Value::Null).await;
    assert_eq!(list["runs"], json!([]));
    // What the operator allows is read.
    served.stop().await;
    let around = folder.file().parent().unwrap().display().to_string();
    let served = Served::start(&folder.store_folder(), &[&allowed(&server), "--run-folder", &around]).await;
    let body = json!({ "experiment": text, "set": [format!("tasks.source={:?}", secret.to_str().unwrap())] });
    let run = served.begin(&key, &body).await;
    served.until(&key, run["run_id"].as_str().unwrap(), &["finished"]).await;
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_key_sees_nothing_over_every_route() {
    let server = model(20).await;
    let setting = Setting::empty();
    let served = Served::start(&setting.store_folder(), &[&allowed(&server)]).await;
    let key = served.key(RUNS).await;
    let other = served.key(&["--scopes", "runs:write,plugins:write,sandboxes:write"]).await;
    let body =
        json!({ "experiment": experiment("mine", &server, "fault-harness"), "tasks": plain_tasks(400) });
    let run = served.begin(&key, &body).await;
    let run_id = run["run_id"].as_str().unwrap();
    let (_, document) = served.ask("", "GET", "/openapi.json", &Value::Null).await;
    let paths = document["paths"].as_object().unwrap();
    let mut tried = 0;
    for (path, item) in paths.iter().filter(|(path, _)| path.contains("{run}")) {
        for (method, operation) in
            item.as_object().unwrap().iter().filter(|(method, _)| *method != "parameters")
        {
            let path = path.replace("{group}", &format!("{run_id}.g0")).replace("{model}", "policy");
            let body = body_for(operation["operationId"].as_str().unwrap());
            for name in [run_id, "mine", &run_id[..run_id.len() - 2]] {
                let asked = path.replace("{run}", name);
                let method = method.to_uppercase();
                let (status, problem) = served.ask(&other, &method, &asked, &body).await;
                assert_eq!(
                    (status, &problem["code"]),
                    (404, &json!("not-found")),
                    "{method} {asked}: {problem}"
                );
                // As if there were none at all.
                let nothing = path.replace("{run}", "nothing-12345678");
                let (_, none) = served.ask(&other, &method, &nothing, &body).await;
                assert_eq!(none["hint"], problem["hint"]);
                tried += 1;
            }
        }
    }
    assert!(tried >= 3 * 14, "{tried}");
    let (_, list) = served.ask(&other, "GET", "/v1/runs", &Value::Null).await;
    assert_eq!(list["runs"], json!([]));
    // Its own run of the same name is another run.
    let second = served.begin(&other, &body).await;
    assert_ne!(second["run_id"], run["run_id"]);
    let (_, named) = served.ask(&other, "GET", "/v1/runs/mine", &Value::Null).await;
    assert_eq!(named["run_id"], second["run_id"]);
    // A quota is of runs under way, and the same run again is none more.
    let few = served.key(&["--scopes", "runs:write", "--runs", "1"]).await;
    let first = served.begin(&few, &body).await;
    assert_eq!(served.begin(&few, &body).await["run_id"], first["run_id"]);
    let more = json!({ "experiment": body["experiment"], "tasks": plain_tasks(401), "set": ["name=more"] });
    let (status, problem) = served.ask(&few, "POST", "/v1/runs", &more).await;
    assert_eq!((status, &problem["code"]), (429, &json!("quota-exceeded")));
    let cancel = format!("/v1/runs/{}/cancel", first["run_id"].as_str().unwrap());
    assert_eq!(served.ask(&few, "POST", &cancel, &json!({ "now": true })).await.0, 200);
    served.until(&few, first["run_id"].as_str().unwrap(), &["stopped"]).await;
    served.begin(&few, &more).await;
    // A key that may only read does not begin.
    let reads = served.key(&["--scopes", "runs:read"]).await;
    assert_eq!(served.ask(&reads, "POST", "/v1/runs", &body).await.0, 403);
    served.kill().await;
}

/// A body that a route takes, so that nothing but the run is wrong.
fn body_for(operation: &str) -> Value {
    match operation {
        "lease_groups" => json!({ "model": "policy" }),
        "extend_leases" => json!({ "lease_id": "a.g0.l1" }),
        "ack_groups" => json!({ "lease_id": "a.g0.l1", "train_step": 1 }),
        "nack_groups" => json!({ "lease_id": "a.g0.l1", "reason": "no" }),
        "rewind_groups" => json!({ "model": "policy", "train_step": 1 }),
        "post_task" => json!({ "client_id": "a", "task": { "id": "t", "instruction": "go" } }),
        "swap_plugin" => json!({ "alias": "fault-harness", "plugin": "idle" }),
        "set_concurrency" => json!({ "concurrent_rollouts": 3 }),
        "new_weights" => json!({ "label": "step-1" }),
        _ => Value::Null,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_go_on_with_the_next_service_under_their_key() {
    let server = model(20).await;
    let setting = Setting::empty();
    let served = Served::start(&setting.store_folder(), &[&allowed(&server)]).await;
    let key = served.key(RUNS).await;
    let text = experiment("survives", &server, "fault-harness");
    let run = served.begin(&key, &json!({ "experiment": text, "tasks": plain_tasks(60) })).await;
    let run_id = run["run_id"].as_str().unwrap().to_owned();
    let mut events = Events::open(&served, &key, &run_id, 0).await;
    let mut seen = Vec::new();
    while seen.len() < 12 {
        seen.push(events.next().await.unwrap());
    }
    let path = format!("/v1/runs/{run_id}/concurrency");
    let (status, told) = served.ask(&key, "POST", &path, &json!({ "concurrent_rollouts": 4 })).await;
    assert_eq!((status, &told["changed"]), (200, &json!(true)));
    served.kill().await;
    seen.extend(events.rest().await);
    let served = Served::start(&setting.store_folder(), &[&allowed(&server)]).await;
    let mut events = Events::open(&served, &key, &run_id, events.last).await;
    seen.push(events.next().await.unwrap());
    // A service that is told to stop leaves it to the next one, too.
    served.until(&key, &run_id, &["running"]).await;
    served.stop().await;
    seen.extend(events.rest().await);
    let served = Served::start(&setting.store_folder(), &[&allowed(&server)]).await;
    let mut events = Events::open(&served, &key, &run_id, events.last).await;
    seen.extend(events.rest().await);
    let view = served.until(&key, &run_id, &["finished"]).await;
    assert_eq!(view["counts"]["groups"], json!({ "ready": 60 }));
    let of = |kind: &str| seen.iter().filter(|(event, _)| event == kind).count();
    assert_eq!((of("group-opened"), of("group-closed"), of("concurrency")), (60, 60, 1));
    assert_eq!(of("run-started"), 3);
    let results =
        seen.iter().filter(|(event, data)| event == "rollout-ended" && data["final"] == json!(true));
    assert_eq!(results.count(), 120);
    let (_, list) = served.ask(&key, "GET", "/v1/runs", &Value::Null).await;
    assert_eq!(list["runs"].as_array().unwrap().len(), 1);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_paused_resumed_cancelled_and_continued() {
    let server = model(20).await;
    let setting = Setting::empty();
    let served = Served::start(&setting.store_folder(), &[&allowed(&server)]).await;
    let key = served.key(RUNS).await;
    let text = experiment("told", &server, "fault-harness");
    let run = served.begin(&key, &json!({ "experiment": text, "tasks": plain_tasks(2000) })).await;
    let run_id = run["run_id"].as_str().unwrap();
    let post = async |verb: &str, body: Value| {
        served.ask(&key, "POST", &format!("/v1/runs/{run_id}/{verb}"), &body).await
    };
    let (status, told) = post("pause", Value::Null).await;
    assert_eq!((status, &told["changed"]), (200, &json!(true)), "{told}");
    let view = served.until(&key, run_id, &["paused"]).await;
    // What the index says of a paused run in which nothing runs any more is what the store says of it without the service.
    let begun = Instant::now();
    let mut view = view;
    while view["counts"]["running"] != json!(0) {
        assert!(begun.elapsed() < BOUND, "{view}");
        tokio::time::sleep(Duration::from_millis(20)).await;
        view = served.until(&key, run_id, &["paused"]).await;
    }
    assert_eq!(post("pause", Value::Null).await.1["changed"], json!(false));
    assert_eq!(post("resume", Value::Null).await.1["changed"], json!(true));
    let (status, problem) = post("concurrency", json!({ "concurrent_rollouts": 90_000 })).await;
    assert_eq!((status, &problem["code"]), (422, &json!("invalid")), "{problem}");
    let (status, problem) = post("models/judge/version", json!({ "label": "one" })).await;
    assert!(status == 422 && problem["detail"].as_str().unwrap().contains("no model is called"), "{problem}");
    let (status, told) = post("cancel", json!({ "now": true })).await;
    assert_eq!(status, 200, "{told}");
    let stopped = served.until(&key, run_id, &["stopped"]).await;
    let closed = |view: &Value| view["counts"]["groups"]["ready"].as_u64().unwrap_or(0);
    assert!(closed(&stopped) >= closed(&view));
    // It does not go on by itself.
    served.stop().await;
    let served = Served::start(&setting.store_folder(), &[&allowed(&server)]).await;
    served.until(&key, run_id, &["stopped"]).await;
    let (status, told) = served.ask(&key, "POST", &format!("/v1/runs/{run_id}/resume"), &Value::Null).await;
    assert_eq!((status, &told["changed"]), (200, &json!(true)), "{told}");
    served.until(&key, run_id, &["running"]).await;
    served.kill().await;
}

/// The same component under another digest: a section of its own at its end, which no engine looks at.
fn with_section(component: &[u8], name: &str) -> Vec<u8> {
    let mut section = vec![0, (name.len() + 1) as u8, name.len() as u8];
    section.extend(name.as_bytes());
    [component, &section].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_is_swapped_a_hundred_times_and_no_rollout_fails_of_it() {
    let server = model(5).await;
    let setting = Setting::empty();
    let component = std::fs::read(plugin_folder().join("fault-harness.wasm")).unwrap();
    let store = Store::open(&setting.store_folder().display().to_string().parse().unwrap()).await.unwrap();
    let mut digests = Vec::new();
    for name in ["one", "two"] {
        digests.push(store.blobs().put(with_section(&component, name)).await.unwrap());
    }
    store.close().await;
    let served = Served::start(&setting.store_folder(), &[&allowed(&server)]).await;
    let key = served.key(RUNS).await;
    let text = experiment("swapped", &server, "fault-harness");
    let run = served.begin(&key, &json!({ "experiment": text, "tasks": plain_tasks(20_000) })).await;
    let run_id = run["run_id"].as_str().unwrap();
    let mut events = Events::open(&served, &key, run_id, 0).await;
    let path = format!("/v1/runs/{run_id}/swap");
    for swap in 0..100 {
        let digest = &digests[swap % 2];
        let (status, told) =
            served.ask(&key, "POST", &path, &json!({ "alias": "fault-harness", "plugin": digest })).await;
        assert_eq!(
            (status, &told["digest"], &told["changed"]),
            (200, &json!(digest), &json!(true)),
            "{told}"
        );
        // Groups that open behind the swap have it.
        let mut swapped = false;
        loop {
            let (kind, data) = events.next().await.unwrap();
            swapped |= kind == "plugin-swapped" && data["digest"] == json!(digest);
            if swapped && kind == "group-opened" && data["plugins"]["fault-harness"] == json!(digest) {
                break;
            }
        }
    }
    // What cannot be used is refused, and changes nothing.
    for (alias, plugin, why) in [
        ("fault-harness", "fault-environment", "is of world"),
        ("fault-harness", "nothing-here", "nothing-here"),
        ("nothing-here", "fault-harness", "the experiment names no plugin"),
    ] {
        let (status, problem) =
            served.ask(&key, "POST", &path, &json!({ "alias": alias, "plugin": plugin })).await;
        assert!(status == 422 && problem["detail"].as_str().unwrap().contains(why), "{problem}");
    }
    let cancel = format!("/v1/runs/{run_id}/cancel");
    assert_eq!(served.ask(&key, "POST", &cancel, &Value::Null).await.0, 200);
    let view = served.until(&key, run_id, &["stopped"]).await;
    assert_eq!(view["counts"]["groups"].get("failed"), None, "{view}");
    let endings = view["counts"]["endings"].as_object().unwrap();
    assert!(endings.keys().all(|ending| ["submitted", "cancelled"].contains(&ending.as_str())), "{view}");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_hundred_clients_on_ten_runs_lose_no_event() {
    let server = model(5).await;
    let setting = Setting::empty();
    let served = Served::start(&setting.store_folder(), &[&allowed(&server)]).await;
    let key = served.key(RUNS).await;
    let mut runs = Vec::new();
    for number in 0..10 {
        let text = experiment(&format!("many-{number}"), &server, "fault-harness");
        let run = served.begin(&key, &json!({ "experiment": text, "tasks": plain_tasks(40) })).await;
        runs.push(run["run_id"].as_str().unwrap().to_owned());
    }
    let mut clients = tokio::task::JoinSet::new();
    let address = served.address.clone();
    for number in 0..200usize {
        let (run, key) = (runs[number % 10].clone(), key.clone());
        let there = Served { address: address.clone(), ..watcher(&setting).await };
        clients.spawn(async move {
            let mut events = Events::open(&there, &key, &run, 0).await;
            let mut seen = Vec::new();
            // Every fourth is cut again and again, and comes back with the last that it had.
            while let Some(event) = events.next().await {
                let ended = event.0 == "run-ended";
                seen.push(event);
                if !ended && number % 4 == 0 && seen.len() % 25 == 0 {
                    events = Events::open(&there, &key, &run, events.last).await;
                }
            }
            (run, seen)
        });
    }
    let mut by_run: BTreeMap<String, Vec<(String, Value)>> = BTreeMap::new();
    while let Some(client) = clients.join_next().await {
        let (run, seen) = client.unwrap();
        let expected = by_run.entry(run).or_insert_with(|| seen.clone());
        assert_eq!(*expected, seen, "each client has the same events in the same order");
    }
    assert_eq!(by_run.len(), 10);
    for (run, seen) in &by_run {
        let of = |kind: &str| seen.iter().filter(|(event, _)| event == kind).count();
        assert_eq!((of("group-closed"), of("rollout-ended"), of("run-ended")), (40, 80, 1), "{run}");
    }
    served.stop().await;
}

/// What stands for the service in a client's task: its address alone is used.
async fn watcher(setting: &Setting) -> Served {
    let child = Command::new("true").spawn().unwrap();
    let said = tokio::spawn(async {});
    Served { child, address: String::new(), store: setting.store_folder(), _said: said }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn textcraft_by_reference_is_the_same_over_http() {
    let (here, there) = (Setting::empty(), Setting::empty());
    let file = "experiments/textcraft-reference.toml";
    let summary = here.run_named(file, &["tasks.limit=30".to_owned()]).await;
    let served = Served::start(&there.store_folder(), &[]).await;
    let key = served.key(RUNS).await;
    let text = std::fs::read_to_string(repository().join(file)).unwrap();
    let tasks = std::fs::read_to_string(repository().join("tasks/textcraft.jsonl")).unwrap();
    let run =
        served.begin(&key, &json!({ "experiment": text, "tasks": tasks, "set": ["tasks.limit=30"] })).await;
    let run_id = run["run_id"].as_str().unwrap();
    let view = served.until(&key, run_id, &["finished"]).await;
    assert_eq!(
        accounts(&here.store_folder(), &summary.run_id).await,
        accounts(&there.store_folder(), run_id).await
    );
    assert_eq!(steady(&view)["solved"], json!(30));
    served.stop().await;
}

/// What a command printed to standard output, without id and time.
fn table(output: &std::process::Output, run_id: &str) -> String {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with("time"));
    lines.collect::<Vec<_>>().join("\n").replace(run_id, "RUN")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_remote_looks_as_it_does_here_and_ctrl_c_only_leaves_it() {
    let server = model(20).await;
    let (here, there) = (Setting::empty(), Setting::empty());
    // The task file lies outside of the experiment's folder, and is sent all the same.
    let text = experiment("remote", &server, "fault-harness").replace("tasks.jsonl", "../tasks.jsonl");
    let folder = here.file().parent().unwrap().join("inner");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("experiment.toml"), &text).unwrap();
    std::fs::write(here.file().with_file_name("tasks.jsonl"), plain_tasks(30)).unwrap();
    let file = folder.join("experiment.toml");
    let file = file.to_str().unwrap();
    let served = Served::start(&there.store_folder(), &[&allowed(&server)]).await;
    let key = served.key(RUNS).await;
    let url = format!("http://{}", served.address);
    let command = |arguments: &[&str]| {
        let mut command = espalier(&here.store_folder());
        command.env("ESPALIER_API_KEY", &key).args(arguments);
        command
    };
    let run = async |arguments: &[&str]| {
        tokio::time::timeout(BOUND, command(arguments).output()).await.expect("it ends").unwrap()
    };
    let of = async |key: &str| served.ask(key, "GET", "/v1/runs", &Value::Null).await.1["runs"][0].clone();
    let local = run(&["run", file]).await;
    let child = command(&["run", file, "--remote", &url]).spawn().unwrap();
    let begun = Instant::now();
    while of(&key).await["run_id"].is_null() {
        assert!(begun.elapsed() < BOUND);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let run_id = of(&key).await["run_id"].as_str().unwrap().to_owned();
    let pid = rustix::process::Pid::from_raw(child.id().unwrap() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let left = tokio::time::timeout(BOUND, child.wait_with_output()).await.expect("it leaves").unwrap();
    assert!([Some(0), Some(130)].contains(&left.status.code()), "{left:?}");
    let attached = run(&["attach", "remote", "--remote", &url]).await;
    assert_eq!((attached.status.code(), local.status.code()), (Some(0), Some(0)), "{attached:?}");
    let local_id = {
        let store = here.store().await;
        let local_id = store.runs().await.unwrap().remove(0).run_id;
        store.close().await;
        local_id
    };
    assert_eq!(table(&attached, &run_id), table(&local, &local_id));
    // The same command shows its table again.
    let again = run(&["run", file, "--remote", &url]).await;
    assert_eq!(table(&again, &run_id), table(&local, &local_id));
    // What is wrong is said at its place in the user's own file.
    let sets = ["--set", "name=other", "--set", "harness.plugin=nothing-here"];
    let wrong = run(&[&["run", file, "--remote", &url][..], &sets].concat()).await;
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(wrong.status.code() == Some(2) && said.contains("--set harness.plugin=nothing-here"), "{said}");
    served.stop().await;
}
