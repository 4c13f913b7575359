//! Names as SWE-bench's own readers make them: published lists of tests hold these names, so a log has to be read the same way.
//! Where a form is blind or mixes things up, it does so here too; which and why: docs/grading.md.

use crate::text::{around_last, raw_lines};
use crate::{Kind, Results, Status, go as go_test};

/// The words that these forms know.
const WORDS: [(&str, Status); 5] = [
    ("FAILED", Status::Failed),
    ("PASSED", Status::Passed),
    ("SKIPPED", Status::Skipped),
    ("ERROR", Status::Error),
    ("XFAIL", Status::XFail),
];

fn word(text: &str) -> Option<Status> {
    WORDS.iter().find(|(word, _)| *word == text).map(|(_, status)| *status)
}

/// `[3]`, as in `SKIPPED [3] a.py:1: why`.
fn is_count(name: &str) -> bool {
    let digits = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or_default();
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// Lines that begin with a status; the name is the next word.
fn by_words(text: &str, name_of: impl Fn(&str) -> String) -> Results {
    let mut results = Results::default();
    for line in raw_lines(text).filter(|line| WORDS.iter().any(|(word, _)| line.starts_with(word))) {
        let apart = line.starts_with("FAILED").then(|| line.replace(" - ", " "));
        let mut parts = apart.as_deref().unwrap_or(line).split_whitespace();
        if let (Some(status), Some(name)) = (parts.next().and_then(word), parts.next())
            && !(status == Status::Skipped && is_count(name))
        {
            results.set(&name_of(name), status);
        }
    }
    results
}

pub(crate) fn pytest(text: &str) -> Results {
    by_words(text, str::to_owned)
}

pub(crate) fn pytest_options(text: &str) -> Results {
    by_words(text, short_option)
}

pub(crate) fn matplotlib(text: &str) -> Results {
    by_words(&buttons(text), str::to_owned)
}

fn buttons(text: &str) -> String {
    text.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3")
}

/// `a[/b/c]` becomes `a[/c]`.
fn short_option(name: &str) -> String {
    let Some((main, rest)) = name.split_once('[') else { return name.to_owned() };
    let Some((option, _)) = around_last(rest, "]") else { return name.to_owned() };
    let path = option.starts_with('/') && !option.starts_with("//") && !option.contains('*');
    match option.rsplit('/').next().filter(|_| path) {
        Some(last) => format!("{main}[/{last}]"),
        None => format!("{main}[{option}]"),
    }
}

pub(crate) fn pytest_v2(text: &str) -> Results {
    let mut results = Results::default();
    for line in raw_lines(text) {
        let line: String =
            without_colours(line).chars().filter(|c| !('\u{1}'..='\u{1f}').contains(c)).collect();
        if WORDS.iter().any(|(word, _)| line.starts_with(word)) {
            let line =
                if line.starts_with("FAILED") { line.split(" - ").next() } else { None }.unwrap_or(&line);
            let parts: Vec<&str> = line.split_whitespace().collect();
            if let [first, names @ ..] = &*parts
                && let (Some(status), Some(name)) = (word(first), names.first())
                && !(status == Status::Skipped && is_count(name))
            {
                results.set(&names.join(" "), status);
            }
        } else if WORDS.iter().any(|(word, _)| line.ends_with(word)) {
            let parts: Vec<&str> = line.split_whitespace().collect();
            if let [names @ .., last] = &*parts
                && let Some(status) = word(last).filter(|_| !names.is_empty())
            {
                results.set(&names.join(" "), status);
            }
        }
    }
    results
}

/// Without `[32m`, with or without the escape before it.
fn without_colours(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find('[') {
        out.push_str(&rest[..at]);
        let inner = &rest[at + 1..];
        let digits = inner.len() - inner.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        match inner[digits..].strip_prefix('m').filter(|_| digits > 0) {
            Some(after) => rest = after,
            None => {
                out.push('[');
                rest = inner;
            }
        }
    }
    out + rest
}

pub(crate) fn seaborn(text: &str) -> Results {
    let mut results = Results::default();
    for line in raw_lines(text) {
        let mut parts = line.split_whitespace();
        let (Some(first), Some(second)) = (parts.next(), parts.next()) else { continue };
        if line.starts_with("FAILED") {
            results.set(second, Status::Failed);
        } else if line.contains(" PASSED ") {
            if second == "PASSED" {
                results.set(first, Status::Passed);
            }
        } else if line.starts_with("PASSED") {
            results.set(second, Status::Passed);
        }
    }
    results
}

pub(crate) fn sympy(text: &str) -> Results {
    let mut results = Results::default();
    // Headers of failures: `____ sympy/a/tests/test_b.py:test_c ____`.
    for line in raw_lines(text) {
        let (Some(first), Some(last)) = (line.find(' '), line.rfind(' ')) else { continue };
        let inner = line.get(first + 1..last).unwrap_or_default();
        if let Some((file, test)) = around_last(inner, ".py:") {
            results.set(&format!("{file}.py:{test}"), Status::Failed);
        }
    }
    for line in raw_lines(text).map(str::trim).filter(|line| line.starts_with("test_")) {
        let ends = [(" E", Status::Error), (" F", Status::Failed), (" ok", Status::Passed)];
        if let Some((_, status)) = ends.iter().find(|(end, _)| line.ends_with(end)) {
            results.set(line.split_whitespace().next().unwrap_or_default(), *status);
        }
    }
    results
}

pub(crate) fn go(text: &str) -> Results {
    let mut results = Results::default();
    for (name, status) in raw_lines(text).filter_map(|line| go_test::verdict(line.trim())) {
        results.set(name, status);
    }
    results
}

pub(crate) fn cargo(text: &str) -> Results {
    let mut results = Results::default();
    for line in raw_lines(text) {
        let parts: Vec<&str> = line.split_whitespace().take(5).collect();
        match *parts {
            ["test", name, "...", "ok"] => results.set(name, Status::Passed),
            ["test", name, "...", "FAILED"] => results.set(name, Status::Failed),
            _ => {}
        }
    }
    results
}

/// A line that a sign begins, and the rest behind one blank.
fn signed(line: &str, signs: [(char, Status); 3]) -> Option<(&str, Status)> {
    let mut letters = line.trim().chars();
    let sign = letters.next()?;
    let status = signs.iter().find(|(known, _)| *known == sign)?.1;
    letters.next().filter(|blank| blank.is_whitespace())?;
    Some((letters.as_str(), status)).filter(|(name, _)| !name.is_empty())
}

pub(crate) fn jest(text: &str) -> Results {
    let mut results = Results::default();
    for line in raw_lines(text) {
        let signs = [('✓', Status::Passed), ('✕', Status::Failed), ('○', Status::Skipped)];
        let Some((name, status)) = signed(line, signs) else { continue };
        let timed = || {
            let (name, time) = around_last(name.strip_suffix(')')?, "(")?;
            let digits = time.strip_suffix('s')?;
            let digits = digits.strip_suffix('m').unwrap_or(digits).trim_end();
            let number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            name.strip_suffix(char::is_whitespace).filter(|name| number && !name.is_empty())
        };
        results.set(timed().unwrap_or(name).trim(), status);
    }
    results
}

pub(crate) fn vitest(text: &str) -> Results {
    let mut results = Results::default();
    for line in raw_lines(text) {
        let signs = [('✓', Status::Passed), ('×', Status::Failed), ('↓', Status::Skipped)];
        let Some((name, status)) = signed(line, signs) else { continue };
        let skipped = || name.strip_suffix("[skipped]");
        let timed = || {
            let rest = name.strip_suffix('s').unwrap_or(name);
            let rest = rest.strip_suffix('m').unwrap_or(rest).trim_end();
            let before = rest.trim_end_matches(|c: char| c.is_ascii_digit());
            (before.len() < rest.len()).then_some(before)
        };
        let bare = skipped()
            .or_else(timed)
            .and_then(|name| name.strip_suffix(char::is_whitespace))
            .filter(|name| !name.is_empty());
        results.set(bare.unwrap_or(name), status);
    }
    results
}

pub(crate) fn tap(text: &str) -> Results {
    let mut results = Results::default();
    for line in raw_lines(text).map(str::trim) {
        let marks = [("ok ", Status::Passed), ("not ok ", Status::Failed)];
        let found = marks.iter().find_map(|(mark, status)| Some((line.strip_prefix(mark)?, *status)));
        let Some(((number, name), status)) =
            found.and_then(|(rest, status)| Some((rest.split_once(' ')?, status)))
        else {
            continue;
        };
        if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) && !name.is_empty() {
            results.set(name, status);
        }
    }
    results
}

