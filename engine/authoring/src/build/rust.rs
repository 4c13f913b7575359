//! Rust, by cargo: a core module for `wasm32-unknown-unknown`, which imports no WASI.

use super::{BuildError, Made, Tools, in_file};
use crate::project::Project;
use std::path::Path;
use std::process::Command;

const TARGET: &str = "wasm32-unknown-unknown";

/// Compiles the project.
pub(super) fn make(project: &Project, tools: &mut Tools<'_>) -> Result<Made, BuildError> {
    if Tools::in_path("cargo").is_none() {
        return Err(BuildError::Missing {
            what: "cargo, of Rust's installer rustup (https://rustup.rs, or a package of the distribution)"
                .to_owned(),
            line: "apt-get install -y rustup && rustup default stable".to_owned(),
        });
    }
    let sysroot = tools.run(Command::new("rustc").args(["--print", "sysroot"]))?;
    let library = Path::new(sysroot.trim()).join("lib/rustlib").join(TARGET).join("lib");
    if !library.is_dir() {
        return Err(BuildError::Missing {
            what: format!("Rust's target {TARGET}"),
            line: format!("rustup target add {TARGET}"),
        });
    }
    let shared = std::env::var_os("CARGO_TARGET_DIR").filter(|folder| !folder.is_empty());
    let target = project.folder.join(shared.unwrap_or_else(|| "target".into()));
    let mut command = Command::new("cargo");
    command.args(["build", "--release", "--quiet", "--target", TARGET, "--target-dir"]).arg(&target);
    tools.run(&mut command)?;
    let file = format!("{}.wasm", project.manifest.name.replace('-', "_"));
    let module = target.join(TARGET).join("release").join(file);
    let module = std::fs::read(&module).map_err(in_file(&module))?;
    Ok(Made::Module { module, wasi: false })
}
