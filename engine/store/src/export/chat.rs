//! Conversations as fine-tuning reads them: chat messages, or ShareGPT's turns.
//!
//! One row for each history of a conversation with the group's model that was not discarded: the answers that were given to the same images
//! train in one row, as in `group/v1`. An answer is its text as sampled, without the calls that stand in it, which are written as the form
//! writes calls ([`calls`]). An answer that is only context in its row (the past of a fork, one that was given to images that are elided
//! here, an example that the harness wrote) has `weight` 0. Images are named by digest, in order, under `images`; those that the model was
//! not shown any more are the text that it was shown.

mod calls;

pub(super) use calls::LeftOut;

use super::ToolArguments;
use espalier_core::chat::{Message, Part, Role, Tool, ToolCall};
use espalier_core::image::PLACEHOLDER;
use espalier_core::samples::Group;
use espalier_core::trajectory::{AttemptRecord, Transcript, Turn};
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

/// What became of the conversations of a rollout.
pub(super) struct Rows<T> {
    pub(super) rows: Vec<T>,
    /// Conversations that the form cannot hold.
    pub(super) left_out: Vec<LeftOut>,
    /// Ids of calls that were replaced.
    pub(super) ids_replaced: u64,
}

/// `trains`: by turn, whether its answer is learned; `None`: all are.
pub(super) fn sft_rows(
    group: &Group,
    record: &AttemptRecord,
    trains: Option<&[bool]>,
    arguments: ToolArguments,
) -> Rows<SftRow> {
    rows(group, record, trains, |index, lines, learned| {
        let messages = lines.iter().zip(learned);
        let in_parts = lines.iter().any(|line| line.images().next().is_some());
        SftRow {
            images: images(lines),
            messages: messages
                .flat_map(|(line, learned)| chat_messages(line, *learned, (arguments, in_parts)))
                .collect(),
            tools: tools(&record.transcript, index).iter().map(tool_json).collect(),
            about: about(group, record),
        }
    })
}

/// `trains`: as of [`sft_rows`].
pub(super) fn sharegpt_rows(
    group: &Group,
    record: &AttemptRecord,
    trains: Option<&[bool]>,
) -> Rows<SharegptRow> {
    rows(group, record, trains, |index, lines, learned| {
        // What follows the last answer is answered by nobody, and readers want an answer at the end.
        let end =
            lines.iter().rposition(|line| line.message.role == Role::Assistant).map_or(0, |last| last + 1);
        let lines = &lines[..end];
        let tools: Vec<Value> = tools(&record.transcript, index).iter().map(tool_json).collect();
        SharegptRow {
            images: images(lines),
            conversations: said(lines, learned),
            tools: (!tools.is_empty()).then(|| Value::Array(tools).to_string()),
            about: about(group, record),
        }
    })
}

