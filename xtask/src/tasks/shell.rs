//! The shell tasks of `experiments/tasks/shell.toml` as a task file.

use espalier_core::task::Task;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Where commands of these tasks run.
const WORKDIR: &str = "/task";
/// Long before a test that hangs would hold up a run.
const TESTS_TIMEOUT: &str = "30s";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Set {
    task: Vec<ShellTask>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ShellTask {
    id: String,
    instruction: String,
    #[serde(default)]
    tags: Vec<String>,
    /// Where the tests run: `place` or `fresh`.
    #[serde(rename = "in")]
    ground: Option<String>,
    /// By name below [`WORKDIR`].
    #[serde(default)]
    files: BTreeMap<String, String>,
    setup: Option<String>,
    reference: String,
    tests: String,
}

/// The lines of the task file. Errors name the task.
pub fn lines(text: &str) -> Result<Vec<String>, String> {
    let set: Set = toml::from_str(text).map_err(|error| error.to_string())?;
    set.task.iter().map(ShellTask::line).collect()
}

/// Writes the task file, whole or not at all; returns how many tasks it has.
pub fn write(source: &Path, file: &Path) -> Result<usize, String> {
    let text = std::fs::read_to_string(source).map_err(|error| format!("{}: {error}", source.display()))?;
    let lines = lines(&text).map_err(|error| format!("{}: {error}", source.display()))?;
    super::write_lines(&lines, file)?;
    Ok(lines.len())
}

impl ShellTask {
    fn line(&self) -> Result<String, String> {
        let files: BTreeMap<String, &String> =
            self.files.iter().map(|(name, text)| (format!("{WORKDIR}/{name}"), text)).collect();
        let setup =
            format!("set -e\nmkdir -p {WORKDIR}\ncd {WORKDIR}\n{}", self.setup.as_deref().unwrap_or(""));
        let mut tests = json!({ "script": format!("set -e\n{}", self.tests), "timeout": TESTS_TIMEOUT });
        if let Some(ground) = &self.ground {
            tests["in"] = Value::from(ground.as_str());
        }
        let line = json!({
            "id": format!("shell-{}", self.id),
            "instruction": self.instruction,
            "environment": "shell",
            "tags": self.tags,
            "sandbox": { "workdir": WORKDIR, "files": files, "setup": setup },
            "private": { "reference": { "script": self.reference }, "tests": tests },
        })
        .to_string();
        Task::parse(&line).map_err(|error| format!("{}: {error}", self.id))?;
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_twenty_tasks_are_tasks_and_differ() {
        let lines = lines(include_str!("../../../experiments/tasks/shell.toml")).unwrap();
        assert_eq!(lines.len(), 20);
        let ids: std::collections::BTreeSet<String> =
            lines.iter().map(|line| Task::parse(line).unwrap().id.to_string()).collect();
        assert_eq!(ids.len(), 20);
    }

    #[test]
    fn a_task_that_is_none_is_named() {
        let text = "[[task]]\nid = \"a\"\ninstruction = \" \"\nreference = \"\"\ntests = \"\"\n";
        assert_eq!(lines(text).unwrap_err(), "a: instruction is empty");
        assert!(lines("[[task]]\nname = 1").unwrap_err().contains("unknown field `name`"));
    }
}
