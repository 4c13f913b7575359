//! The published form of chat completions.

use crate::endpoint::{ChatGenerated, ChatRequest, read_json};
use crate::error::{EndpointError, Fault};
use espalier_core::chat::{Finish, Message, Part, Role, ToolCall};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct Answer {
    choices: Vec<Choice>,
    usage: Usage,
    /// Which build of the model answered, where the server says.
    system_fingerprint: Option<String>,
}

#[derive(Deserialize)]
struct Choice {
    message: AnswerMessage,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct AnswerMessage {
    content: Option<String>,
    #[serde(default)]
    tool_calls: Option<Vec<AnswerCall>>,
}

#[derive(Deserialize)]
struct AnswerCall {
    id: Option<String>,
    function: AnswerFunction,
}

#[derive(Deserialize)]
struct AnswerFunction {
    name: String,
    arguments: String,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: u32,
    completion_tokens: u32,
}

pub(super) fn chat_body(request: &ChatRequest, model: &str) -> Result<Value, EndpointError> {
    let mut messages = Vec::with_capacity(request.messages.len());
    for message in &request.messages {
        push_message(message, &request.images, &mut messages)?;
    }
    let mut body = json!({
        "model": model,
        "messages": messages,
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "max_tokens": request.sampling.max_tokens,
        "seed": request.sampling.seed,
        "n": 1,
        "stream": false,
    });
    if !request.stop.is_empty() {
        body["stop"] = json!(request.stop);
    }
    if !request.tools.is_empty() {
        let tools = request.tools.iter().map(|tool| {
            // The host has checked that a tool's parameters are JSON.
            let parameters: Value = serde_json::from_str(&tool.parameters).unwrap_or_else(|_| json!({}));
            let function = json!({
                "name": tool.name, "description": tool.description, "parameters": parameters,
            });
            json!({ "type": "function", "function": function })
        });
        body["tools"] = Value::Array(tools.collect());
        if let Some(choice) = &request.tool_choice {
            body["tool_choice"] = match choice.as_str() {
                "auto" | "none" | "required" => json!(choice),
                name => json!({ "type": "function", "function": { "name": name } }),
            };
        }
    }
    Ok(body)
}

/// One message; each tool result is a message of its own. A message with images is a list of parts, any other one is a text.
fn push_message(
    message: &Message,
    images: &BTreeMap<String, String>,
    messages: &mut Vec<Value>,
) -> Result<(), EndpointError> {
    let mut text = String::new();
    let mut parts = Vec::new();
    let mut calls = Vec::new();
    let text_part = |text: String| json!({ "type": "text", "text": text });
    for part in &message.parts {
        match part {
            Part::Text(piece) => text.push_str(piece),
            Part::ToolCall(call) => calls.push(json!({
                "id": call.id,
                "type": "function",
                "function": { "name": call.name, "arguments": call.arguments },
            })),
            Part::ToolResult(result) => messages.push(json!({
                "role": "tool", "tool_call_id": result.call_id, "content": result.text,
            })),
            Part::Image(blob) => {
                let what = "take an image that was not read";
                let url = images.get(blob).ok_or(EndpointError::Unsupported { kind: "openai-chat", what })?;
                if !text.is_empty() {
                    parts.push(text_part(std::mem::take(&mut text)));
                }
                parts.push(json!({ "type": "image_url", "image_url": { "url": url } }));
            }
            Part::TextBlob(_) | Part::Other(_) => {
                let what = "take parts other than text, images, tool calls and tool results";
                return Err(EndpointError::Unsupported { kind: "openai-chat", what });
            }
        }
    }
    if message.role == Role::Tool && text.is_empty() {
        return Ok(());
    }
    let content = if parts.is_empty() {
        json!(text)
    } else {
        parts.extend((!text.is_empty()).then(|| text_part(text)));
        Value::Array(parts)
    };
    let mut written = json!({ "role": message.role.as_str(), "content": content });
    if !calls.is_empty() {
        written["tool_calls"] = Value::Array(calls);
    }
    messages.push(written);
    Ok(())
}

/// Reads an answer. One without text and without a call is empty and asked for again.
pub(super) fn read_chat(body: &[u8], version: &str) -> Result<ChatGenerated, Fault> {
    let answer: Answer = read_json(body)?;
    let count = answer.choices.len();
    let Some(choice) = answer.choices.into_iter().next().filter(|_| count == 1) else {
        return Err(Fault::malformed(format!("{count} choices where one was asked for")));
    };
    let text = choice.message.content.unwrap_or_default();
    let mut tool_calls = Vec::new();
    let mut malformed = None;
    for (at, call) in choice.message.tool_calls.unwrap_or_default().into_iter().enumerate() {
        let AnswerFunction { name, arguments } = call.function;
        let arguments = if arguments.trim().is_empty() { "{}".to_owned() } else { arguments };
        match serde_json::from_str::<Value>(&arguments) {
            Ok(Value::Object(_)) => {
                let id = call.id.unwrap_or_else(|| format!("call-{at}"));
                tool_calls.push(ToolCall { id, name, arguments });
            }
            Ok(_) => malformed = Some(format!("the arguments of `{name}` are not a JSON object")),
            Err(error) => malformed = Some(format!("the arguments of `{name}` are not valid JSON: {error}")),
        }
    }
    let finish = match choice.finish_reason.as_deref() {
        Some("stop") => Finish::Stop,
        Some("length") => Finish::Length,
        Some("tool_calls" | "function_call") => Finish::ToolCalls,
        Some("content_filter") => Finish::Filtered,
        Some(other) => Finish::Other(other.to_owned()),
        None => return Err(Fault::malformed("`choices[0].finish_reason` is missing")),
    };
    if text.is_empty() && tool_calls.is_empty() && malformed.is_none() && finish != Finish::Filtered {
        return Err(Fault::Empty);
    }
    Ok(ChatGenerated {
        text,
        tool_calls,
        malformed,
        finish,
        prompt_tokens: answer.usage.prompt_tokens,
        sampled_tokens: answer.usage.completion_tokens,
        version: answer.system_fingerprint.unwrap_or_else(|| version.to_owned()),
        retries: 0,
    })
}
