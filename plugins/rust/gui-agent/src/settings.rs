//! What an experiment can say about the loop.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The settings of the plugin. Texts may contain the listed placeholders; other braces stay as they are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("x-task" = schemars::schema_for!(OfTask)))]
pub struct Settings {
    /// Name of the model in the experiment.
    pub model: String,
    /// Name of the browser of the task.
    pub browser: String,
    /// System message; empty: none.
    pub system: String,
    /// First message, with `{instruction}` (of the task) and `{observation}`.
    pub opening: String,
    /// Message after the actions of an answer, with `{steps}` (what came of each, a line each) and `{observation}`.
    pub reply: String,
    /// Number of last screenshots that the model sees; those before are replaced by a fixed text. 0: none is taken.
    #[schemars(range(max = 100))]
    pub screenshots: u32,
    /// How screenshots are encoded.
    pub format: Format,
    /// Quality of screenshots that are not PNG.
    #[schemars(range(min = 1, max = 100))]
    pub quality: u8,
    /// Size of screenshots over that of the viewport.
    #[schemars(range(min = 0.1, max = 4.0))]
    pub scale: f64,
    /// Maximum tokens of the description of the page as text, estimated, with references for tools; 0: none.
    #[schemars(range(max = 100_000))]
    pub description_tokens: u32,
    /// Whether a description after the first has only what changed.
    pub description_changes: bool,
    /// Whether an answer without a thought before its calls does not parse.
    pub thought: Thought,
    /// Message for an answer that does not parse, with `{problem}`.
    pub format_error: String,
    /// Number of consecutive answers that do not parse that end the rollout as `limit-format`.
    #[schemars(range(min = 1, max = 1000))]
    pub format_errors_max: u32,
    /// Number of answers that end the rollout as `limit-turns`.
    #[schemars(range(min = 1, max = 10_000))]
    pub max_turns: u32,
    /// Stop strings that end an answer; empty: those of the experiment.
    pub stop: Vec<String>,
    /// Maximum tokens of one answer; default: that of the experiment.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_tokens: Option<u32>,
    /// Temperature of the answers; default: that of the experiment.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 100.0))]
    pub temperature: Option<f64>,
}

/// How a screenshot is encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Without loss.
    #[default]
    Png,
    /// With `quality`.
    Jpeg,
    /// With `quality`.
    Webp,
}

/// Whether an answer needs a thought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Thought {
    /// It may have one.
    #[default]
    Optional,
    /// It has one, between `<think>` and `</think>`, before its calls.
    Required,
}

/// What it needs of a task.
#[derive(JsonSchema)]
struct OfTask {
    #[serde(default)]
    #[expect(dead_code, reason = "its schema alone is used")]
    data: Option<Data>,
}

#[derive(JsonSchema)]
struct Data {
    /// What a scripted user answers to `call_user`, in order.
    #[serde(default)]
    #[expect(dead_code, reason = "its schema alone is used")]
    user: Option<Vec<String>>,
}

const SYSTEM: &str = "You use a web browser to do what the user asks. In each answer you call one or more tools; several calls are \
                      carried out in order, so let them follow from what you see now. After each answer you are told what came of \
                      it, and what the browser shows. When the task is done, or cannot be done, call `done` with the answer.";

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            model: "policy".to_owned(),
            browser: "main".to_owned(),
            system: SYSTEM.to_owned(),
            opening: "{instruction}\n\n{observation}".to_owned(),
            reply: "{steps}\n\n{observation}".to_owned(),
            screenshots: 1,
            format: Format::Png,
            quality: 80,
            scale: 1.0,
            description_tokens: 0,
            description_changes: false,
            thought: Thought::Optional,
            format_error: "{problem}. Call one of the tools.".to_owned(),
            format_errors_max: 3,
            max_turns: 30,
            stop: Vec::new(),
            max_tokens: None,
            temperature: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_object_means_the_defaults_and_unknown_keys_are_refused() {
        assert_eq!(serde_json::from_str::<Settings>("{}").unwrap(), Settings::default());
        assert!(serde_json::from_str::<Settings>(r#"{"screenshot":3}"#).is_err());
    }

    #[test]
    fn every_key_has_a_description() {
        let schema = schemars::schema_for!(Settings);
        for (key, property) in schema.as_value()["properties"].as_object().unwrap() {
            assert!(property["description"].is_string(), "{key}");
        }
    }
}