/// What the forms above make of a node id.
pub(crate) fn name_of_node(kind: Kind, node: &str) -> String {
    let first = || node.split_whitespace().next().unwrap_or(node).to_owned();
    match kind {
        Kind::SwebenchPytest | Kind::SwebenchSeaborn => first(),
        Kind::SwebenchPytestOptions => short_option(&first()),
        Kind::SwebenchMatplotlib => buttons(&first()),
        Kind::SwebenchPytestV2 => node.split_whitespace().collect::<Vec<_>>().join(" "),
        _ => node.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{parse, text_of};

    #[test]
    fn each_form_names_tests_its_own_way() {
        let check =
            |kind, log: &str, expect: &str| assert_eq!(text_of(&parse(kind, log)), expect, "{kind:?} {log}");
        use Kind::*;
        check(
            SwebenchPytest,
            "PASSED a.py::b[x y]\nFAILED a.py::c - oh\nSKIPPED [1] a.py:3: x\nERRORS x",
            "PASSED a.py::b[x, FAILED a.py::c",
        );
        check(SwebenchPytest, "PASSED a\nFAILED a\nXPASS b\n PASSED c", "FAILED a");
        check(SwebenchPytest, "PASSED [100%]\nFAILED - x", "PASSED [100%], FAILED x");
        check(
            SwebenchPytestOptions,
            "PASSED a[/b/c.txt]\nPASSED a[//b/c]x\nPASSED a[/b/*]",
            "PASSED a[//b/c], PASSED a[/b/*], PASSED a[/c.txt]",
        );
        check(
            SwebenchPytestV2,
            "\u{1b}[32mPASSED\u{1b}[0m a.py::b[x y]\na.py::c PASSED\nFAILED a.py::d[- ] - e",
            "PASSED a.py::b[x y], PASSED a.py::c, FAILED a.py::d[- ]",
        );
        check(SwebenchMatplotlib, "PASSED a[MouseButton.LEFT]", "PASSED a[1]");
        check(
            SwebenchSeaborn,
            "a.py::b PASSED [ 50%]\nPASSED a.py::c\nERROR a.py::d",
            "PASSED a.py::b, PASSED a.py::c",
        );
        check(
            SwebenchSympy,
            "test_a ok [OK]\ntest_b ok\ntest_c F\ntest_d E\n____ sympy/t.py:test_c ____",
            "PASSED test_b, FAILED sympy/t.py:test_c, FAILED test_c, ERROR test_d",
        );
        check(SwebenchGoTest, "--- FAIL: A (0.00s)\n--- PASS: A (0.00s)", "PASSED A");
        check(
            SwebenchCargoTest,
            "test a ... ok\ntest src/lib.rs - b (line 2) ... ok\ntest c ... ignored",
            "PASSED a",
        );
        check(
            SwebenchJest,
            "  ✓ adds (2 ms)\n ✕ x (1.2 s)\n ○ skipped y",
            "PASSED adds, SKIPPED skipped y, FAILED x (1.2 s)",
        );
        check(
            SwebenchVitest,
            " ✓ a > b 5ms\n × c 12\n ↓ d [skipped]\n ✓ 7",
            "PASSED 7, PASSED a > b, FAILED c, SKIPPED d",
        );
        check(SwebenchTap, "ok 1 - a # SKIP\nnot ok 2 b\nok", "PASSED - a # SKIP, FAILED b");
    }
}
