//! Judges: models that score turns and outcomes of a rollout. What `[[judges]]` says, and what votes come to.
//!
//! A judge that failed makes the rollout's reward null, which is not 0. Next: `signal`, which adds a judge's scores like those of a reward.

use crate::limits::DurationText;
use crate::samples::{Call, Excluded, Segment};
use crate::signal::{REWARD, RewardConfig};
use crate::trajectory::{RolloutView, Score, Transcript};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The model that a judge asks, where `[[judges]]` names none; and the name by which every judge opens its own.
pub const MODEL: &str = "judge";

/// Why a sample is removed whose judge has failed for good, with `on_failure = "remove"`.
pub const JUDGE_UNAVAILABLE: &str = "judge unavailable";

/// The name of the score that the votes about turns come to.
pub const TURN_VOTES: &str = "votes";

/// The name of the score that the votes about the outcome come to.
pub const OUTCOME_VOTES: &str = "outcome-votes";

/// One entry of `[[judges]]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JudgeConfig {
    /// The plugin: a name, an alias, a path relative to the experiment file, or a digest.
    pub plugin: String,
    /// Its name in `reward_parts`, `extra.judges` and tables. Default: the name of the plugin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The model it asks, one of `[models]`; the plugin opens it as `judge`. Default `judge`.
    #[serde(default = "judge")]
    pub model: String,
    /// Weight of its score named `reward`. Default: 1 if it gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    /// Weights of further scores by name; `outcome-votes` is the mean of its votes about the outcome.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub scores: BTreeMap<String, f64>,
    /// Weight of its votes about turns: the mean of those of a turn, one that could not be parsed counting 0, is added to
    /// `turn_rewards` (RLAnything, equation 1: lambda). Default 1.
    #[serde(default = "one")]
    pub votes: f64,
    /// What it is shown besides instruction and answer. Default: everything.
    #[serde(default = "everything")]
    pub sees: BTreeSet<Sees>,
    /// Additional permissions.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub grants: BTreeSet<JudgeGrant>,
    /// Whether it is asked after the rewards, and shown what they gave. What it says is recorded and counts for nothing; where it fails,
    /// the reward stays. Only rollouts with a reward are asked about. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub after_rewards: bool,
    /// What follows when it fails.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// Attempts before the reward is null or the sample removed, with `on_failure = "retry"` or `"remove"`. 1..=100, default 3.
    #[serde(default = "three")]
    pub attempts: u32,
    /// Whether the model's answers are delivered as groups of their own (`kind = judge-turn`), one for each turn that was
    /// voted on. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub trained: bool,
    /// Settings of the plugin, checked against its schema.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub settings: serde_json::Map<String, serde_json::Value>,
    /// Limits of one call of the judge.
    #[serde(default)]
    pub limits: JudgeLimits,
}

/// Limits of one call of a judge, or of a reward of groups that asks a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct JudgeLimits {
    /// Answers of its model. 1..=10,000, default 256.
    pub calls: u32,
    /// Tokens that its model samples. Default: no bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampled_tokens: Option<u64>,
    /// Time, at most `limits.scoring_wall`, which is the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall: Option<DurationText>,
}

impl JudgeLimits {
    /// Whether nothing is said of them.
    pub fn are_default(&self) -> bool {
        *self == JudgeLimits::default()
    }

    /// Finds what the form alone cannot: the key with what is wrong with it.
    pub fn check(&self) -> Result<(), (String, String)> {
        if !(1..=10_000).contains(&self.calls) {
            return Err(("limits.calls".to_owned(), format!("is {}, expected 1 to 10000", self.calls)));
        }
        if self.sampled_tokens == Some(0) {
            return Err(("limits.sampled_tokens".to_owned(), "is 0, expected at least 1".to_owned()));
        }
        Ok(())
    }
}

impl Default for JudgeLimits {
    fn default() -> Self {
        JudgeLimits { calls: 256, sampled_tokens: None, wall: None }
    }
}

/// What a judge is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Sees {
    /// The private part of the task.
    Private,
    /// The turns of the policy.
    Turns,
    /// Images in them.
    Images,
    /// The steps in the environment.
    Steps,
    /// `data` and `extra` of the harness's report.
    Report,
    /// Blobs of the rollout by name, such as its patch.
    Blobs,
}

impl Sees {
    const ALL: [Sees; 6] = [Sees::Private, Sees::Turns, Sees::Images, Sees::Steps, Sees::Report, Sees::Blobs];
}

