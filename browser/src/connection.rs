//! Calls and events over one pair of streams, flat: each message names the session it belongs to.
//!
//! One task reads. It hands answers to those who wait for them and gives events to the handler of their session at
//! once, in order of arrival: when a call returns, every event that Chromium sent before the answer has taken effect.
//! Handlers therefore never wait; what takes time they spawn, or send with [`Session::post`].

mod session;

pub(crate) use session::{Call, Gate, Session, tell_all};

use crate::error::{BrowserError, Refusal, Result};
use crate::transport::{MessageReader, MessageWriter};
use bytes::Bytes;
use dashmap::DashMap;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use tokio::sync::{Notify, oneshot};

/// What a session's events do. Called by the reading task, so it must not wait.
pub(crate) trait Handler: Send + Sync {
    fn event(&self, session: &Arc<Session>, method: &str, params: &RawValue);
    /// The session is gone; called once, never before an event that came earlier.
    fn ended(&self, session: &Arc<Session>, reason: &BrowserError);
}

/// The connection to one browser process.
pub(crate) struct Connection {
    writer: MessageWriter,
    next_id: AtomicU64,
    pending: DashMap<u64, Pending>,
    sessions: DashMap<Arc<str>, Arc<Session>>,
    root: OnceLock<Arc<Session>>,
    /// Why nothing can be sent any more; the first reason stays.
    closed: OnceLock<BrowserError>,
    /// Wakes those who wait for the end.
    ended: Notify,
}

/// A call that has not been answered.
struct Pending {
    session: Arc<Session>,
    method: Cow<'static, str>,
    reply: Reply,
}

enum Reply {
    Waiting(oneshot::Sender<Result<Bytes>>),
    /// Called by the reading task, so that it sees the answer in order with the events.
    Then(Box<dyn FnOnce(Result<Bytes>) + Send + Sync>),
}

impl Reply {
    fn resolve(self, result: Result<Bytes>) {
        match self {
            // Nobody waits any more: the caller's deadline passed, or it was dropped.
            Reply::Waiting(sender) => drop(sender.send(result)),
            Reply::Then(then) => then(result),
        }
    }
}

#[derive(Deserialize)]
struct Incoming<'a> {
    id: Option<u64>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "sessionId")]
    session_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    error: Option<Refusal>,
}

impl Connection {
    /// The connection with its root session, whose events go to `handler`.
    pub(crate) fn new(writer: MessageWriter, handler: Weak<dyn Handler>) -> Arc<Connection> {
        let connection = Arc::new(Connection {
            writer,
            next_id: AtomicU64::new(1),
            pending: DashMap::new(),
            sessions: DashMap::new(),
            root: OnceLock::new(),
            closed: OnceLock::new(),
            ended: Notify::new(),
        });
        let root = Arc::new(Session::new(None, Arc::clone(&connection), handler, Arc::default()));
        let _ = connection.root.set(root);
        connection
    }

    /// The session of the browser itself.
    pub(crate) fn root(&self) -> &Arc<Session> {
        self.root.get().expect("set where the connection is made")
    }

    /// The reading task: until the browser closes its stream.
    pub(crate) async fn read(&self, mut reader: MessageReader) {
        while let Some(message) = reader.next().await {
            self.dispatch(&message);
        }
    }

    /// The writing task.
    pub(crate) async fn write(&self) {
        self.writer.run().await;
    }

    /// A session that Chromium has attached.
    pub(crate) fn open_session(
        self: &Arc<Self>,
        id: &str,
        handler: Weak<dyn Handler>,
        gate: Arc<Gate>,
    ) -> Arc<Session> {
        let id: Arc<str> = Arc::from(id);
        let session = Arc::new(Session::new(Some(Arc::clone(&id)), Arc::clone(self), handler, gate));
        self.sessions.insert(id, Arc::clone(&session));
        session
    }

    /// A session that Chromium has detached: its calls fail with `reason`, and its handler is told.
    pub(crate) fn end_session(&self, id: &str, reason: &BrowserError) {
        let Some((_, session)) = self.sessions.remove(id) else { return };
        self.end(&session, reason);
    }

