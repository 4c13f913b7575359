//! One flat session: the browser itself, a page, or a frame of another process.

use super::{Connection, Handler, Reply};
use crate::deadline::Deadline;
use crate::error::{BrowserError, Result};
use crate::protocol::Done;
use bytes::Bytes;
use chromiumoxide::Command;
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock, Weak};
use tokio::sync::oneshot;

pub(crate) struct Session {
    id: Option<Arc<str>>,
    connection: Arc<Connection>,
    handler: Weak<dyn Handler>,
    gate: Arc<Gate>,
    ended: OnceLock<BrowserError>,
    /// Chromium's id of the script that gives new documents the time of a deterministic episode.
    pub(crate) clock_script: Mutex<Option<String>>,
}

/// What stops the calls of all sessions of one page.
#[derive(Default)]
pub(crate) struct Gate {
    /// The page is closed or crashed; the first reason stays.
    failed: OnceLock<BrowserError>,
    /// A dialog is held open, which blocks the page's scripts.
    dialog: Mutex<Option<BrowserError>>,
}

impl Gate {
    pub(crate) fn fail(&self, reason: BrowserError) -> bool {
        self.failed.set(reason).is_ok()
    }

    pub(crate) fn failed(&self) -> Option<BrowserError> {
        self.failed.get().cloned()
    }

    pub(crate) fn set_dialog(&self, dialog: Option<BrowserError>) {
        *self.dialog.lock() = dialog;
    }

    /// Why nothing that waits for the page's scripts can succeed now.
    pub(crate) fn blocked(&self) -> Option<BrowserError> {
        self.failed().or_else(|| self.dialog.lock().clone())
    }
}

/// Whether an open dialog keeps Chromium from answering: all that the page's own process answers.
fn waits_for_dialogs(method: &str) -> bool {
    !(method.starts_with("Target.")
        || method.starts_with("Browser.")
        || method.starts_with("Storage.")
        || matches!(method, "Page.handleJavaScriptDialog" | "Page.close" | "Page.crash" | "Page.stopLoading"))
}

#[derive(Serialize)]
struct Outgoing<'a, P> {
    id: u64,
    method: &'a str,
    params: &'a P,
    #[serde(rename = "sessionId", skip_serializing_if = "Option::is_none")]
    session_id: Option<&'a str>,
}

impl Session {
    pub(super) fn new(
        id: Option<Arc<str>>,
        connection: Arc<Connection>,
        handler: Weak<dyn Handler>,
        gate: Arc<Gate>,
    ) -> Session {
        Session { id, connection, handler, gate, ended: OnceLock::new(), clock_script: Mutex::default() }
    }

    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    pub(super) fn handler(&self) -> Option<Arc<dyn Handler>> {
        self.handler.upgrade()
    }

    /// Sends a command and waits for its answer.
    pub(crate) async fn call<C: Command>(
        self: &Arc<Self>,
        command: C,
        deadline: Deadline,
    ) -> Result<C::Response> {
        self.call_as(command, deadline).await
    }

    /// Like `call`, for answers of which this library reads its own choice of fields.
    pub(crate) async fn call_as<R: DeserializeOwned>(
        self: &Arc<Self>,
        command: impl Command,
        deadline: Deadline,
    ) -> Result<R> {
        deadline
            .bound(|| "the browser to take commands".to_owned(), async {
                self.connection.has_room().await;
                Ok(())
            })
            .await?;
        self.begin_as(command)?.within(deadline).await
    }

    /// Sends a command now; its answer is awaited later, so that several are under way at once.
    pub(crate) fn begin<C: Command>(self: &Arc<Self>, command: C) -> Result<Call<C::Response>> {
        self.begin_as(command)
    }

    #[expect(clippy::needless_pass_by_value, reason = "a command is made for its call")]
    pub(crate) fn begin_as<R: DeserializeOwned>(self: &Arc<Self>, command: impl Command) -> Result<Call<R>> {
        let (sender, receiver) = oneshot::channel();
        let method = command.identifier();
        let id = self.send(&command, method.clone(), Some(Reply::Waiting(sender)))?;
        let pending = PendingGuard { connection: Arc::clone(&self.connection), id };
        Ok(Call { receiver, pending, method, answer: PhantomData })
    }

