//! What an experiment can say about tests and solutions.

use espalier_sdk::schemars::JsonSchema;
use espalier_sdk::serde::{Deserialize, Serialize};

/// How solutions are tested.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(crate = "espalier_sdk::serde", default, deny_unknown_fields)]
#[schemars(crate = "espalier_sdk::schemars")]
pub struct Settings {
    /// What the solution of a rollout is.
    pub solution: Solution,
    /// The file that an answer is written to, in the working folder of the sandbox.
    pub file: String,
    /// Shell text that runs the solution, for tests with an input and an output.
    pub run: String,
    /// The field of the task's private part that has its tests.
    pub field: String,
    /// Where tests are that a rollout wrote: a JSON pointer into `data` of its report; default: nowhere.
    pub written: Option<String>,
    /// Tests of one rollout that count, the first of them.
    #[schemars(range(min = 1, max = 1000))]
    pub written_max: u32,
    /// Of which tests the share is what a rollout is worth.
    pub counted: Counted,
    /// The sandbox of the task that solutions are run in.
    pub sandbox: String,
    /// Seconds for one solution in one test.
    #[schemars(range(min = 1, max = 3600))]
    pub time_limit_s: u32,
    /// Seconds for all runs of written tests, in equal parts: one for each solution with the tests of each rollout. Tests beyond it are
    /// not run and do not pass. Less than `limits.scoring_wall`, which is for everything.
    #[schemars(range(min = 1, max = 86400))]
    pub written_time_s: u32,
}

/// What the solution of a rollout is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(crate = "espalier_sdk::serde", rename_all = "kebab-case")]
#[schemars(crate = "espalier_sdk::schemars")]
pub enum Solution {
    /// The answer of its report: the last fenced block in it, or all of it.
    Answer,
    /// What it changed in its sandbox.
    Changes,
}

/// Of which tests the share is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(crate = "espalier_sdk::serde", rename_all = "kebab-case")]
#[schemars(crate = "espalier_sdk::schemars")]
pub enum Counted {
    /// All of them.
    All,
    /// Those of the task.
    Given,
    /// Those of the task, and written ones that every right solution passes.
    Valid,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            solution: Solution::Answer,
            file: "solution.py".to_owned(),
            run: "python3 solution.py".to_owned(),
            field: "unit_tests".to_owned(),
            written: None,
            written_max: 32,
            counted: Counted::All,
            sandbox: "main".to_owned(),
            time_limit_s: 4,
            written_time_s: 600,
        }
    }
}
