//! [`Problem`]: every answer that is not what was asked for, as RFC 9457 has it, with a hint.

use axum::response::{IntoResponse, Response};
use espalier_agent_client::{AgentError, Reason};
use espalier_core::cause::with_causes;
use espalier_sandbox::error::SandboxError;
use espalier_store::StoreError;
use http::{HeaderValue, StatusCode, header};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// As much of a detail as is kept and sent: a part of it may be a client's.
const DETAIL_BYTES_MAX: usize = 4096;

/// Which kind of problem; one HTTP status each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// The body is no JSON, or the request cannot be read.
    Malformed,
    /// No key, or one that opens nothing.
    Unauthenticated,
    /// The key lacks the scope.
    Forbidden,
    /// No such thing, for this key.
    NotFound,
    /// The path has no such method.
    MethodNotAllowed,
    /// Something that is there stands against it.
    Conflict,
    /// The id of the call was used for another call.
    IdReused,
    /// A patch does not apply.
    Patch,
    /// The shell has ended.
    ShellEnded,
    /// The record of this call is gone; it is not run again.
    Expired,
    /// The sandbox was there and is lost, or has ended.
    SandboxLost,
    /// The file is another than the one that was begun with.
    PreconditionFailed,
    /// A body beyond the bound.
    PayloadTooLarge,
    /// The body has another type than JSON.
    UnsupportedMediaType,
    /// Bytes beyond the end of the file.
    RangeNotSatisfiable,
    /// A value that cannot be.
    Invalid,
    /// The key holds as much as it may.
    QuotaExceeded,
    /// Too many requests, or too many at once.
    RateLimited,
    /// The file system of the sandbox says no.
    Denied,
    /// Its disk or quota is full.
    DiskFull,
    /// This machine, or this sandbox, cannot do it.
    Unsupported,
    /// Nothing listens on the port.
    NoListener,
    /// Infrastructure failed; the same request later may do.
    Unavailable,
    /// What was waited for is not there yet.
    NotReady,
    /// It took longer than its bound.
    Timeout,
    /// A defect of the service.
    Internal,
}

impl Code {
    /// The HTTP status.
    pub fn status(self) -> StatusCode {
        match self {
            Code::Malformed => StatusCode::BAD_REQUEST,
            Code::Unauthenticated => StatusCode::UNAUTHORIZED,
            Code::Forbidden | Code::Denied => StatusCode::FORBIDDEN,
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Code::Conflict | Code::IdReused | Code::Patch | Code::ShellEnded => StatusCode::CONFLICT,
            Code::Expired | Code::SandboxLost => StatusCode::GONE,
            Code::PreconditionFailed => StatusCode::PRECONDITION_FAILED,
            Code::PayloadTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Code::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Code::RangeNotSatisfiable => StatusCode::RANGE_NOT_SATISFIABLE,
            Code::Invalid | Code::Unsupported => StatusCode::UNPROCESSABLE_ENTITY,
            Code::QuotaExceeded | Code::RateLimited => StatusCode::TOO_MANY_REQUESTS,
            Code::DiskFull => StatusCode::INSUFFICIENT_STORAGE,
            Code::NoListener => StatusCode::BAD_GATEWAY,
            Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Code::NotReady => StatusCode::REQUEST_TIMEOUT,
            Code::Timeout => StatusCode::GATEWAY_TIMEOUT,
            Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Whether the same request may do later.
    pub fn retryable(self) -> bool {
        matches!(self, Code::RateLimited | Code::Unavailable | Code::NotReady | Code::Timeout)
    }

    /// As in the documents.
    pub fn word(self) -> String {
        serde_json::to_value(self).ok().and_then(|word| Some(word.as_str()?.to_owned())).unwrap_or_default()
    }
}

/// Why there is no other answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Problem {
    /// Which kind.
    pub code: Code,
    /// What happened, with the value and its place.
    pub detail: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// When to come again, in seconds.
    pub retry_after_s: Option<u64>,
}

/// A problem as it is sent, with `application/problem+json`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub struct Document<'a> {
    /// `urn:espalier:problem:` and the code.
    #[serde(rename = "type")]
    kind: String,
    /// Of the status.
    title: &'a str,
    /// The HTTP status.
    status: u16,
    /// Which kind of problem.
    code: Code,
    /// What happened.
    detail: &'a str,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    hint: Option<&'a str>,
    /// Whether the same request may do later.
    retryable: bool,
    /// As in the header `X-Request-Id`, and in the service's log.
    request_id: &'a str,
}

impl Problem {
    /// Without a hint.
    pub fn new(code: Code, detail: impl Into<String>) -> Problem {
        let mut detail = detail.into();
        if detail.len() > DETAIL_BYTES_MAX {
            detail.truncate(detail.floor_char_boundary(DETAIL_BYTES_MAX));
            detail.push_str("...");
            detail.shrink_to_fit();
        }
        Problem { code, detail, hint: None, retry_after_s: None }
    }

