//! What an experiment can say about the dialogue.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The settings of the plugin. Texts may contain the listed placeholders; other braces stay as they are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Name of the model in the experiment.
    pub model: String,
    /// System message; default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// Text before the examples.
    pub prompt: String,
    /// Worked examples, in order.
    pub examples: Vec<String>,
    /// First message, with `{prompt}`, `{examples}`, `{instruction}` (of the task) and `{observation}` (the first of the world).
    /// An empty prompt or empty examples leave no blank line.
    pub opening: String,
    /// Message after an action, with `{observation}`.
    pub reply: String,
    /// The form of an action in an answer.
    pub form: Form,
    /// Observation for an answer without an action.
    pub format_error: String,
    /// Number of consecutive answers without an action that end the rollout as `limit-format`; at least 1.
    #[schemars(range(min = 1, max = 1000))]
    pub format_errors_max: u32,
    /// Number of answers that end the rollout as `limit-turns`; at least 1.
    #[schemars(range(min = 1, max = 10000))]
    pub max_turns: u32,
    /// Action with which the model gives up; default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub give_up: Option<String>,
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

/// The form of an action in an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// After `Action:` at the start of a line, with thoughts before it. The last one counts.
    #[default]
    Action,
    /// After `>` at the start of a line, with thoughts before it. The last one counts.
    Prompt,
    /// The first line that is not empty is the action.
    Line,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            model: "policy".to_owned(),
            system: None,
            prompt: "You act in a text world, one action at a time. Think first, then end your answer with one line \
                     of the form `Action: <action>`."
                .to_owned(),
            examples: Vec::new(),
            opening: "{prompt}\n\n{examples}\n\n{instruction}\n\n{observation}".to_owned(),
            reply: "{observation}".to_owned(),
            form: Form::Action,
            format_error: "There was no action in your answer. End it with one line of the form `Action: <action>`."
                .to_owned(),
            format_errors_max: 3,
            max_turns: 20,
            give_up: None,
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
        assert!(serde_json::from_str::<Settings>(r#"{"max_turn":3}"#).is_err());
        assert_eq!(serde_json::from_str::<Settings>(r#"{"form":"line"}"#).unwrap().form, Form::Line);
    }

    #[test]
    fn every_key_has_a_description_and_optional_ones_no_default() {
        let schema = schemars::schema_for!(Settings);
        let properties = schema.as_value()["properties"].as_object().unwrap();
        for (key, property) in properties {
            assert!(property["description"].is_string(), "{key}");
        }
        assert_eq!(properties["max_turns"]["default"], 20);
    }
}
