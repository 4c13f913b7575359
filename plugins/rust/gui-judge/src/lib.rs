//! The judge `gui-judge`: a model judges what an agent did in a browser, by its actions, what came of them, and its last screenshots.
//!
//! One score `reward`: 1 for success, else 0. A captcha removes the sample. [`verdict`] is what an answer must say, [`prompt`] what the
//! model is shown. Nothing is guessed: where no answer has a verdict, the judge fails.

pub mod prompt;
pub mod settings;
pub mod verdict;

use espalier_sdk::{Conversation, Failure, Judgement, Message, Part, RolloutView, Score, Turn, Vote, other};
use prompt::{Told, ToldTurn};
use settings::Settings;
use verdict::Verdict;

/// An ending that needs no judge: it is a failure, whatever the browser shows.
const FORMAT: &str = "limit-format";

/// Judges a rollout. Errors: `other("unparsed")` where no answer has a verdict, and those of the model.
pub fn judge(rollout: RolloutView, settings: Settings) -> Result<Judgement, Failure> {
    if rollout.stop_reason == FORMAT {
        let why = "ended by answers that do not parse; the model was not asked";
        return Ok(Judgement::of(vec![score(Verdict::Failure, why.to_owned())], Vec::new()));
    }
    let mut chat = Conversation::with("judge");
    if let Some(system) = &settings.system {
        chat.system(system.as_str());
    }
    chat.user_with_images(prompt::question(&told(&rollout), &settings), images(&rollout, settings.images));
    chat.options.max_tokens = settings.max_tokens;
    chat.options.temperature = settings.temperature;
    let (mut votes, mut verdicts, mut unread) = (Vec::new(), Vec::new(), String::new());
    for (_, answer) in chat.complete_many(settings.votes)? {
        let verdict = verdict::parse(&answer.text);
        let value = verdict.as_ref().ok().and_then(|verdict| verdict.value());
        votes.push(Vote::of_outcome(value, answer.text, answer.call));
        match verdict {
            Ok(verdict) => verdicts.push(verdict),
            Err(why) => unread = why,
        }
    }
    let Some((verdict, told)) = verdict::aggregate(&verdicts) else {
        let text = format_args!("no verdict in {} answers of the model; the last: {unread}", votes.len());
        return Err(other("unparsed", text));
    };
    Ok(Judgement::of(vec![score(verdict, told)], votes))
}

fn score(verdict: Verdict, why: String) -> Score {
    let score = Score::reward(verdict.value().unwrap_or(0.0)).because(why);
    let word = verdict.word();
    match verdict {
        Verdict::Captcha => {
            score.with(espalier_sdk::serde_json::json!({ "verdict": word, "remove_sample": "captcha" }))
        }
        _ => score.with(espalier_sdk::serde_json::json!({ "verdict": word })),
    }
}

fn told(rollout: &RolloutView) -> Told {
    let turn = |turn: &Turn| ToldTurn {
        text: text_of(&turn.message),
        calls: turn.tool_calls.iter().map(|call| (call.name.clone(), call.arguments.clone())).collect(),
        results: turn.answers.iter().map(text_of).filter(|text| !text.is_empty()).collect(),
    };
    Told {
        instruction: rollout.task.instruction.clone(),
        turns: rollout.turns.iter().map(turn).collect(),
        stop_reason: rollout.stop_reason.clone(),
        answer: rollout.answer().map(str::to_owned),
        private: rollout.task.private_data.clone(),
    }
}

fn text_of(message: &Message) -> String {
    let parts = message.parts.iter().filter_map(|part| match part {
        Part::Text(text) => Some(text.clone()),
        Part::TextBlob(_) => Some("[a text too long to show]".to_owned()),
        Part::ToolResult(result) => Some(result.text.clone()),
        Part::Image(_) | Part::ToolCall(_) | Part::Other(_) => None,
    });
    parts.collect::<Vec<_>>().join("\n")
}

/// The last screenshots, oldest first.
fn images(rollout: &RolloutView, last: u32) -> Vec<String> {
    let messages = rollout.turns.iter().flat_map(|turn| &turn.answers);
    let images = messages.flat_map(|message| &message.parts).filter_map(|part| match part {
        Part::Image(blob) => Some(blob.clone()),
        _ => None,
    });
    let all: Vec<String> = images.collect();
    all[all.len().saturating_sub(last as usize)..].to_vec()
}

espalier_sdk::judge!(Settings, judge);
