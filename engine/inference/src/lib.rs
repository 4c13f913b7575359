//! Everything between a conversation and the server that samples its answers.
//!
//! An [`endpoint::Endpoint`] speaks one server's protocol over the [`client`]: token ids in, token ids and logprobs
//! out, each answer checked before anyone believes it. [`embedded`] runs a small model on this machine, so that an
//! experiment needs no server. No other crate names reqwest.
//!
//! Reading order: [`config`] -> [`error`] -> [`client`] -> [`endpoint`] -> [`embedded`];
//! [`weights`]; [`template`] -> [`tokenizer`] -> [`tools`] -> [`images`] -> [`models`] with `conversation.rs`.

pub mod client;
pub mod config;
mod conversation;
pub mod embedded;
pub mod endpoint;
pub mod error;
pub mod images;
pub mod models;
pub mod template;
pub mod tokenizer;
pub mod tools;
pub mod weights;
