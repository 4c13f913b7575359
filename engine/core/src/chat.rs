//! Messages, tools and completions: the plain types behind `espalier:model/conversations`.

use serde::{Deserialize, Serialize};

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions of the harness.
    System,
    /// The user or the environment.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
}

impl Role {
    /// The word that templates and exports use: `system`, `user`, `assistant`, `tool`.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

/// A call of a tool, as parsed out of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Unique in the conversation; made by the host where the model gives none.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// JSON text of the arguments; always an object.
    pub arguments: String,
}

/// What a tool answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolResult {
    /// The `id` of the call that is answered.
    pub call_id: String,
    /// What the model is shown.
    pub text: String,
    /// Whether the tool failed; shown to rewards, not to the model.
    pub is_error: bool,
}

/// One piece of a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Text, taken literally: control-token text in it stays text.
    Text(String),
    /// Text over 64 KiB in a view of a finished rollout, kept as a blob.
    TextBlob(String),
    /// Image, by blob reference.
    Image(String),
    /// A call made by the assistant.
    ToolCall(ToolCall),
    /// The answer to a call.
    ToolResult(ToolResult),
    /// A part newer than this list, as JSON text.
    Other(String),
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said, in order.
    pub parts: Vec<Part>,
    /// JSON text for later additions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra: Option<String>,
}

impl Message {
    /// A message of one text part.
    pub fn text(role: Role, text: impl Into<String>) -> Self {
        Message { role, parts: vec![Part::Text(text.into())], extra: None }
    }

    /// All text parts and texts of tool results, joined without a separator.
    pub fn joined_text(&self) -> String {
        let mut out = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::ToolResult(result) => out.push_str(&result.text),
                Part::TextBlob(_) | Part::Image(_) | Part::ToolCall(_) | Part::Other(_) => {}
            }
        }
        out
    }

    /// The blobs of its images, in order.
    pub fn images(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Image(blob) => Some(blob.as_str()),
            _ => None,
        })
    }
}

/// A tool offered to the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    /// Name as the model writes it.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// JSON Schema of the arguments, as JSON text.
    pub parameters: String,
}

/// What a harness may ask of one completion.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CompleteOptions {
    /// Most tokens to sample; `None`: what the experiment's sampling says. Always cut to what the context still holds.
    pub max_tokens: Option<u32>,
    /// Texts at which the answer is cut by the host; empty: what the experiment's sampling says.
    pub stop: Vec<String>,
    /// `None`: what the experiment's sampling says. 0..=100.
    pub temperature: Option<f64>,
    /// `auto`, `none`, `required` or the name of a tool; `None`: `auto`.
    pub tool_choice: Option<String>,
    /// JSON text for later additions.
    pub extra: Option<String>,
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finish {
    /// End of turn, or a stop text.
    Stop,
    /// `max_tokens`, the budget or the context.
    Length,
    /// The answer calls tools.
    ToolCalls,
    /// Withheld by the endpoint.
    Filtered,
    /// A reason newer than this list.
    #[serde(untagged)]
    Other(String),
}

impl Finish {
    /// The word used in samples and in WIT.
    pub fn as_str(&self) -> &str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::ToolCalls => "tool-calls",
            Finish::Filtered => "filtered",
            Finish::Other(word) => word,
        }
    }
}

/// Counters of one conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the context as it stands.
    pub prompt_tokens: u64,
    /// Tokens sampled in this conversation, prefix of a fork included.
    pub sampled_tokens: u64,
    /// Answers in this conversation.
    pub turns: u32,
    /// Tokens that the context or the budget still allows; `None`: unknown.
    pub tokens_left: Option<u64>,
    /// Turns that the budget still allows; `None`: a model without a turn budget.
    pub turns_left: Option<u32>,
}

/// One answer of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// The answer; its text is kept whole, calls included where the parser left them in the text.
    pub message: Message,
    /// The calls that were parsed, in order.
    pub tool_calls: Vec<ToolCall>,
    /// Why a call could not be parsed, if one could not.
    pub malformed: Option<String>,
    /// Why the answer ended.
    pub finish: Finish,
    /// Counters after this answer.
    pub usage: Usage,
    /// Its place among all answers of the job, from 0: names it in a judge's votes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<u32>,
}
