//! The harness `bash-agent`: the model gives shell commands, sees what they print, and submits by a command of its own. The
//! loop of mini-swe-agent, in a sandbox of the rollout.
//!
//! [`settings`] says what can be configured, [`answer`] finds the commands of an answer, [`screen`] is what the model sees of a
//! command, [`dialogue`] holds the rules of the loop; the glue only carries.

pub mod answer;
pub mod dialogue;
pub mod screen;
pub mod settings;

#[cfg(target_arch = "wasm32")]
mod guest;
