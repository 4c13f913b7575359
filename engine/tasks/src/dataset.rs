//! Published sets of tasks, as tasks of ours: SWE-bench and its kin row by row, Harbor folder by folder, tasks on websites, and
//! MiniWoB++. Whoever calls reads the files. How hidden tests are run and graded: docs/grading.md.

mod commands;
mod harbor;
mod miniwob;
mod rows;
mod swe;
mod web;

pub use harbor::{HarborOptions, harbor_task};
pub use miniwob::{SEEDS_MAX, miniwob_tasks};
pub use web::{Answers, WebOptions, WebSet, read_web};

use serde_json::Value;

/// A published form of software tasks whose records are rows of JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// SWE-bench, Lite, Verified and Multilingual among it.
    SweBench,
    /// SWE-rebench, its first version.
    SweRebench,
    /// SWE-rebench V2: several languages, real lists.
    SweRebenchV2,
    /// SWE-Gym and SWE-Gym Lite.
    SweGym,
}

impl Format {
    /// Every form with its name on the command line.
    pub const ALL: [(&str, Format); 4] = [
        ("swe-bench", Format::SweBench),
        ("swe-rebench", Format::SweRebench),
        ("swe-rebench-v2", Format::SweRebenchV2),
        ("swe-gym", Format::SweGym),
    ];

    /// By its name.
    pub fn from_name(name: &str) -> Option<Format> {
        Format::ALL.iter().find(|(known, _)| *known == name).map(|(_, format)| *format)
    }
}

/// What the user says over what a set says.
#[derive(Clone, Debug, Default)]
pub struct RowOptions {
    /// Image of every task; `{id}` stands for the instance's id as image names hold it. `None`: what the set publishes.
    pub image: Option<String>,
    /// Command that runs the tests; `{files}` stands for the test files of the instance.
    pub command: Option<String>,
    /// How its output is read.
    pub parser: Option<String>,
    /// Whether pytest runs with the guard of `tests-reward`; published images hold versions of pytest that it does not know.
    pub guard: bool,
}

/// A record that is not a task.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("record {record}{}: {problem}", .id.as_ref().map(|id| format!(" ({id})")).unwrap_or_default())]
pub struct DatasetError {
    /// From 1; of lines, the line.
    pub record: usize,
    /// The record's own name, where it could be read.
    pub id: Option<String>,
    /// Which key, what it is, and what would do.
    pub problem: String,
}

/// Reads rows, as JSON lines or one JSON array; each becomes a line of a task file, or says what is wrong with it.
pub fn read<'a>(
    format: Format,
    text: &'a str,
    options: &'a RowOptions,
) -> impl Iterator<Item = Result<String, DatasetError>> + 'a {
    rows::rows(text).map(move |(record, row)| {
        let mut id = None;
        let task = row.and_then(|row| {
            id = row.name("instance_id");
            swe::task(format, &row, options)
        });
        task.and_then(|task| checked(&task)).map_err(|problem| DatasetError { record, id, problem })
    })
}

/// A task's line, if the engine takes it.
pub(crate) fn checked(task: &Value) -> Result<String, String> {
    let line = task.to_string();
    espalier_core::task::Task::parse(&line).map_err(|error| format!("it is not a valid task: {error}"))?;
    Ok(line)
}

/// A value in an error, cut to what a line holds.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    let mut letters = text.chars();
    let start: String = letters.by_ref().take(60).collect();
    if letters.next().is_some() { format!("{start}...") } else { start }
}

#[cfg(test)]
mod tests;
