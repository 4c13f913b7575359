//! The group reward `{{name}}`: a majority vote. The answer that most rollouts of a task gave is taken for the right one.

use espalier_sdk::{Failure, NoSettings, RolloutView, Score};

/// Scores the rollouts of one group together: one list of scores for each, in their order.
pub fn score(
    rollouts: Vec<RolloutView>,
    _settings: NoSettings,
) -> Result<Vec<Vec<Score>>, Failure> {
    let answers: Vec<Option<String>> = rollouts
        .iter()
        .map(|rollout| rollout.answer().map(|answer| answer.trim().to_lowercase()))
        .collect();
    let (majority, reason) = match majority(&answers) {
        Some((answer, votes)) => (
            Some(answer),
            format!("majority: \"{answer}\" ({votes} of {})", answers.len()),
        ),
        None => (None, "no answers".to_owned()),
    };
    let score = |answer: &Option<String>| {
        let won = answer.is_some() && answer.as_deref() == majority;
        vec![Score::reward(if won { 1.0 } else { 0.0 }).because(reason.as_str())]
    };
    Ok(answers.iter().map(score).collect())
}

/// The most frequent answer and how often it was given; of several the one that was given first.
fn majority(answers: &[Option<String>]) -> Option<(&str, usize)> {
    let mut best: Option<(&str, usize)> = None;
    for answer in answers.iter().flatten() {
        let votes = answers
            .iter()
            .flatten()
            .filter(|other| *other == answer)
            .count();
        if best.is_none_or(|(_, most)| votes > most) {
            best = Some((answer, votes));
        }
    }
    best
}

espalier_sdk::group_reward!(NoSettings, score);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_answer_wins_and_the_first_of_several() {
        let answers = |texts: &[&str]| -> Vec<Option<String>> {
            texts
                .iter()
                .map(|text| (!text.is_empty()).then(|| (*text).to_owned()))
                .collect()
        };
        assert_eq!(majority(&answers(&["4", "5", "5"])), Some(("5", 2)));
        assert_eq!(majority(&answers(&["7", "5", "5", "7"])), Some(("7", 2)));
        assert_eq!(majority(&answers(&["", "", "9"])), Some(("9", 1)));
        assert_eq!(majority(&answers(&["", ""])), None);
    }
}
