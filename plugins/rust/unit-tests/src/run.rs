//! Running solutions: a fresh sandbox for each test of each solution, one after another.

use crate::allowance::Allowance;
use crate::matrix::{Matrix, Worth};
use crate::settings::{Settings, Solution};
use crate::tests::{Origin, Test, code, given, written};
use espalier_sdk::serde_json::json;
use espalier_sdk::wit::espalier::sandbox::sandboxes::Command;
use espalier_sdk::{Failure, RolloutView, Sandbox, Score, invalid, shell};

/// Scores the rollouts of a group. Errors: `invalid` where there is no test to count, and those of sandboxes.
pub fn score(rollouts: Vec<RolloutView>, settings: Settings) -> Result<Vec<Vec<Score>>, Failure> {
    let private = rollouts.first().and_then(|rollout| rollout.task.private_data.as_deref());
    let mut tests = given(private, &settings).map_err(invalid)?;
    let count = tests.len();
    for (place, rollout) in rollouts.iter().enumerate() {
        let data = rollout.report.as_ref().map(|report| report.data.as_str());
        tests.extend(written(place, data, &settings));
    }
    let (mut passed, mut not_run) = (Vec::with_capacity(rollouts.len()), Vec::new());
    for rollout in &rollouts {
        let (row, left_out) = row(rollout, &tests, Allowance::new(rollouts.len(), &settings), &settings)?;
        passed.push(row);
        not_run.push(left_out);
    }
    let matrix = Matrix { passed, given: count };
    let (shares, counted) = matrix.shares(settings.counted).ok_or_else(|| {
        invalid(format_args!(
            "there is no test to count: neither private.{} nor `written` has any",
            settings.field
        ))
    })?;
    let worth = matrix.written();
    let scores = shares.into_iter().enumerate().map(|(place, share)| {
        let row = &matrix.passed[place];
        let told: String = row.iter().map(|passed| if *passed { '1' } else { '0' }).collect();
        let mut reason =
            format!("{:.0} of {counted} tests passed; all tests: {told}", share * counted as f64);
        if not_run[place] > 0 {
            reason += &format!("; {} not run: `written_time_s` is used up", not_run[place]);
        }
        let right = matrix.is_right(place);
        let extra = json!({ "passed": row, "given": count, "right": right, "not_run": not_run[place] });
        let mut scores = vec![Score::reward(share).because(reason).with(extra)];
        scores.extend(worth.as_ref().and_then(|worth| of_tests(place, &tests[count..], worth)));
        scores
    });
    Ok(scores.collect())
}

/// What the tests of one rollout are worth, `None` where it wrote none: the score `tests`, their mean.
fn of_tests(rollout: usize, tests: &[Origin], worth: &[Worth]) -> Option<Score> {
    let own = tests.iter().zip(worth).filter(|(test, _)| test.rollout == Some(rollout));
    let own: Vec<&Worth> = own.map(|(_, worth)| worth).collect();
    let mean = own.iter().map(|worth| worth.reward).sum::<f64>() / own.len() as f64;
    let each =
        own.iter().map(|one| json!({ "valid": one.valid, "reward": one.reward, "z_score": one.z_score }));
    let extra = json!({ "tests": each.collect::<Vec<_>>() });
    let valid = own.iter().filter(|one| one.valid).count();
    let reason = format!("{valid} of {} written tests let every right solution pass", own.len());
    (!own.is_empty()).then(|| Score::named("tests", mean).because(reason).with(extra))
}

/// Which tests a rollout's solution passes, and how many were not run for want of time. One without a solution passes none.
fn row(
    rollout: &RolloutView,
    tests: &[Origin],
    mut allowance: Allowance,
    settings: &Settings,
) -> Result<(Vec<bool>, usize), Failure> {
    let solution = match settings.solution {
        Solution::Answer => rollout.answer().map(|answer| Work::Code(code(answer))),
        Solution::Changes => changes(&rollout.blobs, &settings.sandbox)?.map(Work::Changes),
    };
    let Some(solution) = solution else { return Ok((vec![false; tests.len()], 0)) };
    let (mut passed, mut not_run) = (Vec::with_capacity(tests.len()), 0);
    for Origin { test, rollout: writer } in tests {
        let Some(limit) = allowance.limit(*writer) else {
            passed.push(false);
            not_run += 1;
            continue;
        };
        // What a solution or a written test has done to a sandbox must not tell in the next one.
        let (passes, took) = passes(&solution.place(settings)?, test, limit, settings)?;
        allowance.spend(*writer, took);
        passed.push(passes);
    }
    Ok((passed, not_run))
}

/// The blob with what a rollout changed in a sandbox; `None`: it has none. Errors: `unavailable` where the engine could not take it.
fn changes<'a>(blobs: &'a [(String, String)], sandbox: &str) -> Result<Option<&'a str>, Failure> {
    let name = format!("changes:{sandbox}");
    let missing = format!("{name}:unavailable");
    if blobs.iter().any(|(blob, _)| *blob == missing) {
        let text = format!("what a rollout changed in sandbox {sandbox} could not be taken: see its log");
        return Err(Failure::Unavailable(text));
    }
    Ok(blobs.iter().find(|(blob, _)| *blob == name).map(|(_, blob)| blob.as_str()))
}

/// The work of a rollout.
#[derive(Clone, Copy)]
enum Work<'a> {
    Code(&'a str),
    /// A blob.
    Changes(&'a str),
}

impl Work<'_> {
    /// A fresh sandbox with the work in it.
    fn place(self, settings: &Settings) -> Result<Sandbox, Failure> {
        let sandbox = Sandbox::fresh(&settings.sandbox)?;
        match self {
            Work::Code(code) => sandbox.write(&settings.file, code.as_bytes())?,
            Work::Changes(changes) => sandbox.0.apply_changes(changes)?,
        }
        Ok(sandbox)
    }
}

/// Whether a test passes, and the milliseconds that it took.
fn passes(
    sandbox: &Sandbox,
    test: &Test,
    limit_ms: u64,
    settings: &Settings,
) -> Result<(bool, u64), Failure> {
    let command = match test {
        Test::Stdio { input, .. } => {
            Command { stdin: Some(input.clone().into_bytes()), ..shell(&settings.run) }
        }
        Test::Script { script } => shell(script),
    };
    let outcome =
        sandbox.0.exec(&Command { timeout_ms: Some(limit_ms), output_max: Some(1 << 20), ..command })?;
    let whole = outcome.stdout.left_out == 0;
    Ok((outcome.succeeded() && whole && test.accepts(&outcome.stdout.head), outcome.duration_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_that_could_not_be_taken_are_not_missing() {
        let blobs = |names: &[&str]| -> Vec<(String, String)> {
            names.iter().map(|name| ((*name).to_owned(), format!("blob of {name}"))).collect()
        };
        for (names, expect) in [
            (&[][..], Some(None)),
            (&["changes:other", "changes:other:unavailable"], Some(None)),
            (&["patch", "changes:main"], Some(Some("blob of changes:main"))),
            (&["changes:main:unavailable"], None),
        ] {
            let blobs = blobs(names);
            let found = changes(&blobs, "main");
            let unavailable = matches!(&found, Err(Failure::Unavailable(_)));
            assert_eq!((found.ok(), unavailable), (expect, expect.is_none()), "{names:?}");
        }
    }
}
