//! What can go wrong between the engine and a model server: faults of one attempt, and the error of a whole call.

use espalier_core::cause::{Failed, with_causes};
use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

/// Error of a call to a model server, retries included. The variant says what the caller can do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// Every attempt met a passing fault: an infrastructure failure, never a reward. The caller may retry the whole
    /// rollout later.
    #[error("{endpoint} did not answer after {attempts} attempts in {:.1} s", waited.as_secs_f64())]
    Unavailable {
        /// Route that was asked.
        endpoint: String,
        /// Requests sent.
        attempts: u32,
        /// From the first request to giving up.
        waited: Duration,
        /// What the last attempt met.
        #[source]
        last: Box<Fault>,
    },
    /// The caller's own deadline passed first. The caller ends as that deadline says.
    #[error("{endpoint} did not answer before the caller's deadline ({attempts} attempts)")]
    Deadline {
        /// Route that was asked.
        endpoint: String,
        /// Requests sent.
        attempts: u32,
        /// What the last attempt met, where one ended before the deadline.
        #[source]
        last: Option<Box<Fault>>,
    },
    /// The prompt does not fit. The caller ends the conversation for its context.
    #[error("prompt of {prompt} tokens does not fit a context of {context} tokens ({endpoint})")]
    ContextOverflow {
        /// Route that was asked.
        endpoint: String,
        /// Tokens sent.
        prompt: u64,
        /// Tokens the server holds for one conversation.
        context: u64,
    },
    /// The server refuses the request as such; the same one will be refused again. A fault of configuration or of the
    /// engine.
    #[error("{endpoint} refused the request with {status}: {body}")]
    Refused {
        /// Route that was asked.
        endpoint: String,
        /// HTTP status.
        status: u16,
        /// Start of the answer's body.
        body: String,
    },
    /// The server wants a key, or another one. Nothing works until the configuration changes.
    #[error("{endpoint} answered {status}: the key is missing or not accepted")]
    Denied {
        /// Route that was asked.
        endpoint: String,
        /// HTTP status.
        status: u16,
    },
    /// The kind of endpoint cannot do this at all.
    #[error("an endpoint of kind {kind} cannot {what}")]
    Unsupported {
        /// Kind as configured.
        kind: &'static str,
        /// What was asked.
        what: &'static str,
    },
    /// Every server of the model was fenced off.
    #[error("every server of the model is fenced off: {reason}")]
    Fenced {
        /// Why, of the last.
        reason: String,
    },
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    /// The model of this machine does not start.
    #[error(transparent)]
    Embedded(#[from] crate::embedded::EmbeddedError),
}

impl EndpointError {
    /// The message with its causes, which say what the server did, in one line.
    pub fn with_causes(&self) -> String {
        with_causes(self)
    }
}

/// What one attempt met. Every one is worth another attempt.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// No connection.
    #[error("no connection to {url}")]
    Connect {
        /// Server.
        url: String,
        /// What the operating system says.
        #[source]
        source: Transport,
    },
    /// The server stayed silent too long.
    #[error("no {what} within {:.1} s", after.as_secs_f64())]
    Timeout {
        /// `connection`, `first byte` or `whole answer`.
        what: &'static str,
        /// The deadline that passed.
        after: Duration,
    },
    /// The server asks to come again: 408, 429 or 5xx.
    #[error("status {status}: {body}")]
    Status {
        /// HTTP status.
        status: u16,
        /// `Retry-After`, where the server named one.
        retry_after: Option<Duration>,
        /// Start of the answer's body.
        body: String,
    },
    /// The connection broke inside the answer.
    #[error("the response was cut off")]
    Cut {
        /// What the transport, or the server, says.
        #[source]
        source: Failed,
    },
    /// The answer is larger than any honest one.
    #[error("the answer is larger than {limit} bytes")]
    TooLarge {
        /// Bound.
        limit: usize,
    },
    /// The answer is not of the published form.
    #[error("malformed answer")]
    Malformed {
        /// Where and why.
        #[source]
        source: Failed,
    },
    /// The answer contradicts itself or the request: counts, ids, logprobs.
    #[error("inconsistent response: {reason}")]
    Inconsistent {
        /// Which figures.
        reason: String,
    },
    /// The server sampled nothing.
    #[error("empty answer: no token was sampled")]
    Empty,
}

impl Fault {
    /// A malformed answer.
    pub(crate) fn malformed(reason: impl Into<Failed>) -> Fault {
        Fault::Malformed { source: reason.into() }
    }

    /// An answer that contradicts itself.
    pub(crate) fn inconsistent(reason: impl Into<String>) -> Fault {
        Fault::Inconsistent { reason: reason.into() }
    }

    /// A stable word for counters and logs.
    pub fn code(&self) -> &'static str {
        match self {
            Fault::Connect { .. } => "connect",
            Fault::Timeout { .. } => "timeout",
            Fault::Status { status: 429, .. } => "busy",
            Fault::Status { .. } => "status",
            Fault::Cut { .. } => "cut",
            Fault::TooLarge { .. } => "too-large",
            Fault::Malformed { .. } => "malformed",
            Fault::Inconsistent { .. } => "inconsistent",
            Fault::Empty => "empty",
        }
    }
}

/// A fault of the transport, told by its innermost cause: the layers around that say "request failed" in other words.
#[derive(Debug)]
pub struct Transport(Box<dyn Error + Send + Sync>);

impl Transport {
    pub(crate) fn new(error: impl Error + Send + Sync + 'static) -> Transport {
        Transport(Box::new(error))
    }

    fn innermost(&self) -> &(dyn Error + 'static) {
        let mut last: &(dyn Error + 'static) = &*self.0;
        while let Some(source) = last.source() {
            last = source;
        }
        last
    }
}

impl Display for Transport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Display::fmt(self.innermost(), f)
    }
}

impl Error for Transport {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(self.innermost())
    }
}
