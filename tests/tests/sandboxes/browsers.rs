//! Rollouts that act in browsers: Chromium in a sandbox, pages from a server of this test, a scripted policy.

use crate::whole::{Store, run, text};
use espalier_core::ending::StopReason;
use espalier_core::trajectory::AttemptRecord;
use espalier_store::StoreUrl;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Remembers its visits in a cookie and in the local storage, and says what it remembered at first.
const FORM: &str = "<!doctype html><title>Orders</title><h1>Orders</h1>
<label>Name <input id=n></label><button onclick=\"document.title = 'Saved ' + n.value\">Save</button><p id=before></p>
<script>before.textContent = document.cookie + localStorage.length; document.cookie = 'seen=1'; localStorage.seen = 1</script>";

/// Shows numbers, times and answers that differ from one moment to the next.
const CHANGING: &str = "<!doctype html><title>Changing</title><button>again</button><p id=o></p><canvas id=c></canvas>
<script>const more = async () => { o.textContent += ' ' + Math.random() + ' ' + new Date().toISOString() + ' ' +
  (await (await fetch('/data?' + Math.random())).text()).length; c.getContext('2d').fillRect(Math.random() * 99, 0, 9, 9); };
more(); setInterval(() => o.append(' tick ' + Math.round(performance.now())), 130);
document.querySelector('button').onclick = more</script>";

/// Serves the form, and counts how often; what follows the number of the visit is up to `on_visit`.
pub(crate) async fn serve(on_visit: impl Fn(usize) + Send + Sync + 'static) -> u16 {
    serve_page(FORM, on_visit).await
}

pub(crate) async fn serve_page(page: &'static str, on_visit: impl Fn(usize) + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (visits, on_visit) = (Arc::new(AtomicUsize::new(0)), Arc::new(on_visit));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (visits, on_visit) = (Arc::clone(&visits), Arc::clone(&on_visit));
            tokio::spawn(async move {
                let mut request = vec![0; 16 << 10];
                let read = stream.read(&mut request).await.unwrap_or(0);
                if request[..read].starts_with(b"GET / ") || request[..read].starts_with(b"GET http") {
                    on_visit(visits.fetch_add(1, Ordering::SeqCst));
                }
                let head =
                    "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\nContent-Length:";
                let _ = stream.write_all(format!("{head} {}\r\n\r\n{page}", page.len()).as_bytes()).await;
            });
        }
    });
    port
}

/// Rollouts that write `Ann` and save, each the page's title its reward, unless the page remembered an earlier one.
fn experiment(store: &Path, port: u16, more: &str) -> String {
    let checks = r#"{ expression = "document.title", equals = "Saved Ann" }, { expression = "before.textContent", equals = "0" }"#;
    saving("browser", store, port, checks, more)
}

/// Rollouts that write `Ann` and save, scored by these checks of the page.
pub(crate) fn saving(name: &str, store: &Path, port: u16, checks: &str, more: &str) -> String {
    let file = store.join(format!("{name}.toml"));
    std::fs::write(store.join("tasks.jsonl"), "{\"id\":\"t\",\"instruction\":\"Save the name Ann.\"}\n")
        .unwrap();
    let text = format!(
        r#"name = "{name}"
[tasks]
source = "tasks.jsonl"
[groups]
size = 2
concurrent_rollouts = 1
retry_delay = "10ms"
[browser]
start_url = "http://127.0.0.1:{port}/"
network = {{ allow = ["127.0.0.1:{port}"] }}
[models.policy]
kind = "scripted"
answers = [
  {{ tool_calls = [{{ name = "click", arguments = {{ ref = "e1" }} }}, {{ name = "write", arguments = {{ message = "Ann" }} }}] }},
  {{ tool_calls = [{{ name = "click", arguments = {{ ref = "e2" }} }}] }},
  {{ tool_calls = [{{ name = "done", arguments = {{ response = "saved" }} }}] }},
]
[harness]
plugin = "gui-agent"
settings = {{ description_tokens = 400 }}
[[rewards]]
plugin = "page-state"
settings = {{ checks = [{checks}] }}
{more}"#
    );
    std::fs::write(&file, text).unwrap();
    file.display().to_string()
}

