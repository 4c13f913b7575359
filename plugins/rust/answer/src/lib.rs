//! The harness `answer`: asks the policy once and submits what it says, for tasks of which only the answer counts.

use espalier_sdk::schemars::JsonSchema;
use espalier_sdk::serde::Deserialize;
use espalier_sdk::{Conversation, Failure, Report, TaskView, fill};

/// How it asks.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(crate = "espalier_sdk::serde", default, deny_unknown_fields)]
#[schemars(crate = "espalier_sdk::schemars")]
pub struct Settings {
    /// System message; default: none.
    pub system: Option<String>,
    /// The message of the user; `{instruction}` is that of the task.
    pub prompt: String,
    /// Where the answer begins: behind the last place of this text, if the model writes it; default: all of it is the answer.
    pub marker: Option<String>,
    /// Maximum tokens of the answer; default: that of the experiment.
    #[schemars(range(min = 1))]
    pub max_tokens: Option<u32>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { system: None, prompt: "{instruction}".to_owned(), marker: None, max_tokens: None }
    }
}

impl Settings {
    /// What of a text is the answer.
    pub fn answer<'a>(&self, text: &'a str) -> &'a str {
        let marker = self.marker.as_deref().filter(|marker| !marker.is_empty());
        let behind = marker.and_then(|marker| text.rfind(marker).map(|at| &text[at + marker.len()..]));
        behind.unwrap_or(text).trim()
    }
}

/// Carries out a rollout.
pub fn run(task: TaskView, settings: Settings) -> Result<Report, Failure> {
    let mut chat = Conversation::with("policy");
    if let Some(system) = &settings.system {
        chat.system(system.as_str());
    }
    chat.user(fill(&settings.prompt, &[("instruction", &task.instruction)]));
    chat.options.max_tokens = settings.max_tokens;
    let answer = chat.complete()?;
    Ok(Report::submitted().answer(settings.answer(&answer.text)))
}

espalier_sdk::harness!(Settings, run);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_what_stands_behind_the_last_marker() {
        let marked = Settings { marker: Some("Answer:".to_owned()), ..Settings::default() };
        for (settings, text, expect) in [
            (&Settings::default(), " 4\n", "4"),
            (&marked, "Answer: 3, no. Answer: 4\n", "4"),
            (&marked, "it is 4", "it is 4"),
        ] {
            assert_eq!(settings.answer(text), expect);
        }
    }
}
