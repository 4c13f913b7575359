//! What an experiment can say about the judge.

use espalier_sdk::schemars::JsonSchema;
use espalier_sdk::serde::Deserialize;

/// How it estimates.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(crate = "espalier_sdk::serde", default, deny_unknown_fields)]
#[schemars(crate = "espalier_sdk::schemars")]
pub struct Settings {
    /// The least reward of a rollout that solved its task; it is not asked about.
    pub resolved: f64,
    /// Answers of the model; the estimates of a turn are averaged.
    #[schemars(range(min = 1, max = 256))]
    pub votes: u32,
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

impl Default for Settings {
    fn default() -> Self {
        Settings {
            resolved: 1.0,
            votes: 1,
            text_max: 5000,
            show_private: true,
            max_tokens: None,
            temperature: None,
        }
    }
}
