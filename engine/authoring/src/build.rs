//! `espalier plugin build`: the compiler of the project's language, then one way to a component for all of them.
//!
//! A language's module makes a core module or a component ([`Made`]); [`build`] turns it into `build/NAME.wasm`.

mod c;
mod go;
mod javascript;
mod python;
mod rust;
mod tools;

pub use tools::Tools;

use crate::component;
use crate::files::check_sources;
use crate::project::{Language, Project};
use espalier_core::line_tables::without_line_tables;
use std::path::{Path, PathBuf};

/// What a build left; line tables are beside the component, in `build/NAME.lines`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// The component.
    pub component: PathBuf,
}

/// What a language's compiler made.
pub enum Made {
    /// A component.
    Component(Vec<u8>),
    /// A core module whose custom sections name its world.
    Module {
        /// The module.
        module: Vec<u8>,
        /// Whether it imports WASI's first preview, which a small adapter answers inside of the component.
        wasi: bool,
    },
}

/// Why there is no component.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A program or a package is not on this machine.
    #[error("{what} is missing")]
    Missing {
        /// What was looked for, and where.
        what: String,
        /// The line that installs it.
        line: String,
    },
    /// A file of the project cannot be built from, or to.
    #[error("{}: {reason}", path.display())]
    Source {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A compiler refused the source.
    #[error("{program} failed:\n{output}")]
    Failed {
        /// Its name.
        program: String,
        /// What it printed, whole.
        output: String,
    },
    /// It did not end.
    #[error("{program} did not end within {seconds} s")]
    Slow {
        /// Its name.
        program: String,
        /// The bound.
        seconds: u64,
        /// Whether it runs the author's code outside of functions.
        runs_code: bool,
    },
    /// What the compiler made is not a plugin.
    #[error("{reason}")]
    Component {
        /// Why.
        reason: String,
    },
    /// A file cannot be read or written.
    #[error("{}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// Builds a project. What is installed on the way is told to `say`.
pub fn build(project: &Project, say: &mut dyn FnMut(&str)) -> Result<Built, BuildError> {
    check_sources(&project.folder)?;
    let output = project.output();
    if output.is_dir() {
        return Err(BuildError::Source { path: output, reason: "it is a folder; remove it".to_owned() });
    }
    let folder = project.build_folder();
    std::fs::create_dir_all(&folder).map_err(in_file(&folder))?;
    let mut tools = Tools::new(&project.folder, say);
    let made = match project.manifest.language {
        Language::Rust => rust::make(project, &mut tools)?,
        Language::JavaScript | Language::TypeScript => javascript::make(project, &mut tools)?,
        Language::Python => python::make(project, &mut tools)?,
        Language::Go => go::make(project, &mut tools)?,
        Language::C => c::make(project, &mut tools)?,
    };
    let component = match made {
        Made::Component(bytes) => bytes,
        Made::Module { module, wasi } => component::encode(&module, wasi, project.manifest.kind)?,
    };
    let lines = output.with_extension("lines");
    let without_lines = without_line_tables(&component)
        .ok_or_else(|| BuildError::Component { reason: "the compiler's component is damaged".to_owned() })?;
    if without_lines == component {
        // Those of an earlier build belong to another component.
        let _ = std::fs::remove_file(&lines);
    } else {
        replace(&lines, &component)?;
    }
    replace(&output, &without_lines)?;
    Ok(Built { component: output })
}

/// Writes a file that another process may have mapped.
fn replace(path: &Path, bytes: &[u8]) -> Result<(), BuildError> {
    let beside = path.with_extension(format!("new-{}", std::process::id()));
    std::fs::write(&beside, bytes).and_then(|()| std::fs::rename(&beside, path)).map_err(in_file(path))
}

/// A folder for what one build makes on the way, since two may run at once; it is removed with its value.
fn scratch(project: &Project) -> Result<tempfile::TempDir, BuildError> {
    let folder = project.build_folder();
    tempfile::Builder::new().prefix(".build-").tempdir_in(&folder).map_err(in_file(&folder))
}

fn in_file(path: &Path) -> impl Fn(std::io::Error) -> BuildError {
    let path = path.to_owned();
    move |source| BuildError::File { path: path.clone(), source }
}
