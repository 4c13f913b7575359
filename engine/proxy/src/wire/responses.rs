//! OpenAI responses. What `previous_response_id` names is a history of the same rollout, kept while the rollout lasts.

use super::chat::{NO_PARAMETERS, declared, split};
use super::field::{Field, push_text};
use super::{Answered, Asked, Previous, Refused, now_s};
use crate::stream::{Event, pieces};
use espalier_core::chat::{Finish, Message, Part, Role, Tool, ToolCall, ToolResult};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Ids of responses begin so, and end with the number of the call.
const ID: &str = "resp_";
/// The one parameter of a tool whose input is text.
const INPUT: &str = "input";
/// Tools that the vendor's servers carry out: this engine does not, and does not offer them.
const HOSTED: [&str; 9] = [
    "web_search",
    "web_search_preview",
    "file_search",
    "code_interpreter",
    "image_generation",
    "computer_use_preview",
    "mcp",
    "tool_search",
    "local_shell",
];

/// What a request asks.
pub(super) fn read(root: &Field<'_>, previous: &Previous<'_>) -> Result<Asked, Refused> {
    let no = Value::Bool(false);
    root.without("background", std::slice::from_ref(&no), "answers are given at once")?;
    root.without("conversation", &[], "expected `previous_response_id`, or the whole history in `input`")?;
    root.without("prompt", &[], "the engine has no stored prompts")?;
    if let Some(format) = root.get("text").and_then(|text| text.get("format"))
        && *format.value != json!({ "type": "text" })
    {
        return Err(format.unsupported("answers cannot be held to a form"));
    }
    let mut messages = Vec::new();
    if let Some(instructions) = root.get("instructions") {
        messages.push(Message::text(Role::System, instructions.text()?));
    }
    if let Some(id) = root.get("previous_response_id") {
        let known = id.text()?.strip_prefix(ID).and_then(|number| number.parse().ok()).and_then(previous);
        let mut known = known.ok_or_else(|| id.wrong("the id of a response of this rollout"))?;
        // The instructions of an earlier response do not carry over.
        if known.first().is_some_and(|first| first.role == Role::System) && !messages.is_empty() {
            known.remove(0);
        }
        messages.extend(known);
    }
    let input = root.need("input")?;
    match input.value.as_str() {
        Some(text) => messages.push(Message::text(Role::User, text)),
        None => {
            // Items of one answer that follow each other are one message.
            let mut open = false;
            for item in input.items()? {
                open = read_item(&item, &mut messages, open)?;
            }
        }
    }
    one_system_message(&mut messages);
    let mut offered = Offered::default();
    if let Some(tools) = root.get("tools") {
        for field in tools.items()? {
            offered.read(&field, None)?;
        }
    }
    let Offered { tools, text_tools, grouped } = offered;
    Ok(Asked {
        model: root.need("model")?.text()?.to_owned(),
        messages,
        tools,
        tool_choice: root.get("tool_choice").map(|choice| tool_choice(&choice)).transpose()?,
        max_tokens: root.get("max_output_tokens").map(|most| most.tokens()).transpose()?,
        stop: Vec::new(),
        n: 1,
        stream: root.get("stream").map_or(Ok(false), |stream| stream.flag())?,
        stream_usage: true,
        text_tools,
        grouped,
    })
}

/// Instructions come in several messages at the start, which most templates take as one alone.
fn one_system_message(messages: &mut Vec<Message>) {
    let count = messages.iter().take_while(|message| message.role == Role::System).count();
    if count > 1 {
        let texts: Vec<String> = messages.drain(..count).map(|message| message.joined_text()).collect();
        messages.insert(0, Message::text(Role::System, texts.join("\n\n")));
    }
}

/// The tools of a request.
#[derive(Default)]
struct Offered {
    tools: Vec<Tool>,
    text_tools: Vec<String>,
    grouped: BTreeMap<String, (String, String)>,
}

