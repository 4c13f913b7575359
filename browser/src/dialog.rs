//! Dialogs of pages: alert, confirm, prompt, and the question before a page is left.

use crate::connection::Session;
use crate::error::{BrowserError, Result};
use chromiumoxide::cdp::browser_protocol::page::HandleJavaScriptDialogParams;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a handler may take before its dialog is dismissed.
pub const DIALOG_HANDLER_BOUND: Duration = Duration::from_secs(10);
/// Dialogs that a page remembers.
pub(crate) const DIALOGS_KEPT: usize = 100;

/// What kind of dialog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DialogKind {
    /// `alert(message)`.
    Alert,
    /// `confirm(message)`.
    Confirm,
    /// `prompt(message, default)`.
    Prompt,
    /// The page asks before it is left.
    BeforeUnload,
}

impl fmt::Display for DialogKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DialogKind::Alert => "alert",
            DialogKind::Confirm => "confirm",
            DialogKind::Prompt => "prompt",
            DialogKind::BeforeUnload => "beforeunload",
        })
    }
}

/// What a page does with its dialogs. Default: [`DialogPolicy::Dismiss`].
#[derive(Clone, Default)]
pub enum DialogPolicy {
    /// Dismissed at once; `beforeunload` is accepted, so that navigations go on.
    #[default]
    Dismiss,
    /// Accepted at once; a prompt with its default text.
    Accept,
    /// Kept open until [`Dialog::accept`] or [`Dialog::dismiss`] is called. Meanwhile calls that the dialog blocks fail
    /// with [`BrowserError::DialogOpen`], those under way too. `beforeunload` is accepted at once.
    Hold,
    /// Given to a handler. A dialog that it has not answered when it returns, or within
    /// [`DIALOG_HANDLER_BOUND`], is dismissed.
    Handler(Arc<dyn Fn(Dialog) -> BoxFuture<'static, ()> + Send + Sync>),
}

impl fmt::Debug for DialogPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DialogPolicy::Dismiss => "Dismiss",
            DialogPolicy::Accept => "Accept",
            DialogPolicy::Hold => "Hold",
            DialogPolicy::Handler(_) => "Handler",
        })
    }
}

/// One dialog, open or answered.
#[derive(Clone)]
pub struct Dialog {
    inner: Arc<DialogInner>,
}

struct DialogInner {
    kind: DialogKind,
    message: String,
    default_prompt: String,
    url: String,
    answered: AtomicBool,
    session: Arc<Session>,
}

/// `Page.javascriptDialogOpening`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DialogOpening {
    url: String,
    message: String,
    #[serde(rename = "type")]
    kind: DialogKind,
    default_prompt: Option<String>,
}

impl Dialog {
    pub(crate) fn new(session: &Arc<Session>, opening: DialogOpening) -> Dialog {
        Dialog {
            inner: Arc::new(DialogInner {
                kind: opening.kind,
                message: opening.message,
                default_prompt: opening.default_prompt.unwrap_or_default(),
                url: opening.url,
                answered: AtomicBool::new(false),
                session: Arc::clone(session),
            }),
        }
    }

    /// What kind of dialog.
    pub fn kind(&self) -> DialogKind {
        self.inner.kind
    }

    /// Its text. Browsers show their own text for `beforeunload`, and here it is empty.
    pub fn message(&self) -> &str {
        &self.inner.message
    }

    /// The text a prompt starts with.
    pub fn default_prompt(&self) -> &str {
        &self.inner.default_prompt
    }

    /// The address of the frame that opened it.
    pub fn url(&self) -> &str {
        &self.inner.url
    }

    /// Whether it has been answered, or went away with its page.
    pub fn is_answered(&self) -> bool {
        self.inner.answered.load(Ordering::Acquire)
    }

    /// Accepts it; a prompt with `text`, or its default text. An answered dialog is an error.
    pub fn accept(&self, text: Option<&str>) -> Result<()> {
        let text = match (self.inner.kind, text) {
            (DialogKind::Prompt, Some(text)) => Some(text.to_owned()),
            (DialogKind::Prompt, None) => Some(self.inner.default_prompt.clone()),
            _ => None,
        };
        self.answer(true, text)
    }

    /// Dismisses it. An answered dialog is an error.
    pub fn dismiss(&self) -> Result<()> {
        self.answer(false, None)
    }

    /// The dialog is gone without an answer of ours.
    pub(crate) fn set_answered(&self) {
        self.inner.answered.store(true, Ordering::Release);
    }

    pub(crate) fn as_error(&self) -> BrowserError {
        BrowserError::DialogOpen { kind: self.inner.kind, message: self.inner.message.clone() }
    }

    pub(crate) fn is_of(&self, session: &Arc<Session>) -> bool {
        Arc::ptr_eq(&self.inner.session, session)
    }

    fn answer(&self, accept: bool, text: Option<String>) -> Result<()> {
        if self.inner.answered.swap(true, Ordering::AcqRel) {
            return Err(BrowserError::invalid("answer to a dialog that is already answered"));
        }
        self.inner.session.gate().set_dialog(None);
        let mut command = HandleJavaScriptDialogParams::new(accept);
        command.prompt_text = text;
        self.inner.session.post(command);
        Ok(())
    }
}

impl fmt::Debug for Dialog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialog")
            .field("kind", &self.inner.kind)
            .field("message", &self.inner.message)
            .field("answered", &self.is_answered())
            .finish_non_exhaustive()
    }
}
