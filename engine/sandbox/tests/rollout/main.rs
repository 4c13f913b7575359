//! The sandboxes of a rollout against the real agent, run beside the test on a folder of its own.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

mod commands;
mod files;
mod lost;
mod processes;
mod support;