impl Offered {
    /// Adds a tool, or those of a group.
    fn read(&mut self, field: &Field<'_>, group: Option<&str>) -> Result<(), Refused> {
        let kind = field.need("type")?;
        let mut tool = match (kind.text()?, group) {
            ("function", _) => declared(field, "parameters")?,
            ("custom", _) => text_tool(field)?,
            ("namespace", None) => {
                let name = field.need("name")?.text()?;
                for tool in field.need("tools")?.items()? {
                    self.read(&tool, Some(name))?;
                }
                return Ok(());
            }
            (hosted, _) if HOSTED.contains(&hosted) => return Ok(()),
            _ => return Err(kind.wrong("function, custom or namespace")),
        };
        if let Some(group) = group {
            let name = in_group(group, &tool.name);
            let own = std::mem::replace(&mut tool.name, name.clone());
            self.grouped.insert(name, (group.to_owned(), own));
        }
        if kind.text()? == "custom" {
            self.text_tools.push(tool.name.clone());
        }
        self.tools.push(tool);
        Ok(())
    }
}

/// The name under which a tool of a group is offered.
fn in_group(group: &str, name: &str) -> String {
    format!("{group}__{name}")
}

/// The name of a call's tool, under which it was offered.
fn offered_name(item: &Field<'_>) -> Result<String, Refused> {
    let name = item.need("name")?.text()?;
    match item.get("namespace") {
        Some(group) => Ok(in_group(group.text()?, name)),
        None => Ok(name.to_owned()),
    }
}

/// A tool whose input is text, as one with a single parameter.
fn text_tool(field: &Field<'_>) -> Result<Tool, Refused> {
    let mut tool = declared(field, "parameters")?;
    if tool.parameters == NO_PARAMETERS {
        let input = json!({ "type": "string" });
        tool.parameters =
            json!({ "type": "object", "properties": { INPUT: input }, "required": [INPUT] }).to_string();
    }
    if let Some(definition) = field.get("format").and_then(|format| format.get("definition")) {
        tool.description.push_str("\n\nThe input has this form:\n");
        tool.description.push_str(definition.text()?);
    }
    Ok(tool)
}

/// Adds an item. `open`: the last message is an answer whose items have just come; says whether that holds behind this one.
fn read_item(item: &Field<'_>, messages: &mut Vec<Message>, open: bool) -> Result<bool, Refused> {
    let kind = match item.get("type") {
        Some(kind) => kind.text()?,
        None => "message",
    };
    let mut answer = |part: Part| match messages.last_mut().filter(|_| open) {
        Some(last) => match part {
            Part::Text(text) => push_text(&mut last.parts, &text),
            part => last.parts.push(part),
        },
        None => messages.push(Message { role: Role::Assistant, parts: vec![part], extra: None }),
    };
    match kind {
        "message" => {
            let role = item.need("role")?;
            let parts = content(&item.need("content")?)?;
            let role = match role.text()? {
                "system" | "developer" => Role::System,
                "user" => Role::User,
                "assistant" => {
                    parts.into_iter().for_each(answer);
                    return Ok(true);
                }
                _ => return Err(role.wrong("system, developer, user or assistant")),
            };
            messages.push(Message { role, parts, extra: None });
            Ok(false)
        }
        "function_call" => {
            answer(Part::ToolCall(ToolCall {
                id: item.need("call_id")?.text()?.to_owned(),
                name: offered_name(item)?,
                arguments: item.need("arguments")?.arguments()?,
            }));
            Ok(true)
        }
        "custom_tool_call" => {
            answer(Part::ToolCall(ToolCall {
                id: item.need("call_id")?.text()?.to_owned(),
                name: offered_name(item)?,
                arguments: json!({ INPUT: item.need("input")?.text()? }).to_string(),
            }));
            Ok(true)
        }
        "function_call_output" | "custom_tool_call_output" => {
            let (text, images) = split(content(&item.need("output")?)?);
            let call_id = item.need("call_id")?.text()?.to_owned();
            let result = Part::ToolResult(ToolResult { call_id, text, is_error: false });
            let parts = std::iter::once(result).chain(images).collect();
            messages.push(Message { role: Role::Tool, parts, extra: None });
            Ok(false)
        }
        // Of another model: this one has written none.
        "reasoning" => Ok(open),
        _ => Err(item.get("type").unwrap_or_else(|| item.clone()).wrong(
            "message, function_call, function_call_output, custom_tool_call, custom_tool_call_output or reasoning",
        )),
    }
}

