//! JavaScript and TypeScript, by the SDK's own `build.mjs`: esbuild bundles, componentize-qjs makes the component.

use super::{BuildError, Made, Tools, in_file};
use crate::project::Project;
use std::path::Path;
use std::process::Command;

/// What the build needs of the project's `node_modules`; `package.json` of the templates pins it.
const PACKAGES: [&str; 3] = ["esbuild", "acorn", "componentize-qjs"];

/// Compiles the project.
pub(super) fn make(project: &Project, tools: &mut Tools<'_>) -> Result<Made, BuildError> {
    if Tools::in_path("node").is_none() {
        return Err(BuildError::Missing {
            what: "node, version 20 or later,".to_owned(),
            line: "install Node.js (Debian: apt-get install nodejs npm; else https://nodejs.org)".to_owned(),
        });
    }
    let script = ["sdk/build.mjs", "node_modules/espalier-sdk/build.mjs"]
        .into_iter()
        .map(|path| project.folder.join(path))
        .find(|path| path.is_file())
        .ok_or_else(|| BuildError::Missing {
            what: "the SDK, sdk/build.mjs,".to_owned(),
            line: format!("copy the folder `sdk` of a new project: {}", new_project(project)),
        })?;
    if let Some(package) = missing(&project.folder) {
        install(package, tools)?;
    }
    let folder = project.build_folder();
    let made = tempfile::tempdir_in(&folder).map_err(in_file(&folder))?;
    let output = made.path().join("component.wasm");
    let mut command = Command::new("node");
    command
        .arg(script)
        .args(["--kind", project.manifest.kind.as_str(), "--entry"])
        .arg(Tools::argument(&project.entry()));
    command.arg("--out").arg(&output).arg("--wit").arg(project.wit());
    tools.run_code(&mut command)?;
    Ok(Made::Component(std::fs::read(&output).map_err(in_file(&output))?))
}

/// Installs what `package.json` pins.
fn install(package: &str, tools: &mut Tools<'_>) -> Result<(), BuildError> {
    if Tools::in_path("npm").is_none() {
        return Err(BuildError::Missing {
            what: format!("npm, which installs {package},"),
            line: "apt-get install npm (Debian; else with Node.js from https://nodejs.org)".to_owned(),
        });
    }
    tools.say(&format!("{package} is not installed yet: npm install, 50 to 80 MB"));
    let mut command = Command::new("npm");
    command.args(["install", "--no-audit", "--no-fund", "--loglevel=error"]);
    tools.run(&mut command).map(drop)
}

/// The first package that is neither in the project nor in a folder above it, where Node.js looks too.
fn missing(folder: &Path) -> Option<&'static str> {
    let is_in = |folder: &Path, package: &str| {
        folder.join("node_modules").join(package).join("package.json").is_file()
    };
    PACKAGES.into_iter().find(|package| !folder.ancestors().any(|folder| is_in(folder, package)))
}

fn new_project(project: &Project) -> String {
    let (kind, language) = (project.manifest.kind.as_str(), project.manifest.language.as_str());
    format!("espalier plugin new other --kind {kind} --lang {language}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_of_a_folder_above_is_found() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let project = folder.path().join("plugins/one");
        std::fs::create_dir_all(&project).expect("a folder");
        assert_eq!(missing(&project), Some("esbuild"));
        let places = [("esbuild", folder.path()), ("acorn", &project), ("componentize-qjs", &project)];
        for (package, place) in places {
            let package = place.join("node_modules").join(package);
            std::fs::create_dir_all(&package).expect("a folder");
            std::fs::write(package.join("package.json"), "{}").expect("a file");
        }
        assert_eq!(missing(&project), None);
    }
}
