//! The readers of test logs against others: PyPI's `swebench`, and what runners of several versions write themselves.

use crate::place::{cache, root, target};
use crate::setup::venv;
use crate::shell::{openly, quietly, say};
use crate::stamp::Stamp;
use std::path::PathBuf;
use std::process::Command;

/// Versions of pytest, with what runs beside them.
const PYTESTS: [(&str, &[&str]); 5] = [
    ("5.4.3", &["pytest==5.4.3", "pytest-xdist==1.34.0"]),
    ("6.2.5", &["pytest==6.2.5", "pytest-xdist==2.5.0"]),
    ("7.4.4", &["pytest==7.4.4", "pytest-xdist==3.5.0"]),
    ("8.4.2", &["pytest==8.4.2", "pytest-xdist==3.8.0", "django==5.2.9"]),
    ("9.2.0", &["pytest==9.2.0", "pytest-xdist==3.8.0", "django==4.2.27"]),
];

const REFEREE: &str = "graders-referee";

/// Makes SWE-bench's own package ready, without what it asks for.
pub fn referee() -> Result<(), String> {
    let packages = ["--no-deps", "swebench==5.0.2", "unidiff==0.7.5"];
    venv(REFEREE, "swebench, the referee", &packages).map(drop)
}

/// The Python that has it.
pub fn referee_python() -> PathBuf {
    cache().join(REFEREE).join("bin/python")
}

/// Makes logs by running tests, and compares.
pub fn test() -> Result<(), String> {
    referee()?;
    let mut pytests = Vec::new();
    for (version, packages) in PYTESTS {
        let folder = venv(&format!("graders-pytest-{version}"), &format!("pytest {version}"), packages)?;
        pytests.push(format!("{version}={}", folder.join("bin/python").display()));
    }
    let jest = jest()?;
    say("building the reader");
    let mut cargo = Command::new("cargo");
    cargo.current_dir(root().join("plugins/rust")).env("CARGO_TARGET_DIR", target());
    cargo.args([
        "build",
        "--locked",
        "--release",
        "--package",
        "espalier-test-logs",
        "--example",
        "read_logs",
    ]);
    openly(&mut cargo)?;
    say("running tests of every kind, and reading their logs (about 4 minutes)");
    let mut compare = Command::new(referee_python());
    compare.current_dir(root().join("tests/graders")).env("PYTHONDONTWRITEBYTECODE", "1");
    compare.arg("compare.py").arg("--reader").arg(target().join("release/examples/read_logs"));
    compare.args(pytests.iter().flat_map(|pair| ["--pytest", pair])).arg("--jest").arg(jest);
    openly(&mut compare)
}

/// Jest's program, for `node`.
fn jest() -> Result<PathBuf, String> {
    let pin = "jest@29.7.0";
    let folder = cache().join("graders-jest");
    let program = folder.join("node_modules/jest/bin/jest.js");
    Stamp::inside(&folder).text(pin).unless_done(std::slice::from_ref(&program), || {
        say("installing Jest (37 MB)");
        std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let npm = ["install", "--no-fund", "--no-audit", "--silent", pin];
        quietly(Command::new("npm").arg("--prefix").arg(&folder).args(npm)).map(drop)
    })?;
    Ok(program)
}
