//! What a call to a sandbox's agent can come to besides an answer.

use espalier_agent_protocol::{reason_of, v1::Reason};
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
    },
    /// The agent is gone, was restarted, or was out of reach for too long: a failure of the infrastructure. What was running
    /// is lost with it.
    #[error("sandbox lost: {0}")]
    Lost(String),
    /// An answer that this client does not understand.
    #[error("answer of the agent not understood: {0}")]
    Protocol(String),
    /// Reading or writing a file on this side failed.
    #[error("{what}: {source}")]
    Local {
        /// The file.
        what: String,
        /// Why.
        source: std::io::Error,
    },
}

impl AgentError {
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
            Some(reason) => Some(AgentError::Refused { reason, message: status.message().to_owned() }),
            None if matches!(status.code(), tonic::Code::OutOfRange | tonic::Code::Unimplemented) => {
                Some(AgentError::Protocol(status.message().to_owned()))
            }
            None => None,
        }
    }
}
