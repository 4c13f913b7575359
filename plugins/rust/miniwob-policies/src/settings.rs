//! What an experiment can say.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The settings of the plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Name of the browser of the task.
    pub browser: String,
    /// Whether a screenshot is taken before each action and at the end: with `record_calls` of the experiment, `espalier show ROLLOUT
    /// --html` shows them.
    pub screenshots: bool,
    /// Maximum tokens of a description of the page, estimated.
    #[schemars(range(min = 100, max = 100_000))]
    pub description_tokens: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { browser: "main".to_owned(), screenshots: false, description_tokens: 6_000 }
    }
}
