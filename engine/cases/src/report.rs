//! What came of cases: problems by key of the case file, and what the plugin called and returned.

use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

/// What came of the cases of a plugin.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// In the order of their names.
    pub cases: Vec<CaseReport>,
}

/// What came of one case.
#[derive(Clone, Debug)]
pub struct CaseReport {
    /// Its name.
    pub name: String,
    /// Its file.
    pub path: PathBuf,
    /// Why it could not be run: its file must be changed.
    pub refused: Option<String>,
    /// What was not as the case says; empty: it passed.
    pub problems: Vec<Problem>,
    /// What the plugin logged, a line each with its level.
    pub logs: Vec<String>,
    /// Its calls to the host, in order.
    pub calls: Vec<CallTrace>,
    /// What it returned, or how it failed.
    pub result: Value,
    /// How long it took.
    pub took: Duration,
}

/// One call of a plugin to the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallTrace {
    /// `conversation.complete` ...
    pub name: String,
    /// Digest of what was asked.
    pub asked: String,
    /// Digest of what was told.
    pub told: String,
}

/// One thing that is not as the case says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The key of the case file: `expect.report`, `models.policy[1].said`.
    pub key: String,
    /// What is wrong, in a sentence.
    pub text: String,
    /// Expected and found, line by line.
    pub diff: Vec<DiffLine>,
}

/// One line of a difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiffLine {
    /// Whose it is.
    pub change: Change,
    /// The line.
    pub text: String,
}

/// Whose a line of a difference is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Both have it.
    Same,
    /// Expected, and not there.
    Expected,
    /// There, and not expected.
    Found,
}

impl Problem {
    /// One without a difference to show.
    pub fn new(key: impl Into<String>, text: impl Into<String>) -> Problem {
        Problem { key: key.into(), text: text.into(), diff: Vec::new() }
    }
}

impl Report {
    /// Cases that passed.
    pub fn passed(&self) -> usize {
        self.cases.iter().filter(|case| case.passed()).count()
    }

    /// Cases that did not.
    pub fn failed(&self) -> usize {
        self.cases.len() - self.passed()
    }

    /// What another run of the same cases did otherwise, a sentence each; empty: the plugin is deterministic in them.
    pub fn differences(&self, other: &Report) -> Vec<String> {
        let pairs = self.cases.iter().zip(&other.cases);
        pairs
            .filter_map(|(one, other)| Some(format!("case {}: {}", one.name, one.difference(other)?)))
            .collect()
    }
}

impl CaseReport {
    /// Whether all was as the case says.
    pub fn passed(&self) -> bool {
        self.refused.is_none() && self.problems.is_empty()
    }

    /// Where another run of it went another way.
    fn difference(&self, other: &CaseReport) -> Option<String> {
        for (number, (one, again)) in self.calls.iter().zip(&other.calls).enumerate() {
            if one.name != again.name {
                return Some(format!("call {number} was {}, then {}", one.name, again.name));
            }
            if one.asked != again.asked {
                return Some(format!("call {number}, {}, had other arguments", one.name));
            }
            if one.told != again.told {
                return Some(format!("call {number}, {}, was answered otherwise", one.name));
            }
        }
        if self.calls.len() != other.calls.len() {
            return Some(format!("it made {} calls, then {}", self.calls.len(), other.calls.len()));
        }
        (self.result != other.result).then(|| format!("it returned {}, then {}", self.result, other.result))
    }
}
