//! The guard of pytest: a plugin that is loaded before the library under test, and adds checks that have to fail. A process whose
//! judging was changed reports them as passed, or not at all; and pytest writes its own report beside what it prints.

use espalier_test_logs::{Results, Status};

/// Checks that `guard.py` adds.
pub const CHECKS: usize = 9;
/// The plugin's text.
pub const PLUGIN: &str = include_str!("guard.py");

/// One run's guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Random, hex.
    nonce: String,
}

impl Guard {
    /// With these random bytes.
    pub fn new(random: &[u8]) -> Guard {
        Guard { nonce: random.iter().map(|byte| format!("{byte:02x}")).collect() }
    }

    /// A folder of its own, outside of the working folder.
    pub fn folder(&self) -> String {
        format!("/tmp/espalier-{}", self.nonce)
    }

    /// The plugin's file.
    pub fn plugin_path(&self) -> String {
        format!("{}/espalier_guard_{}.py", self.folder(), self.nonce)
    }

    /// Where pytest writes its report.
    pub fn report_path(&self) -> String {
        format!("{}/report.xml", self.folder())
    }

    /// Shell text before the command: makes pytest load the plugin and write its report.
    pub fn prelude(&self) -> String {
        let (folder, report, nonce) = (self.folder(), self.report_path(), &self.nonce);
        format!(
            "export PYTHONPATH=\"{folder}${{PYTHONPATH:+:$PYTHONPATH}}\"\n\
             export PYTEST_ADDOPTS=\"$PYTEST_ADDOPTS -p espalier_guard_{nonce} --junitxml={report} -o junit_family=xunit1\"\n"
        )
    }

    /// Takes the checks out of the results; says why the run cannot be believed, where it cannot.
    pub fn take_checks(&self, results: &mut Results, exit_code: Option<i32>) -> Option<String> {
        let mark = format!("espalier_{}_", self.nonce);
        let mut checks = [None; CHECKS];
        results.tests.retain(|name, status| {
            let Some(number) = name.rsplit(&mark).next().filter(|_| name.contains(&mark)) else {
                return true;
            };
            if let Some(check) = number.parse().ok().and_then(|number: usize| checks.get_mut(number)) {
                *check = Some(*status);
            }
            false
        });
        let wrong = checks.iter().flatten().any(|status| !status.is_failure());
        if wrong {
            return Some("the process of the tests was changed: a check that has to fail did not".to_owned());
        }
        let missing = checks.iter().filter(|status| status.is_none()).count();
        if missing > 0 {
            return Some(format!("{missing} of {CHECKS} checks that have to fail were not reported"));
        }
        match exit_code {
            // With tests that failed, as the checks did, pytest ends with 1.
            Some(1) => None,
            code => Some(format!("exit code {} in spite of checks that failed", code.unwrap_or(-1))),
        }
    }
}

/// What the report says, with what the output says worse. Names are those of the output's form.
pub fn together(report: Results, log: &Results, name_of: impl Fn(&str) -> String) -> Results {
    let mut named = Results { left_out: report.left_out, ..Results::default() };
    for (name, status) in report.tests {
        let known = named.tests.entry(name_of(&name)).or_insert(status);
        *known = (*known).max(status);
    }
    for (name, status) in &log.tests {
        match named.tests.get_mut(name) {
            Some(known) => *known = (*known).max(*status),
            None if *status == Status::Failed || *status == Status::Error => {
                named.tests.insert(name.clone(), *status);
            }
            None => {}
        }
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_that_pass_or_are_missing_are_told() {
        let guard = Guard::new(&[0xab, 1]);
        let check = |statuses: &[Status], code, expect: Option<&str>| {
            let mut run = Results::from([("a", Status::Passed)]);
            for (number, status) in statuses.iter().enumerate() {
                run.tests.insert(format!("::espalier_ab01_{number}"), *status);
            }
            let told = guard.take_checks(&mut run, code);
            assert_eq!(told.is_some(), expect.is_some(), "{told:?}");
            assert!(told.unwrap_or_default().contains(expect.unwrap_or_default()));
            assert_eq!(run, Results::from([("a", Status::Passed)]));
        };
        use Status::{Error, Failed, Passed, Skipped};
        check(&[Failed; 9], Some(1), None);
        check(&[Error; 9], Some(1), None);
        check(
            &[Failed, Failed, Passed, Failed, Failed, Failed, Failed, Failed, Failed],
            Some(1),
            Some("was changed"),
        );
        check(
            &[Failed, Failed, Skipped, Failed, Failed, Failed, Failed, Failed, Failed],
            Some(1),
            Some("was changed"),
        );
        check(&[Failed; 3], Some(1), Some("6 of 9"));
        check(&[Failed; 9], Some(0), Some("exit code 0"));
        check(&[], Some(0), Some("9 of 9"));
    }

    #[test]
    fn the_plugin_has_as_many_checks() {
        let list = PLUGIN.split("CHECKS = [").nth(1).unwrap().split(']').next().unwrap();
        assert_eq!(list.split(',').count() + 2, CHECKS, "and one function, one case");
    }

    #[test]
    fn the_worse_of_report_and_output_counts() {
        use Status::{Failed, Passed, XPass};
        let report = Results::from([("a[x y]", Passed), ("a[x z]", Failed), ("b", Passed), ("c", Passed)]);
        let log = Results::from([("b", XPass), ("invented", Passed), ("d", Failed)]);
        let merged = together(report, &log, |name| name.split(' ').next().unwrap().to_owned());
        assert_eq!(merged, Results::from([("a[x", Failed), ("b", XPass), ("c", Passed), ("d", Failed)]));
    }
}
