//! The judge `llm-judge`: a model judges the outcome of a rollout, its turns, or both, by a rubric, with several votes.
//!
//! What an answer must look like is in [`verdict`]; what the model is shown, in [`prompt`]. Nothing is guessed: where no vote
//! could be parsed, the judge fails.

pub mod prompt;
pub mod settings;
pub mod verdict;

use espalier_sdk::{Conversation, Failure, Judgement, RolloutView, Score, Vote, other};
use settings::{About, Settings};
use verdict::{Verdict, aggregate};

/// Judges a rollout. Errors: `invalid` where `lowest` is not below `highest`, `other("unparsed")` where no vote could be parsed, and those of the model.
pub fn judge(rollout: RolloutView, settings: Settings) -> Result<Judgement, Failure> {
    settings.check()?;
    let mut judge = Judge { settings: &settings, votes: Vec::new(), asked: 0 };
    let mut scores = Vec::new();
    if settings.about != About::Turns {
        let images = prompt::images(&rollout, rollout.turns.len(), settings.images);
        let text = prompt::outcome(&rollout, &settings);
        let verdicts = judge.ask(None, text, images)?;
        if let Some((value, reason)) = aggregate(&verdicts, &settings) {
            scores.push(Score::reward(value).because(reason));
        }
    }
    if settings.about != About::Outcome {
        for turn in 0..rollout.turns.len() {
            let images = prompt::images(&rollout, turn + 1, settings.images);
            let text = prompt::turn(&rollout, turn, &settings);
            judge.ask(Some(turn as u32), text, images)?;
        }
    }
    let Judge { votes, asked, .. } = judge;
    let unparsed = |about: &str, count: usize| {
        Err(other(
            "unparsed",
            format_args!("no verdict {about} in {count} answers of the model; {}", settings.form.wanted()),
        ))
    };
    if settings.about != About::Turns && scores.is_empty() {
        return unparsed("on the outcome", votes.iter().filter(|vote| vote.turn.is_none()).count());
    }
    if asked > 0 && votes.iter().all(|vote| vote.value.is_none()) {
        return unparsed("at all", asked);
    }
    Ok(Judgement::of(scores, votes))
}

struct Judge<'a> {
    settings: &'a Settings,
    votes: Vec<Vote>,
    asked: usize,
}

impl Judge<'_> {
    /// Asks for the votes about one turn, or the outcome.
    fn ask(&mut self, turn: Option<u32>, text: String, images: Vec<String>) -> Result<Vec<Verdict>, Failure> {
        let mut chat = Conversation::with("judge");
        if let Some(system) = &self.settings.system {
            chat.system(system.as_str());
        }
        chat.user_with_images(text, images);
        chat.options.max_tokens = self.settings.max_tokens;
        chat.options.temperature = self.settings.temperature;
        let mut verdicts = Vec::new();
        for (_, answer) in chat.complete_many(self.settings.votes)? {
            let verdict = verdict::parse(&answer.text, self.settings);
            let value = verdict.as_ref().ok().map(|told| told.value);
            let vote = match turn {
                Some(turn) => Vote::of_turn(turn, value, answer.text, answer.call),
                None => Vote::of_outcome(value, answer.text, answer.call),
            };
            self.votes.push(vote);
            self.asked += 1;
            verdicts.extend(verdict.ok());
        }
        Ok(verdicts)
    }
}

espalier_sdk::judge!(Settings, judge);
