//! The judge `{{name}}`: asks a model several times whether the answer meets a rubric.

use espalier_sdk::{Conversation, Failure, Judgement, RolloutView, Score, Vote, other};
use schemars::JsonSchema;
use serde::Deserialize;

const SYSTEM: &str = "You are a strict judge. Think briefly, then end with \\boxed{1} if the rubric is met, else \\boxed{0}.";

/// What an experiment can set in `[judges.settings]`. Doc comments become the descriptions of the schema.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// What the answer must be like.
    pub rubric: String,
    /// Number of times that the model is asked.
    #[schemars(range(min = 1, max = 9))]
    pub votes: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            rubric: "The answer is correct and complete.".to_owned(),
            votes: 3,
        }
    }
}

/// Judges a finished rollout. A failure leaves it without a score, which is not a score of 0.
pub fn judge(rollout: RolloutView, settings: Settings) -> Result<Judgement, Failure> {
    let (rubric, task) = (&settings.rubric, &rollout.task.instruction);
    let answer = rollout.answer().unwrap_or("(none)");
    // The model that the experiment gives to a judge is always called `judge`.
    let mut chat = Conversation::with("judge");
    chat.system(SYSTEM).user(format!(
        "Rubric: {rubric}\n\nTask: {task}\n\nAnswer: {answer}"
    ));
    let answers = chat.complete_many(settings.votes)?;
    let votes: Vec<Vote> = answers
        .into_iter()
        .map(|(_, answer)| Vote::of_outcome(verdict(&answer.text), answer.text, answer.call))
        .collect();

    // A vote that cannot be read is not a vote against.
    let values: Vec<f64> = votes.iter().filter_map(|vote| vote.value).collect();
    if values.is_empty() {
        return Err(other(
            "no-verdict",
            format!("none of the {} votes could be parsed", votes.len()),
        ));
    }
    let sum: f64 = values.iter().sum();
    let score = Score::reward(sum / values.len() as f64)
        .because(format!("{sum} of {} votes for", values.len()));
    Ok(Judgement::of(vec![score], votes))
}

/// What the last box of an answer says.
fn verdict(answer: &str) -> Option<f64> {
    let last = answer.rfind("\\boxed{0}").max(answer.rfind("\\boxed{1}"))?;
    Some(if answer[last..].starts_with("\\boxed{1}") {
        1.0
    } else {
        0.0
    })
}

espalier_sdk::judge!(Settings, judge);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_box_counts() {
        assert_eq!(verdict("Not \\boxed{0} but \\boxed{1}."), Some(1.0));
        assert_eq!(verdict("\\boxed{1} \\boxed{0}"), Some(0.0));
        assert_eq!(verdict("\\boxed{2}"), None);
    }
}
