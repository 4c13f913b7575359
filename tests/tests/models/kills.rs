//! The engine killed at random points while its embedded model works: the model's server is gone, the same command goes
//! on, no result is lost or doubled. The other points of the 30 are in `tests/runs`, where answers are quick.

use crate::{BOUND, CORES, finished};
use espalier_tests::accounts::Accounts;
use espalier_tests::export;
use espalier_tests::place::{demo, espalier};
use espalier_tests::processes::{MARK, Process, gone, marked};
use espalier_tests::results::{check_kept, results};
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;
use tokio::process::Command;
use tokio::time::{sleep, timeout};

const KILLS: usize = 5;
const TASKS: u64 = 8;
const ROLLOUTS: usize = 32;
/// Until the server of a killed engine must be gone.
const GONE_WITHIN: Duration = Duration::from_secs(15);

/// One worked example in the place of the demo's eight: each new server reads the prompt anew.
const EXAMPLES: &str = r#"harness.settings.examples=["""
Crafting commands:
craft 4 oak planks using 1 oak logs

Goal: craft oak planks.
> get 1 oak logs
Got 1 oak logs
> craft 4 oak planks using 1 oak logs
Crafted 4 minecraft:oak_planks"""]"#;

fn run(store: &Path, mark: &str) -> Command {
    let mut run = espalier(store);
    run.arg("run").arg(demo()).args(["--limit", &TASKS.to_string(), "--set", EXAMPLES]).env(MARK, mark);
    run
}

/// Waits until so many results are durable.
async fn stored(store: &Path, count: usize) {
    let wait = async {
        while results(store).await.len() < count {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(BOUND, wait).await.expect("results are stored");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_engine_takes_its_model_along_and_loses_nothing() {
    let _cores = CORES.lock().await;
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let mark = folder.path().display().to_string();
    let seed = 23;
    println!("seed {seed}");
    let mut rng = rand::rngs::SmallRng::seed_from_u64(seed);
    let mut durable = BTreeMap::new();
    let (mut servers, mut under_way) = (BTreeSet::new(), 0);
    for kill in 1..=KILLS {
        let mut engine = run(&store, &mark).spawn().unwrap();
        let id = engine.id().expect("it was just started");
        // The first two while the server starts or has just begun; the others in the middle of the work.
        let (results_more, wait_ms) = if kill <= 2 { (0, 4000) } else { (rng.random_range(1..=4), 1000) };
        stored(&store, durable.len() + results_more).await;
        let wait = Duration::from_millis(rng.random_range(0..wait_ms));
        if let Ok(status) = timeout(wait, engine.wait()).await {
            panic!("kill {kill}: it ended by itself: {status:?}");
        }
        let alive = marked(&mark);
        assert!(alive.iter().any(|process| process.id == id), "kill {kill}: the engine carries the mark");
        let own: BTreeSet<Process> = alive.iter().copied().filter(|process| process.id != id).collect();
        engine.kill().await.unwrap();
        let left = gone(&mark, &alive, GONE_WITHIN).await;
        assert!(left.is_empty(), "kill {kill}: {left:?} outlived the engine");
        let now = results(&store).await;
        check_kept(&durable, &now, &format!("kill {kill}"));
        println!(
            "kill {kill}, {wait:?} after {results_more} more results: servers {own:?}, {} results",
            now.len()
        );
        servers.extend(own);
        under_way += usize::from(now.len() > durable.len() && now.len() < ROLLOUTS);
        durable = now;
    }
    assert!(servers.len() >= 3, "each engine has a server of its own: {servers:?}");
    assert!(under_way >= 2, "only {under_way} kills met an engine that had stored results");

    println!("{}", finished(run(&store, &mark)).await);
    let left = gone(&mark, &servers, GONE_WITHIN).await;
    assert!(left.is_empty(), "{left:?} outlived an engine that ended by itself");
    let now = results(&store).await;
    check_kept(&durable, &now, "the last run");
    assert_eq!(now.len(), ROLLOUTS);
    let groups = export::groups(&export::files(&store, "textcraft", folder.path()).await[0]);
    assert_eq!(groups.len() as u64, TASKS);
    Accounts::of(&groups).check_shown(&export::shown(&store, "textcraft").await);
    finished(run(&store, &mark)).await;
    assert_eq!(results(&store).await, now, "a finished run runs nothing again");
}
