//! What a plugin asked of the host and what it was told, so that a rollout can be driven again.
//!
//! The only thing about a guest that does not follow from its code is what its calls to the host bring. Each call is
//! recorded by its number ([`crate::trajectory::HostCall`]): its name, a [`Digest`] of the typed arguments ([`Call`]) and of
//! what was told ([`Reply`]), the guest's clock, and whether it was let through ([`Verdict`]). Driving a rollout again runs the
//! host's code again and holds the digests against the record; the first that differs is where the two part. Arguments
//! and replies themselves ([`Payload`]) are kept where the experiment says so, and with them what the host's own code was told from
//! outside ([`Edge`]). WIT is mapped onto these types by `plugin`.

mod bytes;
mod call;
mod digest;
mod edge;
mod reply;

pub use bytes::{Bytes, octets, octets_option};
pub use call::{Call, Handle};
pub use digest::{Digest, Measured, measure};
pub use edge::{EDGES_BYTES_MAX, Edge, EdgeLog};
pub use reply::Reply;

use serde::{Deserialize, Serialize};

/// Most bytes of the arguments or of the reply of one call that are kept.
pub const PAYLOAD_BYTES_MAX: u64 = 64 << 10;
/// Most bytes of arguments and replies that are kept of one attempt.
pub const PAYLOADS_BYTES_MAX: u64 = 16 << 20;

/// What was passed in a call and what came back; a part that was over its bound is missing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Payload {
    /// As the guest asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<Call<'static>>,
    /// As the guest was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply: Option<Reply<'static>>,
}

/// Whether a call was let through to what it is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It was, and had its answer, also where that is a failure.
    #[default]
    Passed,
    /// A budget was used up before.
    Refused,
    /// It was under way when a limit was met.
    Cut(Limit),
    /// The attempt was cancelled, before or meanwhile.
    Cancelled,
}

/// A limit on time that ends a call under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// `limits.import_wall`.
    Import,
    /// `limits.turn_wall`.
    Turn,
    /// `limits.rollout_wall`, for rewards `limits.scoring_wall`.
    Wall,
    /// What is left after the first budget error.
    Grace,
}

impl Verdict {
    /// Whether it is the usual one.
    pub fn is_passed(&self) -> bool {
        *self == Verdict::Passed
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Verdict::Passed => "passed",
            Verdict::Refused => "refused",
            Verdict::Cut(Limit::Import) => "cut by import_wall",
            Verdict::Cut(Limit::Turn) => "cut by turn_wall",
            Verdict::Cut(Limit::Wall) => "cut by the wall",
            Verdict::Cut(Limit::Grace) => "cut by the grace",
            Verdict::Cancelled => "cancelled",
        })
    }
}

#[cfg(test)]
mod tests;