    /// Fails every call at once, now and later, with `reason` (the first one stays), and tells all handlers.
    pub(crate) fn close(&self, reason: BrowserError) {
        if self.closed.set(reason).is_err() {
            return;
        }
        self.writer.close();
        let reason = self.closed.get().expect("set above");
        let ids: Vec<Arc<str>> = self.sessions.iter().map(|entry| Arc::clone(entry.key())).collect();
        for id in ids {
            self.end_session(&id, reason);
        }
        self.end(&Arc::clone(self.root()), reason);
        self.fail_pending(reason, |_, _| true);
        self.ended.notify_waiters();
    }

    /// Waits until it is closed, and says why.
    pub(crate) async fn until_closed(&self) -> BrowserError {
        loop {
            let ended = self.ended.notified();
            if let Some(reason) = self.closed.get() {
                return reason.clone();
            }
            ended.await;
        }
    }

    /// Why the connection is closed.
    pub(crate) fn closed(&self) -> Option<&BrowserError> {
        self.closed.get()
    }

    /// Fails the unanswered calls that `which` names by session and method.
    pub(crate) fn fail_pending(&self, reason: &BrowserError, which: impl Fn(&Session, &str) -> bool) {
        let ids: Vec<u64> = self
            .pending
            .iter()
            .filter(|entry| which(&entry.session, &entry.method))
            .map(|entry| *entry.key())
            .collect();
        for id in ids {
            if let Some((_, pending)) = self.pending.remove(&id) {
                pending.reply.resolve(Err(reason.clone()));
            }
        }
    }

    fn end(&self, session: &Arc<Session>, reason: &BrowserError) {
        session.end(reason);
        self.fail_pending(reason, |of, _| std::ptr::eq(of, Arc::as_ptr(session)));
        if let Some(handler) = session.handler() {
            handler.ended(session, reason);
        }
    }

    fn dispatch(&self, message: &Bytes) {
        let incoming: Incoming<'_> = match serde_json::from_slice(message) {
            Ok(incoming) => incoming,
            Err(error) => {
                tracing::warn!(%error, bytes = message.len(), "unreadable message of the browser");
                return;
            }
        };
        if let Some(id) = incoming.id {
            let Some((_, pending)) = self.pending.remove(&id) else {
                if let Some(refusal) = incoming.error {
                    tracing::debug!(?refusal, "a command whose answer nobody awaits failed");
                }
                return;
            };
            let result = match (incoming.error, incoming.result) {
                (Some(refusal), _) => Err(refusal.into_error(&pending.method)),
                (None, Some(result)) => Ok(message.slice_ref(result.get().as_bytes())),
                (None, None) => Ok(Bytes::from_static(b"{}")),
            };
            pending.reply.resolve(result);
            return;
        }
        let (Some(method), Some(params)) = (incoming.method, incoming.params) else { return };
        let session = match incoming.session_id {
            None => Some(Arc::clone(self.root())),
            Some(id) => self.sessions.get(&*id).map(|entry| Arc::clone(entry.value())),
        };
        // Events of a session that has just been detached have no meaning any more.
        let Some(session) = session else { return };
        if let Some(handler) = session.handler() {
            handler.event(&session, &method, params);
        }
    }

    fn send(
        &self,
        session: &Arc<Session>,
        method: Cow<'static, str>,
        reply: Option<Reply>,
        encode: impl FnOnce(u64) -> serde_json::Result<Vec<u8>>,
    ) -> Result<u64> {
        if let Some(reason) = self.closed.get() {
            return Err(reason.clone());
        }
        session.usable(&method)?;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let message =
            encode(id).map_err(|error| BrowserError::invalid(format!("arguments of {method}: {error}")))?;
        if let Some(reply) = reply {
            self.pending.insert(id, Pending { session: Arc::clone(session), method, reply });
        }
        // A message that cannot be written waits as well: the process is gone, and its end fails the call with its cause.
        self.writer.send(&message);
        // Looked at again after the call is listed: whoever closes between the two has not failed it.
        if let Some(reason) = self.closed.get().cloned().or_else(|| session.ended()) {
            return match self.pending.remove(&id) {
                Some(_) => Err(reason),
                None => Ok(id),
            };
        }
        Ok(id)
    }

    fn forget(&self, id: u64) {
        self.pending.remove(&id);
    }

    async fn has_room(&self) {
        self.writer.has_room().await;
    }
}
