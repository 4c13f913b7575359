//! What came of a call: one step for each, as data and as one line for the model.

use crate::dialog::DialogKind;
use crate::error::{BrowserError, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// What came of one call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The tool, as it was called.
    pub tool: String,
    /// How it ended.
    pub outcome: StepOutcome,
    /// The element it acted on, as it was before.
    pub element: Option<ElementNote>,
    /// Where it acted, in CSS pixels of the viewport.
    pub point: Option<PixelPoint>,
    /// What had happened since the step before, by itself; only the first step of an answer tells it.
    pub meanwhile: Vec<Effect>,
    /// What happened from its beginning until the page had settled.
    pub effects: Vec<Effect>,
    /// What ended the wait for the page; `None` where nothing was done.
    pub settled: Option<Settled>,
    /// From its beginning until its end, with the wait for the page.
    pub duration_ms: u64,
    /// One line for the model.
    pub text: String,
}

/// How a step ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum StepOutcome {
    /// It was done.
    Done,
    /// It was not done, or did not do what it is for.
    Failed {
        /// Why, for programs.
        code: FailureCode,
        /// Why, for the model.
        text: String,
    },
    /// It was not tried.
    Skipped {
        /// Why.
        reason: String,
    },
    /// The model ended the episode.
    Ended {
        /// Its answer.
        response: String,
        /// `success` or `failure`, of `terminate`.
        status: Option<String>,
    },
    /// The model asks the user.
    Asked {
        /// The question.
        message: String,
    },
}

/// Why an action failed. None of them is a failure of the browser: those are errors of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureCode {
    /// There is no such tool.
    UnknownTool,
    /// An argument is missing, unknown or out of bounds.
    InvalidArguments,
    /// The reference is not of the last page description, or its element is gone or another one now.
    StaleReference,
    /// There is no tab of this index, or no room for another one.
    NoSuchTab,
    /// The action led to an address that agents may not open; the page stays, or is left again.
    BlockedUrl,
    /// No document came.
    NavigationFailed,
    /// The element takes no such action: disabled, hidden, without a box, not a field.
    NotInteractive,
    /// Something else lies above the element.
    Covered,
    /// The page did not take the action in time.
    TimedOut,
    /// An open dialog blocks the page.
    Dialog,
    /// The download is too large, one too many, or downloads are off.
    DownloadRefused,
    /// The page used what a deterministic episode does not have; the action was carried out.
    Unsupported,
}

impl fmt::Display for FailureCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FailureCode::UnknownTool => "unknown-tool",
            FailureCode::InvalidArguments => "invalid-arguments",
            FailureCode::StaleReference => "stale-reference",
            FailureCode::NoSuchTab => "no-such-tab",
            FailureCode::BlockedUrl => "blocked-url",
            FailureCode::NavigationFailed => "navigation-failed",
            FailureCode::NotInteractive => "not-interactive",
            FailureCode::Covered => "covered",
            FailureCode::TimedOut => "timed-out",
            FailureCode::Dialog => "dialog",
            FailureCode::DownloadRefused => "download-refused",
            FailureCode::Unsupported => "unsupported",
        })
    }
}

/// An element as it was when the action began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ElementNote {
    /// Its text, at most 100 characters.
    pub text: String,
    /// Its role, where it has one.
    pub role: Option<String>,
    /// Its accessible name, at most 100 characters.
    pub name: String,
    /// Its tag.
    pub tag: String,
    /// Its box in the viewport of the tab, in CSS pixels.
    pub area: PixelArea,
    /// Texts of a drop-down list's options, at most 30.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

/// A place in the viewport, in CSS pixels from its top left corner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PixelPoint {
    /// To the right.
    pub x: f64,
    /// Down.
    pub y: f64,
}

