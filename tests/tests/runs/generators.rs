//! Tasks that a generator makes: part of the run's record before a group takes them, the same after a stop, adapted to how they went.

use crate::kills::engine;
use crate::setting::Setting;
use espalier_core::samples::GroupStatus;
use espalier_daemon::engine::{EngineError, RunEnd, RunOptions};
use espalier_store::GeneratedTask;
use rand::{RngExt, SeedableRng};
use std::time::Duration;

/// TextCraft out of invented recipes, played by the reference or by nobody.
fn setting(tasks: &str, harness: &str) -> Setting {
    let setting = Setting::empty();
    let text = format!(
        "name = \"test\"\nseed = 7\n[tasks]\nplugin = \"crafting-tasks\"\n{tasks}\n[groups]\nsize = 2\n\
         concurrent_rollouts = 1\n[harness]\n{harness}\n[environment]\nplugin = \"textcraft\"\n\
         [[rewards]]\nplugin = \"environment-reward\"\n"
    );
    std::fs::write(setting.file(), text).unwrap();
    setting
}

const SOLVED: &str = "plugin = \"reference\"\ngrants = [\"private-task\"]";
const IDLE: &str = "plugin = \"idle\"";

/// The tasks of a run with the depth that each says it has.
async fn tasks(setting: &Setting) -> (Vec<GeneratedTask>, Vec<u32>) {
    let store = setting.store().await;
    let run = store.runs().await.unwrap().remove(0);
    let tasks = store.generated_tasks(&run.run_id).await.unwrap();
    let mut depths = Vec::new();
    for task in &tasks {
        let bytes = store.blobs().read_whole(&task.task_text).await.unwrap();
        let task: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        let tag = task["tags"][0].as_str().unwrap().strip_prefix("depth:").unwrap().to_owned();
        depths.push(tag.parse().unwrap());
    }
    store.close().await;
    (tasks, depths)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_was_stopped_goes_on_with_the_same_tasks() {
    let whole = setting("limit = 6\nbatch = 2", SOLVED);
    let summary = whole.run().await;
    assert_eq!((summary.state, summary.counts.ended(), summary.counts.solved), (RunEnd::Finished, 12, 12));
    let (expect, _) = tasks(&whole).await;
    assert_eq!(expect.len(), 6);
    assert_eq!(expect.iter().map(|task| task.place).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);

    let parts = setting("limit = 6\nbatch = 2", SOLVED);
    for limit in [1, 3] {
        let summary = parts.run_with(RunOptions { limit: Some(limit), ..parts.options() }).await.unwrap();
        assert_eq!(summary.state, RunEnd::Open);
    }
    let (some, _) = tasks(&parts).await;
    assert_eq!(some[..], expect[..some.len()]);
    assert_eq!(parts.run().await.state, RunEnd::Finished);
    assert_eq!(tasks(&parts).await.0, expect);
    // Nothing is left to do, and the table still tells of all of them.
    assert_eq!(parts.run().await.tasks, 6);
    let left = parts.left().await;
    assert_eq!(left.groups, [Some(GroupStatus::Ready); 6]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_become_harder_where_all_is_solved_and_easier_where_nothing_is() {
    let settings = "limit = 8\nbatch = 1\nadapt = { below = 0.2, above = 0.8 }\nsettings = { depth_min = 3, depth_max = 3 }";
    let solved = setting(settings, SOLVED);
    assert_eq!(solved.run().await.state, RunEnd::Finished);
    let (_, depths) = tasks(&solved).await;
    assert!(depths.contains(&4) && depths.contains(&5), "{depths:?}");
    assert!(!depths.iter().any(|depth| *depth < 3), "{depths:?}");

    let idle = setting(settings, IDLE);
    assert_eq!(idle.run().await.state, RunEnd::Finished);
    let (_, depths) = tasks(&idle).await;
    assert!(depths.contains(&2) && depths.contains(&1), "{depths:?}");
    assert!(!depths.iter().any(|depth| *depth > 3), "{depths:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_task_is_counted_and_left_out() {
    let plain = setting("limit = 2\nbatch = 3", IDLE);
    let text = std::fs::read_to_string(plain.file()).unwrap();
    let text = text.replace("\"crafting-tasks\"", "\"fault-generator\"\nsettings = { fault = \"invalid\" }");
    let text = text.replace("[environment]\nplugin = \"textcraft\"\n", "");
    std::fs::write(plain.file(), text).unwrap();
    let summary = plain.run().await;
    assert_eq!(
        (summary.state, summary.tasks, summary.tasks_rejected),
        (RunEnd::Finished, 2, 2),
        "the second call was asked for one"
    );
    let reasons: Vec<&str> = summary.rejected.iter().map(|task| task.reason.as_str()).collect();
    assert!(reasons[0].contains("the run has a task with the id"), "{reasons:?}");
    assert!(reasons[1].contains("missing field `id`"), "{reasons:?}");
    assert_eq!(plain.left().await.groups, [Some(GroupStatus::Ready); 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_makes_nothing_stops_the_run_with_what_it_said_last() {
    let setting = setting("limit = 2\nsettings = { depth_min = 3, depth_max = 1 }", IDLE);
    let error = setting.run_with(setting.options()).await.unwrap_err();
    assert!(matches!(error, EngineError::TasksFailed(_)), "{error}");
    let text = error.to_string();
    assert!(text.contains("`crafting-tasks` made no valid task in 8 batches"), "{text}");
    assert!(text.contains("depth_min 3 is over depth_max 1"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_is_killed_over_and_over_goes_on_with_the_same_tasks() {
    let settings = "limit = 60\nbatch = 3";
    let whole = setting(settings, SOLVED);
    assert_eq!(whole.run().await.state, RunEnd::Finished);
    let (expect, _) = tasks(&whole).await;

    let killed = setting(settings, SOLVED);
    let mut rng = rand::rngs::SmallRng::seed_from_u64(5);
    println!("seed 5");
    let (mut kept, mut under_way, mut patience) = (0, 0, 1);
    for _ in 0..40 {
        let mut child = engine(&killed).spawn().unwrap();
        let wait = Duration::from_millis(rng.random_range(100..700)) * patience;
        if let Ok(status) = tokio::time::timeout(wait, child.wait()).await {
            assert!(status.unwrap().success());
            break;
        }
        child.kill().await.unwrap();
        if !killed.store_folder().join("store.sqlite").exists() {
            patience = (patience * 2).min(8);
            continue;
        }
        let now = tasks_if_any(&killed).await;
        assert_eq!(now[..], expect[..now.len()], "what was accepted stays");
        under_way += usize::from(!now.is_empty() && now.len() < expect.len());
        patience = if now.len() > kept { 1 } else { (patience * 2).min(8) };
        kept = now.len();
        if under_way >= 5 {
            break;
        }
    }
    assert!(under_way >= 1, "no kill met the run in the middle");
    assert_eq!(killed.run().await.state, RunEnd::Finished);
    assert_eq!(tasks(&killed).await.0, expect);
    let left = killed.left().await;
    assert_eq!(left.groups, [Some(GroupStatus::Ready); 60]);
    for (row, record) in left.finals() {
        assert_eq!(record.trajectory.reward, Some(1.0), "{}", row.traj_id);
    }
}

/// The tasks of a run that may not have begun.
async fn tasks_if_any(setting: &Setting) -> Vec<GeneratedTask> {
    let store = setting.store().await;
    let tasks = match store.runs().await.unwrap().first() {
        Some(run) => store.generated_tasks(&run.run_id).await.unwrap(),
        None => Vec::new(),
    };
    store.close().await;
    tasks
}
