//! Projects of plugins as messages name them: paths as they are read from the current folder, and the command that builds one.

use espalier_authoring::Project;
use std::path::Path;

/// A path as it is read from the current folder.
pub(crate) fn shown(path: &Path) -> String {
    let here = std::env::current_dir().ok().and_then(|here| here.canonicalize().ok());
    let inside = here.as_deref().and_then(|here| path.strip_prefix(here).ok());
    inside.unwrap_or(path).display().to_string()
}

/// What builds a project, as it is typed in the current folder.
pub(crate) fn build_line(project: &Project) -> String {
    let here = std::env::current_dir().and_then(|here| here.canonicalize());
    if here.is_ok_and(|here| here.starts_with(&project.folder)) {
        return "run `espalier plugin build`".to_owned();
    }
    format!("run `espalier plugin build {}`", shown(&project.folder))
}

/// What to do where a file is named that is the component of a project, and is not there.
pub(crate) fn missing_component(file: &Path) -> Option<String> {
    let file = std::path::absolute(file).ok()?;
    let around = file.ancestors().skip(1).find(|folder| folder.is_dir())?;
    let project = Project::find(around).ok()?;
    let output = project.output();
    if output.file_name() == file.file_name() {
        return Some(build_line(&project));
    }
    Some(format!("the project around it builds {}", shown(&output)))
}
