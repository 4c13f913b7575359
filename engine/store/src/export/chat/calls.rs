//! Tool calls and their answers, matched by id, so that no row of a conversation names an id that nothing in it has.
//!
//! Ids that repeat, or are empty, are replaced where it is certain which call an answer means; a conversation in which it is not is left out.

use super::Line;
use espalier_core::chat::{Part, Role, ToolCall};
use std::collections::HashSet;

/// Why a conversation is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::export) struct LeftOut {
    /// Stable word.
    pub(in crate::export) reason: &'static str,
    /// Place and value.
    pub(in crate::export) text: String,
}

/// A call that waits for its answer.
struct Waiting {
    /// As recorded.
    recorded: String,
    /// As written.
    id: String,
    answered: bool,
}

/// Gives each call an id of its own and each answer the id of its call. Returns how many ids were replaced.
pub(super) fn pair(lines: &mut [Line<'_>]) -> Result<u64, LeftOut> {
    let mut used = HashSet::new();
    let mut waiting: Vec<Waiting> = Vec::new();
    let mut replaced = 0;
    for (place, line) in lines.iter_mut().enumerate() {
        if line.message.role == Role::Assistant {
            if let Some(call) = waiting.iter().find(|call| !call.answered) {
                let text =
                    format!("message {place} is an answer, but nothing answers the call {:?}", call.recorded);
                return Err(LeftOut { reason: "call-without-answer", text });
            }
            waiting.clear();
            for call in &mut line.calls {
                let recorded = call.id.clone();
                if recorded.is_empty() || used.contains(&recorded) {
                    call.id = unused(&recorded, &used);
                    replaced += 1;
                }
                used.insert(call.id.clone());
                waiting.push(Waiting { recorded, id: call.id.clone(), answered: false });
            }
            continue;
        }
        for named in answers(line) {
            let open = || waiting.iter().filter(|call| !call.answered);
            let only = open().count() == 1 && named.is_none_or(str::is_empty);
            let meant = open().find(|call| only || named == Some(&call.recorded)).map(|call| call.id.clone());
            let Some(id) = meant else {
                let named = named.unwrap_or_default();
                let text = format!(
                    "message {place} is the result of the call {named:?}, which no answer before it made"
                );
                return Err(LeftOut { reason: "result-without-call", text });
            };
            replaced += u64::from(only);
            line.answers.push(id.clone());
            for call in waiting.iter_mut().filter(|call| call.id == id) {
                call.answered = true;
            }
        }
    }
    Ok(replaced)
}

/// The calls of a line: those that stand beside its text, or in it.
pub(super) fn of(line: &Line<'_>) -> Vec<ToolCall> {
    let parts = line.message.parts.iter();
    parts
        .filter_map(|part| match part {
            Part::ToolCall(call) => Some(call.clone()),
            _ => None,
        })
        .collect()
}

/// The ids that results name, in order; `None`: a result without a place for one.
fn answers<'a>(line: &Line<'a>) -> Vec<Option<&'a str>> {
    let parts = line.message.parts.iter();
    let named: Vec<Option<&str>> = parts
        .filter_map(|part| match part {
            Part::ToolResult(result) => Some(Some(result.call_id.as_str())),
            _ => None,
        })
        .collect();
    if named.is_empty() && line.message.role == Role::Tool { vec![None] } else { named }
}

fn unused(recorded: &str, used: &HashSet<String>) -> String {
    let stem = if recorded.is_empty() { "call" } else { recorded };
    let mut numbered = (2u64..).map(|number| format!("{stem}-{number}"));
    numbered.find(|id| !used.contains(id)).expect("the numbers do not end before the ids that are used")
}
