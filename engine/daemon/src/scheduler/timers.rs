//! The scheduler's timers: a sorted list and one sleep, instead of a task for each.

use super::RolloutKey;
use espalier_core::rollout::AttemptKey;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use tokio::time::Instant;

/// What happens at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Timer {
    /// The delay before an attempt is over.
    Backoff { rollout: RolloutKey, attempt: u32 },
    /// An attempt took too long.
    Deadline { rollout: RolloutKey, key: AttemptKey, after: Duration },
    /// A group has waited long enough.
    GroupDeadline { group_index: u64 },
}

#[derive(Debug, Default)]
pub(super) struct Timers {
    by_time: BTreeMap<(Instant, u64), Timer>,
    deadlines: HashMap<(RolloutKey, AttemptKey), (Instant, u64)>,
    last: u64,
}

impl Timers {
    pub(super) fn add(&mut self, at: Instant, timer: Timer) {
        self.last += 1;
        if let Timer::Deadline { rollout, key, .. } = timer {
            self.deadlines.insert((rollout, key), (at, self.last));
        }
        self.by_time.insert((at, self.last), timer);
    }

    pub(super) fn remove_deadline(&mut self, rollout: RolloutKey, key: AttemptKey) {
        if let Some(place) = self.deadlines.remove(&(rollout, key)) {
            self.by_time.remove(&place);
        }
    }

    pub(super) fn clear_backoffs(&mut self) {
        self.by_time.retain(|_, timer| !matches!(timer, Timer::Backoff { .. }));
    }

    /// Whether the rollout was waiting for its next attempt; it does not any more.
    pub(super) fn remove_backoff(&mut self, of: RolloutKey) -> bool {
        let before = self.by_time.len();
        self.by_time.retain(|_, timer| !matches!(timer, Timer::Backoff { rollout, .. } if *rollout == of));
        self.by_time.len() < before
    }

    /// The next timer that is due; waits for ever where there is none. Cancel-safe: a timer is taken when it is due.
    pub(super) async fn next(&mut self) -> Timer {
        let Some((at, _)) = self.by_time.first_key_value().map(|(place, _)| *place) else {
            return std::future::pending().await;
        };
        tokio::time::sleep_until(at).await;
        let (_, timer) =
            self.by_time.pop_first().expect("the list was not empty, and nobody else takes from it");
        if let Timer::Deadline { rollout, key, .. } = timer {
            self.deadlines.remove(&(rollout, key));
        }
        timer
    }
}
