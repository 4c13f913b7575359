//! The component's exports.

espalier_sdk::bindings!("reward-plugin");

use crate::faults::misbehave;
use bindings::espalier::base::clock;
use bindings::exports::espalier::plugin::reward::{RolloutView, Score};
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

espalier_sdk::reward!(Settings, score_rollout);

fn score_rollout(rollout: RolloutView, Settings { fault }: Settings) -> Result<Vec<Score>, Failure> {
    misbehave(if fault == "unmended-sandbox" { "unmended" } else { &fault });
    let before = clock::now_ms();
    let mut score = Score {
        name: "reward".to_owned(),
        value: rollout.steps.iter().filter_map(|step| step.reward).sum(),
        turn: None,
        reason: format!("{} steps, clock moved by {}", rollout.steps.len(), clock::now_ms() - before),
        extra: None,
    };
    match fault.as_str() {
        "judges" => score.reason = rollout.extra.unwrap_or_default(),
        "nan" => score.value = f64::NAN,
        "infinite" => score.value = f64::INFINITY,
        "turn" => score.turn = Some(99),
        "nameless" => score.name = String::new(),
        "failure" => return Err(Failure::Unavailable("no ground to score on".to_owned())),
        "unmended-sandbox" => drop(bindings::espalier::sandbox::sandboxes::open("main")?),
        "import-loop" => loop {
            clock::now_ms();
        },
        "blob" => {
            let step = rollout.steps.first().ok_or_else(|| invalid("no step"))?;
            let whole = step.observation_blob.as_ref().ok_or_else(|| invalid("no blob"))?;
            let length = bindings::espalier::base::blobs::stat(whole)?.length;
            score.reason = format!("{} of {length}", step.observation.len());
        }
        _ => {}
    }
    Ok(vec![score])
}
