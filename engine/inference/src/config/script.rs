//! The keys of a model that reads its answers off a list: `kind = "scripted"`.

use super::{ConfigError, ModelConfig, problem};
use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// One answer of a scripted model.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum ScriptedAnswer {
    /// A text.
    Text(String),
    /// A text, calls of tools, and when they fit.
    Full(ScriptedTurn),
}

// Not derived, which would say of a wrong key only that nothing fits.
impl<'de> Deserialize<'de> for ScriptedAnswer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ScriptedAnswer, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = ScriptedAnswer;
            fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str("a text, or a table with `text`, `tool_calls`, `when`")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ScriptedAnswer, E> {
                Ok(ScriptedAnswer::Text(text.to_owned()))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ScriptedAnswer, A::Error> {
                ScriptedTurn::deserialize(MapAccessDeserializer::new(map)).map(ScriptedAnswer::Full)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// An answer of a scripted model with more than its text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScriptedTurn {
    /// What it says.
    #[serde(default)]
    pub text: String,
    /// The tools that it calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ScriptedCall>,
    /// Only where this text has been said in the conversation, other than by the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
}

/// A call of a tool by a scripted model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScriptedCall {
    /// Name of the tool.
    pub name: String,
    /// Its arguments.
    #[serde(default)]
    pub arguments: serde_json::Map<String, serde_json::Value>,
}

impl ScriptedAnswer {
    /// What it says.
    pub fn text(&self) -> &str {
        match self {
            ScriptedAnswer::Text(text) => text,
            ScriptedAnswer::Full(turn) => &turn.text,
        }
    }

    /// The tools that it calls.
    pub fn tool_calls(&self) -> &[ScriptedCall] {
        match self {
            ScriptedAnswer::Text(_) => &[],
            ScriptedAnswer::Full(turn) => &turn.tool_calls,
        }
    }

    /// The text that must have been said before.
    pub fn when(&self) -> Option<&str> {
        match self {
            ScriptedAnswer::Text(_) => None,
            ScriptedAnswer::Full(turn) => turn.when.as_deref(),
        }
    }
}

/// The order in which a scripted model gives its answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AnswerOrder {
    /// As listed, in each attempt at a rollout from the beginning; the last one is repeated.
    #[default]
    Listed,
    /// Drawn for each answer, by the seed of the experiment.
    Random,
}

impl AnswerOrder {
    pub(super) fn is_listed(&self) -> bool {
        *self == AnswerOrder::Listed
    }
}

impl ModelConfig {
    /// What [`ModelConfig::validate`] finds in a model without a server.
    pub(super) fn validate_script(&self) -> Result<(), ConfigError> {
        let of_servers = [
            ("url", self.url.is_some()),
            ("urls", !self.urls.is_empty()),
            ("embedded", self.embedded),
            ("api_key_env", self.api_key_env.is_some()),
            ("tokenizer", self.tokenizer.is_some()),
        ];
        if let Some((key, _)) = of_servers.into_iter().find(|(_, given)| *given) {
            let hint = "remove it: a scripted model has no server";
            return Err(problem(key, "is given with kind = \"scripted\"".to_owned(), hint));
        }
        if self.answers.is_empty() && self.file.is_none() {
            let hint = "give the answers: answers = [\"Yes.\"], or file = \"answers.jsonl\"";
            return Err(problem("answers", "is missing".to_owned(), hint));
        }
        self.sampling.validate(self.kind)
    }
}
