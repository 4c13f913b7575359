//! The Test Anything Protocol, versions 12 to 14: names are descriptions, those of subtests without the test around them.

use crate::text::lines;
use crate::{Results, Status};

pub(crate) fn parse(text: &str) -> Results {
    let mut results = Results::default();
    let mut points = 0_u64;
    for line in lines(text) {
        let Some((passed, rest)) = point(line.trim()) else { continue };
        points += 1;
        let rest = rest.trim_start();
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, rest) = rest.split_at(digits);
        let rest = rest.trim_start();
        let rest = rest.strip_prefix("- ").unwrap_or(rest);
        let (name, directive) = split_directive(rest);
        let todo = directive.starts_with("todo");
        let status = match (passed, directive.starts_with("skip")) {
            (_, true) => Status::Skipped,
            (true, _) if todo => Status::XPass,
            (false, _) if todo => Status::XFail,
            (true, _) => Status::Passed,
            (false, _) => Status::Failed,
        };
        match (name.trim(), number) {
            ("", "") => results.worst(&format!("#{points}"), status),
            ("", number) => results.worst(&format!("#{number}"), status),
            (name, _) => results.worst(name, status),
        }
    }
    results
}

/// Whether the line is a test point, and what follows `ok`.
fn point(line: &str) -> Option<(bool, &str)> {
    let (passed, rest) = line
        .strip_prefix("not ok")
        .map(|rest| (false, rest))
        .or_else(|| Some((true, line.strip_prefix("ok")?)))?;
    (rest.is_empty() || rest.starts_with(' ')).then_some((passed, rest))
}

/// Description and directive, the latter in small letters.
fn split_directive(text: &str) -> (&str, String) {
    let directive = |rest: &str| {
        let word: String = rest.trim_start().chars().take(4).collect::<String>().to_ascii_lowercase();
        (word == "skip" || word == "todo").then_some(word)
    };
    for (at, _) in text.match_indices('#') {
        if !text[..at].ends_with('\\')
            && let Some(word) = directive(&text[at + 1..])
        {
            return (&text[..at], word);
        }
    }
    (text, String::new())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text_of;

    #[test]
    fn points_and_directives() {
        let check = |log: &str, expect: &str| assert_eq!(text_of(&parse(log)), expect, "{log}");
        check("TAP version 14\n1..2\nok 1 - adds\nnot ok 2 subtracts", "PASSED adds, FAILED subtracts");
        check(
            "ok 1 - a # SKIP no disk\nnot ok 2 - b # Todo later\nok 3 - c # todo",
            "SKIPPED a, XFAIL b, XPASS c",
        );
        check("ok\nok 2\nnot ok", "PASSED #1, PASSED #2, FAILED #3");
        check("    ok 1 - inner\nok 1 - outer", "PASSED inner, PASSED outer");
        check("ok 1 - issue \\# skip", "PASSED issue \\# skip");
        check("okay\nnot okay\n# ok 1", "");
    }
}
