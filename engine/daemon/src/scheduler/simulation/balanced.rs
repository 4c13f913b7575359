//! Groups that are chosen out of more rollouts, killed at any write.

use super::*;
use espalier_core::group::BarConfig;

/// Length of a rollout by its place.
pub(super) fn sampled(rollout_index: u32) -> u64 {
    u64::from(rollout_index * 3 % 5) + 1
}

/// Every fourth rollout is positive.
fn balanced() -> GroupsConfig {
    let bar = BarConfig { rollouts_max: Some(8), stride: Some(2), positive_min: 0.6, positive_max: 0.7 };
    GroupsConfig { bar: Some(bar), ..config() }
}

fn simulation(disk: &Arc<Mutex<Disk>>, kill: Option<Kill>) -> Simulation {
    Simulation { by_place: true, faults: false, kill, ..Simulation::new(1, disk) }
}

fn scheduled(groups: u64, disk: &Mutex<Disk>) -> Schedule {
    let mut schedule = schedule(&balanced(), groups, disk);
    for (group_index, rollouts) in &schedule.resume.open {
        for rollout_index in rollouts.keys().copied() {
            let rollout = RolloutKey { group_index: *group_index, rollout_index };
            schedule.resume.sampled.insert(rollout, sampled(rollout_index));
        }
    }
    schedule
}

fn verdicts(disk: &Mutex<Disk>) -> Vec<Verdict> {
    disk.lock().unwrap().groups.values().map(|group| group.verdict.clone().expect("it closed")).collect()
}

#[tokio::test(start_paused = true)]
async fn strides_come_until_a_group_is_balanced_wherever_the_engine_is_killed() {
    let whole: Arc<Mutex<Disk>> = Arc::default();
    let outcome = play(simulation(&whole, None), scheduled(3, &whole)).await.expect("nobody killed it");
    let expected = verdicts(&whole);
    // Two of three are to be positive. Group 0: places 0 and 4 are, so one stride is added; of 1 (length 4), 2 (2) and 3 (5) the
    // shortest is taken. Group 1: 3 and 7 are, after three strides (5, 7, 8); 0 and 5 have length 1, and 0 is the earlier. Group 2: 2
    // and 6, after two.
    let told: Vec<(Vec<u32>, Vec<u32>)> =
        expected.iter().map(|verdict| (verdict.counted.clone(), verdict.not_chosen.clone())).collect();
    assert_eq!(
        told,
        [
            (vec![0, 2, 4], vec![1, 3]),
            (vec![0, 3, 7], vec![1, 2, 4, 5, 6]),
            (vec![0, 2, 6], vec![1, 3, 4, 5]),
        ]
    );
    let counts = outcome.counts;
    assert_eq!((counts.ended(), counts.added, counts.not_chosen, counts.replacements), (20, 11, 11, 0));
    let of = |places: fn(&Verdict) -> &[u32]| -> u64 {
        expected.iter().flat_map(places).map(|index| sampled(*index)).sum()
    };
    let tokens = (counts.tokens.trained, counts.tokens.masked);
    assert_eq!(tokens, (of(|verdict| &verdict.counted), of(|verdict| &verdict.not_chosen)));

    let writes = whole.lock().unwrap().writes;
    assert!(writes > 20, "{writes} writes");
    for at_write in 1..=writes {
        for after_effect in [false, true] {
            let kill = Kill { at_write, after_effect };
            let disk: Arc<Mutex<Disk>> = Arc::default();
            let killed = play(simulation(&disk, Some(kill)), scheduled(3, &disk)).await;
            assert!(killed.is_none(), "{kill:?}: it was killed");
            let again =
                play(simulation(&disk, None), scheduled(3, &disk)).await.expect("nobody killed it again");
            assert!(again.finished);
            assert_eq!(verdicts(&disk), expected, "{kill:?}");
            let rollouts: usize =
                disk.lock().unwrap().groups.values().map(|group| group.attempts.len()).sum();
            assert_eq!(rollouts, 20, "{kill:?}: none runs twice, and none that is not needed");
        }
    }
}