/// A text, or a list of parts.
fn content(field: &Field<'_>) -> Result<Vec<Part>, Refused> {
    if let Some(text) = field.value.as_str() {
        return Ok(vec![Part::Text(text.to_owned())]);
    }
    let mut parts = Vec::new();
    for part in field.items()? {
        let kind = part.need("type")?;
        match kind.text()? {
            "input_text" | "output_text" | "text" => push_text(&mut parts, part.need("text")?.text()?),
            "refusal" => push_text(&mut parts, part.need("refusal")?.text()?),
            "input_image" => parts.push(Part::Image(part.need("image_url")?.text()?.to_owned())),
            _ => return Err(kind.wrong("input_text, output_text, input_image or refusal")),
        }
    }
    Ok(parts)
}

fn tool_choice(field: &Field<'_>) -> Result<String, Refused> {
    match field.value {
        Value::String(word) if ["auto", "none", "required"].contains(&word.as_str()) => Ok(word.clone()),
        Value::Object(_) => Ok(field.need("name")?.text()?.to_owned()),
        _ => Err(field.wrong("auto, none, required or a function")),
    }
}

/// The items of an answer.
fn output(asked: &Asked, answered: &Answered, number: u64) -> Vec<Value> {
    let answer = &answered.answer;
    let mut items = Vec::new();
    if !answer.text.is_empty() || answer.calls.is_empty() {
        let text = json!({ "type": "output_text", "text": answer.text, "annotations": [], "logprobs": [] });
        items.push(json!({
            "id": format!("msg_{number}"), "type": "message", "status": "completed", "role": "assistant", "content": [text],
        }));
    }
    for (at, call) in answer.calls.iter().enumerate() {
        let text = asked.text_tools.contains(&call.name).then(|| text_input(call)).flatten();
        let group = asked.grouped.get(&call.name);
        let name = group.map_or(&call.name, |(_, name)| name);
        let mut item = match text {
            Some(text) => json!({
                "id": format!("ctc_{number}_{at}"), "type": "custom_tool_call", "status": "completed",
                "call_id": call.id, "name": name, "input": text,
            }),
            None => json!({
                "id": format!("fc_{number}_{at}"), "type": "function_call", "status": "completed",
                "call_id": call.id, "name": name, "arguments": call.arguments,
            }),
        };
        if let Some((group, _)) = group {
            item["namespace"] = group.as_str().into();
        }
        items.push(item);
    }
    items
}

/// The input of a tool whose input is text, where the model kept to it.
fn text_input(call: &ToolCall) -> Option<String> {
    let arguments: Value = serde_json::from_str(&call.arguments).ok()?;
    let only = arguments.as_object()?.len() == 1;
    arguments.get(INPUT)?.as_str().filter(|_| only).map(str::to_owned)
}

