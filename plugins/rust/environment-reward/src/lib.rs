//! The reward `environment-reward`: what the environment itself paid for the steps of a rollout.

use schemars::JsonSchema;
use serde::Deserialize;

#[cfg(target_arch = "wasm32")]
mod guest;

/// The settings of the plugin.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// How the rewards of steps make the score; steps without a reward are ignored.
    #[serde(default)]
    pub take: Take,
}

/// How the rewards of the steps become one score.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Take {
    /// The sum of the rewards.
    #[default]
    Sum,
    /// The last reward.
    Last,
    /// The largest reward.
    Max,
}

/// The score of a rollout: 0 where no step was rewarded, so that doing nothing is an outcome and not a gap.
pub fn score(take: Take, step_rewards: &[Option<f64>]) -> f64 {
    let mut given = step_rewards.iter().copied().flatten();
    match take {
        Take::Sum => given.fold(0.0, |sum, reward| sum + reward),
        Take::Last => given.next_back().unwrap_or(0.0),
        Take::Max => given.reduce(f64::max).unwrap_or(0.0),
    }
}

/// Why, for people.
pub fn reason(take: Take, step_rewards: &[Option<f64>]) -> String {
    let steps = step_rewards.len();
    let given = step_rewards.iter().flatten().count();
    let word = match take {
        Take::Sum => "sum",
        Take::Last => "last",
        Take::Max => "largest",
    };
    match given {
        0 if steps == 0 => "no step was taken".to_owned(),
        0 => format!("none of {steps} steps was rewarded"),
        _ => format!("{word} of the rewards of {given} of {steps} steps"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_to_take_them() {
        let check = |rewards: &[Option<f64>], sum: f64, last: f64, max: f64| {
            assert_eq!(score(Take::Sum, rewards), sum, "{rewards:?}");
            assert_eq!(score(Take::Last, rewards), last, "{rewards:?}");
            assert_eq!(score(Take::Max, rewards), max, "{rewards:?}");
        };
        check(&[], 0.0, 0.0, 0.0);
        check(&[None, None], 0.0, 0.0, 0.0);
        check(&[Some(1.0), Some(-2.0), None], -1.0, -2.0, 1.0);
        check(&[Some(-3.0), Some(-2.0)], -5.0, -2.0, -2.0);
    }

    #[test]
    fn the_reason_counts_steps() {
        assert_eq!(reason(Take::Sum, &[]), "no step was taken");
        assert_eq!(reason(Take::Sum, &[None]), "none of 1 steps was rewarded");
        assert_eq!(reason(Take::Max, &[None, Some(1.0)]), "largest of the rewards of 1 of 2 steps");
    }

    #[test]
    fn settings_are_strict_and_default_to_the_sum() {
        assert_eq!(serde_json::from_str::<Settings>("{}").unwrap().take, Take::Sum);
        assert_eq!(serde_json::from_str::<Settings>(r#"{"take":"max"}"#).unwrap().take, Take::Max);
        assert!(serde_json::from_str::<Settings>(r#"{"take":"mean"}"#).is_err());
        assert!(serde_json::from_str::<Settings>(r#"{"tak":"sum"}"#).is_err());
    }
}