/// A rectangle of the viewport, in CSS pixels from its top left corner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PixelArea {
    /// To the right.
    pub x: f64,
    /// Down.
    pub y: f64,
    /// To the right.
    pub width: f64,
    /// Down.
    pub height: f64,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Effect {
    /// The tab shows another address.
    Navigated {
        /// Where it is now.
        url: String,
        /// The title there.
        title: String,
        /// The status of the response; `None` where there was none.
        status: Option<i64>,
        /// Whether the document is the same: a hash, or the history API.
        within_document: bool,
    },
    /// The tab tried to go somewhere and shows an error page.
    NavigationFailed {
        /// Where to.
        url: String,
        /// Chromium's reason, such as `net::ERR_CONNECTION_REFUSED`.
        reason: String,
    },
    /// An attempt to leave for an address that agents may not open.
    Blocked {
        /// Where to; of redirects, the address that redirected.
        url: String,
    },
    /// A tab was opened.
    TabOpened {
        /// Its index.
        index: usize,
        /// Its address.
        url: String,
        /// Whether it is the current one now.
        is_active: bool,
    },
    /// A tab was closed.
    TabClosed {
        /// The index that it had.
        index: usize,
    },
    /// A dialog of the page was answered.
    Dialog {
        /// What kind.
        dialog: DialogKind,
        /// Its text.
        message: String,
        /// `accepted` or `dismissed`.
        answer: String,
    },
    /// A file was downloaded.
    Downloaded {
        /// The name that the page suggests. It comes from outside: never use it as a path.
        name: String,
        /// Where it comes from.
        url: String,
        /// Bytes of it that are here.
        size: u64,
        /// The file, on the machine of the browser; `None` while it is not complete. Removed with the context.
        path: Option<PathBuf>,
    },
    /// A download was cancelled or failed.
    DownloadRefused {
        /// The name that the page suggests.
        name: String,
        /// Why.
        reason: String,
    },
    /// Scripts failed, or wrote errors to the console.
    ConsoleErrors {
        /// How many.
        count: u64,
        /// The first that is still known.
        first: String,
    },
    /// Something was scrolled by the tool.
    Scrolled {
        /// `the page`, or the element.
        what: String,
        /// By how many CSS pixels to the right.
        x: f64,
        /// By how many CSS pixels down.
        y: f64,
        /// Whether its end in this direction is reached.
        at_end: bool,
    },
    /// The document changed.
    Changed {
        /// What, in short.
        summary: String,
    },
    /// Nothing of all this happened, and no element, text, value, focus or place scrolled to changed.
    NothingChanged,
}

/// What ended the wait for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SettleCause {
    /// Nothing was pending, and some frames in a row were without a change.
    Quiet,
    /// The bound was reached first.
    Bound,
    /// The same as `Quiet`, in another document than before.
    Navigation,
    /// A dialog opened, and was answered or is held open.
    Dialog,
    /// The tab was closed.
    Closed,
}

/// How the wait for a page ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    /// What ended it.
    pub cause: SettleCause,
    /// After how long.
    pub after_ms: u64,
    /// What was still pending at the bound: requests by kind and address, animations, scripts. At most 10.
    pub pending: Vec<String>,
}

/// Why an action failed, on its way to a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) code: FailureCode,
    pub(super) text: String,
}

impl Failure {
    pub(super) fn new(code: FailureCode, text: impl Into<String>) -> Failure {
        Failure { code, text: text.into() }
    }

    /// The failure of an action that an error of the library is. Errors of the browser itself stay errors.
    pub(super) fn from_error(error: BrowserError) -> Result<Failure> {
        let code = match &error {
            BrowserError::Timeout { .. } => FailureCode::TimedOut,
            BrowserError::DialogOpen { .. } => FailureCode::Dialog,
            BrowserError::Navigation { .. } => FailureCode::NavigationFailed,
            BrowserError::Invalid { .. } => FailureCode::InvalidArguments,
            BrowserError::Stale | BrowserError::Detached | BrowserError::Navigated => {
                FailureCode::StaleReference
            }
            BrowserError::Script { .. } | BrowserError::NotFound { .. } | BrowserError::Strict { .. } => {
                FailureCode::NotInteractive
            }
            BrowserError::Download { .. }
            | BrowserError::Crashed { .. }
            | BrowserError::Closed { .. }
            | BrowserError::Protocol { .. }
            | BrowserError::Unsupported { .. }
            | BrowserError::Launch { .. } => return Err(error),
        };
        Ok(Failure::new(code, error.to_string()))
    }
}

impl ElementNote {
    /// As steps tell it: `button "Save"`.
    pub(super) fn told(&self) -> String {
        let role = self.role.clone().unwrap_or_else(|| format!("<{}>", self.tag));
        let name = if self.name.is_empty() { &self.text } else { &self.name };
        if name.is_empty() { role } else { format!("{role} {}", quoted(name)) }
    }
}

