//! From scores to rewards: what `[[rewards]]` says, applied to what the reward plugins returned.
//!
//! A reward that failed makes the rollout's reward null, which is not 0: a failure of the infrastructure never becomes a
//! score. Retries of a failed reward are the runner's work.

use crate::judge::{JUDGE_UNAVAILABLE, JudgeLimits};
use crate::samples::{ErrorNote, RewardPart};
use crate::trajectory::Score;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The name of the score that `weight` applies to.
pub const REWARD: &str = "reward";

/// The key of a score's `extra` that takes the sample out: `{"remove_sample": "captcha"}`.
pub const REMOVE_SAMPLE: &str = "remove_sample";

/// Longest reason of a removed sample, characters.
const REMOVED_REASON_MAX: usize = 200;

/// One entry of `[[rewards]]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RewardConfig {
    /// The plugin: a name, a path relative to the experiment file, or a digest.
    pub plugin: String,
    /// Weight of the score named `reward`; 0 if the plugin has no such score. Default 1.
    #[serde(default = "one")]
    pub weight: f64,
    /// Weights of further scores by name; a score without a weight is only recorded.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub scores: BTreeMap<String, f64>,
    /// Settings of the plugin, checked against its schema.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub settings: serde_json::Map<String, serde_json::Value>,
    /// Attempts before the reward is null. 1..=100, default 3.
    #[serde(default = "three")]
    pub attempts: u32,
    /// Whether it may see what rollouts changed in their sandboxes: a grant of rewards of groups.
    #[serde(skip)]
    pub sees_changes: bool,
    /// The model that it asks, where it is a reward of groups that has one.
    #[serde(skip)]
    pub asks: Option<Asks>,
}

/// The model of a reward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asks {
    /// The experiment's name of it.
    pub model: String,
    /// Limits of one call of the reward.
    pub limits: JudgeLimits,
}

fn one() -> f64 {
    1.0
}

fn three() -> u32 {
    3
}

/// An entry of `[[rewards]]` that cannot be.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RewardConfigError {
    /// A weight that is not a number.
    #[error("rewards.{plugin}: weight of `{score}` is {weight}, but must be finite")]
    Weight {
        /// Whose.
        plugin: String,
        /// Name of the score.
        score: String,
        /// What it is.
        weight: f64,
    },
    /// No or too many tries.
    #[error("rewards.{plugin}: attempts is {attempts}, expected 1 to 100")]
    Attempts {
        /// Whose.
        plugin: String,
        /// What it is.
        attempts: u32,
    },
}

impl RewardConfig {
    /// Finds what the form alone cannot.
    pub fn check(&self) -> Result<(), RewardConfigError> {
        let named = self.scores.iter().map(|(name, weight)| (name.as_str(), *weight));
        for (score, weight) in named.chain([(REWARD, self.weight)]) {
            if !weight.is_finite() {
                return Err(RewardConfigError::Weight {
                    plugin: self.plugin.clone(),
                    score: score.to_owned(),
                    weight,
                });
            }
        }
        if !(1..=100).contains(&self.attempts) {
            return Err(RewardConfigError::Attempts { plugin: self.plugin.clone(), attempts: self.attempts });
        }
        Ok(())
    }

    fn weight_of(&self, score: &str) -> f64 {
        match self.scores.get(score) {
            Some(weight) => *weight,
            None if score == REWARD => self.weight,
            None => 0.0,
        }
    }
}

/// What one reward plugin returned in the end.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored<'a> {
    /// What the experiment says of it.
    pub config: &'a RewardConfig,
    /// Its alias: the first part of each name in `reward_parts`.
    pub alias: &'a str,
    /// Its scores, or why there are none after the last try.
    pub result: Result<&'a [Score], Unscored>,
}

/// Why a reward gave no score.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unscored {
    /// The word for tables.
    pub cause: UnscoredCause,
    /// For people.
    pub text: String,
}

/// What kept a reward from scoring, by its last try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnscoredCause {
    /// The plugin failed, or its scores cannot be used.
    Failure,
    /// `limits.scoring_wall`.
    Wall,
    /// A sandbox or a store was lost.
    Infrastructure,
    /// The sample was removed: by a score that says so, or because its judge was unavailable and `on_failure` is `remove`.
    Removed,
}

