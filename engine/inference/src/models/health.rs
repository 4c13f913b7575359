//! Whether a model can still be asked: what its calls told, and what the server says when it is asked for nothing.
//!
//! One call that fails says little: the server may not have liked this prompt. So a rollout that lost its model asks here
//! whether the server is there at all; all that ask at once share one answer.

use super::Model;
use crate::embedded::EmbeddedError;
use crate::error::EndpointError;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

/// How long a server may take to say what it is.
const ASKED_WITHIN: Duration = Duration::from_secs(30);
/// How long an answer holds.
const HOLDS: Duration = Duration::from_secs(2);

/// A model that cannot be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gone {
    /// Its server does not answer; it may come back.
    Away(String),
    /// Nothing works until somebody changes something: the key, the name of the model, the machine.
    ForGood(String),
}

impl Gone {
    /// Why.
    pub fn why(&self) -> &str {
        match self {
            Gone::Away(why) | Gone::ForGood(why) => why,
        }
    }
}

/// What the calls of a run tell of their model.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Whether any call was ever answered: before that, a refusal is no matter of one prompt.
    answered: AtomicBool,
    for_good: OnceLock<String>,
    /// Held while the server is asked, so that those who ask meanwhile wait for the one answer.
    asked: Mutex<Option<(Instant, Option<String>)>>,
}

impl Health {
    /// A call was answered.
    pub(crate) fn answered(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }

    /// A call failed, its retries included.
    pub(crate) fn failed(&self, error: &EndpointError) {
        let for_good = match error {
            EndpointError::Denied { .. } | EndpointError::Config(_) => true,
            EndpointError::Embedded(error) => {
                matches!(error, EmbeddedError::KeepsDying { .. } | EmbeddedError::Missing { .. })
            }
            EndpointError::Refused { .. } => !self.answered.load(Ordering::Relaxed),
            EndpointError::Fenced { .. }
            | EndpointError::Unavailable { .. }
            | EndpointError::Deadline { .. }
            | EndpointError::ContextOverflow { .. }
            | EndpointError::Unsupported { .. } => false,
        };
        if for_good {
            // The first reason stays.
            let _ = self.for_good.set(error.with_causes());
        }
    }
}

impl Model {
    /// Whether the model cannot be asked any more; asks its server. At most 30 s.
    pub async fn gone(&self) -> Option<Gone> {
        let for_good = || self.health.for_good.get().cloned().map(Gone::ForGood);
        if let Some(gone) = for_good() {
            return Some(gone);
        }
        let mut asked = self.health.asked.lock().await;
        if let Some((at, away)) = &*asked
            && at.elapsed() < HOLDS
        {
            return for_good().or_else(|| away.clone().map(Gone::Away));
        }
        let away = match timeout(ASKED_WITHIN, self.endpoint.describe()).await {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => {
                self.health.failed(&error);
                Some(error.with_causes())
            }
            Err(_) => Some(format!("the server said nothing within {} s", ASKED_WITHIN.as_secs())),
        };
        *asked = Some((Instant::now(), away.clone()));
        for_good().or(away.map(Gone::Away))
    }
}
