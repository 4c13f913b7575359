//! What the loop of the scheduler waits for besides events.

use tokio::sync::watch;
use tokio::time::Instant;

/// Until a deadline, or for ever.
pub(super) async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Until the run's lock is lost: why.
pub(super) async fn fenced(fenced: &mut watch::Receiver<Option<String>>) -> String {
    // What is borrowed is not held while another waits.
    let reason = fenced.wait_for(Option::is_some).await.ok().map(|reason| reason.clone().unwrap_or_default());
    match reason {
        Some(reason) => reason,
        None => std::future::pending().await,
    }
}
