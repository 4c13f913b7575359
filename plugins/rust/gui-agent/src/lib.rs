//! The harness `gui-agent`: the model sees a browser, as pictures, as text, or both, and acts in it by tools.
//!
//! [`settings`] says what can be configured, [`dialogue`] holds the rules of the loop, [`observation`] is what the model is shown; the
//! glue only carries.

pub mod dialogue;
pub mod observation;
pub mod settings;

#[cfg(target_arch = "wasm32")]
mod guest;
