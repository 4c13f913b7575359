//! Whoever asks for a sandbox may go at any moment: what was begun is undone, and nobody else notices.

use crate::support::{Leftovers, Place, Polls, found_by_the_next, keeper_pid, kill, open, order};
use espalier_core::sandbox::SandboxSpec;
use espalier_keeper::wire::{Environment, Order};
use espalier_sandbox::service::{Purpose, Sandbox, Sandboxes};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use rustix::process::{Pid, Signal};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

const SEED: u64 = 17;
/// Requests that are cut at least.
const CUT: usize = 40;

/// Variables of 1 MiB: the request is longer than what a socket holds.
fn large() -> SandboxSpec {
    let env = (0..9).map(|number| (format!("V{number}"), "\u{1}".repeat(110_000)));
    SandboxSpec { env: env.collect(), memory: 64 << 20, ..SandboxSpec::default() }
}

async fn ids(place: &Place) -> Vec<String> {
    let mut ids: Vec<String> =
        place.local.list().await.unwrap().into_iter().map(|placed| placed.id).collect();
    ids.sort();
    ids
}

fn ids_of(sandboxes: &[Sandbox]) -> Vec<String> {
    let mut ids: Vec<String> = sandboxes.iter().map(|sandbox| sandbox.placed.id.clone()).collect();
    ids.sort();
    ids
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn three_who_cut_their_large_requests_hurt_nobody_and_leave_nothing() {
    let place = Place::new();
    let service = place.service(None);
    let small = SandboxSpec { memory: 64 << 20, ..SandboxSpec::default() };
    // The image of this machine is made once.
    let first = service.create(&small, &Purpose::new("first")).await.unwrap();
    let (stop, cut) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let attackers: Vec<_> = (0..3)
        .map(|number| {
            let (service, stop, cut) = (service.clone(), Arc::clone(&stop), Arc::clone(&cut));
            tokio::spawn(async move {
                let mut random = StdRng::seed_from_u64(SEED + number);
                let (mut spec, purpose) = (large(), Purpose::new(format!("attacker-{number}")));
                // Still more than a socket holds.
                spec.env.retain(|name, _| ["V0", "V1", "V2", "V3"].contains(&name.as_str()));
                while !stop.load(Ordering::Relaxed) {
                    let polls = random.random_range(1..9);
                    match Polls::at_most(polls, service.create(&spec, &purpose)).await {
                        Some(Ok(made)) => drop(service.hold(&made)),
                        // Whole requests fail beside those that are cut: that is what is looked for, and ends it.
                        Some(Err(error)) => return Err(error.to_string()),
                        None => drop(cut.fetch_add(1, Ordering::Relaxed)),
                    }
                    tokio::task::yield_now().await;
                }
                Ok(())
            })
        })
        .collect();
    // Held: their agents are spoken to, however long it takes.
    let mut own = vec![first];
    let mut failed = None;
    let is_attacked = || !attackers.iter().any(tokio::task::JoinHandle::is_finished);
    while failed.is_none() && is_attacked() && (own.len() < 20 || cut.load(Ordering::Relaxed) < CUT) {
        match service.create(&small, &Purpose::new("other")).await {
            Ok(made) => own.push(made),
            Err(error) => failed = Some(error.to_string()),
        }
    }
    stop.store(true, Ordering::Relaxed);
    let cut_short = format!("seed {SEED}, after {} creations of the other", own.len());
    for attacker in attackers {
        assert_eq!(attacker.await.unwrap(), Ok(()), "{cut_short}");
    }
    assert_eq!(failed, None, "{cut_short}");
    // Waits for what is being deleted, and keeps what others hold.
    service.close().await;
    assert_eq!(ids(&place).await, ids_of(&own));
    for sandbox in own {
        service.delete(&sandbox.placed.id).await.unwrap();
    }
}

#[tokio::test]
async fn a_sandbox_whose_engine_goes_while_it_is_made_is_not_made() {
    let place = Place::new();
    // Its keeper runs, and goes on.
    place.host("stays").await;
    let before = Leftovers::of(&place);
    // Its agent is held before it takes calls, or it was faster, and another is made.
    for number in 0..20 {
        let (folder, id) = (place.folder.clone(), format!("gone-{number}"));
        // An engine of its own; all its connections close with it.
        let engine = std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let is_cut = runtime.block_on(is_held_while_made(&folder, &id));
            runtime.shutdown_background();
            is_cut
        });
        let is_cut = tokio::task::spawn_blocking(|| engine.join().unwrap()).await.unwrap();
        if is_cut {
            before.are_back(&place).await;
            assert_eq!(ids(&place).await, ["stays"]);
            return;
        }
        place.local.delete(&format!("gone-{number}")).await.unwrap();
        before.are_back(&place).await;
    }
    panic!("no agent could be held before it took calls");
}

