//! Seeds: every draw of a run is a function of the run's seed and of what the draw is for.

use crate::task::TaskId;

/// Separates this derivation from any other use of the hash.
const DOMAIN: &str = "espalier-seed/1";

/// What is seeded by rollout: `random`, `sampling` ...
#[derive(Clone, Copy, Debug)]
pub struct SeedScope<'a> {
    /// The experiment's `seed`.
    pub run_seed: u64,
    /// The task.
    pub task: &'a TaskId,
    /// The task's own `seed`.
    pub task_seed: Option<u64>,
    /// Which pass over the task set, from 0.
    pub repeat: u32,
    /// The rollout's index in its group.
    pub rollout_index: u32,
}

/// What a seed is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The environment plugin: equal for all rollouts of a group and all repeats, so they start in the same world.
    Environment,
    /// Reward plugins: as for the environment.
    Reward,
    /// `espalier:base/random` of the harness; kept by a retry.
    Harness,
    /// The sampler of the endpoint; differs by attempt.
    Sampling {
        /// The attempt, from 0.
        attempt: u32,
    },
    /// The sampler of a judge's endpoint; differs by judge and by try.
    Judge {
        /// Place in `[[judges]]`, from 0.
        judge: u32,
        /// Tries before it.
        tried: u32,
    },
}

impl SeedScope<'_> {
    /// The `n`-th seed for a purpose: the first 53 bits of blake3 over the length-prefixed fields, so that it is exact
    /// in a JavaScript guest.
    pub fn seed(&self, purpose: Purpose, n: u64) -> u64 {
        let mut hasher = blake3::Hasher::new();
        let mut field = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        field(DOMAIN.as_bytes());
        field(&self.run_seed.to_le_bytes());
        field(self.task.as_str().as_bytes());
        match self.task_seed {
            Some(seed) => field(&seed.to_le_bytes()),
            None => field(&[]),
        }
        let word = match purpose {
            Purpose::Environment => "environment",
            Purpose::Reward => "reward",
            Purpose::Harness => "harness",
            Purpose::Sampling { .. } => "sampling",
            Purpose::Judge { .. } => "judge",
        };
        if matches!(purpose, Purpose::Harness | Purpose::Sampling { .. } | Purpose::Judge { .. }) {
            field(&u64::from(self.repeat).to_le_bytes());
            field(&u64::from(self.rollout_index).to_le_bytes());
        }
        field(word.as_bytes());
        if let Purpose::Sampling { attempt } = purpose {
            field(&u64::from(attempt).to_le_bytes());
        }
        if let Purpose::Judge { judge, tried } = purpose {
            field(&u64::from(judge).to_le_bytes());
            field(&u64::from(tried).to_le_bytes());
        }
        field(&n.to_le_bytes());
        let hash = hasher.finalize();
        let first = u64::from_be_bytes(hash.as_bytes()[..8].try_into().expect("a hash has 32 bytes"));
        first >> 11
    }
}

/// The seed of the `n`-th call of a task generator: of the run, not of a task. Derived as [`SeedScope::seed`] is.
pub fn batch_seed(run_seed: u64, n: u64) -> u64 {
    let mut hasher = blake3::Hasher::new();
    for field in [DOMAIN.as_bytes(), &run_seed.to_le_bytes(), b"generator", &n.to_le_bytes()] {
        hasher.update(&(field.len() as u64).to_le_bytes());
        hasher.update(field);
    }
    let first = hasher.finalize().as_bytes()[..8].try_into().expect("a hash has 32 bytes");
    u64::from_be_bytes(first) >> 11
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_fields_of_a_purpose_change_its_seed() {
        let task = TaskId::new("t").unwrap();
        let at = |repeat, rollout_index| SeedScope {
            run_seed: 7,
            task: &task,
            task_seed: None,
            repeat,
            rollout_index,
        };
        let environment = |repeat, index| at(repeat, index).seed(Purpose::Environment, 0);
        assert_eq!(environment(0, 0), environment(3, 5));
        let harness = |repeat, index| at(repeat, index).seed(Purpose::Harness, 0);
        assert_ne!(harness(0, 0), harness(0, 1));
        assert_ne!(harness(0, 0), harness(1, 0));
        let sampling = |attempt| at(0, 0).seed(Purpose::Sampling { attempt }, 0);
        assert_ne!(sampling(0), sampling(1));
        assert!(sampling(0) < 1 << 53);
        assert_ne!(at(0, 0).seed(Purpose::Reward, 0), environment(0, 0));
    }
}
