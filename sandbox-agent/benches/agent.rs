//! What the agent costs: size, memory, time to the first answer, the price of a command above that of starting a process,
//! memory while a command prints, streams through a command, files against `cp`. One finding a line, as the other benches print them.
//!
//! `ESPALIER_AGENT` names the binary to measure (`cargo xtask agent` makes the one that is shipped); else the bench's own.
//! Times are noise on a busy machine; the floor is measured in the same run, one call of each in turn.

use espalier_agent_client::files::Source;
use espalier_agent_client::wire::{CommandSpec, OpenShellRequest, WriteHeader, outcome::Outcome};
use espalier_agent_client::{Agent, Config, Endpoint, Excerpts, Secret, command};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const SECRET: &str = "0123456789abcdef0123456789abcdef";
/// Pairs of floor and command.
const CALLS: usize = 1000;

fn finding(what: &str, value: f64, unit: &str, at_most: Option<f64>, note: &str) {
    let at_most = at_most.map_or_else(String::new, |bound| format!(",\"at_most\":{bound}"));
    let note = if note.is_empty() { String::new() } else { format!(",\"note\":\"{note}\"") };
    println!("{{\"what\":\"{what}\",\"value\":{value:.4},\"unit\":\"{unit}\"{at_most}{note}}}");
}

/// An agent and how it was started.
struct Started {
    child: Child,
    agent: Agent,
    folder: tempfile::TempDir,
    healthy: Duration,
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Started {
    fn memory_kib(&self, line: &str) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let found = status.lines().find_map(|text| text.strip_prefix(line));
        found.and_then(|text| text.trim().trim_end_matches(" kB").trim().parse().ok()).unwrap_or(f64::NAN)
    }
}

async fn start(binary: &Path) -> Started {
    let folder = tempfile::tempdir().expect("a folder");
    let (socket, secret) = (folder.path().join("socket"), folder.path().join("secret"));
    std::fs::write(&secret, SECRET).expect("the secret");
    let began = Instant::now();
    let mut command = Command::new(binary);
    command.arg("--listen-unix").arg(&socket).arg("--secret-file").arg(&secret);
    command.arg("--spill-dir").arg(folder.path()).stdin(Stdio::null());
    let child = command.spawn().expect("the agent");
    let mut config = Config::new(Endpoint::Unix(socket), Secret::new(SECRET), "bench");
    config.heartbeat_every = Duration::ZERO;
    let agent = Agent::connect(config).await.expect("a connection");
    Started { child, agent, folder, healthy: began.elapsed() }
}

fn sorted(mut times: Vec<f64>) -> Vec<f64> {
    times.sort_by(f64::total_cmp);
    times
}

fn at(times: &[f64], share: f64) -> f64 {
    times[((times.len() - 1) as f64 * share) as usize]
}

fn floor() -> f64 {
    let began = Instant::now();
    let status =
        Command::new("/bin/bash").args(["-c", "true"]).stdin(Stdio::null()).stdout(Stdio::null()).status();
    assert!(status.is_ok_and(|status| status.success()));
    began.elapsed().as_secs_f64() * 1000.0
}

async fn run(agent: &Agent, spec: CommandSpec) -> f64 {
    let id = agent.allot();
    let began = Instant::now();
    let answer = agent.run(&id, spec, Excerpts::default()).await.expect("an answer");
    let took = began.elapsed().as_secs_f64() * 1000.0;
    let outcome = answer.ended.and_then(|ended| ended.outcome).and_then(|outcome| outcome.outcome);
    assert_eq!(outcome, Some(Outcome::ExitCode(0)));
    agent.ack(vec![id]).await.expect("an ack");
    took
}

/// A question of 200 bytes and its answer of 300 kB, as a screenshot is asked for: directly, and through the agent.
const ANSWERER: [&str; 3] = [
    "perl",
    "-e",
    "$| = 1; $a = 'x' x 300000; while (read STDIN, $b, 200) { print $b =~ /^s/ ? 'x' x 200 : $a }",
];

async fn exchanges(
    writer: &mut (impl AsyncWrite + Unpin),
    reader: &mut (impl AsyncRead + Unpin),
) -> [f64; 3] {
    let mut times = Vec::new();
    for (question, answer, count) in [(b's', 200, 3000), (b'l', 300_000, 500)] {
        let (question, mut answer) = (vec![question; 200], vec![0; answer]);
        let mut each = Vec::new();
        for _ in 0..count {
            let began = Instant::now();
            writer.write_all(&question).await.expect("a question");
            reader.read_exact(&mut answer).await.expect("an answer");
            each.push(began.elapsed().as_secs_f64() * 1000.0);
        }
        times.push(sorted(each));
    }
    [at(&times[0], 0.5), at(&times[0], 0.99), at(&times[1], 0.5)]
}

