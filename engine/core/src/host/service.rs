//! What a reward or a judge can ask of the services of its rollout (`espalier:service`), as traits and plain types.
//!
//! `engine/services` implements them. A request is one with the engine's key: it sees and does what no page may.

use crate::failure::Failure;
use async_trait::async_trait;

/// Longest body of a request, bytes.
pub const BODY_BYTES_MAX: usize = 4 << 20;
/// Longest path of a request, bytes.
pub const PATH_BYTES_MAX: usize = 4096;

/// The services of one rollout.
#[async_trait]
pub trait Services: Send + Sync {
    /// Asks one. What it refuses is a response with a status of 400 or more. Errors: `Invalid` for a service that the task does not
    /// have, `Unavailable` where the session is over.
    async fn request(&self, request: ServiceRequest) -> Result<ServiceResponse, Failure>;
}

/// A request; the session is the rollout's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRequest {
    /// Of the service.
    pub name: String,
    /// Such as `GET`.
    pub method: String,
    /// From `/`, with the query if there is one.
    pub path: String,
    /// Bytes; empty for none.
    pub body: Vec<u8>,
}

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceResponse {
    /// Of HTTP.
    pub status: u16,
    /// Such as `application/json`.
    pub content_type: String,
    /// Bytes.
    pub body: Vec<u8>,
}

impl ServiceRequest {
    /// Whether every value is within its bounds.
    pub fn check(&self) -> Result<(), Failure> {
        let ServiceRequest { name: _, method, path, body } = self;
        if !path.starts_with('/')
            || path.len() > PATH_BYTES_MAX
            || !path.chars().all(|c| c.is_ascii_graphic())
        {
            let path: String = path.chars().take(200).collect();
            return Err(Failure::Invalid(format!(
                "path {path:?}: expected one from `/`, of at most {PATH_BYTES_MAX} visible ASCII letters"
            )));
        }
        if !["GET", "POST"].contains(&method.as_str()) {
            let method: String = method.chars().take(40).collect();
            return Err(Failure::Invalid(format!("method {method:?}: expected GET or POST")));
        }
        if body.len() > BODY_BYTES_MAX {
            return Err(Failure::Invalid(format!(
                "a body of {} bytes: expected {BODY_BYTES_MAX} at most",
                body.len()
            )));
        }
        Ok(())
    }
}
