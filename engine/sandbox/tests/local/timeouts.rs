//! A timeout in a sandbox kills all that the command started, however it tries to leave, and nothing else.

use crate::support::{Place, Sandbox};
use espalier_agent_client::command;
use espalier_agent_client::wire::{CommandSpec, TimedOut, outcome::Outcome};
use rand::{RngExt, SeedableRng, rngs::StdRng};

/// Ways to try to survive. `$MARK` is in the environment of whoever does, and `$REACHED` is made when it is there.
const ESCAPES: [(&str, &str); 7] = [
    ("setsid", "setsid bash -c 'touch $REACHED; sleep 1000' & sleep 1000"),
    ("double fork", "(bash -c 'touch $REACHED; sleep 1000' &) ; sleep 1000"),
    (
        "daemonised with closed pipes",
        "(setsid bash -c 'exec </dev/null >/dev/null 2>&1; cd /; touch $REACHED; sleep 1000' &) ; sleep 1000",
    ),
    ("stopped process", "bash -c 'touch $REACHED; kill -STOP $$' & sleep 1000"),
    ("process ignoring TERM", "trap '' TERM HUP INT; bash -c 'touch $REACHED; sleep 1000'"),
    ("fork loop", "f() { sleep 0.01; f & }; f; bash -c 'touch $REACHED; sleep 1000'"),
    (
        "nohup with another name",
        "nohup bash -c 'touch $REACHED; exec -a innocent sleep 1000' >/dev/null 2>&1 & sleep 1000",
    ),
];

/// Times one out, and looks for what it left.
async fn time_out(sandbox: &Sandbox, number: usize, (name, text): (&str, &str), timeout_ms: u64) {
    let script =
        format!("export MARK=mark-{number} REACHED=/root/reached-{number}; echo before-{number}; {text}");
    let spec = CommandSpec { timeout_ms, ..command::script(script) };
    let answer = sandbox.spec_as_it_is(spec).await;
    let outcome = answer.ended.unwrap().outcome.unwrap().outcome.unwrap();
    assert_eq!(outcome, Outcome::TimedOut(TimedOut { unkillable: 0 }), "{number}: {name}");
    let out = answer.stdout.unwrap().head;
    assert!(out.starts_with(format!("before-{number}\n").as_bytes()), "{number}: {name}");
    let look = format!(
        "[ -e /root/reached-{number} ] || echo never there; \
         grep -lz '^MARK=mark-{number}$' /proc/[0-9]*/environ 2>/dev/null | wc -l"
    );
    assert_eq!(sandbox.run(&look).await.0, "0\n", "{number}: {name}");
}

#[tokio::test]
async fn many_timeouts_in_seeded_order_and_a_neighbour_is_left_alone() {
    let count = std::env::var("ESPALIER_TIMEOUTS").ok().and_then(|count| count.parse().ok()).unwrap_or(28);
    let mut random = StdRng::seed_from_u64(53);
    let place = Place::new();
    let sandbox = &place.host("timeouts").await;
    let neighbour = sandbox.agent.allot();
    let innocent = "echo innocent; setsid sleep 100000 & exec sleep 100000";
    sandbox.agent.start(&neighbour, command::script(innocent)).await.unwrap();
    let mut done = 0;
    while done < count {
        let together = (count - done).min(random.random_range(1..=4));
        let runs: Vec<_> = (done..done + together)
            .map(|number| {
                time_out(sandbox, number, ESCAPES[number % ESCAPES.len()], random.random_range(1000..1600))
            })
            .collect();
        futures::future::join_all(runs).await;
        done += together;
    }
    let listed = sandbox.agent.list().await.unwrap();
    let neighbour = listed.iter().find(|one| one.id.as_ref() == Some(&neighbour)).unwrap();
    assert_eq!((neighbour.alive, &neighbour.ended), (2, &None));
    // The agent, the neighbour's two, and who looks.
    assert_eq!(sandbox.run("set -- /proc/[0-9]*; echo $#").await.0, "4\n");
}
