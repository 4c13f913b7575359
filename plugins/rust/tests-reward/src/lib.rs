//! The reward `tests-reward`: takes the agent's work out of its sandbox as changes, leaves out what belongs to the tests, applies
//! the rest in a fresh sandbox, puts the hidden tests there, runs them, and grades what they report. What is held back, how
//! results are trusted and what stays open: docs/grading.md.

pub mod changes;
pub mod folders;
pub mod guard;
#[cfg(target_arch = "wasm32")]
mod guest;
pub mod hidden;
pub mod modules;
pub mod protected;
pub mod python;
pub mod tables;
pub mod task;
pub mod verdict;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The settings of the plugin.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Name of the sandbox of the task.
    pub sandbox: String,
    /// Command that runs the tests, unless the task sets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Parser of the output, unless the task sets it: `pytest`, `junit-xml`, `go-test` ...
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parser: Option<String>,
    /// Time limit of the tests in seconds, unless the task sets it. `limits.scoring_wall` must be longer: beyond it there is no
    /// score.
    #[schemars(range(min = 1, max = 86_400))]
    pub timeout_s: u64,
    /// Whether a part of the tests scores its share, if no test that passed before is broken; otherwise all or nothing.
    pub partial: bool,
    /// Whether `extra` of the score lists every test with its status, for authors of tasks.
    pub list: bool,
    /// Maximum size of the changes of the agent in bytes; more scores 0.
    #[schemars(range(min = 1, max = 62_914_560))]
    pub changes_bytes_max: u64,
    /// User that runs the tests; default: the user of the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            sandbox: "main".to_owned(),
            command: None,
            parser: None,
            timeout_s: 1_200,
            partial: false,
            list: false,
            changes_bytes_max: 32 << 20,
            user: None,
        }
    }
}
