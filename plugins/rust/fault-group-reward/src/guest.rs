//! The component's exports.

espalier_sdk::bindings!("group-reward-plugin");

use crate::faults::misbehave;
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
        "short" => drop(scores.pop()),
        "failure" => return Err(Failure::Unavailable("no ground to score on".to_owned())),
        _ => {}
    }
    Ok(scores)
}
