//! The agent's own life: secret, lease, signals, and what commands can do to it.

use crate::support::{SECRET, Sandbox, Way, config, eventually, lives, ways};
use espalier_agent_client::wire::{Reason, outcome::Outcome};
use espalier_agent_client::{Agent, Excerpts, Secret, command};
use rustix::process::Signal;
use std::time::Duration;

#[tokio::test]
async fn nobody_calls_without_the_secret() {
    let sandbox = Sandbox::start(Way::Beside).await;
    for wrong in ["", "0123456789abcdef0123456789abcdeX", "0123456789abcdef"] {
        let mut config = config(sandbox.path("socket"), "test");
        config.secret = Secret::new(wrong);
        let refused = Agent::connect(config).await.unwrap_err();
        assert_eq!(refused.reason(), Some(Reason::Unauthenticated), "{refused}");
    }
    assert!(!sandbox.path("secret").exists(), "the file of the secret is consumed");
}

#[tokio::test]
async fn silence_longer_than_the_lease_ends_everything() {
    for way in ways() {
        let mut sandbox = Sandbox::with(way, &["--lease-ms", "3000"]).await;
        let pids = sandbox.path("pids");
        let text =
            format!("setsid bash -c 'echo $$; exec sleep 7654.25' >{} & sleep 7654.25", pids.display());
        sandbox.agent.start(&sandbox.agent.allot(), command::script(text)).await.unwrap();
        eventually("it runs", || std::fs::read_to_string(&pids).is_ok_and(|text| text.ends_with('\n'))).await;
        let agent = std::mem::replace(
            &mut sandbox.agent,
            crate::support::connect(sandbox.folder.path(), "x").await.unwrap(),
        );
        let pid = sandbox.pid();
        // Calls renew it.
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_millis(800)).await;
            agent.list().await.unwrap();
        }
        assert!(lives(pid), "{way:?}");
        // Where a program stands around the agent, that passes its exit code on.
        assert_eq!(sandbox.exit_code(Duration::from_secs(20)), Some(3), "{way:?}");
        eventually("its commands are gone", || !running("sleep 7654.25")).await;
        let lost = agent.list().await.unwrap_err();
        assert!(lost.to_string().starts_with("sandbox lost"), "{lost}");
    }
}

fn running(words: &str) -> bool {
    let words: Vec<u8> = words.bytes().map(|byte| if byte == b' ' { 0 } else { byte }).collect();
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        std::fs::read(entry.path().join("cmdline"))
            .is_ok_and(|line| line.windows(words.len()).any(|part| part == words))
    })
}

