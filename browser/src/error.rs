//! What a call of this library can fail with, and how Chromium's own messages become it.

use crate::dialog::DialogKind;
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;

/// The result of every call of this library.
pub type Result<T, E = BrowserError> = std::result::Result<T, E>;

/// Why a call failed. The variant says what the caller can do.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BrowserError {
    /// The page's process or the whole browser process died. Nothing on it can be used again.
    #[error("the {what} crashed{}", detail_suffix(detail))]
    Crashed {
        /// `page` or `browser process`.
        what: &'static str,
        /// What is known of the cause: signal, end of standard error. May be empty.
        detail: Arc<str>,
    },
    /// The page, context or browser was closed, before the call or while it ran.
    #[error("the {what} is closed")]
    Closed {
        /// `page`, `context` or `browser`.
        what: &'static str,
    },
    /// The document in which the script ran is gone, since its frame navigated.
    #[error("the frame navigated while the script ran")]
    Navigated,
    /// A dialog blocks the page, and the page's policy is to hold dialogs until they are answered.
    #[error("a dialog is open ({kind}: {message:?})")]
    DialogOpen {
        /// What kind of dialog.
        kind: DialogKind,
        /// Its text.
        message: String,
    },
    /// The frame is no longer part of its page.
    #[error("the frame was detached")]
    Detached,
    /// The deadline passed.
    #[error("timed out after {}: waiting for {waiting_for}", seconds(*after))]
    Timeout {
        /// What was waited for, and how far it came.
        waiting_for: String,
        /// The time that was allowed.
        after: Duration,
    },
    /// No element matches, in a call that does not wait for one.
    #[error("no element matches {selector}")]
    NotFound {
        /// The locator.
        selector: String,
    },
    /// More than one element matches a locator that stands for one.
    #[error("{selector} matches {count} elements: {}", samples.join(", "))]
    Strict {
        /// The locator.
        selector: String,
        /// How many elements match.
        count: usize,
        /// The first of them, described.
        samples: Vec<String>,
    },
    /// The element or object of a handle is gone: removed from its document, or released.
    #[error("the object of the handle is gone")]
    Stale,
    /// The script threw, or its promise was rejected.
    #[error("script failed: {message}")]
    Script {
        /// Name and message of what was thrown.
        message: String,
        /// Its stack; empty where it had none.
        stack: String,
    },
    /// A navigation failed.
    #[error("navigation to {url} failed: {reason}")]
    Navigation {
        /// Where to.
        url: String,
        /// Chromium's reason, such as `net::ERR_CONNECTION_REFUSED`.
        reason: String,
    },
    /// The navigation became a download; the page stays where it was.
    #[error("{url} is a download, not a page")]
    Download {
        /// What is downloaded.
        url: String,
    },
    /// Chromium refused a command.
    #[error("{method}: {message} ({code})")]
    Protocol {
        /// The command.
        method: String,
        /// JSON-RPC code.
        code: i64,
        /// Chromium's message.
        message: String,
    },
    /// The browser did not start.
    #[error("browser did not start: {reason}")]
    Launch {
        /// What happened, with the end of its standard error.
        reason: String,
    },
    /// This browser or page cannot do it, whatever the arguments.
    #[error("not supported: {what}")]
    Unsupported {
        /// What, why, and what to do in its place.
        what: String,
    },
    /// An argument that no page could make valid.
    #[error("invalid {what}")]
    Invalid {
        /// Which argument, its value and what is expected.
        what: String,
    },
}

impl BrowserError {
    /// Whether the page, its context or its process is gone, so that no further call on it can succeed.
    pub fn is_gone(&self) -> bool {
        matches!(self, BrowserError::Crashed { .. } | BrowserError::Closed { .. })
    }

    /// Whether the deadline passed.
    pub fn is_timeout(&self) -> bool {
        matches!(self, BrowserError::Timeout { .. })
    }

    /// The same timeout with a text that says more; other errors stay as they are.
    #[must_use]
    pub(crate) fn waiting_for(self, what: impl FnOnce() -> String) -> BrowserError {
        match self {
            BrowserError::Timeout { after, .. } => BrowserError::Timeout { waiting_for: what(), after },
            other => other,
        }
    }

