//! What an experiment can say about the comparisons, and what the model is asked.

use espalier_sdk::schemars::JsonSchema;
use espalier_sdk::serde::{Deserialize, Serialize};

/// What the model is asked about two answers.
pub const QUESTION: &str = "You compare two answers to the same task.\n\n# Task\n\n{instruction}{known}\n\n# Answer A\n\n{a}\n\n# Answer B\n\n{b}\n\n\
    # Question\n\n{rubric}\n\nThink briefly, then end with \\boxed{A}, \\boxed{B}, or \\boxed{tie} if neither is better.";

/// How rollouts are compared.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(crate = "espalier_sdk::serde", default, deny_unknown_fields)]
#[schemars(crate = "espalier_sdk::schemars")]
pub struct Settings {
    /// What makes an answer the better one.
    pub rubric: String,
    /// What is compared of each rollout.
    pub show: Shown,
    /// Rollouts that each one is compared with, taken from those behind it in the group; default: all.
    #[schemars(range(min = 1))]
    pub opponents: Option<u32>,
    /// Whether each pair is asked about in both orders, since models prefer a place.
    pub swap: bool,
    /// Answers of the model to the same question.
    #[schemars(range(min = 1, max = 256))]
    pub votes: u32,
    /// System message; default: none.
    pub system: Option<String>,
    /// Characters of each answer that are shown; of a longer one its beginning and its end.
    #[schemars(range(min = 100))]
    pub text_max: u32,
    /// Whether the model is shown the private part of the task.
    pub show_private: bool,
    /// Maximum tokens of one answer; default: that of the experiment.
    #[schemars(range(min = 1))]
    pub max_tokens: Option<u32>,
    /// Temperature of the answers; default: that of the experiment.
    #[schemars(range(min = 0.0, max = 100.0))]
    pub temperature: Option<f64>,
}

/// What is compared of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(crate = "espalier_sdk::serde", rename_all = "kebab-case")]
#[schemars(crate = "espalier_sdk::schemars")]
pub enum Shown {
    /// The answer that its harness reports.
    Answer,
    /// The last turn of the policy.
    LastTurn,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            rubric: "Which answer solves the task better?".to_owned(),
            show: Shown::Answer,
            opponents: None,
            swap: true,
            votes: 1,
            system: None,
            text_max: 8000,
            show_private: false,
            max_tokens: None,
            temperature: None,
        }
    }
}
