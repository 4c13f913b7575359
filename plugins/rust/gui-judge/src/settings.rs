//! What an experiment can say about the judge.

use espalier_sdk::schemars::JsonSchema;
use espalier_sdk::serde::Deserialize;

/// How it judges.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(crate = "espalier_sdk::serde", default, deny_unknown_fields)]
#[schemars(crate = "espalier_sdk::schemars")]
pub struct Settings {
    /// What counts as success.
    pub rubric: String,
    /// System message; default: none.
    pub system: Option<String>,
    /// Number of answers of the model to the same question. The verdict that most of them give counts; of a tie, the one that is least
    /// in favour of the agent.
    #[schemars(range(min = 1, max = 256))]
    pub votes: u32,
    /// Whether the model is shown the thoughts of the agent, between `<think>` and `</think>`.
    pub thoughts: bool,
    /// Number of last screenshots that the model is shown. More than 0 needs a model that takes images.
    #[schemars(range(max = 100))]
    pub images: u32,
    /// Number of last turns that the model is shown.
    #[schemars(range(min = 1))]
    pub turns_shown: u32,
    /// Characters of each text that is shown; of a longer one its beginning and its end.
    #[schemars(range(min = 100))]
    pub text_max: u32,
    /// Whether the model is shown the private part of the task, if the experiment lets the judge see it.
    pub show_private: bool,
    /// Maximum tokens of one answer; default: that of the experiment.
    #[schemars(range(min = 1))]
    pub max_tokens: Option<u32>,
    /// Temperature of the answers; default: that of the experiment.
    #[schemars(range(min = 0.0, max = 100.0))]
    pub temperature: Option<f64>,
}

const RUBRIC: &str = "Has the agent done what the task asks, completely and in the browser itself? What the agent says of its work \
                      proves nothing: it must follow from its actions and from what the browser showed. An answer that the task asks \
                      for must agree with what was shown.";

impl Default for Settings {
    fn default() -> Self {
        Settings {
            rubric: RUBRIC.to_owned(),
            system: None,
            votes: 1,
            thoughts: false,
            images: 3,
            turns_shown: 100,
            text_max: 2000,
            show_private: false,
            max_tokens: None,
            temperature: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_a_description() {
        let schema = espalier_sdk::schemars::schema_for!(Settings);
        for (key, property) in schema.as_value()["properties"].as_object().unwrap() {
            assert!(property["description"].is_string(), "{key}");
        }
    }
}
