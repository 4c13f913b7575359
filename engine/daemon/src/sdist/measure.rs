//! Which tests pass on which source, as the reward that will score the task sees it: two tasks without expectations, one with the
//! reference applied and one as it stands, each run several times by the engine itself.

use super::{RUNS, SdistError};
use crate::cli::exit::Exit;
use crate::output::problem::Problem;
use espalier_core::dataset::sdist::{Expected, Refusal, TestRun, expect};
use espalier_store::Store;
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

/// What the runs of a probe reported.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Runs {
    before: Vec<TestRun>,
    after: Vec<TestRun>,
    /// Why a run with the reference reported nothing.
    no_start: Option<String>,
}

/// Reads them. A run without a score is a failure of the machine, and measures nothing.
pub async fn runs_of(store: &Store, run_id: &str) -> Result<Runs, Problem> {
    let mut runs = Runs::default();
    for group in store.groups(run_id).await? {
        let after = group.opened.task_id == "after";
        for attempt in store.attempts(run_id, group.opened.group_index).await? {
            let score = store.record(&attempt).await?.and_then(|record| {
                record
                    .scores
                    .into_iter()
                    .find(|score| score.plugin == "tests-reward")
                    .map(|score| score.score)
            });
            let Some(score) = score else {
                if let Some(error) = attempt.error {
                    let text = format!("a run of the tests was lost: {error}");
                    return Err(Problem::new(Exit::Unavailable, text).hint("the same command goes on"));
                }
                continue;
            };
            let extra: Value =
                score.extra.and_then(|extra| serde_json::from_str(&extra).ok()).unwrap_or_default();
            let listed: Option<TestRun> = serde_json::from_value(extra["tests"].clone()).ok();
            if listed.is_none() && after {
                runs.no_start = Some(in_a_line(&score.reason));
            }
            let side = if after { &mut runs.after } else { &mut runs.before };
            side.push(listed.unwrap_or_default());
        }
    }
    if runs.before.len() != RUNS as usize || runs.after.len() != RUNS as usize {
        let (before, after) = (runs.before.len(), runs.after.len());
        let text = format!("of {RUNS} runs on each source {before} and {after} were scored");
        return Err(Problem::new(Exit::Unavailable, text).hint("the same command goes on"));
    }
    Ok(runs)
}

/// Text of a test run, as it stands in a list of reasons.
fn in_a_line(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut letters = text.chars();
    let start: String = letters.by_ref().take(REASON_MAX).collect();
    if letters.next().is_some() { start + "..." } else { start }
}

/// What a task can expect, or why there is none.
pub(super) fn judge(runs: &Runs) -> Result<Expected, Refusal> {
    if let Some(reason) = &runs.no_start {
        return Err(Refusal::NoStart(reason.clone()));
    }
    let expected = expect(&runs.before, &runs.after);
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

    #[test]
    fn what_measures_nothing_is_refused_with_its_reason() {
        let run = |names: &[(&str, &str)]| -> TestRun {
            names.iter().map(|(name, status)| ((*name).to_owned(), (*status).to_owned())).collect()
        };
        let check = |runs: Runs, expect: &str| assert_eq!(judge(&runs).unwrap_err().to_string(), expect);
        check(
            Runs { no_start: Some("no test was reported".to_owned()), ..Runs::default() },
            "the tests do not start: no test was reported",
        );
        let same = vec![run(&[("a", "PASSED"), ("b", "FAILED")]); 2];
        check(
            Runs { before: same.clone(), after: same, no_start: None },
            "no test fails before and passes after (1 pass in both, 0 now and then)",
        );
        let many: TestRun = (0..=TESTS_MAX).map(|number| (number.to_string(), "PASSED".to_owned())).collect();
        check(
            Runs { before: vec![run(&[])], after: vec![many], no_start: None },
            "20001 tests, at most 20000 are named",
        );
    }
}
