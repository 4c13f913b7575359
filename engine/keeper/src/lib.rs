//! The keeper: a small program of its own, `espalier-keeper`, that makes the sandboxes of a machine and removes what they leave. It
//! runs as root where there is one, and knows nothing of the engine. Engines share with it what both say to each other: [`wire`],
//! as [`frame`] carries it.

pub mod frame;
mod keeper;
pub mod wire;

pub use keeper::{main, receive};
