//! What a call to a sandbox's agent can come to besides an answer.

use espalier_agent_protocol::{field_of, reason_of, v1::Reason};
use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::sync::Arc;
use tonic::Status;

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The agent refused: misuse, a missing file, a full disk. Repeating changes nothing.
    #[error("{message}")]
    Refused {
        /// Which kind of refusal.
        reason: Reason,
        /// For people.
        message: String,
        /// Which part of the request it is about, where the agent names one.
        field: Option<String>,
    },
    /// The agent is gone, was restarted, or was out of reach for too long: a failure of the infrastructure. What was running
    /// is lost with it.
    #[error("sandbox lost")]
    Lost(#[source] Loss),
    /// An answer that this client does not understand.
    #[error("unexpected response of the agent: {0}")]
    Protocol(String),
    /// Reading or writing a file on this side failed.
    #[error("{what}")]
    Local {
        /// The file.
        what: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// How a sandbox was lost. Every later call is told the same.
#[derive(Clone, Debug)]
pub struct Loss {
    why: String,
    /// Whether the call had been sent: it may have been carried out.
    sent: bool,
    cause: Option<Arc<dyn Error + Send + Sync>>,
}

impl Loss {
    pub(crate) fn by(why: impl Into<String>, cause: impl Error + Send + Sync + 'static) -> Loss {
        Loss { why: why.into(), sent: false, cause: Some(Arc::new(cause)) }
    }
}

impl From<&str> for Loss {
    fn from(why: &str) -> Loss {
        Loss { why: why.to_owned(), sent: false, cause: None }
    }
}

impl Display for Loss {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl Error for Loss {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.as_deref().map(|cause| cause as &(dyn Error + 'static))
    }
}

impl AgentError {
    /// A refusal of this side, in the agent's manner.
    pub fn refused(reason: Reason, message: impl Into<String>) -> AgentError {
        AgentError::Refused { reason, message: message.into(), field: None }
    }

    /// Whether the sandbox was lost under a call that had been sent: nobody knows whether it was carried out. One that was lost before was
    /// not.
    pub fn is_lost_under_way(&self) -> bool {
        matches!(self, AgentError::Lost(Loss { sent: true, .. }))
    }

    /// The same error of a call that had been sent.
    pub(crate) fn after_sending(mut self) -> AgentError {
        if let AgentError::Lost(loss) = &mut self {
            loss.sent = true;
        }
        self
    }

    /// The agent's refusal, where it is one.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            AgentError::Refused { reason, .. } => Some(*reason),
            _ => None,
        }
    }

    /// What a status says: the agent's refusal, or nothing where the transport failed and the call may be repeated.
    pub(crate) fn of(status: &Status) -> Option<AgentError> {
        match reason_of(status) {
            Some(reason) => Some(AgentError::Refused {
                reason,
                message: status.message().to_owned(),
                field: field_of(status).map(str::to_owned),
            }),
            None if matches!(status.code(), tonic::Code::OutOfRange | tonic::Code::Unimplemented) => {
                Some(AgentError::Protocol(status.message().to_owned()))
            }
            None => None,
        }
    }
}
