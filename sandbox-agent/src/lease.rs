//! The sandbox's lease: calls renew it; silence longer than it ends everything.

use parking_lot::{Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;

/// Shortest and longest lease a client may ask for.
pub const BOUNDS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(86_400));

/// See the module.
#[derive(Debug)]
pub struct Lease(Mutex<LeaseState>);

#[derive(Debug)]
struct LeaseState {
    renewed: Instant,
    length: Duration,
}

impl Lease {
    /// Runs from now.
    pub fn new(length: Duration) -> Lease {
        Lease(Mutex::new(LeaseState { renewed: Instant::now(), length }))
    }

    /// A call came.
    pub fn renew(&self) {
        self.lock().renewed = Instant::now();
    }

    /// A client asks for another length; zero leaves it. Returns what holds.
    pub fn set(&self, length: Duration) -> Duration {
        let mut state = self.lock();
        if !length.is_zero() {
            state.length = length.clamp(BOUNDS.0, BOUNDS.1);
        }
        state.length
    }

    /// How long it is.
    pub fn length(&self) -> Duration {
        self.lock().length
    }

    /// Returns when it has run out.
    pub async fn run_out(&self) {
        while let Some(end) = self.end(Instant::now()) {
            tokio::time::sleep_until(end + Duration::from_millis(1)).await;
        }
    }

    /// For how long it has been over; `None` while it holds.
    pub fn silent_for(&self) -> Option<Duration> {
        let state = self.lock();
        Instant::now().checked_duration_since(state.renewed + state.length)
    }

    /// When it will run out; `None`: it has.
    fn end(&self, now: Instant) -> Option<Instant> {
        let state = self.lock();
        let end = state.renewed + state.length;
        (now <= end).then_some(end)
    }

    fn lock(&self) -> MutexGuard<'_, LeaseState> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_ends_it_and_calls_renew_it() {
        let lease = Lease::new(Duration::from_secs(60));
        let began = Instant::now();
        let second = |number| began + Duration::from_secs(number);
        assert!(lease.end(second(59)).is_some());
        assert!(lease.end(second(61)).is_none());
        lease.lock().renewed = second(50);
        assert_eq!(lease.end(second(61)), Some(second(110)));
        lease.set(Duration::from_secs(5));
        assert!(lease.end(second(61)).is_none());
        assert_eq!(lease.set(Duration::ZERO), Duration::from_secs(5));
        assert_eq!(lease.set(Duration::from_millis(1)), BOUNDS.0);
        assert_eq!(lease.set(Duration::MAX), BOUNDS.1);
    }
}