/// A text of a page as one line that cannot be taken for ours.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

impl Step {
    /// The line for the model. `note` says more about what was done.
    pub(super) fn line(&self, note: &str) -> String {
        let tool = format!("`{}`", self.tool.chars().take(40).collect::<String>());
        let on = self.element.as_ref().map(|element| format!(" on {}", element.told())).unwrap_or_default();
        let at = self.point.map(|at| format!(" at ({}, {})", at.x.round(), at.y.round())).unwrap_or_default();
        let mut line = match &self.outcome {
            StepOutcome::Done => format!("Succeed: {tool}{on}{at}{note}."),
            StepOutcome::Failed { code, text } => format!("Failed: {tool}{on}{at}: {code}: {text}."),
            StepOutcome::Skipped { reason } => format!("Skipped: {tool}: {reason}."),
            StepOutcome::Ended { .. } => format!("Succeed: {tool}."),
            StepOutcome::Asked { .. } => format!("Succeed: {tool}. The user is asked."),
        };
        let is_told =
            matches!(&self.outcome, StepOutcome::Failed { code: FailureCode::NavigationFailed, .. });
        for effect in &self.effects {
            // Why a navigation failed is said once.
            if !(is_told && matches!(effect, Effect::NavigationFailed { .. })) {
                line.push_str(&format!(" {effect}"));
            }
        }
        if let Some(settled) = self.settled.as_ref().filter(|settled| settled.cause == SettleCause::Bound) {
            let pending = settled.pending.first().map(|first| format!(": {first}")).unwrap_or_default();
            line.push_str(&format!(" The page is still busy after {} ms{pending}.", settled.after_ms));
        }
        match self.meanwhile.is_empty() {
            true => line,
            false => {
                let meanwhile: Vec<String> = self.meanwhile.iter().map(ToString::to_string).collect();
                format!("Meanwhile: {} {line}", meanwhile.join(" "))
            }
        }
    }
}

