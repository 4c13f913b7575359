//! Conversations as fine-tuning reads them: chat messages, or ShareGPT's turns.
//!
//! One row for each conversation with the group's model that was not discarded. An answer is its text as sampled; calls
//! that the text itself carries are not given a second time. An answer that is only context in its row (the past of a
//! fork, an example that the harness wrote) has `weight` 0. Images are named by digest, in order, under `images`; those that the model was
//! not shown any more for the last answer are the text that it was shown.

use espalier_core::chat::{Message, Part, Role, Tool};
use espalier_core::image::PLACEHOLDER;
use espalier_core::samples::Group;
use espalier_core::trajectory::{AttemptRecord, Transcript};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::HashSet;

/// One row of `sft-chat`.
#[derive(Serialize)]
pub(super) struct SftRow {
    messages: Vec<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Value>,
    /// Digests; each stands for a part `image` of the messages.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) images: Vec<String>,
    #[serde(flatten)]
    about: About,
}

/// One row of `sharegpt`.
#[derive(Serialize)]
pub(super) struct SharegptRow {
    conversations: Vec<Said>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<String>,
    /// Digests; each stands for an `<image>` of the conversations.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) images: Vec<String>,
    #[serde(flatten)]
    about: About,
}

#[derive(Serialize)]
struct Said {
    from: &'static str,
    value: String,
    /// 0: not learned from.
    #[serde(skip_serializing_if = "Option::is_none")]
    weight: Option<u8>,
}

/// What tells rows apart, for filters.
#[derive(Serialize)]
struct About {
    traj_id: String,
    task_id: String,
    reward: Option<f64>,
    stop_reason: &'static str,
}

pub(super) fn sft_rows(group: &Group, record: &AttemptRecord) -> Vec<SftRow> {
    let mut seen = HashSet::new();
    let mut row = |index| {
        let lines = shown(&record.transcript, index);
        let learned = learned(&lines, &mut seen);
        let images = images(&lines);
        SftRow {
            images,
            messages: lines
                .iter()
                .zip(learned)
                .flat_map(|(line, learned)| chat_messages(line, learned))
                .collect(),
            tools: tools(&record.transcript, index).iter().map(tool_json).collect(),
            about: about(group, record),
        }
    };
    conversations(group, record).map(&mut row).collect()
}

pub(super) fn sharegpt_rows(group: &Group, record: &AttemptRecord) -> Vec<SharegptRow> {
    let mut seen = HashSet::new();
    let mut row = |index| {
        let lines = shown(&record.transcript, index);
        let learned = learned(&lines, &mut seen);
        let tools: Vec<Value> = tools(&record.transcript, index).iter().map(tool_json).collect();
        SharegptRow {
            images: images(&lines),
            conversations: lines.iter().zip(learned).map(|(line, learned)| said(line, learned)).collect(),
            tools: (!tools.is_empty()).then(|| Value::Array(tools).to_string()),
            about: about(group, record),
        }
    };
    conversations(group, record).map(&mut row).collect()
}

fn said(line: &Line<'_>, learned: bool) -> Said {
    let from = match line.message.role {
        Role::System => "system",
        Role::User => "human",
        Role::Assistant => "gpt",
        Role::Tool => "tool",
    };
    let weight = (line.message.role == Role::Assistant && !learned).then_some(0);
    Said { from, value: text_with_calls(line), weight }
}

fn about(group: &Group, record: &AttemptRecord) -> About {
    About {
        traj_id: record.trajectory.traj_id.clone(),
        task_id: group.task_id.clone(),
        reward: record.trajectory.reward,
        stop_reason: record.trajectory.stop_reason.as_str(),
    }
}

/// Conversations with the group's model that have an answer of their own and were not dropped.
fn conversations<'a>(group: &'a Group, record: &'a AttemptRecord) -> impl Iterator<Item = u32> + 'a {
    let transcript = &record.transcript;
    transcript
        .conversations
        .iter()
        .zip(0u32..)
        .filter(|(log, _)| log.model == group.model && !log.discarded)
        .map(|(_, index)| index)
        .filter(|index| transcript.turns.iter().any(|turn| turn.conversation == *index))
}

/// One message of a conversation, with the turn that sampled it.
struct Line<'a> {
    message: &'a Message,
    turn: Option<usize>,
    /// How many of its images, from the first, the model was shown as a placeholder.
    elided: usize,
}

impl Line<'_> {
    fn of(message: &Message, turn: Option<usize>) -> Line<'_> {
        Line { message, turn, elided: 0 }
    }

    /// Its text, and images as `image` writes them.
    fn text(&self, image: &str) -> String {
        let mut text = String::new();
        let mut number = 0;
        for part in &self.message.parts {
            match part {
                Part::Text(piece) => text.push_str(piece),
                Part::ToolResult(result) => text.push_str(&result.text),
                Part::Image(_) => {
                    text.push_str(if number < self.elided { PLACEHOLDER } else { image });
                    number += 1;
                }
                Part::TextBlob(_) | Part::ToolCall(_) | Part::Other(_) => {}
            }
        }
        text
    }

    /// The images that the model was shown.
    fn images(&self) -> impl Iterator<Item = &str> {
        let images = self.message.parts.iter().filter_map(|part| match part {
            Part::Image(blob) => Some(blob.as_str()),
            _ => None,
        });
        images.skip(self.elided)
    }
}