async fn pipe(started: &Started) {
    let mut command = tokio::process::Command::new(ANSWERER[0]);
    command.args(&ANSWERER[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().expect("perl");
    let (mut stdin, mut stdout) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
    let direct = exchanges(&mut stdin, &mut stdout).await;
    let agent = &started.agent;
    let mut pipe = agent.pipe(&agent.allot(), command::arguments(ANSWERER)).await.expect("a pipe");
    let carried = exchanges(&mut pipe.writer, &mut pipe.reader).await;
    let note = |number: usize| format!("the pipe itself: {:.3} ms", direct[number]);
    let names =
        ["200 bytes there and back, median", "200 bytes there and back, p99", "an answer of 300 kB, median"];
    for (number, (name, bound)) in names.into_iter().zip([Some(0.5), None, None]).enumerate() {
        finding(&format!("agent: pipe: {name}"), carried[number], "ms", bound, &note(number));
    }
    finding("agent: peak memory after pipes", started.memory_kib("VmHWM:") / 1024.0, "MB", Some(16.0), "");
}

#[tokio::main]
async fn main() {
    let binary = std::env::var_os("ESPALIER_AGENT")
        .map_or_else(|| env!("CARGO_BIN_EXE_espalier-agent").into(), PathBuf::from);
    let size = std::fs::metadata(&binary).expect("the binary").len();
    finding("agent: size on disk", size as f64 / 1e6, "MB", Some(5.0), "");

    let mut healthy = Vec::new();
    for _ in 0..20 {
        healthy.push(start(&binary).await.healthy.as_secs_f64() * 1000.0);
    }
    finding(
        "agent: time to healthy, median",
        at(&sorted(healthy), 0.5),
        "ms",
        Some(10.0),
        "spawn to the answer to Hello",
    );

    let started = start(&binary).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    finding("agent: resident memory, idle", started.memory_kib("VmRSS:") / 1024.0, "MB", Some(5.0), "");

    let agent = &started.agent;
    let (mut floors, mut commands, mut arguments, mut list) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..CALLS {
        floors.push(floor());
        commands.push(run(agent, command::script("true")).await);
        arguments.push(run(agent, command::arguments(["/bin/true"])).await);
        let began = Instant::now();
        agent.list().await.expect("a list");
        list.push(began.elapsed().as_secs_f64() * 1000.0);
    }
    let (floors, commands) = (sorted(floors), sorted(commands));
    finding("agent: bash -c true by posix_spawn, median", at(&floors, 0.5), "ms", None, "the floor");
    finding("agent: bash -c true by posix_spawn, p99", at(&floors, 0.99), "ms", None, "the floor");
    finding(
        "agent: exec of true above the floor, median",
        at(&commands, 0.5) - at(&floors, 0.5),
        "ms",
        Some(0.4),
        "",
    );
    finding(
        "agent: exec of true above the floor, p99",
        at(&commands, 0.99) - at(&floors, 0.99),
        "ms",
        Some(2.0),
        "",
    );
    finding("agent: exec of /bin/true, median", at(&sorted(arguments), 0.5), "ms", None, "without a shell");
    finding(
        "agent: a call that does nothing, median",
        at(&sorted(list), 0.5),
        "ms",
        None,
        "List with no command",
    );

    for shell in ["bash", "sh"] {
        let id = agent.allot();
        let request = OpenShellRequest { shell: shell.to_owned(), ..OpenShellRequest::default() };
        agent.open_shell(&id, request).await.expect("a shell");
        let mut times = Vec::new();
        for _ in 0..300 {
            times.push(run(agent, command::in_shell(&id, "true")).await);
        }
        finding(
            &format!("agent: command in a stateful {shell}, median"),
            at(&sorted(times), 0.5),
            "ms",
            Some(3.0),
            "",
        );
        agent.close_shell(&agent.allot(), &id).await.expect("closed");
    }

    let began = Instant::now();
    let together = (0..2000).map(|_| run(agent, command::script("true")));
    futures::StreamExt::collect::<Vec<_>>(futures::StreamExt::buffer_unordered(
        futures::stream::iter(together),
        64,
    ))
    .await;
    finding(
        "agent: commands at 64 at once",
        2000.0 / began.elapsed().as_secs_f64(),
        "commands/s",
        None,
        "bash -c true",
    );

    let began = Instant::now();
    run(agent, command::script("head -c 1000000000 /dev/zero")).await;
    finding("agent: 1 GB printed", 1000.0 / began.elapsed().as_secs_f64(), "MB/s", None, "");
    finding(
        "agent: peak memory with 1 GB printed",
        started.memory_kib("VmHWM:") / 1024.0,
        "MB",
        Some(16.0),
        "all of the above included",
    );

    pipe(&started).await;

    let (source, target) = (started.folder.path().join("source"), started.folder.path().join("target"));
    std::fs::write(&source, vec![7; 256 << 20]).expect("a file");
    let began = Instant::now();
    assert!(Command::new("cp").arg(&source).arg(&target).status().is_ok_and(|status| status.success()));
    let copied = began.elapsed().as_secs_f64();
    let path = target.display().to_string();
    let began = Instant::now();
    let header = WriteHeader { path: path.clone().into(), ..WriteHeader::default() };
    agent.write(&agent.allot(), header, Source::File(source)).await.expect("written");
    let written = began.elapsed().as_secs_f64();
    let began = Instant::now();
    let mut reader = agent.read(path, 0, 0).await.expect("a file");
    while reader.next().await.expect("a chunk").is_some() {}
    let read = began.elapsed().as_secs_f64();
    finding("agent: cp of 256 MiB", 256.0 / copied, "MiB/s", None, "the yardstick");
    finding("agent: 256 MiB written", 256.0 / written, "MiB/s", None, "");
    finding("agent: 256 MiB read", 256.0 / read, "MiB/s", None, "");
    finding("agent: peak memory after files", started.memory_kib("VmHWM:") / 1024.0, "MB", Some(16.0), "");
}
