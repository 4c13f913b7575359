//! Reads logs and grades them, one JSON object a line in and out: for comparisons with other readers (`make test-graders`).
//!
//! In: `{"kind", "text", "marked", "exit_code", "expected"}`; out: `{"invalid", "tests", "resolution"}`.

use espalier_test_logs::{Expected, Kind, Resolution, Results, grade, parse, read_log};
use serde::Deserialize;
use serde_json::json;
use std::io::{BufRead, Write};

#[derive(Deserialize)]
struct Case {
    kind: Kind,
    text: String,
    /// A whole log with its marks, not an output alone.
    marked: bool,
    expected: Expected,
}

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let case: Case = serde_json::from_str(&line?)?;
        let read = if case.marked {
            read_log(case.kind, &case.text).map(|log| (log.results, log.exit_code))
        } else {
            Ok((parse(case.kind, &case.text), None))
        };
        let (results, graded) = match read {
            Ok((results, exit_code)) => {
                let graded = grade(&results, exit_code, &case.expected);
                (results, graded)
            }
            Err(why) => (Results::default(), Err(why)),
        };
        let resolution = graded.as_ref().map_or("NO", |grade| match grade.resolution() {
            Resolution::Full => "FULL",
            Resolution::Partial => "PARTIAL",
            Resolution::No => "NO",
        });
        let invalid = graded.as_ref().err().map(ToString::to_string);
        let answer = json!({ "invalid": invalid, "tests": results.tests, "resolution": resolution });
        writeln!(out, "{answer}")?;
    }
    Ok(())
}
