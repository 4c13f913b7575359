//! The harness `miniwob-policies`: plays pages of MiniWoB++ by scripted policies, with the tools and the page description that a model gets.
//!
//! [`page`] reads the description, [`words`] what a task asks, [`player`] has what people do with pages, [`policies`] what is to be done on
//! which page. None of it reads more of a page than its description says, and none of it runs a script.

pub mod page;
pub mod player;
pub mod policies;
pub mod settings;
pub mod tools;
pub mod words;

#[cfg(target_arch = "wasm32")]
mod guest;
