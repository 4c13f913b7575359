//! The group reward `fault-group-reward`: misbehaves as its settings say, so that the host's answer to each fault can be tested.

#[cfg(target_arch = "wasm32")]
#[path = "../../fault-harness/src/faults.rs"]
mod faults;
#[cfg(target_arch = "wasm32")]
mod guest;
