//! What a new session is told before its target runs: many commands at once, and one notice when all are answered.

use crate::connection::Session;
use crate::error::{BrowserError, Result};
use bytes::Bytes;
use chromiumoxide::Command;
use parking_lot::Mutex;
use std::sync::Arc;

/// Commands that are under way together.
pub(crate) struct Startup<'a> {
    session: &'a Arc<Session>,
    default_user_agent: &'a str,
    tally: Arc<Mutex<Tally>>,
}

struct Tally {
    outstanding: usize,
    error: Option<BrowserError>,
    done: Option<Done>,
}

type Done = Box<dyn FnOnce(Result<()>) + Send + Sync>;

impl<'a> Startup<'a> {
    /// `done` is called once, with the first error, after the last answer.
    pub(crate) fn new(
        session: &'a Arc<Session>,
        default_user_agent: &'a str,
        done: impl FnOnce(Result<()>) + Send + Sync + 'static,
    ) -> Startup<'a> {
        let tally = Tally { outstanding: 1, error: None, done: Some(Box::new(done)) };
        Startup { session, default_user_agent, tally: Arc::new(Mutex::new(tally)) }
    }

    pub(crate) fn default_user_agent(&self) -> &'a str {
        self.default_user_agent
    }

    pub(crate) fn send(&mut self, command: impl Command) {
        self.send_then(command, |_| {});
    }

    /// `then` gets the answer in order with the events.
    pub(crate) fn send_then(
        &mut self,
        command: impl Command,
        then: impl FnOnce(Bytes) + Send + Sync + 'static,
    ) {
        self.tally.lock().outstanding += 1;
        let tally = Arc::clone(&self.tally);
        self.session.call_then(command, move |result| {
            let error = match result {
                Ok(bytes) => {
                    then(bytes);
                    None
                }
                Err(error) => Some(error),
            };
            finish_one(&tally, error);
        });
    }

    /// No more commands follow.
    pub(crate) fn finish(self) {
        finish_one(&self.tally, None);
    }
}

fn finish_one(tally: &Mutex<Tally>, error: Option<BrowserError>) {
    let done = {
        let mut tally = tally.lock();
        tally.outstanding -= 1;
        let harmless = error.as_ref().is_some_and(is_harmless);
        if let (None, Some(error), false) = (&tally.error, error, harmless) {
            tally.error = Some(error);
        }
        if tally.outstanding > 0 {
            return;
        }
        tally.done.take().map(|done| (done, tally.error.take()))
    };
    if let Some((done, error)) = done {
        done(error.map_or(Ok(()), Err));
    }
}

/// The locale belongs to a renderer process, and pages of one context share it.
fn is_harmless(error: &BrowserError) -> bool {
    matches!(error, BrowserError::Protocol { message, .. } if message.contains("locale override is already in effect"))
}
