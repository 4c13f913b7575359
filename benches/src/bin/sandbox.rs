//! Sandboxes of this machine: the price of a command above that of starting a process, of a sandbox from its making to its
//! end, of a thousand at once with the isolation that an experiment gets, of a fork; memory of each.
//!
//! As root, with the keeper and the static agent that the build makes. Everything is compared within this one run.

use espalier_agent_client::files::Source;
use espalier_agent_client::wire::{self, outcome::Outcome};
use espalier_agent_client::{Agent, Excerpts, command};
use espalier_benches::{Finding, median};
use espalier_core::sandbox::SandboxSpec;
use espalier_images::{Draft, ImageOptions, Rights, Upper, write_layout};
use espalier_sandbox::local::machine::{Config, Machine};
use espalier_sandbox::local::{Local, Services};
use espalier_sandbox::service::{Purpose, Sandbox, Sandboxes};
use futures::StreamExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pairs of floor and command.
const CALLS: usize = 1000;
/// Sandboxes alive at the same moment.
const AT_ONCE: usize = 1000;
/// Commands in each.
const COMMANDS: usize = 4;
/// Being made at the same moment, and commands under way.
const LANES: usize = 16;
/// One after the other.
const IN_TURN: usize = 200;
/// Through slots, each used once.
const THROUGH: usize = 5000;
/// Slots.
const SLOTS: usize = 16;
/// Servers of others, all together.
const PEERS_MAX: Duration = Duration::from_secs(300);

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(Box::pin(measure()));
}

struct Place {
    folder: tempfile::TempDir,
    local: Machine,
    service: Sandboxes,
}

fn beside(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("this bench is a file");
    own.parent().expect("a folder").join(name)
}

fn agent_binary() -> PathBuf {
    let named = std::env::var_os("ESPALIER_AGENT").map(PathBuf::from);
    named.unwrap_or_else(|| beside("../x86_64-unknown-linux-gnu/agent/espalier-agent"))
}

fn place() -> Place {
    let folder = tempfile::Builder::new().prefix("espalier-bench-").tempdir_in("/var/tmp").expect("a folder");
    let home = folder.path().join("sandboxes");
    let keeper = vec![beside("espalier-keeper").into_os_string()];
    let local =
        Machine::open(Config { folder: home.clone(), keeper, agent: agent_binary() }).expect("the keeper");
    let backend =
        Local::over(local.clone(), &home.join("images"), ImageOptions::default(), Services::default());
    let service = Sandboxes::new(Arc::new(backend));
    Place { folder, local, service }
}

async fn measure() {
    let place = place();
    let spec = SandboxSpec::default();
    let first = place.service.create(&spec, &Purpose::new("bench")).await.expect("a sandbox");
    commands(&first).await;
    files(&first, place.folder.path()).await;
    output(&first).await;
    checkpoints(&place, &first).await;
    place.service.delete(&first.placed.id).await.expect("its end");
    peers();
    in_turn(&place, &spec, "`host`").await;
    let image = small_image(place.folder.path());
    in_turn(&place, &SandboxSpec { image, ..spec.clone() }, "an image of two layers").await;
    at_once(&place, &spec).await;
    through_slots(&place, &spec).await;
}

/// The servers that others put into a sandbox, in the same run.
fn peers() {
    let Some(python) = std::env::var_os("ESPALIER_SANDBOX_PEERS_PYTHON") else {
        eprintln!(
            "no peer is measured: ESPALIER_SANDBOX_PEERS_PYTHON names no Python with them (`make bench` does)"
        );
        return;
    };
    let mut command = Command::new("timeout");
    command.arg(PEERS_MAX.as_secs().to_string()).arg(python).arg("benches/peers/sandbox_servers.py");
    let output = command.stderr(Stdio::inherit()).output().expect("the peers");
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let found: serde_json::Value = serde_json::from_str(line).expect("a JSON line");
        let name = found["peer"].as_str().expect("a name").to_owned();
        let print = |what: &str, key: &str, unit: &str| {
            Finding::new(format!("{name}: {what}"), found[key].as_f64().unwrap_or(f64::NAN), unit).print();
        };
        print("exec of `bash -c true`, no isolation", "execute_ms", "ms");
        print("exec, p99", "execute_p99_ms", "ms");
        print("command in a session", "session_ms", "ms");
        print("resident memory of its server, idle", "resident_mib", "MiB");
    }
}

