//! `go test -v` and `go test -json`. A package that does not build is a test of the package's name with an error.

use crate::text::{around_last, lines};
use crate::{Results, Status};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Event<'a> {
    action: std::borrow::Cow<'a, str>,
    #[serde(default)]
    package: std::borrow::Cow<'a, str>,
    test: Option<std::borrow::Cow<'a, str>>,
    failed_build: Option<std::borrow::Cow<'a, str>>,
}

pub(crate) fn parse(text: &str) -> Results {
    let mut results = Results::default();
    for line in lines(text) {
        let line = line.trim();
        if line.starts_with("{\"") {
            event(line, &mut results);
        } else if let Some((name, status)) = verdict(line) {
            results.worst(name, status);
        } else if let Some((package, _)) = line
            .strip_prefix("FAIL\t")
            .and_then(|rest| rest.split_once(" ["))
            .filter(|(_, why)| *why == "build failed]" || *why == "setup failed]")
        {
            results.worst(package, Status::Error);
        }
    }
    results
}

/// `--- PASS: TestA/sub (0.00s)`.
pub(crate) fn verdict(line: &str) -> Option<(&str, Status)> {
    let marks = [("PASS: ", Status::Passed), ("FAIL: ", Status::Failed), ("SKIP: ", Status::Skipped)];
    let rest = line.strip_prefix("--- ")?;
    let (rest, status) = marks.iter().find_map(|(mark, status)| Some((rest.strip_prefix(mark)?, *status)))?;
    let (name, time) = around_last(rest.strip_suffix(')')?, " (")?;
    (!name.is_empty() && !time.is_empty()).then_some((name, status))
}

fn event(line: &str, results: &mut Results) {
    let Ok(event) = serde_json::from_str::<Event<'_>>(line) else { return };
    let status = match &*event.action {
        "pass" => Status::Passed,
        "fail" => Status::Failed,
        "skip" => Status::Skipped,
        _ => return,
    };
    match event.test {
        Some(test) => results.worst(&format!("{}.{test}", event.package), status),
        None if event.failed_build.is_some() => results.worst(&event.package, Status::Error),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text_of;

    #[test]
    fn both_forms_name_each_test() {
        let check = |log: &str, expect: &str| assert_eq!(text_of(&parse(log)), expect, "{log}");
        check(
            "=== RUN   TestA\n    --- PASS: TestA/x_(y) (0.00s)\n--- FAIL: TestA (0.01s)\n--- SKIP: TestB (0.00s)\nok  \tp\t0.1s",
            "PASSED TestA/x_(y), FAILED TestA, SKIPPED TestB",
        );
        check("FAIL\tp [build failed]\nFAIL\tp\t0.01s", "ERROR p");
        check("--- PASS: TestA (0.00s)\n--- FAIL: TestA (0.00s)", "FAILED TestA");
        check(
            "{\"Action\":\"pass\",\"Package\":\"p/q\",\"Test\":\"TestA\",\"Elapsed\":0}\n{\"Action\":\"output\",\"Package\":\"p/q\",\"Test\":\"TestB\",\"Output\":\"--- PASS: TestB (0.00s)\\n\"}\n{\"Action\":\"pass\",\"Package\":\"p/q\"}",
            "PASSED p/q.TestA",
        );
        check("{\"Action\":\"fail\",\"Package\":\"p\",\"FailedBuild\":\"p\"}\n{\"broken", "ERROR p");
        check("--- PASS: x\n--- PASS:  (0s)", "");
    }
}
