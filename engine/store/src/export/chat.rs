//! Conversations as fine-tuning reads them: chat messages, or ShareGPT's turns.
//!
//! One row for each conversation with the group's model that was not discarded. An answer is its text as sampled; calls
//! that the text itself carries are not given a second time. An answer that is only context in its row (the past of a
//! fork, an example that the harness wrote) has `weight` 0.

use espalier_core::chat::{Message, Part, Role, Tool};
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
    #[serde(flatten)]
    about: About,
}

/// One row of `sharegpt`.
#[derive(Serialize)]
pub(super) struct SharegptRow {
    conversations: Vec<Said>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<String>,
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
        let lines = history(&record.transcript, index);
        let learned = learned(&lines, &mut seen);
        SftRow {
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
        let lines = history(&record.transcript, index);
        let learned = learned(&lines, &mut seen);
        let tools: Vec<Value> = tools(&record.transcript, index).iter().map(tool_json).collect();
        SharegptRow {
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
    Said { from, value: text_with_calls(line.message), weight }
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
    lines.extend(log.opening.iter().map(|message| Line { message, turn: None }));
    let turns = transcript.turns.iter().enumerate().filter(|(_, turn)| turn.conversation == index);
    for (at, turn) in turns {
        lines.push(Line { message: &turn.message, turn: Some(at) });
        lines.extend(turn.results.iter().map(|message| Line { message, turn: None }));
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

/// A message of tool results becomes one message a result.
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
        return results;
    }
    let mut value = json!({"role": message.role.as_str(), "content": message.joined_text()});
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
fn text_with_calls(message: &Message) -> String {
    let mut text = message.joined_text();
    for part in &message.parts {
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
