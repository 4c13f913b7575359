//! The component's exports.

espalier_sdk::bindings!("group-reward-plugin");

use crate::{Rollout, Settings, Unit, own_reward, scores};
use bindings::espalier::base::blobs;
use bindings::espalier::model::messages::Part;
use bindings::exports::espalier::plugin::group_reward::{RolloutView, Score};

espalier_sdk::group_reward!(Settings, score_group);

/// Bytes of a text in a blob that are read at once.
const READ_BYTES: u32 = 1 << 20;

fn score_group(rollouts: Vec<RolloutView>, settings: Settings) -> Result<Vec<Vec<Score>>, Failure> {
    let mut seen = Vec::with_capacity(rollouts.len());
    for rollout in &rollouts {
        let length = match settings.unit {
            Unit::Turns => rollout.turns.len() as u64,
            Unit::Characters => characters(rollout)?,
        };
        let reward = own_reward(rollout.extra.as_deref()).map_err(invalid)?;
        seen.push(Rollout { length, reward });
    }
    let unit = match settings.unit {
        Unit::Turns => "turns",
        Unit::Characters => "characters",
    };
    let (least, most) = (seen.iter().map(|one| one.length).min(), seen.iter().map(|one| one.length).max());
    let (least, most) = (least.unwrap_or(0), most.unwrap_or(0));
    let scored = scores(&settings, &seen).into_iter().zip(&seen).map(|(value, one)| {
        let reason =
            format!("{} {unit}, the group has {least} to {most}; own reward {}", one.length, one.reward);
        vec![Score { name: "reward".to_owned(), value, turn: None, reason, extra: None }]
    });
    Ok(scored.collect())
}

fn characters(rollout: &RolloutView) -> Result<u64, Failure> {
    let mut count = 0;
    for part in rollout.turns.iter().flat_map(|turn| &turn.message.parts) {
        match part {
            Part::Text(text) => count += text.chars().count() as u64,
            Part::TextBlob(blob) => count += characters_of(blob)?,
            _ => {}
        }
    }
    Ok(count)
}

/// Characters of a text that is a blob: bytes of UTF-8 that do not go on with one.
fn characters_of(blob: &str) -> Result<u64, Failure> {
    let (mut count, mut offset) = (0, 0);
    loop {
        let bytes = blobs::read(blob, offset, READ_BYTES)?;
        if bytes.is_empty() {
            return Ok(count);
        }
        offset += bytes.len() as u64;
        count += bytes.iter().filter(|byte| **byte & 0xC0 != 0x80).count() as u64;
    }
}
