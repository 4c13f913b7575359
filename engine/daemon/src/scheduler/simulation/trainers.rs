//! Trainers that are away, and come back: how many groups are made meanwhile.

use super::*;
use espalier_core::samples::GroupStatus;

/// Groups that are there, closed or not.
fn made(disk: &Mutex<Disk>) -> u64 {
    disk.lock().unwrap().groups.len() as u64
}

/// Groups that closed for trainers.
fn deliverable(disk: &Mutex<Disk>) -> u64 {
    let disk = disk.lock().unwrap();
    let for_trainers = |group: &&DiskGroup| {
        let status = group.verdict.as_ref().map(|verdict| verdict.status);
        matches!(status, Some(GroupStatus::Ready | GroupStatus::Short))
    };
    disk.groups.values().filter(for_trainers).count() as u64
}

#[tokio::test(start_paused = true)]
async fn while_a_trainer_is_away_nothing_is_made_beyond_the_bound() {
    const WANTED: u64 = 40;
    for (seed, groups_max) in (0..12).zip([1, 3, 8, 20].into_iter().cycle()) {
        println!("seed {seed}, at most {groups_max}");
        let disk: Arc<Mutex<Disk>> = Arc::default();
        let (sender, done) = watch::channel(0);
        let backend = Simulation::new(seed, &disk);
        let started = Arc::clone(&backend.started);
        let mut schedule = schedule(&config(), WANTED, &disk);
        schedule.undelivered = Some(UndeliveredBound { groups_max, done, waits_at_end: false });
        let (_keep, fenced) = watch::channel(None);
        let (progress, seen) = progress::channel();
        let run = run(Arc::new(backend), schedule, Numbers::known(), Commands::unasked(), fenced, progress);
        let trainer = async {
            // Long enough for all that may be made.
            tokio::time::sleep(Duration::from_secs(20_000)).await;
            let (groups, attempts) = (made(&disk), started.load(Ordering::SeqCst));
            let told = seen.borrow().clone();
            assert!(told.waits_for_trainer, "{told:?}");
            assert_eq!(
                (deliverable(&disk), told.undelivered, told.counts.running),
                (groups_max, groups_max, 0)
            );
            // Ten minutes more: nothing is made, begun or kept.
            tokio::time::sleep(Duration::from_secs(600)).await;
            assert_eq!((made(&disk), started.load(Ordering::SeqCst)), (groups, attempts));
            assert_eq!(seen.borrow().counts, told.counts);
            // It comes back, goes back a step, and takes the groups one after another.
            for now in [1, 0, 1] {
                sender.send_replace(now);
                tokio::time::sleep(Duration::from_secs(60)).await;
            }
            loop {
                let (there, acknowledged) = (deliverable(&disk), *sender.borrow());
                assert!(there - acknowledged <= groups_max + 1, "{there} for trainers, {acknowledged} done");
                if acknowledged < there {
                    sender.send_replace(acknowledged + 1);
                }
                tokio::time::sleep(Duration::from_secs(30)).await;
            }
        };
        let bound = tokio::time::sleep(Duration::from_secs(1_000_000));
        let outcome = tokio::select! {
            outcome = run => outcome.expect("nothing in the simulation is fatal"),
            () = trainer => unreachable!("a trainer never ends"),
            () = bound => panic!("the run waits without bound"),
        };
        assert!(outcome.finished);
        check(&disk, &config(), WANTED);
    }
}