impl UnscoredCause {
    /// Every cause.
    pub const ALL: [UnscoredCause; 4] =
        [UnscoredCause::Failure, UnscoredCause::Wall, UnscoredCause::Infrastructure, UnscoredCause::Removed];

    /// The code of the error that a trajectory has of it.
    pub fn as_str(self) -> &'static str {
        match self {
            UnscoredCause::Failure => "reward-failure",
            UnscoredCause::Wall => "scoring-wall",
            UnscoredCause::Infrastructure => "scoring-infrastructure",
            UnscoredCause::Removed => "removed",
        }
    }
}

/// What a rollout is worth.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Signal {
    /// Sum of score times weight; `None` where a reward failed or a weighted score is missing.
    pub reward: Option<f64>,
    /// Every score without a turn as `alias/name`, with its weight (0: recorded only).
    pub reward_parts: BTreeMap<String, RewardPart>,
    /// By turn, the weighted sum of the scores that name it; `None` where no weighted score names a turn.
    pub turn_rewards: Option<Vec<Option<f64>>>,
    /// Why the sample was removed: the first reason that was given. Then there is no reward, whatever else was scored.
    pub removed: Option<String>,
    /// Why the reward is null, and scores that could not be used.
    pub errors: Vec<ErrorNote>,
}

impl Signal {
    fn remove(&mut self, reason: String, text: String) {
        self.errors.push(note(UnscoredCause::Removed.as_str(), text));
        self.removed.get_or_insert(reason);
    }
}

/// Why these scores remove the sample, if one of them does: `extra` is an object whose `remove_sample` is not null.
/// Errors: what is wrong with it, where it is no reason.
pub fn removal(scores: &[Score]) -> Result<Option<String>, String> {
    for score in scores {
        let extra = score.extra.as_deref().and_then(|extra| serde_json::from_str(extra).ok());
        let Some(serde_json::Value::Object(extra)) = extra else { continue };
        let reason = match extra.get(REMOVE_SAMPLE) {
            None | Some(serde_json::Value::Null) => continue,
            Some(serde_json::Value::String(reason)) => reason.trim(),
            Some(other) => {
                return Err(format!("{REMOVE_SAMPLE} of score `{}` is {other}, expected a text", score.name));
            }
        };
        let fits = (1..=REMOVED_REASON_MAX).contains(&reason.chars().count())
            && !reason.chars().any(char::is_control);
        if !fits {
            return Err(format!(
                "{REMOVE_SAMPLE} of score `{}` is {reason:?}, expected one line of 1 to {REMOVED_REASON_MAX} characters",
                score.name
            ));
        }
        return Ok(Some(reason.to_owned()));
    }
    Ok(None)
}