    /// With what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Problem {
        self.hint = Some(hint.into());
        self
    }

    /// With when to come again.
    #[must_use]
    pub fn retry_after(mut self, seconds: u64) -> Problem {
        self.retry_after_s = Some(seconds);
        self
    }

    /// Nothing of that name that this key could see.
    pub fn not_found(what: &str, name: &str) -> Problem {
        Problem::new(Code::NotFound, format!("no {what} {name:?}"))
            .hint(format!("list what there is; a {what} belongs to the key that made it"))
    }

    /// A value that cannot be.
    pub fn invalid(what: &str, value: impl std::fmt::Display, wanted: &str) -> Problem {
        Problem::new(Code::Invalid, format!("{what} is `{value}`, wanted is {wanted}"))
    }

    /// The document.
    pub fn document<'a>(&'a self, request_id: &'a str) -> Document<'a> {
        let status = self.code.status();
        Document {
            kind: format!("urn:espalier:problem:{}", self.code.word()),
            title: status.canonical_reason().unwrap_or("Problem"),
            status: status.as_u16(),
            code: self.code,
            detail: &self.detail,
            hint: self.hint.as_deref(),
            retryable: self.code.retryable(),
            request_id,
        }
    }

    /// The answer, for the request with this id.
    pub fn render(&self, request_id: &str) -> Response {
        let body = serde_json::to_vec(&self.document(request_id)).unwrap_or_default();
        let mut response = (self.code.status(), body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.code == Code::Unauthenticated {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

impl IntoResponse for Problem {
    /// Bare: who sends it knows the id of the request, and renders it.
    fn into_response(self) -> Response {
        let mut response = self.code.status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<SandboxError> for Problem {
    fn from(error: SandboxError) -> Problem {
        let detail = error.with_causes();
        match error {
            SandboxError::Invalid { .. } | SandboxError::Rejected(_) => Problem::new(Code::Invalid, detail),
            SandboxError::OutOfMemory { .. } => {
                Problem::new(Code::Invalid, detail).hint("ask for more `memory`")
            }
            SandboxError::Refused { .. } => Problem::new(Code::Unsupported, detail)
                .hint("`espalier doctor` says what this machine can do, and what it lacks"),
            SandboxError::Unavailable(_) | SandboxError::NoAgent { .. } | SandboxError::NoKeeper { .. } => {
                Problem::new(Code::Unavailable, detail).retry_after(1)
            }
            SandboxError::Lost(_) => Problem::new(Code::SandboxLost, detail),
        }
    }
}

impl From<AgentError> for Problem {
    fn from(error: AgentError) -> Problem {
        let detail = with_causes(&error);
        let AgentError::Refused { reason, .. } = error else {
            return match error {
                AgentError::Lost(_) => Problem::new(Code::SandboxLost, detail)
                    .hint("what ran in it is gone; create another, or fork a checkpoint"),
                AgentError::Protocol(_) => Problem::new(Code::Unavailable, detail).retry_after(1),
                _ => Problem::new(Code::Internal, detail),
            };
        };
        match reason {
            Reason::Expired => Problem::new(Code::Expired, detail)
                .hint("the call was seen before and its record is gone; it was not run again"),
            Reason::IdReused => Problem::new(Code::IdReused, detail)
                .hint("count up: each call that changes something has a counter of its own"),
            Reason::Bound => Problem::new(Code::RateLimited, detail)
                .retry_after(1)
                .hint("wait for commands to end, delete those that are needed no more, and send `floor`"),
            Reason::Invalid => Problem::new(Code::Invalid, detail),
            Reason::NotFound => Problem::new(Code::NotFound, detail),
            Reason::Denied => Problem::new(Code::Denied, detail),
            Reason::Kind => Problem::new(Code::Conflict, detail),
            Reason::DiskFull => {
                Problem::new(Code::DiskFull, detail).hint("remove files, or ask for more `disk`")
            }
            Reason::Patch => Problem::new(Code::Patch, detail).hint("nothing of the patch was applied"),
            Reason::ShellEnded => Problem::new(Code::ShellEnded, detail).hint("open another shell"),
            Reason::Ending => Problem::new(Code::SandboxLost, detail),
            Reason::Unsupported => Problem::new(Code::Unsupported, detail),
            Reason::Io => Problem::new(Code::Unavailable, detail),
            Reason::Unauthenticated | Reason::Version | Reason::Unspecified => {
                Problem::new(Code::Internal, detail)
            }
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Problem {
        tracing::error!(%error, "the store does not answer");
        Problem::new(Code::Unavailable, "the store does not answer").retry_after(1)
    }
}