/// Begins to make a sandbox and holds its agent; false where that took calls before.
async fn is_held_while_made(folder: &Path, id: &str) -> bool {
    let record = folder.join(format!("sandboxes/{id}.json"));
    let (local, order) = (open(folder), order(folder, id));
    let mut create = std::pin::pin!(local.create(&order, &[]));
    let held = std::future::poll_fn(|context| {
        if let Some(pid) = process_of(&record) {
            let held = rustix::process::kill_process(pid, Signal::STOP);
            return Poll::Ready(held.is_ok());
        }
        context.waker().wake_by_ref();
        create.as_mut().poll(context).map(|_| false)
    });
    // What its agent said before it was held is answered within this.
    held.await && tokio::time::timeout(Duration::from_secs(1), create).await.is_err()
}

/// The process that a record names, once it runs.
fn process_of(record: &Path) -> Option<Pid> {
    let written = std::fs::read_to_string(record).ok()?;
    let record: serde_json::Value = serde_json::from_str(&written).ok()?;
    Pid::from_raw(i32::try_from(record["pid"].as_i64()?).ok()?)
}

#[tokio::test]
async fn a_creation_that_arrives_after_its_deletion_makes_nothing() {
    let place = Place::new();
    place.local.delete("late").await.unwrap();
    let error = place.local.create(&order(&place.folder, "late"), &[]).await.unwrap_err().to_string();
    assert_eq!(error, "sandbox late was deleted before it was created");
    assert!(place.local.delete_checkpoint("late").await.is_err());
    place.host("origin").await;
    let error = place.local.checkpoint("origin", "late").await.unwrap_err().to_string();
    assert_eq!(error, "checkpoint late was deleted before it was created");
    assert_eq!(ids(&place).await, ["origin"]);
    place.local.delete("origin").await.unwrap();
}

#[tokio::test]
async fn a_checkpoint_that_is_cut_at_any_point_is_kept_whole_or_not_at_all() {
    let place = Place::new();
    let service = place.service(None);
    let spec = SandboxSpec { memory: 64 << 20, ..SandboxSpec::default() };
    let origin = service.create(&spec, &Purpose::new("test")).await.unwrap();
    let mut kept = Vec::new();
    for polls in 1..16 {
        if let Some(made) = Polls::at_most(polls, service.checkpoint(&origin.placed.id)).await {
            kept.push(made.unwrap().id);
        }
    }
    service.close().await;
    kept.sort();
    let left: Vec<String> =
        place.local.checkpoints(false).await.unwrap().into_iter().map(|kept| kept.id).collect();
    assert_eq!(left, kept);
    for id in kept {
        service.delete_checkpoint(&id).await.unwrap();
    }
    service.delete(&origin.placed.id).await.unwrap();
}

#[tokio::test]
async fn what_is_deleted_while_the_keeper_dies_is_deleted_by_the_next() {
    let place = Place::new();
    let service = place.service(None);
    let spec = SandboxSpec { memory: 64 << 20, ..SandboxSpec::default() };
    let made = service.create(&spec, &Purpose::new("test")).await.unwrap();
    let hold = service.hold(&made);
    kill(keeper_pid(&place));
    drop(hold);
    service.close().await;
    assert_eq!(found_by_the_next(&place, 0).await.len(), 0);
    assert!(place.local.find(&made.placed.id).await.unwrap().is_none());
}

