//! The recording proxy: what stands where an agent expects the API of a model vendor. An agent that is no plugin sends its whole history
//! as text with every call; here each call is found its place in a conversation of the rollout, so that what is sampled is recorded
//! token by token, within the rollout's budgets, like the answers that a harness asks for.
//!
//! [`RolloutProxy`] belongs to one attempt at a rollout and ends with it. Nothing here opens a port or samples: requests come from the proxy
//! of a sandbox, answers from [`espalier_core::host::Models`], which holds the ids. Text that was sampled is never tokenized again: what an
//! agent sends back as its model's answer is recognised, and means the answer that was recorded.
//!
//! Reading order: [`history`] (how a request stands to what was said) -> [`session`] (calls, retries, branches, bounds) -> [`wire`] (the APIs)
//! -> `stream` (answers as server-sent events).

pub mod history;
pub mod session;
mod stream;
pub mod wire;

pub use session::{ProxyOptions, RolloutProxy};

/// The body of an answer, whole or as it comes.
pub type Body = http_body_util::combinators::UnsyncBoxBody<bytes::Bytes, std::convert::Infallible>;
