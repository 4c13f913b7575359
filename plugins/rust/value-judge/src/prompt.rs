//! What the model is shown: the task, the outcome with the reasons of all scores, and every turn.

use crate::settings::Settings;
use espalier_sdk::serde_json::Value;
use espalier_sdk::{RolloutView, turn_text};
use std::fmt::Write;

/// What it is to do.
pub const SYSTEM: &str = "You review the work of an agent that did not solve its task, and you know how it ended. For turns of the \
    agent, estimate the probability that the task would be solved, given everything up to the beginning of that turn.\n\n\
    Work backwards from the outcome. Find out what went wrong, and in which turn. The estimate rises where the agent found or did \
    something that a solution needs. It falls no later than the turn after the decisive mistake, and stays low from there to the end. A \
    usual beginning is between 0.3 and 0.5; the last turns are below 0.2. Turns in which nothing changes may be left out: values between \
    two estimates are interpolated.\n\n\
    Answer with one JSON list, and nothing behind it: [{\"turn\": 0, \"value\": 0.4, \"reason\": \"...\"}, ...]";

/// The question about a rollout with this reward; `shown`: what the judge is shown of its scores.
pub fn question(rollout: &RolloutView, reward: f64, shown: &Value, settings: &Settings) -> String {
    let mut text = format!("# Task\n\n{}", cut(&rollout.task.instruction, settings));
    let private = rollout.task.private_data.as_deref().filter(|_| settings.show_private);
    if let Some(private) = private {
        let _ =
            write!(text, "\n\n# For you alone: what is known of the solution\n\n{}", cut(private, settings));
    }
    let _ = write!(
        text,
        "\n\n# Outcome\n\nThe task was not solved: reward {reward}, ended as {}.",
        rollout.stop_reason
    );
    for score in shown["scores"].as_array().into_iter().flatten() {
        let name = |key: &str| score[key].as_str().unwrap_or_default().to_owned();
        let _ = write!(text, "\n{} {} = {}", name("plugin"), name("name"), score["value"]);
        if let Some(turn) = score["turn"].as_u64() {
            let _ = write!(text, " in turn {turn}");
        }
        for key in ["reason", "extra"] {
            let told = match &score[key] {
                Value::String(told) => told.clone(),
                Value::Null => continue,
                other => other.to_string(),
            };
            if !told.is_empty() {
                let _ = write!(text, "\n  {}", cut(&told, settings));
            }
        }
    }
    if let Some(answer) = rollout.answer() {
        let _ = write!(text, "\n\n# Final answer\n\n{}", cut(answer, settings));
    }
    for (number, turn) in rollout.turns.iter().enumerate() {
        let _ = write!(text, "\n\n# Turn {number}\n\n{}", turn_text(turn, settings.text_max as usize));
    }
    let last = rollout.turns.len().saturating_sub(1);
    let _ = write!(text, "\n\n# Question\n\nGive the values of turns 0 to {last}.");
    text
}

/// A text as it is shown.
fn cut(text: &str, settings: &Settings) -> String {
    espalier_sdk::cut(text, settings.text_max as usize)
}
