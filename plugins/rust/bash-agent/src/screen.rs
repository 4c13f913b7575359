//! What came of a command, and what the model is shown of it.

use crate::settings::Settings;
use espalier_sdk::fill;

/// What came of a command: standard output with standard error in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Screen {
    /// As a shell counts: 128 and the signal for one that was killed; -1 where there is none.
    pub returncode: i32,
    /// Killed by its timeout.
    pub timed_out: bool,
    /// All it printed, or the start of it.
    pub head: String,
    /// Bytes between.
    pub left_out: u64,
    /// The end of it; empty where nothing is left out.
    pub tail: String,
    /// What is said besides, as `(the shell has ended)`.
    pub note: String,
}

impl Screen {
    /// The answer that it submits, if it does: all behind the marker.
    pub fn submission(&self, marker: &str) -> Option<String> {
        let text = self.head.trim_start();
        let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
        (self.returncode == 0 && !self.timed_out && first.trim() == marker)
            .then(|| format!("{rest}{}", self.tail))
    }

    /// What the model is told.
    pub fn told(&self, settings: &Settings) -> String {
        let mut output = self.output(settings);
        if !self.note.is_empty() {
            output = format!("{output}{}\n", self.note);
        }
        if self.timed_out {
            let timeout = settings.timeout_s.to_string();
            return fill(&settings.timeout_reply, &[("timeout", &timeout), ("output", &output)]);
        }
        let returncode = self.returncode.to_string();
        fill(&settings.reply, &[("returncode", &returncode), ("output", &output)])
    }

    /// All of it, or its first and last characters with the number of bytes between.
    fn output(&self, settings: &Settings) -> String {
        let half = settings.output_max as usize / 2;
        let long = self.left_out > 0 || self.head.chars().count() >= settings.output_max as usize;
        if !long {
            return self.head.clone();
        }
        let start = first(&self.head, half);
        let rest = &self.head[start.len()..];
        let (end, between) = match self.left_out {
            0 => {
                let end = last(rest, half);
                (end, rest.len() - end.len())
            }
            left_out => {
                let end = last(&self.tail, half);
                (
                    end,
                    rest.len() + self.tail.len() - end.len()
                        + usize::try_from(left_out).unwrap_or(usize::MAX),
                )
            }
        };
        let between = between.to_string();
        fill(&settings.long_output, &[("head", start), ("left_out", &between), ("tail", end)])
    }
}

fn first(text: &str, count: usize) -> &str {
    let end = text.char_indices().nth(count).map_or(text.len(), |(at, _)| at);
    &text[..end]
}

fn last(text: &str, count: usize) -> &str {
    let skip = text.chars().count().saturating_sub(count);
    let start = text.char_indices().nth(skip).map_or(text.len(), |(at, _)| at);
    &text[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            output_max: 10,
            reply: "{returncode}:{output}".to_owned(),
            timeout_reply: "after {timeout}:{output}".to_owned(),
            long_output: "{head}[{left_out}]{tail}".to_owned(),
            ..Settings::default()
        }
    }

    fn printed(head: &str, left_out: u64, tail: &str) -> Screen {
        Screen { head: head.to_owned(), left_out, tail: tail.to_owned(), ..Screen::default() }
    }

    #[test]
    fn a_long_output_is_its_ends_and_the_number_of_bytes_between() {
        let told = |screen: Screen| screen.told(&settings());
        assert_eq!(told(printed("123456789", 0, "")), "0:123456789");
        assert_eq!(told(printed("1234567890", 0, "")), "0:12345[0]67890");
        assert_eq!(told(printed("12345äöü67890", 0, "")), "0:12345[6]67890");
        assert_eq!(told(printed("123456", 100, "1234567")), "0:12345[103]34567");
        assert_eq!(told(printed("12", 100, "34")), "0:12[100]34");
        let late =
            Screen { timed_out: true, returncode: -1, note: "(n)".to_owned(), ..printed("x\n", 0, "") };
        assert_eq!(told(late), "after 60:x\n(n)\n");
    }

    #[test]
    fn the_marker_on_the_first_line_submits_the_rest() {
        let check = |screen: Screen, expect: Option<&str>| {
            assert_eq!(screen.submission("DONE").as_deref(), expect, "{screen:?}");
        };
        check(printed("DONE\n", 0, ""), Some(""));
        check(printed("\nDONE\na\nb", 0, ""), Some("a\nb"));
        check(printed("DONE\na", 5, "z"), Some("az"));
        check(printed("a\nDONE\n", 0, ""), None);
        check(printed("DONE now\n", 0, ""), None);
        check(Screen { returncode: 1, ..printed("DONE\n", 0, "") }, None);
        check(Screen { timed_out: true, ..printed("DONE\n", 0, "") }, None);
    }
}
