//! Django's runner: unittest's lines, named by whatever stands before ` ... `, docstrings included: so published data sets name
//! them. Of several outcomes of one name the last counts.

use crate::text::raw_lines;
use crate::{Results, Status};

/// A name that Django's own suite prints over two lines.
const VERSION: &str = "--version is equivalent to version";
/// A migration that prints its progress before the name of a test.
const MIGRATION: &str = "Applying sites.0002_alter_domain_unique...test_no_migrations";
const INSTALLED: &str = " ... Testing against Django installed in ";

pub(crate) fn parse(text: &str) -> Results {
    let mut results = Results::default();
    let mut before: Option<String> = None;
    for line in raw_lines(text) {
        let mut line = line.trim();
        if line.contains(VERSION) {
            results.set(VERSION, Status::Passed);
        }
        if let Some((test, _)) = line.split_once(" ... ") {
            before = Some(test.to_owned());
        }
        let passed = [" ... ok", " ... OK", " ...  OK"];
        if let Some(suffix) = passed.iter().find(|suffix| line.ends_with(**suffix)) {
            if line.starts_with(MIGRATION) {
                line = line.split_once("...").map_or(line, |(_, test)| test.trim());
            }
            results.set(line.strip_suffix(suffix).unwrap_or(line), Status::Passed);
        }
        if let Some((test, _)) = line.split_once(" ... skipped") {
            results.set(test, Status::Skipped);
        }
        for (word, status) in [("FAIL", Status::Failed), ("ERROR", Status::Error)] {
            let mark = format!(" ... {word}");
            if let Some((test, _)) = line.split_once(&mark).filter(|_| line.ends_with(&mark)) {
                results.set(test, status);
            }
            let header = line.strip_prefix(word).is_some_and(|rest| rest.starts_with(':'));
            if let Some(test) = line.split_whitespace().nth(1).filter(|_| header) {
                results.set(test, status);
            }
        }
        if let Some(test) = before.as_ref().filter(|_| line.starts_with("ok")) {
            results.set(test, Status::Passed);
        }
    }
    interrupted(text, &mut results);
    results
}

/// Tests whose outcome comes after a message of several lines, ending with `silenced).` and then `ok`.
fn interrupted(text: &str, results: &mut Results) {
    let mut open: Option<&str> = None;
    let mut silenced = false;
    for line in raw_lines(text) {
        match open {
            Some(test) if silenced && line == "ok" => {
                results.set(test, Status::Passed);
                open = None;
            }
            None => open = line.split_once(INSTALLED).map(|(test, _)| test),
            Some(_) => {}
        }
        silenced = open.is_some() && line.ends_with(" silenced).");
    }
    for test in direct(text) {
        results.set(test, Status::Passed);
    }
}

/// Tests whose line ends in a known message and whose next line is `ok`.
fn direct(text: &str) -> impl Iterator<Item = &str> {
    raw_lines(text).zip(raw_lines(text).skip(1)).filter(|(_, next)| *next == "ok").filter_map(|(line, _)| {
        let request = || line.strip_suffix('/')?.split_once(" ... Internal Server Error: /");
        let check = || {
            line.split_once(" ... System check identified no issues (0 silenced)")
                .filter(|(_, rest)| rest.is_empty())
        };
        request().or_else(check).map(|(test, _)| test)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text_of;

    #[test]
    fn names_are_what_stands_before_the_dots() {
        let check = |log: &str, expect: &str| assert_eq!(text_of(&parse(log)), expect, "{log}");
        check("test_a (m.C) ... ok\nWhat it does. ... FAIL", "PASSED test_a (m.C), FAILED What it does.");
        check(
            "test_a (m.C) ... skipped 'x'\ntest_b (m.C) ... ERROR",
            "SKIPPED test_a (m.C), ERROR test_b (m.C)",
        );
        check("test_a (m.C) ... noise\nok", "PASSED test_a (m.C)");
        check("FAIL: test_a (m.C)\nERROR: test_b", "FAILED test_a, ERROR test_b");
        check("FAIL:", "");
        check(
            "test_a (m.C) ... Testing against Django installed in 'x' with up to 2 processes\nb ... c\nchecks (0 silenced).\nok",
            "PASSED b, PASSED test_a (m.C)",
        );
        check(
            "  test_a (m.C) ... Internal Server Error: /x/\nok",
            "PASSED   test_a (m.C), PASSED test_a (m.C)",
        );
        check(
            "Applying sites.0002_alter_domain_unique...test_no_migrations (m.C) ... ok",
            "PASSED test_no_migrations (m.C)",
        );
    }
}