#[tokio::test]
async fn told_to_end_it_ends_all_and_forwards_first() {
    for way in ways() {
        let mut sandbox = Sandbox::start(way).await;
        let file = sandbox.path("told");
        let text = format!(
            "trap 'echo told >{}; exit' TERM; echo ready; while :; do sleep 0.05; done",
            file.display()
        );
        let id = sandbox.agent.allot();
        let mut follow = sandbox.agent.exec(&id, command::script(text));
        follow.next().await.unwrap();
        sandbox.signal(Signal::TERM);
        assert!(sandbox.exit_code(Duration::from_secs(20)).is_some(), "{way:?}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "told\n", "{way:?}");
    }
}

/// What a command that is root in its sandbox tries against the agent. Prints only what it got.
const ATTACKS: [(&str, &str); 9] = [
    ("memory", "cat /proc/AGENT/mem 2>/dev/null | head -c 1; cat /proc/AGENT/maps 2>/dev/null | head -c 1"),
    ("environment", "cat /proc/AGENT/environ 2>/dev/null | tr -d '\\0' | head -c 1"),
    (
        "descriptors",
        "readlink /proc/AGENT/fd/* 2>/dev/null; for i in $(seq 0 30); do cat /proc/AGENT/fd/$i 2>/dev/null </dev/null; done | head -c 1",
    ),
    ("binary", "cat /proc/AGENT/exe 2>/dev/null | head -c 1"),
    ("trace", "command -v gdb strace >/dev/null && timeout 2 strace -p AGENT 2>&1 | grep attached"),
    (
        "signals",
        "kill -TERM AGENT; kill -INT AGENT; kill -HUP AGENT; kill -STOP AGENT; kill -SEGV AGENT; kill -KILL AGENT",
    ),
    ("limits", "prlimit --pid AGENT --nofile=1 2>/dev/null && echo limited"),
    (
        "scheduling",
        "renice 19 -p AGENT 2>/dev/null; chrt -i -p 0 AGENT 2>/dev/null && echo idle; taskset -p 1 AGENT 2>/dev/null | grep new",
    ),
    ("working folder", "ls /proc/AGENT/cwd/ /proc/AGENT/root/ 2>/dev/null | head -c 1"),
];

#[tokio::test]
async fn root_in_the_sandbox_cannot_get_at_the_agent() {
    if !ways().contains(&Way::ProcessOne) {
        return;
    }
    // A backend's way: process 1, and commands with the capabilities that container engines leave.
    let sandbox = Sandbox::with(Way::ProcessOne, &["--keep-capabilities", "a80425fb"]).await;
    assert!(sandbox.agent.hello().capabilities.contains(&"protected".to_owned()));
    for (name, attack) in ATTACKS {
        let ran = sandbox.sh(&attack.replace("AGENT", "1")).await;
        assert_eq!(ran.out, "", "{name}: {ran:?}");
        assert_eq!(sandbox.sh("echo alive").await.out, "alive\n", "after {name}");
    }
    let ran = sandbox
        .sh("tr '\\0' ' ' </proc/1/cmdline; grep -l SECRET /proc/*/environ 2>/dev/null"
            .replace("SECRET", SECRET)
            .as_str())
        .await;
    assert!(!ran.out.contains(SECRET) && !ran.out.contains("environ"), "{ran:?}");
}

#[tokio::test]
async fn a_bomb_of_processes_does_not_take_the_agent_along() {
    let Some(way) = ways().into_iter().find(|way| *way == Way::Ordinary) else { return };
    let sandbox = Sandbox::start(way).await;
    let text = "ulimit -u 200; echo before; f() { f | f & }; f; sleep 60";
    let ran = sandbox.run(command::within(command::script(text), Duration::from_millis(1500))).await;
    assert!(matches!(ran.outcome, Outcome::TimedOut(_)), "{ran:?}");
    assert!(ran.out.starts_with("before\n"));
    assert_eq!(sandbox.sh("echo alive").await.out, "alive\n");
    let none = sandbox.agent.list().await.unwrap().iter().map(|one| one.alive).sum::<u32>();
    assert_eq!(none, 0);
}

#[tokio::test]
async fn arguments_that_make_no_sense_are_told() {
    let run = |arguments: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_espalier-agent"))
            .args(arguments)
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let error = |text: &str| (Some(2), format!("espalier-agent: {text}\n"));
    assert_eq!(run(&[]), error("no address to listen on (see --help)"));
    assert_eq!(run(&["--listen-tcp", "127.0.0.1:0"]), error("no secret (see --help)"));
    assert_eq!(run(&["--what"]), error("unknown argument --what (see --help)"));
    assert_eq!(run(&["--secret-fd"]), error("--secret-fd: a value is missing"));
    assert_eq!(run(&["--secret-fd", "77"]), error("--secret-fd 77: Bad file descriptor (os error 9)"));
    assert_eq!(run(&["--lease-ms", "x"]), error("--lease-ms x: not a number"));
    assert_eq!(run(&["--lease-ms", "5"]), error("--lease-ms 5: from 1000 to 86400000"));
}

#[tokio::test]
async fn killed_it_is_reported_lost_at_once() {
    let mut sandbox = Sandbox::start(Way::Beside).await;
    let id = sandbox.agent.allot();
    let agent = sandbox.agent.clone();
    let waiting =
        tokio::spawn(async move { agent.run(&id, command::script("sleep 100"), Excerpts::default()).await });
    eventually("it runs", || running("sleep 100")).await;
    let began = std::time::Instant::now();
    sandbox.kill();
    let lost = waiting.await.unwrap().unwrap_err();
    assert!(matches!(lost, espalier_agent_client::AgentError::Lost(_)), "{lost}");
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn bytes_of_no_protocol_disturb_no_client() {
    use rand::{RngExt, SeedableRng, rngs::StdRng};
    use tokio::io::AsyncWriteExt;
    let seed = 53;
    let mut random = StdRng::seed_from_u64(seed);
    let sandbox = Sandbox::start(Way::Beside).await;
    for round in 0..150 {
        let mut stream = tokio::net::UnixStream::connect(sandbox.path("socket")).await.unwrap();
        let mut bytes = Vec::new();
        if round % 2 == 0 {
            bytes.extend_from_slice(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
        }
        for _ in 0..random.random_range(0..6) {
            // A frame's head with any kind and length, then anything.
            let length: u8 = random.random();
            bytes.extend_from_slice(&[0, 0, length, random.random_range(0..12), random.random(), 0, 0, 0, 1]);
            bytes.extend((0..random.random_range(0..300)).map(|_| random.random::<u8>()));
        }
        let _ = stream.write_all(&bytes).await;
    }
    assert_eq!(sandbox.sh("echo alive").await.out, "alive\n", "seed {seed}");
}

#[tokio::test]
async fn out_of_memory_is_reported_as_such() {
    use crate::support::memory_cgroup;
    let Some(made) = memory_cgroup() else { return };
    std::fs::remove_dir(made).unwrap();
    let sandbox = Sandbox::start(Way::Memory).await;
    assert!(sandbox.agent.hello().capabilities.contains(&"memory-events".to_owned()));
    let eat = "exec python3 -c 'x = bytearray(200 << 20); print(1)'";
    let ran = sandbox.sh(&format!("echo before; {eat}")).await;
    assert!(matches!(ran.outcome, Outcome::OutOfMemory(_)), "{ran:?}");
    assert_eq!((&*ran.out, ran.ended().memory_kills), ("before\n", 1));
    assert_eq!(sandbox.sh("kill -9 $$").await.outcome, Outcome::Signal(9));
    assert_eq!(sandbox.sh("exit 137").await.outcome, Outcome::ExitCode(137));
    assert_eq!(sandbox.sh("echo alive").await.out, "alive\n");
}
