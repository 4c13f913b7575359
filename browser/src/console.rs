//! What scripts write to the console, and what they throw.

use crate::protocol::{ExceptionDetails, RemoteObject};
use serde::Deserialize;

/// Console messages that a page remembers.
pub(crate) const CONSOLE_KEPT: usize = 500;
/// Errors that a page remembers.
pub(crate) const ERRORS_KEPT: usize = 200;
/// The longest text of a message that is kept, in bytes.
const TEXT_BYTES_MAX: usize = 16 << 10;

/// A message on the console.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsoleMessage {
    /// `log`, `error`, `warning`, `info`, `debug`, `assert`, and the other methods of `console`; messages of Chromium
    /// itself are `error`, `warning` or `info`.
    pub kind: String,
    /// Its arguments with spaces between; cut after 16 KiB.
    pub text: String,
    /// The address of the script or resource. May be empty.
    pub url: String,
    /// From 0.
    pub line: i64,
    /// From 0.
    pub column: i64,
    /// Whether Chromium wrote it, not a script.
    pub from_browser: bool,
}

/// An error that no script caught.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptError {
    /// Name and message.
    pub message: String,
    /// The stack; empty where there is none.
    pub stack: String,
    /// The address of the script. May be empty.
    pub url: String,
    /// From 0.
    pub line: i64,
    /// From 0.
    pub column: i64,
}

/// `Runtime.consoleAPICalled`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ConsoleCalled {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    args: Vec<RemoteObject>,
    stack_trace: Option<StackTrace>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StackTrace {
    #[serde(default)]
    call_frames: Vec<CallFrame>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CallFrame {
    url: String,
    line_number: i64,
    column_number: i64,
}

/// `Log.entryAdded`.
#[derive(Deserialize)]
pub(crate) struct LogEntryAdded {
    entry: LogEntry,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LogEntry {
    level: String,
    text: String,
    #[serde(default)]
    url: String,
    #[serde(default)]
    line_number: i64,
}

/// `Runtime.exceptionThrown`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExceptionThrown {
    exception_details: ExceptionDetails,
}

impl From<ConsoleCalled> for ConsoleMessage {
    fn from(called: ConsoleCalled) -> Self {
        let mut text = String::new();
        for arg in &called.args {
            if text.len() > TEXT_BYTES_MAX {
                break;
            }
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(&as_text(arg));
        }
        let place = called.stack_trace.and_then(|trace| trace.call_frames.into_iter().next());
        let (url, line, column) =
            place.map_or_else(Default::default, |at| (at.url, at.line_number, at.column_number));
        ConsoleMessage { kind: called.kind, text: cut(text), url, line, column, from_browser: false }
    }
}

impl From<LogEntryAdded> for ConsoleMessage {
    fn from(added: LogEntryAdded) -> Self {
        let LogEntry { level, text, url, line_number } = added.entry;
        ConsoleMessage { kind: level, text: cut(text), url, line: line_number, column: 0, from_browser: true }
    }
}

impl From<ExceptionThrown> for ScriptError {
    fn from(thrown: ExceptionThrown) -> Self {
        let details = thrown.exception_details;
        let (message, stack) = message_and_stack(&details);
        ScriptError {
            message: cut(message),
            stack: cut(stack),
            url: details.url.unwrap_or_default(),
            line: details.line_number,
            column: details.column_number,
        }
    }
}

/// What was thrown: name and message, and the stack with them.
pub(crate) fn message_and_stack(details: &ExceptionDetails) -> (String, String) {
    let Some(exception) = &details.exception else { return (details.text.clone(), String::new()) };
    match (exception.subtype.as_deref(), &exception.description) {
        (Some("error"), Some(description)) => {
            let end = description.find("\n    at ").unwrap_or(description.len());
            let stack = if end < description.len() { description.clone() } else { String::new() };
            (description[..end].to_owned(), stack)
        }
        _ => (as_text(exception), String::new()),
    }
}

/// As the console shows it: strings without quotes, objects by their description.
pub(crate) fn as_text(object: &RemoteObject) -> String {
    if let Some(value) = &object.value {
        return serde_json::from_str::<String>(value.get()).unwrap_or_else(|_| value.get().to_owned());
    }
    let special = object.unserializable_value.as_ref().or(object.description.as_ref());
    special.cloned().unwrap_or_else(|| object.kind.clone())
}

fn cut(mut text: String) -> String {
    if text.len() > TEXT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_joined_to_one_text() {
        let called: ConsoleCalled = serde_json::from_str(
            r#"{"type":"log","args":[{"type":"string","value":"a"},{"type":"number","value":1.5},
                {"type":"object","description":"Object"},{"type":"number","unserializableValue":"NaN"},
                {"type":"undefined"}],"stackTrace":{"callFrames":[{"url":"u","lineNumber":3,"columnNumber":4}]}}"#,
        )
        .expect("an event");
        let message = ConsoleMessage::from(called);
        assert_eq!(message.text, "a 1.5 Object NaN undefined");
        assert_eq!((message.url.as_str(), message.line, message.column), ("u", 3, 4));
    }

    #[test]
    fn errors_have_message_and_stack() {
        let thrown: ExceptionThrown = serde_json::from_str(
            r#"{"exceptionDetails":{"text":"Uncaught","lineNumber":1,"columnNumber":2,"exception":
                {"type":"object","subtype":"error","description":"TypeError: no\n    at f (x:1:2)"}}}"#,
        )
        .expect("an event");
        let error = ScriptError::from(thrown);
        assert_eq!(error.message, "TypeError: no");
        assert_eq!(error.stack, "TypeError: no\n    at f (x:1:2)");
    }
}
