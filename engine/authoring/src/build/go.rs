//! Go, by its own toolchain: a core module for WASI's first preview, which the adapter answers.

mod data;

use super::{BuildError, Made, Tools, in_file};
use crate::component;
use crate::project::Project;
use std::process::Command;

/// Versions of Go before 1.24 cannot export functions of a module; the SDK's `go.mod` asks for this one.
const VERSION: (u32, u32) = (1, 26);
/// A release of it, for who has none.
const RELEASE: &str = "1.26.8";

/// Compiles the project.
pub(super) fn make(project: &Project, tools: &mut Tools<'_>) -> Result<Made, BuildError> {
    let missing = |what: String| BuildError::Missing { what, line: install(std::env::consts::ARCH) };
    if Tools::in_path("go").is_none() {
        return Err(missing("the program go".to_owned()));
    }
    let version = tools.run(Command::new("go").args(["env", "GOVERSION"]))?;
    if !is_new_enough(version.trim()) {
        return Err(missing(format!("Go {}.{} (this is {})", VERSION.0, VERSION.1, version.trim())));
    }
    // Copies of the author's files, with a call in each loop that tells the engine where the plugin is.
    let folder = super::scratch(project)?;
    let loops = folder.path().join("loops");
    tools.run(
        Command::new("go")
            .args(["run", "espalier/sdk/cmd/loops"])
            .arg(&loops)
            .env_remove("GOOS")
            .env_remove("GOARCH"),
    )?;
    let output = folder.path().join("module.wasm");
    let mut command = Command::new("go");
    command
        .args(["build", "-trimpath", "-buildvcs=false", "-buildmode=c-shared", "-ldflags=-checklinkname=0"])
        .arg("-overlay")
        .arg(loops.join("overlay.json"))
        .arg("-o")
        .arg(&output)
        .arg(".")
        .env("GOOS", "wasip1")
        .env("GOARCH", "wasm");
    tools.run(&mut command)?;
    let mut module = data::join(&std::fs::read(&output).map_err(in_file(&output))?);
    component::embed(&mut module, &project.folder.join("sdk/wit"), &project.manifest.kind.world())?;
    Ok(Made::Module { module, wasi: true })
}

/// The line that installs Go into the user's own folder, on a processor that Rust calls so.
fn install(processor: &str) -> String {
    let processor = match processor {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!(
        "mkdir -p ~/.local && curl -fsSL https://go.dev/dl/go{RELEASE}.linux-{processor}.tar.gz | tar -xz -C ~/.local \
         && export PATH=~/.local/go/bin:$PATH"
    )
}

/// `go1.26.8` and newer ones, and versions that are none, which their builders know best.
fn is_new_enough(version: &str) -> bool {
    let Some(numbers) = version.strip_prefix("go") else { return true };
    let mut numbers = numbers.split(|letter: char| !letter.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= VERSION,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::{RELEASE, install, is_new_enough};

    #[test]
    fn the_release_that_is_offered_is_new_enough() {
        assert!(is_new_enough(&format!("go{RELEASE}")));
        assert!(install("x86_64").contains("/go1.26.8.linux-amd64.tar.gz "));
    }

    #[test]
    fn versions_of_go_are_compared() {
        for (version, enough) in
            [("go1.26.8", true), ("go1.27rc1", true), ("go2.0", true), ("go1.25.3", false), ("devel", true)]
        {
            assert_eq!(is_new_enough(version), enough, "{version}");
        }
    }
}
