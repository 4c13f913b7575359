//! Cases of plugins: a small file says what a plugin is given (a task, answers of a model, an environment, sandboxes,
//! browsers, a finished rollout) and what it must do with that. The plugin runs in this process, in the real host, with scripted capabilities behind it.
//!
//! [`case`] is the file; [`script`] the capabilities, which refuse whatever the case does not provide; [`recorded`] plays the calls of
//! a rollout instead; [`run`] puts a case and a plugin together; [`compare`] says what differs. Reads case files, writes nothing,
//! prints nothing.

pub mod case;
mod compare;
mod file;
mod picture;
mod recorded;
pub mod report;
mod run;
mod script;
mod view;

pub use case::{Case, CaseError, cases_in};
pub use report::{CaseReport, Change, DiffLine, Problem, Report};
pub use run::run_cases;
