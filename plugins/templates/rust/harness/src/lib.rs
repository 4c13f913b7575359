//! The harness `{{name}}`: the model acts in the task's environment, one action in each answer.

use espalier_sdk::{Conversation, Failure, Limit, Report, TaskView, environment};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

const NO_ACTION: &str =
    "There was no action in your answer. End it with one line `Action: <action>`.";

/// What an experiment can set in `[harness.settings]`. Doc comments become the descriptions of the schema.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// System message.
    pub system: String,
    /// Number of answers after which the rollout ends as `limit-turns`.
    #[schemars(range(min = 1))]
    pub max_turns: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            system: "You act in a text world. End each answer with one line `Action: <action>`."
                .to_owned(),
            max_turns: 10,
        }
    }
}

/// Carries out one rollout. A failure that is passed on with `?` ends it as what it is: a used-up budget as a limit, for example.
pub fn run(task: TaskView, settings: Settings) -> Result<Report, Failure> {
    let world = environment()?;
    let first = world.reset()?;
    let mut chat = Conversation::with("policy");
    chat.system(settings.system)
        .user(format!("{}\n\n{}", task.instruction, first.text));
    let mut reward = 0.0;
    for turn in 1..=settings.max_turns {
        let answer = chat.complete()?;
        let Some(action) = action_of(&answer.text) else {
            chat.user(NO_ACTION);
            continue;
        };
        let step = world.step(action)?;
        reward += step.reward.unwrap_or(0.0);
        let text = step.observation.text;
        if step.done {
            let data = json!({ "turns": turn, "reward": reward });
            return Ok(Report::submitted().answer(text).data(data));
        }
        chat.user(text);
    }
    let data = json!({ "turns": settings.max_turns, "reward": reward });
    Ok(Report::limit(Limit::Turns).data(data))
}

/// What stands behind `Action:` in the last line that begins with it.
fn action_of(answer: &str) -> Option<&str> {
    answer
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("Action:"))
        .map(str::trim)
}

espalier_sdk::harness!(Settings, run);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_action_of_an_answer_counts() {
        assert_eq!(
            action_of("I look first.\nAction: look\nNo:\nAction:  open door "),
            Some("open door")
        );
        assert_eq!(action_of("There is no Action: here."), None);
    }
}
