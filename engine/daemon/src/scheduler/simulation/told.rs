//! Commands at random moments, and tasks that come late, without end, or not any more.

use super::*;

/// What happened on the way, for the checks.
struct Told {
    outcome: Result<Outcome, Fatal>,
    /// Whether the run was told to stop before it had finished.
    stopped: bool,
}

/// Runs, and tells it random commands at random moments until one stops it or it ends. Checks that a pause admits nothing.
async fn play_told(
    seed: u64,
    source: Box<Numbers>,
    wanted: u64,
    disk: &Arc<Mutex<Disk>>,
    stops: bool,
) -> Told {
    let mut rng = SmallRng::seed_from_u64(seed ^ 0xC0FFEE);
    let backend = Simulation::new(seed, disk);
    let started = Arc::clone(&backend.started);
    let (commander, commands) = control::channel();
    let (_keep, fenced) = watch::channel(None);
    let (sender, progress) = progress::channel();
    let run = run(Arc::new(backend), schedule(&config(), wanted, disk), source, commands, fenced, sender);
    let teller = async {
        loop {
            tokio::time::sleep(Duration::from_millis(rng.random_range(0..20_000))).await;
            let stop = stops && rng.random_range(0..8) == 0;
            let command = match rng.random_range(0..2) {
                _ if stop && rng.random() => Command::Stop(StopMode::Cancel),
                _ if stop => Command::Stop(StopMode::Drain),
                0 => Command::Pause,
                _ => Command::Resume,
            };
            let Ok(answer) = commander.ask(command).await else { return false };
            match command {
                Command::Stop(_) => {
                    assert!(answer.changed && answer.phase.stops());
                    return true;
                }
                Command::Pause => {
                    assert_eq!(answer.phase, RunPhase::Paused);
                    // What was admitted before may only now begin.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    let (before, groups) =
                        (started.load(Ordering::SeqCst), disk.lock().unwrap().groups.len());
                    // Groups that were being opened when it was paused may still open.
                    tokio::time::sleep(Duration::from_millis(rng.random_range(10..60_000))).await;
                    assert_eq!(started.load(Ordering::SeqCst), before, "a paused run admits nothing");
                    let opened = disk.lock().unwrap().groups.len() - groups;
                    assert!(
                        opened <= config().concurrent_rollouts as usize,
                        "{opened} groups opened in a pause"
                    );
                    // One that is over has answered for the last time.
                    if commander.ask(Command::Resume).await.is_err() {
                        return false;
                    }
                }
                Command::Resume => assert_eq!(answer.phase, RunPhase::Admitting),
            }
        }
    };
    let bound = tokio::time::sleep(Duration::from_secs(1_000_000));
    let (outcome, stopped) = tokio::select! {
        both = async { tokio::join!(run, teller) } => both,
        () = bound => panic!("the run waits without bound"),
    };
    // What does not return from a cancel is cut, and holds its permit to the end.
    let finished = outcome.as_ref().is_ok_and(|outcome| outcome.finished);
    assert!(!finished || progress.borrow().counts.running == 0, "no permit leaks");
    Told { outcome, stopped }
}

#[tokio::test(start_paused = true)]
async fn paused_resumed_and_stopped_at_random_moments_it_loses_nothing() {
    let mut stops = 0;
    for seed in 0..60 {
        println!("seed {seed}");
        let disk = Arc::default();
        // Stopped and begun again until it is finished.
        loop {
            let told = play_told(seed + stops * 1000, Numbers::known(), 8, &disk, true).await;
            let finished = told.outcome.expect("nothing in the simulation is fatal").finished;
            stops += u64::from(told.stopped);
            assert!(finished || told.stopped, "only a stop ends a run that has not finished");
            if finished {
                break;
            }
        }
        check(&disk, &config(), 8);
    }
    assert!(stops > 20, "{stops} stops met a run");
}

#[tokio::test(start_paused = true)]
async fn tasks_that_come_late_are_all_taken_and_the_end_is_the_sources() {
    for seed in 0..40 {
        println!("seed {seed}");
        let disk = Arc::default();
        let told = play_told(seed, Numbers::late(seed, 7), u64::MAX, &disk, false).await;
        assert!(told.outcome.expect("nothing in the simulation is fatal").finished);
        check(&disk, &config(), 7);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_a_task_and_a_later_session_takes_the_rest() {
    for seed in 0..40 {
        println!("seed {seed}");
        let disk = Arc::default();
        let mut sessions = 0;
        loop {
            sessions += 1;
            let source = Numbers::late(seed + sessions, 5);
            let told = play_told(seed + sessions * 1000, source, u64::MAX, &disk, true).await;
            if told.outcome.expect("nothing in the simulation is fatal").finished {
                break;
            }
        }
        check(&disk, &config(), 5);
    }
}

#[tokio::test(start_paused = true)]
async fn a_source_that_fails_ends_what_has_begun_and_leaves_the_run_open() {
    for seed in 0..20 {
        println!("seed {seed}");
        let disk = Arc::default();
        let source = Box::new(Numbers { fails: true, ..*Numbers::late(seed, 4) });
        let told = play_told(seed, source, u64::MAX, &disk, false).await;
        assert_eq!(told.outcome.unwrap_err().to_string(), "the task stream failed: the writer is gone");
        check(&disk, &config(), 4);
        // It has come to itself.
        let told = play_told(seed, Numbers::late(seed, 6), u64::MAX, &disk, false).await;
        assert!(told.outcome.expect("nothing in the simulation is fatal").finished);
        check(&disk, &config(), 6);
    }
}

#[tokio::test(start_paused = true)]
async fn an_endless_source_is_asked_only_for_what_may_open() {
    let disk = Arc::default();
    let (commander, commands) = control::channel();
    let (_keep, fenced) = watch::channel(None);
    let (sender, progress) = progress::channel();
    let backend = Simulation { faults: false, ..Simulation::new(1, &disk) };
    let source = Box::new(Numbers { end: u64::MAX, known: false, ..*Numbers::known() });
    let run = run(Arc::new(backend), schedule(&config(), u64::MAX, &disk), source, commands, fenced, sender);
    let teller = async {
        tokio::time::sleep(Duration::from_secs(1_000)).await;
        let (open, wanted) = {
            let progress = progress.borrow();
            (progress.counts.groups_open, progress.groups_wanted)
        };
        assert!((1..=4).contains(&open), "{open} groups are open");
        assert_eq!(wanted, None, "nobody knows how many there will be");
        commander.ask(Command::Stop(StopMode::Drain)).await.unwrap();
    };
    let (outcome, ()) = tokio::join!(run, teller);
    let outcome = outcome.unwrap();
    assert!(!outcome.finished && outcome.counts.groups_closed.values().sum::<u64>() > 50);
}
