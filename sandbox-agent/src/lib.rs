//! The agent inside a sandbox.
