//! A whole log: the part between the marks that an evaluation script prints, and what makes a log invalid.

use crate::{Kind, Results, parse};

/// What an evaluation script prints around and behind the tests' output.
pub mod marks {
    /// Before the first line of the tests.
    pub const START: &str = ">>>>> Start Test Output";
    /// Behind the last one.
    pub const END: &str = ">>>>> End Test Output";
    /// The exit code of the tests' command: `>>>>> Test Exit Code: 1`.
    pub const EXIT_CODE: &str = ">>>>> Test Exit Code";
    /// The change does not apply.
    pub const PATCH_FAILED: &str = ">>>>> Patch Apply Failed";
    /// The tests' files could not be put back.
    pub const RESET_FAILED: &str = ">>>>> Reset Failed";
    /// The tests could not be run.
    pub const TESTS_ERRORED: &str = ">>>>> Tests Errored";
    /// The tests took too long.
    pub const TESTS_TIMED_OUT: &str = ">>>>> Tests Timed Out";
}

/// Why a log says nothing of any test. Such a run scores 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// It says so itself, by this mark.
    Marked(&'static str),
    /// A mark around the tests' output is missing.
    NoMarks,
    /// No test was reported.
    NoTests,
    /// The tests' command ended with this code, and no test that failed was reported.
    ExitCode(i32),
}

impl std::fmt::Display for Invalid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Invalid::Marked(mark) => write!(f, "the log contains `{mark}`"),
            Invalid::NoMarks => write!(f, "the log does not mark the start and end of the test output"),
            Invalid::NoTests => write!(f, "no test was reported"),
            Invalid::ExitCode(code) => write!(f, "exit code {code}, and no test that failed was reported"),
        }
    }
}

/// What a log says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// The tests.
    pub results: Results,
    /// Of the tests' command, where the log tells it.
    pub exit_code: Option<i32>,
}

/// Reads a log with marks: the tests between them, or, where none is found there, in all of it.
pub fn read_log(kind: Kind, text: &str) -> Result<Log, Invalid> {
    let bad = [marks::PATCH_FAILED, marks::RESET_FAILED, marks::TESTS_ERRORED, marks::TESTS_TIMED_OUT];
    if let Some(mark) = bad.into_iter().find(|mark| text.contains(mark)) {
        return Err(Invalid::Marked(mark));
    }
    if !text.contains(marks::END) {
        return Err(Invalid::NoMarks);
    }
    let (_, inner) = text.split_once(marks::START).ok_or(Invalid::NoMarks)?;
    let inner = inner.split(marks::START).next().unwrap_or_default();
    let inner = inner.split(marks::END).next().unwrap_or_default();
    let mut results = parse(kind, inner);
    if results.tests.is_empty() {
        results = parse(kind, text);
    }
    let exit_code = exit_code(text);
    agrees(&results, exit_code)?;
    Ok(Log { results, exit_code })
}

/// Whether tests and exit code can both be true.
pub(crate) fn agrees(results: &Results, exit_code: Option<i32>) -> Result<(), Invalid> {
    if results.tests.is_empty() {
        return Err(Invalid::NoTests);
    }
    match exit_code {
        Some(code) if code != 0 && !results.has_failure() => Err(Invalid::ExitCode(code)),
        _ => Ok(()),
    }
}

fn exit_code(text: &str) -> Option<i32> {
    text.match_indices(marks::EXIT_CODE).find_map(|(at, mark)| {
        let rest = text[at + mark.len()..].strip_prefix(':')?.trim_start();
        let minus = usize::from(rest.starts_with('-'));
        let digits = rest[minus..].bytes().take_while(u8::is_ascii_digit).take(10).count();
        rest[..minus + digits].parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text_of;

    #[test]
    fn what_stands_between_the_marks_counts() {
        let read =
            |log: &str| read_log(Kind::SwebenchPytest, log).map(|log| (text_of(&log.results), log.exit_code));
        let fine =
            |log: &str, tests: &str, code| assert_eq!(read(log), Ok((tests.to_owned(), code)), "{log}");
        let (start, end) = (marks::START, marks::END);
        fine(&format!("PASSED z\n{start}\nPASSED a\n{end}\nPASSED y\n"), "PASSED a", None);
        fine(&format!("PASSED z\n{start}\n{end}\n"), "PASSED z", None);
        fine(&format!("{start}\nFAILED a\n{end}\n>>>>> Test Exit Code: 1"), "FAILED a", Some(1));
        fine(&format!("{start}\nPASSED a\n{start}\nPASSED b\n{end}"), "PASSED a", None);
        let bad = |log: &str, why: Invalid| assert_eq!(read(log), Err(why), "{log}");
        bad("PASSED a", Invalid::NoMarks);
        bad(&format!("{end}\n{end}"), Invalid::NoMarks);
        bad(&format!("{start}\n{end}"), Invalid::NoTests);
        bad(&format!("{start}\nPASSED a\n{end}\n>>>>> Test Exit Code:  2"), Invalid::ExitCode(2));
        bad(
            &format!("{start}\nPASSED a\n{end}\n>>>>> Tests Timed Out"),
            Invalid::Marked(marks::TESTS_TIMED_OUT),
        );
        assert_eq!(exit_code(">>>>> Test Exit Code: x >>>>> Test Exit Code: -9"), Some(-9));
    }
}
