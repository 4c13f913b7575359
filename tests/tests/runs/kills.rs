//! The engine as a process: killed at random points, started again; two of them on one run. (Five more points of the 30,
//! with the embedded model, are in `tests/models`.)

use crate::setting::{Parts, Setting, plain_tasks};
use espalier_core::samples::GroupStatus;
use espalier_scripted::{Options, Scripted, by_text};
use espalier_tests::place::espalier;
use espalier_tests::results::{check_kept, holder, results};
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::process::{ExitStatus, Output};
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};

const WORLD: &str =
    "[[rewards]]\nplugin = \"environment-reward\"\n[environment]\nplugin = \"fault-environment\"";
const HARNESS: &str = "plugin = \"fault-harness\"\nsettings = { fault = \"complete\", times = 3 }";
const GROUPS: &str = "size = 2\nconcurrent_rollouts = 6";
const KILLS: usize = 25;
/// Until a process must have done what it was started for.
const BOUND: Duration = Duration::from_secs(120);

pub(crate) fn engine(setting: &Setting) -> Command {
    let mut command = espalier(&setting.store_folder());
    command.arg("run").arg(setting.file());
    command
}

pub(crate) async fn end(child: Child) -> Output {
    tokio::time::timeout(BOUND, child.wait_with_output()).await.expect("the engine ends").unwrap()
}

pub(crate) async fn slow_server() -> Scripted {
    let latency = Duration::from_millis(40);
    Scripted::start(Options { latency, ..Options::new(by_text(|_| "well".to_owned())) }).await.unwrap()
}

pub(crate) fn setting(server: &Scripted, tasks: usize) -> Setting {
    let parts =
        Parts { url: server.url(), model: "", harness: HARNESS, world: WORLD, groups: GROUPS, limits: "" };
    Setting::new(&plain_tasks(tasks), &parts)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_random_points_it_loses_nothing_and_doubles_nothing() {
    let server = slow_server().await;
    let tasks = 300;
    let setting = setting(&server, tasks);
    let mut rng = rand::rngs::SmallRng::seed_from_u64(11);
    println!("seed 11");
    let mut durable = BTreeMap::new();
    let mut kills = 0;
    let mut under_way = 0;
    // A busy machine starts an engine slowly: one that came to nothing gives the next more time.
    let mut patience = 1;
    while kills < KILLS {
        let mut child = engine(&setting).spawn().unwrap();
        let wait = Duration::from_millis(rng.random_range(30..900)) * patience;
        match tokio::time::timeout(wait, child.wait()).await {
            Ok(status) => {
                assert!(status.unwrap().success(), "it ended by itself: {:?}", end(child).await);
                break;
            }
            Err(_) => child.kill().await.unwrap(),
        }
        kills += 1;
        let now = results(&setting.store_folder()).await;
        check_kept(&durable, &now, &format!("kill {kills}"));
        under_way += usize::from(!now.is_empty() && now.len() < 2 * tasks);
        patience = if now.len() > durable.len() { 1 } else { (patience * 2).min(8) };
        durable = now;
    }
    let last = end(engine(&setting).spawn().unwrap()).await;
    assert!(last.status.success(), "{}", String::from_utf8_lossy(&last.stderr));
    let left = setting.left().await;
    println!("{kills} kills, {under_way} in the middle; {} attempts", left.attempts.len());
    assert!(under_way >= 5, "only {under_way} of {kills} kills met a run in the middle");
    assert_eq!(left.groups, vec![Some(GroupStatus::Ready); tasks]);
    let rollouts: BTreeSet<_> = left.finals().map(|(row, _)| (row.group_index, row.rollout_index)).collect();
    assert_eq!((rollouts.len(), left.finals().count()), (2 * tasks, 2 * tasks));
    let now = results(&setting.store_folder()).await;
    check_kept(&durable, &now, "the last run");
    let again = end(engine(&setting).spawn().unwrap()).await;
    assert!(again.status.success());
    assert_eq!(results(&setting.store_folder()).await, now, "a finished run runs nothing again");
}

/// Waits until the engine has stored a first result.
pub(crate) async fn first_result(setting: &Setting) {
    for _ in 0..600 {
        if !results(&setting.store_folder()).await.is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the engine stored nothing within 30 s");
}

/// Waits until it holds the run, or has ended.
async fn works(setting: &Setting, engine: &mut Child) -> Result<(), ExitStatus> {
    let deadline = Instant::now() + BOUND;
    let pid = engine.id();
    while Instant::now() < deadline {
        if let Some(status) = engine.try_wait().unwrap() {
            return Err(status);
        }
        if holder(&setting.store_folder()).await == pid {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the engine neither ended nor took the run within {BOUND:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_engine_is_refused_a_killed_one_taken_over_at_once_a_stopped_one_fenced_off() {
    let server = slow_server().await;
    // More than it could do while the others try.
    let setting = setting(&server, 2000);
    let signal = |child: &Child, name: &str| {
        let id = child.id().expect("it runs").to_string();
        assert!(std::process::Command::new("kill").args([name, &id]).status().unwrap().success());
    };
    let first = engine(&setting).spawn().unwrap();
    first_result(&setting).await;

    let second = end(engine(&setting).spawn().unwrap()).await;
    let told = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(3), "{told}");
    assert!(told.contains("is worked on by process"), "{told}");

    // Stopped, it is not dead: its lease must run out. Then it is fenced off, whenever it comes back.
    signal(&first, "-STOP");
    let stopped = Instant::now();
    let mut third = loop {
        assert!(stopped.elapsed() < BOUND, "the lease of a stopped engine runs out");
        let mut child = engine(&setting).spawn().unwrap();
        match works(&setting, &mut child).await {
            Ok(()) => break child,
            Err(status) => {
                let told = String::from_utf8_lossy(&end(child).await.stderr).into_owned();
                if told.contains("database is locked") {
                    // It was stopped inside a transaction: it may go on to the end of that.
                    signal(&first, "-CONT");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    signal(&first, "-STOP");
                    continue;
                }
                assert_eq!(status.code(), Some(3), "{told}");
            }
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    };
    let before = results(&setting.store_folder()).await;
    signal(&first, "-CONT");
    let fenced = end(first).await;
    let told = String::from_utf8_lossy(&fenced.stderr).into_owned();
    assert_eq!(fenced.status.code(), Some(3), "{told}");
    assert!(told.contains("taken"), "{told}");

    third.kill().await.unwrap();
    let mut fourth = engine(&setting).spawn().unwrap();
    // Whoever has to wait for a lease ends instead.
    works(&setting, &mut fourth).await.expect("a killed engine is taken over at once");
    fourth.kill().await.unwrap();
    let after = results(&setting.store_folder()).await;
    check_kept(&before, &after, "the fourth engine");
}
