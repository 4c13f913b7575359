//! What a host call can fail with, as the guest sees it (`espalier:base/types.failure`).

use serde::{Deserialize, Serialize};

/// Error of every import. The variant says what the caller can do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum Failure {
    /// A budget is used up. The guest has a grace of 16 further host calls and 5 s to finish.
    #[error("budget used up: {0}")]
    Budget(BudgetKind),
    /// The rollout is being stopped: return soon.
    #[error("cancelled")]
    Cancelled,
    /// The world has the capability, the experiment does not grant it.
    #[error("not granted: {0}")]
    Denied(String),
    /// Infrastructure failed, and the host has already retried; trying again at once is pointless.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// Misuse by the guest: the text names the value.
    #[error("invalid: {0}")]
    Invalid(String),
    /// Anything newer than this list.
    #[error("{code}: {text}")]
    Other {
        /// Stable word for programs.
        code: String,
        /// Sentence for people.
        text: String,
    },
}

impl Failure {
    /// Whether it is of a limit, a cancel or something that was lost: nobody's defect.
    pub fn is_no_defect(&self) -> bool {
        matches!(self, Failure::Budget(_) | Failure::Cancelled | Failure::Unavailable(_))
    }
}

/// Which limit of `[limits]` was met.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum BudgetKind {
    /// `limits.turns`.
    #[error("turns")]
    Turns,
    /// `limits.tokens`, or the model's context.
    #[error("tokens")]
    Tokens,
    /// `limits.sampled_tokens`.
    #[error("sampled-tokens")]
    SampledTokens,
    /// `limits.rollout_wall`.
    #[error("wall")]
    Wall,
    /// `limits.host_calls`.
    #[error("host-calls")]
    HostCalls,
    /// `limits.blob_bytes`.
    #[error("blob-bytes")]
    BlobBytes,
    /// A kind newer than this list.
    #[error("{0}")]
    Other(String),
}
