//! The harness `answer`: asks the model once and submits what it says. For tasks that are answered in one turn.

use espalier_sdk::schemars::JsonSchema;
use espalier_sdk::serde::Deserialize;
use espalier_sdk::{Conversation, Failure, Report, TaskView};

/// What the model is told besides the instruction.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(crate = "espalier_sdk::serde", default, deny_unknown_fields)]
#[schemars(crate = "espalier_sdk::schemars")]
pub struct Settings {
    /// System message; empty: none.
    pub system: String,
    /// The answer is what stands behind the last occurrence of this text; empty: all of it. Where it does not occur, there is no
    /// answer.
    pub after: String,
}

impl Settings {
    /// The answer in what the model said, without blanks around it.
    pub fn answer<'a>(&self, text: &'a str) -> Option<&'a str> {
        let answer = if self.after.is_empty() { text } else { text.rsplit_once(self.after.as_str())?.1 };
        Some(answer.trim())
    }
}

/// Carries out a rollout. Errors: those of the model.
pub fn run(task: TaskView, settings: Settings) -> Result<Report, Failure> {
    let mut conversation = Conversation::with("policy");
    if !settings.system.is_empty() {
        conversation.system(settings.system.as_str());
    }
    let said = conversation.user(task.instruction).complete()?;
    Ok(match settings.answer(&said.text) {
        Some(answer) => Report::submitted().answer(answer),
        None => Report::submitted(),
    })
}

espalier_sdk::harness!(Settings, run);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_all_of_it_or_what_stands_behind_a_text() {
        let all = Settings::default();
        assert_eq!(all.answer(" 42\n"), Some("42"));
        let after = Settings { after: "Answer:".to_owned(), ..Settings::default() };
        assert_eq!(after.answer("Answer: 41. No.\nAnswer: 42"), Some("42"));
        assert_eq!(after.answer("42"), None);
    }
}
