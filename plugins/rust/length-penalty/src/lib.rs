//! The group reward `length-penalty`: among rollouts of the same task, shorter answers are worth more.
//!
//! The length reward of Kimi k1.5 (arXiv 2501.12599, section 2.3.3): with `lambda = 0.5 - (len - min_len) / (max_len - min_len)`, a
//! correct answer scores `lambda`, a wrong one `min(0, lambda)`; where all are of the same length, every one scores 0. The
//! paper counts tokens of one response; here the characters of all answers of the policy are counted, or its turns.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[cfg(target_arch = "wasm32")]
mod guest;

/// The plugin's settings.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// What is counted.
    pub unit: Unit,
    /// A rollout is correct when the sum of its own rewards is at least this.
    pub correct_from: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { unit: Unit::Characters, correct_from: 1.0 }
    }
}

/// What the length of a rollout is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Characters of the policy's answers.
    Characters,
    /// The policy's turns.
    Turns,
}

/// What is known of one rollout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rollout {
    /// In the unit of the settings.
    pub length: u64,
    /// Sum of its own rewards.
    pub reward: f64,
}

/// One score a rollout, in their order, each from -0.5 to 0.5.
pub fn scores(settings: &Settings, rollouts: &[Rollout]) -> Vec<f64> {
    let lengths = || rollouts.iter().map(|rollout| rollout.length);
    let (Some(least), Some(most)) = (lengths().min(), lengths().max()) else { return Vec::new() };
    let score = |rollout: &Rollout| {
        if most == least {
            return 0.0;
        }
        let lambda = 0.5 - (rollout.length - least) as f64 / (most - least) as f64;
        if rollout.reward >= settings.correct_from { lambda } else { lambda.min(0.0) }
    };
    rollouts.iter().map(score).collect()
}

/// The sum of a rollout's own rewards, from `extra` of what a group reward is shown. Errors: what is missing there.
pub fn own_reward(extra: Option<&str>) -> Result<f64, String> {
    #[derive(Deserialize)]
    struct Own {
        reward: Option<f64>,
    }
    let extra = extra.ok_or("the rollout is shown without its own rewards")?;
    let own: Own = serde_json::from_str(extra).map_err(|error| format!("extra of the rollout: {error}"))?;
    own.reward.ok_or_else(|| "the rollout has no reward of its own".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shorter_is_better_and_a_wrong_answer_gains_nothing_by_it() {
        let check = |rollouts: &[(u64, f64)], expect: &[f64]| {
            let rollouts: Vec<Rollout> = rollouts
                .iter()
                .map(|(length, reward)| Rollout { length: *length, reward: *reward })
                .collect();
            assert_eq!(scores(&Settings::default(), &rollouts), expect, "{rollouts:?}");
        };
        check(&[], &[]);
        check(&[(7, 1.0)], &[0.0]);
        check(&[(7, 1.0), (7, 0.0)], &[0.0, 0.0]);
        check(&[(10, 1.0), (20, 1.0), (30, 1.0)], &[0.5, 0.0, -0.5]);
        check(&[(10, 0.0), (20, 1.0), (30, 0.9)], &[0.0, 0.0, -0.5]);
    }

    #[test]
    fn the_own_reward_is_read_from_extra() {
        assert_eq!(own_reward(Some(r#"{"reward": 0.5, "scores": []}"#)), Ok(0.5));
        assert!(own_reward(None).is_err());
        assert!(own_reward(Some(r#"{"reward": null}"#)).unwrap_err().contains("no reward of its own"));
        assert!(own_reward(Some("[")).unwrap_err().contains("extra"));
    }

    #[test]
    fn settings_are_strict() {
        let read = |text: &str| serde_json::from_str::<Settings>(text);
        assert_eq!(read("{}").unwrap().unit, Unit::Characters);
        assert_eq!(read(r#"{"unit":"turns","correct_from":0.5}"#).unwrap().correct_from, 0.5);
        assert!(read(r#"{"unit":"tokens"}"#).is_err());
        assert!(read(r#"{"from":1}"#).is_err());
    }
}
