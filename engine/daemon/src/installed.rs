//! What lies beside the installed program. A wheel, the tarball and the OCI image have one layout below their prefix:
//!
//! ```text
//! bin/espalier  bin/espalier-keeper        programs
//! lib/espalier/espalier-agent              runs inside sandboxes
//! lib/espalier/plugins/*.wasm              the standard plugins
//! lib/espalier/tasks/*.jsonl               task files that `espalier init` copies
//! lib/espalier/wit                         the interfaces of plugins, for those who write one
//! lib/espalier/templates                   what `espalier plugin new` writes
//! lib/espalier/sdk/LANGUAGE                the SDKs that it copies beside it
//! ```
//!
//! One folder for all of it, with a file of its own: so pip leaves none behind, not even an empty one.
//!
//! `make build` links the same below its target folder, so that a built program finds them as well.

use espalier_authoring::Sources;
use std::path::{Path, PathBuf};

/// The folder of the standard plugins, where there is one.
pub(crate) fn plugins() -> Option<PathBuf> {
    library("plugins").filter(|folder| folder.is_dir())
}

/// Where a task file belongs, whether it is there or not.
pub(crate) fn task_file(name: &str) -> Option<PathBuf> {
    library("tasks").map(|folder| folder.join(name))
}

/// What new projects are made of.
pub(crate) fn sources() -> Option<Sources> {
    Some(Sources { templates: library("templates")?, sdks: library("sdk")?, wit: library("wit")? })
}

fn library(folder: &str) -> Option<PathBuf> {
    // Where /proc is not mounted: the file that it was called by.
    let called = || std::fs::canonicalize(std::env::args_os().next()?).ok();
    let program = std::env::current_exe().ok().or_else(called)?;
    Some(library_of(&program)?.join(folder))
}

/// The library folder that belongs to `PREFIX/bin/PROGRAM`.
fn library_of(program: &Path) -> Option<PathBuf> {
    Some(program.parent()?.parent()?.join("lib/espalier"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_a_program_lies_below_its_prefix() {
        let library = |program: &str| library_of(Path::new(program));
        assert_eq!(library("/opt/venv/bin/espalier"), Some(PathBuf::from("/opt/venv/lib/espalier")));
        assert_eq!(library("/bin/espalier"), Some(PathBuf::from("/lib/espalier")));
        assert_eq!(library("/espalier"), None);
    }
}
