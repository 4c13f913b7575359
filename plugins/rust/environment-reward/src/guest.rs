//! The component's exports.

espalier_sdk::bindings!("reward-plugin");

use crate::{Settings, reason, score};
use bindings::exports::espalier::plugin::reward::{RolloutView, Score};

espalier_sdk::reward!(Settings, score_rollout);

fn score_rollout(rollout: RolloutView, Settings { take }: Settings) -> Result<Vec<Score>, Failure> {
    let rewards: Vec<Option<f64>> = rollout.steps.iter().map(|step| step.reward).collect();
    Ok(vec![Score {
        name: "reward".to_owned(),
        value: score(take, &rewards),
        turn: None,
        reason: reason(take, &rewards),
        extra: None,
    }])
}
