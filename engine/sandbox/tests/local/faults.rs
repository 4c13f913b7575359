//! What goes wrong in other sandboxes, each a test of its name: it must not happen here. The agent's own tests try the same in
//! every way in which it is run; here it is process 1 of a sandbox as an experiment gets it.

use crate::support::{Place, Sandbox, order};
use espalier_agent_client::wire::{CommandSpec, OpenShellRequest, TimedOut, outcome::Outcome};
use espalier_agent_client::{
    Agent, Config, Endpoint, Event, Excerpts, Identity, Offsets, Secret, command, wire,
};
use espalier_keeper::wire::{Order, Reach};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::{UnixListener, UnixStream};

const TIMED_OUT: Outcome = Outcome::TimedOut(TimedOut { unkillable: 0 });

fn spec(text: &str) -> CommandSpec {
    command::script(text.to_owned())
}

/// Outcome and the first bytes of both outputs.
fn told(answer: wire::RunAnswer) -> (Outcome, String, String) {
    let text = |excerpt: Option<wire::Excerpt>| {
        String::from_utf8_lossy(&excerpt.unwrap_or_default().head).into_owned()
    };
    let outcome = answer.ended.unwrap().outcome.unwrap().outcome.unwrap();
    (outcome, text(answer.stdout), text(answer.stderr))
}

async fn run(sandbox: &Sandbox, spec: CommandSpec) -> (Outcome, String, String) {
    told(sandbox.spec_as_it_is(spec).await)
}

async fn plain(place: &Place) -> Sandbox {
    place.host("faults").await
}

#[tokio::test]
async fn a_timeout_kills_the_agents_own_process_group_and_the_output_is_lost() {
    let place = Place::new();
    let sandbox = plain(&place).await;
    let text = "echo printed; echo warned >&2; kill -STOP 0";
    let (outcome, out, err) = run(&sandbox, CommandSpec { timeout_ms: 300, ..spec(text) }).await;
    assert_eq!((outcome, &*out, &*err), (TIMED_OUT, "printed\n", "warned\n"));
    assert_eq!(sandbox.run("echo alive").await.0, "alive\n");
}

#[tokio::test]
async fn a_timeout_kills_only_the_leader_and_children_survive() {
    let place = Place::new();
    let sandbox = plain(&place).await;
    let text = "setsid sleep 777 & (sleep 777 &) ; sleep 777";
    let (outcome, _, _) = run(&sandbox, CommandSpec { timeout_ms: 500, ..spec(text) }).await;
    assert_eq!(outcome, TIMED_OUT);
    let left = "grep -lz '^777' /proc/[0-9]*/cmdline 2>/dev/null | grep -v self | wc -l";
    assert_eq!(sandbox.run(left).await.0, "0\n");
}

