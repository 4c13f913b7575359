//! Jest: lines of `--verbose`, suites by their indent; or the report of `--json`.

use crate::text::{lines, without_time};
use crate::{Results, Status};
use serde_json::Value;

/// Between the titles of suites and test.
const JOINT: &str = " > ";
/// Most suites inside each other.
const DEPTH_MAX: usize = 64;
/// Longest title of a suite, in bytes.
const TITLE_BYTES_MAX: usize = 1 << 10;

pub(crate) fn parse(text: &str) -> Results {
    let report = text.lines().find(|line| line.starts_with("{\"") && line.contains("\"testResults\":"));
    let whole = || text.trim_start().starts_with('{').then_some(text);
    match report.or_else(whole).and_then(|text| serde_json::from_str::<Value>(text).ok()) {
        Some(report) => of_report(&report),
        None => of_lines(text),
    }
}

fn of_lines(text: &str) -> Results {
    let mut results = Results::default();
    let mut suites: Vec<(usize, String)> = Vec::new();
    let mut inside = false;
    for line in lines(text) {
        let title = line.trim();
        let indent = line.len() - line.trim_start().len();
        if let Some((status, name)) = leaf(title).filter(|_| indent > 0) {
            suites.retain(|(of, _)| *of < indent);
            let mut path: Vec<&str> = suites.iter().map(|(_, title)| title.as_str()).collect();
            path.push(name);
            results.worst(&path.join(JOINT), status);
        } else if title.is_empty() || indent == 0 || title.starts_with('●') {
            suites.clear();
            inside = title.starts_with("PASS ") || title.starts_with("FAIL ");
        } else if inside {
            suites.retain(|(of, _)| *of < indent);
            if suites.len() < DEPTH_MAX && title.len() <= TITLE_BYTES_MAX {
                suites.push((indent, title.to_owned()));
            }
        }
    }
    results
}

fn leaf(title: &str) -> Option<(Status, &str)> {
    let mut letters = title.chars();
    let mark = letters.next()?;
    let name = letters.as_str().strip_prefix(' ')?;
    let (status, name) = match mark {
        '✓' | '√' => (Status::Passed, name),
        '✕' => (Status::Failed, name),
        '○' => (Status::Skipped, name.strip_prefix("skipped ").unwrap_or(name)),
        '✎' => (Status::Skipped, name.strip_prefix("todo ").unwrap_or(name)),
        _ => return None,
    };
    Some((status, without_time(name)))
}

fn of_report(report: &Value) -> Results {
    let mut results = Results::default();
    for file in report["testResults"].as_array().into_iter().flatten() {
        let tests = file["assertionResults"].as_array().map_or(&[][..], Vec::as_slice);
        for test in tests {
            let titles = test["ancestorTitles"].as_array().into_iter().flatten().chain([&test["title"]]);
            let path: Vec<&str> = titles.filter_map(Value::as_str).collect();
            let status = match test["status"].as_str() {
                Some("passed") => Status::Passed,
                Some("failed") => Status::Failed,
                Some("pending" | "skipped" | "todo" | "disabled") => Status::Skipped,
                _ => continue,
            };
            results.worst(&path.join(JOINT), status);
        }
        if tests.is_empty() && file["status"] == "failed" {
            results.worst(file["name"].as_str().unwrap_or("?"), Status::Error);
        }
    }
    results
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text_of;

    #[test]
    fn lines_and_reports_name_tests_alike() {
        let check = |log: &str, expect: &str| assert_eq!(text_of(&parse(log)), expect, "{log}");
        let expect = "PASSED sums > adds, FAILED sums > deep > fails, SKIPPED sums > later, FAILED top";
        check(
            "PASS ./a.test.js\n  ✕ top\n  sums\n    ✓ adds (2 ms)\n    ○ skipped later\n    deep\n      ✕ fails (1.5 s)\n\n  ● sums › deep › fails\n    expect\n",
            expect,
        );
        let test = |titles: &str, title: &str, status: &str| {
            format!(r#"{{"ancestorTitles":{titles},"title":"{title}","fullName":"x","status":"{status}"}}"#)
        };
        let tests = [
            test("[]", "top", "failed"),
            test(r#"["sums"]"#, "adds", "passed"),
            test(r#"["sums"]"#, "later", "pending"),
            test(r#"["sums","deep"]"#, "fails", "failed"),
        ];
        let file =
            format!(r#"{{"name":"a.test.js","status":"failed","assertionResults":[{}]}}"#, tests.join(","));
        check(&format!("noise\n{{\"numTotalTests\":4,\"testResults\":[{file}]}}\n"), expect);
        check(r#"{"testResults":[{"name":"b.js","status":"failed","assertionResults":[]}]}"#, "ERROR b.js");
        check(
            "  ● sums › adds\n    ✓ one of the code's own lines? no\n",
            "PASSED one of the code's own lines? no",
        );
    }
}
