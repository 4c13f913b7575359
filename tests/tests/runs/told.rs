//! Runs that are told something while they work: paused, resumed and stopped by another process; two of them in one process;
//! tasks that come while the run goes on.

use crate::kills::{end, engine, first_result, setting, slow_server};
use crate::setting::{BOUND, Setting};
use espalier_core::control::{Command, RunPhase, StopMode};
use espalier_core::samples::GroupStatus;
use espalier_daemon::control;
use espalier_daemon::engine::RunEnd;
use espalier_tests::place::espalier;
use serde_json::Value;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::process::Child;

/// What a command printed and how it ended, with the run's id as `test-0`.
pub(crate) async fn said(setting: &Setting, arguments: &[&str]) -> String {
    let mut command = espalier(&setting.store_folder());
    let output =
        tokio::time::timeout(BOUND, command.args(arguments).output()).await.expect("it ends").unwrap();
    let text = [output.stderr, output.stdout].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    let id = runs(setting).await[0]["run_id"].as_str().unwrap().to_owned();
    let text = text.replace(&id, "test-0");
    format!("{text}exit {}", output.status.code().unwrap())
}

/// `list --json`; null where there is no store yet.
async fn runs(setting: &Setting) -> Value {
    let output = espalier(&setting.store_folder()).args(["list", "--json"]).output().await.unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

/// Waits until `list` has this state for the run.
async fn is(setting: &Setting, state: &str) {
    let begun = Instant::now();
    while runs(setting).await[0]["state"] != state {
        assert!(begun.elapsed() < BOUND, "{}", runs(setting).await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Without the number of rollouts that happen to be running.
fn without_counts(text: &str) -> String {
    let is_count = |text: &str| text.parse::<u32>().is_ok();
    let words: Vec<&str> = text.split(' ').collect();
    let is_next = |place: usize| words.get(place + 1).is_some_and(|next| next.starts_with("rollout"));
    let kept = words
        .iter()
        .enumerate()
        .map(|(place, word)| if is_next(place) && is_count(word) { "N" } else { word });
    kept.collect::<Vec<_>>().join(" ").replace("N rollout ", "N rollouts ")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_process_pauses_resumes_and_stops_a_run() {
    let server = slow_server().await;
    let setting = setting(&server, 2000);
    let first = engine(&setting).spawn().unwrap();
    first_result(&setting).await;
    insta::assert_snapshot!(without_counts(&said(&setting, &["pause", "test"]).await), @r"
    test-0 is paused, N rollouts running: continue it with `espalier resume test-0`
    exit 0
    ");
    insta::assert_snapshot!(without_counts(&said(&setting, &["pause", "test"]).await), @r"
    test-0 was paused already, N rollouts running
    exit 0
    ");
    let [run] = runs(&setting).await.as_array().unwrap().clone().try_into().unwrap();
    assert_eq!((&run["state"], &run["paused"]), (&Value::from("paused"), &Value::from(true)));
    // What runs goes on to its end, and then nothing does.
    let begun = Instant::now();
    while runs(&setting).await[0]["running"] != 0 {
        assert!(begun.elapsed() < BOUND, "a paused run still runs something");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let requests = server.counts().requests;
    insta::assert_snapshot!(said(&setting, &["resume", "test"]).await, @r"
    test-0 is running again
    exit 0
    ");
    insta::assert_snapshot!(without_counts(&said(&setting, &["resume", "test"]).await), @r"
    test-0 was not paused, N rollouts running
    exit 0
    ");
    let begun = Instant::now();
    while server.counts().requests == requests {
        assert!(begun.elapsed() < BOUND, "a resumed run runs nothing");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    insta::assert_snapshot!(without_counts(&said(&setting, &["stop", "test"]).await), @r"
    stopping test-0: N rollouts running, with 30.0 s to finish
    test-0 is stopped
    exit 0
    ");
    assert_eq!(end(first).await.status.code(), Some(130));
    insta::assert_snapshot!(said(&setting, &["stop", "test"]).await, @r"
    error: run test-0 is not running: it is stopped
    hint: continue it with `espalier run FILE`
    exit 3
    ");
    insta::assert_snapshot!(said(&setting, &["resume", "test"]).await, @r"
    error: run test-0 is not running: it is stopped
    hint: continue it with `espalier run FILE`
    exit 3
    ");

    // A pause outlives its engine, and is lifted where there is none, or by the next.
    let mut second = engine(&setting).spawn().unwrap();
    is(&setting, "running").await;
    said(&setting, &["pause", "test"]).await;
    second.kill().await.unwrap();
    is(&setting, "interrupted").await;
    insta::assert_snapshot!(said(&setting, &["resume", "test"]).await, @r"
    test-0 is no longer paused, but no engine works on it: continue it with `espalier run FILE`
    exit 0
    ");
    let third = engine(&setting).spawn().unwrap();
    is(&setting, "running").await;
    said(&setting, &["pause", "test"]).await;
    assert!(said(&setting, &["stop", "test", "--now"]).await.ends_with("exit 0"));
    assert_eq!(end(third).await.status.code(), Some(130));
    assert!(said(&setting, &["list"]).await.contains("stopped, paused"));
    let fourth = engine(&setting).spawn().unwrap();
    is(&setting, "paused").await;
    let requests = server.counts().requests;
    assert!(said(&setting, &["resume", "test"]).await.ends_with("exit 0"));
    let begun = Instant::now();
    while server.counts().requests == requests {
        assert!(begun.elapsed() < BOUND, "a resumed run runs nothing");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(said(&setting, &["stop", "test", "--now"]).await.ends_with("exit 0"));
    end(fourth).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_in_one_process_are_told_apart() {
    let server = slow_server().await;
    let (one, other) = (setting(&server, 2000), setting(&server, 20));
    let (commander, commands) = control::channel();
    let (others, other_commands) = control::channel();
    let teller = async {
        // Both are at work.
        first_result(&one).await;
        first_result(&other).await;
        assert_eq!(others.ask(Command::Pause).await.unwrap().phase, RunPhase::Paused);
        let answer = commander.ask(Command::Stop(StopMode::Cancel)).await.unwrap();
        assert_eq!(answer.phase, RunPhase::Cancelling);
        let answer = others.ask(Command::Resume).await.unwrap();
        assert_eq!(
            (answer.phase, answer.changed),
            (RunPhase::Admitting, true),
            "the other one is only paused"
        );
    };
    let (stopped, finished, ()) = tokio::join!(
        one.run_told(one.options(), commands),
        other.run_told(other.options(), other_commands),
        teller
    );
    assert_eq!(stopped.unwrap().state, RunEnd::Stopped);
    let finished = finished.unwrap();
    assert_eq!((finished.state, finished.counts.ended()), (RunEnd::Finished, 40));
    assert_eq!(other.left().await.groups, vec![Some(GroupStatus::Ready); 20]);
    assert!(one.left().await.groups.len() < 2000);
}

/// An engine that reads its tasks from standard input.
fn fed(setting: &Setting) -> Child {
    let mut command = engine(setting);
    command.args(["--tasks", "-"]).stdin(Stdio::piped()).spawn().unwrap()
}

async fn feed(engine: &mut Child, lines: &str) {
    engine.stdin.as_mut().unwrap().write_all(lines.as_bytes()).await.unwrap();
}

fn tasks(places: std::ops::Range<usize>) -> String {
    places.map(|i| format!("{{\"id\":\"t{i}\",\"instruction\":\"go\"}}\n")).collect()
}

async fn groups(setting: &Setting, closed: u64) {
    let begun = Instant::now();
    loop {
        let now = runs(setting).await;
        if now[0]["groups"]
            .as_object()
            .is_some_and(|groups| groups.values().filter_map(Value::as_u64).sum::<u64>() >= closed)
        {
            return;
        }
        assert!(begun.elapsed() < BOUND, "{now}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_are_taken_as_they_come_and_a_later_session_goes_on() {
    let server = slow_server().await;
    let setting = setting(&server, 1);
    let mut first = fed(&setting);
    feed(&mut first, &tasks(0..3)).await;
    // Carried out though more may come.
    groups(&setting, 3).await;
    assert_eq!(
        (&runs(&setting).await[0]["state"], &runs(&setting).await[0]["groups_planned"]),
        (&"running".into(), &Value::Null)
    );
    feed(&mut first, &tasks(3..30)).await;
    groups(&setting, 5).await;
    first.kill().await.unwrap();

    // Fed from the beginning again, with one line that is not a task and one that says something else of a known id.
    let mut second = fed(&setting);
    let other = "{\"id\":\"t0\",\"instruction\":\"another\"}\n";
    feed(&mut second, &format!("{}nonsense\n{other}{}", tasks(0..20), tasks(20..40))).await;
    drop(second.stdin.take());
    let output = end(second).await;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}");
    assert!(told.contains("a task is rejected: expected ident (column 2) line=21"), "{told}");
    assert!(told.contains("the run has a different task with the id \"t0\" line=22"), "{told}");
    let summary = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(summary.contains("(finished)") && summary.contains("40, 2 bad lines skipped"), "{summary}");
    let left = setting.left().await;
    assert_eq!(left.groups, vec![Some(GroupStatus::Ready); 40]);
    let store = setting.store().await;
    let run = store.runs().await.unwrap().remove(0);
    let mut ids: Vec<String> =
        store.groups(&run.run_id).await.unwrap().into_iter().map(|group| group.opened.task_id).collect();
    ids.sort_by_key(|id| id[1..].parse::<u32>().unwrap());
    assert_eq!(ids, (0..40).map(|i| format!("t{i}")).collect::<Vec<_>>(), "each task has one group");
    assert_eq!(store.check().await.unwrap().damage, []);
    store.close().await;

    // The same experiment with its own file is another run.
    let output = end(engine(&setting).stderr(Stdio::piped()).spawn().unwrap()).await;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{told}");
    assert!(told.contains("tasks.stream"), "{told}");
}
