//! The browsers of rollouts: what [`espalier_core::host::browser`] asks for, over `espalier-browser`.
//!
//! Chromium runs in sandboxes, never beside the engine: as an unprivileged user, with Chromium's own sandbox on, with no network but the
//! sandbox's proxy, within the sandbox's memory, and ended with its lease. Its DevTools pipe is the standard input and output of a command
//! of the sandbox's agent ([`launcher`]). Rollouts that may reach the same share processes, each in a context of its own ([`run`]); a context
//! lives until the rollout is scored ([`rollout`]); a deterministic one has its network from an archive, or leaves one ([`episode`]). What tools do is `espalier_browser::agent`'s work ([`session`] maps it).

mod convert;
mod episode;
mod launcher;
mod rollout;
mod run;
mod session;

pub use convert::tools;
pub use episode::ARCHIVE;
pub use rollout::{RolloutBrowsers, TaskSandboxes};
pub use run::{RunBrowsers, RunBrowsersConfig, TryOutError};

/// The name that `browser = {...}` of a task stands for.
pub const MAIN: &str = "main";
