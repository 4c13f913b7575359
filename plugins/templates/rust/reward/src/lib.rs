//! The reward `{{name}}`: compares the final answer with `private.answer` of the task.

use espalier_sdk::{Failure, RolloutView, Score, invalid};
use schemars::JsonSchema;
use serde::Deserialize;

/// What an experiment can set in `[rewards.settings]`. Doc comments become the descriptions of the schema.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Whether upper and lower case differ.
    pub case_sensitive: bool,
}

/// Scores a finished rollout. A failure leaves it without a score, which is not a score of 0.
pub fn score(rollout: RolloutView, settings: Settings) -> Result<Vec<Score>, Failure> {
    let expected = rollout.task.private_field("answer");
    let expected = expected.as_ref().and_then(|answer| answer.as_str());
    let expected = expected.ok_or_else(|| invalid("task.private: `answer` is missing"))?;
    let (reward, reason) = match rollout.answer() {
        Some(answer) => {
            let value = if same(answer, expected, settings.case_sensitive) {
                1.0
            } else {
                0.0
            };
            (value, format!("expected \"{expected}\", got \"{answer}\""))
        }
        None => (0.0, "no answer".to_owned()),
    };
    // The score named `reward` is weighted by the experiment, others are recorded.
    let turns = rollout.turns.len() as f64;
    Ok(vec![
        Score::reward(reward).because(reason),
        Score::named("turns", turns),
    ])
}

fn same(answer: &str, expected: &str, case_sensitive: bool) -> bool {
    let (answer, expected) = (answer.trim(), expected.trim());
    if case_sensitive {
        answer == expected
    } else {
        answer.to_lowercase() == expected.to_lowercase()
    }
}

espalier_sdk::reward!(Settings, score);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_do_not_count_and_case_only_where_it_is_asked_for() {
        assert!(same(" Paris\n", "paris", false));
        assert!(!same("Paris", "paris", true));
        assert!(!same("Paris", "London", false));
    }
}
