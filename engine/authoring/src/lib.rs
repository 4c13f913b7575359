//! Projects of plugins: what `plugin.toml` says, new projects out of templates, and building a component in each language. Runs
//! compilers as processes and writes files; knows neither the host of plugins nor any other crate of the engine.

pub mod build;
pub mod component;
mod files;
pub mod project;
pub mod template;

pub use build::{BuildError, Built};
pub use project::{Kind, Language, Project, ProjectError};
pub use template::{New, NewError, Sources};
