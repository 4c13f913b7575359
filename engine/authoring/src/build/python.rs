//! Python, by componentize-py: a component with all of CPython.

mod world;

use super::{BuildError, Made, Tools, in_file};
use crate::project::Project;
use std::path::PathBuf;
use std::process::Command;

const COMPILER: &str = "componentize-py";
/// Virtual environments of a project.
const ENVIRONMENTS: [&str; 2] = [".venv", "venv"];
const REQUIREMENTS: &str = "requirements.txt";
const INSTALL: &str = "python3 -m venv .venv && .venv/bin/pip install -r requirements.txt";
/// The SDK's module that imports the author's file and has the classes of the exports.
const ENTRY: &str = "espalier_sdk.entry";

/// Compiles the project.
pub(super) fn make(project: &Project, tools: &mut Tools<'_>) -> Result<Made, BuildError> {
    let compiler = compiler(project, tools)?;
    let folder = super::scratch(project)?;
    let output = folder.path().join("componentize-py.wasm");
    let wit = folder.path().join("wit");
    world::write(&project.wit(), &project.manifest.kind.world(), &project.folder, &wit)
        .map_err(in_file(&project.wit()))?;
    let mut command = Command::new(compiler);
    command.args(["--quiet", "--wit-path"]).arg(&wit).args(["--world", world::NAME]);
    command.args(["componentize", ENTRY, "--python-path", ".", "--python-path", "sdk", "--output"]);
    command.arg(&output).env("RUST_BACKTRACE", "0");
    // Packages that the plugin imports are looked for here.
    if let Some(environment) = environments(project).next() {
        command.env("VIRTUAL_ENV", environment);
    }
    tools.run_code(&mut command).map_err(plainly)?;
    Ok(Made::Component(std::fs::read(&output).map_err(in_file(&output))?))
}

/// The project's virtual environments that are there.
fn environments(project: &Project) -> impl Iterator<Item = PathBuf> {
    ENVIRONMENTS.map(|name| project.folder.join(name)).into_iter().filter(|folder| folder.is_dir())
}

/// componentize-py of the project's environment, or else of PATH, in the version that the project pins.
fn compiler(project: &Project, tools: &mut Tools<'_>) -> Result<PathBuf, BuildError> {
    let pinned = pinned(&std::fs::read_to_string(project.folder.join(REQUIREMENTS)).unwrap_or_default());
    let wanted = pinned.as_deref().map_or_else(|| COMPILER.to_owned(), |pin| format!("{COMPILER} {pin}"));
    let missing = |what: String| BuildError::Missing { what, line: INSTALL.to_owned() };
    let found = environments(project)
        .map(|folder| folder.join("bin").join(COMPILER))
        .find(|file| file.is_file())
        .or_else(|| Tools::in_path(COMPILER))
        .ok_or_else(|| missing(format!("{wanted} (in .venv of the project, or in PATH)")))?;
    let said = tools.run(Command::new(&found).arg("--version"))?;
    let version = said.trim().trim_start_matches(COMPILER).trim();
    match pinned {
        Some(pin) if pin != version => Err(missing(format!("{wanted} ({} is {version})", found.display()))),
        _ => Ok(found),
    }
}

/// The version of componentize-py in a `requirements.txt`.
fn pinned(requirements: &str) -> Option<String> {
    requirements.lines().find_map(|line| {
        let version = line.split(['#', ';']).next()?.trim().strip_prefix(COMPILER)?.trim_start();
        Some(version.strip_prefix("==")?.trim().to_owned())
    })
}

/// An error without what componentize-py prints around the cause.
fn plainly(error: BuildError) -> BuildError {
    match error {
        BuildError::Failed { program, output } => BuildError::Failed { program, output: cause(&output) },
        other => other,
    }
}

/// What stands behind `Caused by:`, as the SDK or Python said it; the whole where there is no such thing.
fn cause(output: &str) -> String {
    let Some((_, cause)) = output.rsplit_once("Caused by:\n") else { return output.to_owned() };
    let lines: Vec<&str> = cause.lines().map(|line| line.strip_prefix("    ").unwrap_or(line)).collect();
    let text = lines.join("\n");
    text.strip_prefix("BuildError: ").unwrap_or(&text).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pinned_version_is_read_as_pip_reads_it() {
        for (requirements, version) in [
            ("componentize-py==0.25.1\n", Some("0.25.1")),
            ("# tools\nattrs==25.4.0\ncomponentize-py == 0.25.1  # CPython 3.14\n", Some("0.25.1")),
            ("componentize-py>=0.25\n", None),
            ("", None),
        ] {
            assert_eq!(pinned(requirements).as_deref(), version, "{requirements}");
        }
    }

    #[test]
    fn of_a_failed_build_the_cause_is_left() {
        let output = "Traceback (most recent call last):\n  File \"/x/bin/componentize-py\", line 8, in <module>\n\
                      AssertionError: printed\n\nCaused by:\n    BuildError: Traceback (most recent call last):\n      \
                      File \"plugin.py\", line 4, in parse\n        return 1 / 0\n    ZeroDivisionError: division by zero\n";
        let told = "Traceback (most recent call last):\n  File \"plugin.py\", line 4, in parse\n    return 1 / 0\n\
                    ZeroDivisionError: division by zero";
        assert_eq!(cause(output), told);
        assert_eq!(cause("no such world"), "no such world");
    }
}