/// A shell with the libraries it needs, in one layer, and a file in another, as an OCI layout.
fn small_image(folder: &Path) -> String {
    let (programs, data, layout) = (folder.join("programs"), folder.join("data"), folder.join("layout"));
    let listed = Command::new("ldd").arg("/bin/bash").output().expect("ldd").stdout;
    let listed = String::from_utf8_lossy(&listed).into_owned();
    let libraries = listed.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from);
    for file in libraries.chain(["/bin/bash".into()]) {
        let target = programs.join(file.strip_prefix("/").expect("an absolute path"));
        std::fs::create_dir_all(target.parent().expect("a folder")).expect("a folder");
        std::fs::copy(&file, target).expect("a copy");
    }
    std::fs::create_dir_all(data.join("srv")).expect("a folder");
    std::fs::write(data.join("srv/data"), "data").expect("a file");
    let uppers = [programs, data].map(Upper::root);
    let draft = Draft { tag: "latest", base: None, uppers: &uppers, rights: Rights::Root, config: None };
    write_layout(&layout, &draft).expect("a layout");
    format!("oci:{}", layout.display())
}

/// Many, one after the other in each of some slots: what stays of them in the engine and the keeper.
async fn through_slots(place: &Place, spec: &SandboxSpec) {
    let keeper = keeper_pid(place.folder.path());
    let own = std::process::id();
    let memory = || (resident_mib(own, "VmRSS:"), pss_kib(keeper));
    let one = |number: usize| async move {
        let sandbox = place.service.create(spec, &Purpose::new(format!("slot-{number}"))).await;
        let sandbox = sandbox.expect("a sandbox");
        assert!(is_zero(&run(&sandbox.agent, command::script("echo x > /root/x")).await));
        place.service.delete(&sandbox.placed.id).await.expect("its end");
    };
    let some = |range: std::ops::Range<usize>| futures::stream::iter(range).for_each_concurrent(SLOTS, one);
    let began = Instant::now();
    some(0..THROUGH / 5).await;
    let early = memory();
    some(THROUGH / 5..THROUGH).await;
    let late = memory();
    let seconds = began.elapsed().as_secs_f64();
    Finding::new("5,000 sandboxes through 16 slots: made, used, ended", seconds, "s").print();
    Finding::new("engine's memory after 5,000 above that after 1,000", late.0 - early.0, "MiB")
        .at_most(8.0)
        .note(format!("{:.1} MiB after 5,000", late.0))
        .print();
    Finding::new("keeper's memory after 5,000 above that after 1,000", late.1 - early.1, "KiB")
        .at_most(512.0)
        .note(format!("{:.0} KiB after 5,000", late.1))
        .print();
    assert!(place.local.list().await.expect("a list").is_empty());
    let left = std::fs::read_dir(place.folder.path().join("sandboxes/sandboxes")).expect("a folder").count();
    Finding::new("files that they left", left as f64, "files").at_most(0.0).print();
}

async fn run(agent: &Agent, spec: wire::CommandSpec) -> wire::RunAnswer {
    agent.run(&agent.allot(), spec, Excerpts::default()).await.expect("an answer")
}

fn is_zero(answer: &wire::RunAnswer) -> bool {
    let outcome = answer.ended.as_ref().and_then(|ended| ended.outcome.as_ref()?.outcome.as_ref());
    matches!(outcome, Some(Outcome::ExitCode(0)))
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn p99(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() * 99 / 100]
}

