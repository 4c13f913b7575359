//! What the model is shown: the task, the rubric, the turns, and for a turn nothing of what came later.

use crate::settings::{Form, Settings};
use espalier_sdk::{Part, RolloutView, Turn, turn_text};
use std::fmt::Write;

/// The question about the outcome.
pub fn outcome(rollout: &RolloutView, settings: &Settings) -> String {
    let mut text = opening(rollout, settings);
    let shown = settings.turns_shown as usize;
    let first = rollout.turns.len().saturating_sub(shown);
    turns(&mut text, &rollout.turns[first..], settings);
    let _ = write!(text, "\n\n# How it ended\n\n{}", rollout.stop_reason);
    let answer = rollout.answer().map_or_else(|| "none".to_owned(), |answer| cut(answer, settings));
    let _ = write!(text, "\n\n# Final answer\n\n{answer}");
    let private = rollout.task.private_data.as_deref().filter(|_| settings.show_private);
    if let Some(private) = private {
        let _ =
            write!(text, "\n\n# For you alone: what is known of the solution\n\n{}", cut(private, settings));
    }
    let _ = write!(text, "\n\n# Question\n\n{}", settings.rubric);
    text + &wanted(settings)
}

/// The question about one turn, which is shown what came before it.
pub fn turn(rollout: &RolloutView, turn: usize, settings: &Settings) -> String {
    let mut text = opening(rollout, settings);
    let first = turn.saturating_sub(settings.turns_shown as usize);
    turns(&mut text, &rollout.turns[first..turn], settings);
    let judged = &rollout.turns[turn];
    let _ = write!(
        text,
        "\n\n# The turn to judge (turn {turn})\n\n{}",
        turn_text(judged, settings.text_max as usize)
    );
    let _ = write!(text, "\n\n# Question\n\n{}", settings.turn_rubric);
    text + &wanted(settings)
}

/// The last images of the first turns, in order.
pub fn images(rollout: &RolloutView, turns: usize, last: u32) -> Vec<String> {
    let messages =
        rollout.turns[..turns].iter().flat_map(|turn| std::iter::once(&turn.message).chain(&turn.answers));
    let images = messages.flat_map(|message| &message.parts).filter_map(|part| match part {
        Part::Image(blob) => Some(blob.clone()),
        _ => None,
    });
    let all: Vec<String> = images.collect();
    all[all.len().saturating_sub(last as usize)..].to_vec()
}

fn opening(rollout: &RolloutView, settings: &Settings) -> String {
    format!("You judge the work of an agent.\n\n# Task\n\n{}", cut(&rollout.task.instruction, settings))
}

fn turns(text: &mut String, turns: &[Turn], settings: &Settings) {
    for turn in turns {
        let _ = write!(text, "\n\n# Turn {}\n\n{}", turn.index, turn_text(turn, settings.text_max as usize));
    }
}

/// A text as it is shown.
fn cut(text: &str, settings: &Settings) -> String {
    espalier_sdk::cut(text, settings.text_max as usize)
}

fn wanted(settings: &Settings) -> String {
    let Settings { lowest, highest, .. } = settings;
    match settings.form {
        Form::Boxed => format!(
            "\n\nThink briefly, then end with \\boxed{{VALUE}}: a number from {lowest} (no) to {highest} (yes)."
        ),
        Form::Json => format!(
            "\n\nAnswer with one JSON object: {{\"reason\": \"...\", \"score\": VALUE}}, where VALUE is a number from {lowest} (no) \
             to {highest} (yes)."
        ),
        Form::Line => "\n\nThink briefly, then end with one line: VERDICT: yes or VERDICT: no.".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_keeps_its_beginning_and_its_end() {
        let settings = Settings { text_max: 10, ..Settings::default() };
        assert_eq!(cut("0123456789", &settings), "0123456789");
        assert_eq!(cut("0123456789abcdef", &settings), "01234\n[6 characters left out]\nbcdef");
    }
}
