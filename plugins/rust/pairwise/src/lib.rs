//! The group reward `pairwise`: a model compares the answers of a group's rollouts two by two, each pair in both orders; a rollout is
//! worth the share of its comparisons that it wins.
//!
//! Which pairs there are is in [`pairs`]; what an answer of the model says, in [`verdict`]. Nothing is guessed: a comparison that
//! says nothing does not count, and where a rollout has none that counts, the reward fails.

pub mod pairs;
pub mod settings;
pub mod verdict;

use espalier_sdk::{Conversation, Failure, RolloutView, Score, fill, invalid, other};
use pairs::{Known, Said, Tally};
use settings::{Settings, Shown};
use verdict::Verdict;

/// Scores the rollouts of a group. Errors: `other("unparsed")` where a rollout is left without a comparison, and those of the model.
pub fn score(rollouts: Vec<RolloutView>, settings: Settings) -> Result<Vec<Vec<Score>>, Failure> {
    if rollouts.len() < 2 {
        return Err(invalid("the group has one rollout, so there is nothing to compare it with"));
    }
    let answers: Vec<Option<String>> = rollouts.iter().map(|rollout| shown(rollout, &settings)).collect();
    let task = &rollouts[0].task;
    let private = task.private_data.as_deref().filter(|_| settings.show_private);
    let most = settings.text_max as usize;
    let mut tallies = vec![Tally::default(); rollouts.len()];
    for pair in pairs::of(rollouts.len(), settings.opponents) {
        let said = match pairs::known(answers[pair.first].as_deref(), answers[pair.second].as_deref(), most) {
            Known::Said(said) => said,
            Known::Ask(first, second) => compare((&task.instruction, private), &first, &second, &settings)?,
        };
        pair.count(said, &mut tallies);
    }
    tallies.iter().enumerate().map(|(place, tally)| scores(place, tally)).collect()
}

fn scores(place: usize, tally: &Tally) -> Result<Vec<Score>, Failure> {
    let share = tally.share().ok_or_else(|| {
        let count = tally.unparsed + tally.hidden;
        other(
            "unparsed",
            format_args!(
                "none of the {count} comparisons of rollout {place} has a verdict in \\boxed{{}}: {tally}"
            ),
        )
    })?;
    Ok(vec![Score::reward(share).because(tally.to_string())])
}

/// Asks which of two answers is better. A share is that of the verdicts for the first, a tie counting half.
fn compare(
    (instruction, private): (&str, Option<&str>),
    first: &str,
    second: &str,
    settings: &Settings,
) -> Result<Said, Failure> {
    let mut orders = Vec::new();
    for swapped in [false, true] {
        if swapped && !settings.swap {
            break;
        }
        let (a, b) = if swapped { (second, first) } else { (first, second) };
        let mut chat = Conversation::with("judge");
        if let Some(system) = &settings.system {
            chat.system(system.as_str());
        }
        let known = private.map_or_else(String::new, |private| {
            format!("\n\n# For you alone: what is known of the solution\n\n{private}")
        });
        let values = [
            ("instruction", instruction),
            ("known", known.as_str()),
            ("a", a),
            ("b", b),
            ("rubric", settings.rubric.as_str()),
        ];
        chat.user(fill(settings::QUESTION, &values));
        chat.options.max_tokens = settings.max_tokens;
        chat.options.temperature = settings.temperature;
        let said = chat.complete_many(settings.votes)?.into_iter().filter_map(|(_, answer)| {
            verdict::parse(&answer.text).map(|one| if swapped { one.swapped() } else { one })
        });
        let shares: Vec<f64> = said.map(share).collect();
        // With the verdicts of one order alone, the place of an answer would tell.
        if shares.is_empty() {
            return Ok(Said::Nothing);
        }
        orders.push(shares.iter().sum::<f64>() / shares.len() as f64);
    }
    Ok(Said::Share(orders.iter().sum::<f64>() / orders.len() as f64))
}

fn share(verdict: Verdict) -> f64 {
    match verdict {
        Verdict::First => 1.0,
        Verdict::Second => 0.0,
        Verdict::Tie => 0.5,
    }
}

/// What is compared of a rollout, as a whole; `None`: it has no answer.
fn shown(rollout: &RolloutView, settings: &Settings) -> Option<String> {
    let text = match settings.show {
        Shown::Answer => rollout.answer().map(str::to_owned),
        Shown::LastTurn => rollout.turns.last().map(|turn| turn.message.text()),
    };
    text.filter(|text| !text.trim().is_empty())
}

espalier_sdk::group_reward!(Settings, score);
