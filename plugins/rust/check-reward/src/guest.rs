//! The component's exports.

espalier_sdk::bindings!("reward-plugin");

use crate::{Ended, Place, Settings, Tests, score, tests};
use bindings::espalier::base::types::BudgetKind;
use bindings::espalier::sandbox::sandboxes::{self, Command, Ending, Program, Sandbox};
use bindings::espalier::sandbox::scoring::open_fresh;
use bindings::exports::espalier::plugin::reward::{RolloutView, Score};
use espalier_sdk::Timeout;

/// Bytes of the tests' output that are looked at.
const OUTPUT_BYTES: u32 = 64 << 10;

espalier_sdk::reward!(Settings, score_rollout);

fn score_rollout(rollout: RolloutView, settings: Settings) -> Result<Vec<Score>, Failure> {
    let Tests { script, timeout, place } = tests(rollout.task.private_data.as_deref()).map_err(invalid)?;
    let Timeout(timeout_ms) = timeout.unwrap_or(Timeout(settings.timeout_s.saturating_mul(1_000)));
    let sandbox = match ground(&settings.sandbox, place.unwrap_or(settings.place)) {
        Ok(sandbox) => sandbox,
        Err(failure) => match too_large(&failure) {
            Some(reason) => return Ok(scored(0.0, reason)),
            None => return Err(failure),
        },
    };
    let outcome = sandbox.exec(&Command {
        program: Program::Shell(script),
        cwd: None,
        env: Vec::new(),
        stdin: None,
        user: settings.user.clone(),
        timeout_ms: Some(timeout_ms),
        output_max: Some(OUTPUT_BYTES),
        keep_whole: false,
        merge_stderr: true,
        terminal: None,
        extra: None,
    })?;
    let ended = match outcome.ending {
        Ending::ExitCode(code) => Ended::ExitCode(code),
        Ending::Signal(number) => Ended::Otherwise(format!("ended by signal {number}")),
        Ending::TimedOut => Ended::Otherwise(format!("not done after {} ms", outcome.duration_ms)),
        Ending::OutOfMemory => Ended::Otherwise("killed for memory".to_owned()),
        Ending::Other(how) => Ended::Otherwise(how),
    };
    let output = outcome.stdout.head + &outcome.stdout.tail;
    let (value, reason) = score(&ended, &output, settings.points);
    Ok(scored(value, reason))
}

fn scored(value: f64, reason: String) -> Vec<Score> {
    vec![Score { name: "reward".to_owned(), value, turn: None, reason, extra: None }]
}

/// Whether work cannot be taken to clean ground because of what it is: that is the policy's doing, and no failure of machines,
/// which would be tried again and then leave the rollout without a score.
fn too_large(failure: &Failure) -> Option<String> {
    let why = match failure {
        Failure::Other(other) if matches!(&*other.code, "bound" | "disk-full") => other.text.as_str(),
        Failure::Budget(BudgetKind::BlobBytes) => "more than `limits.blob_bytes`",
        _ => return None,
    };
    Some(format!("the changes are too large: {why}"))
}

/// The sandbox to run the tests in.
fn ground(name: &str, place: Place) -> Result<Sandbox, Failure> {
    let left = sandboxes::open(name)?;
    if place == Place::Place {
        return Ok(left);
    }
    let work = left.changes(None)?;
    let fresh = open_fresh(name)?;
    fresh.apply_changes(&work.blob)?;
    Ok(fresh)
}
