//! The judge `value-judge`: a model says afterwards, knowing the outcome, how likely the task was to be solved at each turn of a rollout
//! that did not solve it (Orchard, section 3.3.1, equation 1). Its votes about turns are what `espalier export --credit` reads.
//!
//! It is made for `after_rewards = true`: then it is shown the reward and the reasons of all scores, such as which tests failed. A
//! rollout that solved its task is not asked about, since it trains whole.

pub mod estimates;
pub mod prompt;
pub mod settings;

use espalier_sdk::serde_json::Value;
use espalier_sdk::{Conversation, Failure, Judgement, RolloutView, Vote, invalid, other};
use settings::Settings;

/// Estimates the values of a rollout's turns. Errors: `invalid` where no reward is shown, `other("unparsed")` where no answer could be
/// read, and those of the model.
pub fn judge(rollout: RolloutView, settings: Settings) -> Result<Judgement, Failure> {
    let shown: Value = rollout
        .extra
        .as_deref()
        .and_then(|extra| espalier_sdk::serde_json::from_str(extra).ok())
        .unwrap_or_default();
    let Some(reward) = shown["reward"].as_f64() else {
        return Err(invalid("no reward is shown: set `after_rewards = true` of the judge"));
    };
    if reward >= settings.resolved || rollout.turns.is_empty() {
        return Ok(Judgement::of(Vec::new(), Vec::new()));
    }
    let mut chat = Conversation::with("judge");
    chat.system(prompt::SYSTEM);
    chat.user(prompt::question(&rollout, reward, &shown, &settings));
    chat.options.max_tokens = settings.max_tokens;
    chat.options.temperature = settings.temperature;
    let turns = rollout.turns.len() as u32;
    let mut votes = Vec::new();
    let mut problem = String::new();
    for (_, answer) in chat.complete_many(settings.votes)? {
        match estimates::parse(&answer.text, turns) {
            Ok(estimates) => votes.extend(estimates.into_iter().map(|estimate| {
                Vote::of_turn(estimate.turn, Some(estimate.value), estimate.reason, answer.call.clone())
            })),
            Err(why) => problem = why,
        }
    }
    if votes.is_empty() {
        return Err(other(
            "unparsed",
            format_args!("no estimates in {} answers of the model: {problem}", settings.votes),
        ));
    }
    Ok(Judgement::of(Vec::new(), votes))
}

espalier_sdk::judge!(Settings, judge);