/// A permission of a judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum JudgeGrant {
    /// Sandboxes: those of the rollout as they were left, and fresh ones.
    Sandbox,
}

/// What follows when a judge fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnFailure {
    /// It is asked again, `attempts` times in all; then the reward is null.
    #[default]
    Retry,
    /// The reward is null at once.
    Null,
    /// It is asked again, `attempts` times in all; then the sample is removed. A defect of the plugin (a trap, invalid data) makes
    /// the reward null all the same, so that it is scored again with the repaired plugin.
    Remove,
}

fn judge() -> String {
    MODEL.to_owned()
}

fn one() -> f64 {
    1.0
}

fn three() -> u32 {
    3
}

fn everything() -> BTreeSet<Sees> {
    Sees::ALL.into()
}

impl JudgeConfig {
    /// Finds what the form alone cannot: the key with what is wrong with it.
    pub fn check(&self) -> Result<(), (String, String)> {
        let weights = self.scores.iter().map(|(name, weight)| (format!("scores.{name}"), *weight));
        let weights = weights.chain([("votes".to_owned(), self.votes)]);
        let weights = weights.chain(self.weight.map(|weight| ("weight".to_owned(), weight)));
        for (key, weight) in weights {
            if !weight.is_finite() {
                return Err((key, format!("is {weight}, expected a finite number")));
            }
        }
        if self.scores.contains_key(TURN_VOTES) {
            let problem =
                format!("is the name of the votes about turns, whose weight is `votes = {}`", self.votes);
            return Err((format!("scores.{TURN_VOTES}"), problem));
        }
        if self.after_rewards {
            let counts = "counts for nothing after the rewards: leave it out, or `after_rewards`";
            let weighs = self.weight.is_some_and(|weight| weight != 0.0);
            let scores = self.scores.values().any(|weight| *weight != 0.0);
            let set = [
                ("weight", weighs),
                ("scores", scores),
                ("trained", self.trained),
                ("on_failure", self.on_failure == OnFailure::Remove),
            ];
            if let Some((key, _)) = set.into_iter().find(|(_, is_set)| *is_set) {
                return Err((key.to_owned(), counts.to_owned()));
            }
        }
        if !(1..=100).contains(&self.attempts) {
            return Err(("attempts".to_owned(), format!("is {}, expected 1 to 100", self.attempts)));
        }
        self.limits.check()
    }

    /// Attempts at one judgement.
    pub fn attempts(&self) -> u32 {
        match self.on_failure {
            OnFailure::Retry | OnFailure::Remove => self.attempts,
            OnFailure::Null => 1,
        }
    }

    /// The view without what the judge does not see.
    pub fn narrow(&self, mut view: RolloutView) -> RolloutView {
        let sees = |what| self.sees.contains(&what);
        if !sees(Sees::Private) {
            view.task.private_data = None;
        }
        if !sees(Sees::Turns) {
            view.turns.clear();
        }
        if !sees(Sees::Images) {
            for turn in &mut view.turns {
                for message in std::iter::once(&mut turn.message).chain(&mut turn.results) {
                    message.parts.retain(|part| !matches!(part, crate::chat::Part::Image(_)));
                }
            }
        }
        if !sees(Sees::Steps) {
            view.steps.clear();
        }
        if !sees(Sees::Report)
            && let Some(report) = &mut view.report
        {
            report.data = "null".to_owned();
            report.extra = None;
        }
        if !sees(Sees::Blobs) {
            view.blobs.clear();
        }
        view
    }

    /// What it gave, as scores of a reward with the weights for them: its own scores, and what its votes come to.
    pub fn as_reward(&self, judgement: &Judgement) -> (RewardConfig, Vec<Score>) {
        let mut scores = judgement.scores.clone();
        scores.extend(judgement.means());
        let gives = |name: &str| scores.iter().any(|score| score.name == name);
        let mut weights = self.scores.clone();
        if gives(TURN_VOTES) {
            weights.insert(TURN_VOTES.to_owned(), self.votes);
        }
        // One that gives nothing that counts has not judged, which is not 0.
        let counts = gives(TURN_VOTES) || !self.scores.is_empty();
        let default = if gives(REWARD) || !counts { 1.0 } else { 0.0 };
        let config = RewardConfig {
            plugin: self.plugin.clone(),
            weight: self.weight.unwrap_or(default),
            scores: weights,
            settings: serde_json::Map::new(),
            attempts: self.attempts(),
            sees_changes: false,
            asks: None,
        };
        (config, scores)
    }
}

