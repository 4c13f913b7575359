//! Which tests a task can expect: what several runs on both sources agree about.

use std::collections::{BTreeMap, BTreeSet};

/// One run of the tests: each with its status, as the reward `tests-reward` lists them (`PASSED`, `FAILED` ...).
pub(super) type TestRun = BTreeMap<String, String>;

/// The tests that a task expects.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Expected {
    /// Never pass before, always after.
    pub fail_to_pass: Vec<String>,
    /// Always pass, before and after.
    pub pass_to_pass: Vec<String>,
    /// Pass in some runs of one source and not in others: left out.
    pub flaky: Vec<String>,
}

/// How a test does in the runs of one source.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Passes {
    Always,
    Never,
    Sometimes,
}

/// Sorts the tests by what they do before and after the change. No runs, nothing expected.
pub(super) fn expect(before: &[TestRun], after: &[TestRun]) -> Expected {
    let mut expected = Expected::default();
    let names: BTreeSet<&String> = before.iter().chain(after).flat_map(BTreeMap::keys).collect();
    for name in names {
        let list = match (passes(name, before), passes(name, after)) {
            (Passes::Sometimes, _) | (_, Passes::Sometimes) => &mut expected.flaky,
            (Passes::Never, Passes::Always) => &mut expected.fail_to_pass,
            (Passes::Always, Passes::Always) => &mut expected.pass_to_pass,
            (_, Passes::Never) => continue,
        };
        list.push(name.clone());
    }
    expected
}

fn passes(name: &str, runs: &[TestRun]) -> Passes {
    let passed = |run: &&TestRun| matches!(run.get(name).map(String::as_str), Some("PASSED" | "XFAIL"));
    match runs.iter().filter(passed).count() {
        0 => Passes::Never,
        count if count == runs.len() => Passes::Always,
        _ => Passes::Sometimes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_expected_where_all_runs_agree() {
        let run = |statuses: &[(&str, &str)]| -> TestRun {
            statuses.iter().map(|(name, status)| ((*name).to_owned(), (*status).to_owned())).collect()
        };
        let before = [
            run(&[
                ("fixed", "FAILED"),
                ("kept", "PASSED"),
                ("flaky", "PASSED"),
                ("broken", "PASSED"),
                ("late", "FAILED"),
            ]),
            run(&[
                ("fixed", "ERROR"),
                ("kept", "XFAIL"),
                ("flaky", "FAILED"),
                ("broken", "PASSED"),
                ("late", "FAILED"),
            ]),
        ];
        let after = [
            run(&[
                ("fixed", "PASSED"),
                ("kept", "PASSED"),
                ("flaky", "PASSED"),
                ("new", "PASSED"),
                ("late", "PASSED"),
            ]),
            run(&[
                ("fixed", "PASSED"),
                ("kept", "PASSED"),
                ("flaky", "PASSED"),
                ("new", "PASSED"),
                ("skipped", "SKIPPED"),
            ]),
        ];
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            expect(&before, &after),
            Expected {
                fail_to_pass: names(&["fixed", "new"]),
                pass_to_pass: names(&["kept"]),
                flaky: names(&["flaky", "late"]),
            }
        );
        assert_eq!(expect(&[], &[]), Expected::default());
    }
}
