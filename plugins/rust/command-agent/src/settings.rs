//! What an experiment says of its agent.

use crate::ending::End;
use espalier_sdk::fill;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The plugin's settings. Placeholders of texts are named with them; any other brace stays as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The agent: a list of program and arguments, with `{prompt_file}`, `{task_id}` and `{instruction}` (the prompt's text), or
    /// a shell text, with the first two alone.
    pub command: Program,
    /// Name of the sandbox of the task.
    #[serde(default = "main")]
    pub sandbox: String,
    /// Where the agent starts; left out: the sandbox's folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Who runs it; left out: the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Its variables, over the sandbox's, with `{prompt_file}`, `{task_id}` and `{instruction}`. It also gets
    /// `ESPALIER_PROMPT_FILE` and `ESPALIER_TASK_ID`.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// What stands in the prompt file, with `{instruction}` (the task's) and `{task_id}`.
    #[serde(default = "instruction")]
    pub prompt: String,
    /// The prompt file, by absolute path: outside of the working folder, it is no part of the agent's work.
    #[serde(default = "prompt_file")]
    #[schemars(regex(pattern = "^/"))]
    pub prompt_file: String,
    /// Whether the prompt is its standard input, too.
    #[serde(default)]
    pub prompt_on_stdin: bool,
    /// Seconds after which it is killed with all that it started, and the rollout ends as `limit-wall`.
    #[serde(default = "half_an_hour")]
    #[schemars(range(min = 1, max = 604_800))]
    pub timeout_s: u64,
    /// Where its answer lies, once it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Place>,
    /// Where it says how it ended; left out: its exit code says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Place>,
    /// What a word of `status`, or an exit code, means; over what is known: "0" and "Submitted" mean `submitted`,
    /// "LimitsExceeded" `limit-turns`, "TimeExceeded" `limit-wall`, "RepeatedFormatError" `limit-format`. Any other means
    /// `failed`: the rollout is not scored.
    #[serde(default)]
    pub outcomes: BTreeMap<String, End>,
    /// What it means where the agent was ended by a signal (or its exit code tells of one: 129 to 192), or left no word where
    /// `status` names its place. Its sandbox is the policy's, too, which could end it to have a rollout thrown away: `failed` is
    /// for agents that the policy cannot reach.
    #[serde(default = "gave_up")]
    pub killed: End,
    /// A file that is kept with the rollout, such as the agent's own trajectory; 64 MiB at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trajectory: Option<String>,
    /// Bytes of its output that stand in the report, half from its start and half up to its end.
    #[serde(default = "output_max")]
    #[schemars(range(max = 1_048_576))]
    pub output_max: u32,
    /// Whether a longer output is kept as a whole, up to 8 MiB.
    #[serde(default)]
    pub keep_output: bool,
}

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Program {
    /// Shell text.
    Shell(String),
    /// A program and its arguments.
    Argv(#[schemars(length(min = 1))] Vec<String>),
}

/// A text that the agent left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// Path from the agent's folder, or absolute.
    pub file: String,
    /// Where in it, as a JSON pointer (`/info/exit_status`); left out: the file is the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^/"))]
    pub pointer: Option<String>,
}

fn main() -> String {
    "main".to_owned()
}

fn instruction() -> String {
    "{instruction}".to_owned()
}

fn prompt_file() -> String {
    "/tmp/espalier-prompt.md".to_owned()
}

fn gave_up() -> End {
    End::GaveUp
}

fn half_an_hour() -> u64 {
    1_800
}

fn output_max() -> u32 {
    8 << 10
}

/// A task as the settings see it.
#[derive(Clone, Copy, Debug)]
pub struct Task<'a> {
    /// Its id.
    pub id: &'a str,
    /// Its instruction.
    pub instruction: &'a str,
}

impl Settings {
    /// What stands in the prompt file.
    pub fn prompt_text(&self, task: Task<'_>) -> String {
        fill(&self.prompt, &[("instruction", task.instruction), ("task_id", task.id)])
    }

    /// The command with its placeholders filled. A shell text never holds what a task says: it would be run.
    pub fn program(&self, task: Task<'_>, prompt: &str) -> Program {
        match &self.command {
            Program::Shell(text) => Program::Shell(fill(
                text,
                &[("prompt_file", &quoted(&self.prompt_file)), ("task_id", &quoted(task.id))],
            )),
            Program::Argv(words) => {
                Program::Argv(words.iter().map(|word| self.fill(word, task, prompt)).collect())
            }
        }
    }

    /// The agent's variables; later ones win.
    pub fn environment(&self, task: Task<'_>, prompt: &str) -> Vec<(String, String)> {
        let own = [("ESPALIER_PROMPT_FILE", self.prompt_file.as_str()), ("ESPALIER_TASK_ID", task.id)];
        let own = own.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        own.chain(self.env.iter().map(|(name, value)| (name.clone(), self.fill(value, task, prompt))))
            .collect()
    }

    fn fill(&self, text: &str, task: Task<'_>, prompt: &str) -> String {
        fill(text, &[("prompt_file", &self.prompt_file), ("task_id", task.id), ("instruction", prompt)])
    }
}

/// One word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: Task<'_> = Task { id: "it's", instruction: "Do {task_id} $(x)" };

    fn read(text: &str) -> Result<Settings, serde_json::Error> {
        serde_json::from_str(text)
    }

    #[test]
    fn a_command_is_all_that_has_to_be_said() {
        assert!(read("{}").unwrap_err().to_string().contains("missing field `command`"));
        assert!(read(r#"{"command":"x","timeout":3}"#).is_err());
        let settings = read(r#"{"command":["agent","-p","{prompt_file}"]}"#).unwrap();
        assert_eq!((settings.timeout_s, settings.sandbox.as_str()), (1_800, "main"));
        assert_eq!(settings.killed, End::GaveUp);
    }

    #[test]
    fn every_key_has_a_description() {
        let schema = schemars::schema_for!(Settings);
        for (key, property) in schema.as_value()["properties"].as_object().unwrap() {
            assert!(property["description"].is_string(), "{key}");
        }
    }

    #[test]
    fn a_list_gets_the_task_as_it_stands_and_a_shell_text_nothing_that_could_run() {
        let settings =
            read(r#"{"command":["a","{instruction}","{prompt_file}"],"prompt":"{task_id}: {instruction}"}"#);
        let settings = settings.unwrap();
        let prompt = settings.prompt_text(TASK);
        assert_eq!(prompt, "it's: Do {task_id} $(x)");
        let expect = ["a", "it's: Do {task_id} $(x)", "/tmp/espalier-prompt.md"];
        assert_eq!(settings.program(TASK, &prompt), Program::Argv(expect.map(str::to_owned).into()));
        let shell =
            read(r#"{"command":"a {task_id} < {prompt_file} {instruction}","prompt_file":"/p q"}"#).unwrap();
        let expect = r"a 'it'\''s' < '/p q' {instruction}";
        assert_eq!(shell.program(TASK, &prompt), Program::Shell(expect.to_owned()));
    }

    #[test]
    fn variables_of_the_experiment_win() {
        let settings = read(r#"{"command":"a","env":{"ESPALIER_TASK_ID":"x","P":"{prompt_file}"}}"#).unwrap();
        let env: BTreeMap<String, String> = settings.environment(TASK, "").into_iter().collect();
        assert_eq!((env["ESPALIER_TASK_ID"].as_str(), env["P"].as_str()), ("x", "/tmp/espalier-prompt.md"));
    }
}
