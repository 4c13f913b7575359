//! How fast a run goes: rates over the last while, and the time that is left. Time enters by parameter.

use std::collections::VecDeque;
use std::time::Duration;

/// Rates are taken over this long ...
const WINDOW: Duration = Duration::from_secs(30);
/// ... or longer, until this many rollouts ended in it: one that ends now and then is a pace as well ...
const WINDOW_ROLLOUTS: u64 = 8;
/// ... but never longer than this.
const WINDOW_MAX: Duration = Duration::from_secs(300);
/// Before this much was seen there is no rate.
const LEAST: Duration = Duration::from_secs(2);

/// Remembers what was counted when.
#[derive(Debug, Default)]
pub struct Pace {
    seen: VecDeque<(Duration, u64, u64)>,
}

/// Per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Rollouts that ended.
    pub rollouts: f64,
    /// Tokens that were sampled.
    pub tokens: f64,
}

impl Pace {
    /// Takes the counters as they stand `at` this time since the start. Times never go back.
    pub fn see(&mut self, at: Duration, rollouts: u64, tokens: u64) {
        self.seen.push_back((at, rollouts, tokens));
        // One entry older than the window stays, so that the window is always spanned.
        while self.seen.len() > 2 {
            let (since, ended_before, _) = self.seen[1];
            let span = at.saturating_sub(since);
            let enough = rollouts.saturating_sub(ended_before) >= WINDOW_ROLLOUTS;
            if span < WINDOW || (span < WINDOW_MAX && !enough) {
                return;
            }
            self.seen.pop_front();
        }
    }

    /// The rates over the window; `None` before there is anything to say.
    pub fn rates(&self) -> Option<Rates> {
        let (first, last) = (self.seen.front()?, self.seen.back()?);
        let span = last.0.saturating_sub(first.0);
        if span < LEAST {
            return None;
        }
        let per_second = |from: u64, to: u64| to.saturating_sub(from) as f64 / span.as_secs_f64();
        Some(Rates { rollouts: per_second(first.1, last.1), tokens: per_second(first.2, last.2) })
    }

    /// How long `left` more rollouts take at this pace.
    pub fn time_left(&self, left: u64) -> Option<Duration> {
        let rate = self.rates()?.rollouts;
        if left == 0 {
            return Some(Duration::ZERO);
        }
        // Slower than one in ten hours is not a forecast.
        (rate > 1.0 / 36_000.0).then(|| Duration::from_secs_f64(left as f64 / rate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_that_of_the_last_while_and_absent_at_first() {
        let s = Duration::from_secs;
        let mut pace = Pace::default();
        pace.see(s(0), 0, 0);
        pace.see(s(1), 5, 100);
        assert_eq!(pace.rates(), None);
        pace.see(s(2), 10, 200);
        assert_eq!(pace.rates(), Some(Rates { rollouts: 5.0, tokens: 100.0 }));
        assert_eq!(pace.time_left(50), Some(s(10)));
        // It slows down to one in ten seconds; what was fast is forgotten.
        for step in 1..=10 {
            pace.see(s(2 + 10 * step), 10 + step, 200);
        }
        assert_eq!(pace.rates(), Some(Rates { rollouts: 0.1, tokens: 0.0 }));
        assert_eq!(pace.time_left(3), Some(s(30)));
        assert_eq!(pace.time_left(0), Some(Duration::ZERO));
        for step in 1..=10 {
            pace.see(s(100 + 60 * step), 20, 200);
        }
        assert_eq!(pace.time_left(3), None, "nothing ends: no forecast");
    }
}
