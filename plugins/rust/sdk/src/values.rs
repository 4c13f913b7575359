//! What plugins are given and give back, with the usual ways to make it.

use crate::wit::espalier::base::types::{Failure, OtherFailure, TaskView};
use crate::wit::espalier::environment::types::{Observation, StepResult};
use crate::wit::espalier::plugin::reports::{Limit, Outcome, Report};
use crate::wit::espalier::plugin::scores::{RolloutView, Score};
use crate::wit::judge::exports::espalier::plugin::judge::{Judgement, Vote};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A failure that blames what the plugin was given, with the reason.
pub fn invalid(text: impl std::fmt::Display) -> Failure {
    Failure::Invalid(text.to_string())
}

/// A failure of the plugin's own, with a word for programs and a sentence for people.
pub fn other(code: impl Into<String>, text: impl std::fmt::Display) -> Failure {
    Failure::Other(OtherFailure { code: code.into(), text: text.to_string() })
}

/// A value as JSON text; a value that cannot be JSON is a mistake in the calling line.
#[track_caller]
fn json(what: &str, value: &impl Serialize) -> String {
    match serde_json::to_string(value) {
        Ok(text) => text,
        Err(error) => panic!("{what} cannot be JSON: {error}"),
    }
}

impl TaskView {
    /// The task's `data` as this type. Errors: `invalid`, with what is wrong.
    pub fn data_as<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_str(&self.data).map_err(|error| invalid(format_args!("task.data: {error}")))
    }

    /// The private part of the task as this type; a part that is not shown is `null`.
    pub fn private_as<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        let text = self.private_data.as_deref().unwrap_or("null");
        serde_json::from_str(text).map_err(|error| invalid(format_args!("task.private: {error}")))
    }

    /// One field of the private part.
    pub fn private_field(&self, field: &str) -> Option<Value> {
        let private: Value = serde_json::from_str(self.private_data.as_deref()?).ok()?;
        private.get(field).cloned()
    }
}

impl RolloutView {
    /// The final answer of the harness's report.
    pub fn answer(&self) -> Option<&str> {
        self.report.as_ref()?.answer.as_deref()
    }

    /// `extra` as JSON: for rewards `judges`, for rewards of groups `reward`, `scores` and `judges` too.
    pub fn more(&self) -> Value {
        self.extra.as_deref().and_then(|extra| serde_json::from_str(extra).ok()).unwrap_or(Value::Null)
    }
}

impl Report {
    /// Done: score it.
    pub fn submitted() -> Report {
        Report::with(Outcome::Submitted)
    }

    /// Cannot be done: score it.
    pub fn gave_up() -> Report {
        Report::with(Outcome::GaveUp)
    }

    /// Met a limit by the harness's own count.
    pub fn limit(limit: Limit) -> Report {
        Report::with(Outcome::Limit(limit))
    }

    fn with(outcome: Outcome) -> Report {
        Report { outcome, answer: None, data: "null".to_owned(), extra: None }
    }

    /// With the final answer.
    pub fn answer(self, answer: impl Into<String>) -> Report {
        Report { answer: Some(answer.into()), ..self }
    }

    /// With facts for rewards and people. Panics where they cannot be JSON, like a map with keys that are not strings.
    #[track_caller]
    pub fn data(self, data: impl Serialize) -> Report {
        Report { data: json("report.data", &data), ..self }
    }
}

impl Score {
    /// The score that the experiment weights.
    pub fn reward(value: f64) -> Score {
        Score::named("reward", value)
    }

    /// One of another name.
    pub fn named(name: impl Into<String>, value: f64) -> Score {
        Score { name: name.into(), value, turn: None, reason: String::new(), extra: None }
    }

    /// About this turn alone.
    pub fn of_turn(self, turn: u32) -> Score {
        Score { turn: Some(turn), ..self }
    }

    /// Why, for people.
    pub fn because(self, reason: impl Into<String>) -> Score {
        Score { reason: reason.into(), ..self }
    }

    /// With further facts. Panics as [`Report::data`].
    #[track_caller]
    pub fn with(self, extra: impl Serialize) -> Score {
        Score { extra: Some(json("score.extra", &extra)), ..self }
    }
}

impl Vote {
    /// An evaluation of the outcome; `None`: it could not be parsed.
    pub fn of_outcome(value: Option<f64>, text: impl Into<String>, call: Option<String>) -> Vote {
        Vote { turn: None, value, text: text.into(), call, extra: None }
    }

    /// An evaluation of one turn.
    pub fn of_turn(turn: u32, value: Option<f64>, text: impl Into<String>, call: Option<String>) -> Vote {
        Vote { turn: Some(turn), ..Vote::of_outcome(value, text, call) }
    }
}

impl Judgement {
    /// Scores and votes.
    pub fn of(scores: Vec<Score>, votes: Vec<Vote>) -> Judgement {
        Judgement { scores, votes, extra: None }
    }
}

impl Observation {
    /// Text alone.
    pub fn text(text: impl Into<String>) -> Observation {
        Observation { text: text.into(), images: Vec::new(), extra: None }
    }
}

impl StepResult {
    /// What is seen; no reward, and the episode goes on.
    pub fn seen(text: impl Into<String>) -> StepResult {
        let observation = Observation::text(text);
        StepResult { observation, reward: None, done: false, info: "null".to_owned(), extra: None }
    }

    /// With the reward of this step.
    pub fn reward(self, reward: f64) -> StepResult {
        StepResult { reward: Some(reward), ..self }
    }

    /// The episode is over.
    pub fn done(self) -> StepResult {
        StepResult { done: true, ..self }
    }

    /// With facts for rewards and people. Panics as [`Report::data`].
    #[track_caller]
    pub fn info(self, info: impl Serialize) -> StepResult {
        StepResult { info: json("step.info", &info), ..self }
    }
}
