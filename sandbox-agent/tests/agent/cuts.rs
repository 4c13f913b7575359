//! Connections cut at random points: every call happens exactly once, every byte arrives once.

use crate::support::{Ran, SECRET, Sandbox, Way, config, ways};
use bytes::Bytes;
use espalier_agent_client::files::Source;
use espalier_agent_client::wire::{self, CommandSpec, Reason, outcome::Outcome};
use espalier_agent_client::{Agent, Event, Excerpts, Id, Identity, Secret, command};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

/// Between client and agent: lets each connection live for a random number of bytes.
pub struct Proxy {
    socket: PathBuf,
    cuts: Arc<AtomicUsize>,
    cut_all: Arc<tokio::sync::Notify>,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    pub fn start(folder: &Path, seed: u64, most: usize) -> Proxy {
        let socket = folder.join(format!("proxy-{seed}"));
        let listener = UnixListener::bind(&socket).unwrap();
        let target = folder.join("socket");
        let cuts = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&cuts);
        let cut_all = Arc::new(tokio::sync::Notify::new());
        let cut = Arc::clone(&cut_all);
        let task = tokio::spawn(async move {
            let mut random = StdRng::seed_from_u64(seed);
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = UnixStream::connect(&target).await else { return };
                // Most are cut early, at every stage of a call; some live long.
                let bytes = match random.random_range(0..10) {
                    0..5 => random.random_range(200..1_500),
                    5..8 => random.random_range(1_500..20_000),
                    _ => random.random_range(20_000..most),
                };
                let (counter, cut) = (Arc::clone(&counter), Arc::clone(&cut));
                tokio::spawn(async move {
                    tokio::select! {
                        () = carry(near, far, bytes) => {}
                        () = cut.notified() => {}
                    }
                    counter.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        Proxy { socket, cuts, cut_all, task }
    }

    /// Cuts that have been.
    pub fn cuts(&self) -> usize {
        self.cuts.load(Ordering::Relaxed)
    }

    /// Cuts every connection that is open.
    pub fn cut_all(&self) {
        self.cut_all.notify_waiters();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Copies both ways until so many bytes have passed in all, then drops both streams at once.
async fn carry(mut near: UnixStream, mut far: UnixStream, bytes: usize) {
    let mut left = bytes;
    let (mut out, mut back) = ([0; 4096], [0; 4096]);
    while left > 0 {
        let (limit_out, limit_back) = (left.min(out.len()), left.min(back.len()));
        tokio::select! {
            read = near.read(&mut out[..limit_out]) => match read {
                Ok(count) if count > 0 && far.write_all(&out[..count]).await.is_ok() => left -= count,
                _ => return,
            },
            read = far.read(&mut back[..limit_back]) => match read {
                Ok(count) if count > 0 && near.write_all(&back[..count]).await.is_ok() => left -= count,
                _ => return,
            },
        }
    }
}

fn count(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

pub async fn cut_client(sandbox: &Sandbox, proxy: &Proxy, client: &str) -> Agent {
    let mut config = config(proxy.socket.clone(), client);
    config.secret = Secret::new(SECRET);
    config.identity = Identity::new(client);
    // The proxy's socket stands while the test runs, whatever the agent does.
    config.reconnect_within = std::time::Duration::from_secs(30);
    let agent = Agent::connect(config).await.unwrap();
    assert_eq!(agent.hello().boot, sandbox.agent.hello().boot);
    agent
}

/// How often each number stands in a file of numbers.
fn counts(path: &Path, below: usize) -> Vec<usize> {
    let mut counts = vec![0; below];
    for line in std::fs::read_to_string(path).unwrap_or_default().lines() {
        counts[line.parse::<usize>().unwrap()] += 1;
    }
    counts
}

#[tokio::test]
async fn commands_run_once_and_bytes_arrive_once() {
    let seed = 23;
    let number_of = count("ESPALIER_CUTS", 240);
    let way = if ways().contains(&Way::ProcessOne) { Way::ProcessOne } else { Way::Beside };
    let sandbox = Sandbox::start(way).await;
    let proxy = Proxy::start(sandbox.folder.path(), seed, 50_000);
    let agent = &cut_client(&sandbox, &proxy, "cut").await;
    let counter = &sandbox.path("counter");
    let slots = &tokio::sync::Semaphore::new(8);
    let one = async |number: usize| {
        let _slot = slots.acquire().await.unwrap();
        let lines = number * 37 % 400;
        let text = format!("echo {number} >>{}; seq 1 {lines}; echo e{number} >&2", counter.display());
        let expect: String = (1..=lines).map(|line| format!("{line}\n")).collect();
        let id = agent.allot();
        if number.is_multiple_of(2) {
            let answer =
                agent.run(&id, command::script(text), Excerpts { head_bytes: 1 << 20, tail_bytes: 0 }).await;
            let ran = Ran::of(answer.unwrap());
            assert_eq!(
                (ran.outcome, ran.out, ran.err),
                (Outcome::ExitCode(0), expect, format!("e{number}\n"))
            );
        } else {
            let (out, err, ended) = agent.exec(&id, command::script(text)).collect().await.unwrap();
            assert_eq!(ended.outcome.unwrap().outcome, Some(Outcome::ExitCode(0)));
            assert_eq!(String::from_utf8(out).unwrap(), expect);
            assert_eq!(String::from_utf8(err).unwrap(), format!("e{number}\n"));
        }
        if number.is_multiple_of(5) {
            agent.ack(vec![id]).await.unwrap();
        }
    };
    futures::future::join_all((0..number_of).map(one)).await;
    assert_eq!(counts(counter, number_of), vec![1; number_of], "seed {seed}");
    let cuts = proxy.cuts();
    assert!(cuts >= number_of / 20, "only {cuts} cuts");
}

#[tokio::test]
async fn input_arrives_once() {
    let seed = 29;
    let sandbox = Sandbox::start(Way::Beside).await;
    let proxy = Proxy::start(sandbox.folder.path(), seed, 400_000);
    let agent = cut_client(&sandbox, &proxy, "cut").await;
    let mut random = StdRng::seed_from_u64(seed);
    let id = agent.allot();
    agent.start(&id, CommandSpec { stdin_open: true, ..command::arguments(["cat"]) }).await.unwrap();
    let mut sent = Vec::new();
    for _ in 0..count("ESPALIER_CUTS", 240) {
        let piece: Vec<u8> = (0..random.random_range(1..3000)).map(|_| random.random()).collect();
        let answer =
            agent.input(&agent.allot(), &id, sent.len() as u64, piece.clone().into(), false).await.unwrap();
        sent.extend_from_slice(&piece);
        assert_eq!(answer.taken, sent.len() as u64);
    }
    agent.input(&agent.allot(), &id, sent.len() as u64, Bytes::new(), true).await.unwrap();
    let (out, _, _) =
        agent.attach(&id, espalier_agent_client::Offsets::default(), false).collect().await.unwrap();
    assert!(out == sent, "seed {seed}: {} of {} bytes", out.len(), sent.len());
    assert!(proxy.cuts() > 2);
}

#[tokio::test]
async fn scripts_of_a_shell_run_once() {
    let seed = 31;
    let sandbox = Sandbox::start(Way::Beside).await;
    let proxy = Proxy::start(sandbox.folder.path(), seed, 21_000);
    let agent = cut_client(&sandbox, &proxy, "cut").await;
    let shell = agent.allot();
    agent.open_shell(&shell, wire::OpenShellRequest::default()).await.unwrap();
    for number in 1..=count("ESPALIER_CUTS", 240) {
        let text = "n=$((n + 1)); echo $n";
        let ran = Ran::of(
            agent.run(&agent.allot(), command::in_shell(&shell, text), Excerpts::default()).await.unwrap(),
        );
        assert_eq!(ran.out, format!("{number}\n"), "seed {seed}");
    }
    assert!(proxy.cuts() > 2);
}

#[tokio::test]
async fn files_are_written_moved_patched_and_removed_once() {
    let seed = 37;
    let sandbox = Sandbox::start(Way::Beside).await;
    let proxy = Proxy::start(sandbox.folder.path(), seed, 900_000);
    let agent = cut_client(&sandbox, &proxy, "cut").await;
    let mut random = StdRng::seed_from_u64(seed);
    let folder = sandbox.path("files");
    std::fs::create_dir(&folder).unwrap();
    let at = |name: &str| folder.join(name).display().to_string();
    std::fs::write(at("count"), "line 0\n").unwrap();
    for number in 0..count("ESPALIER_CUTS", 120) {
        let content: Vec<u8> = (0..random.random_range(0..200_000)).map(|_| random.random()).collect();
        let header =
            wire::WriteHeader { path: at("new").into(), create_new: true, ..wire::WriteHeader::default() };
        // A second write would find the file there; a second move would find nothing; a second patch would not apply.
        agent.write(&agent.allot(), header, Source::Bytes(content.clone().into())).await.unwrap();
        agent.move_to(&agent.allot(), at("new"), at("moved"), false).await.unwrap();
        let read = agent.read(at("moved"), 0, 0).await.unwrap().collect(1 << 20).await.unwrap();
        assert!(read == content, "seed {seed}, {number}");
        assert_eq!(agent.remove(&agent.allot(), at("moved"), false, false).await.unwrap(), 1);
        let patch = format!("--- a/count\n+++ b/count\n@@ -1 +1 @@\n-line {number}\n+line {}\n", number + 1);
        let request = wire::ApplyPatchRequest {
            root: folder.display().to_string().into(),
            patch: patch.into(),
            ..wire::ApplyPatchRequest::default()
        };
        agent.apply_patch(&agent.allot(), request).await.unwrap();
    }
    let left: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["count"], "no draft of a cut write is left");
    assert!(proxy.cuts() > 2);
}

fn spec(text: &str) -> CommandSpec {
    command::script(text.to_owned())
}

#[tokio::test]
async fn ids_out_of_order_and_in_parallel() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let agent = &sandbox.agent;
    let counter = sandbox.path("counter");
    let mut ids: Vec<(usize, Id)> = (0..60).map(|number| (number, agent.allot())).collect();
    let mut random = StdRng::seed_from_u64(41);
    for place in (1..ids.len()).rev() {
        ids.swap(place, random.random_range(0..=place));
    }
    // Each is sent three times at once.
    let runs = ids.iter().cycle().take(ids.len() * 3).map(|(number, id)| {
        let spec = spec(&format!("echo {number} >>{}; echo {number}", counter.display()));
        async move {
            let ran = Ran::of(agent.run(id, spec, Excerpts::default()).await.unwrap());
            assert_eq!(ran.out, format!("{number}\n"));
        }
    });
    futures::future::join_all(runs).await;
    assert_eq!(counts(&counter, 60), vec![1; 60]);
}

#[tokio::test]
async fn what_is_forgotten_is_expired_and_never_runs_again() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let agent = &sandbox.agent;
    let counter = sandbox.path("counter");
    let text = |number: usize| format!("echo {number} >>{}", counter.display());
    let acked = agent.allot();
    agent.run(&acked, spec(&text(0)), Excerpts::default()).await.unwrap();
    agent.ack(vec![acked.clone()]).await.unwrap();
    let refused = agent.run(&acked, spec(&text(0)), Excerpts::default()).await.unwrap_err();
    assert_eq!(refused.reason(), Some(Reason::Expired), "{refused}");
    // The same id for something else.
    let used = agent.allot();
    agent.run(&used, spec(&text(1)), Excerpts::default()).await.unwrap();
    let refused = agent.run(&used, spec("true"), Excerpts::default()).await.unwrap_err();
    assert_eq!(refused.reason(), Some(Reason::IdReused), "{refused}");
    let refused = agent.remove(&used, "/no/where", false, true).await.unwrap_err();
    assert_eq!(refused.reason(), Some(Reason::IdReused), "{refused}");
    // Evicted by number.
    let evicted = agent.allot();
    agent.run(&evicted, spec(&text(2)), Excerpts::default()).await.unwrap();
    for _ in 0..2100 {
        agent.remove(&agent.allot(), "/no/where", false, true).await.unwrap();
    }
    let refused = agent.run(&evicted, spec(&text(2)), Excerpts::default()).await.unwrap_err();
    assert_eq!(refused.reason(), Some(Reason::Expired), "{refused}");
    // An older epoch than one that was seen.
    let mut config = config(sandbox.path("socket"), "test");
    config.identity = Identity { epoch: 2, ..Identity::new("test") };
    let newer = Agent::connect(config).await.unwrap();
    newer.run(&newer.allot(), spec(&text(3)), Excerpts::default()).await.unwrap();
    let refused = agent.run(&agent.allot(), spec(&text(4)), Excerpts::default()).await.unwrap_err();
    assert_eq!(refused.reason(), Some(Reason::Expired), "{refused}");
    assert_eq!(counts(&counter, 5), [1, 1, 1, 1, 0]);
}

#[tokio::test]
async fn a_restarted_agent_runs_nothing_of_before() {
    let mut sandbox = Sandbox::start(Way::Beside).await;
    let counter = sandbox.path("counter");
    let text = format!("echo 0 >>{}", counter.display());
    let id = sandbox.agent.allot();
    sandbox.agent.run(&id, spec(&text), Excerpts::default()).await.unwrap();
    let old_boot = sandbox.agent.hello().boot.clone();
    sandbox.kill();
    let lost = sandbox.agent.run(&id, spec(&text), Excerpts::default()).await.unwrap_err();
    assert!(
        matches!(&lost, espalier_agent_client::AgentError::Lost(loss) if loss.to_string() == "the agent is gone"),
        "{lost:?}"
    );
    let (mut child, _) = crate::support::spawn(Way::Beside, sandbox.folder.path(), &[]);
    let again = crate::support::connect(sandbox.folder.path(), "test").await.unwrap();
    assert_ne!(again.hello().boot, old_boot);
    // The old client's call reaches the new agent with the old boot.
    let call = wire::Call { id: Some(id), floor: 0, boot: old_boot };
    let refused = again.run_as(call, spec(&text)).await.unwrap_err();
    assert_eq!(refused.reason(), Some(Reason::Expired), "{refused}");
    assert_eq!(counts(&counter, 1), [1]);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test]
async fn a_reader_that_lags_is_told_of_the_gap() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let agent = &sandbox.agent;
    let id = agent.allot();
    let spec = CommandSpec {
        output_keep_bytes: 1 << 20,
        ..spec("head -c 8000000 /dev/zero | tr '\\0' x; echo end")
    };
    agent.run(&id, spec, Excerpts::default()).await.unwrap();
    let mut follow = agent.attach(&id, espalier_agent_client::Offsets::default(), false);
    let (mut bytes, mut lost) = (0, 0);
    while let Some(event) = follow.next().await.unwrap() {
        match event {
            Event::Output { bytes: piece, .. } => bytes += piece.len() as u64,
            Event::Gap { from, to, .. } => lost += to - from,
            Event::Ended(ended) => assert_eq!(ended.stdout_bytes, 8_000_004),
        }
    }
    assert_eq!((bytes, lost), (1 << 20, 8_000_004 - (1 << 20)));
}
