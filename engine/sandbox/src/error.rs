//! What making and finding sandboxes can fail with.

use espalier_core::cause::Failed;
use espalier_core::sandbox::SpecError;

/// Why there is no sandbox. The variant says what the caller can do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SandboxError {
    /// What was asked for is invalid: an unknown name, an image that is not there, a value that no sandbox can have. Asking
    /// again changes nothing; the task or the experiment has to be changed.
    #[error("invalid {what} {value:?}: expected {wanted}")]
    Invalid {
        /// Which key or argument.
        what: String,
        /// What was asked.
        value: String,
        /// What would do.
        wanted: String,
    },
    /// Text of a refusal: set-up failed, or a part of the request does not fit what there is.
    #[error(transparent)]
    Rejected(Failed),
    /// What it runs at its start was killed for memory.
    #[error("{what} was killed: it exceeded its memory limit of {memory}")]
    OutOfMemory {
        /// `sandbox.setup`.
        what: String,
        /// As users write it.
        memory: String,
    },
    /// Infrastructure failed: a registry is out of reach, the disk is full. Another try may work.
    #[error(transparent)]
    Unavailable(Failed),
    /// The program that runs inside sandboxes is not there. It has to be built, or named.
    #[error("no static espalier-agent in {}", places.join(", "))]
    NoAgent {
        /// Where was looked.
        places: Vec<String>,
    },
    /// The program that makes sandboxes is not there. It has to be built, or named.
    #[error("no espalier-keeper in {}", places.join(", "))]
    NoKeeper {
        /// Where was looked.
        places: Vec<String>,
    },
    /// This machine cannot hold what was asked of it. Another machine may.
    #[error("this machine cannot {requirement}")]
    Refused {
        /// What it cannot, as `limit memory (no cgroup controller \"memory\")`.
        requirement: String,
    },
    /// There was one, and it is gone.
    #[error("sandbox lost")]
    Lost(#[source] Failed),
}

impl SandboxError {
    /// Infrastructure failed, by this.
    pub fn unavailable(
        what: impl Into<String>,
        cause: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> SandboxError {
        SandboxError::Unavailable(Failed::by(what, cause))
    }

    /// Whether nothing was begun: what was asked for cannot be had.
    pub fn is_refusal(&self) -> bool {
        use SandboxError::{Invalid, NoAgent, NoKeeper, Refused, Rejected};
        matches!(self, Invalid { .. } | Rejected(_) | Refused { .. } | NoAgent { .. } | NoKeeper { .. })
    }

    /// The message with its causes, in one line.
    pub fn with_causes(&self) -> String {
        espalier_core::cause::with_causes(self)
    }
}

impl From<SpecError> for SandboxError {
    fn from(error: SpecError) -> SandboxError {
        SandboxError::Invalid {
            what: format!("sandbox.{}", error.key),
            value: error.value,
            wanted: error.wanted.to_owned(),
        }
    }
}
