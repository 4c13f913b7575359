//! The form of a task line, for `espalier schema task`: what [`espalier_core::task::Task`] reads, in JSON Schema.
//!
//! A type of its own, since a task keeps its free parts as raw text; a test reads lines by both.

use espalier_core::browser::BrowserFile;
use espalier_core::limits::LimitsFile;
use espalier_core::sandbox::SandboxFile;
use espalier_core::service::TaskService;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// One task: one line of a task file.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Task")]
pub struct TaskLine {
    /// Id of the task, unique in the file.
    #[schemars(length(min = 1, max = 200))]
    pub id: String,
    /// The instruction for the agent.
    #[schemars(length(min = 1))]
    pub instruction: String,
    /// Name of the environment in samples and tables; the experiment sets the plugin.
    #[serde(default)]
    pub environment: Option<String>,
    /// The seed of the task.
    #[serde(default)]
    #[schemars(range(max = 9_007_199_254_740_991_u64))]
    pub seed: Option<u64>,
    /// Tags for filters and tables.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Limits of this task: may lower a limit of the experiment, and raise one that the experiment does not set.
    #[serde(default)]
    pub limits: LimitsFile,
    /// Data for environment and harness, of any form.
    #[serde(default)]
    pub data: Value,
    /// The sandbox `main`, short for `sandboxes.main`, within the limits of the experiment.
    #[serde(default)]
    pub sandbox: Option<SandboxFile>,
    /// Sandboxes by name: 1 to 40 of a to z, 0 to 9 and `-`.
    #[serde(default)]
    pub sandboxes: BTreeMap<String, SandboxFile>,
    /// Its browser, within the limits of the experiment.
    #[serde(default)]
    pub browser: Option<BrowserFile>,
    /// How the sessions of the services that it uses begin, by the names of `[services]`. Its browser reaches them.
    #[serde(default)]
    pub services: BTreeMap<String, TaskService>,
    /// Data for environment and rewards only; a harness sees it with the grant `private-task`.
    #[serde(default)]
    pub private: Option<PrivatePart>,
}

/// Data that the harness does not see. Further keys are for the environment and the rewards.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PrivatePart {
    /// A solution that scores full.
    #[serde(default)]
    pub reference: Option<ReferencePart>,
}

/// A solution that scores full.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReferencePart {
    /// Actions for an environment, in order.
    Actions(Vec<String>),
    /// A script for a sandbox.
    Script(String),
    /// A patch for a sandbox.
    Patch(String),
}

#[cfg(test)]
mod tests {
    use super::*;
    use espalier_core::task::Task;

    #[test]
    fn both_types_read_the_same_lines() {
        let lines = [
            (r#"{"id":"a","instruction":"x"}"#, true),
            (
                r#"{"id":"a","instruction":"x","environment":"e","seed":1,"tags":["t"],"limits":{"turns":3}}"#,
                true,
            ),
            (
                r#"{"id":"a","instruction":"x","data":{"any":[1]},"private":{"reference":{"actions":["b"]},"k":1}}"#,
                true,
            ),
            (r#"{"id":"a","instruction":"x","private":{"reference":{"steps":["b"]}}}"#, false),
            (r#"{"id":"a","instruction":"x","colour":1}"#, false),
            (r#"{"id":"a","instruction":"x","tags":"t"}"#, false),
            (r#"{"instruction":"x"}"#, false),
            (r#"{"id":"a","instruction":"x","sandbox":{"setup":"true","files":{"/a":"b"}}}"#, true),
            (r#"{"id":"a","instruction":"x","sandboxes":{"db":{"memory":"1GiB"}}}"#, true),
            (r#"{"id":"a","instruction":"x","sandbox":{"colour":1}}"#, false),
            (r#"{"id":"a","instruction":"x","services":{"mail":{"state":{"a":1}}}}"#, true),
            (r#"{"id":"a","instruction":"x","services":{"mail":{"colour":1}}}"#, false),
        ];
        for (line, good) in lines {
            assert_eq!(Task::parse(line).is_ok(), good, "{line}");
            assert_eq!(serde_json::from_str::<TaskLine>(line).is_ok(), good, "{line}");
        }
    }
}
