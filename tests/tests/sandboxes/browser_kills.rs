//! kill -9 of the engine, of browsers and of the processes of tabs, at chosen moments of a rollout: what was lost is made again, and no
//! reward is wrong.

use crate::browsers::{attempts, saving};
use crate::whole::{Store, run, text};
use espalier_core::ending::StopReason;
use espalier_tests::place::espalier;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Tells the server what happens to it. The reward looks at what was saved, and tells that, too.
const PAGE: &str = "<!doctype html><title>Orders</title><label>Name <input id=n></label>
<button onclick=\"fetch('/clicked').then(() => document.title = 'Saved ' + n.value)\">Save</button>";
const LOOK: &str = "fetch('/scored').then(() => document.title)";

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Victim {
    Engine,
    Browser,
    Tab,
}

type OnRequest = Box<dyn Fn(&str, usize) + Send + Sync>;

/// Serves the page; `on_request` is told of each path and how many times it was asked for before.
async fn serve(on_request: OnRequest) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let state = Arc::new((on_request, Mutex::new(BTreeMap::<String, usize>::new())));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let state = Arc::clone(&state);
            tokio::spawn(async move {
                let mut request = vec![0; 16 << 10];
                let read = stream.read(&mut request).await.unwrap_or(0);
                let head = String::from_utf8_lossy(&request[..read]).into_owned();
                let target = head.split(' ').nth(1).unwrap_or_default();
                let path = target
                    .strip_prefix("http://")
                    .map_or(target, |rest| &rest[rest.find('/').unwrap_or(0)..]);
                let before = {
                    let mut counts = state.1.lock().unwrap();
                    let count = counts.entry(path.to_owned()).or_default();
                    *count += 1;
                    *count - 1
                };
                (state.0)(path, before);
                let body = if path == "/" { PAGE } else { "ok" };
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                    body.len()
                );
                let _ = stream.write_all((head + body).as_bytes()).await;
            });
        }
    });
    port
}

fn experiment(store: &Path, port: u16) -> String {
    saving("kills", store, port, &format!(r#"{{ expression = "{LOOK}", equals = "Saved Ann" }}"#), "")
}

/// The processes in the browsers' sandboxes of a store; `tabs`: those that render pages alone.
fn kill(store: &Path, tabs: bool) -> usize {
    let sandboxes = std::fs::read_dir(store.join("sandboxes/sandboxes")).into_iter().flatten().flatten();
    let names = sandboxes.filter_map(|file| Some(file.path().file_stem()?.to_str()?.to_owned()));
    let homes: Vec<String> = names.map(|id| format!("HOME=/tmp/espalier-browser/{id}")).collect();
    let mut parents = BTreeMap::new();
    let (mut ours, mut candidates) = (BTreeSet::new(), Vec::new());
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let read = |name: &str| {
            let bytes = std::fs::read(process.path().join(name)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let stat = read("stat");
        let parent =
            stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse::<i32>().ok());
        parents.insert(pid, parent.unwrap_or(0));
        if homes.iter().any(|home| read("environ").split('\0').any(|variable| variable == home)) {
            ours.insert(pid);
        }
        if !tabs || read("cmdline").contains("--type=renderer") {
            candidates.push(pid);
        }
    }
    // Those that a zygote forked have no environment to be seen.
    let is_ours = |pid: i32| {
        let line =
            std::iter::successors(Some(pid), |pid| parents.get(pid).copied().filter(|parent| *parent > 1));
        line.take(32).any(|pid| ours.contains(&pid))
    };
    let mut killed = 0;
    for pid in candidates.into_iter().filter(|pid| is_ours(*pid)) {
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        killed += usize::from(rustix::process::kill_process(pid, rustix::process::Signal::KILL).is_ok());
    }
    killed
}

/// Kills it while a page loads, acts, and is looked at by the reward, of the first rollout and of the second.
async fn at_each_moment(victim: Victim) {
    for (path, rollout) in [("/", 0), ("/clicked", 0), ("/scored", 0), ("/clicked", 1), ("/scored", 1)] {
        one(victim, path, rollout).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whenever_a_browser_is_killed_no_reward_is_wrong() {
    at_each_moment(Victim::Browser).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whenever_a_tab_is_killed_no_reward_is_wrong() {
    at_each_moment(Victim::Tab).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whenever_the_engine_is_killed_no_reward_is_wrong() {
    at_each_moment(Victim::Engine).await;
}

async fn one(victim: Victim, moment: &'static str, rollout: usize) {
    let what = format!("{victim:?} at {moment} of rollout {rollout}");
    let store = Store::new();
    let (folder, engine): (PathBuf, Arc<Mutex<Option<u32>>>) = (store.path().to_owned(), Arc::default());
    let (at, hits) = (Arc::clone(&engine), Arc::new(Mutex::new(0)));
    let counted = Arc::clone(&hits);
    let port = serve(Box::new(move |path, before| {
        if path != moment || before != rollout {
            return;
        }
        *counted.lock().unwrap() += match victim {
            Victim::Browser => kill(&folder, false),
            Victim::Tab => kill(&folder, true),
            Victim::Engine => {
                let pid =
                    at.lock().unwrap().and_then(|pid| rustix::process::Pid::from_raw(pid.cast_signed()));
                let killed = pid.map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::KILL));
                usize::from(killed.is_some_and(|killed| killed.is_ok()))
            }
        };
    }))
    .await;
    let file = experiment(store.path(), port);
    if victim == Victim::Engine {
        let mut child = espalier(store.path()).args(["run", &file]).spawn().unwrap();
        *engine.lock().unwrap() = child.id();
        let ended = tokio::time::timeout(std::time::Duration::from_secs(120), child.wait()).await;
        assert!(!ended.expect("it ends").unwrap().success(), "{what}: it was killed");
    }
    let played = run(store.path(), &["run", &file]).await;
    assert!(played.status.success(), "{what}: {}", text(&played));
    assert!(*hits.lock().unwrap() > 0, "{what}: nobody was killed");
    let ends: Vec<(StopReason, Option<f64>)> = attempts(store.path())
        .await
        .iter()
        .map(|record| (record.trajectory.stop_reason, record.trajectory.reward))
        .collect();
    let solved = ends.iter().filter(|end| **end == (StopReason::Submitted, Some(1.0))).count();
    assert_eq!(solved, 2, "{what}: {ends:?}");
    // What was lost has no reward; a loss while it was scored leaves a rollout without one, which is replaced.
    assert!(ends.iter().all(|(_, reward)| reward.is_none_or(|reward| reward == 1.0)), "{what}: {ends:?}");
    let lost = ends.iter().filter(|end| end.0 == StopReason::Infrastructure || end.1.is_none()).count();
    assert!(victim == Victim::Engine || lost >= 1, "{what}: {ends:?}");
    assert!(store.sandboxes().await.is_empty(), "{what}: sandboxes are left");
}
