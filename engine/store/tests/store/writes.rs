//! What a write changes, refuses, and survives.

use crate::on_both;
use crate::sample::{NOW, closed, ended, opened, play, record, spec, started, stranger};
use espalier_core::ending::StopReason;
use espalier_core::plugin_failure::{PluginFailure, PluginFailureClass};
use espalier_core::samples::{ErrorNote, GroupStatus};
use espalier_core::signal::UnscoredCause;
use espalier_store::{Finality, GroupOpened, GroupReopened, RunWriter, Start, Store, StoreError};

async fn run(store: &Store) -> RunWriter {
    store.claim_run(&spec("a", 1), &stranger(1), Start::Resume, NOW).await.unwrap().run
}

fn refused(result: Result<(), StoreError>, expect: &str) {
    match result {
        Err(StoreError::Invalid(text)) => assert!(text.ends_with(expect), "{text}"),
        other => panic!("{other:?} is not a refusal ending in {expect:?}"),
    }
}

on_both! {
    async fn what_contradicts_the_store_is_refused(backend: Backend) {
        let store = backend.open().await;
        let run = run(&store).await;
        refused(run.attempt_started(started(0, 0, 0)).await, "starts in a group that is not open");
        run.open_group(opened(0)).await.unwrap();
        let other = espalier_store::GroupOpened { task_id: "else".into(), ..opened(0) };
        refused(run.open_group(other).await, "is open, with another task or plugins");
        let end = |attempt| ended(record(run.run_id(), 0, 0, attempt, Some(1.0)), Finality::Final);
        refused(run.attempt_ended(end(0)).await, "it never started in this run");
        run.attempt_started(started(0, 0, 0)).await.unwrap();
        refused(run.close_group(closed(0, GroupStatus::Failed, 0, &[])).await, "rollout 0 still runs");
        run.attempt_ended(end(0)).await.unwrap();
        refused(run.attempt_started(started(0, 0, 0)).await, "starts, but it is final");
        run.attempt_started(started(0, 0, 1)).await.unwrap();
        refused(run.attempt_ended(end(1)).await, "is the rollout's result");
        run.attempt_ended(ended(record(run.run_id(), 0, 0, 1, None), Finality::Abandoned)).await.unwrap();
        refused(run.close_group(closed(0, GroupStatus::Ready, 2, &[])).await, "1 rollouts have a reward, not 2");
        refused(
            run.close_group(closed(0, GroupStatus::Short, 1, &[7])).await,
            "rollout 7, said to be replaced, has not ended",
        );
        refused(run.close_group(closed(3, GroupStatus::Short, 1, &[])).await, "it never opened");
        run.close_group(closed(0, GroupStatus::Short, 1, &[])).await.unwrap();
        refused(run.close_group(closed(0, GroupStatus::Failed, 0, &[])).await, "it is short");
        refused(run.attempt_started(started(0, 1, 0)).await, "starts in a group that is not open");
    }

    async fn a_failed_group_opens_again_for_what_may_be_repaired(backend: Backend) {
        let store = backend.open().await;
        let run = run(&store).await;
        run.open_group(opened(0)).await.unwrap();
        play(&run, 0, 0, 0, Some(1.0), Finality::Final).await.unwrap();
        for (index, reason) in [(1, StopReason::Infrastructure), (2, StopReason::GuestTrap)] {
            run.attempt_started(started(0, index, 0)).await.unwrap();
            let mut lost = record(run.run_id(), 0, index, 0, None);
            lost.trajectory.stop_reason = reason;
            lost.trajectory.status = reason.row().status;
            run.attempt_ended(ended(lost, Finality::Final)).await.unwrap();
        }
        let repaired = [("harness".to_owned(), "mended".to_owned())];
        let again = |group_index, rollouts: &[u32]| GroupReopened {
            group_index,
            rollouts: rollouts.to_vec(),
            plugins: repaired.clone().into(),
        };
        refused(run.do_again(again(3, &[0])).await, "it never opened");
        run.close_group(closed(0, GroupStatus::Failed, 1, &[1])).await.unwrap();
        for _ in 0..2 {
            run.do_again(again(0, &[0, 1])).await.unwrap();
        }
        let progress = &run.progress().await.unwrap()[0];
        assert_eq!((progress.status, &progress.opened.plugins), (None, &repaired.clone().into()));
        let taken: Vec<u32> = (progress.rollouts.iter())
            .filter(|(_, one)| one.result().is_none())
            .map(|(at, _)| *at)
            .collect();
        assert_eq!(taken, [1], "a result with a reward stays, and so does what is not named");
        play(&run, 0, 1, 1, Some(0.5), Finality::Final).await.unwrap();
        run.close_group(closed(0, GroupStatus::Short, 2, &[])).await.unwrap();
        refused(run.do_again(again(0, &[1])).await, "it is short");
        assert!(store.run_totals(run.run_id()).await.unwrap().tokens.close());
    }

    async fn the_name_of_its_task_makes_no_other_cause(backend: Backend) {
        let store = backend.open().await;
        let run = run(&store).await;
        for (index, task) in ["apple-pie", "custard"].into_iter().enumerate() {
            let index = index as u64;
            let group = GroupOpened { task_id: task.to_owned(), ..opened(index) };
            run.open_group(group).await.unwrap();
            run.attempt_started(started(index, 0, 0)).await.unwrap();
            let mut unscored = record(run.run_id(), index, 0, 0, None);
            let text = format!("no recipe for {task} in {task}.json");
            unscored.trajectory.errors =
                vec![ErrorNote { code: "reward-failure".to_owned(), text }];
            run.attempt_ended(ended(unscored, Finality::Final)).await.unwrap();
        }
        let causes = store.causes(run.run_id(), 9).await.unwrap();
        let [cause] = &causes.list[..] else { panic!("{causes:?}") };
        assert_eq!(cause.rollouts, 2);
        assert!(cause.error.as_ref().unwrap().ends_with("no recipe for apple-pie in apple-pie.json"));
        // What is counted by its code is not read off a text.
        let unscored = store.run_totals(run.run_id()).await.unwrap().unscored;
        assert_eq!(unscored, [(UnscoredCause::Failure, 2)].into());
    }

    async fn a_result_without_a_reward_is_scored_in_place(backend: Backend) {
        let store = backend.open().await;
        let run = run(&store).await;
        run.open_group(opened(0)).await.unwrap();
        let failure = PluginFailure {
            world: "reward".into(),
            plugin: "brevity".into(),
            digest: "ab".into(),
            export: "reward.score-rollout".into(),
            class: PluginFailureClass::Panic,
            place: Some("src/lib.rs:31:5".into()),
            message: "index 7 of 3".into(),
            excused: false,
        };
        for index in 0..3 {
            let mut unscored = record(run.run_id(), 0, index, 0, None);
            let message = format!("index {} of 3", index + 3);
            unscored.failures = vec![PluginFailure { message, ..failure.clone() }];
            run.attempt_started(started(0, index, 0)).await.unwrap();
            run.attempt_ended(ended(unscored, Finality::Final)).await.unwrap();
        }
        let before = store.run(run.run_id()).await.unwrap();
        let causes = store.causes(run.run_id(), 9).await.unwrap();
        let [cause] = &causes.list[..] else { panic!("{causes:?}") };
        assert_eq!((cause.rollouts, &cause.failure.as_ref().unwrap().message[..]), (3, "index 3 of 3"));
        assert!(cause.first.ends_with(".g0.r0.a0"), "{}", cause.first);

        let scored = |index| ended(record(run.run_id(), 0, index, 0, Some(0.5)), Finality::Final);
        for _ in 0..2 {
            run.attempt_scored(scored(0)).await.unwrap();
        }
        let mut other = scored(0);
        other.record.trajectory.reward = Some(0.25);
        refused(run.attempt_scored(other).await, "not a result without a reward");
        refused(run.attempt_scored(scored(7)).await, "it never started in this run");
        run.abandon_result(0, 2).await.unwrap();
        let after = store.run(run.run_id()).await.unwrap();
        assert_eq!((after.rollouts.ended, after.rollouts.rewarded), (2, 1));
        assert_eq!(after.tokens.sampled, before.tokens.sampled, "nothing was sampled");
        assert!(store.run_totals(run.run_id()).await.unwrap().tokens.close());
        let causes = store.causes(run.run_id(), 0).await.unwrap();
        assert_eq!((causes.list.len(), causes.more), (0, 1));
        run.close_group(closed(0, GroupStatus::Failed, 1, &[])).await.unwrap();
        refused(run.attempt_scored(scored(1)).await, "its group is not open");
        refused(run.abandon_result(0, 1).await, "not open");
    }

    async fn a_write_that_is_repeated_changes_nothing(backend: Backend) {
        let store = backend.open().await;
        let run = run(&store).await;
        for _ in 0..2 {
            run.open_group(opened(0)).await.unwrap();
            run.attempt_started(started(0, 0, 0)).await.unwrap();
        }
        for _ in 0..2 {
            let end = ended(record(run.run_id(), 0, 0, 0, Some(0.5)), Finality::Final);
            run.attempt_ended(end).await.unwrap();
        }
        for _ in 0..2 {
            run.close_group(closed(0, GroupStatus::Short, 1, &[])).await.unwrap();
        }
        let row = store.run(run.run_id()).await.unwrap();
        assert_eq!((row.rollouts.ended, row.rollouts.reward_sum, row.tokens.sampled), (1, 0.5, 3));
    }

    async fn a_bad_write_does_not_take_its_neighbours_with_it(backend: Backend) {
        let store = backend.open().await;
        let run = run(&store).await;
        let groups = 40;
        let mut writes = tokio::task::JoinSet::new();
        for group in 0..groups {
            let (run, alone) = (run.clone(), run.clone());
            writes.spawn(async move {
                run.open_group(opened(group)).await?;
                let mut rollouts = tokio::task::JoinSet::new();
                for rollout in 0..4 {
                    let run = run.clone();
                    rollouts.spawn(async move {
                        let reward = (rollout != 3).then_some(f64::from(rollout));
                        play(&run, group, rollout, 0, reward, Finality::Final).await
                    });
                }
                rollouts.join_all().await.into_iter().collect::<Result<(), _>>()
            });
            let run = alone.clone();
            writes.spawn(async move {
                match run.attempt_started(started(group + 1_000, 0, 0)).await {
                    Err(StoreError::Invalid(_)) => Ok(()),
                    other => panic!("{other:?}"),
                }
            });
        }
        writes.join_all().await.into_iter().collect::<Result<(), _>>().unwrap();
        let row = store.run(run.run_id()).await.unwrap();
        assert_eq!((row.groups_open, row.rollouts.ended, row.rollouts.rewarded), (groups, 4 * groups, 3 * groups));
    }
}