/// The attempts of the first group of the only run.
pub(crate) async fn attempts(store: &Path) -> Vec<AttemptRecord> {
    let store = espalier_store::Store::open_existing(&StoreUrl::Folder(store.to_owned())).await.unwrap();
    let run = store.runs().await.unwrap().remove(0);
    let mut records = Vec::new();
    for row in store.attempts(&run.run_id, 0).await.unwrap() {
        records.extend(store.record(&row).await.unwrap());
    }
    store.close().await;
    records
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rollout_acts_in_a_browser_of_its_own_and_is_scored_by_its_page() {
    let store = Store::new();
    let port = serve(|_| ()).await;
    let played = run(store.path(), &["run", &experiment(store.path(), port, "")]).await;
    assert!(played.status.success(), "{}", text(&played));
    let records = attempts(store.path()).await;
    let ends: Vec<_> =
        records.iter().map(|record| (record.trajectory.stop_reason, record.trajectory.reward)).collect();
    // The second finds no cookie and no storage of the first, though they share a process.
    assert_eq!(ends, [(StopReason::Submitted, Some(1.0)), (StopReason::Submitted, Some(1.0))]);
    for record in &records {
        let calls: Vec<&str> = record.host_calls.iter().map(|call| call.name.as_ref()).collect();
        assert_eq!(calls.iter().filter(|name| **name == "session.act").count(), 3, "{calls:?}");
        let note = record.host_calls.iter().find(|call| call.name == "session.act").unwrap().note.clone();
        assert_eq!(note.as_deref(), Some("click textbox \"Name\"; write textbox \"Name\""));
        assert_eq!(record.report.as_ref().unwrap().answer.as_deref(), Some("saved"));
    }
    assert!(store.sandboxes().await.is_empty(), "that of the browser is ended");
}

/// Kills the browser processes in the sandboxes of a store.
pub(crate) fn kill_browsers(store: &Path) {
    let sandboxes = std::fs::read_dir(store.join("sandboxes/sandboxes")).into_iter().flatten().flatten();
    let names = sandboxes.filter_map(|file| Some(file.path().file_stem()?.to_str()?.to_owned()));
    let folders: Vec<String> = names.map(|id| format!("/tmp/espalier-browser/{id}/")).collect();
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        let pid = process.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
        if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw)
            && folders.iter().any(|folder| line.contains(folder.as_str()))
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_that_is_killed_is_infrastructure_and_the_attempt_is_made_again() {
    let store = Store::new();
    // While the first rollout opens its page.
    let folder = store.path().to_owned();
    let port = serve(move |visit| {
        if visit == 0 {
            kill_browsers(&folder);
        }
    })
    .await;
    let played = run(store.path(), &["run", &experiment(store.path(), port, "")]).await;
    assert!(played.status.success(), "{}", text(&played));
    let records = attempts(store.path()).await;
    let ends: Vec<_> =
        records.iter().map(|record| (record.trajectory.stop_reason, record.trajectory.reward)).collect();
    let lost = ends.iter().filter(|end| **end == (StopReason::Infrastructure, None)).count();
    let solved = ends.iter().filter(|end| **end == (StopReason::Submitted, Some(1.0))).count();
    assert!(lost >= 1 && solved == 2 && lost + solved == ends.len(), "{ends:?}");
    assert!(store.sandboxes().await.is_empty());
}

/// Tells in its title what becomes of a service worker, asked for by the page and by a fresh frame.
const WORKER: &str = "<!doctype html><p>page</p><script>(async () => {
  const frame = document.body.appendChild(document.createElement('iframe'));
  const tries = [() => navigator.serviceWorker.register('/w.js'),
    () => frame.contentWindow.ServiceWorkerContainer.prototype.register.call(navigator.serviceWorker, '/w.js')];
  const told = [];
  for (const one of tries) await one().then(() => told.push('registered'), (error) => told.push(error.message));
  document.title = told.join(', ');
})()</script>";