fn rows<T>(
    group: &Group,
    record: &AttemptRecord,
    trains: Option<&[bool]>,
    mut row: impl FnMut(u32, &[Line<'_>], &[bool]) -> T,
) -> Rows<T> {
    let mut seen = HashSet::new();
    let mut all = Rows { rows: Vec::new(), left_out: Vec::new(), ids_replaced: 0 };
    for index in conversations(group, record) {
        let mut lines = history(&record.transcript, index);
        let paired = all_apart(record, &lines).and_then(|()| calls::pair(&mut lines));
        match paired {
            Ok(replaced) => {
                all.ids_replaced += replaced;
                let turns = &record.transcript.turns;
                let histories = histories(&lines, turns);
                let last = histories.len();
                for (History { end, elided }, at) in histories.into_iter().zip(1..) {
                    let lines = &mut lines[..end];
                    elide(lines, elided);
                    let mut learned = learned(lines, &mut seen);
                    if let Some(trains) = trains {
                        for (line, learned) in lines.iter().zip(&mut learned) {
                            let turn = line.turn.and_then(|turn| turns.get(turn));
                            *learned &=
                                turn.is_some_and(|turn| trains.get(turn.index as usize) == Some(&true));
                        }
                    }
                    // A past from which nothing is learned is told by the row of the answers that follow from it.
                    if at == last || learned.contains(&true) {
                        all.rows.push(row(index, lines, &learned));
                    }
                }
            }
            Err(LeftOut { reason, text }) => {
                let text = format!("conversation {index} of {}: {text}", record.trajectory.traj_id);
                all.left_out.push(LeftOut { reason, text });
            }
        }
    }
    all
}

/// Whether the calls of all answers can be told from their text: records of engines before say not where they stand in it.
fn all_apart(record: &AttemptRecord, lines: &[Line<'_>]) -> Result<(), LeftOut> {
    let has_tokens = |call_id: &str| {
        let rows = &record.trajectory.segments;
        rows.iter().flat_map(|segment| &segment.spans).any(|span| span.call_id == call_id)
    };
    for turn in lines.iter().filter_map(|line| record.transcript.turns.get(line.turn?)) {
        if !turn.tool_calls.is_empty() && turn.calls_at.is_empty() && has_tokens(&turn.call_id) {
            let text = format!("turn {} does not say where its calls stand in its text", turn.index);
            return Err(LeftOut { reason: "calls-in-text", text });
        }
    }
    Ok(())
}

/// The lines as ShareGPT's readers take them: after the system prompt those of people and tools, and those of the model, by turns.
fn said(lines: &[Line<'_>], learned: &[bool]) -> Vec<Said> {
    let mut all: Vec<Said> = Vec::new();
    for (line, learned) in lines.iter().zip(learned) {
        let from = match line.message.role {
            Role::System => "system",
            Role::User => "human",
            Role::Assistant if line.calls.is_empty() => "gpt",
            Role::Assistant => "function_call",
            Role::Tool => "observation",
        };
        let value = if line.calls.is_empty() { line.text("<image>") } else { function_call(line) };
        let is_asked = |from: &str| matches!(from, "human" | "observation");
        match all.last_mut() {
            Some(last) if is_asked(last.from) && is_asked(from) => {
                last.value.push('\n');
                last.value.push_str(&value);
                // What a tool says stays that, whoever speaks beside it.
                if from == "observation" {
                    last.from = from;
                }
            }
            _ => {
                let weight = (line.message.role == Role::Assistant && !learned).then_some(0);
                all.push(Said { from, value, weight });
            }
        }
    }
    all
}

/// The calls as a JSON list; text beside them as a thought in front, the one place that the form has for it.
fn function_call(line: &Line<'_>) -> String {
    let call = |call: &ToolCall| json!({"name": call.name, "arguments": arguments(&call.arguments)});
    let calls = Value::Array(line.calls.iter().map(call).collect());
    let text = line.text("<image>");
    let text = text.trim();
    let is_thought = text.starts_with("<think>") && text.ends_with("</think>");
    match text {
        "" => calls.to_string(),
        text if is_thought && text.matches("</think>").count() == 1 => format!("{text}\n{calls}"),
        text => {
            let text = text.replace("<think>", "").replace("</think>", "");
            format!("<think>\n{}\n</think>\n{calls}", text.trim())
        }
    }
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
    /// Its calls, each under an id of its own once they are paired.
    calls: Vec<ToolCall>,
    /// Where its text holds calls.
    calls_at: &'a [(u32, u32)],
    /// For each result in it the id of the call, once they are paired.
    answers: Vec<String>,
}

impl<'a> Line<'a> {
    fn of(message: &'a Message) -> Line<'a> {
        let line =
            Line { message, turn: None, elided: 0, calls: Vec::new(), calls_at: &[], answers: Vec::new() };
        Line { calls: calls::of(&line), ..line }
    }

    fn answer(turn: &'a Turn, at: usize) -> Line<'a> {
        let line = Line { turn: Some(at), calls_at: &turn.calls_at, ..Line::of(&turn.message) };
        Line { calls: turn.tool_calls.clone(), ..line }
    }

    /// Its text without calls, and images as `image` writes them.
    fn text(&self, image: &str) -> String {
        let text = self.whole_text(image);
        if self.calls_at.is_empty() {
            return text;
        }
        let mut apart = String::new();
        let mut from = 0;
        for (start, end) in self.calls_at {
            apart.push_str(text.get(from..*start as usize).unwrap_or_default());
            from = *end as usize;
        }
        apart.push_str(text.get(from..).unwrap_or_default());
        apart.trim_end().to_owned()
    }

    fn whole_text(&self, image: &str) -> String {
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
        self.message.images().skip(self.elided)
    }
}

fn images(lines: &[Line<'_>]) -> Vec<String> {
    lines.iter().flat_map(Line::images).map(str::to_owned).collect()
}

/// Answers that were given to the same images, and what came before them.
struct History {
    /// How many lines it has, the last of its answers at their end; of the last history all.
    end: usize,
    /// Images, from the first, that were elided for its answers.
    elided: usize,
}

/// At least one, in order.
fn histories(lines: &[Line<'_>], turns: &[Turn]) -> Vec<History> {
    let mut all: Vec<History> = Vec::new();
    for (line, end) in lines.iter().zip(1..) {
        let Some(turn) = line.turn.and_then(|turn| turns.get(turn)) else { continue };
        let elided = turn.images_elided as usize;
        match all.last_mut().filter(|history| history.elided == elided) {
            Some(history) => history.end = end,
            None => all.push(History { end, elided }),
        }
    }
    match all.last_mut() {
        Some(last) => last.end = lines.len(),
        None => all.push(History { end: lines.len(), elided: 0 }),
    }
    all
}

/// The first `left` images become the text that stands for them.
fn elide(lines: &mut [Line<'_>], mut left: usize) {
    for line in lines {
        line.elided = line.message.images().count().min(left);
        left -= line.elided;
    }
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
    lines.extend(log.opening.iter().map(Line::of));
    let turns = transcript.turns.iter().enumerate().filter(|(_, turn)| turn.conversation == index);
    for (at, turn) in turns {
        lines.push(Line::answer(turn, at));
        lines.extend(turn.results.iter().map(Line::of));
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

/// The content of a message: text; in a row with images parts, so that a column of contents has one type.
fn content(line: &Line<'_>, in_parts: bool) -> Value {
    if !in_parts {
        return line.text("").into();
    }
    if line.message.images().next().is_none() {
        return text_part(&line.text(""));
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

fn text_part(text: &str) -> Value {
    json!([{"type": "text", "text": text}])
}

/// A message of tool results becomes one message a result, and one of the user with the images beside them.
fn chat_messages(line: &Line<'_>, learned: bool, (form, in_parts): (ToolArguments, bool)) -> Vec<Value> {
    let message = line.message;
    if message.role == Role::Tool {
        return results(line, in_parts);
    }
    let mut value = json!({"role": message.role.as_str(), "content": content(line, in_parts)});
    let calls = line.calls.iter().map(|call| {
        let arguments = match form {
            ToolArguments::Text => Value::from(call.arguments.as_str()),
            ToolArguments::Object => arguments(&call.arguments),
        };
        json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}})
    });
    let calls: Vec<Value> = calls.collect();
    if !calls.is_empty() {
        value["tool_calls"] = Value::Array(calls);
    }
    if message.role == Role::Assistant && !learned {
        value["weight"] = json!(0);
    }
    vec![value]
}

fn results(line: &Line<'_>, in_parts: bool) -> Vec<Value> {
    let message = line.message;
    let texts: Vec<String> = (message.parts.iter())
        .filter_map(|part| match part {
            Part::ToolResult(result) => Some(result.text.clone()),
            _ => None,
        })
        .collect();
    let texts = if texts.is_empty() { vec![message.joined_text()] } else { texts };
    let result = |(text, id): (&String, &String)| {
        let content = if in_parts { text_part(text) } else { text.as_str().into() };
        json!({"role": "tool", "tool_call_id": id, "content": content})
    };
    let images = message.parts.iter().filter(|part| matches!(part, Part::Image(_))).cloned();
    let of_user = Message { role: Role::User, parts: images.collect(), extra: None };
    let beside = (!of_user.parts.is_empty()).then(|| {
        let line = Line { elided: line.elided, ..Line::of(&of_user) };
        json!({"role": "user", "content": content(&line, in_parts)})
    });
    texts.iter().zip(&line.answers).map(result).chain(beside).collect()
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