/// One evaluation of one turn, or of the outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Vote {
    /// `None`: of the outcome.
    pub turn: Option<u32>,
    /// Finite; `None`: it could not be parsed.
    pub value: Option<f64>,
    /// What the judge wrote.
    pub text: String,
    /// The answer it was read from: [`crate::chat::Completion::call`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<u32>,
    /// JSON text for later additions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra: Option<String>,
}

/// What a judge gives.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// As those of a reward.
    pub scores: Vec<Score>,
    /// In the judge's order.
    pub votes: Vec<Vote>,
}

impl Judgement {
    /// The mean of the votes of each turn, and of those about the outcome. A vote that could not be parsed counts 0 (RLAnything,
    /// equation 1); where none could be, there is no mean.
    fn means(&self) -> Vec<Score> {
        let mut by_turn: BTreeMap<Option<u32>, Vec<Option<f64>>> = BTreeMap::new();
        for vote in &self.votes {
            by_turn.entry(vote.turn).or_default().push(vote.value);
        }
        let mean = |(turn, values): (Option<u32>, Vec<Option<f64>>)| {
            let parsed = values.iter().flatten().count();
            (parsed > 0).then(|| Score {
                name: if turn.is_some() { TURN_VOTES } else { OUTCOME_VOTES }.to_owned(),
                value: values.iter().flatten().sum::<f64>() / values.len() as f64,
                turn,
                reason: format!("mean of {} votes, {parsed} parsed", values.len()),
                extra: None,
            })
        };
        by_turn.into_iter().filter_map(mean).collect()
    }
}

/// What the record keeps of a judge that was asked about a rollout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JudgeRecord {
    /// Its alias.
    pub judge: String,
    /// The experiment's name of the model that it asked.
    pub model: String,
    /// Its votes; none where it failed.
    pub votes: Vec<Vote>,
    /// What was said.
    pub transcript: Transcript,
    /// What was sampled, where the judge is trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled: Option<JudgeSamples>,
}

