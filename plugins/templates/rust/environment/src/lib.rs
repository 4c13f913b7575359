//! The environment `{{name}}`: guess a number.

use espalier_sdk::{Environment, Failure, Observation, StepResult, TaskView};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use std::cmp::Ordering;

/// What an experiment can set in `[environment.settings]`. Doc comments become the descriptions of the schema.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Number of guesses after which the episode ends.
    #[schemars(range(min = 1))]
    pub max_guesses: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { max_guesses: 10 }
    }
}

/// `data` of a task: what the agent is told.
#[derive(Deserialize)]
struct Data {
    low: i64,
    high: i64,
}

/// `private` of a task: what the agent never sees.
#[derive(Deserialize)]
struct Private {
    secret: i64,
}

/// One episode.
pub struct Guessing {
    secret: i64,
    guesses: u32,
    max_guesses: u32,
}

impl Environment for Guessing {
    type Settings = Settings;

    fn reset(task: TaskView, settings: Settings) -> Result<(Guessing, Observation), Failure> {
        let Data { low, high } = task.data_as()?;
        let Private { secret } = task.private_as()?;
        let world = Guessing {
            secret,
            guesses: 0,
            max_guesses: settings.max_guesses,
        };
        Ok((
            world,
            Observation::text(format!("Guess a number between {low} and {high}.")),
        ))
    }

    fn step(&mut self, action: &str) -> Result<StepResult, Failure> {
        self.guesses += 1;
        let info = json!({ "guesses": self.guesses });
        let action = action.trim();
        let seen = match action.parse::<i64>().map(|guess| self.secret.cmp(&guess)) {
            Ok(Ordering::Equal) => {
                return Ok(StepResult::seen("Correct.").reward(1.0).done().info(info));
            }
            Ok(Ordering::Less) => "The number is lower.".to_owned(),
            Ok(Ordering::Greater) => "The number is higher.".to_owned(),
            Err(_) => format!("`{action}` is not a number."),
        };
        if self.guesses < self.max_guesses {
            return Ok(StepResult::seen(seen).info(info));
        }
        Ok(StepResult::seen(format!("{seen} No guesses left."))
            .reward(0.0)
            .done()
            .info(info))
    }
}

espalier_sdk::environment!(Guessing);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guess_is_answered_until_there_are_none_left() {
        let mut world = Guessing {
            secret: 42,
            guesses: 0,
            max_guesses: 3,
        };
        let mut seen = |action: &str| {
            let step = world.step(action).unwrap();
            (step.observation.text, step.reward, step.done)
        };
        assert_eq!(seen("50"), ("The number is lower.".to_owned(), None, false));
        assert_eq!(
            seen("many"),
            ("`many` is not a number.".to_owned(), None, false)
        );
        assert_eq!(
            seen("7"),
            (
                "The number is higher. No guesses left.".to_owned(),
                Some(0.0),
                true
            )
        );
    }
}