/// One that floods the console would have all rollouts of the process lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_in_a_process_that_is_shared_have_no_service_workers() {
    let store = Store::new();
    let port = serve_page(WORKER, |_| ()).await;
    let file = experiment(store.path(), port, "");
    let answers =
        "models.policy.answers=[{ tool_calls = [{ name = 'done', arguments = { response = 'seen' } }] }]";
    let refused = "service workers are blocked";
    let check = format!(
        "rewards=[{{ plugin = 'page-state', settings = {{ checks = [{{ expression = 'document.title', equals = '{refused}, {refused}' }}] }} }}]"
    );
    let played = run(store.path(), &["run", &file, "--set", answers, "--set", &check]).await;
    assert!(played.status.success(), "{}", text(&played));
    for record in attempts(store.path()).await {
        assert_eq!(record.trajectory.reward, Some(1.0), "{:?}", record.scores);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_browser_can_be_started_from_is_told_before_the_first_rollout() {
    let store = Store::new();
    let port = serve(|_| ()).await;
    let file = experiment(store.path(), port, "");
    let played = run(store.path(), &["run", &file, "--set", "browser.executable=\"no-such-browser\""]).await;
    assert_eq!(played.status.code(), Some(2), "{}", text(&played));
    let told = text(&played);
    assert!(told.contains("no browser can be started") && told.contains("none of no-such-browser"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deterministic_rollout_is_repeated_to_the_byte_from_the_archive_that_it_left() {
    let store = Store::new();
    let visits = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&visits);
    let port = serve_page(CHANGING, move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
    })
    .await;
    let file = experiment(store.path(), port, "");
    let settings = "harness.settings={ screenshots = 2, description_tokens = 400 }";
    let answers = "models.policy.answers=[
        { tool_calls = [{ name = 'click', arguments = { ref = 'e1' } }, { name = 'click', arguments = { ref = 'e1' } }] },
        { tool_calls = [{ name = 'wait', arguments = { seconds = 2 } }] },
        { tool_calls = [{ name = 'done', arguments = { response = 'seen' } }] } ]";
    let common = ["run", &file, "--set", settings, "--set", answers, "--set"];
    let recorded = run(store.path(), &[&common[..], &["browser.deterministic={}"]].concat()).await;
    assert!(recorded.status.success(), "{}", text(&recorded));
    let first = attempts(store.path()).await;
    let asked = visits.load(Ordering::SeqCst);
    assert!(asked > 0);

    let archive =
        run(store.path(), &["show", &first[0].trajectory.traj_id, "--blob", "browser-archive"]).await;
    assert!(archive.status.success() && archive.stdout.starts_with(b"espalier-network-archive 1"));
    std::fs::write(store.path().join("orders.archive"), archive.stdout).unwrap();
    let other = Store::new();
    let replayed =
        run(other.path(), &[&common[..], &["browser.deterministic={ archive = 'orders.archive' }"]].concat())
            .await;
    assert!(replayed.status.success(), "{}", text(&replayed));
    assert_eq!(visits.load(Ordering::SeqCst), asked, "the server is not asked again");
    let second = attempts(other.path()).await;
    // Pictures by their digests, descriptions, results of tools.
    let shown = |record: &AttemptRecord| {
        let opening = record.transcript.conversations.iter().map(|log| &log.opening);
        let results = record.transcript.turns.iter().map(|turn| &turn.results);
        format!("{:?}", opening.chain(results).collect::<Vec<_>>())
    };
    let seen: Vec<String> = first.iter().chain(&second).map(shown).collect();
    assert_eq!(seen.len(), 4);
    assert!(seen[0].contains("tick 2"), "{}", seen[0]);
    assert!(seen.iter().all(|one| *one == seen[0]), "{seen:#?}");
    assert!(second.iter().all(|record| record.logs.is_empty()), "{:?}", second[0].logs);

    let third = Store::new();
    let missing =
        run(third.path(), &[&common[..], &["browser.deterministic={ archive = 'none.archive' }"]].concat())
            .await;
    assert_eq!(missing.status.code(), Some(2), "{}", text(&missing));
    assert!(text(&missing).contains("none.archive: No such file"), "{}", text(&missing));
}
