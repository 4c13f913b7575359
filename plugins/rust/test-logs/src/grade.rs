//! What a run is worth: FAIL_TO_PASS and PASS_TO_PASS, as SWE-bench defines them.

use crate::log::{Invalid, agrees};
use crate::{Results, Status};
use serde::Deserialize;

/// What a task expects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Expected {
    /// Tests that a solution makes pass.
    #[serde(default)]
    pub fail_to_pass: Vec<String>,
    /// Tests that it must not break.
    #[serde(default)]
    pub pass_to_pass: Vec<String>,
}

/// How many of some tests are as expected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Tests that are.
    pub good: usize,
    /// Those that are not, with their status; `None`: it was not reported.
    pub bad: Vec<(String, Option<Status>)>,
}

impl Share {
    /// 0 to 1; of no tests 1.
    pub fn value(&self) -> f64 {
        let all = self.good + self.bad.len();
        if all == 0 { 1.0 } else { self.good as f64 / all as f64 }
    }
}

/// What it comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// All tests are as expected.
    Full,
    /// Nothing is broken, and some of what should pass does.
    Partial,
    /// Anything else.
    No,
}

/// A run held against what is expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grade {
    /// Of FAIL_TO_PASS: passed, or failed as expected.
    pub fail_to_pass: Share,
    /// Of PASS_TO_PASS: these, or skipped.
    pub pass_to_pass: Share,
}

impl Grade {
    /// Full, partial or no.
    pub fn resolution(&self) -> Resolution {
        let (fixed, kept) = (self.fail_to_pass.value(), self.pass_to_pass.bad.is_empty());
        match (self.fail_to_pass.bad.is_empty(), kept) {
            (true, true) => Resolution::Full,
            (false, true) if fixed > 0.0 => Resolution::Partial,
            _ => Resolution::No,
        }
    }
}

/// Compares. A run without any test, or whose exit code speaks of failures that nobody reported, is invalid.
pub fn grade(results: &Results, exit_code: Option<i32>, expected: &Expected) -> Result<Grade, Invalid> {
    agrees(results, exit_code)?;
    let share = |names: &[String], fine: fn(Status) -> bool| {
        let mut share = Share::default();
        for name in names {
            match find(results, name) {
                Some(status) if fine(status) => share.good += 1,
                status => share.bad.push((name.clone(), status)),
            }
        }
        share
    };
    Ok(Grade {
        fail_to_pass: share(&expected.fail_to_pass, Status::is_pass),
        pass_to_pass: share(&expected.pass_to_pass, |status| status.is_pass() || status == Status::Skipped),
    })
}

/// The status of an expected test. Published lists hold names that are cut inside of their parameters: such a one stands for
/// the tests that begin with it, where all of them pass or none does.
fn find(results: &Results, name: &str) -> Option<Status> {
    if let Some(status) = results.tests.get(name) {
        return Some(*status);
    }
    let count = |letter| name.bytes().filter(|byte| *byte == letter).count();
    if count(b'[') <= count(b']') {
        return None;
    }
    let from = results.tests.range::<str, _>((std::ops::Bound::Included(name), std::ops::Bound::Unbounded));
    let mut found = from.take_while(|(key, _)| key.starts_with(name)).map(|(_, status)| *status);
    let first = found.next()?;
    found.all(|status| status.is_pass() == first.is_pass()).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(fail_to_pass: &[&str], pass_to_pass: &[&str]) -> Expected {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Expected { fail_to_pass: names(fail_to_pass), pass_to_pass: names(pass_to_pass) }
    }

    #[test]
    fn each_status_counts_as_the_rules_say() {
        use Status::*;
        for (status, fixes, keeps) in [
            (Passed, true, true),
            (XFail, true, true),
            (Skipped, false, true),
            (XPass, false, false),
            (Failed, false, false),
            (Error, false, false),
        ] {
            let run = Results::from([("a", status), ("z", Failed)]);
            let fixed = grade(&run, None, &expected(&["a"], &[])).unwrap();
            let kept = grade(&run, None, &expected(&[], &["a"])).unwrap();
            let word = |good| if good { Resolution::Full } else { Resolution::No };
            assert_eq!((fixed.resolution(), kept.resolution()), (word(fixes), word(keeps)), "{status:?}");
        }
    }

    #[test]
    fn partial_needs_all_that_passed_before() {
        use Status::*;
        let run = Results::from([("a", Passed), ("b", Failed), ("c", Passed)]);
        let check = |fail: &[&str], pass: &[&str], expect, share| {
            let grade = grade(&run, Some(1), &expected(fail, pass)).unwrap();
            assert_eq!((grade.resolution(), grade.fail_to_pass.value()), (expect, share));
        };
        check(&["a"], &["c"], Resolution::Full, 1.0);
        check(&["a", "b"], &["c"], Resolution::Partial, 0.5);
        check(&["a", "b"], &["gone"], Resolution::No, 0.5);
        check(&["b"], &["c"], Resolution::No, 0.0);
        check(&[], &[], Resolution::Full, 1.0);
        check(&["a", "gone"], &[], Resolution::Partial, 0.5);
    }

    #[test]
    fn a_run_that_does_not_add_up_is_invalid() {
        let run = Results::from([("a", Status::Passed)]);
        assert_eq!(grade(&run, Some(1), &expected(&["a"], &[])), Err(Invalid::ExitCode(1)));
        assert_eq!(grade(&Results::from([]), Some(0), &expected(&[], &[])), Err(Invalid::NoTests));
    }

    #[test]
    fn a_name_cut_in_its_parameters_stands_for_all_that_begin_so() {
        use Status::*;
        let run = Results::from([
            ("a[x y]", Passed),
            ("a[x z]", XFail),
            ("b[x y]", Passed),
            ("b[x z]", Failed),
            ("c", Passed),
        ]);
        assert_eq!(find(&run, "a[x"), Some(Passed));
        assert_eq!(find(&run, "b[x"), None);
        assert_eq!(find(&run, "c["), None);
        assert_eq!(find(&run, "a"), None);
    }
}
