//! The harness `answer`: asks the policy once and submits what it says, for tasks of which only the answer counts. It may ask for
//! something more in JSON, such as tests of the answer, which is left for rewards.

use espalier_sdk::schemars::JsonSchema;
use espalier_sdk::serde::Deserialize;
use espalier_sdk::serde_json::{self, Value, json};
use espalier_sdk::{Conversation, Failure, Report, TaskView, fenced, fill};

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
    /// A second message of the user. The JSON in what the model answers to it, in its last fenced block or all of it, is `more` of the
    /// report's data, `null` if there is none. Default: none.
    pub more: Option<String>,
    /// Maximum tokens of an answer; default: that of the experiment.
    #[schemars(range(min = 1))]
    pub max_tokens: Option<u32>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            system: None,
            prompt: "{instruction}".to_owned(),
            marker: None,
            more: None,
            max_tokens: None,
        }
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
    let report = Report::submitted().answer(settings.answer(&answer.text));
    let Some(more) = &settings.more else { return Ok(report) };
    chat.user(more.as_str());
    Ok(report.data(json!({ "more": json_in(&chat.complete()?.text) })))
}

/// The JSON of a text: in its last fenced block, or all of it.
fn json_in(text: &str) -> Value {
    let found =
        fenced(text).into_iter().chain([text]).find_map(|text| serde_json::from_str(text.trim()).ok());
    found.unwrap_or(Value::Null)
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
    #[test]
    fn what_is_asked_for_in_json_is_read_where_there_is_any() {
        for (text, expect) in [
            ("[1]", json!([1])),
            ("So:\n```json\n[1]\n```\n", json!([1])),
            ("```\n{\"a\": 1}\n```\nand\n```\n[2]\n```", json!([2])),
            ("none", Value::Null),
        ] {
            assert_eq!(json_in(text), expect, "{text}");
        }
    }
}
