//! A timeout kills all that a command started, however it tries to leave, and nothing else.

use crate::support::{Ran, Sandbox, Way, eventually, lives, ways};
use espalier_agent_client::wire::{CommandSpec, TimedOut, outcome::Outcome};
use espalier_agent_client::{Excerpts, command};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::path::Path;

/// Ways to try to survive. Each writes the process ids of survivors, as the sandbox sees them, to `$PIDS`.
const ESCAPES: [(&str, &str); 10] = [
    ("setsid", "setsid bash -c 'echo $$ >>$PIDS; sleep 1000' & sleep 1000"),
    ("double fork", "(bash -c 'echo $$ >>$PIDS; sleep 1000' &) ; sleep 1000"),
    ("setsid and double fork", "(setsid bash -c 'echo $$ >>$PIDS; sleep 1000' &) ; sleep 1000"),
    (
        "daemonised with closed pipes",
        "(setsid bash -c 'exec </dev/null >/dev/null 2>&1; cd /; echo $$ >>$PIDS; sleep 1000' &) ; sleep 1000",
    ),
    ("stopped process", "bash -c 'echo $$ >>$PIDS; kill -STOP $$' & sleep 1000"),
    ("process ignoring TERM", "trap '' TERM HUP INT; bash -c 'echo $$ >>$PIDS; sleep 1000'"),
    (
        "nohup with another name",
        "nohup bash -c 'echo $$ >>$PIDS; exec -a innocent sleep 1000' >/dev/null 2>&1 & sleep 1000",
    ),
    ("empty environment", "(setsid env -i /bin/bash -c \"echo \\$\\$ >>$PIDS; sleep 1000\" &) ; sleep 1000"),
    ("fork loop", "f() { sleep 0.01; f & }; f; bash -c 'echo $$ >>$PIDS; sleep 1000'"),
    ("leader gone but for a child", "bash -c 'echo $$ >>$PIDS; sleep 1000' & disown; exec sleep 1000"),
];

async fn time_out(sandbox: &Sandbox, text: &str, pids: &Path, timeout_ms: u64) -> Ran {
    let script = format!("export PIDS={}; echo before; {text}", pids.display());
    let spec = CommandSpec { timeout_ms, ..command::script(script) };
    let id = sandbox.agent.allot();
    Ran::of(sandbox.agent.run(&id, spec, Excerpts::default()).await.unwrap())
}

/// How many processes of the sandbox have this text among their arguments or environment.
fn holding(marker: &str) -> usize {
    let found = |pid: &str| {
        let read = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let holds = |bytes: &[u8]| bytes.windows(marker.len()).any(|window| window == marker.as_bytes());
        lives(pid.parse().unwrap_or(0)) && (holds(&read("environ")) || holds(&read("cmdline")))
    };
    let entries = std::fs::read_dir("/proc").unwrap();
    entries
        .flatten()
        .filter(|entry| {
            entry.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok() && found(name))
        })
        .count()
}

#[tokio::test]
async fn each_way_to_escape_fails_and_a_neighbour_is_left_alone() {
    for way in ways() {
        let sandbox = Sandbox::start(way).await;
        let neighbour = sandbox.agent.allot();
        let innocent = "setsid sleep 1234.5 & echo started; sleep 1234.5";
        sandbox.agent.start(&neighbour, command::script(innocent)).await.unwrap();
        for (name, text) in ESCAPES {
            let pids = sandbox.path(&name.replace(' ', "-"));
            let ran = time_out(&sandbox, text, &pids, 1000).await;
            assert_eq!(ran.outcome, Outcome::TimedOut(TimedOut { unkillable: 0 }), "{way:?}, {name}");
            assert!(ran.out.starts_with("before\n"), "{way:?}, {name}: {ran:?}");
            assert!(pids.exists(), "{way:?}, {name}: it did not get so far");
            let marker = format!("PIDS={}", pids.display());
            eventually(&format!("{way:?}, {name}: the tree is gone"), || holding(&marker) == 0).await;
            assert_eq!(sandbox.sh("echo alive").await.out, "alive\n", "{way:?}, {name}");
        }
        let listed = sandbox.agent.list().await.unwrap();
        let neighbour = listed.iter().find(|one| one.id.as_ref() == Some(&neighbour)).unwrap();
        assert_eq!((neighbour.alive, &neighbour.ended), (2, &None), "{way:?}");
    }
}

#[tokio::test]
async fn many_timeouts_in_seeded_order_with_neighbours() {
    let count: usize =
        std::env::var("ESPALIER_TIMEOUTS").ok().and_then(|count| count.parse().ok()).unwrap_or(24);
    let seed = 17;
    let mut random = StdRng::seed_from_u64(seed);
    let way = if ways().contains(&Way::ProcessOne) { Way::ProcessOne } else { Way::Beside };
    let sandbox = Sandbox::start(way).await;
    let neighbour = sandbox.agent.allot();
    sandbox.agent.start(&neighbour, command::script("echo 1; sleep 100000")).await.unwrap();
    let mut left = count;
    while left > 0 {
        let together = left.min(random.random_range(1..=4));
        left -= together;
        let picks: Vec<usize> = (0..together).map(|_| random.random_range(0..ESCAPES.len())).collect();
        let runs = picks.iter().enumerate().map(|(place, pick)| {
            let (sandbox, timeout) = (&sandbox, random.random_range(1000..2000));
            async move {
                let (name, text) = ESCAPES[*pick];
                let pids = sandbox.path(&format!("{left}-{place}"));
                let ran = time_out(sandbox, text, &pids, timeout).await;
                let at = format!("seed {seed}, {left} left, {name}");
                assert_eq!(ran.outcome, Outcome::TimedOut(TimedOut { unkillable: 0 }), "{at}");
                assert!(ran.out.starts_with("before\n"), "{at}");
                let marker = format!("PIDS={}", pids.display());
                eventually(&format!("{at}: gone"), || holding(&marker) == 0).await;
            }
        });
        futures::future::join_all(runs).await;
    }
    let listed = sandbox.agent.list().await.unwrap();
    let neighbour = listed.iter().find(|one| one.id.as_ref() == Some(&neighbour)).unwrap();
    assert_eq!((neighbour.alive, &neighbour.ended), (1, &None));
}

#[tokio::test]
async fn a_grace_lets_a_command_clean_up() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let text = "trap 'echo cleaned; exit 0' TERM; echo before; while :; do sleep 0.05; done";
    let spec = CommandSpec { timeout_ms: 200, term_grace_ms: 5000, ..command::script(text) };
    let ran = sandbox.run(spec).await;
    assert_eq!((ran.outcome, &*ran.out), (Outcome::TimedOut(TimedOut::default()), "before\ncleaned\n"));
}
