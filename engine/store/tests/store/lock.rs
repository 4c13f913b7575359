//! One engine at a time works on a run.

use crate::on_both;
use crate::sample::{NOW, closed, ended, opened, play, record, spec, started, stranger};
use espalier_core::samples::GroupStatus;
use espalier_store::{Finality, Holder, LEASE_MS, RunState, Start, StoreError};

on_both! {
    async fn a_second_engine_waits_for_the_lease(backend: Backend) {
        let store = backend.open().await;
        let first = store.claim_run(&spec("a", 1), &stranger(1), Start::Resume, NOW).await.unwrap();
        assert_eq!((first.resumed, first.run.fence()), (None, 1));
        let error = store.claim_run(&spec("a", 1), &stranger(2), Start::Resume, NOW + 4_000).await.unwrap_err();
        let run_id = first.run.run_id();
        assert_eq!(
            error.to_string(),
            format!("run {run_id} is worked on by process 1 on host-1; its lease ends in 11000 ms unless it is renewed")
        );
        first.run.renew(NOW + 5_000).await.unwrap();
        let error = store.claim_run(&spec("a", 1), &stranger(2), Start::Resume, NOW + LEASE_MS).await.unwrap_err();
        assert!(matches!(error, StoreError::Held { lease_left_ms: 5_000, .. }), "{error}");
        let second = store.claim_run(&spec("a", 1), &stranger(2), Start::Resume, NOW + 5_000 + LEASE_MS).await.unwrap();
        assert_eq!((second.resumed, second.run.fence()), (Some(RunState::Running), 2));
        assert_eq!(second.taken_from, Some(stranger(1)));
    }

    async fn a_dead_engine_is_taken_over_at_once(backend: Backend) {
        let store = backend.open().await;
        let here = Holder::this_process();
        let dead = Holder { pid: u32::MAX, ..here.clone() };
        let claim = store.claim_run(&spec("a", 1), &dead, Start::Resume, NOW).await.unwrap();
        claim.run.open_group(opened(0)).await.unwrap();
        claim.run.attempt_started(started(0, 0, 0)).await.unwrap();
        let claim = store.claim_run(&spec("a", 1), &here, Start::Resume, NOW).await.unwrap();
        assert_eq!((claim.taken_from, claim.attempts_cut), (Some(dead), 1));
        // This process lives, so nobody takes it from here; once given back, anybody may.
        let error = store.claim_run(&spec("a", 1), &here, Start::Resume, NOW).await.unwrap_err();
        assert!(matches!(error, StoreError::Held { .. }), "{error}");
        claim.run.release(RunState::Stopped, NOW).await.unwrap();
        let claim = store.claim_run(&spec("a", 1), &stranger(1), Start::Resume, NOW).await.unwrap();
        assert_eq!((claim.resumed, claim.taken_from), (Some(RunState::Stopped), None));
    }

    async fn a_fenced_engine_writes_nothing(backend: Backend) {
        let store = backend.open().await;
        let old = store.claim_run(&spec("a", 1), &stranger(1), Start::Resume, NOW).await.unwrap().run;
        old.open_group(opened(0)).await.unwrap();
        old.attempt_started(started(0, 0, 0)).await.unwrap();
        let later = NOW + LEASE_MS;
        let new = store.claim_run(&spec("a", 1), &stranger(2), Start::Resume, later).await.unwrap().run;
        let before = format!("{:?}", new.progress().await.unwrap());
        let results = [
            old.renew(later).await,
            old.open_group(opened(1)).await,
            old.attempt_started(started(0, 1, 0)).await,
            old.attempt_ended(ended(record(old.run_id(), 0, 0, 0, Some(1.0)), Finality::Final)).await,
            old.close_group(closed(0, GroupStatus::Failed, 0, &[])).await,
            old.release(RunState::Finished, later).await,
        ];
        for result in results {
            assert!(matches!(result, Err(StoreError::Fenced { fence: 1, now: 2, .. })), "{result:?}");
        }
        assert_eq!(format!("{:?}", new.progress().await.unwrap()), before);
        assert_eq!(store.run(new.run_id()).await.unwrap().state, RunState::Running);
        // What was cut is played again under the same number, by the new engine.
        play(&new, 0, 0, 0, Some(1.0), Finality::Final).await.unwrap();
        assert_eq!(store.run(new.run_id()).await.unwrap().rollouts.attempts_cut, 1);
    }

    async fn two_engines_that_start_at_once_make_one_run(backend: Backend) {
        let store = backend.open().await;
        let mut claims = tokio::task::JoinSet::new();
        for pid in 0..8 {
            // Stores of their own, as processes have.
            let url = backend.url.clone();
            claims.spawn(async move {
                let store = espalier_store::Store::open(&url).await?;
                store.claim_run(&spec("a", 1), &stranger(pid), Start::Resume, NOW).await
            });
        }
        let results = claims.join_all().await;
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
        for error in results.into_iter().filter_map(Result::err) {
            assert!(matches!(error, StoreError::Held { .. }), "{error:?}");
        }
        assert_eq!(store.runs().await.unwrap().len(), 1);
    }
}
