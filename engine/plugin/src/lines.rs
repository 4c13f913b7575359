//! The line tables of a component, kept in a file beside it ([`espalier_core::line_tables`]).

use crate::bounds;
use espalier_core::line_tables::without_line_tables;
use std::path::{Path, PathBuf};

/// Where the line tables of a component's file are, if there are any: `NAME.lines` beside `NAME.wasm`.
pub(crate) fn beside(component: &Path) -> Option<PathBuf> {
    Some(component.with_extension("lines")).filter(|file| file != component && file.is_file())
}

/// The component with its line tables, for the compiler. `None`, which is told: the file belongs to another build.
pub(crate) fn read(file: &Path, component: &[u8]) -> Option<Vec<u8>> {
    let reason = match bounds::read_component(file) {
        Ok(Ok(with_lines)) => {
            if without_line_tables(&with_lines).is_some_and(|without| without == component) {
                return Some(with_lines);
            }
            "it belongs to another build of the component".to_owned()
        }
        Ok(Err(exceeded)) => exceeded.to_string(),
        Err(error) => error.to_string(),
    };
    tracing::warn!(path = %file.display(), reason, "line tables are not used: traps do not name source lines");
    None
}
