//! Until when a call may take; made once at its outermost entry and handed down.

use crate::error::{BrowserError, Result};
use std::future::Future;
use std::time::Duration;
use tokio::time::Instant;

/// Allowed for a call that names no timeout: 30 s.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    at: Instant,
    after: Duration,
}

impl Deadline {
    pub(crate) fn after(after: Duration) -> Deadline {
        let now = Instant::now();
        Deadline { at: now.checked_add(after).unwrap_or(now + Duration::from_secs(86_400 * 365)), after }
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// How long a script may wait in a page, in milliseconds: a little less than remains, so that its answer, which says
    /// what is missing, comes before the deadline.
    pub(crate) fn in_page_ms(&self) -> f64 {
        let remaining = self.remaining();
        let margin = (remaining / 5).clamp(Duration::from_millis(50), Duration::from_secs(1));
        remaining.saturating_sub(margin).as_secs_f64() * 1000.0
    }

    /// This deadline, or `after` from now where that is sooner.
    pub(crate) fn at_most(&self, after: Duration) -> Deadline {
        let other = Deadline::after(after);
        if other.at < self.at { other } else { *self }
    }

    pub(crate) fn timeout(&self, waiting_for: impl Into<String>) -> BrowserError {
        BrowserError::Timeout { waiting_for: waiting_for.into(), after: self.after }
    }

    /// The future's result, or a timeout that says `waiting_for`.
    pub(crate) async fn bound<T>(
        &self,
        waiting_for: impl FnOnce() -> String,
        future: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        match tokio::time::timeout_at(self.at, future).await {
            Ok(result) => result,
            Err(_) => Err(self.timeout(waiting_for())),
        }
    }
}
