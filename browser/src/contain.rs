//! Futures of the caller's that run beside the page: bounded, and their panics stay theirs.

use std::future::Future;
use std::time::Duration;

/// What the future comes to; `None` where it takes longer than `bound`, and is cancelled, or panics.
pub(crate) async fn contain<T: Send + 'static>(
    bound: Duration,
    future: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    // Owner: this call, which aborts it at its bound. A panic ends the task only.
    let task = tokio::spawn(future);
    let abort = task.abort_handle();
    match tokio::time::timeout(bound, task).await {
        Ok(result) => result.ok(),
        Err(_) => {
            abort.abort();
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn panics_and_delays_are_contained() {
        assert_eq!(contain(Duration::from_secs(1), async { 7 }).await, Some(7));
        assert_eq!(contain(Duration::from_secs(1), std::future::pending::<()>()).await, None);
        let panics = async { panic!("a panic of the test") };
        assert_eq!(contain::<()>(Duration::from_secs(1), panics).await, None);
    }
}