/// A command against the floor, one of each in turn.
async fn commands(sandbox: &Sandbox) {
    let agent = &sandbox.agent;
    let (mut floor, mut exec, mut shell) = (Vec::new(), Vec::new(), Vec::new());
    let id = agent.allot();
    let opened = agent.open_shell(&id, wire::OpenShellRequest::default()).await;
    opened.expect("a shell");
    for _ in 0..CALLS {
        let began = Instant::now();
        let status = Command::new("/bin/bash").args(["-c", "true"]).stdin(Stdio::null()).status();
        assert!(status.expect("bash").success());
        floor.push(ms(began.elapsed()));
        let began = Instant::now();
        assert!(is_zero(&run(agent, command::script("true")).await));
        exec.push(ms(began.elapsed()));
        let began = Instant::now();
        assert!(is_zero(&run(agent, command::in_shell(&id, "true")).await));
        shell.push(ms(began.elapsed()));
    }
    agent.close_shell(&agent.allot(), &id).await.expect("its end");
    let (floor_median, floor_p99) = (median(&mut floor), p99(&mut floor));
    let (exec_median, exec_p99) = (median(&mut exec), p99(&mut exec));
    Finding::new("floor: spawn and wait for `bash -c true`", floor_median, "ms").print();
    Finding::new("floor, p99", floor_p99, "ms").print();
    Finding::new("exec of `bash -c true` in a sandbox", exec_median, "ms").print();
    Finding::new("exec above the floor", exec_median - floor_median, "ms").at_most(0.4).print();
    Finding::new("exec above the floor, p99", exec_p99 - floor_p99, "ms").at_most(2.0).print();
    Finding::new("command in a stateful shell", median(&mut shell), "ms").at_most(3.0).print();
}

/// File throughput against `cp`.
async fn files(sandbox: &Sandbox, folder: &Path) {
    const BYTES: usize = 256 << 20;
    let (source, copy) = (folder.join("source"), folder.join("copy"));
    let block: Vec<u8> = (0..BYTES).map(|at| ((at * 31) >> 7) as u8).collect();
    std::fs::write(&source, &block).expect("a file");
    let began = Instant::now();
    let status = Command::new("cp").arg(&source).arg(&copy).status();
    assert!(status.expect("cp").success());
    let floor = BYTES as f64 / 1e6 / began.elapsed().as_secs_f64();
    let agent = &sandbox.agent;
    let began = Instant::now();
    let header = wire::WriteHeader { path: "/root/big".into(), ..wire::WriteHeader::default() };
    agent.write(&agent.allot(), header, Source::File(source)).await.expect("a write");
    let write = BYTES as f64 / 1e6 / began.elapsed().as_secs_f64();
    let began = Instant::now();
    let reader = agent.read("/root/big", 0, 0).await.expect("a read");
    assert_eq!(reader.collect(BYTES).await.expect("its bytes").len(), BYTES);
    let read = BYTES as f64 / 1e6 / began.elapsed().as_secs_f64();
    Finding::new("files: cp of 256 MiB", floor, "MB/s").print();
    Finding::new("files: into a sandbox", write, "MB/s").print();
    Finding::new("files: out of a sandbox", read, "MB/s").print();
    assert!(is_zero(&run(agent, command::script("rm /root/big")).await));
}

fn pss_kib(pid: u32) -> f64 {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    line.and_then(|text| text.trim().trim_end_matches(" kB").trim().parse().ok()).unwrap_or(f64::NAN)
}

fn resident_mib(pid: u32, line: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let found = status.lines().find_map(|text| text.strip_prefix(line));
    let kib: f64 =
        found.and_then(|text| text.trim().trim_end_matches(" kB").trim().parse().ok()).unwrap_or(f64::NAN);
    kib / 1024.0
}

