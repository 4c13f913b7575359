//! What an experiment can say about the loop.

use espalier_sdk::fill;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The settings of the plugin. Texts may contain the listed placeholders; other braces stay as they are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Name of the model in the experiment.
    pub model: String,
    /// Name of the sandbox of the task.
    pub sandbox: String,
    /// The form of a command in an answer.
    pub mode: Mode,
    /// With `fenced`: the word after the opening fence of a command.
    pub fence: String,
    /// System message, with `{fence}`; empty: none. Default: a message for the mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// First message, with `{instruction}` (of the task) and `{fence}`.
    pub opening: String,
    /// Message after a command, with `{returncode}` and `{output}`.
    pub reply: String,
    /// Replacement for a long `{output}`, with `{head}`, `{left_out}` (number of bytes between) and `{tail}`.
    pub long_output: String,
    /// Message after a command that was killed by its timeout, with `{timeout}` (seconds) and `{output}`.
    pub timeout_reply: String,
    /// Message for an answer without a command, with `{problem}` and `{fence}`. Default: a message for the mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format_error: Option<String>,
    /// Number of consecutive answers without a command that end the rollout as `limit-format`.
    #[schemars(range(min = 1, max = 1000))]
    pub format_errors_max: u32,
    /// Number of answers that end the rollout as `limit-turns`.
    #[schemars(range(min = 1, max = 10000))]
    pub max_turns: u32,
    /// Number of sampled tokens that end the rollout as `limit-tokens`; default: no limit of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_sampled_tokens: Option<u64>,
    /// Number of seconds that end the rollout as `limit-wall`; default: no limit of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_seconds: Option<u64>,
    /// Seconds after which a command is killed; its output is shown.
    #[schemars(range(min = 1, max = 3600))]
    pub timeout_s: u32,
    /// Maximum characters of an output that are shown; of a longer one, the first and the last half of them.
    #[schemars(range(min = 2, max = 200_000))]
    pub output_max: u32,
    /// First line of an output with exit code 0 that ends the rollout; the rest of the output is the answer.
    #[schemars(length(min = 1))]
    pub marker: String,
    /// Whether commands share one shell with its folder and variables, instead of a new shell each.
    pub shell: bool,
    /// Folder in which commands start; default: that of the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Variables of commands, in addition to those of the sandbox.
    pub env: BTreeMap<String, String>,
    /// User that runs commands; default: the user of the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
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

/// The form of a command in an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// A call of the tool `bash`; several calls are run in order.
    #[default]
    Tool,
    /// The only fenced block with the word `fence`.
    Fenced,
}

impl Default for Settings {
    fn default() -> Settings {
        let quiet = [
            ("PAGER", "cat"),
            ("MANPAGER", "cat"),
            ("LESS", "-R"),
            ("PIP_PROGRESS_BAR", "off"),
            ("TQDM_DISABLE", "1"),
        ];
        Settings {
            model: "policy".to_owned(),
            sandbox: "main".to_owned(),
            mode: Mode::Tool,
            fence: "mswea_bash_command".to_owned(),
            system: None,
            opening: "{instruction}".to_owned(),
            reply: "<returncode>{returncode}</returncode>\n<output>\n{output}</output>".to_owned(),
            long_output: "{head}\n[{left_out} bytes left out: use a command that prints less]\n{tail}".to_owned(),
            timeout_reply: "The command was killed after {timeout} s. Run what takes long in the background, and nothing that \
                            waits for input.\n<output>\n{output}</output>"
                .to_owned(),
            format_error: None,
            format_errors_max: 3,
            max_turns: 250,
            max_sampled_tokens: None,
            max_seconds: None,
            timeout_s: 60,
            output_max: 10_000,
            marker: "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT".to_owned(),
            shell: false,
            cwd: None,
            env: quiet.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            user: None,
            stop: Vec::new(),
            max_tokens: None,
            temperature: None,
        }
    }
}

impl Settings {
    /// The system message; none where the experiment leaves it empty.
    pub fn system_text(&self) -> Option<String> {
        let own = || {
            let (how, lasting) = (
                match self.mode {
                    Mode::Tool => "Each of your answers calls the tool `bash` with one command.".to_owned(),
                    Mode::Fenced => format!(
                        "Each of your answers has exactly one command, in a block that opens with ```{} and closes with ```.",
                        self.fence
                    ),
                },
                if self.shell {
                    "All commands run in one shell: its folder and variables stay."
                } else {
                    "Each command runs in a new shell: neither its folder nor its variables last."
                },
            );
            format!(
                "You solve a task on a computer by shell commands, one after the other, and see what each prints. {how} {lasting} \
                 When the task is solved, run `echo {}` alone.",
                self.marker
            )
        };
        let text = self.system.clone().unwrap_or_else(own);
        (!text.is_empty()).then(|| fill(&text, &[("fence", &self.fence)]))
    }

    /// What an answer without a command is told.
    pub fn format_error_text(&self, problem: &str) -> String {
        let text = self.format_error.clone().unwrap_or_else(|| match self.mode {
            Mode::Tool => "{problem}. Call the tool `bash` with one command.".to_owned(),
            Mode::Fenced => {
                "{problem}. Give exactly one command, in a block that opens with ```{fence} and closes with ```."
                    .to_owned()
            }
        });
        fill(&text, &[("problem", problem), ("fence", &self.fence)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_object_means_the_defaults_and_unknown_keys_are_refused() {
        assert_eq!(serde_json::from_str::<Settings>("{}").unwrap(), Settings::default());
        assert!(serde_json::from_str::<Settings>(r#"{"max_turn":3}"#).is_err());
        assert_eq!(serde_json::from_str::<Settings>(r#"{"mode":"fenced"}"#).unwrap().mode, Mode::Fenced);
    }

    #[test]
    fn every_key_has_a_description() {
        let schema = schemars::schema_for!(Settings);
        for (key, property) in schema.as_value()["properties"].as_object().unwrap() {
            assert!(property["description"].is_string(), "{key}");
        }
    }

    #[test]
    fn texts_follow_the_mode_unless_the_experiment_gives_its_own() {
        let mut settings = Settings { mode: Mode::Fenced, fence: "sh".to_owned(), ..Settings::default() };
        assert!(settings.system_text().unwrap().contains("opens with ```sh and"));
        assert!(settings.format_error_text("No block").starts_with("No block. Give exactly one"));
        settings.system = Some(String::new());
        settings.format_error = Some("{problem}!".to_owned());
        assert_eq!((settings.system_text(), &*settings.format_error_text("no")), (None, "no!"));
    }
}
