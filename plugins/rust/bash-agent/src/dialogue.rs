//! The rules of the loop: what an answer means, what the model is told, when it ends.

use crate::screen::Screen;
use crate::settings::Settings;
use serde_json::{Value, json};

/// One rollout's dialogue.
#[derive(Debug)]
pub struct Dialogue {
    /// As the experiment has them.
    pub settings: Settings,
    started_ms: u64,
    turns: u32,
    commands: u32,
    timeouts: u32,
    format_errors: u32,
    format_errors_in_a_row: u32,
    end: Option<End>,
    submission: Option<String>,
}

/// How the dialogue ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A command submitted.
    Submitted,
    /// `max_turns`.
    Turns,
    /// `max_sampled_tokens`.
    Tokens,
    /// `max_seconds`.
    Time,
    /// `format_errors_max`.
    Format,
}

impl Dialogue {
    /// Nothing has been said.
    pub fn new(settings: Settings, now_ms: u64) -> Dialogue {
        Dialogue {
            settings,
            started_ms: now_ms,
            turns: 0,
            commands: 0,
            timeouts: 0,
            format_errors: 0,
            format_errors_in_a_row: 0,
            end: None,
            submission: None,
        }
    }

    /// The first message of the user.
    pub fn opening(&self, instruction: &str) -> String {
        let values = [("instruction", instruction), ("fence", self.settings.fence.as_str())];
        espalier_sdk::fill(&self.settings.opening, &values)
    }

    /// Whether a limit forbids another answer.
    pub fn may_ask(&mut self, now_ms: u64, sampled_tokens: u64) -> bool {
        let Settings { max_turns, max_sampled_tokens, max_seconds, .. } = self.settings;
        let passed_ms = now_ms.saturating_sub(self.started_ms);
        let end = if self.turns >= max_turns {
            End::Turns
        } else if max_sampled_tokens.is_some_and(|most| sampled_tokens >= most) {
            End::Tokens
        } else if max_seconds.is_some_and(|most| passed_ms >= most.saturating_mul(1_000)) {
            End::Time
        } else {
            return true;
        };
        self.end = Some(end);
        false
    }

    /// An answer came; `problem` where it holds no command. What to tell the model then; none ends the rollout.
    pub fn answered(&mut self, problem: Option<&str>) -> Option<String> {
        self.turns += 1;
        let Some(problem) = problem else {
            self.format_errors_in_a_row = 0;
            return None;
        };
        self.format_errors += 1;
        self.format_errors_in_a_row += 1;
        if self.format_errors_in_a_row >= self.settings.format_errors_max {
            self.end = Some(End::Format);
            return None;
        }
        Some(self.settings.format_error_text(problem))
    }

    /// A command was carried out. What to tell the model; none where it submitted.
    pub fn saw(&mut self, screen: &Screen) -> Option<String> {
        self.commands += 1;
        self.timeouts += u32::from(screen.timed_out);
        if let Some(submission) = screen.submission(&self.settings.marker) {
            self.submission = Some(submission);
            self.end = Some(End::Submitted);
            return None;
        }
        Some(screen.told(&self.settings))
    }

    /// How it ended, once it has.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// What was submitted.
    pub fn submission(&self) -> Option<&str> {
        self.submission.as_deref()
    }

    /// Facts for rewards and people, in the words of mini-swe-agent where it has one.
    pub fn data(&self) -> Value {
        let exit_status = match self.end {
            Some(End::Submitted) => "Submitted",
            Some(End::Turns | End::Tokens) => "LimitsExceeded",
            Some(End::Time) => "TimeExceeded",
            Some(End::Format) => "RepeatedFormatError",
            None => "Unknown",
        };
        json!({
            "exit_status": exit_status,
            "model_stats": { "api_calls": self.turns },
            "commands": self.commands,
            "timeouts": self.timeouts,
            "format_errors": self.format_errors,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dialogue(settings: Settings) -> Dialogue {
        Dialogue::new(settings, 1_000)
    }

    fn screen(head: &str) -> Screen {
        Screen { head: head.to_owned(), ..Screen::default() }
    }

    #[test]
    fn a_submission_ends_it() {
        let mut dialogue = dialogue(Settings { marker: "DONE".to_owned(), ..Settings::default() });
        assert!(dialogue.may_ask(1_000, 0));
        assert_eq!(dialogue.answered(None), None);
        assert!(dialogue.saw(&screen("x\n")).unwrap().contains("x\n"));
        assert!(dialogue.saw(&Screen { timed_out: true, ..screen("") }).is_some());
        assert_eq!(dialogue.end(), None);
        assert_eq!(dialogue.saw(&screen("DONE\nthe answer")), None);
        assert_eq!((dialogue.end(), dialogue.submission()), (Some(End::Submitted), Some("the answer")));
        let data = dialogue.data();
        assert_eq!(
            (&data["exit_status"], &data["commands"], &data["timeouts"]),
            (&"Submitted".into(), &3.into(), &1.into())
        );
    }

    #[test]
    fn each_limit_has_its_end() {
        let mut turns = dialogue(Settings { max_turns: 1, ..Settings::default() });
        turns.answered(None);
        assert!(!turns.may_ask(1_000, 0));
        assert_eq!((turns.end(), &turns.data()["exit_status"]), (Some(End::Turns), &"LimitsExceeded".into()));
        let mut tokens = dialogue(Settings { max_sampled_tokens: Some(5), ..Settings::default() });
        assert!(tokens.may_ask(1_000, 4) && !tokens.may_ask(1_000, 5));
        assert_eq!(tokens.end(), Some(End::Tokens));
        let mut time = dialogue(Settings { max_seconds: Some(2), ..Settings::default() });
        assert!(time.may_ask(2_999, 0) && !time.may_ask(3_000, 0));
        assert_eq!(time.end(), Some(End::Time));
        let mut format = dialogue(Settings { format_errors_max: 2, ..Settings::default() });
        assert!(format.answered(Some("No")).unwrap().starts_with("No. "));
        format.answered(None);
        assert!(format.answered(Some("No")).is_some());
        assert_eq!(format.answered(Some("No")), None);
        assert_eq!(format.end(), Some(End::Format));
        assert_eq!(format.data()["format_errors"], 3);
    }
}
