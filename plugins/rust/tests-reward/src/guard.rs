//! How the tests' command is started. Runners of Python are told where modules come from, and pytest which configuration is its own.
//! The guard is a plugin of pytest that is loaded before the library under test, and adds checks that have to fail. A process whose
//! judging was changed reports them as passed, or not at all; and pytest writes its own report beside what it prints.

use crate::hidden::HiddenSide;
use espalier_test_logs::{Results, Status};

/// Checks that `guard.py` adds.
pub const CHECKS: usize = 9;
/// The plugin's text.
pub const PLUGIN: &str = include_str!("python/guard.py");

/// The text of the plugin that names import roots.
pub const ROOTS: &str = include_str!("python/roots.py");

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

    /// The file of the plugin that names import roots.
    pub fn roots_path(&self) -> String {
        format!("{}/espalier_roots_{}.py", self.folder(), self.nonce)
    }

    /// What that plugin reads.
    pub fn roots_of(&self, side: &HiddenSide, names: &[&str]) -> (String, String) {
        let said = serde_json::json!({ "roots": side.front, "modules": names });
        (format!("{}/roots.json", self.folder()), said.to_string())
    }

    /// The command of pytest: with the checks, and over a hidden side.
    pub fn command(&self, command: &str, checks: bool, side: Option<&HiddenSide>) -> String {
        let nonce = &self.nonce;
        let mut options: Vec<String> = Vec::new();
        let mut add = |words: &[&str]| options.extend(words.iter().map(|word| quoted(word)));
        if side.is_some() {
            add(&["-p", &format!("espalier_roots_{nonce}")]);
        }
        if checks {
            let report = format!("--junitxml={}", self.report_path());
            add(&["-p", &format!("espalier_guard_{nonce}"), &report, "-o", "junit_family=xunit1"]);
        }
        if let Some(pytest) = side.and_then(|side| side.pytest.as_ref()) {
            // Whatever lies around: this file, or none.
            let confcutdir = pytest.confcutdir.as_ref().unwrap_or(&pytest.rootdir);
            add(&["-c", pytest.inifile.as_deref().unwrap_or("/dev/null")]);
            add(&[&format!("--rootdir={}", pytest.rootdir), &format!("--confcutdir={confcutdir}")]);
        }
        let options = quoted(&options.join(" "));
        let python = if side.is_some() { ISOLATED } else { "" };
        format!(
            "export PYTHONPATH={}\"${{PYTHONPATH:+:$PYTHONPATH}}\"\n{python}\
             export PYTEST_ADDOPTS=\"${{PYTEST_ADDOPTS:-}} \"{options}\n{command}",
            quoted(&self.folder())
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
            return Some("the test process was tampered with: a check that must fail did not".to_owned());
        }
        let missing = checks.iter().filter(|status| status.is_none()).count();
        if missing > 0 {
            return Some(format!("{missing} of {CHECKS} checks that must fail were not reported"));
        }
        match exit_code {
            // With tests that failed, as the checks did, pytest ends with 1.
            Some(1) => None,
            code => Some(format!("exit code {} although checks failed", code.unwrap_or(-1))),
        }
    }
}

/// Neither the current folder nor the user's own packages are imported from.
const ISOLATED: &str = "export PYTHONSAFEPATH=1 PYTHONNOUSERSITE=1\n";

/// The command of another runner of Python over a hidden side. Behind the last line that enters an environment, whose own programs
/// are none of the tests.
pub fn isolated(command: &str, side: &HiddenSide) -> String {
    let roots = side.front.join(":");
    let roots = if roots.is_empty() {
        String::new()
    } else {
        format!("export PYTHONPATH={}\"${{PYTHONPATH:+:$PYTHONPATH}}\"\n", quoted(&roots))
    };
    let enters = |line: &str| line.contains("activate");
    let at = command.split_inclusive('\n').scan(0, |end, line| {
        *end += line.len();
        Some((*end, enters(line) && line.ends_with('\n') && !line.ends_with("\\\n")))
    });
    let at = at.filter(|(_, enters)| *enters).last().map_or(0, |(end, _)| end);
    format!("{}{roots}{ISOLATED}{}", &command[..at], &command[at..])
}

/// As one word, for a shell and for whatever splits words as shells do.
pub fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r#"'"'"'"#))
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
            Some("was tampered with"),
        );
        check(
            &[Failed, Failed, Skipped, Failed, Failed, Failed, Failed, Failed, Failed],
            Some(1),
            Some("was tampered with"),
        );
        check(&[Failed; 3], Some(1), Some("6 of 9"));
        check(&[Failed; 9], Some(0), Some("exit code 0"));
        check(&[], Some(0), Some("9 of 9"));
    }

    #[test]
    fn pytest_is_told_what_decides() {
        use crate::hidden::Pytest;
        let guard = Guard::new(&[1]);
        let pytest = Pytest { rootdir: "/my code".to_owned(), ..Pytest::default() };
        let mut side = HiddenSide { pytest: Some(pytest), ..HiddenSide::default() };
        let command = guard.command("pytest", true, Some(&side));
        assert_eq!(
            command,
            "export PYTHONPATH=/tmp/espalier-01\"${PYTHONPATH:+:$PYTHONPATH}\"\nexport PYTHONSAFEPATH=1 PYTHONNOUSERSITE=1\n\
             export PYTEST_ADDOPTS=\"${PYTEST_ADDOPTS:-} \"'-p espalier_roots_01 -p espalier_guard_01 --junitxml=/tmp/espalier-01/report.xml \
             -o junit_family=xunit1 -c /dev/null '\"'\"'--rootdir=/my code'\"'\"' '\"'\"'--confcutdir=/my code'\"'\"''\npytest"
        );
        let pytest = side.pytest.as_mut().unwrap();
        (pytest.inifile, pytest.confcutdir) = (Some("/w/setup.cfg".to_owned()), Some("/w".to_owned()));
        assert!(guard.command("x", false, Some(&side)).contains("'-p espalier_roots_01 -c /w/setup.cfg"));
        // In the place that the agent left nothing is known.
        let place = guard.command("x", true, None);
        assert!(!place.contains("-c ") && !place.contains("SAFEPATH"), "{place}");
    }

    #[test]
    fn other_runners_have_their_import_roots_named() {
        let side = HiddenSide { front: vec!["/w".to_owned(), "/w/t".to_owned()], ..HiddenSide::default() };
        let roots = "export PYTHONPATH=/w:/w/t\"${PYTHONPATH:+:$PYTHONPATH}\"\nexport PYTHONSAFEPATH=1 PYTHONNOUSERSITE=1\n";
        assert_eq!(isolated("python -m unittest", &side), format!("{roots}python -m unittest"));
        let command = "source activate && conda activate x\n./runtests.py\n";
        assert_eq!(
            isolated(command, &side),
            format!("source activate && conda activate x\n{roots}./runtests.py\n")
        );
        assert_eq!(isolated("activate x && y", &HiddenSide::default()), format!("{ISOLATED}activate x && y"));
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