fn images(lines: &[Line<'_>]) -> Vec<String> {
    lines.iter().flat_map(Line::images).map(str::to_owned).collect()
}

/// As the last answer of a conversation was shown it.
fn shown(transcript: &Transcript, index: u32) -> Vec<Line<'_>> {
    let mut lines = history(transcript, index);
    let last = transcript.turns.iter().rfind(|turn| turn.conversation == index);
    let mut left = last.map_or(0, |turn| turn.images_elided as usize);
    for line in &mut lines {
        line.elided = line.images().count().min(left);
        left -= line.elided;
    }
    lines
}

/// The conversation from its beginning: a fork begins with its parent's past.
fn history(transcript: &Transcript, index: u32) -> Vec<Line<'_>> {
    let Some(log) = transcript.conversations.get(index as usize) else { return Vec::new() };
    // A parent always stands before its fork, so this ends.
    let mut lines = match log.forked_from.filter(|parent| *parent < index && log.inherited > 0) {
        Some(parent) => history(transcript, parent),
        None => Vec::new(),
    };
    lines.truncate(log.inherited as usize);
    lines.extend(log.opening.iter().map(|message| Line::of(message, None)));
    let turns = transcript.turns.iter().enumerate().filter(|(_, turn)| turn.conversation == index);
    for (at, turn) in turns {
        lines.push(Line::of(&turn.message, Some(at)));
        lines.extend(turn.results.iter().map(|message| Line::of(message, None)));
    }
    lines
}

/// Whether a fine-tuner learns each line: an answer counts in the first row that carries it, one that the harness wrote
/// in none. `seen` holds the turns of earlier rows.
fn learned(lines: &[Line<'_>], seen: &mut HashSet<usize>) -> Vec<bool> {
    lines.iter().map(|line| line.turn.is_some_and(|turn| seen.insert(turn))).collect()
}

/// The tools of a conversation; a fork has its parent's.
pub(super) fn tools(transcript: &Transcript, index: u32) -> &[Tool] {
    match transcript.conversations.get(index as usize) {
        None => &[],
        Some(log) => match log.forked_from.filter(|parent| log.tools.is_empty() && *parent < index) {
            Some(parent) => tools(transcript, parent),
            None => &log.tools,
        },
    }
}

/// The content of a message: text, or parts where there are images.
fn content(line: &Line<'_>) -> Value {
    if line.images().next().is_none() {
        return line.text("").into();
    }
    let mut parts: Vec<Value> = Vec::new();
    let mut number = 0;
    for part in &line.message.parts {
        match part {
            Part::Image(_) if number < line.elided => {
                number += 1;
                parts.push(json!({"type": "text", "text": PLACEHOLDER}));
            }
            Part::Image(_) => parts.push(json!({"type": "image"})),
            Part::Text(text) => parts.push(json!({"type": "text", "text": text})),
            _ => {}
        }
    }
    Value::Array(parts)
}

/// A message of tool results becomes one message a result, and one of the user with the images beside them.
fn chat_messages(line: &Line<'_>, learned: bool) -> Vec<Value> {
    let message = line.message;
    let results: Vec<Value> = message
        .parts
        .iter()
        .filter_map(|part| match part {
            Part::ToolResult(result) => {
                Some(json!({"role": "tool", "tool_call_id": result.call_id, "content": result.text}))
            }
            _ => None,
        })
        .collect();
    if message.role == Role::Tool && !results.is_empty() {
        let has_images = message.parts.iter().any(|part| matches!(part, Part::Image(_)));
        let beside = has_images.then(|| {
            let images =
                message.parts.iter().filter(|part| matches!(part, Part::Image(_))).cloned().collect();
            let of_user = Message { role: Role::User, parts: images, extra: None };
            json!({"role": "user", "content": content(&Line { message: &of_user, ..*line })})
        });
        return results.into_iter().chain(beside).collect();
    }
    let mut value = json!({"role": message.role.as_str(), "content": content(line)});
    let calls: Vec<Value> = message
        .parts
        .iter()
        .filter_map(|part| match part {
            Part::ToolCall(call) => Some(json!({
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            })),
            _ => None,
        })
        .collect();
    if !calls.is_empty() {
        value["tool_calls"] = Value::Array(calls);
    }
    if message.role == Role::Assistant && !learned {
        value["weight"] = json!(0);
    }
    vec![value]
}

/// Calls that stand beside the text are written as the common tag, so that none is lost.
fn text_with_calls(line: &Line<'_>) -> String {
    let mut text = line.text("<image>");
    for part in &line.message.parts {
        if let Part::ToolCall(call) = part {
            let arguments = arguments(&call.arguments);
            let call = json!({"name": call.name, "arguments": arguments});
            text.push_str(&format!("<tool_call>\n{call}\n</tool_call>"));
        }
    }
    text
}

/// The arguments as an object; other text is put under `text`.
pub(super) fn arguments(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(value @ Value::Object(_)) => value,
        _ => json!({"text": text}),
    }
}

/// A tool in the form of function calling.
pub(super) fn tool_json(tool: &Tool) -> Value {
    let parameters: Value = serde_json::from_str(&tool.parameters).unwrap_or_else(|_| json!({}));
    json!({
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": parameters},
    })
}
