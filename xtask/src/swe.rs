//! The software tasks: made once, then solved by their references, by nobody, and by a small model; and looked through for what
//! they keep private.

use crate::everyday;
use crate::place::{self, root};
use crate::shell::{openly, quietly, say};
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};

/// What a set has to have, at the least.
const TASKS_MIN: usize = 30;
/// The same, of libraries.
const LIBRARIES_MIN: usize = 15;
/// The task file, from the repository's root.
const TASKS: &str = "tasks/swe.jsonl";
/// Runs of the table, with what each has to come to.
const RUNS: [(&str, Option<f64>); 3] = [("swe-reference", Some(1.0)), ("swe-idle", Some(0.0)), ("swe", None)];

/// Builds, makes the tasks, runs them, and prints a table by library.
pub fn demo() -> Result<(), String> {
    everyday::build()?;
    tasks()?;
    for (name, _) in RUNS {
        openly(&mut espalier(&["run", &format!("experiments/{name}.toml")]))?;
    }
    let ids = table()?;
    say("looking for hidden tests and reference patches in every sandbox (20 seconds each)");
    read_programs();
    openly(&mut espalier(&["run", "experiments/swe-leaks.toml"]))?;
    // A harness that finds one fails, and its group with it.
    let leaks = rewards("swe-leaks")?;
    let found: Vec<&String> = ids.iter().filter(|id| !leaks.contains_key(*id)).collect();
    if !found.is_empty() {
        let ids: Vec<&str> = found.iter().map(|id| id.as_str()).collect();
        return Err(format!(
            "private text was found, or could not be searched for, in {} (espalier show swe-leaks)",
            ids.join(", ")
        ));
    }
    say(&format!("{} sandboxes contain nothing of the hidden tests and patches of their tasks", ids.len()));
    Ok(())
}

/// Reads this machine's programs once. What a sandbox reads counts to its own memory, so that each would have to read them from the
/// disk again; what is in the machine's cache already is anybody's. That makes the search ten times as fast.
fn read_programs() {
    let mut find = Command::new("find");
    find.args(["/usr", "-xdev", "-type", "f", "-exec", "cat", "{}", "+"]);
    // Only speed depends on it.
    let _ = find.stdout(Stdio::null()).stderr(Stdio::null()).status();
}

/// The task file; what was made before is not made again. A pair that makes none is reported, and is not an error as long as enough do.
fn tasks() -> Result<(), String> {
    say("making software tasks (the first time about 15 minutes, mostly their tests; then seconds)");
    let file = root().join(TASKS);
    let made = ["task", "from-manifest", "experiments/tasks/swe.toml", "--out", TASKS];
    let status = espalier(&made).status().map_err(|error| format!("espalier: {error}"))?;
    if !matches!(status.code(), Some(0 | 1)) {
        return Err(format!("espalier {}: {status}", made.join(" ")));
    }
    let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let libraries: std::collections::BTreeSet<String> =
        text.lines().map(library_of).collect::<Result<_, _>>()?;
    if text.lines().count() < TASKS_MIN || libraries.len() < LIBRARIES_MIN {
        let (tasks, libraries) = (text.lines().count(), libraries.len());
        return Err(format!(
            "{tasks} tasks of {libraries} libraries, expected {TASKS_MIN} of {LIBRARIES_MIN}"
        ));
    }
    Ok(())
}

fn library_of(line: &str) -> Result<String, String> {
    let task: Value = serde_json::from_str(line).map_err(|error| format!("{TASKS}: {error}"))?;
    Ok(task["environment"].as_str().unwrap_or_default().to_owned())
}

fn espalier(arguments: &[&str]) -> Command {
    let mut command = Command::new(place::binary());
    command.current_dir(root()).args(arguments);
    command
}

