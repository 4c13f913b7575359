//! Plugins of Espalier in Rust: harnesses, environments, rewards, group rewards, judges and task generators as WebAssembly
//! components.
//!
//! A plugin is a function and one line that exports it: [`harness!`], [`environment!`], [`reward!`], [`group_reward!`], [`judge!`],
//! [`task_generator!`]. Everything else is ordinary Rust, tested on the host by `cargo test`; what calls the engine works in a
//! component alone. Generated bindings with every function and its documentation are in [`wit`].

mod browser;
mod conversation;
mod exports;
mod sandbox;
mod service;
mod shown;
mod tools;
mod values;
pub mod wit;

pub use browser::Browser;
pub use conversation::{Answer, Conversation};
pub use sandbox::{Sandbox, shell};
pub use service::Service;
pub use shown::{cut, turn_text};
pub use tools::Tools;
pub use values::{invalid, other};
pub use wit::espalier::base::types::{BudgetKind, Failure, TaskView};
pub use wit::espalier::environment::types::{Observation, StepResult};
pub use wit::espalier::model::messages::{Message, Part, Role, ToolCall};
pub use wit::espalier::plugin::reports::{Limit, Outcome, Report};
pub use wit::espalier::plugin::scores::{RolloutView, Score, Step, Turn};
pub use wit::judge::exports::espalier::plugin::judge::{Judgement, Vote};
pub use wit::task_generator::exports::espalier::plugin::task_generator::{Request, Statistics};
pub use {schemars, serde, serde_json, wit_bindgen};

use serde::de::DeserializeOwned;

use schemars::JsonSchema;
use serde::Deserialize;

/// The settings of a plugin without settings: an empty object.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoSettings {}

/// A small simulated world, as an environment plugin holds it: one value for each rollout.
pub trait Environment: Sized {
    /// The plugin's settings.
    type Settings: DeserializeOwned + JsonSchema;

    /// Starts the episode of this task, and says what is seen first.
    fn reset(task: TaskView, settings: Self::Settings) -> Result<(Self, Observation), Failure>;

    /// Carries out one action. One that the world refuses is an observation, not a failure.
    fn step(&mut self, action: &str) -> Result<StepResult, Failure>;

    /// The actions possible now; empty where the world does not list them.
    fn actions(&self) -> Result<Vec<String>, Failure> {
        Ok(Vec::new())
    }
}

/// The world of the rollout, for a harness. See [`wit::espalier::environment::environments`].
pub fn environment() -> Result<wit::espalier::environment::environments::Environment, Failure> {
    wit::espalier::environment::environments::open()
}

/// The experiment's settings for this plugin. Errors: `invalid`, with what is wrong.
pub fn settings<T: DeserializeOwned>() -> Result<T, Failure> {
    let text = wit::espalier::base::settings::get();
    serde_json::from_str(&text).map_err(|error| invalid(format_args!("settings: {error}")))
}

/// Writes a line to the rollout's log.
pub fn log(level: wit::espalier::base::log::Level, text: &str) {
    wit::espalier::base::log::write(level, text, None);
}

/// A number drawn evenly from `0 .. bound`, from the stream that follows from the run's seed.
pub fn random_below(bound: u64) -> Result<u64, Failure> {
    wit::espalier::base::random::below(bound)
}

/// From now on a panic is logged with its place; the trap that follows says only `unreachable`. The macros call it.
pub fn begin() {
    std::panic::set_hook(Box::new(|panic| {
        log(wit::espalier::base::log::Level::Error, &panic.to_string());
    }));
}

#[doc(hidden)]
pub fn as_lines(tasks: Vec<serde_json::Value>) -> Vec<String> {
    tasks.iter().map(ToString::to_string).collect()
}

/// A time as tasks write it, in milliseconds: a number of seconds, or a text like `"90s"`; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "serde_json::Value")]
pub struct Timeout(pub u64);

impl TryFrom<serde_json::Value> for Timeout {
    type Error = String;

    fn try_from(value: serde_json::Value) -> Result<Timeout, String> {
        let text = value.as_str().unwrap_or_default();
        let units = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];
        let with_unit = || {
            let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
            let unit = units.iter().find(|(unit, _)| *unit == &text[digits.len()..])?;
            digits.parse::<u64>().ok()?.checked_mul(unit.1)
        };
        let ms = value.as_u64().and_then(|seconds| seconds.checked_mul(1_000)).or_else(with_unit);
        ms.filter(|ms| *ms > 0).map(Timeout).ok_or_else(|| {
            format!("invalid timeout {value}: expected a number of seconds, or text like \"90s\" or \"10m\"")
        })
    }
}

/// JSON Schema of a settings type: descriptions from its doc comments, defaults from serde.
pub fn schema_of<T: JsonSchema>() -> String {
    schemars::generate::SchemaSettings::draft2020_12()
        .with(|settings| settings.inline_subschemas = true)
        .into_generator()
        .into_root_schema_for::<T>()
        .as_value()
        .to_string()
}