/// Between client and agent: every connection is cut after a random number of bytes.
struct Cutter {
    socket: PathBuf,
    cuts: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Cutter {
    fn start(folder: &Path, target: PathBuf, seed: u64) -> Cutter {
        let socket = folder.join("cutter");
        let listener = UnixListener::bind(&socket).unwrap();
        let cuts = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&cuts);
        let task = tokio::spawn(async move {
            let mut random = StdRng::seed_from_u64(seed);
            while let Ok((mut near, _)) = listener.accept().await {
                let Ok(mut far) = UnixStream::connect(&target).await else { return };
                let (out, back) = (random.random_range(200..4_000), random.random_range(200..20_000));
                let counter = Arc::clone(&counter);
                tokio::spawn(async move {
                    let ((mut from_near, mut to_near), (mut from_far, mut to_far)) =
                        (near.split(), far.split());
                    let mut out = tokio::io::AsyncReadExt::take(&mut from_near, out);
                    let mut back = tokio::io::AsyncReadExt::take(&mut from_far, back);
                    // The first that has had its bytes cuts both.
                    tokio::select! {
                        _ = tokio::io::copy(&mut out, &mut to_far) => {}
                        _ = tokio::io::copy(&mut back, &mut to_near) => {}
                    }
                    counter.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        Cutter { socket, cuts, task }
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn socket_of(sandbox: &Sandbox) -> std::path::PathBuf {
    match &sandbox.placed.address.endpoint {
        Endpoint::Unix(socket) => socket.clone(),
        other => panic!("{other:?} of a sandbox of this machine"),
    }
}

#[tokio::test]
async fn a_dropped_connection_is_retried_by_sending_the_command_again() {
    const COMMANDS: usize = 200;
    let place = Place::new();
    let sandbox = plain(&place).await;
    let folder = tempfile::tempdir().unwrap();
    let cutter = Cutter::start(folder.path(), socket_of(&sandbox), 47);
    let endpoint = Endpoint::Unix(cutter.socket.clone());
    let mut config = Config::new(endpoint, sandbox.placed.address.secret.clone(), "cut");
    config.identity = Identity::new("cut");
    let agent = &Agent::connect(config).await.unwrap();
    let slots = &tokio::sync::Semaphore::new(8);
    let one = |number: usize| async move {
        let _slot = slots.acquire().await.unwrap();
        let text = format!("echo {number} >>/root/counter; seq 1 {}", number * 37 % 400);
        let (id, whole) = (agent.allot(), Excerpts { head_bytes: 1 << 20, tail_bytes: 0 });
        let answer = agent.run(&id, spec(&text), whole);
        let expect: String = (1..=number * 37 % 400).map(|line| format!("{line}\n")).collect();
        assert_eq!(told(answer.await.unwrap()).1, expect);
    };
    futures::future::join_all((0..COMMANDS).map(one)).await;
    let expect: String = (0..COMMANDS).map(|number| format!("{number}\n")).collect();
    assert_eq!(sandbox.run("sort -n /root/counter").await.0, expect);
    assert!(cutter.cuts.load(Ordering::Relaxed) > COMMANDS / 10);
}

#[tokio::test]
async fn a_command_that_leaves_a_background_child_blocks_until_the_child_ends() {
    let place = Place::new();
    let sandbox = plain(&place).await;
    let answer = sandbox.spec_as_it_is(spec("sleep 1000 & echo hi")).await;
    assert_eq!(answer.ended.as_ref().unwrap().left_running, 1);
    let (outcome, out, _) = told(answer);
    assert_eq!((outcome, &*out), (Outcome::ExitCode(0), "hi\n"));
    // And the child goes on.
    assert_eq!(sandbox.run("pgrep -c sleep || ps -e | grep -c sleep").await.0, "1\n");
}

#[tokio::test]
async fn output_is_buffered_without_bound() {
    let place = Place::new();
    let sandbox = plain(&place).await;
    let answer = sandbox.spec_as_it_is(spec("head -c 100000000 /dev/zero")).await;
    assert_eq!(answer.ended.unwrap().stdout_bytes, 100_000_000);
    let status = format!("/proc/{}/status", sandbox.placed.pid.unwrap());
    let status = std::fs::read_to_string(status).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 16 << 10, "{peak} KiB");
}

#[tokio::test]
async fn on_a_timeout_there_is_no_partial_output_and_124_is_taken_for_one() {
    let place = Place::new();
    let sandbox = plain(&place).await;
    let (outcome, out, _) =
        run(&sandbox, CommandSpec { timeout_ms: 400, ..spec("seq 1 1000; sleep 60") }).await;
    let expect: String = (1..=1000).map(|number| format!("{number}\n")).collect();
    assert_eq!((outcome, out), (TIMED_OUT, expect));
    assert_eq!(run(&sandbox, spec("exit 124")).await.0, Outcome::ExitCode(124));
}

#[tokio::test]
async fn commands_of_one_sandbox_queue_behind_each_other() {
    let place = Place::new();
    let sandbox = plain(&place).await;
    let server = sandbox.agent.allot();
    sandbox.agent.start(&server, spec("sleep 100000")).await.unwrap();
    // It would wait for ever.
    let beside = tokio::time::timeout(std::time::Duration::from_secs(60), sandbox.run("echo not queued"));
    assert_eq!(beside.await.unwrap().0, "not queued\n");
    let listed = sandbox.agent.list().await.unwrap();
    assert!(listed.iter().any(|one| one.id.as_ref() == Some(&server) && one.ended.is_none()));
}

#[tokio::test]
async fn after_a_timeout_in_a_shell_the_next_command_gets_the_old_output_and_exit_breaks_the_session() {
    let place = Place::new();
    let sandbox = plain(&place).await;
    let shell = sandbox.agent.allot();
    sandbox.agent.open_shell(&shell, OpenShellRequest::default()).await.unwrap();
    let late = CommandSpec { timeout_ms: 400, ..command::in_shell(&shell, "echo old; sleep 2; echo older") };
    assert_eq!(run(&sandbox, late).await.0, TIMED_OUT);
    assert_eq!(run(&sandbox, command::in_shell(&shell, "sleep 2.2; echo new")).await.1, "new\n");
    let answer = sandbox.spec_as_it_is(command::in_shell(&shell, "exit 9")).await;
    assert!(answer.ended.as_ref().unwrap().shell_ended);
    assert_eq!(told(answer).0, Outcome::ExitCode(9));
    assert_eq!(sandbox.run("echo the sandbox goes on").await.0, "the sandbox goes on\n");
}

#[tokio::test]
async fn files_travel_whole_without_mode_and_a_broken_link_makes_listing_fail() {
    let place = Place::new();
    let sandbox = plain(&place).await;
    sandbox
        .run("mkdir /root/f && cd /root/f && ln -s no/where broken && head -c 50000000 /dev/urandom > large && chmod 750 large")
        .await;
    let mut reader = sandbox.agent.read("/root/f/large", 0, 0).await.unwrap();
    assert_eq!((reader.stat().mode, reader.stat().size), (0o750, 50_000_000));
    let mut largest = 0;
    while let Some(chunk) = reader.next().await.unwrap() {
        largest = largest.max(chunk.bytes.len());
    }
    assert!(largest <= 64 << 10);
    let listed = sandbox.agent.list_folder("/root/f", 1).await.unwrap();
    assert!(listed.iter().any(|entry| entry.path == "broken" && entry.error.is_empty()));
}

#[tokio::test]
async fn the_agent_is_open_to_every_neighbour() {
    let place = Place::new();
    let sandbox = plain(&place).await;
    let endpoint = sandbox.placed.address.endpoint.clone();
    let refused = Agent::connect(Config::new(endpoint, Secret::new("guessed, wrongly"), "neighbour")).await;
    assert_eq!(refused.unwrap_err().to_string(), "the sandbox's secret is missing or wrong");
    // Nor is its socket anywhere in a neighbour, whose own it would have to be.
    let neighbour = place.make(Order { network: Reach::Loopback, ..order(&place.folder, "neighbour") }).await;
    let (text, _) = neighbour.run("cat /proc/net/unix | grep -c sock; find / -xdev -type s | wc -l").await;
    assert_eq!(text.lines().last(), Some("0"), "{text}");
}

#[tokio::test]
async fn there_is_no_partial_output_while_a_command_runs() {
    let place = Place::new();
    let sandbox = plain(&place).await;
    let id = sandbox.agent.allot();
    let text = "echo first; until [ -e /root/go ]; do sleep 0.01; done; echo second";
    sandbox.agent.start(&id, spec(text)).await.unwrap();
    let mut follow = sandbox.agent.attach(&id, Offsets::default(), false);
    let first = loop {
        match follow.next().await.unwrap() {
            Some(Event::Output { bytes, .. }) => break bytes,
            Some(_) => {}
            None => panic!("it ended before it was told to"),
        }
    };
    assert_eq!(&*first, b"first\n");
    sandbox.run("touch /root/go").await;
    let mut rest = Vec::new();
    while let Some(event) = follow.next().await.unwrap() {
        if let Event::Output { bytes, .. } = event {
            rest.extend_from_slice(&bytes);
        }
    }
    assert_eq!(rest, b"second\n");
}
