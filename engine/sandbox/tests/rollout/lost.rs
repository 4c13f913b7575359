//! Sandboxes that are gone, or never came: infrastructure, whatever is done afterwards.

use crate::support::{Rollout, code, sh, shell};
use espalier_core::attempt::AttemptCapability;
use espalier_core::ending::Lost;
use espalier_core::failure::Failure;
use espalier_core::host::sandbox::{Ended, Sandboxes};
use std::sync::Arc;
use std::time::Duration;

#[tokio::test]
async fn an_agent_that_dies_is_a_lost_sandbox_at_once() {
    let rollout = Rollout::new();
    let sandbox = rollout.main().await;
    let other = rollout.sandboxes.open("other").await.unwrap();
    let process = sandbox.start(shell("sleep 600")).await.unwrap();
    let waiting = {
        let sandbox = Arc::clone(&sandbox);
        tokio::spawn(async move { sandbox.exec(shell("touch begun; sleep 600")).await })
    };
    sh(&sandbox, "until [ -e begun ]; do sleep 0.01; done").await;
    rollout.provider.started.lock().unwrap()[0].kill();
    // Nobody knows how far they came.
    for outcome in [waiting.await.unwrap().unwrap(), process.poll().await.unwrap().unwrap()] {
        let Ended::Unknown(why) = &outcome.ended else { panic!("{outcome:?}") };
        assert!(why.starts_with("sandbox main: sandbox lost"), "{why}");
        // Guests are told so.
        assert_eq!(outcome.clone().known().unwrap_err(), Failure::Unavailable(why.clone()));
    }
    // What was not begun has no outcome.
    assert_eq!(code(&process.ended(Duration::from_secs(5)).await.unwrap_err()), "unavailable");
    assert_eq!(code(&sandbox.exec(shell("true")).await.unwrap_err()), "unavailable");
    sh(&other, "true").await;
    let Some(Lost::Infrastructure(text)) = rollout.sandboxes.lost() else { panic!("it counts as lost") };
    assert!(text.starts_with("sandbox main: "), "{text}");
}

#[tokio::test]
async fn a_sandbox_that_could_not_be_opened_counts_until_it_could() {
    let rollout = Rollout::new();
    *rollout.provider.failures.lock().unwrap() = 1;
    let failure = rollout.sandboxes.open("main").await.err().unwrap();
    assert_eq!(failure.to_string(), "unavailable: sandbox main: registry down");
    assert_eq!(
        rollout.sandboxes.lost(),
        Some(Lost::Infrastructure("sandbox main: registry down".to_owned()))
    );
    sh(&rollout.main().await, "true").await;
    assert_eq!(rollout.sandboxes.lost(), None);
}

#[tokio::test]
async fn a_sandbox_ends_when_the_rollout_lets_go_of_it() {
    let rollout = Rollout::new();
    let sandbox = rollout.main().await;
    let running = Arc::clone(&rollout.provider.started.lock().unwrap()[0]);
    let holders = Arc::strong_count(&running);
    let Rollout { provider, sandboxes, .. } = rollout;
    drop(sandboxes);
    assert_eq!(Arc::strong_count(&running), holders, "a handle keeps it");
    drop(sandbox);
    assert_eq!(Arc::strong_count(&running), holders - 1);
    drop(provider);
}
