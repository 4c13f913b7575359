//! What the model is shown: the task, the actions with what came of them, the final answer.

use crate::settings::Settings;
use espalier_sdk::cut;
use std::fmt::Write;

/// What happened, as the judge's model is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// The task.
    pub instruction: String,
    /// By turn, in order.
    pub turns: Vec<ToldTurn>,
    /// How it ended.
    pub stop_reason: String,
    /// The final answer.
    pub answer: Option<String>,
    /// What is known of the solution.
    pub private: Option<String>,
}

/// One turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToldTurn {
    /// What the model wrote.
    pub text: String,
    /// Tool and arguments.
    pub calls: Vec<(String, String)>,
    /// What it was told of them.
    pub results: Vec<String>,
}

/// The question.
pub fn question(told: &Told, settings: &Settings) -> String {
    let cut = |text: &str| cut(text, settings.text_max as usize);
    let mut text = format!(
        "An agent has used a web browser. Judge whether it has done its task.\n\n# Task\n\n{}\n\n# What it did",
        cut(&told.instruction)
    );
    let first = told.turns.len().saturating_sub(settings.turns_shown as usize);
    if first > 0 {
        let _ = write!(text, "\n\n[{first} turns before these are left out]");
    }
    for (number, turn) in told.turns.iter().enumerate().skip(first) {
        let _ = write!(text, "\n\n## Turn {}", number + 1);
        if let Some(thought) = thought(&turn.text).filter(|_| settings.thoughts) {
            let _ = write!(text, "\n[thinks] {}", cut(thought));
        }
        if turn.calls.is_empty() {
            text.push_str("\n[calls no tool]");
        }
        for (name, arguments) in &turn.calls {
            let _ = write!(text, "\n[calls] {name} {}", cut(arguments));
        }
        for result in &turn.results {
            let _ = write!(text, "\n[is told] {}", cut(result));
        }
    }
    let answer = told.answer.as_deref().map_or_else(|| "none".to_owned(), cut);
    let _ = write!(text, "\n\n# How it ended\n\n{}\n\n# Final answer\n\n{answer}", told.stop_reason);
    if let Some(private) = told.private.as_deref().filter(|_| settings.show_private) {
        let _ = write!(text, "\n\n# For you alone: what is known of the solution\n\n{}", cut(private));
    }
    if settings.images > 0 {
        text.push_str("\n\n# Screenshots\n\nThe last ones, oldest first, are attached.");
    }
    let _ = write!(text, "\n\n# Question\n\n{}", settings.rubric);
    text.push_str(
        "\n\nThink briefly, then end with one line:\nVERDICT: SUCCESS if it has been done,\nVERDICT: FAILURE if it has not,\n\
         VERDICT: NOT VERIFIED if what is shown does not tell,\nVERDICT: CAPTCHA if a captcha or a check for robots kept the agent \
         from doing it.",
    );
    text
}

/// What stands between `<think>` and `</think>`; the beginning may stand in the prompt.
fn thought(text: &str) -> Option<&str> {
    let (before, _) = text.split_once("</think>")?;
    let thought = before.rsplit_once("<think>").map_or(before, |(_, thought)| thought).trim();
    (!thought.is_empty()).then_some(thought)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told() -> Told {
        let turn = |text: &str, calls: &[(&str, &str)], results: &[&str]| ToldTurn {
            text: text.to_owned(),
            calls: calls.iter().map(|(name, with)| ((*name).to_owned(), (*with).to_owned())).collect(),
            results: results.iter().map(|result| (*result).to_owned()).collect(),
        };
        Told {
            instruction: "Save the order.".to_owned(),
            turns: vec![
                turn("<think>The button.</think><tool_call>", &[("click", "{\"ref\":\"e1\"}")], &["clicked"]),
                turn("Well.", &[], &["Your answer called no tool. Call one of the tools."]),
                turn("done</think>", &[("done", "{}")], &[]),
            ],
            stop_reason: "submitted".to_owned(),
            answer: Some("saved".to_owned()),
            private: Some("{\"title\":\"Saved\"}".to_owned()),
        }
    }

    #[test]
    fn it_is_shown_actions_with_their_effects_and_thoughts_where_asked() {
        let text = question(&told(), &Settings::default());
        let middle = "# What it did\n\n## Turn 1\n[calls] click {\"ref\":\"e1\"}\n[is told] clicked\n\n## Turn 2\n[calls no tool]\n\
                      [is told] Your answer called no tool. Call one of the tools.\n\n## Turn 3\n[calls] done {}\n\n\
                      # How it ended\n\nsubmitted\n\n# Final answer\n\nsaved\n\n# Screenshots";
        assert!(text.contains(middle), "{text}");
        assert!(!text.contains("The button.") && !text.contains("For you alone"), "{text}");
        let all = Settings { thoughts: true, show_private: true, images: 0, ..Settings::default() };
        let text = question(&told(), &all);
        assert!(text.contains("## Turn 1\n[thinks] The button.\n[calls] click"), "{text}");
        assert!(text.contains("## Turn 3\n[thinks] done\n"), "{text}");
        assert!(
            text.contains("# For you alone: what is known of the solution\n\n{\"title\":\"Saved\"}"),
            "{text}"
        );
        assert!(!text.contains("Screenshots"), "{text}");
    }

    #[test]
    fn it_is_shown_the_last_turns_and_long_texts_cut() {
        let short = Settings { turns_shown: 1, text_max: 4, ..Settings::default() };
        let text = question(&told(), &short);
        assert!(
            text.contains("# What it did\n\n[2 turns before these are left out]\n\n## Turn 3\n"),
            "{text}"
        );
        assert!(text.contains("# Task\n\nSa\n[11 characters left out]\nr."), "{text}");
    }
}
