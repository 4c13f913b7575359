//! What a test run printed, or wrote down, as tests with their status; and the grade that follows from it.
//!
//! [`parse`] reads the output of one runner, [`read_log`] a whole log with its marks, [`grade`] compares with what a task
//! expects. Texts may be long and hostile: everything is read line by line, once, with bounds on lines, names and tests. Nothing
//! here decides whether a text can be trusted: that is the work of whoever ran the tests.

mod cargo;
mod django;
mod go;
mod grade;
mod jest;
mod junit;
mod log;
mod pytest;
mod swebench;
mod tap;
mod text;
mod unittest;

pub use grade::{Expected, Grade, Resolution, Share, grade};
pub use log::{Invalid, Log, marks, read_log};

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Most tests of one run; more are counted and left out.
pub const TESTS_MAX: usize = 500_000;
/// Longest name of a test, in bytes; a longer one is left out.
pub const NAME_BYTES_MAX: usize = 8 << 10;
/// Longest line that is looked at, in bytes.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Status {
    /// It passed.
    Passed,
    /// It failed as it was expected to.
    XFail,
    /// It was not run.
    Skipped,
    /// It passed though it was expected to fail.
    XPass,
    /// It, its set-up or its collection broke.
    Error,
    /// It failed.
    Failed,
}

impl Status {
    /// Whether a test that has to pass has passed.
    pub fn is_pass(self) -> bool {
        matches!(self, Status::Passed | Status::XFail)
    }

    /// Whether it says that something is wrong.
    pub fn is_failure(self) -> bool {
        matches!(self, Status::Failed | Status::Error)
    }
}

/// A form of output. The names of tests are those that the form gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// pytest's lines of `-v` and of its summary (`-rA`), also with xdist. Names are node ids.
    Pytest,
    /// unittest's lines of `-v`. Names are `module.Class.test`.
    Unittest,
    /// Django's runner with `--verbosity 2`. Names are what stands before ` ... `, as in published data sets.
    Django,
    /// `go test -v`, names as printed; or `go test -json`, names are `package.Test`.
    GoTest,
    /// `cargo test`.
    CargoTest,
    /// Jest's lines of `--verbose`, or its report of `--json`. Names are titles joined by ` > `.
    Jest,
    /// JUnit XML. Names are node ids where pytest wrote it with `junit_family=xunit1`, else `classname.name`.
    JunitXml,
    /// The Test Anything Protocol. Names are descriptions.
    Tap,
    /// As SWE-bench reads most Python projects: names end at the first blank.
    SwebenchPytest,
    /// The same, with paths in parameters cut to their last part.
    SwebenchPytestOptions,
    /// As SWE-bench reads astropy, scikit-learn and sphinx: names with blanks.
    SwebenchPytestV2,
    /// As SWE-bench reads matplotlib: two names of buttons are numbers.
    SwebenchMatplotlib,
    /// As SWE-bench reads seaborn.
    SwebenchSeaborn,
    /// As SWE-bench reads sympy's own runner.
    SwebenchSympy,
    /// As SWE-bench reads `go test -v`: of equal names the last counts.
    SwebenchGoTest,
    /// As SWE-bench reads `cargo test`: names without blanks, ignored tests missing, of equal names the last counts.
    SwebenchCargoTest,
    /// As SWE-bench reads Jest: names without the suites around them.
    SwebenchJest,
    /// As SWE-bench reads Vitest's verbose lines.
    SwebenchVitest,
    /// As SWE-bench reads TAP: descriptions with dash and directive.
    SwebenchTap,
}

impl Kind {
    /// Every kind, in order.
    pub const ALL: [Kind; 19] = [
        Kind::Pytest,
        Kind::Unittest,
        Kind::Django,
        Kind::GoTest,
        Kind::CargoTest,
        Kind::Jest,
        Kind::JunitXml,
        Kind::Tap,
        Kind::SwebenchPytest,
        Kind::SwebenchPytestOptions,
        Kind::SwebenchPytestV2,
        Kind::SwebenchMatplotlib,
        Kind::SwebenchSeaborn,
        Kind::SwebenchSympy,
        Kind::SwebenchGoTest,
        Kind::SwebenchCargoTest,
        Kind::SwebenchJest,
        Kind::SwebenchVitest,
        Kind::SwebenchTap,
    ];

    /// By its own name, like `go-test`.
    pub fn from_name(name: &str) -> Option<Kind> {
        serde_json::from_value(serde_json::Value::String(name.to_owned())).ok()
    }

