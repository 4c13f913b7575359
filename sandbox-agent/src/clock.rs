//! Time as timeouts of commands count it: it stands still while the sandbox is suspended, since its commands do.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// See the module. The lease is not counted by it.
#[derive(Debug, Default)]
pub struct Clock(watch::Sender<bool>);

impl Clock {
    /// Stops it, or lets it go on.
    pub fn set_stopped(&self, stopped: bool) {
        self.0.send_replace(stopped);
    }

    /// What comes of this within so much of its time; `None`: it took longer.
    pub async fn timeout<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        let (mut stopped, mut work, mut left) = (self.0.subscribe(), pin!(work), limit);
        loop {
            let stands = *stopped.borrow_and_update();
            let since = Instant::now();
            tokio::select! {
                biased;
                done = &mut work => return Some(done),
                // Its sender is in this clock.
                _ = stopped.changed() => if !stands {
                    left = left.saturating_sub(since.elapsed());
                },
                () = tokio::time::sleep(left), if !stands => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;
    use std::task::Poll;

    #[tokio::test]
    async fn what_takes_too_long_is_given_up_but_not_while_the_clock_stands_still() {
        let clock = Clock::default();
        assert_eq!(clock.timeout(Duration::from_secs(60), async { 7 }).await, Some(7));
        assert_eq!(clock.timeout(Duration::ZERO, pending::<()>()).await, None);
        clock.set_stopped(true);
        let mut waits = pin!(clock.timeout(Duration::ZERO, pending::<()>()));
        // As often as it is looked at: no time passes.
        for _ in 0..100 {
            assert_eq!(futures::poll!(&mut waits), Poll::Pending);
            tokio::task::yield_now().await;
        }
        clock.set_stopped(false);
        assert_eq!(waits.await, None);
    }
}
