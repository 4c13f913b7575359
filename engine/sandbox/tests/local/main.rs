//! The local backend with its real keeper and agent. As root: what an ordinary user has is in `user.rs`, by its own keeper.

mod attacks;
mod bounds;
mod checkpoints;
mod life;
mod network;
mod support;
mod user;
