//! The harness `command-agent`: starts any command-line agent inside the sandbox, waits for it, and says how it ended.
//!
//! What the agent asks its model goes from the sandbox to the endpoint that its `env` names. With `[sandbox] model` that is the engine's
//! recording proxy, by variables that every command gets, and what was sampled trains; else the engine sees none of it, and such a rollout
//! is scored and has no tokens.
//!
//! An agent that fails is told as a failure of its own kind: the engine, which may know what its model answered, says what that means.
//!
//! Reading order: [`settings`] (what an experiment says) -> [`ending`] (what the agent's end means) -> `guest`.

pub mod ending;
#[cfg(target_arch = "wasm32")]
mod guest;
pub mod settings;
