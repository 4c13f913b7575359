//! The one host of WebAssembly components: loading, limits, bindings, and the place where every import passes.
//!
//! Only this crate knows wasmtime. It maps WIT (`wit/`) onto the traits of [`espalier_core::host`], runs guests on
//! threads of their own, and says of each guest that failed what happened and where. It never decides what a failure
//! means for a rollout: that is [`espalier_core::ending`].
//!
//! Reading order: `host` (loading, and who runs where) -> `packages`, `inspect`, `cache`, `bounds` and `compiler` -> `engine` and `places` -> `guest` -> `gate` (where
//! every import passes) -> `imports` and `wasi` -> `job` -> `harness`, `environment`, `reward` -> `trap`.

mod bindings;
mod bounds;
mod cache;
mod cancel;
mod compiler;
mod convert;
mod cpu;
mod engine;
mod environment;
mod error;
mod gate;
mod generator;
mod guest;
mod harness;
mod host;
mod imports;
mod inspect;
mod job;
mod judge;
mod lines;
mod logs;
mod packages;
mod places;
mod plugin;
mod registry;
mod reward;
mod settings;
mod trap;
mod view;
mod wasi;
mod world;

pub use bounds::{Exceeded, bounds};
pub use cache::folder::{FolderError, check_own_folder, open_own_folder};
pub use cancel::CancelToken;
pub use compiler::{COMPILER_ARGUMENT, Compiler, CompilerProcess, compile_if_asked};
pub use environment::{EnvironmentHost, EnvironmentRun};
pub use error::{PluginError, SettingProblem, SettingsError, UnknownPlugin};
pub use generator::{ADAPT_EXPORT, GENERATE_EXPORT, GeneratorOutcome};
pub use harness::{EXPORT as HARNESS_EXPORT, HarnessOutcome};
pub use host::{PluginHost, PluginHostConfig};
pub use inspect::{Names, names_of};
pub use job::{Job, JobClock};
pub use judge::EXPORT as JUDGE_EXPORT;
pub use plugin::{Plugin, Start, digest_of};
pub use registry::{Entry, Registry};
pub use reward::{EXPORT as REWARD_EXPORT, GROUP_EXPORT as GROUP_REWARD_EXPORT, ScoreError, ScoreOutcome};
pub use world::World;