/// Combines the scores of all rewards of a rollout with `turns` turns; without rewards there is none.
///
/// Rewards with the same alias are told apart as `alias`, `alias#2` ..., whichever of these is free.
pub fn combine(rewards: &[Scored<'_>], turns: u32) -> Signal {
    let mut signal = Signal { reward: (!rewards.is_empty()).then_some(0.0), ..Signal::default() };
    add(&mut signal, rewards, turns);
    signal
}

/// Adds the scores of further rewards: those of the rollout's group, behind its own. What is null stays null.
pub fn add(signal: &mut Signal, rewards: &[Scored<'_>], turns: u32) {
    let mut sum = signal.reward.take();
    let mut by_turn = signal.turn_rewards.take().unwrap_or_default();
    by_turn.resize(turns as usize, None);
    // An alias of its own may look like the second of another: all of them are taken before any is numbered.
    let mut free: BTreeSet<String> = rewards.iter().map(|reward| reward.alias.to_owned()).collect();
    let mut taken: BTreeSet<String> = BTreeSet::new();
    for reward in rewards {
        let numbered = (2u32..).map(|n| format!("{}#{n}", reward.alias));
        let first = free.take(reward.alias);
        let alias = first
            .into_iter()
            .chain(numbered)
            .find(|alias| !taken.contains(alias) && !free.contains(alias))
            .expect("there is always a further number");
        taken.insert(alias.clone());
        let scores = match &reward.result {
            Ok(scores) => *scores,
            Err(Unscored { cause: UnscoredCause::Removed, text }) => {
                signal.remove(JUDGE_UNAVAILABLE.to_owned(), format!("{alias}: {text}"));
                continue;
            }
            Err(Unscored { cause, text }) => {
                sum = None;
                signal.errors.push(note(cause.as_str(), format!("{alias}: {text}")));
                continue;
            }
        };
        if let Some(problem) = defect(reward.config, scores, turns) {
            sum = None;
            signal.errors.push(note(UnscoredCause::Failure.as_str(), format!("{alias}: {problem}")));
            continue;
        }
        if let Ok(Some(reason)) = removal(scores) {
            let text = format!("{alias}: {reason}");
            signal.remove(reason, text);
        }
        for score in scores {
            let weight = reward.config.weight_of(&score.name);
            match score.turn {
                None => {
                    let part = RewardPart { score: score.value, weight };
                    signal.reward_parts.insert(format!("{alias}/{}", score.name), part);
                    sum = sum.map(|sum| sum + weight * score.value);
                }
                Some(turn) if weight != 0.0 => {
                    let place = &mut by_turn[turn as usize];
                    *place = Some(place.unwrap_or(0.0) + weight * score.value);
                }
                Some(_) => {}
            }
        }
    }
    if signal.removed.is_some() {
        // It takes no part in anything that is computed from rewards, those of its turns included.
        return;
    }
    let overflown = |sum: &f64| !sum.is_finite();
    if let Some(sum) = sum.iter().chain(by_turn.iter().flatten()).copied().find(overflown) {
        let text = format!("the weighted scores sum to {sum}, must be finite");
        signal.errors.push(note(UnscoredCause::Failure.as_str(), text));
        return;
    }
    signal.reward = sum;
    signal.turn_rewards = by_turn.iter().any(Option::is_some).then_some(by_turn);
}

/// Why these scores of a rollout with `turns` turns cannot be used.
pub fn defect(config: &RewardConfig, scores: &[Score], turns: u32) -> Option<String> {
    let mut names: Vec<&str> = Vec::new();
    for score in scores {
        if !score.value.is_finite() {
            return Some(format!("score `{}` is {}, must be finite", score.name, score.value));
        }
        match score.turn {
            Some(turn) if turn >= turns => {
                return Some(format!(
                    "score `{}` is about turn {turn}, the rollout has {turns} turns",
                    score.name
                ));
            }
            Some(_) => {}
            None if names.contains(&score.name.as_str()) => {
                return Some(format!("two scores named `{}`", score.name));
            }
            None => names.push(&score.name),
        }
    }
    match removal(scores) {
        Err(problem) => return Some(problem),
        // What is removed needs no score.
        Ok(Some(_)) => return None,
        Ok(None) => {}
    }
    let about_turns = |name: &str| scores.iter().any(|score| score.name == name && score.turn.is_some());
    let weighted = config.scores.keys().map(String::as_str).chain([REWARD]);
    for name in weighted.filter(|name| config.weight_of(name) != 0.0) {
        if !names.contains(&name) && !about_turns(name) {
            return Some(format!("no score named `{name}`, which has weight {}", config.weight_of(name)));
        }
    }
    None
}

fn note(code: &str, text: String) -> ErrorNote {
    ErrorNote { code: code.to_owned(), text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(weight: f64, scores: &[(&str, f64)]) -> RewardConfig {
        RewardConfig {
            plugin: "p".into(),
            weight,
            scores: scores.iter().map(|(name, weight)| ((*name).to_owned(), *weight)).collect(),
            settings: serde_json::Map::new(),
            attempts: 3,
            sees_changes: false,
            asks: None,
        }
    }

    fn score(name: &str, value: f64, turn: Option<u32>) -> Score {
        Score { name: name.into(), value, turn, reason: String::new(), extra: None }
    }

    #[test]
    fn weights_apply_to_the_scores_they_name() {
        let (first, second) = (config(2.0, &[("format", 0.5)]), config(0.0, &[("length", -1.0)]));
        let a = [score("reward", 1.0, None), score("format", 0.5, None), score("note", 9.0, None)];
        let b = [score("length", 0.25, None)];
        let signal = combine(
            &[
                Scored { config: &first, alias: "a", result: Ok(&a) },
                Scored { config: &second, alias: "b", result: Ok(&b) },
            ],
            3,
        );
        assert_eq!(signal.reward, Some(2.0 + 0.25 - 0.25));
        let parts: Vec<_> =
            signal.reward_parts.iter().map(|(name, part)| (name.as_str(), part.score, part.weight)).collect();
        let expect =
            [("a/format", 0.5, 0.5), ("a/note", 9.0, 0.0), ("a/reward", 1.0, 2.0), ("b/length", 0.25, -1.0)];
        assert_eq!(parts, expect);
        assert_eq!(signal.turn_rewards, None);
        assert_eq!(signal.errors, []);
    }

    #[test]
    fn parts_of_equal_names_stand_side_by_side_and_sum_to_the_reward() {
        let configs = [config(1.0, &[]), config(2.0, &[]), config(4.0, &[]), config(8.0, &[])];
        let scores = [score("reward", 1.0, None)];
        for aliases in [["x", "x", "x#2", "x"], ["x#2", "x", "x", "x#2"], ["x", "x", "x", "x"]] {
            let rewards: Vec<_> = configs
                .iter()
                .zip(aliases)
                .map(|(config, alias)| Scored { config, alias, result: Ok(&scores) })
                .collect();
            let signal = combine(&rewards, 1);
            assert_eq!(signal.reward_parts.len(), 4, "{:?}", signal.reward_parts);
            let sum: f64 = signal.reward_parts.values().map(|part| part.score * part.weight).sum();
            assert_eq!((signal.reward, sum), (Some(15.0), 15.0));
        }
    }

    #[test]
    fn a_sum_beyond_any_number_is_null_and_says_so() {
        let config = config(1e300, &[("step", 1e300)]);
        for turn in [None, Some(0)] {
            let name = if turn.is_none() { "reward" } else { "step" };
            let scores = [score("reward", 0.0, None), score("step", 0.0, Some(0)), score(name, 1e300, turn)];
            let scores = &scores[usize::from(turn.is_none())..];
            let signal = combine(&[Scored { config: &config, alias: "a", result: Ok(scores) }], 1);
            assert_eq!((signal.reward, signal.turn_rewards.as_ref()), (None, None));
            let errors: Vec<&str> = signal.errors.iter().map(|error| error.text.as_str()).collect();
            assert_eq!(errors, ["the weighted scores sum to inf, must be finite"]);
        }
    }

    #[test]
    fn scores_about_turns_go_to_turn_rewards_alone() {
        let config = config(1.0, &[("step", 0.5)]);
        let scores = [
            score("reward", 1.0, None),
            score("step", 1.0, Some(0)),
            score("step", 3.0, Some(2)),
            score("step", 1.0, Some(2)),
            score("seen", 1.0, Some(1)),
        ];
        let signal = combine(&[Scored { config: &config, alias: "a", result: Ok(&scores) }], 3);
        assert_eq!(signal.reward, Some(1.0));
        assert_eq!(signal.turn_rewards, Some(vec![Some(0.5), None, Some(2.0)]));
        assert_eq!(signal.reward_parts.len(), 1);
    }

    #[test]
    fn a_reward_that_cannot_be_used_is_null_and_says_why() {
        let check = |config: RewardConfig, result: Result<Vec<Score>, String>, expect: &str| {
            let good_config = RewardConfig { weight: 1.0, scores: BTreeMap::new(), ..config.clone() };
            let good = [score("reward", 1.0, None)];
            let cause = UnscoredCause::Failure;
            let result = result.as_deref().map_err(|text| Unscored { cause, text: text.clone() });
            let signal = combine(
                &[
                    Scored { config: &config, alias: "a", result },
                    Scored { config: &good_config, alias: "a", result: Ok(&good) },
                ],
                2,
            );
            assert_eq!(signal.reward, None, "{expect}");
            assert_eq!(signal.errors.len(), 1);
            assert_eq!(signal.errors[0].text, expect);
            assert_eq!(signal.errors[0].code, "reward-failure");
            assert!(signal.reward_parts.contains_key("a#2/reward"), "the other reward is still recorded");
        };
        check(config(1.0, &[]), Err("trapped".into()), "a: trapped");
        check(config(1.0, &[]), Ok(vec![]), "a: no score named `reward`, which has weight 1");
        check(
            config(0.0, &[("x", 2.0)]),
            Ok(vec![score("reward", 1.0, None)]),
            "a: no score named `x`, which has weight 2",
        );
        check(
            config(1.0, &[]),
            Ok(vec![score("reward", f64::NAN, None)]),
            "a: score `reward` is NaN, must be finite",
        );
        check(
            config(1.0, &[]),
            Ok(vec![score("reward", 1.0, None), score("reward", 2.0, None)]),
            "a: two scores named `reward`",
        );
        check(
            config(0.0, &[]),
            Ok(vec![score("x", 1.0, Some(2))]),
            "a: score `x` is about turn 2, the rollout has 2 turns",
        );
        assert_eq!(combine(&[], 1).reward, None, "nothing scores nothing");
    }

    #[test]
    fn a_score_that_removes_the_sample_leaves_it_without_a_reward_and_is_no_failure() {
        let config = config(1.0, &[]);
        let with = |extra: &str| Score { extra: Some(extra.to_owned()), ..score("captcha", 1.0, None) };
        let good = [score("reward", 1.0, None), score("step", 0.5, Some(0))];
        let cases: [(&str, Option<&str>, &[&str]); 8] = [
            (r#"{"remove_sample": "captcha"}"#, Some("captcha"), &["removed j: captcha"]),
            (r#"{"remove_sample": " captcha ", "x": 1}"#, Some("captcha"), &["removed j: captcha"]),
            (
                r#"{"remove_sample": null}"#,
                None,
                &["reward-failure j: no score named `reward`, which has weight 1"],
            ),
            ("[1]", None, &["reward-failure j: no score named `reward`, which has weight 1"]),
            ("no JSON", None, &["reward-failure j: no score named `reward`, which has weight 1"]),
            (
                r#"{"remove_sample": true}"#,
                None,
                &["reward-failure j: remove_sample of score `captcha` is true, expected a text"],
            ),
            (
                r#"{"remove_sample": " "}"#,
                None,
                &[
                    "reward-failure j: remove_sample of score `captcha` is \"\", expected one line of 1 to 200 characters",
                ],
            ),
            (
                r#"{"remove_sample": "a\nb"}"#,
                None,
                &[
                    "reward-failure j: remove_sample of score `captcha` is \"a\\nb\", expected one line of 1 to 200 characters",
                ],
            ),
        ];
        for (extra, removed, errors) in cases {
            let scores = [with(extra)];
            for others_first in [false, true] {
                let mut rewards = vec![
                    Scored { config: &config, alias: "j", result: Ok(&scores) },
                    Scored { config: &config, alias: "r", result: Ok(&good) },
                ];
                if others_first {
                    rewards.reverse();
                }
                let signal = combine(&rewards, 1);
                assert_eq!((signal.reward, signal.removed.as_deref()), (None, removed), "{extra}");
                let told: Vec<String> =
                    signal.errors.iter().map(|note| format!("{} {}", note.code, note.text)).collect();
                assert_eq!(told, errors, "{extra}");
                assert_eq!(defect(&config, &scores, 1).is_none(), removed.is_some(), "{extra}");
                assert!(signal.reward_parts.contains_key("r/reward"), "other scores are still recorded");
            }
        }
        let unavailable = Unscored { cause: UnscoredCause::Removed, text: "no server (try 3 of 3)".into() };
        let mut signal = combine(&[Scored { config: &config, alias: "j", result: Err(unavailable) }], 1);
        assert_eq!((signal.reward, signal.removed.as_deref()), (None, Some("judge unavailable")));
        assert_eq!(signal.errors[0].text, "j: no server (try 3 of 3)");
        add(&mut signal, &[Scored { config: &config, alias: "g", result: Ok(&good[..1]) }], 1);
        assert_eq!((signal.reward, signal.turn_rewards), (None, None), "a later reward gives none either");
    }

    #[test]
    fn weights_must_be_numbers_and_tries_bounded() {
        assert_eq!(config(1.0, &[]).check(), Ok(()));
        assert!(config(f64::INFINITY, &[]).check().is_err());
        assert_eq!(
            config(1.0, &[("x", f64::NAN)]).check().unwrap_err().to_string(),
            "rewards.p: weight of `x` is NaN, but must be finite"
        );
        let error = RewardConfig { attempts: 0, ..config(1.0, &[]) }.check().unwrap_err();
        assert_eq!(error.to_string(), "rewards.p: attempts is 0, expected 1 to 100");
    }
}
