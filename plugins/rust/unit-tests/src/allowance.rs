//! The time that written tests may take, so that those of one rollout cannot use up the time of the group.

use crate::settings::Settings;

/// What the tests of each rollout may still take with one solution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// By the rollout that wrote them.
    left_ms: Vec<u64>,
    each_ms: u64,
}

impl Allowance {
    /// `written_time_s` in equal parts: one for each solution with the tests of each rollout.
    pub fn new(rollouts: usize, settings: &Settings) -> Allowance {
        let pairs = (rollouts * rollouts).max(1) as u64;
        let left_ms = vec![u64::from(settings.written_time_s) * 1000 / pairs; rollouts];
        Allowance { left_ms, each_ms: u64::from(settings.time_limit_s) * 1000 }
    }

    /// Milliseconds for a test that this rollout wrote (`None`: the task's own). `None`: there are none left.
    pub fn limit(&self, rollout: Option<usize>) -> Option<u64> {
        let left = rollout.map_or(self.each_ms, |rollout| self.left_ms[rollout]);
        (left > 0).then(|| left.min(self.each_ms))
    }

    /// Notes what a test took.
    pub fn spend(&mut self, rollout: Option<usize>, ms: u64) {
        if let Some(rollout) = rollout {
            self.left_ms[rollout] = self.left_ms[rollout].saturating_sub(ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_rollout_uses_up_is_its_own() {
        let settings = Settings { written_time_s: 28, time_limit_s: 4, ..Settings::default() };
        let mut allowance = Allowance::new(2, &settings);
        for (rollout, limit, took) in [
            (Some(0), Some(4000), 4000),
            (None, Some(4000), 4000),
            (Some(0), Some(3000), 3001),
            (Some(0), None, 0),
            (None, Some(4000), 4000),
            (Some(1), Some(4000), 10),
            (Some(1), Some(4000), 3000),
            (Some(1), Some(3990), 0),
        ] {
            assert_eq!(allowance.limit(rollout), limit, "{allowance:?} {rollout:?}");
            allowance.spend(rollout, took);
        }
    }
}