    /// Its own name.
    pub fn name(self) -> String {
        serde_json::to_value(self)
            .ok()
            .and_then(|value| value.as_str().map(str::to_owned))
            .unwrap_or_default()
    }

    /// Whether its output is made by pytest, so that pytest's report can be held against it.
    pub fn is_pytest(self) -> bool {
        matches!(
            self,
            Kind::Pytest
                | Kind::SwebenchPytest
                | Kind::SwebenchPytestOptions
                | Kind::SwebenchPytestV2
                | Kind::SwebenchMatplotlib
                | Kind::SwebenchSeaborn
        )
    }

    /// What this form calls a test that pytest's report calls by its node id.
    pub fn name_of_node(self, node: &str) -> String {
        swebench::name_of_node(self, node)
    }
}

/// Tests with their status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Results {
    /// By name.
    pub tests: BTreeMap<String, Status>,
    /// Tests that were beyond a bound.
    pub left_out: u64,
}

impl<const N: usize> From<[(&str, Status); N]> for Results {
    fn from(tests: [(&str, Status); N]) -> Results {
        let tests = tests.into_iter().map(|(name, status)| (name.to_owned(), status)).collect();
        Results { tests, left_out: 0 }
    }
}

impl Results {
    /// The status of a test; of several under one name the last counts.
    fn set(&mut self, name: &str, status: Status) {
        self.put(name, status, |_, new| new);
    }

    /// The status of a test; of several under one name the worst counts.
    fn worst(&mut self, name: &str, status: Status) {
        self.put(name, status, Ord::max);
    }

    fn put(&mut self, name: &str, status: Status, choose: impl Fn(Status, Status) -> Status) {
        if name.len() > NAME_BYTES_MAX {
            self.left_out += 1;
        } else if let Some(old) = self.tests.get_mut(name) {
            *old = choose(*old, status);
        } else if self.tests.len() == TESTS_MAX {
            self.left_out += 1;
        } else {
            self.tests.insert(name.to_owned(), status);
        }
    }

    /// Takes the other's tests in; of two under one name the worse counts.
    pub fn merge(&mut self, other: Results) {
        self.left_out += other.left_out;
        for (name, status) in other.tests {
            match self.tests.entry(name) {
                Entry::Occupied(mut old) => {
                    let worse = (*old.get()).max(status);
                    old.insert(worse);
                }
                Entry::Vacant(place) => {
                    place.insert(status);
                }
            }
        }
    }

    /// Whether any test failed.
    pub fn has_failure(&self) -> bool {
        self.tests.values().any(|status| status.is_failure())
    }
}

/// The tests in an output of this form.
pub fn parse(kind: Kind, text: &str) -> Results {
    match kind {
        Kind::Pytest => pytest::parse(text),
        Kind::Unittest => unittest::parse(text),
        Kind::Django => django::parse(text),
        Kind::GoTest => go::parse(text),
        Kind::CargoTest => cargo::parse(text),
        Kind::Jest => jest::parse(text),
        Kind::JunitXml => junit::parse(text),
        Kind::Tap => tap::parse(text),
        Kind::SwebenchPytest => swebench::pytest(text),
        Kind::SwebenchPytestOptions => swebench::pytest_options(text),
        Kind::SwebenchPytestV2 => swebench::pytest_v2(text),
        Kind::SwebenchMatplotlib => swebench::matplotlib(text),
        Kind::SwebenchSeaborn => swebench::seaborn(text),
        Kind::SwebenchSympy => swebench::sympy(text),
        Kind::SwebenchGoTest => swebench::go(text),
        Kind::SwebenchCargoTest => swebench::cargo(text),
        Kind::SwebenchJest => swebench::jest(text),
        Kind::SwebenchVitest => swebench::vitest(text),
        Kind::SwebenchTap => swebench::tap(text),
    }
}

/// Tests with their status, as a line, for tests.
#[cfg(test)]
fn text_of(results: &Results) -> String {
    let mut tests: Vec<_> = results.tests.iter().collect();
    tests.sort_by_key(|(name, status)| (**status != Status::Passed, (*name).clone()));
    let word = |status: &Status| serde_json::to_value(status).unwrap().as_str().unwrap().to_owned();
    tests.iter().map(|(name, status)| format!("{} {name}", word(status))).collect::<Vec<_>>().join(", ")
}