/// Mean reward of each task's group in the newest run of that name; groups without a reward are not in it.
fn rewards(name: &str) -> Result<BTreeMap<String, f64>, String> {
    let text = quietly(&mut espalier(&["show", name, "--json", "--all"]))?;
    let run: Value = serde_json::from_str(&text).map_err(|error| format!("espalier show {name}: {error}"))?;
    let mut rewards = BTreeMap::new();
    for group in run["group_list"].as_array().into_iter().flatten() {
        let attempts = group["attempts"].as_array().into_iter().flatten();
        let scores: Vec<f64> = attempts.filter_map(|attempt| attempt["reward"].as_f64()).collect();
        if let (Some(id), false) = (group["task_id"].as_str(), scores.is_empty()) {
            rewards.insert(id.to_owned(), scores.iter().sum::<f64>() / scores.len() as f64);
        }
    }
    Ok(rewards)
}

/// Prints it; what is not as it has to be is an error. The tasks' ids.
fn table() -> Result<Vec<String>, String> {
    let file = root().join(TASKS);
    let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let runs: Vec<BTreeMap<String, f64>> =
        RUNS.iter().map(|(name, _)| rewards(name)).collect::<Result<_, _>>()?;
    let mut tasks: Vec<(String, String)> = Vec::new();
    for line in text.lines() {
        let task: Value = serde_json::from_str(line).map_err(|error| format!("{TASKS}: {error}"))?;
        tasks.push((library_of(line)?, task["id"].as_str().unwrap_or_default().to_owned()));
    }
    for line in lines(&tasks, &runs) {
        println!("{line}");
    }
    for ((name, wanted), run) in RUNS.iter().zip(&runs) {
        let wrong = |id: &String| wanted.is_some_and(|wanted| run.get(id) != Some(&wanted));
        let wrong: Vec<&str> =
            tasks.iter().map(|(_, id)| id).filter(|id| wrong(id)).map(String::as_str).collect();
        if !wrong.is_empty() {
            return Err(format!("{name}: unexpected result: {} (espalier show {name})", wrong.join(", ")));
        }
    }
    Ok(tasks.into_iter().map(|(_, id)| id).collect())
}

/// A row for each library, and one for all: solved of tasks in each run.
fn lines(tasks: &[(String, String)], runs: &[BTreeMap<String, f64>]) -> Vec<String> {
    let mut libraries: Vec<&str> = Vec::new();
    for (library, _) in tasks {
        if !libraries.contains(&library.as_str()) {
            libraries.push(library);
        }
    }
    let row = |name: &str, ids: &[&String]| {
        let solved = runs.iter().map(|run| {
            let solved = ids.iter().filter(|id| run.get(**id).is_some_and(|reward| *reward >= 1.0)).count();
            format!("{:>11}", format!("{solved} of {}", ids.len()))
        });
        format!("{name:<18}{:>6}{}", ids.len(), solved.collect::<String>())
    };
    let head = format!("{:<18}{:>6}{:>11}{:>11}{:>11}", "library", "tasks", "reference", "idle", "model");
    let of =
        |library: &str| tasks.iter().filter(|(one, _)| one == library).map(|(_, id)| id).collect::<Vec<_>>();
    let mut lines = vec![head];
    lines.extend(libraries.iter().map(|library| row(library, &of(library))));
    let all: Vec<&String> = tasks.iter().map(|(_, id)| id).collect();
    lines.push(row(&format!("{} libraries", libraries.len()), &all));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_counts_by_library() {
        let task = |library: &str, id: &str| (library.to_owned(), id.to_owned());
        let tasks = [task("b", "b-1"), task("a", "a-1"), task("b", "b-2")];
        let run = |rewards: &[(&str, f64)]| {
            rewards.iter().map(|(id, reward)| ((*id).to_owned(), *reward)).collect()
        };
        let runs = [
            run(&[("a-1", 1.0), ("b-1", 1.0), ("b-2", 1.0)]),
            run(&[("a-1", 0.0)]),
            run(&[("b-1", 1.0), ("b-2", 0.5)]),
        ];
        assert_eq!(
            lines(&tasks, &runs),
            [
                "library            tasks  reference       idle      model",
                "b                      2     2 of 2     0 of 2     1 of 2",
                "a                      1     1 of 1     0 of 1     0 of 1",
                "2 libraries            3     3 of 3     0 of 3     1 of 3",
            ]
        );
    }
}
