//! The recipe of the language.

use super::{BuildError, Made, Tools};
use crate::project::Project;

/// Compiles the project.
pub(super) fn make(_project: &Project, _tools: &mut Tools<'_>) -> Result<Made, BuildError> {
    Err(BuildError::Missing { what: "the recipe".to_owned(), line: String::new() })
}
