//! `cargo test`: lines of libtest, doc tests included; of equal names in several binaries the worst counts.

use crate::text::{around_last, lines};
use crate::{Results, Status};

pub(crate) fn parse(text: &str) -> Results {
    let mut results = Results::default();
    let mut pending: Option<String> = None;
    for line in lines(text) {
        let line = line.trim_end();
        if let Some((name, rest)) = line.strip_prefix("test ").and_then(|rest| around_last(rest, " ... ")) {
            let name = name.strip_suffix(" - should panic").unwrap_or(name);
            match outcome(rest) {
                Some(status) => results.worst(name, status),
                None => pending = Some(name.to_owned()),
            }
        } else if let (Some(name), Some(status)) = (&pending, outcome(line)) {
            // With `--nocapture` the outcome comes after what the test prints.
            results.worst(name, status);
            pending = None;
        } else if let Some(package) =
            line.strip_prefix("error: could not compile `").and_then(|rest| rest.split_once('`'))
        {
            results.worst(package.0, Status::Error);
        }
    }
    results
}

fn outcome(text: &str) -> Option<Status> {
    match text {
        "ok" => Some(Status::Passed),
        "FAILED" => Some(Status::Failed),
        text if text == "ignored" || text.starts_with("ignored, ") => Some(Status::Skipped),
        text if text.starts_with("bench: ") => Some(Status::Passed),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text_of;

    #[test]
    fn lines_of_libtest() {
        let check = |log: &str, expect: &str| assert_eq!(text_of(&parse(log)), expect, "{log}");
        check(
            "running 3 tests\ntest a::b ... ok\ntest c ... FAILED\ntest d ... ignored, slow",
            "PASSED a::b, FAILED c, SKIPPED d",
        );
        check("test src/lib.rs - x (line 3) ... ok", "PASSED src/lib.rs - x (line 3)");
        check("test p - should panic ... ok", "PASSED p");
        check("test a ... hello\nworld\nok", "PASSED a");
        check("test a ... ok\ntest a ... FAILED", "FAILED a");
        check("error: could not compile `x` (lib test) due to 2 previous errors", "ERROR x");
        check("test result: ok. 1 passed; 0 failed", "");
    }
}