/// Memory of the agent while a command prints 1 GB.
async fn output(sandbox: &Sandbox) {
    let pid = sandbox.placed.pid.expect("a process of this machine");
    let answer = run(&sandbox.agent, command::script("head -c 1000000000 /dev/zero")).await;
    assert!(is_zero(&answer));
    Finding::new("agent, most memory while a command prints 1 GB", resident_mib(pid, "VmHWM:"), "MiB")
        .at_most(16.0)
        .print();
}

/// Checkpoint of 10,000 changed files; forks from it.
async fn checkpoints(place: &Place, sandbox: &Sandbox) {
    let script = "mkdir /root/many && cd /root/many && for i in $(seq 10000); do echo $i > $i; done";
    assert!(is_zero(&run(&sandbox.agent, command::script(script)).await));
    let began = Instant::now();
    let kept = place.service.checkpoint(&sandbox.placed.id).await.expect("a checkpoint");
    Finding::new("checkpoint of 10,000 changed files", ms(began.elapsed()) / 1e3, "s").at_most(1.0).print();
    let mut times = Vec::new();
    let mut forks = Vec::new();
    for _ in 0..20 {
        let began = Instant::now();
        let fork = place.service.fork(&kept.id, &SandboxSpec::default(), &Purpose::new("bench")).await;
        times.push(ms(began.elapsed()));
        forks.push(fork.expect("a fork"));
    }
    let answer = run(&forks[7].agent, command::script("test $(ls /root/many | wc -l) = 10000")).await;
    assert!(is_zero(&answer));
    Finding::new("fork of a checkpoint, up to an agent that takes calls", median(&mut times), "ms")
        .at_most(50.0)
        .print();
    for fork in forks {
        place.service.delete(&fork.placed.id).await.expect("its end");
    }
    place.local.delete_checkpoint(&kept.id).await.expect("its end");
}

/// Made, used once, ended, one after the other.
async fn in_turn(place: &Place, spec: &SandboxSpec, image: &str) {
    let (mut make, mut use_once, mut end) = (Vec::new(), Vec::new(), Vec::new());
    // What is unpacked once is not what is measured.
    let first = place.service.create(spec, &Purpose::new("bench")).await.expect("a sandbox");
    place.service.delete(&first.placed.id).await.expect("its end");
    for _ in 0..IN_TURN {
        let began = Instant::now();
        let sandbox = place.service.create(spec, &Purpose::new("bench")).await.expect("a sandbox");
        make.push(ms(began.elapsed()));
        let began = Instant::now();
        assert!(is_zero(&run(&sandbox.agent, command::script("true")).await));
        use_once.push(ms(began.elapsed()));
        let began = Instant::now();
        place.service.delete(&sandbox.placed.id).await.expect("its end");
        end.push(ms(began.elapsed()));
    }
    let (make, first, end) = (median(&mut make), median(&mut use_once), median(&mut end));
    Finding::new(format!("a sandbox of {image}: made"), make, "ms").print();
    Finding::new(format!("a sandbox of {image}: first command"), first, "ms").print();
    Finding::new(format!("a sandbox of {image}: ended, nothing left"), end, "ms").print();
    Finding::new(format!("a sandbox of {image}: made, used once, ended"), make + first + end, "ms").print();
}

fn keeper_pid(folder: &Path) -> u32 {
    let folder = folder.display().to_string();
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let found = processes.filter_map(|process| {
        let line = std::fs::read_to_string(process.path().join("cmdline")).ok()?;
        let is = line.contains("espalier-keeper") && line.contains(&folder);
        is.then(|| process.file_name().to_str()?.parse().ok())?
    });
    found.min().expect("a keeper")
}

fn available_mib() -> f64 {
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib: f64 =
        line.and_then(|text| text.trim().trim_end_matches(" kB").trim().parse().ok()).unwrap_or(f64::NAN);
    kib / 1024.0
}