/// What is kept ready and is being taken when its taker goes, is nobody's.
#[tokio::test]
async fn a_warm_sandbox_whose_taker_goes_is_ended() {
    let place = Place::new();
    let service = place.service(None);
    let spec = SandboxSpec { memory: 64 << 20, ..SandboxSpec::default() };
    service.keep_warm(1);
    let own = service.create_warm(&spec, &Purpose::new("own")).await.unwrap();
    for polls in 1..12 {
        kinds_are_ready(&place, &service, &["/root".to_owned()]).await;
        let taken = Polls::at_most(polls, service.create_warm(&spec, &Purpose::new("taker"))).await;
        if let Some(made) = taken {
            drop(service.hold(&made.unwrap()));
        }
        // Something is kept ready after each use that was whole.
        let used = service.create_warm(&spec, &Purpose::new("user")).await.unwrap();
        drop(service.hold(&used));
    }
    service.close().await;
    assert_eq!(ids(&place).await, [own.placed.id.as_str()]);
    service.delete(&own.placed.id).await.unwrap();
}

#[tokio::test]
async fn as_many_are_kept_ready_as_the_bound_says_whatever_they_are() {
    let place = Place::new();
    let service = place.service(None);
    let folder = |number: usize| format!("/root/task-{number}");
    let of = |number: usize| SandboxSpec {
        memory: 64 << 20,
        workdir: Some(folder(number)),
        ..SandboxSpec::default()
    };
    service.keep_warm(3);
    let mut own = Vec::new();
    let mut expected = Vec::new();
    // The last of these kinds find one ready, the first does not.
    for (number, is_ready) in
        [0, 1, 2, 3, 4, 5].map(|number| (number, false)).into_iter().chain([(5, true), (4, true), (0, false)])
    {
        let warm: Vec<String> = warm(&place).await.into_iter().map(|(_, id)| id).collect();
        let made = service.create_warm(&of(number), &Purpose::new("test")).await.unwrap();
        assert_eq!(warm.contains(&made.placed.id), is_ready, "kind {number}");
        let placed = place.local.find(&made.placed.id).await.unwrap().unwrap();
        assert!(!placed.labels.contains_key("espalier.warm"), "it is somebody's");
        own.push(made);
        expected.retain(|kind| *kind != folder(number));
        expected.push(folder(number));
        if expected.len() > 3 {
            expected.remove(0);
        }
        let mut sorted = expected.clone();
        sorted.sort();
        kinds_are_ready(&place, &service, &sorted).await;
    }
    service.close().await;
    assert_eq!(ids(&place).await, ids_of(&own), "what is in use stays");
    for sandbox in own {
        service.delete(&sandbox.placed.id).await.unwrap();
    }
}

/// Where commands start in the sandboxes that are kept ready, with their ids.
async fn warm(place: &Place) -> Vec<(String, String)> {
    let all = place.local.list().await.unwrap();
    let warm = all.into_iter().filter(|placed| placed.labels.contains_key("espalier.warm"));
    let mut warm: Vec<(String, String)> =
        warm.map(|placed| (placed.labels["espalier.workdir"].clone(), placed.id)).collect();
    warm.sort();
    warm
}

/// Waits until these are kept ready and no others are being deleted.
async fn kinds_are_ready(place: &Place, service: &Sandboxes, kinds: &[String]) {
    let mut last = Vec::new();
    for _ in 0..800 {
        last = warm(place).await.into_iter().map(|(folder, _)| folder).collect::<Vec<_>>();
        if last == kinds && service.warm_ready() == kinds.len() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(25)).await;
    }
    panic!("never {kinds:?}: {last:?}");
}

#[tokio::test]
async fn requests_of_one_connection_may_be_longer_together_than_the_keeper_reads_at_once() {
    let place = Place::new();
    let environment: Vec<(String, String)> = large().env.into_iter().collect();
    let here = &place;
    let made = futures::future::join_all((0..24).map(|number| {
        let order = Order {
            environment: Some(Environment::of(&environment)),
            ..order(&here.folder, &format!("long-{number}"))
        };
        async move { here.local.create(&order, &[]).await.map(drop) }
    }))
    .await;
    for one in made {
        one.unwrap();
    }
    assert_eq!(ids(&place).await.len(), 24);
    futures::future::join_all((0..24).map(|number| async move {
        here.local.delete(&format!("long-{number}")).await.unwrap();
    }))
    .await;
}