    /// Sends a command; `then` gets the answer in the reading task, in order with the events, and must not wait.
    #[expect(clippy::needless_pass_by_value, reason = "a command is made for its call")]
    pub(crate) fn call_then(
        self: &Arc<Self>,
        command: impl Command,
        then: impl FnOnce(Result<Bytes>) + Send + Sync + 'static,
    ) {
        let then = Arc::new(Mutex::new(Some(then)));
        let reply = Reply::Then(Box::new({
            let then = Arc::clone(&then);
            move |result| {
                let then = then.lock().take();
                if let Some(then) = then {
                    then(result);
                }
            }
        }));
        if let Err(error) = self.send(&command, command.identifier(), Some(reply)) {
            let then = then.lock().take();
            if let Some(then) = then {
                then(Err(error));
            }
        }
    }

    /// Sends a command whose answer does not matter.
    #[expect(clippy::needless_pass_by_value, reason = "a command is made for its call")]
    pub(crate) fn post(self: &Arc<Self>, command: impl Command) {
        if let Err(error) = self.send(&command, command.identifier(), None) {
            tracing::debug!(%error, command = %command.identifier(), "not sent");
        }
    }

    fn send<C: Serialize>(
        self: &Arc<Self>,
        command: &C,
        method: Cow<'static, str>,
        reply: Option<Reply>,
    ) -> Result<u64> {
        let name = method.clone();
        self.connection.send(self, method, reply, |id| {
            serde_json::to_vec(&Outgoing {
                id,
                method: &name,
                params: command,
                session_id: self.id.as_deref(),
            })
        })
    }

    /// Fails where a call of this method could not succeed now.
    pub(super) fn usable(&self, method: &str) -> Result<()> {
        if let Some(reason) = self.ended() {
            return Err(reason);
        }
        match &*self.gate.dialog.lock() {
            Some(dialog) if waits_for_dialogs(method) => Err(dialog.clone()),
            _ => Ok(()),
        }
    }

    pub(crate) fn ended(&self) -> Option<BrowserError> {
        self.gate.failed.get().or_else(|| self.ended.get()).cloned()
    }

    pub(super) fn end(&self, reason: &BrowserError) {
        let _ = self.ended.set(reason.clone());
    }

    /// Fails the unanswered calls of every session of this gate: all of them, or those that wait for a dialog.
    pub(crate) fn fail_page_calls(&self, reason: &BrowserError, only_blocked_by_dialog: bool) {
        let gate = &self.gate;
        self.connection.fail_pending(reason, |session, method| {
            Arc::ptr_eq(&session.gate, gate) && (!only_blocked_by_dialog || waits_for_dialogs(method))
        });
    }
}

/// A command under way. Dropping it forgets the answer.
pub(crate) struct Call<R> {
    receiver: oneshot::Receiver<Result<Bytes>>,
    pending: PendingGuard,
    method: Cow<'static, str>,
    answer: PhantomData<fn() -> R>,
}

/// Sends a command to all sessions at once and waits for their answers. Errors that `pass` do not matter.
pub(crate) async fn tell_all(
    sessions: impl IntoIterator<Item = Arc<Session>>,
    command: impl Command + Clone,
    deadline: Deadline,
    pass: impl Fn(&BrowserError) -> bool,
) -> Result<()> {
    let begin = |session: Arc<Session>| session.begin_as::<Done>(command.clone());
    let calls: Vec<Result<Call<Done>>> = sessions.into_iter().map(begin).collect();
    for call in calls {
        let result = match call {
            Ok(call) => call.within(deadline).await,
            Err(error) => Err(error),
        };
        match result {
            Err(error) if !pass(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

impl<R: DeserializeOwned> Call<R> {
    pub(crate) async fn within(self, deadline: Deadline) -> Result<R> {
        let Call { receiver, pending, method, .. } = self;
        let bytes = deadline
            .bound(|| format!("the answer to {method}"), async {
                receiver.await.unwrap_or_else(|_| Err(BrowserError::closed("browser")))
            })
            .await?;
        drop(pending);
        read(&method, &bytes)
    }
}

struct PendingGuard {
    connection: Arc<Connection>,
    id: u64,
}

impl Drop for PendingGuard {
    fn drop(&mut self) {
        self.connection.forget(self.id);
    }
}

pub(crate) fn read<R: DeserializeOwned>(method: &str, bytes: &Bytes) -> Result<R> {
    serde_json::from_slice(bytes).map_err(|error| BrowserError::unreadable(method, &error))
}