/// What an experiment's sandbox is by default, seen from inside.
const INSIDE: &str = "set -e
    test \"$(id -u)\" = 0
    grep -q 'NoNewPrivs:.1' /proc/self/status
    grep -q 'Seccomp:.2' /proc/self/status
    ! test -e /etc/shadow
    test \"$(grep -c : /proc/net/dev)\" = 1
    ! (exec 3<>/dev/tcp/127.0.0.1/1) 2>/dev/null
    test \"$(ls /proc | grep -c '^[0-9]')\" -lt 10";

/// All alive at the same moment, each used, all ended.
async fn at_once(place: &Place, spec: &SandboxSpec) {
    let free = available_mib();
    let keeper = keeper_pid(place.folder.path());
    let keeper_before = pss_kib(keeper);
    let began = Instant::now();
    let made: Vec<Sandbox> = futures::stream::iter(0..AT_ONCE)
        .map(|number| async move {
            let purpose =
                Purpose { lease: Duration::from_secs(600), ..Purpose::new(format!("bench-{number}")) };
            place.service.create(spec, &purpose).await
        })
        .buffer_unordered(LANES)
        .filter_map(|made| async move { made.map_err(|error| eprintln!("{error}")).ok() })
        .collect()
        .await;
    let make_s = began.elapsed().as_secs_f64();
    let alive = made.len();
    let began_use = Instant::now();
    let used = futures::stream::iter(&made)
        .map(|sandbox| async {
            let mut fine = 0;
            for _ in 0..COMMANDS {
                fine += usize::from(is_zero(&run(&sandbox.agent, command::script("true")).await));
            }
            fine
        })
        .buffer_unordered(LANES)
        .fold(0, |sum, fine| async move { sum + fine })
        .await;
    let use_s = began_use.elapsed().as_secs_f64();
    let pause = Instant::now();
    let memory = free - available_mib();
    let agents: f64 = made.iter().filter_map(|sandbox| sandbox.placed.pid).map(pss_kib).sum();
    let keeper_share = (pss_kib(keeper) - keeper_before) / alive as f64;
    let mut isolated = 0;
    for index in 0..20 {
        let sandbox = &made[index * 7919 % alive];
        isolated += usize::from(is_zero(&run(&sandbox.agent, command::script(INSIDE)).await));
    }
    let looked_s = pause.elapsed().as_secs_f64();
    let began_end = Instant::now();
    futures::stream::iter(&made)
        .for_each_concurrent(LANES, |sandbox| async {
            place.service.delete(&sandbox.placed.id).await.expect("its end");
        })
        .await;
    let end_s = began_end.elapsed().as_secs_f64();
    let total_s = began.elapsed().as_secs_f64() - looked_s;
    Finding::new("1,000 sandboxes alive at once, 4 commands each: made, used, ended", total_s, "s")
        .at_most(26.0)
        .note(format!("made {make_s:.1} s, used {use_s:.1} s, ended {end_s:.1} s; own root, seccomp, control groups, disk quota, no network"))
        .print();
    Finding::new("of these alive at the same moment", alive as f64, "sandboxes")
        .at_least(AT_ONCE as f64)
        .print();
    Finding::new("of their commands that ended with 0", used as f64, "commands")
        .at_least((AT_ONCE * COMMANDS) as f64)
        .print();
    Finding::new("of 20 looked at from inside, isolated as said", isolated as f64, "sandboxes")
        .at_least(20.0)
        .print();
    Finding::new("memory of an idle sandbox: its agent", agents / alive as f64, "KiB").print();
    Finding::new("memory of an idle sandbox: its share of the keeper", keeper_share, "KiB").print();
    Finding::new(
        "memory of an idle sandbox: all that the machine misses",
        memory * 1024.0 / alive as f64,
        "KiB",
    )
    .note("kernel's part included: namespaces, control groups, mounts")
    .print();
    assert!(place.local.list().await.expect("a list").is_empty());
}