/// What a trained judge sampled about one rollout, all of it trainable.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JudgeSamples {
    /// Weight of its votes about turns: `votes` of `[[judges]]`.
    pub lambda: f64,
    /// In order; those that votes name are found through the transcript's `call_id`.
    pub calls: Vec<Call>,
    /// Rows.
    pub segments: Vec<Segment>,
    /// What does not train, with the reason.
    pub excluded: Vec<Excluded>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn vote(turn: Option<u32>, value: Option<f64>) -> Vote {
        Vote { turn, value, text: String::new(), call: None, extra: None }
    }

    fn config(more: &serde_json::Value) -> JudgeConfig {
        let mut config = json!({ "plugin": "llm-judge" });
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(config).unwrap()
    }

    #[test]
    fn votes_of_a_turn_are_averaged_and_one_that_does_not_parse_counts_0() {
        let votes = vec![
            vote(Some(1), Some(1.0)),
            vote(Some(1), None),
            vote(Some(0), Some(-1.0)),
            vote(Some(2), None),
            vote(None, Some(1.0)),
            vote(None, Some(0.0)),
        ];
        let judgement = Judgement { scores: Vec::new(), votes };
        let (reward, scores) =
            config(&json!({ "votes": 0.5, "scores": { "outcome-votes": 2 } })).as_reward(&judgement);
        let told: Vec<_> =
            scores.iter().map(|score| (score.name.as_str(), score.turn, score.value)).collect();
        assert_eq!(told, [("outcome-votes", None, 0.5), ("votes", Some(0), -1.0), ("votes", Some(1), 0.5)]);
        let scored = crate::signal::Scored { config: &reward, alias: "judge", result: Ok(&scores) };
        let signal = crate::signal::combine(&[scored], 3);
        assert_eq!(signal.reward, Some(1.0));
        assert_eq!(signal.turn_rewards, Some(vec![Some(-0.5), Some(0.25), None]));
        assert!(signal.errors.is_empty(), "{:?}", signal.errors);
    }

    #[test]
    fn a_judge_that_gives_nothing_that_counts_has_not_judged() {
        let outcome = Judgement { scores: Vec::new(), votes: vec![vote(None, Some(1.0))] };
        let nothing = Judgement { scores: Vec::new(), votes: Vec::new() };
        let turns = Judgement { scores: Vec::new(), votes: vec![vote(Some(0), Some(1.0))] };
        for (judgement, weights, errors) in [
            (&nothing, json!({}), 1),
            (&outcome, json!({}), 1),
            (&outcome, json!({ "scores": { "outcome-votes": 1 } }), 0),
            (&outcome, json!({ "weight": 0 }), 0),
            (&turns, json!({}), 0),
        ] {
            let (reward, scores) = config(&weights).as_reward(judgement);
            let scored = crate::signal::Scored { config: &reward, alias: "judge", result: Ok(&scores) };
            assert_eq!(crate::signal::combine(&[scored], 1).errors.len(), errors, "{weights}");
        }
    }

    #[test]
    fn a_weight_that_is_named_must_be_met_and_the_default_need_not() {
        let judgement = Judgement { scores: Vec::new(), votes: vec![vote(Some(0), Some(1.0))] };
        for (weight, errors) in [(None, 0), (Some(1.0), 1), (Some(0.0), 0)] {
            let config = JudgeConfig { weight, ..config(&json!({})) };
            let (reward, scores) = config.as_reward(&judgement);
            let scored = crate::signal::Scored { config: &reward, alias: "judge", result: Ok(&scores) };
            assert_eq!(crate::signal::combine(&[scored], 1).errors.len(), errors, "{weight:?}");
        }
    }

    #[test]
    fn it_is_shown_what_it_sees() {
        use crate::chat::{Message, Part, Role, Usage};
        let parts = vec![Part::Text("look".to_owned()), Part::Image("b".to_owned())];
        let turn = crate::trajectory::Turn {
            index: 0,
            conversation: 0,
            call_id: "c".to_owned(),
            message: Message::text(Role::Assistant, "a"),
            tool_calls: Vec::new(),
            malformed: None,
            finish: "stop".to_owned(),
            usage: Usage::default(),
            results: vec![Message { role: Role::User, parts, extra: None }],
            images_elided: 0,
            calls_at: Vec::new(),
        };
        let step = crate::trajectory::Step {
            turn: 0,
            action: "a".to_owned(),
            observation: "o".to_owned(),
            reward: None,
            done: false,
            info: "null".to_owned(),
        };
        let report = crate::ending::Report {
            outcome: crate::ending::Outcome::Submitted,
            answer: Some("4".to_owned()),
            data: "{}".to_owned(),
            extra: None,
        };
        let task = crate::task::TaskView {
            id: "t".to_owned(),
            instruction: "i".to_owned(),
            environment: None,
            sandboxes: Vec::new(),
            tags: Vec::new(),
            data: "null".to_owned(),
            private_data: Some("{}".to_owned()),
        };
        let view = RolloutView {
            rollout_id: "r".to_owned(),
            task,
            status: "completed".to_owned(),
            stop_reason: "submitted".to_owned(),
            report: Some(report),
            turns: vec![turn],
            steps: vec![step],
            blobs: vec![("patch".to_owned(), "b".to_owned())],
            extra: None,
        };
        let shown = |sees: &[&str]| {
            let view = config(&json!({ "sees": sees })).narrow(view.clone());
            let images = view.turns.iter().flat_map(|turn| &turn.results[0].parts);
            (
                view.task.private_data.is_some(),
                view.turns.len(),
                images.filter(|part| matches!(part, Part::Image(_))).count(),
                view.steps.len(),
                view.report.is_some_and(|report| report.data == "{}" && report.answer.is_some()),
                view.blobs.len(),
            )
        };
        assert_eq!(config(&json!({})).narrow(view.clone()), view, "everything, unless told otherwise");
        assert_eq!(shown(&[]), (false, 0, 0, 0, false, 0));
        assert_eq!(shown(&["private", "turns", "report"]), (true, 1, 0, 0, true, 0));
        assert_eq!(shown(&["turns", "images", "steps", "blobs"]), (false, 1, 1, 1, false, 1));
    }

    #[test]
    fn what_cannot_be_is_named() {
        let nothing = config(&json!({}));
        assert_eq!(nothing.check(), Ok(()));
        for (config, key) in [
            (JudgeConfig { votes: f64::NAN, ..nothing.clone() }, "votes"),
            (JudgeConfig { weight: Some(f64::INFINITY), ..nothing }, "weight"),
            (config(&json!({ "attempts": 0 })), "attempts"),
            (config(&json!({ "scores": { "votes": 1 } })), "scores.votes"),
            (config(&json!({ "limits": { "calls": 0 } })), "limits.calls"),
        ] {
            assert_eq!(config.check().unwrap_err().0, key);
        }
        assert_eq!(config(&json!({ "on_failure": "null" })).attempts(), 1);
    }
}
