//! What judges and other readers of a rollout show a model of it, as text.

use crate::{Message, Part, Turn};
use std::fmt::Write;

/// A text of at most `most` characters: of a longer one the beginning and the end.
pub fn cut(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.to_owned();
    }
    let half = most / 2;
    let head: String = text.chars().take(half).collect();
    let tail: String = text.chars().skip(count - half).collect();
    format!("{head}\n[{} characters left out]\n{tail}", count - 2 * half)
}

/// One turn: what the agent wrote, what it called, and what came back, each text [cut](cut) to `most` characters.
pub fn turn_text(turn: &Turn, most: usize) -> String {
    let mut text = cut(&text_of(&turn.message), most);
    for call in &turn.tool_calls {
        let _ = write!(text, "\n[calls {} with {}]", call.name, cut(&call.arguments, most));
    }
    for answer in &turn.answers {
        let _ = write!(text, "\n[receives] {}", cut(&text_of(answer), most));
    }
    text
}

fn text_of(message: &Message) -> String {
    let parts = message.parts.iter().filter_map(|part| match part {
        Part::Text(text) => Some(text.clone()),
        Part::TextBlob(_) => Some("[a text too long to show]".to_owned()),
        Part::Image(_) => Some("[image]".to_owned()),
        Part::ToolResult(result) => Some(result.text.clone()),
        Part::ToolCall(_) | Part::Other(_) => None,
    });
    parts.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_keeps_its_beginning_and_its_end() {
        assert_eq!(cut("0123456789", 10), "0123456789");
        assert_eq!(cut("0123456789abcdef", 10), "01234\n[6 characters left out]\nbcdef");
    }
}
