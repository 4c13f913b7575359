//! The rules of the loop: what is said first, what an answer means, when it ends.

use crate::settings::{Form, Settings};
use espalier_sdk::fill;
use serde_json::{Value, json};

/// One rollout's dialogue. The caller carries out what [`Dialogue::answered`] asks for.
#[derive(Debug)]
pub struct Dialogue {
    settings: Settings,
    turns: u32,
    steps: u32,
    format_errors: u32,
    format_errors_in_a_row: u32,
    reward: f64,
}

/// What an answer calls for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Move {
    /// Take this action in the world, then tell [`Dialogue::stepped`].
    Act(String),
    /// Send this message and ask again.
    Say(String),
    /// The rollout is over.
    End(End),
}

/// How the dialogue ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The world said that the episode is over.
    Done,
    /// The model gave up.
    GaveUp,
    /// `max_turns`.
    Turns,
    /// `format_errors_max`.
    Format,
}

impl Dialogue {
    /// Nothing has been said.
    pub fn new(settings: Settings) -> Dialogue {
        Dialogue { settings, turns: 0, steps: 0, format_errors: 0, format_errors_in_a_row: 0, reward: 0.0 }
    }

    /// The first message of the user.
    pub fn opening(&self, instruction: &str, observation: &str) -> String {
        let Settings { prompt, examples, opening, .. } = &self.settings;
        let examples = examples.join("\n\n");
        let mut template = opening.clone();
        for (name, value) in [("{prompt}\n\n", prompt.as_str()), ("{examples}\n\n", examples.as_str())] {
            if value.is_empty() {
                template = template.replace(name, "");
            }
        }
        let values = [
            ("prompt", prompt.as_str()),
            ("examples", &examples),
            ("instruction", instruction),
            ("observation", observation),
        ];
        fill(&template, &values)
    }

    /// One answer of the model.
    pub fn answered(&mut self, text: &str) -> Move {
        self.turns += 1;
        let Some(action) = action_in(text, self.settings.form) else {
            self.format_errors += 1;
            self.format_errors_in_a_row += 1;
            if self.format_errors_in_a_row >= self.settings.format_errors_max {
                return Move::End(End::Format);
            }
            return self.say(&self.settings.format_error);
        };
        self.format_errors_in_a_row = 0;
        match &self.settings.give_up {
            Some(word) if word == action => Move::End(End::GaveUp),
            _ => Move::Act(action.to_owned()),
        }
    }

    /// What the world answered to the action.
    pub fn stepped(&mut self, observation: &str, reward: Option<f64>, done: bool) -> Move {
        self.steps += 1;
        self.reward += reward.unwrap_or(0.0);
        if done { Move::End(End::Done) } else { self.say(observation) }
    }

    /// Facts for rewards and people.
    pub fn data(&self) -> Value {
        json!({
            "turns": self.turns,
            "steps": self.steps,
            "format_errors": self.format_errors,
            "reward": self.reward,
        })
    }

    fn say(&self, observation: &str) -> Move {
        if self.turns >= self.settings.max_turns {
            return Move::End(End::Turns);
        }
        Move::Say(fill(&self.settings.reply, &[("observation", observation)]))
    }
}

/// The action of an answer, without the white space around it; `None` where there is none.
pub fn action_in(text: &str, form: Form) -> Option<&str> {
    let mut lines = text.lines().map(str::trim);
    let action = match form {
        Form::Action => lines.rev().find_map(|line| line.strip_prefix("Action:"))?,
        Form::Prompt => lines.rev().find_map(|line| line.strip_prefix('>'))?,
        Form::Line => lines.find(|line| !line.is_empty())?,
    };
    let action = action.trim();
    (!action.is_empty()).then_some(action)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_action_stands() {
        let check = |form, text, expect: Option<&str>| assert_eq!(action_in(text, form), expect, "{text:?}");
        check(Form::Action, "I need wood.\nAction: get 1 log\n", Some("get 1 log"));
        check(Form::Action, "Action: a\nno\n  Action:b  ", Some("b"));
        check(Form::Action, "I would say Action: a", None);
        check(Form::Action, "Action:  ", None);
        check(Form::Action, "", None);
        check(Form::Prompt, "wood\n> get 1 log", Some("get 1 log"));
        check(Form::Prompt, "get 1 log", None);
        check(Form::Line, "\n\n get 1 log \nGot it", Some("get 1 log"));
        check(Form::Line, " \n ", None);
    }

    #[test]
    fn placeholders_are_filled_once() {
        let values = [("a", "{b}"), ("b", "2")];
        assert_eq!(fill("{a} {b} {c} {", &values), "{b} 2 {c} {");
        assert_eq!(fill("{{a}}", &values), "{{b}}");
    }

    #[test]
    fn the_opening_has_no_holes() {
        let opening = |prompt: &str, examples: &[&str]| {
            let settings = Settings {
                prompt: prompt.into(),
                examples: examples.iter().map(ToString::to_string).collect(),
                ..Settings::default()
            };
            Dialogue::new(settings).opening("Do it.", "A room.")
        };
        assert_eq!(opening("", &[]), "Do it.\n\nA room.");
        assert_eq!(opening("Act.", &["e1", "e2"]), "Act.\n\ne1\n\ne2\n\nDo it.\n\nA room.");
    }

    /// Plays answers; `!` ends the episode, any other action gets `seen`.
    fn play(settings: Settings, answers: &[&str]) -> (Vec<String>, Option<End>, Value) {
        let mut dialogue = Dialogue::new(settings);
        let mut said = Vec::new();
        for answer in answers {
            let mut next = dialogue.answered(answer);
            if let Move::Act(action) = &next {
                next = dialogue.stepped("seen", Some(0.5), action == "!");
            }
            match next {
                Move::Say(text) => said.push(text),
                Move::End(end) => return (said, Some(end), dialogue.data()),
                Move::Act(_) => panic!("an action was carried out already"),
            }
        }
        (said, None, dialogue.data())
    }

    #[test]
    fn each_way_to_end() {
        let settings = || Settings {
            format_error: "what?".into(),
            reply: "[{observation}]".into(),
            give_up: Some("give up".into()),
            format_errors_max: 2,
            max_turns: 4,
            ..Settings::default()
        };
        let (said, end, data) = play(settings(), &["Action: a", "hm", "Action: !"]);
        assert_eq!((said, end), (vec!["[seen]".to_owned(), "[what?]".to_owned()], Some(End::Done)));
        assert_eq!(data, json!({"turns": 3, "steps": 2, "format_errors": 1, "reward": 1.0}));
        assert_eq!(play(settings(), &["hm", "hm"]).1, Some(End::Format));
        assert_eq!(play(settings(), &["hm", "Action: a", "hm", "Action: a"]).1, Some(End::Turns));
        assert_eq!(
            play(settings(), &["Action: a", "Action: a", "Action: a", "Action: !"]).1,
            Some(End::Done)
        );
        assert_eq!(play(settings(), &["Action: give up"]).1, Some(End::GaveUp));
        assert_eq!(play(settings(), &["Action: a"]).1, None);
    }
}