/// The last fenced block of a text, without its fences, which are those of CommonMark: ` ``` ` or `~~~` and more of them, at most 3
/// spaces from the start of a line. `None`: there is none, or it is not closed.
pub fn fenced(text: &str) -> Option<&str> {
    let (mut found, mut open, mut at) = (None, None, 0);
    for line in text.split_inclusive('\n') {
        let end = at + line.len();
        if let Some((mark, count, info)) = fence(line) {
            match open {
                None if mark == '~' || !info.contains('`') => open = Some((mark, count, end)),
                Some((opening, least, start)) if mark == opening && count >= least && info.is_empty() => {
                    found = Some(&text[start..at]);
                    open = None;
                }
                _ => {}
            }
        }
        at = end;
    }
    found
}

/// The character of a line that may be a fence, how many there are, and what is behind them.
fn fence(line: &str) -> Option<(char, usize, &str)> {
    let marks = line.trim_start_matches(' ');
    let mark = marks.chars().next().filter(|mark| matches!(mark, '`' | '~'))?;
    let info = marks.trim_start_matches(mark);
    let count = marks.len() - info.len();
    (count >= 3 && line.len() - marks.len() <= 3).then_some((mark, count, info.trim()))
}

/// What stands in the last `\boxed{...}` of a text, braces inside it matched. `None`: there is none, or it is not closed.
pub fn boxed(text: &str) -> Option<&str> {
    const OPEN: &str = "\\boxed{";
    Some(braced(&text[text.rfind(OPEN)? + OPEN.len()..])?.0)
}

/// Behind an opening brace: what stands before the brace that closes it, and what behind. `None`: it is not closed.
pub fn braced(text: &str) -> Option<(&str, &str)> {
    let mut depth = 1;
    let end = text.char_indices().find_map(|(at, c)| {
        depth += match c {
            '{' => 1,
            '}' => -1,
            _ => 0,
        };
        (depth == 0).then_some(at)
    })?;
    Some((&text[..end], &text[end + 1..]))
}

/// Puts values in the place of `{name}`; a value is never searched again, and an unknown name stays.
pub fn fill(template: &str, values: &[(&str, &str)]) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        out.push_str(&rest[..open]);
        rest = &rest[open..];
        let named = values.iter().find_map(|(name, value)| {
            let after = rest[1..].strip_prefix(name)?.strip_prefix('}')?;
            Some((*value, after))
        });
        match named {
            Some((value, after)) => {
                out.push_str(value);
                rest = after;
            }
            None => {
                out.push('{');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_block_counts_and_fences_begin_lines() {
        for (text, expect) in [
            ("print(1)", None),
            ("```python\nprint(1)\n```", Some("print(1)\n")),
            ("first\n```\na\n```\nthen\n  ```py\nb\n  ```\ndone", Some("b\n")),
            ("```python\nprint(1)", None),
            ("Use ```f``` as asked.\n```\na\n```", Some("a\n")),
            ("```\na\n```\n```\nb", Some("a\n")),
            ("```print(1)```\n```py\na\n```\nprose\n", Some("a\n")),
            (
                "```py\n```a```\n    ```\n\t```\n``` py\nb\n```\n",
                Some("```a```\n    ```\n\t```\n``` py\nb\n"),
            ),
            ("````md\n```\na\n```\n~~~~\n````` \n", Some("```\na\n```\n~~~~\n")),
            ("~~~ a`b\r\na\r\n```\r\n~~~\r\n", Some("a\r\n```\r\n")),
            ("``\na\n``", None),
        ] {
            assert_eq!(fenced(text), expect, "{text}");
        }
    }

    #[test]
    fn the_last_box_counts_with_the_braces_in_it() {
        for (text, expect) in [
            (r"\boxed{A}", Some("A")),
            (r"\boxed{1}, no, \boxed{\frac{1}{2}}.", Some(r"\frac{1}{2}")),
            (r"\boxed{1} or \boxed{2", None),
            (r"\boxed{a{b}", None),
            ("A", None),
        ] {
            assert_eq!(boxed(text), expect, "{text}");
        }
    }

    #[derive(Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Example {
        /// How many, from 1.
        #[serde(default = "three")]
        #[schemars(range(min = 1))]
        #[allow(dead_code)]
        count: u32,
    }

    fn three() -> u32 {
        3
    }

    #[test]
    fn the_schema_has_defaults_and_descriptions_and_refuses_unknown_keys() {
        let schema: serde_json::Value = serde_json::from_str(&schema_of::<Example>()).unwrap();
        assert_eq!(schema["properties"]["count"]["default"], 3);
        assert_eq!(schema["properties"]["count"]["minimum"], 1);
        assert_eq!(schema["properties"]["count"]["description"], "How many, from 1.");
        assert_eq!(schema["additionalProperties"], false);
        let none: serde_json::Value = serde_json::from_str(&schema_of::<NoSettings>()).unwrap();
        assert_eq!(none["additionalProperties"], false);
    }
}
