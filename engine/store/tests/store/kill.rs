//! Engines that are killed or stopped at random points: nothing that was finished is lost or doubled.

use crate::backend::Backend;
use crate::on_both;
use crate::sample::{closed, opened, play, spec};
use espalier_core::samples::GroupStatus;
use espalier_store::{AttemptState, Finality, Holder, LEASE_MS, RunState, Start, Store, StoreError};
use rand::{RngExt, SeedableRng};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

const STORE: &str = "ESPALIER_TEST_STORE";
/// Set: the engine waits for a line on its standard input after its first group.
const PAUSE: &str = "ESPALIER_TEST_PAUSE";
const GROUPS: u64 = 40;
const SIZE: u32 = 4;

fn now_ms() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64
}

/// Not a test: the engine that the tests below kill. Plays what the run lacks, and says each rollout that is finished.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by the tests of this file"]
async fn engine() {
    let Ok(url) = std::env::var(STORE) else { return };
    let store = Store::open(&url.parse().unwrap()).await.unwrap();
    let claim =
        store.claim_run(&spec("a", 1), &Holder::this_process(), Start::Resume, now_ms()).await.unwrap();
    let run = claim.run;
    let said = |line: String| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{line}").unwrap();
        out.flush().unwrap();
    };
    said(format!("fence {}", run.fence()));
    let groups = run.progress().await.unwrap();
    for index in 0..GROUPS {
        let group = groups.iter().find(|group| group.opened.group_index == index);
        if group.is_some_and(|group| group.status.is_some()) {
            continue;
        }
        if group.is_none() {
            match run.open_group(opened(index)).await {
                Err(StoreError::Fenced { .. }) => return said("fenced".into()),
                result => result.unwrap(),
            }
        }
        let mut rollouts = tokio::task::JoinSet::new();
        for place in 0..SIZE {
            let known = group.and_then(|group| group.rollouts.get(&place));
            if known.is_some_and(|rollout| rollout.result().is_some()) {
                continue;
            }
            let attempt = known.map_or(0, |rollout| rollout.next_attempt());
            let run = run.clone();
            rollouts.spawn(async move {
                play(&run, index, place, attempt, Some(1.0), Finality::Final).await.map(|()| (index, place))
            });
        }
        for ended in rollouts.join_all().await {
            match ended {
                Ok((group, place)) => said(format!("done {group} {place}")),
                Err(StoreError::Fenced { .. }) => return said("fenced".into()),
                Err(error) => panic!("{error:?}"),
            }
        }
        match run.close_group(closed(index, GroupStatus::Short, SIZE, &[])).await {
            Err(StoreError::Fenced { .. }) => return said("fenced".into()),
            result => result.unwrap(),
        }
        if index == 0 && std::env::var_os(PAUSE).is_some() {
            said("waits".into());
            std::io::stdin().read_line(&mut String::new()).unwrap();
        }
    }
    run.release(RunState::Finished, now_ms()).await.unwrap();
    said("finished".into());
}

fn start(backend: &Backend) -> Child {
    command(backend).spawn().unwrap()
}

fn command(backend: &Backend) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "kill::engine", "--ignored", "--nocapture", "--test-threads=1"])
        .env(STORE, backend.argument())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

/// What the child says up to `most` lines of its own; `true`: it went on to its end.
fn listen(child: &mut Child, most: usize, said: &mut Vec<String>) -> bool {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let own = |line: &String| ["fence", "done", "finished"].iter().any(|word| line.contains(word));
    for _ in 0..most {
        match lines.by_ref().map(Result::unwrap).find(own) {
            Some(line) => said.push(line),
            None => return true,
        }
    }
    signal(child, "-KILL");
    // What it said before it died still lies in the pipe.
    said.extend(lines.map_while(Result::ok).filter(own));
    false
}

on_both! {
    async fn an_engine_killed_anywhere_loses_and_doubles_nothing(backend: Backend) {
        let seed: u64 = std::env::var("ESPALIER_TEST_SEED").map_or(7, |text| text.parse().unwrap());
        eprintln!("ESPALIER_TEST_SEED={seed}");
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        let store = backend.open().await;
        let (mut said, mut kills) = (Vec::new(), 0);
        loop {
            let mut child = start(&backend);
            let most = if kills < 12 { random.random_range(1..18) } else { usize::MAX };
            let ended = listen(&mut child, most, &mut said);
            assert!(kills < 12 || child.wait().unwrap().success());
            child.wait().unwrap();
            // All that was said to be done is there.
            let run_id = store.resolve_run("a").await.unwrap();
            for line in said.drain(..).filter(|line| line.contains("done")) {
                let words: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
                let attempts = store.attempts(&run_id, words[0]).await.unwrap();
                let results = attempts.iter().filter(|one| {
                    u64::from(one.rollout_index) == words[1] && matches!(one.state, AttemptState::Final(_))
                });
                let results: Vec<_> = results.collect();
                assert_eq!(results.len(), 1, "{line}");
                assert!(store.record(results[0]).await.unwrap().is_some());
            }
            if ended {
                break;
            }
            kills += 1;
        }
        let run_id = store.resolve_run("a").await.unwrap();
        let row = store.run(&run_id).await.unwrap();
        assert_eq!((row.state, row.rollouts.ended), (RunState::Finished, GROUPS * u64::from(SIZE)));
        assert_eq!((row.groups[&GroupStatus::Short], row.rollouts.running), (GROUPS, 0));
        let mut places = BTreeSet::new();
        for group in 0..GROUPS {
            for attempt in store.attempts(&run_id, group).await.unwrap() {
                if matches!(attempt.state, AttemptState::Final(_)) {
                    assert!(places.insert((group, attempt.rollout_index)), "{} is doubled", attempt.traj_id);
                }
            }
        }
        assert!(kills >= 5, "only {kills} kills met the run; seed {seed}");
    }

    async fn an_engine_stopped_beyond_its_lease_is_fenced_off(backend: Backend) {
        let store = backend.open().await;
        let mut child = command(&backend).env(PAUSE, "1").stdin(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        lines.by_ref().find(|line| line.contains("waits")).unwrap();
        signal(&child, "-STOP");
        let here = Holder::this_process();
        // It is there, only silent: nobody takes over before its lease has run out.
        let early = store.claim_run(&spec("a", 1), &here, Start::Resume, now_ms()).await;
        assert!(matches!(early, Err(StoreError::Held { .. })), "{early:?}");
        let later = now_ms() + LEASE_MS;
        let claim = store.claim_run(&spec("a", 1), &here, Start::Resume, later).await.unwrap();
        assert_eq!(claim.taken_from.map(|holder| holder.pid), Some(child.id()));
        let before = store.run(claim.run.run_id()).await.unwrap().rollouts.ended;
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        signal(&child, "-CONT");
        assert!(lines.any(|line| line.contains("fenced")));
        assert!(child.wait().unwrap().success());
        assert_eq!(store.run(claim.run.run_id()).await.unwrap().rollouts.ended, before);
        tokio::time::timeout(Duration::from_secs(10), claim.run.renew(later)).await.unwrap().unwrap();
    }
}
