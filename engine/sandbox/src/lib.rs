//! Sandboxes: where side effects happen. A backend makes them, an agent inside each carries out what is asked, images say
//! what is in them at first.

pub mod error;
pub mod image;
pub mod rollout;
