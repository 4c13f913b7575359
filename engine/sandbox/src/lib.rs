//! Sandboxes: where side effects happen. A backend makes them, an agent inside each carries out what is asked, images say
//! what is in them at first.
//!
//! Reading order: [`error`] -> [`backend`] -> [`local`].

pub mod backend;
pub mod error;
pub mod local;
mod random;
pub mod rollout;
pub mod service;

pub use espalier_keeper::wire::PROXY_PORT;
