//! Commands to a run by another process.

use crate::on_both;
use crate::sample::{NOW, opened, spec, stranger};
use espalier_store::{CommandState, Holder, LEASE_MS, RunState, Start, StoreError};

on_both! {
    async fn a_command_is_taken_and_answered_once(backend: Backend) {
        let (store, here) = (backend.open().await, stranger(9));
        let run = store.claim_run(&spec("a", 1), &stranger(1), Start::Resume, NOW).await.unwrap().run;
        let run_id = run.run_id().to_owned();
        assert_eq!(run.next_command().await.unwrap(), None);
        let pause = store.ask_run(&run_id, "pause", &here, NOW + 1).await.unwrap();
        let stop = store.ask_run(&run_id, "stop", &here, NOW + 2).await.unwrap();
        assert_eq!(store.command_state(&pause).await.unwrap(), CommandState::Asked);
        let first = run.next_command().await.unwrap().unwrap();
        assert_eq!((&first.id, first.command.as_str()), (&pause, "pause"));
        assert!(run.take_command(&pause, NOW + 3).await.unwrap());
        assert!(!run.take_command(&pause, NOW + 3).await.unwrap(), "it is taken once");
        assert_eq!(store.command_state(&pause).await.unwrap(), CommandState::Taken);
        assert!(!store.withdraw_command(&pause).await.unwrap(), "what is taken is not taken back");
        run.answer_command(&pause, "done".into(), Some(true)).await.unwrap();
        assert_eq!(store.command_state(&pause).await.unwrap(), CommandState::Answered("done".into()));
        // The other one is taken back before anybody looks.
        assert!(store.withdraw_command(&stop).await.unwrap());
        assert_eq!(run.next_command().await.unwrap(), None);
        let row = store.run(&run_id).await.unwrap();
        assert_eq!((row.paused, row.state_word(NOW + 4, &here)), (true, "paused"));
    }

    async fn only_a_run_that_is_worked_on_can_be_asked(backend: Backend) {
        let (store, here) = (backend.open().await, stranger(9));
        let refused = async |run_id: &str, now_ms| {
            store.ask_run(run_id, "pause", &here, now_ms).await.unwrap_err().to_string()
        };
        assert!(refused("nobody", NOW).await.starts_with("no run `nobody`"));
        let run = store.claim_run(&spec("a", 1), &stranger(1), Start::Resume, NOW).await.unwrap().run;
        let run_id = run.run_id().to_owned();
        assert_eq!(
            refused(&run_id, NOW + LEASE_MS).await,
            format!("run {run_id} is not running: it is interrupted")
        );
        run.open_group(opened(0)).await.unwrap();
        let open = store.ask_run(&run_id, "pause", &here, NOW).await.unwrap();
        run.release(RunState::Stopped, NOW).await.unwrap();
        assert_eq!(store.command_state(&open).await.unwrap(), CommandState::Void, "its session is over");
        assert_eq!(refused(&run_id, NOW).await, format!("run {run_id} is not running: it is stopped"));
        // What was meant for one session is nothing to the next.
        let next = store.claim_run(&spec("a", 1), &stranger(2), Start::Resume, NOW).await.unwrap().run;
        assert_eq!(next.next_command().await.unwrap(), None);
        assert_eq!(store.command_state(&open).await.unwrap(), CommandState::Void);
        let again = store.ask_run(&run_id, "resume", &here, NOW).await.unwrap();
        assert_eq!(next.next_command().await.unwrap().unwrap().id, again);
    }

    async fn a_pause_outlives_its_session_and_can_be_lifted(backend: Backend) {
        let (store, here) = (backend.open().await, Holder::this_process());
        let run = store.claim_run(&spec("a", 1), &stranger(1), Start::Resume, NOW).await.unwrap().run;
        let run_id = run.run_id().to_owned();
        run.open_group(opened(0)).await.unwrap();
        let pause = store.ask_run(&run_id, "pause", &here, NOW).await.unwrap();
        run.answer_command(&pause, "{}".into(), Some(true)).await.unwrap();
        let held = store.lift_pause(&run_id, &here, NOW).await.unwrap_err();
        assert!(matches!(held, StoreError::Held { .. }), "{held}");
        run.release(RunState::Stopped, NOW).await.unwrap();
        let row = store.run(&run_id).await.unwrap();
        assert_eq!(row.state_text(row.state_word(NOW, &here)), "stopped, paused");
        let claim = store.claim_run(&spec("a", 1), &stranger(2), Start::Resume, NOW).await.unwrap();
        assert!(claim.paused);
        claim.run.release(RunState::Stopped, NOW).await.unwrap();
        assert_eq!([true, false], [
            store.lift_pause(&run_id, &here, NOW).await.unwrap(),
            store.lift_pause(&run_id, &here, NOW).await.unwrap()
        ]);
        // A run that has finished waits for nothing.
        let claim = store.claim_run(&spec("a", 1), &stranger(3), Start::Resume, NOW).await.unwrap();
        assert!(!claim.paused);
        let pause = store.ask_run(&run_id, "pause", &here, NOW).await.unwrap();
        claim.run.answer_command(&pause, "{}".into(), Some(true)).await.unwrap();
        claim.run.release(RunState::Finished, NOW).await.unwrap();
        assert!(!store.run(&run_id).await.unwrap().paused);
    }

    async fn a_run_that_opened_no_group_goes_with_its_commands(backend: Backend) {
        let (store, here) = (backend.open().await, stranger(9));
        let run = store.claim_run(&spec("a", 1), &stranger(1), Start::Resume, NOW).await.unwrap().run;
        let pause = store.ask_run(run.run_id(), "pause", &here, NOW).await.unwrap();
        assert!(run.discard().await.unwrap());
        assert_eq!(store.command_state(&pause).await.unwrap(), CommandState::Void);
    }
}
