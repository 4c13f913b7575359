//! pytest: lines of `-v`, with and without xdist, and the short summary of `-rA`.
//!
//! Node ids may hold blanks, ` - ` and brackets. A line of `-v` gives the id as it is; in the summary a message may follow, so an
//! id that is known from `-v` wins, and otherwise the message begins at the first ` - ` outside of brackets.

use crate::text::{around_last, lines};
use crate::{Results, Status};

const WORDS: [(&str, Status); 6] = [
    ("PASSED", Status::Passed),
    ("FAILED", Status::Failed),
    ("ERROR", Status::Error),
    ("SKIPPED", Status::Skipped),
    ("XFAIL", Status::XFail),
    ("XPASS", Status::XPass),
];

pub(crate) fn parse(text: &str) -> Results {
    let mut verbose = Results::default();
    let mut summary: Vec<(Status, String)> = Vec::new();
    let mut in_summary = false;
    for line in lines(text) {
        let line = line.trim_end();
        if let Some(title) = ruled(line) {
            in_summary = title == "short test summary info";
        } else if in_summary {
            if let Some((status, rest)) = summary_line(line) {
                if summary.len() < crate::TESTS_MAX {
                    summary.push((status, rest.to_owned()));
                } else {
                    verbose.left_out += 1;
                }
            }
        } else if let Some((id, status)) = verbose_line(line) {
            verbose.worst(id, status);
        }
    }
    let mut results = verbose.clone();
    for (status, rest) in &summary {
        results.worst(id_of(*status, rest, &verbose), *status);
    }
    results
}

/// The title between two rules of `=`.
fn ruled(line: &str) -> Option<&str> {
    let inner = line.strip_prefix("===")?.strip_suffix("===")?;
    Some(inner.trim_matches('=').trim())
}

fn word(text: &str) -> Option<Status> {
    WORDS.iter().find(|(word, _)| *word == text).map(|(_, status)| *status)
}

/// Status and what follows it. `SKIPPED [2] a.py:3: why` names no test.
fn summary_line(line: &str) -> Option<(Status, &str)> {
    let (first, rest) = line.split_once(' ')?;
    if let Some(status) = word(first) {
        let counted = status == Status::Skipped && rest.starts_with('[');
        return (!counted && !rest.is_empty()).then_some((status, rest));
    }
    // A part of a test that reports its parts: `SUBFAILED[case 1] a.py::b - why`.
    let rest = if first.contains('[') { line.split_once("] ")?.1 } else { rest };
    first.starts_with("SUBFAIL").then_some((Status::Failed, rest))
}

/// The node id at the start of what a summary says; where it cannot be told from the message, the shortest that it may be.
fn id_of<'a>(status: Status, rest: &'a str, known: &Results) -> &'a str {
    if status == Status::Passed || known.tests.contains_key(rest) {
        return rest;
    }
    let (mut balanced, mut bracket) = (None, None);
    let (mut open, mut seen) = (0_i64, 0);
    for (at, _) in rest.match_indices(" - ") {
        if known.tests.contains_key(&rest[..at]) {
            return &rest[..at];
        }
        for byte in &rest.as_bytes()[seen..at] {
            open += match byte {
                b'[' => 1,
                b']' => -1,
                _ => 0,
            };
        }
        seen = at;
        if open <= 0 {
            balanced = balanced.or(Some(at));
        }
        if rest[..at].ends_with(']') {
            bracket = bracket.or(Some(at));
        }
        if known.tests.is_empty() && balanced.is_some() {
            break;
        }
    }
    &rest[..balanced.or(bracket).unwrap_or(rest.len())]
}

/// `a.py::b PASSED   [ 50%]`, `a.py::b SKIPPED (why) [ 50%]`, `[gw0] [ 50%] PASSED a.py::b`.
fn verbose_line(line: &str) -> Option<(&str, Status)> {
    if let Some(rest) = line.strip_prefix("[gw") {
        let (_, rest) = rest.split_once("] ")?;
        let rest =
            rest.strip_prefix('[').and_then(|rest| rest.split_once("] ")).map_or(rest, |(_, rest)| rest);
        let (first, id) = rest.split_once(' ')?;
        return Some((id.trim_end(), word(first)?)).filter(|(id, _)| id.contains("::"));
    }
    let line = without_progress(line);
    let (id, status) = match around_last(line, " ") {
        Some((id, last)) if word(last).is_some() => (id, word(last)),
        _ if line.ends_with(')') => {
            WORDS.iter().filter(|(word, _)| ["SKIPPED", "XFAIL", "XPASS"].contains(word)).find_map(
                |(word, status)| around_last(line, &format!(" {word} (")).map(|(id, _)| (id, Some(*status))),
            )?
        }
        _ => return None,
    };
    let named = id.contains("::") && !id.starts_with([' ', '<']);
    named.then_some((id.trim_end(), status?))
}

