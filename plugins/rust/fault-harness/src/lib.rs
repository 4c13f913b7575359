//! The harness `fault-harness`: misbehaves as its settings say, so that the host's answer to each fault can be tested.

#[cfg(target_arch = "wasm32")]
mod faults;
#[cfg(target_arch = "wasm32")]
mod guest;
#[cfg(target_arch = "wasm32")]
mod sandbox;
