//! What lists and tables are made of.

use crate::on_both;
use crate::sample::{NOW, closed, ended, opened, play, record_of, spec, started, stranger};
use espalier_core::ending::StopReason;
use espalier_core::samples::{GroupStatus, TokenSums};
use espalier_store::{Exclusion, Finality, Holder, RunState, RunWriter, Start, Store, StoreError, ids};
use std::collections::BTreeMap;

/// Group 0: solved, not solved, and a trap that was replaced by a solved one; the first took two attempts. Group 1 is open
/// with one rollout under way.
async fn played(store: &Store) -> RunWriter {
    let run = store.claim_run(&spec("a", 1), &stranger(1), Start::Resume, NOW).await.unwrap().run;
    run.open_group(opened(0)).await.unwrap();
    run.attempt_started(started(0, 0, 0)).await.unwrap();
    let mut lost = record_of(run.run_id(), 0, 0, 0, None, StopReason::Infrastructure);
    lost.trajectory.excluded[0].reason = "attempt-abandoned".into();
    run.attempt_ended(ended(lost, Finality::Abandoned)).await.unwrap();
    play(&run, 0, 0, 1, Some(1.0 - 1e-12), Finality::Final).await.unwrap();
    play(&run, 0, 1, 0, None, Finality::Final).await.unwrap();
    play(&run, 0, 2, 0, Some(0.25), Finality::Final).await.unwrap();
    run.close_group(closed(0, GroupStatus::Ready, 2, &[1])).await.unwrap();
    run.open_group(opened(1)).await.unwrap();
    run.attempt_started(started(1, 0, 0)).await.unwrap();
    run
}

on_both! {
    async fn the_sums_of_a_run_close(backend: Backend) {
        let store = backend.open().await;
        let run = played(&store).await;
        let row = store.run(run.run_id()).await.unwrap();
        assert_eq!(row.groups, BTreeMap::from([(GroupStatus::Ready, 1)]));
        assert_eq!((row.groups_open, row.groups_planned), (1, Some(3)));
        let counts = row.rollouts;
        assert_eq!((counts.running, counts.ended, counts.replaced), (1, 3, 1));
        assert_eq!((counts.rewarded, counts.solved, counts.attempts_abandoned), (2, 1, 1));
        assert!((counts.mean_reward().unwrap() - 0.625).abs() < 1e-9);
        assert!(row.tokens.close());
        assert_eq!(row.tokens, TokenSums { sampled: 12, trained: 4, masked: 8, dropped: 0 });
        let totals = store.run_totals(run.run_id()).await.unwrap();
        assert_eq!(totals.tokens, row.tokens);
        assert_eq!(totals.tokens_by_group[&Some(GroupStatus::Ready)], row.tokens);
        assert_eq!(totals.tokens_by_group[&None], TokenSums::default());
        let endings = [(StopReason::Submitted, 2), (StopReason::GuestTrap, 1)];
        assert_eq!(totals.endings, BTreeMap::from(endings));
        assert_eq!(totals.abandoned, BTreeMap::from([(StopReason::Infrastructure, 1)]));
        let exclusion = |reason: &str, tokens| Exclusion { how: "masked".into(), reason: reason.into(), tokens };
        assert_eq!(
            totals.exclusions,
            [exclusion("attempt-abandoned", 3), exclusion("not-trainable", 3), exclusion("harness", 2)]
        );
        assert_eq!((totals.turns, totals.calls, totals.timing.model), (3, 4, 12));
        assert_eq!(totals.span_ms, Some((NOW + 1, NOW + 2)));
        assert_eq!(store.runs().await.unwrap(), [row]);
    }

    async fn a_run_nobody_works_on_is_interrupted(backend: Backend) {
        let store = backend.open().await;
        let run = played(&store).await;
        let row = store.run(run.run_id()).await.unwrap();
        let here = Holder::this_process();
        assert_eq!(row.state_word(NOW + 1, &here), "running");
        assert_eq!(row.state_word(NOW + 60_000, &here), "interrupted");
        run.release(RunState::Finished, NOW).await.unwrap();
        assert_eq!(store.run(run.run_id()).await.unwrap().state_word(NOW + 60_000, &here), "finished");
    }

    async fn a_beginning_is_enough_of_an_id(backend: Backend) {
        let store = backend.open().await;
        let run = played(&store).await;
        let id = run.run_id();
        assert_eq!(store.resolve_run(&id[..4]).await.unwrap(), id);
        assert_eq!(store.resolve_run("a").await.unwrap(), id);
        // A rollout is its result; one without, its last attempt.
        assert_eq!(store.resolve_attempt(&format!("{id}.g0.r0")).await.unwrap(), ids::traj_id(id, 0, 0, 1));
        assert_eq!(store.resolve_attempt(&format!("{id}.g0.r0.a0")).await.unwrap(), ids::traj_id(id, 0, 0, 0));
        assert_eq!(store.resolve_attempt(&format!("{id}.g1")).await.unwrap(), ids::traj_id(id, 1, 0, 0));
        for index in 10..17 {
            run.attempt_started(started(1, index, 0)).await.unwrap();
        }
        let error = store.resolve_attempt(&format!("{id}.g1.r1")).await.unwrap_err();
        let listed: Vec<String> = (10..15).map(|index| format!("{id}.g1.r{index}")).collect();
        assert_eq!(error.to_string(), format!("`{id}.g1.r1` is ambiguous: it could be {} and 2 more", listed.join(", ")));
        let error = store.resolve_run("b").await.unwrap_err();
        assert_eq!(error.to_string(), format!("no run `b` in {}", backend.url));
        assert!(matches!(store.resolve_attempt("").await, Err(StoreError::NotFound { .. })));
        // Nothing in an id is a pattern.
        assert!(matches!(store.resolve_attempt("%").await, Err(StoreError::NotFound { .. })));
    }

    async fn records_come_back_as_they_were(backend: Backend) {
        let store = backend.open().await;
        let run = played(&store).await;
        let attempt = store.attempt(&ids::traj_id(run.run_id(), 0, 2, 0)).await.unwrap();
        let record = store.record(&attempt).await.unwrap().unwrap();
        assert_eq!(record, crate::sample::record(run.run_id(), 0, 2, 0, Some(0.25)));
        assert_eq!((attempt.turns, attempt.tokens.trained), (1, 2));
        let running = store.attempt(&ids::traj_id(run.run_id(), 1, 0, 0)).await.unwrap();
        assert_eq!(store.record(&running).await.unwrap(), None);
    }
}
