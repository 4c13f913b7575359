//! Tests of the SDKs by their languages' own tools. The Rust SDK's are among the guests', C's are cases of a project.

use crate::place;
use crate::setup;
use crate::shell::{quietly, say};
use crate::stamp::Stamp;
use crate::suite::Program;
use std::path::Path;
use std::process::Command;

/// What there is to run; JavaScript's development packages are installed first. Without Go in PATH its tests are left out, which is
/// said by the set-up.
pub fn tests(python: &Path) -> Result<Vec<Program>, String> {
    let mut programs = vec![of_python(python), of_javascript()?];
    if setup::has_go() {
        programs.push(of_go());
    }
    Ok(programs)
}

fn of_python(python: &Path) -> Program {
    let mut command = Command::new(python);
    command.current_dir(place::root().join("plugins/python/sdk")).env("PYTHONDONTWRITEBYTECODE", "1");
    command.args(["-m", "pytest", "-p", "no:cacheprovider"]);
    Program { name: "plugins/python/sdk".to_owned(), command }
}

fn of_javascript() -> Result<Program, String> {
    let folder = place::root().join("plugins/javascript");
    let packages = folder.join("node_modules/typescript");
    let manifest = Stamp::here("javascript-sdk").path(&folder.join("package.json"));
    manifest.unless_done(&[packages], || {
        say("installing what the tests of the JavaScript SDK need (80 MB)");
        // Without a lock file: npm would write into it where packages come from.
        let npm = ["install", "--no-fund", "--no-audit", "--silent", "--no-package-lock"];
        quietly(Command::new("npm").current_dir(&folder).args(npm)).map(drop)
    })?;
    let mut command = Command::new("node");
    command.current_dir(&folder).args([
        "--import",
        "./sdk/testing.mjs",
        "--test",
        "--test-reporter=tap",
        "tests/",
    ]);
    Ok(Program { name: "plugins/javascript/sdk".to_owned(), command })
}

fn of_go() -> Program {
    let mut command = Command::new("go");
    command.current_dir(place::root().join("plugins/go/sdk")).args(["test", "-v", "./..."]);
    Program { name: "plugins/go/sdk".to_owned(), command }
}