    pub(crate) fn closed(what: &'static str) -> BrowserError {
        BrowserError::Closed { what }
    }

    pub(crate) fn unsupported(what: impl Into<String>) -> BrowserError {
        BrowserError::Unsupported { what: what.into() }
    }

    pub(crate) fn invalid(what: impl Into<String>) -> BrowserError {
        BrowserError::Invalid { what: what.into() }
    }

    /// An answer of Chromium that this library does not understand.
    pub(crate) fn unreadable(method: &str, cause: &serde_json::Error) -> BrowserError {
        BrowserError::Protocol {
            method: method.to_owned(),
            code: 0,
            message: format!("unreadable answer: {cause}"),
        }
    }
}

/// The `error` of an answer.
#[derive(Debug, Deserialize)]
pub(crate) struct Refusal {
    #[serde(default)]
    code: i64,
    #[serde(default)]
    message: String,
    #[serde(default)]
    data: Option<serde_json::Value>,
}

impl Refusal {
    pub(crate) fn into_error(self, method: &str) -> BrowserError {
        const NAVIGATED: [&str; 6] = [
            "Cannot find context with specified id",
            "Execution context was destroyed",
            "Inspected target navigated or closed",
            "Cannot find default execution context",
            "uniqueContextId not found",
            // A picture of a document that another is about to take the place of.
            "Not attached to an active page",
        ];
        const STALE: [&str; 6] = [
            "Could not find object with given id",
            "Could not find node with given id",
            "No node with given id found",
            "Node with given id does not belong to the document",
            "Node is detached from document",
            "Cannot find node",
        ];
        let says = |texts: &[&str]| texts.iter().any(|text| self.message.contains(text));
        if says(&NAVIGATED) {
            return BrowserError::Navigated;
        }
        if says(&STALE) {
            return BrowserError::Stale;
        }
        if says(&["Session with given id not found", "Target closed", "No session with given id"]) {
            return BrowserError::closed("page");
        }
        if self.message.contains("Target crashed") {
            return BrowserError::Crashed { what: "page", detail: Arc::from("") };
        }
        let message = match &self.data {
            Some(serde_json::Value::String(data)) => format!("{}: {data}", self.message),
            _ => self.message,
        };
        BrowserError::Protocol { method: method.to_owned(), code: self.code, message }
    }
}

fn detail_suffix(detail: &str) -> String {
    if detail.is_empty() { String::new() } else { format!(": {detail}") }
}

/// `5 s`, `1.5 s`, `250 ms`.
pub(crate) fn seconds(duration: Duration) -> String {
    let ms = duration.as_millis();
    if ms < 1000 {
        format!("{ms} ms")
    } else if ms.is_multiple_of(1000) {
        format!("{} s", ms / 1000)
    } else {
        format!("{:.1} s", duration.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_complete() {
        let timeout = BrowserError::Timeout {
            waiting_for: "`button` named \"Save\" to be visible; it is hidden".into(),
            after: Duration::from_secs(5),
        };
        assert_eq!(
            timeout.to_string(),
            "timed out after 5 s: waiting for `button` named \"Save\" to be visible; it is hidden"
        );
        let crash = BrowserError::Crashed { what: "page", detail: Arc::from("") };
        assert_eq!(crash.to_string(), "the page crashed");
    }

    #[test]
    fn refusals_are_typed() {
        let refusal = |message: &str| Refusal { code: -32000, message: message.into(), data: None };
        assert_eq!(
            refusal("Cannot find context with specified id").into_error("Runtime.evaluate"),
            BrowserError::Navigated
        );
        let leaving = refusal("Not attached to an active page").into_error("Page.captureScreenshot");
        assert_eq!(leaving, BrowserError::Navigated, "no loss of the browser");
        assert_eq!(refusal("Could not find object with given id").into_error("DOM.x"), BrowserError::Stale);
        assert!(matches!(refusal("Odd").into_error("A.b"), BrowserError::Protocol { .. }));
    }

    #[test]
    fn durations_read_well() {
        assert_eq!(seconds(Duration::from_millis(250)), "250 ms");
        assert_eq!(seconds(Duration::from_millis(1500)), "1.5 s");
        assert_eq!(seconds(Duration::from_secs(30)), "30 s");
    }
}