fn response(
    asked: &Asked,
    number: u64,
    status: &str,
    output: Vec<Value>,
    answered: Option<&Answered>,
) -> Value {
    let cut = status == "incomplete";
    let usage = answered.map(|one| {
        json!({
            "input_tokens": one.prompt_tokens, "input_tokens_details": { "cached_tokens": 0 },
            "output_tokens": one.sampled_tokens, "output_tokens_details": { "reasoning_tokens": 0 },
            "total_tokens": one.prompt_tokens + one.sampled_tokens,
        })
    });
    json!({
        "id": format!("{ID}{number}"), "object": "response", "created_at": now_s(), "status": status, "error": null,
        "incomplete_details": cut.then(|| json!({ "reason": "max_output_tokens" })), "instructions": null,
        "max_output_tokens": asked.max_tokens, "model": asked.model, "output": output, "parallel_tool_calls": true,
        "previous_response_id": null, "reasoning": null, "store": true, "temperature": null, "text": { "format": { "type": "text" } },
        "tool_choice": "auto", "tools": [], "top_p": null, "truncation": "disabled", "usage": usage, "metadata": {},
    })
}

fn status(answered: &Answered) -> &'static str {
    if answered.finish == Finish::Length { "incomplete" } else { "completed" }
}

/// An answer that is whole.
pub(super) fn whole(asked: &Asked, answered: &Answered, number: u64) -> Value {
    response(asked, number, status(answered), output(asked, answered, number), Some(answered))
}

/// The same as events.
pub(super) fn events(asked: &Asked, answered: &Answered, number: u64) -> Vec<Event> {
    let mut events: Vec<Event> = Vec::new();
    let mut push = |name: &'static str, mut data: Value| {
        data["type"] = name.into();
        data["sequence_number"] = events.len().into();
        events.push(Event { name: Some(name), data: data.to_string() });
    };
    let begun = response(asked, number, "in_progress", Vec::new(), None);
    push("response.created", json!({ "response": begun }));
    push("response.in_progress", json!({ "response": begun }));
    let items = output(asked, answered, number);
    for (at, item) in items.iter().enumerate() {
        let id = &item["id"];
        let mut begun = item.clone();
        begun["status"] = "in_progress".into();
        let place = |more: Value| {
            let mut data = json!({ "item_id": id, "output_index": at });
            if let (Some(data), Value::Object(more)) = (data.as_object_mut(), more) {
                data.extend(more);
            }
            data
        };
        let (text, field, delta, done) = match item["type"].as_str() {
            Some("message") => {
                begun["content"] = json!([]);
                (
                    &item["content"][0]["text"],
                    "text",
                    "response.output_text.delta",
                    "response.output_text.done",
                )
            }
            Some("custom_tool_call") => {
                begun["input"] = "".into();
                (
                    &item["input"],
                    "input",
                    "response.custom_tool_call_input.delta",
                    "response.custom_tool_call_input.done",
                )
            }
            _ => {
                begun["arguments"] = "".into();
                let (delta, done) =
                    ("response.function_call_arguments.delta", "response.function_call_arguments.done");
                (&item["arguments"], "arguments", delta, done)
            }
        };
        let is_message = field == "text";
        push("response.output_item.added", json!({ "output_index": at, "item": begun }));
        let part = &item["content"][0];
        if is_message {
            let empty = json!({ "type": "output_text", "text": "", "annotations": [], "logprobs": [] });
            push("response.content_part.added", place(json!({ "content_index": 0, "part": empty })));
        }
        let of_part = |mut more: Value| {
            if is_message {
                more["content_index"] = 0.into();
                more["logprobs"] = json!([]);
            }
            place(more)
        };
        let text = text.as_str().unwrap_or_default();
        for piece in pieces(text) {
            push(delta, of_part(json!({ "delta": piece })));
        }
        let mut whole = of_part(json!({}));
        whole[field] = text.into();
        if field == "arguments" {
            whole["name"] = item["name"].clone();
        }
        push(done, whole);
        if is_message {
            push("response.content_part.done", place(json!({ "content_index": 0, "part": part })));
        }
        push("response.output_item.done", json!({ "output_index": at, "item": item }));
    }
    let status = status(answered);
    let name = if status == "incomplete" { "response.incomplete" } else { "response.completed" };
    push(name, json!({ "response": response(asked, number, status, items, Some(answered)) }));
    events
}
