//! Which tests pass on which source, as the reward that will score the task sees it: two tasks without expectations, one with the
//! reference applied and one as it stands, each run several times by the engine itself.

use super::draft::AFTER;
use super::expect::{TestRun, expect};
use super::{Expected, RUNS, Refusal, SdistError};
use espalier_core::trajectory::Score;
use serde_json::Value;
use std::path::PathBuf;
use tempfile::TempDir;

/// Name of the experiment.
pub const PROBE: &str = "probe";
/// Letters of a reason that a test run gives.
const REASON_MAX: usize = 300;
/// Most tests that a task names.
const TESTS_MAX: usize = 20_000;

/// An experiment that measures. Its folder goes with it.
#[derive(Debug)]
pub struct Probe {
    folder: TempDir,
}

impl Probe {
    pub(super) fn new(lines: &[String; 2]) -> Result<Probe, SdistError> {
        let failed = || SdistError::machine("a temporary folder");
        let folder = tempfile::Builder::new().prefix("espalier-probe-").tempdir().map_err(failed())?;
        let settings = "settings = { list = true }";
        let experiment = format!(
            "name = \"{PROBE}\"\n[tasks]\nsource = \"tasks.jsonl\"\n\
             [groups]\nsize = {RUNS}\nmin_size = 1\nreplacements = 0\nconcurrent_rollouts = {}\n\
             [harness]\nplugin = \"reference\"\ngrants = [\"private-task\"]\n\
             [sandbox]\n[[rewards]]\nplugin = \"tests-reward\"\n{settings}\n",
            std::thread::available_parallelism().map_or(2, usize::from)
        );
        let write = |name: &str, text: String| std::fs::write(folder.path().join(name), text);
        write("tasks.jsonl", lines.join("\n") + "\n").map_err(failed())?;
        write("probe.toml", experiment).map_err(failed())?;
        Ok(Probe { folder })
    }

    /// The experiment's file.
    pub fn experiment(&self) -> PathBuf {
        self.folder.path().join("probe.toml")
    }

    /// Where its run is kept.
    pub fn store(&self) -> PathBuf {
        self.folder.path().join("store")
    }
}

/// The runs on one source: what each reported, or why it reported nothing.
type Side = Vec<Result<TestRun, String>>;

/// What the runs of a probe reported.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Runs {
    before: Side,
    after: Side,
}

impl Runs {
    /// Adds the last attempt of a rollout of the probe. One without a score is a failure of the machine, which `error` names; where
    /// that is missing too, it counts as not made.
    pub fn add(
        &mut self,
        task_id: &str,
        score: Option<&Score>,
        error: Option<&str>,
    ) -> Result<(), SdistError> {
        let Some(score) = score else {
            let lost =
                error.map(|error| SdistError::Unmeasured(format!("a run of the tests was lost: {error}")));
            return lost.map_or(Ok(()), Err);
        };
        let extra: Value =
            score.extra.as_ref().and_then(|extra| serde_json::from_str(extra).ok()).unwrap_or_default();
        let listed = serde_json::from_value(extra["tests"].clone());
        let side = if task_id == AFTER { &mut self.after } else { &mut self.before };
        side.push(listed.map_err(|_| in_a_line(&score.reason)));
        Ok(())
    }

    /// Whether all runs were made, and each source's reported tests, or none did: anything else says nothing of the releases.
    pub(super) fn agree(&self) -> Result<(), SdistError> {
        let (before, after) = (self.before.len(), self.after.len());
        if [before, after].iter().any(|runs| *runs != RUNS as usize) {
            let text = format!("of {RUNS} runs on each source {before} and {after} were scored");
            return Err(SdistError::Unmeasured(text));
        }
        for (source, side) in [("old", &self.before), ("new", &self.after)] {
            let silent: Vec<&String> = side.iter().filter_map(|run| run.as_ref().err()).collect();
            if let Some(reason) = silent.first().filter(|_| silent.len() < side.len()) {
                let silent = silent.len();
                return Err(SdistError::Unmeasured(format!(
                    "{silent} of {RUNS} runs on the {source} source reported no tests: {reason}"
                )));
            }
        }
        Ok(())
    }
}

/// Text of a test run, as it stands in a list of reasons.
fn in_a_line(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut letters = text.chars();
    let start: String = letters.by_ref().take(REASON_MAX).collect();
    if letters.next().is_some() { start + "..." } else { start }
}

/// What a task can expect of runs that agree, or why there is none.
pub(super) fn judge(runs: &Runs) -> Result<Expected, Refusal> {
    if let Some(reason) = runs.after.iter().find_map(|run| run.as_ref().err()) {
        return Err(Refusal::NoStart(reason.clone()));
    }
    let listed = |side: &Side| -> Vec<TestRun> {
        side.iter().map(|run| run.as_ref().cloned().unwrap_or_default()).collect()
    };
    let expected = expect(&listed(&runs.before), &listed(&runs.after));
    let tests = expected.fail_to_pass.len() + expected.pass_to_pass.len();
    if expected.fail_to_pass.is_empty() {
        let (passing, flaky) = (expected.pass_to_pass.len(), expected.flaky.len());
        return Err(Refusal::NothingFixed { passing, flaky });
    }
    if tests > TESTS_MAX {
        return Err(Refusal::TooMany { tests, most: TESTS_MAX });
    }
    Ok(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(names: &[(&str, &str)]) -> Result<TestRun, String> {
        Ok(names.iter().map(|(name, status)| ((*name).to_owned(), (*status).to_owned())).collect())
    }

    fn silent() -> Result<TestRun, String> {
        Err("no test was reported".to_owned())
    }

    #[test]
    fn what_measures_nothing_is_refused_with_its_reason() {
        let check = |before: Side, after: Side, expect: &str| {
            assert_eq!(judge(&Runs { before, after }).unwrap_err().to_string(), expect);
        };
        check(
            vec![run(&[("a", "PASSED")])],
            vec![silent(), silent()],
            "the tests do not start: no test was reported",
        );
        let same = vec![run(&[("a", "PASSED"), ("b", "FAILED")]); 2];
        check(
            same.clone(),
            same,
            "no test fails before and passes after the change (1 pass in both, 0 are flaky)",
        );
        let many: TestRun = (0..=TESTS_MAX).map(|number| (number.to_string(), "PASSED".to_owned())).collect();
        check(vec![run(&[])], vec![Ok(many)], "20001 tests, at most 20000 are listed");
    }

    #[test]
    fn runs_that_do_not_agree_measure_nothing() {
        let of = |runs: u32, quiet: usize| -> Side {
            let one = |index: u32| if (index as usize) < quiet { silent() } else { run(&[("a", "PASSED")]) };
            (0..runs).map(one).collect()
        };
        let check = |before: Side, after: Side, expect: Option<&str>| {
            let problem = Runs { before, after }.agree().err();
            assert!(problem.iter().all(|problem| !problem.is_final() && problem.hint().is_some()));
            assert_eq!(problem.map(|problem| problem.to_string()).as_deref(), expect);
        };
        check(of(RUNS, 0), of(RUNS, 0), None);
        check(of(RUNS, 5), of(RUNS, 0), None);
        check(of(RUNS, 0), of(RUNS, 5), None);
        let told = "2 of 5 runs on the new source reported no tests: no test was reported";
        check(of(RUNS, 5), of(RUNS, 2), Some(told));
        let told = "1 of 5 runs on the old source reported no tests: no test was reported";
        check(of(RUNS, 1), of(RUNS, 0), Some(told));
        check(of(4, 0), of(RUNS, 0), Some("of 5 runs on each source 4 and 5 were scored"));
    }
}
