//! The rules of the loop: what an answer means, and when the rollout ends.

use crate::settings::{Settings, Thought};
use espalier_sdk::fill;
use serde_json::{Value, json};

/// Codes of steps whose call does not parse: no such tool, or arguments that do not fit it.
const UNPARSED: [&str; 2] = ["unknown-tool", "invalid-arguments"];

/// One rollout's dialogue.
#[derive(Debug)]
pub struct Dialogue {
    /// Its settings.
    pub settings: Settings,
    /// What a scripted user says, in order; from the task.
    user: std::vec::IntoIter<String>,
    turns: u32,
    actions: u32,
    format_errors: u32,
    format_errors_in_a_row: u32,
}

/// How the dialogue ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The model is done, with this answer.
    Done(String),
    /// It cannot be done, with this answer.
    GaveUp(String),
    /// `max_turns`, or `limits.turns` of the experiment.
    Turns,
    /// A bound on tokens of the experiment.
    Tokens,
    /// `format_errors_max`.
    Format,
}

/// What came of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// It was carried out, or could not be; with the code of what was wrong, and the line for the model.
    Step {
        /// Why it failed.
        code: Option<String>,
        /// The line.
        text: String,
    },
    /// The model ended the episode.
    Ended {
        /// Its answer.
        response: String,
        /// Its word for how it ended.
        status: Option<String>,
    },
    /// It asked the user.
    Asked,
}

impl Dialogue {
    /// Nothing has been said.
    pub fn new(settings: Settings, user: Vec<String>) -> Dialogue {
        Dialogue {
            settings,
            user: user.into_iter(),
            turns: 0,
            actions: 0,
            format_errors: 0,
            format_errors_in_a_row: 0,
        }
    }

    /// The first message.
    pub fn opening(&self, instruction: &str, observation: &str) -> String {
        fill(&self.settings.opening, &[("instruction", instruction), ("observation", observation)])
    }

    /// The message after the actions of an answer.
    pub fn reply(&self, steps: &[String], observation: &str) -> String {
        fill(&self.settings.reply, &[("steps", &steps.join("\n")), ("observation", observation)])
    }

    /// What is wrong with an answer, before its calls are carried out; `None`: they are to be.
    pub fn problem(&self, text: &str, calls: usize, malformed: Option<&str>) -> Option<String> {
        if let Some(why) = malformed {
            return Some(format!("The call could not be read: {why}"));
        }
        if calls == 0 {
            return Some("Your answer called no tool".to_owned());
        }
        (self.settings.thought == Thought::Required && !has_thought(text))
            .then(|| "Your answer has no thought between <think> and </think>".to_owned())
    }

    /// An answer that did not parse; what the model is told, or how the rollout ended.
    pub fn unparsed(&mut self, problem: &str) -> Result<String, End> {
        self.turns += 1;
        self.format_error()?;
        self.go_on()?;
        Ok(fill(&self.settings.format_error, &[("problem", problem)]))
    }

    /// What came of the calls of an answer: a line for each, or how the rollout ended.
    pub fn acted(&mut self, told: &[Told]) -> Result<Vec<String>, End> {
        self.turns += 1;
        let is_unparsed = |told: &Told| match told {
            Told::Step { code: Some(code), .. } => UNPARSED.contains(&code.as_str()),
            _ => false,
        };
        if told.iter().any(is_unparsed) {
            self.format_error()?;
        } else {
            self.format_errors_in_a_row = 0;
        }
        let mut lines = Vec::with_capacity(told.len());
        for one in told {
            match one {
                Told::Step { text, .. } => {
                    self.actions += 1;
                    lines.push(text.clone());
                }
                Told::Ended { response, status: None } => return Err(End::Done(response.clone())),
                Told::Ended { response, status: Some(status) } => {
                    let gave_up = status == "failure";
                    let response = response.clone();
                    return Err(if gave_up { End::GaveUp(response) } else { End::Done(response) });
                }
                Told::Asked => match self.user.next() {
                    Some(answer) => lines.push(format!("The user says: {answer}")),
                    None => return Err(End::GaveUp(String::new())),
                },
            }
        }
        self.go_on()?;
        Ok(lines)
    }