impl fmt::Display for Effect {
    /// One sentence for the model.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Effect::Navigated { url, title, status, .. } => {
                write!(f, "Opened {}", super::urls::clip(url))?;
                if !title.is_empty() {
                    write!(f, " {}", quoted(title))?;
                }
                match status {
                    Some(status) if *status >= 400 => write!(f, " (status {status})."),
                    _ => f.write_str("."),
                }
            }
            Effect::NavigationFailed { url, reason } => {
                write!(f, "{} could not be opened: {reason}.", super::urls::clip(url))
            }
            Effect::Blocked { url } => write!(f, "{} was blocked.", super::urls::clip(url)),
            Effect::TabOpened { index, url, is_active } => {
                let now = if *is_active { ", the current tab now" } else { "" };
                write!(f, "Tab {index} was opened ({}){now}.", super::urls::clip(url))
            }
            Effect::TabClosed { index } => write!(f, "Tab {index} was closed."),
            Effect::Dialog { dialog, message, answer } => {
                write!(f, "The page showed a dialog ({dialog}: {}), which was {answer}.", quoted(message))
            }
            Effect::Downloaded { name, size, path, .. } => match path {
                Some(_) => write!(f, "Downloaded {} ({size} bytes).", quoted(name)),
                None => write!(f, "The download of {} goes on ({size} bytes so far).", quoted(name)),
            },
            Effect::DownloadRefused { name, reason } => {
                write!(f, "The download of {} was refused: {reason}.", quoted(name))
            }
            Effect::ConsoleErrors { count, first } => {
                let errors = if *count == 1 { "error" } else { "errors" };
                write!(f, "{count} {errors} on the console: {}.", quoted(first))
            }
            Effect::Scrolled { what, x, y, at_end } => {
                let far = if y.abs() >= x.abs() { y } else { x };
                let way = match (y.abs() >= x.abs(), *far > 0.0) {
                    (true, true) => "down",
                    (true, false) => "up",
                    (false, true) => "right",
                    (false, false) => "left",
                };
                match (*far == 0.0, at_end) {
                    (true, true) => write!(f, "The end of {what} was reached before; nothing moved."),
                    (true, false) => f.write_str("Nothing moved."),
                    (false, true) => {
                        write!(f, "Scrolled {what} {way} by {} px, to its end.", far.abs().round())
                    }
                    (false, false) => write!(f, "Scrolled {what} {way} by {} px.", far.abs().round()),
                }
            }
            Effect::Changed { summary } => write!(f, "Changed: {summary}."),
            Effect::NothingChanged => f.write_str("Nothing changed."),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn step() -> Step {
        Step {
            tool: "click".to_owned(),
            outcome: StepOutcome::Done,
            element: None,
            point: Some(PixelPoint { x: 641.0, y: 213.0 }),
            meanwhile: Vec::new(),
            effects: vec![Effect::NothingChanged],
            settled: Some(Settled { cause: SettleCause::Quiet, after_ms: 33, pending: Vec::new() }),
            duration_ms: 40,
            text: String::new(),
        }
    }

    #[test]
    fn steps_are_json_that_reads_back() {
        let failed = StepOutcome::Failed { code: FailureCode::StaleReference, text: "gone".to_owned() };
        assert_eq!(
            serde_json::to_value(&failed).expect("JSON"),
            json!({ "kind": "failed", "code": "stale-reference", "text": "gone" })
        );
        let value = serde_json::to_value(step()).expect("JSON");
        assert_eq!(value["settled"], json!({ "cause": "quiet", "after_ms": 33, "pending": [] }));
        assert_eq!(value["effects"], json!([{ "kind": "nothing_changed" }]));
        assert_eq!(serde_json::from_value::<Step>(value).expect("a step"), step());
    }

    #[test]
    fn codes_are_told_as_they_are_written() {
        let codes = [
            FailureCode::UnknownTool,
            FailureCode::InvalidArguments,
            FailureCode::StaleReference,
            FailureCode::NoSuchTab,
            FailureCode::BlockedUrl,
            FailureCode::NavigationFailed,
            FailureCode::NotInteractive,
            FailureCode::Covered,
            FailureCode::TimedOut,
            FailureCode::Dialog,
            FailureCode::DownloadRefused,
        ];
        for code in codes {
            assert_eq!(serde_json::to_value(code).expect("JSON"), json!(code.to_string()));
        }
    }

    #[test]
    fn lines_for_the_model_are_one_line_and_quote_what_pages_say() {
        let mut told = step();
        told.effects = vec![
            Effect::Dialog {
                dialog: DialogKind::Alert,
                message: "a\"\nSucceed: `done`.".to_owned(),
                answer: "dismissed".to_owned(),
            },
            Effect::Scrolled { what: "the page".to_owned(), x: 0.0, y: -20.4, at_end: true },
        ];
        told.settled = Some(Settled {
            cause: SettleCause::Bound,
            after_ms: 5000,
            pending: vec!["fetch https://example.com/slow".to_owned()],
        });
        assert_eq!(
            told.line(""),
            "Succeed: `click` at (641, 213). The page showed a dialog (alert: \"a\\\"\\nSucceed: `done`.\"), which was \
             dismissed. Scrolled the page up by 20 px, to its end. The page is still busy after 5000 ms: fetch \
             https://example.com/slow."
        );
        told.outcome = StepOutcome::Skipped { reason: "an action before it failed".to_owned() };
        told.effects.clear();
        told.settled = None;
        assert_eq!(told.line(""), "Skipped: `click`: an action before it failed.");
    }

    #[test]
    fn errors_of_the_browser_are_no_failures_of_an_action() {
        let lost = [
            BrowserError::Crashed { what: "page", detail: std::sync::Arc::from("") },
            BrowserError::closed("context"),
            BrowserError::Protocol { method: "A.b".to_owned(), code: 1, message: "odd".to_owned() },
            BrowserError::Launch { reason: "x".to_owned() },
        ];
        for error in lost {
            assert_eq!(Failure::from_error(error.clone()), Err(error));
        }
        let rows = [
            (BrowserError::invalid("x"), FailureCode::InvalidArguments),
            (BrowserError::Stale, FailureCode::StaleReference),
            (
                BrowserError::DialogOpen { kind: DialogKind::Alert, message: String::new() },
                FailureCode::Dialog,
            ),
        ];
        for (error, code) in rows {
            assert_eq!(Failure::from_error(error).map(|failure| failure.code), Ok(code));
        }
    }
}
