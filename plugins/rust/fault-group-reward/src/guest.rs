//! The component's exports.

espalier_sdk::bindings!("group-reward-plugin");

use crate::faults::misbehave;
use bindings::espalier::sandbox::sandboxes::{self, Path};
use bindings::espalier::sandbox::scoring;
use bindings::exports::espalier::plugin::group_reward::{RolloutView, Score};
use espalier_sdk::{schemars, serde};

/// What goes wrong.
#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(crate = "espalier_sdk::serde", deny_unknown_fields)]
#[schemars(crate = "espalier_sdk::schemars")]
struct Settings {
    /// Name of the fault; `none` behaves.
    #[serde(default = "none")]
    fault: String,
}

fn none() -> String {
    "none".to_owned()
}

espalier_sdk::group_reward!(Settings, score_group);

/// Each rollout is worth its place.
fn score_group(rollouts: Vec<RolloutView>, Settings { fault }: Settings) -> Result<Vec<Vec<Score>>, Failure> {
    misbehave(&fault);
    let score = |place: usize| Score {
        name: "reward".to_owned(),
        value: if fault == "nan" { f64::NAN } else { place as f64 },
        turn: None,
        reason: format!("place {place} of {}", rollouts.len()),
        extra: None,
    };
    let mut scores: Vec<Vec<Score>> = (0..rollouts.len()).map(|place| vec![score(place)]).collect();
    match fault.as_str() {
        "changes" => {
            for (score, rollout) in scores.iter_mut().flatten().zip(&rollouts) {
                score.reason = seen_of(rollout)?;
            }
        }
        "short" => drop(scores.pop()),
        "failure" => return Err(Failure::Unavailable("no ground to score on".to_owned())),
        _ => {}
    }
    Ok(scores)
}

/// What can be had of a rollout when its sandboxes are gone: what it changed, in a fresh one; and how many of these there may be.
fn seen_of(rollout: &RolloutView) -> Result<String, Failure> {
    let opened = match sandboxes::open("main") {
        Ok(_) => "it is there".to_owned(),
        Err(Failure::Invalid(text)) => format!("invalid: {text}"),
        Err(other) => return Err(other),
    };
    let changes = rollout.blobs.iter().find(|(name, _)| name == "changes:main");
    let (_, changes) = changes.ok_or_else(|| invalid("no changes"))?;
    let mut fresh = Vec::new();
    let bound = loop {
        match scoring::open_fresh("main") {
            Ok(sandbox) => fresh.push(sandbox),
            Err(Failure::Other(other)) => break other.code,
            Err(other) => return Err(other),
        }
    };
    let first = fresh.first().ok_or_else(|| invalid("no fresh sandbox"))?;
    first.apply_changes(changes)?;
    let bytes = first.read_file(&Path::Text("out".to_owned()), 0, 100)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(format!("out: {}; {} fresh, then {bound}; open: {opened}", text.trim(), fresh.len()))
}
