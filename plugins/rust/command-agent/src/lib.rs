//! The harness `command-agent`: starts any command-line agent inside the sandbox, waits for it, and says how it ended.
//!
//! What the agent asks its model goes from the sandbox straight to the endpoint that its `env` names: the engine sees none of
//! it, so such a rollout is scored and has no tokens that train. A proxy that records those calls takes its place in `env`;
//! nothing here would change.
//!
//! Reading order: [`settings`] (what an experiment says) -> [`ending`] (what the agent's end means) -> `guest`.

pub mod ending;
#[cfg(target_arch = "wasm32")]
mod guest;
pub mod settings;