    fn format_error(&mut self) -> Result<(), End> {
        self.format_errors += 1;
        self.format_errors_in_a_row += 1;
        match self.format_errors_in_a_row >= self.settings.format_errors_max {
            true => Err(End::Format),
            false => Ok(()),
        }
    }

    fn go_on(&self) -> Result<(), End> {
        if self.turns >= self.settings.max_turns { Err(End::Turns) } else { Ok(()) }
    }

    /// Facts for rewards and people.
    pub fn data(&self) -> Value {
        json!({ "turns": self.turns, "actions": self.actions, "format_errors": self.format_errors })
    }
}

/// Whether something stands between `<think>` and `</think>`. A template that opens the thought itself leaves only its end to the model.
fn has_thought(text: &str) -> bool {
    text.split_once("</think>").is_some_and(|(before, _)| {
        let thought = before.rsplit_once("<think>").map_or(before, |(_, thought)| thought);
        !thought.trim().is_empty()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(code: Option<&str>) -> Told {
        Told::Step { code: code.map(str::to_owned), text: "told".to_owned() }
    }

    fn ended(status: Option<&str>) -> Told {
        Told::Ended { response: "42".to_owned(), status: status.map(str::to_owned) }
    }

    fn dialogue(max_turns: u32) -> Dialogue {
        Dialogue::new(Settings { max_turns, ..Settings::default() }, vec!["Ann".to_owned()])
    }

    #[test]
    fn three_answers_in_a_row_that_do_not_parse_end_it_and_one_that_does_begins_anew() {
        let mut one = dialogue(30);
        let told = "no. Call one of the tools.";
        assert_eq!(one.unparsed("no").as_deref(), Ok(told));
        assert_eq!(one.acted(&[step(Some("unknown-tool"))]), Ok(vec!["told".to_owned()]));
        assert_eq!(one.acted(&[step(Some("stale-reference"))]), Ok(vec!["told".to_owned()]));
        assert_eq!(one.unparsed("no").as_deref(), Ok(told));
        assert_eq!(one.unparsed("no").as_deref(), Ok(told));
        assert_eq!(one.acted(&[step(None), step(Some("invalid-arguments"))]), Err(End::Format));
        assert_eq!(one.data(), json!({ "turns": 6, "actions": 2, "format_errors": 5 }));
    }

    #[test]
    fn each_way_to_end() {
        assert_eq!(dialogue(9).acted(&[step(None), ended(None)]), Err(End::Done("42".to_owned())));
        assert_eq!(dialogue(9).acted(&[ended(Some("success"))]), Err(End::Done("42".to_owned())));
        assert_eq!(dialogue(9).acted(&[ended(Some("failure"))]), Err(End::GaveUp("42".to_owned())));
        assert_eq!(dialogue(1).acted(&[step(None)]), Err(End::Turns));
        assert_eq!(dialogue(1).unparsed("no"), Err(End::Turns));
        let mut asks = dialogue(9);
        assert_eq!(asks.acted(&[Told::Asked]), Ok(vec!["The user says: Ann".to_owned()]));
        assert_eq!(asks.acted(&[Told::Asked]), Err(End::GaveUp(String::new())));
    }

    #[test]
    fn an_answer_needs_a_call_and_where_asked_a_thought() {
        let mut one = dialogue(9);
        let problem = |one: &Dialogue, text, calls, malformed| one.problem(text, calls, malformed);
        assert_eq!(problem(&one, "", 1, None), None);
        assert_eq!(problem(&one, "x", 0, None).as_deref(), Some("Your answer called no tool"));
        let unread = "The call could not be read: no JSON";
        assert_eq!(problem(&one, "x", 0, Some("no JSON")).as_deref(), Some(unread));
        one.settings.thought = Thought::Required;
        let missing = "Your answer has no thought between <think> and </think>";
        for (text, expect) in [
            ("<think>look</think> go", None),
            ("look</think> go", None),
            ("<think> </think>", Some(missing)),
            ("go", Some(missing)),
        ] {
            assert_eq!(problem(&one, text, 1, None).as_deref(), expect, "{text}");
        }
    }
}