/// Without `[ 50%]` or `[1/2]` at its end.
fn without_progress(line: &str) -> &str {
    let Some((rest, inner)) = line.strip_suffix(']').and_then(|line| around_last(line, "[")) else {
        return line;
    };
    let progress = |c: char| c.is_ascii_digit() || matches!(c, ' ' | '%' | '/');
    let is_progress = inner.ends_with('%') || inner.contains('/');
    if is_progress && inner.chars().all(progress) && rest.ends_with(' ') { rest.trim_end() } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text_of;

    #[track_caller]
    fn check(log: &str, expect: &str) {
        assert_eq!(text_of(&parse(log)), expect, "{log}");
    }

    #[test]
    fn lines_of_v_give_ids_as_they_are() {
        check(
            "a.py::b PASSED                 [ 50%]\na.py::C::d FAILED [100%]",
            "PASSED a.py::b, FAILED a.py::C::d",
        );
        check("a.py::b[x y - z] PASSED [ 50%]", "PASSED a.py::b[x y - z]");
        check("a.py::b SKIPPED (no such [thing]) [ 50%]", "SKIPPED a.py::b");
        check("a.py::b SKIPPED [ 50%]\na.py::c xfail", "SKIPPED a.py::b");
        check("a.py::b XFAIL (why) [ 50%]\na.py::c XPASS", "XFAIL a.py::b, XPASS a.py::c");
        check(
            "[gw0] [ 50%] PASSED a.py::b[1 2] \n[gw1] [100%] FAILED a.py::c",
            "PASSED a.py::b[1 2], FAILED a.py::c",
        );
        check("a.py::b PASSED\na.py::b ERROR", "ERROR a.py::b");
        check("\u{1b}[1ma.py::b \u{1b}[32mPASSED\u{1b}[0m [ 50%]", "PASSED a.py::b");
        check("it PASSED\nand PASSED this", "");
    }

    #[test]
    fn the_summary_may_hold_messages() {
        let head = "===== short test summary info =====\n";
        let summary = |lines: &str, expect: &str| check(&format!("{head}{lines}"), expect);
        summary("PASSED a.py::b\nFAILED a.py::c - assert 1 == 2", "PASSED a.py::b, FAILED a.py::c");
        summary("FAILED a.py::c[x - y] - KeyError: ' - '", "FAILED a.py::c[x - y]");
        summary("FAILED a.py::c[] - y] - oh", "FAILED a.py::c[]");
        summary(
            "PASSED a.py::c[x - y]\nFAILED a.py::d[[z] - oh\nFAILED a.py::e[ - ]",
            "PASSED a.py::c[x - y], FAILED a.py::d[[z], FAILED a.py::e[ - ]",
        );
        summary("SKIPPED [2] a.py:3: why\nXFAIL a.py::d - bug 3", "XFAIL a.py::d");
        summary("ERROR a.py - ImportError: x\nERROR b.py", "ERROR a.py, ERROR b.py");
        summary("PASSED a.py::b\n=== 1 passed in 0.1s ===\nPASSED a.py::c", "PASSED a.py::b");
        let known = format!("a.py::c[] - y] FAILED [ 50%]\n{head}FAILED a.py::c[] - y] - oh");
        check(&known, "FAILED a.py::c[] - y]");
    }

    #[test]
    fn what_a_test_prints_outside_of_the_summary_is_no_result() {
        check("PASSED a.py::b\n--- Captured stdout ---\nFAILED a.py::c", "");
    }

    #[test]
    fn long_and_odd_lines_cost_their_length() {
        let odd = format!("=== short test summary info ===\nFAILED a{}\n", " - [".repeat(10_000));
        check(&odd, "FAILED a");
        check(&"[gw".repeat(1_000_000), "");
        check(&format!("a::b {}PASSED", "SKIPPED (".repeat(6_000)), "");
    }
}
