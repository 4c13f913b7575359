//! From the messages of a conversation to the list that templates read: one role, one text each.

use super::{SystemAs, TemplateError, TemplateOptions, ToolResultsAs};
use crate::images;
use espalier_core::chat::{Message, Part, Role};

/// Between texts that are joined into one message.
const JOIN: &str = "\n\n";

/// One message as a template reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Who speaks.
    pub(super) role: Role,
    /// What is said; for an answer its raw text.
    pub(super) content: String,
    /// Where in `content` images stand, in order: before this byte, this blob.
    pub(super) images: Vec<(usize, String)>,
    /// The call that a tool result answers.
    pub(super) call_id: Option<String>,
    /// The tool that was called.
    pub(super) tool: Option<String>,
    /// Index of the (first) message it came from.
    pub(super) message: usize,
    /// Whether the experiment gave it another role than the harness did. Only such an entry is joined with its
    /// neighbour: two messages that the harness sends one after the other stay two.
    pub(super) derived: bool,
}

impl Entry {
    fn new(role: Role, said: Said, message: usize) -> Entry {
        let Said { text: content, images } = said;
        Entry { role, content, images, call_id: None, tool: None, message, derived: false }
    }

    /// Whether a template may print nothing for it.
    pub(super) fn is_empty(&self) -> bool {
        self.content.is_empty() && self.images.is_empty()
    }
}

/// Text with images in it.
#[derive(Default)]
struct Said {
    text: String,
    images: Vec<(usize, String)>,
}

impl Said {
    fn of(message: &Message) -> Said {
        let mut said = Said::default();
        for part in &message.parts {
            match part {
                Part::Text(text) => said.text.push_str(text),
                Part::ToolResult(result) => said.text.push_str(&result.text),
                Part::Image(blob) => said.push_image(blob),
                Part::TextBlob(_) | Part::ToolCall(_) | Part::Other(_) => {}
            }
        }
        said
    }

    fn push_image(&mut self, blob: &str) {
        match blob {
            images::ELIDED => self.text.push_str(images::PLACEHOLDER),
            blob => self.images.push((self.text.len(), blob.to_owned())),
        }
    }
}

/// The entries of a conversation from its start.
pub(super) fn entries(messages: &[Message], options: &TemplateOptions) -> Result<Vec<Entry>, TemplateError> {
    following(&[], messages, options)
}

/// The entries of `new`, which follow `past`.
pub(super) fn following(
    past: &[Message],
    new: &[Message],
    options: &TemplateOptions,
) -> Result<Vec<Entry>, TemplateError> {
    let mut entries: Vec<Entry> = Vec::with_capacity(new.len());
    for (offset, message) in new.iter().enumerate() {
        let index = past.len() + offset;
        known_parts(message, index)?;
        match message.role {
            Role::Tool => {
                for (call_id, said) in results(message) {
                    let tool = call_id.as_deref().and_then(|id| called(past, &new[..offset], id));
                    let mut entry = Entry { call_id, tool, ..Entry::new(Role::Tool, said, index) };
                    if options.tool_results == ToolResultsAs::User {
                        entry = Entry { role: Role::User, call_id: None, tool: None, derived: true, ..entry };
                    }
                    push(&mut entries, entry);
                }
            }
            Role::System if options.system == SystemAs::FirstUser => {
                let entry = Entry { derived: true, ..Entry::new(Role::User, Said::of(message), index) };
                push(&mut entries, entry);
            }
            role => push(&mut entries, Entry::new(role, Said::of(message), index)),
        }
    }
    Ok(entries)
}

/// Adds an entry, or joins it to the user's entry before it where one of the two is derived.
fn push(entries: &mut Vec<Entry>, entry: Entry) {
    match entries.last_mut() {
        Some(last)
            if last.role == Role::User && entry.role == Role::User && (last.derived || entry.derived) =>
        {
            last.content.push_str(JOIN);
            let from = last.content.len();
            last.content.push_str(&entry.content);
            last.images.extend(entry.images.into_iter().map(|(at, blob)| (from + at, blob)));
        }
        _ => entries.push(entry),
    }
}

/// The results of a tool message, each with the call it answers and the images that follow it.
fn results(message: &Message) -> Vec<(Option<String>, Said)> {
    let mut results: Vec<(Option<String>, Said)> = Vec::new();
    for part in &message.parts {
        let (call_id, text) = match part {
            Part::ToolResult(result) => (Some(result.call_id.clone()), result.text.clone()),
            Part::Text(text) => (None, text.clone()),
            Part::Image(blob) => {
                if results.is_empty() {
                    results.push((None, Said::default()));
                }
                if let Some((_, said)) = results.last_mut() {
                    said.push_image(blob);
                }
                continue;
            }
            _ => continue,
        };
        results.push((call_id, Said { text, images: Vec::new() }));
    }
    if results.is_empty() { vec![(None, Said::default())] } else { results }
}

/// Name of the tool that the call with this id named; the latest such call.
fn called(past: &[Message], new: &[Message], id: &str) -> Option<String> {
    past.iter().chain(new).rev().flat_map(|message| &message.parts).find_map(|part| match part {
        Part::ToolCall(call) if call.id == id => Some(call.name.clone()),
        _ => None,
    })
}

fn known_parts(message: &Message, index: usize) -> Result<(), TemplateError> {
    let odd = message.parts.iter().find_map(|part| match part {
        Part::TextBlob(_) => Some("a text kept as a blob"),
        Part::Other(_) => Some("a part of an unknown kind"),
        Part::Text(_) | Part::Image(_) | Part::ToolCall(_) | Part::ToolResult(_) => None,
    });
    odd.map_or(Ok(()), |part| Err(TemplateError::Part { message: index, part }))
}
