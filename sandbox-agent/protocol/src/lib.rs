//! The wire between an engine and the agent inside a sandbox: messages and service of `proto/agent.proto`, and the names
//! and bounds that both sides share. Knows no transport and does nothing.

/// The messages and the service, generated from `proto/agent.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
pub mod v1 {
    include!("generated/espalier.agent.v1.rs");
}
