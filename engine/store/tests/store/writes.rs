//! What a write changes, refuses, and survives.

use crate::on_both;
use crate::sample::{NOW, closed, ended, opened, play, record, spec, started, stranger};
use espalier_core::ending::StopReason;
use espalier_core::samples::GroupStatus;
use espalier_store::{Fate, RunWriter, Start, Store, StoreError};

async fn run(store: &Store) -> RunWriter {
    store.claim_run(&spec("a", 1), &stranger(1), Start::Resume, NOW).await.unwrap().run
}

fn refused(result: Result<(), StoreError>, expect: &str) {
    match result {
        Err(StoreError::Invalid(text)) => assert!(text.ends_with(expect), "{text}"),
        other => panic!("{other:?} is no refusal ending in {expect:?}"),
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
        let end = |attempt| ended(record(run.run_id(), 0, 0, attempt, Some(1.0)), Fate::Final);
        refused(run.attempt_ended(end(0)).await, "it never started in this run");
        run.attempt_started(started(0, 0, 0)).await.unwrap();
        refused(run.close_group(closed(0, GroupStatus::Failed, 0, &[])).await, "rollout 0 still runs");
        run.attempt_ended(end(0)).await.unwrap();
        refused(run.attempt_started(started(0, 0, 0)).await, "starts, but it is final");
        run.attempt_started(started(0, 0, 1)).await.unwrap();
        refused(run.attempt_ended(end(1)).await, "is the rollout's result");
        run.attempt_ended(ended(record(run.run_id(), 0, 0, 1, None), Fate::Abandoned)).await.unwrap();
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

    async fn a_failed_group_opens_again_for_what_infrastructure_took(backend: Backend) {
        let store = backend.open().await;
        let run = run(&store).await;
        run.open_group(opened(0)).await.unwrap();
        play(&run, 0, 0, 0, Some(1.0), Fate::Final).await.unwrap();
        for (index, reason) in [(1, StopReason::Infrastructure), (2, StopReason::GuestTrap)] {
            run.attempt_started(started(0, index, 0)).await.unwrap();
            let mut lost = record(run.run_id(), 0, index, 0, None);
            lost.trajectory.stop_reason = reason;
            lost.trajectory.status = reason.row().status;
            run.attempt_ended(ended(lost, Fate::Final)).await.unwrap();
        }
        refused(run.reopen_group(3, vec![0]).await, "it never opened");
        run.close_group(closed(0, GroupStatus::Failed, 1, &[1])).await.unwrap();
        for _ in 0..2 {
            run.reopen_group(0, vec![0, 1, 2]).await.unwrap();
        }
        let progress = &run.progress().await.unwrap()[0];
        assert_eq!(progress.status, None);
        let again: Vec<u32> = progress.rollouts.iter().filter(|(_, one)| one.result().is_none()).map(|(at, _)| *at).collect();
        assert_eq!(again, [1], "results of any other kind stay");
        play(&run, 0, 1, 1, Some(0.5), Fate::Final).await.unwrap();
        run.close_group(closed(0, GroupStatus::Short, 2, &[])).await.unwrap();
        refused(run.reopen_group(0, vec![1]).await, "it is short");
        assert!(store.run_totals(run.run_id()).await.unwrap().tokens.close());
    }

    async fn a_write_that_is_repeated_changes_nothing(backend: Backend) {
        let store = backend.open().await;
        let run = run(&store).await;
        for _ in 0..2 {
            run.open_group(opened(0)).await.unwrap();
            run.attempt_started(started(0, 0, 0)).await.unwrap();
        }
        for _ in 0..2 {
            let end = ended(record(run.run_id(), 0, 0, 0, Some(0.5)), Fate::Final);
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
                        play(&run, group, rollout, 0, reward, Fate::Final).await
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
