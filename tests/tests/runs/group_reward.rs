//! Rewards of a group: they see all its rollouts before the filters do, and what they say is part of every record.

use crate::breaker::repair;
use crate::setting::{Left, Parts, Setting, plain_tasks};
use espalier_core::samples::GroupStatus;
use espalier_daemon::engine::{RunEnd, RunSummary};
use espalier_scripted::{Options, Scripted, by_text};
use espalier_tests::place::plugin_folder;
use std::sync::atomic::{AtomicUsize, Ordering};

/// All rollouts count as correct: what they are worth is what the group says.
const LENGTHS: &str =
    "[[rewards]]\nplugin = \"length-penalty\"\nweight = 2.0\nsettings = { correct_from = 0.0 }";
const GROUPS: &str = "size = 3\nfilters = [\"deviation\"]\nconcurrent_rollouts = 1";
/// One request, then it submits.
const ONCE: &str = "plugin = \"fault-harness\"\nsettings = { fault = \"complete\", times = 1 }";

/// Runs one group whose answers have these lengths, in characters.
async fn play(lengths: &'static [usize], rewards: &str) -> (RunSummary, Left) {
    let asked = AtomicUsize::new(0);
    let answer = move |_: &str| "a".repeat(lengths[asked.fetch_add(1, Ordering::SeqCst) % lengths.len()]);
    let server = Scripted::start(Options::new(by_text(answer))).await.unwrap();
    let parts =
        Parts { url: server.url(), harness: ONCE, world: rewards, groups: GROUPS, limits: "", model: "" };
    let setting = Setting::new(&plain_tasks(1), &parts);
    let summary = setting.run().await;
    assert_eq!(summary.state, RunEnd::Finished);
    (summary, setting.left().await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn they_tell_rollouts_apart_whose_own_rewards_are_equal() {
    let (summary, left) = play(&[10, 20, 40], LENGTHS).await;
    assert_eq!(left.groups, [Some(GroupStatus::Ready)], "without them all would be 0, and filtered");
    let mut rewards: Vec<f64> = left.finals().map(|(_, record)| record.trajectory.reward.unwrap()).collect();
    rewards.sort_by(f64::total_cmp);
    let expect = [-1.0, 2.0 * (0.5 - 10.0 / 30.0), 1.0];
    assert!(rewards.iter().zip(expect).all(|(is, expect)| (is - expect).abs() < 1e-9), "{rewards:?}");
    assert!((summary.counts.reward_sum - rewards.iter().sum::<f64>()).abs() < 1e-9);
    assert_eq!((summary.counts.scored, summary.counts.solved), (3, 1));
    for (row, record) in left.finals() {
        let part = &record.trajectory.reward_parts["length-penalty/reward"];
        assert_eq!(part.weight, 2.0);
        assert_eq!(record.trajectory.reward, Some(2.0 * part.score));
        let [score] = &record.scores[..] else { panic!("{:?}", record.scores) };
        assert!(score.score.reason.contains("the group has 10 to 40"), "{}", score.score.reason);
        assert!(record.trajectory.trainable && !record.withheld, "{}", row.traj_id);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filters_run_on_what_comes_out() {
    // Rewards of their own stand beside those of the group: steps of no environment are worth 0.
    let both = format!("[[rewards]]\nplugin = \"environment-reward\"\n{LENGTHS}");
    let (_, left) = play(&[20, 20, 20], &both).await;
    assert_eq!(left.groups, [Some(GroupStatus::Filtered)]);
    for (_, record) in left.finals() {
        let names: Vec<&str> = record.trajectory.reward_parts.keys().map(String::as_str).collect();
        assert_eq!(names, ["environment-reward/reward", "length-penalty/reward"]);
    }
}

const BROKEN: &str =
    "[[rewards]]\nplugin = \"./tournament.wasm\"\nattempts = 1\nsettings = { fault = \"FAULT\" }";

/// Four groups of two, with a group reward of their own in the folder of the experiment.
fn setting(server: &Scripted, fault: &str) -> Setting {
    let world = BROKEN.replace("FAULT", fault);
    let groups = "size = 2\nplugin_failures_max = 0";
    let parts = Parts { url: server.url(), harness: ONCE, world: &world, groups, limits: "", model: "" };
    let setting = Setting::new(&plain_tasks(4), &parts);
    let component = plugin_folder().join("fault-group-reward.wasm");
    std::fs::copy(component, setting.file().with_file_name("tournament.wasm")).unwrap();
    setting
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_fails_leaves_null_in_the_whole_group_and_replaces_nobody() {
    let server = Scripted::start(Options::new(by_text(|_| "well".to_owned()))).await.unwrap();
    let faults = [
        ("panic", "a panic on purpose"),
        ("failure", "no ground to score on"),
        ("nan", "a score is finite"),
        ("short", "scored 1 rollouts, the group has 2"),
    ];
    for (fault, told) in faults {
        let setting = setting(&server, fault);
        let summary = setting.run().await;
        let left = setting.left().await;
        assert_eq!(left.groups, [Some(GroupStatus::Failed); 4], "{fault}");
        assert_eq!((summary.counts.ended(), summary.counts.scored, summary.counts.replacements), (8, 0, 0));
        for (_, record) in left.finals() {
            let trajectory = &record.trajectory;
            assert_eq!(trajectory.reward, None, "{fault}: which is not 0");
            let error = &trajectory.errors.last().unwrap().text;
            assert!(error.contains("tournament") && error.contains(told), "{error}");
            assert!(record.withheld, "its tokens train once it has a reward");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_that_only_it_has_failed_are_scored_again_when_it_is_repaired() {
    let server = Scripted::start(Options::new(by_text(|_| "well".to_owned()))).await.unwrap();
    let setting = setting(&server, "unmended");
    setting.run().await;
    assert_eq!(setting.left().await.groups, [Some(GroupStatus::Failed); 4]);
    let requests = server.counts().requests;
    repair(&setting, "tournament.wasm");
    let summary = setting.run().await;
    assert_eq!(server.counts().requests, requests, "nothing is sampled again");
    let left = setting.left().await;
    assert_eq!(left.groups, [Some(GroupStatus::Ready); 4]);
    assert_eq!((summary.counts.scored, summary.counts.scored_again, summary.counts.reward_sum), (8, 8, 4.0));
    assert!(summary.causes.list.is_empty(), "{:?}", summary.causes);
    for (row, record) in left.finals() {
        assert_eq!(record.trajectory.reward, Some(f64::from(row.rollout_index)));
        assert!(record.trajectory.trainable && !record.withheld && record.failures.is_empty());
    }
}
