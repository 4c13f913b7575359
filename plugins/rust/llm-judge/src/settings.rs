//! What an experiment can say about the judge.

use espalier_sdk::schemars::JsonSchema;
use espalier_sdk::serde::{Deserialize, Serialize};
use espalier_sdk::{Failure, invalid};

/// How it judges.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(crate = "espalier_sdk::serde", default, deny_unknown_fields)]
#[schemars(crate = "espalier_sdk::schemars")]
pub struct Settings {
    /// What is judged: the outcome (one score `reward`), each turn (votes by turn), or both.
    pub about: About,
    /// What counts, for the outcome.
    pub rubric: String,
    /// What counts, for a turn.
    pub turn_rubric: String,
    /// The form of a verdict.
    pub form: Form,
    /// Votes: answers of the model to the same question.
    #[schemars(range(min = 1, max = 256))]
    pub votes: u32,
    /// How the votes about the outcome become its score.
    pub aggregate: Aggregate,
    /// What a tie of `majority` comes to.
    pub tie: Tie,
    /// The lowest value of a verdict; for yes and no that of no.
    pub lowest: f64,
    /// The highest value of a verdict; for yes and no that of yes.
    pub highest: f64,
    /// System message; default: none.
    pub system: Option<String>,
    /// Turns before the one that is judged, or the last turns of the rollout, that the model is shown.
    pub turns_shown: u32,
    /// The last images that the model is shown. It must be a model that takes images.
    pub images: u32,
    /// Characters of each text that is shown; of a longer one its beginning and its end.
    #[schemars(range(min = 100))]
    pub text_max: u32,
    /// Whether the model is shown the private part of the task, if the experiment lets the judge see it.
    pub show_private: bool,
    /// Maximum tokens of one answer; default: that of the experiment.
    #[schemars(range(min = 1))]
    pub max_tokens: Option<u32>,
    /// Temperature of the answers; default: that of the experiment.
    #[schemars(range(min = 0.0, max = 100.0))]
    pub temperature: Option<f64>,
}

/// What is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(crate = "espalier_sdk::serde", rename_all = "kebab-case")]
#[schemars(crate = "espalier_sdk::schemars")]
pub enum About {
    /// The outcome.
    Outcome,
    /// Each turn.
    Turns,
    /// Both.
    Both,
}

/// The form of a verdict. The last one in an answer counts; where it cannot be read, none before it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(crate = "espalier_sdk::serde", rename_all = "kebab-case")]
#[schemars(crate = "espalier_sdk::schemars")]
pub enum Form {
    /// `\boxed{VALUE}`.
    Boxed,
    /// An object `{"score": VALUE, "reason": "..."}`.
    Json,
    /// A line `VERDICT: yes` or `VERDICT: no`.
    Line,
}

/// How several verdicts become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(crate = "espalier_sdk::serde", rename_all = "kebab-case")]
#[schemars(crate = "espalier_sdk::schemars")]
pub enum Aggregate {
    /// The value that most of them have.
    Majority,
    /// Their mean.
    Mean,
}

/// What a tie comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(crate = "espalier_sdk::serde", rename_all = "kebab-case")]
#[schemars(crate = "espalier_sdk::schemars")]
pub enum Tie {
    /// The lowest of the values that are tied.
    Lowest,
    /// The highest.
    Highest,
    /// Their mean.
    Mean,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            about: About::Outcome,
            rubric: "Has the task been solved correctly and completely?".to_owned(),
            turn_rubric: "Was this turn a useful step towards solving the task?".to_owned(),
            form: Form::Boxed,
            votes: 3,
            aggregate: Aggregate::Majority,
            tie: Tie::Lowest,
            lowest: 0.0,
            highest: 1.0,
            system: None,
            turns_shown: 20,
            images: 0,
            text_max: 4000,
            show_private: true,
            max_tokens: None,
            temperature: None,
        }
    }
}

impl Settings {
    /// What the schema cannot say.
    pub fn check(&self) -> Result<(), Failure> {
        let Settings { lowest, highest, .. } = self;
        if lowest < highest {
            Ok(())
        } else {
            Err(invalid(format_args!(
                "settings.lowest is {lowest}, expected less than settings.highest, which is {highest}"
            )))
        }
    }
}

impl Form {
    /// What the model is asked for.
    pub fn wanted(self) -> &'static str {
        match self {
            Form::Boxed => "the verdict is a number in \\boxed{}",
            Form::Json => "the verdict is an object with a number `score`",
            Form::Line => "the verdict is a line `VERDICT: yes` or `VERDICT: no`",
        }
    }
}
