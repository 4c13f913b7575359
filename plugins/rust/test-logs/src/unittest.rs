//! unittest with `-v`: `test_a (pkg.Class) ... ok`, since 3.11 `test_a (pkg.Class.test_a) ... ok`, a docstring on a second line,
//! output between `...` and the outcome, and the headers of what failed.

use crate::text::{around_last, lines};
use crate::{Results, Status};

pub(crate) fn parse(text: &str) -> Results {
    let mut results = Results::default();
    let mut pending: Option<String> = None;
    for line in lines(text) {
        let line = line.trim();
        if let Some((name, status)) = header(line) {
            results.worst(&name, status);
            continue;
        }
        if let Some((left, right)) = dots(line) {
            // A docstring's own line belongs to the test named before it.
            pending = head(left).or(pending);
            if let (Some(name), Some(status)) = (&pending, outcome(right)) {
                results.worst(name, status);
                pending = None;
            }
        } else if let (Some(name), Some(status)) = (&pending, outcome(line)) {
            results.worst(name, status);
            pending = None;
        } else if let Some(name) = head(line) {
            pending = Some(name);
        }
    }
    results
}

/// What stands before the dots and behind them: the first where an outcome follows, else the last.
fn dots(line: &str) -> Option<(&str, &str)> {
    if let Some(left) = line.strip_suffix(" ...") {
        return Some((left, ""));
    }
    line.split_once(" ... ")
        .filter(|(_, right)| outcome(right).is_some())
        .or_else(|| around_last(line, " ... "))
}

/// `module.Class.test` of `test (module.Class)`, whatever stands behind.
fn head(text: &str) -> Option<String> {
    let (test, rest) = text.split_once(" (")?;
    let (path, _) = rest.split_once(')')?;
    let name = |text: &str| !text.is_empty() && !text.contains([' ', '(', '"', '\'']);
    if !name(test) || !name(path) {
        return None;
    }
    let repeats = path.strip_suffix(test).is_some_and(|before| before.ends_with('.'));
    Some(if repeats { path.to_owned() } else { format!("{path}.{test}") })
}

fn outcome(text: &str) -> Option<Status> {
    match text.trim() {
        "ok" => Some(Status::Passed),
        "FAIL" => Some(Status::Failed),
        "ERROR" => Some(Status::Error),
        "expected failure" => Some(Status::XFail),
        "unexpected success" => Some(Status::XPass),
        text if text == "skipped" || text.starts_with("skipped ") => Some(Status::Skipped),
        _ => None,
    }
}

/// `FAIL: test_a (pkg.Class)`, `ERROR: setUpClass (pkg.Class)`.
fn header(line: &str) -> Option<(String, Status)> {
    let marks = [("FAIL: ", Status::Failed), ("ERROR: ", Status::Error)];
    let (rest, status) = marks.iter().find_map(|(mark, status)| Some((line.strip_prefix(mark)?, *status)))?;
    Some((head(rest)?, status))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text_of;

    #[test]
    fn names_are_the_same_in_every_version() {
        let check = |log: &str, expect: &str| assert_eq!(text_of(&parse(log)), expect, "{log}");
        check("test_a (m.C) ... ok\ntest_b (m.C.test_b) ... FAIL", "PASSED m.C.test_a, FAILED m.C.test_b");
        check("test_a (m.C.test_a)\nWhat it does. ... ok", "PASSED m.C.test_a");
        check("test_a (m.C) ... skipped 'no ... thing'", "SKIPPED m.C.test_a");
        check(
            "test_a (m.C) ... skipped 'no thing'\ntest_b (m.C) ... skipped",
            "SKIPPED m.C.test_a, SKIPPED m.C.test_b",
        );
        check(
            "test_a (m.C) ... expected failure\ntest_b (m.C) ... unexpected success",
            "XFAIL m.C.test_a, XPASS m.C.test_b",
        );
        check("test_a (m.C) ... hello\nok\nok", "PASSED m.C.test_a");
        check("ok\ntest_a (m.C)\nok", "PASSED m.C.test_a");
        check("test_a (m.C) ... ok\nERROR: test_a (m.C)", "ERROR m.C.test_a");
        check("FAIL: test_a (m.C.test_a) (i=1)", "FAILED m.C.test_a");
        check("ERROR: setUpClass (m.C)", "ERROR m.C.setUpClass");
        check("ERROR: m (unittest.loader._FailedTest.m)", "ERROR unittest.loader._FailedTest.m");
        check("called (with this thing) ... ok", "");
    }
}
