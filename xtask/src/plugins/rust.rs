//! The Rust guests: one workspace, one build, by rustup's toolchain where it has a WebAssembly target, else by Debian's.

use crate::place;
use crate::shell::{quietly, say};
use crate::stamp::Stamp;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The linker that makes a component of a core module.
const COMPONENT_LINKER: &str = "wasm-component-ld";

/// A compiler that can build guests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Toolchain {
    /// rustup's, with the target `wasm32-unknown-unknown`; its folder of host tools.
    Rustup(PathBuf),
    /// rustup's, with the target `wasm32-wasip2` alone: guests then import WASI, which the host answers virtually.
    RustupWasi,
    /// Debian's packages, which bring the source of `std` and none of it built.
    Debian,
}

impl Toolchain {
    /// What rustup has installed, if it serves.
    pub fn of_rustup() -> Option<Toolchain> {
        let sysroot = quietly(Command::new("rustc").args(["--print", "sysroot"])).ok()?;
        let rustlib = PathBuf::from(sysroot.trim()).join("lib/rustlib");
        let tools = rustlib.join("x86_64-unknown-linux-gnu/bin");
        if rustlib.join("wasm32-unknown-unknown/lib").is_dir() && tools.join(COMPONENT_LINKER).is_file() {
            return Some(Toolchain::Rustup(tools));
        }
        rustlib.join("wasm32-wasip2/lib").is_dir().then_some(Toolchain::RustupWasi)
    }

    /// The target's name.
    fn target(&self) -> &'static str {
        match self {
            Toolchain::Rustup(_) | Toolchain::Debian => "wasm32-unknown-unknown",
            Toolchain::RustupWasi => "wasm32-wasip2",
        }
    }

    /// `cargo build` for the target, less the packages.
    fn cargo(&self) -> Command {
        let component = |linker: PathBuf, wasm_ld: &str| {
            let flags = format!("-Clink-arg=--wasm-ld-path={wasm_ld} -Clink-arg=--wasi-adapter=none");
            [
                ("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker.display().to_string()),
                ("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS", flags),
            ]
        };
        let mut command = match self {
            Toolchain::Rustup(tools) => {
                let mut command = Command::new("cargo");
                let wasm_ld = tools.join("gcc-ld/wasm-ld").display().to_string();
                command.envs(component(tools.join(COMPONENT_LINKER), &wasm_ld));
                command
            }
            Toolchain::RustupWasi => Command::new("cargo"),
            Toolchain::Debian => {
                let mut command = Command::new("/usr/bin/cargo");
                let tools = Path::new("/usr/lib/rustlib/x86_64-unknown-linux-gnu/bin");
                command.envs(component(tools.join(COMPONENT_LINKER), "/usr/bin/wasm-ld-19"));
                // The package's compiler is a release, and its source of `std` is to be built by it all the same.
                command.env("RUSTC", "/usr/bin/rustc").env("RUSTC_BOOTSTRAP", "1");
                command.env_remove("RUSTUP_TOOLCHAIN").env_remove("RUSTC_WRAPPER").env_remove("CARGO");
                command.arg("-Zbuild-std=std,panic_abort");
                command
            }
        };
        command.current_dir(workspace()).args(["build", "--release", "--locked", "--quiet"]);
        command.args(["--target", self.target()]).env("CARGO_TARGET_DIR", place::guest_target());
        command.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS").env_remove("CARGO_INCREMENTAL");
        command
    }
}

fn workspace() -> PathBuf {
    place::root().join("plugins/rust")
}

/// The plugins among the crates: those that make a library for linking from outside. Named as in `plugins/dist`.
pub fn crates() -> Result<Vec<String>, String> {
    let folder = workspace();
    let entries = std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut names: Vec<String> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            std::fs::read_to_string(path.join("Cargo.toml")).is_ok_and(|text| text.contains("cdylib"))
        })
        .map(|path| path.file_name().unwrap_or_default().to_string_lossy().into_owned())
        .collect();
    names.sort();
    Ok(names)
}

/// Builds those of these plugins that have changed, in one go.
pub fn build(names: &[String], dist: &Path) -> Result<(), String> {
    let toolchain = Toolchain::of_rustup().unwrap_or(Toolchain::Debian);
    let inputs = Stamp::here("plugins-rust")
        .text(&format!("{toolchain:?}"))
        .path(&place::root().join("wit"))
        .path(&workspace());
    // A stamp for each: what one command has built is done for the next, whichever plugins either of them names.
    let stamp = |name: &str| inputs.named(&format!("plugin-{name}"));
    let output = |name: &str| dist.join(format!("{name}.wasm"));
    let stale: Vec<&String> = names.iter().filter(|name| !stamp(name).is_done(&[output(name)])).collect();
    if stale.is_empty() {
        return Ok(());
    }
    let shown = stale.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
    say(&format!("building Rust plugins: {shown} (the first time also std, 3 minutes)"));
    let mut command = toolchain.cargo();
    for name in &stale {
        command.args(["--package", &package_of(name)?]);
    }
    quietly(&mut command)?;
    let built = place::guest_target().join(toolchain.target()).join("release");
    for name in stale {
        let file = built.join(format!("{}.wasm", package_of(name)?.replace('-', "_")));
        // Another process may have the old file mapped: a new one takes its place.
        let output = output(name);
        let beside = output.with_extension("wasm.new");
        std::fs::copy(&file, &beside)
            .and_then(|_| std::fs::rename(&beside, &output))
            .map_err(|error| format!("{}: {error}", file.display()))?;
        stamp(name).done()?;
    }
    Ok(())
}

/// The package's name of a plugin's folder.
fn package_of(folder: &str) -> Result<String, String> {
    let manifest = workspace().join(folder).join("Cargo.toml");
    let text =
        std::fs::read_to_string(&manifest).map_err(|error| format!("{}: {error}", manifest.display()))?;
    let name = text.lines().find_map(|line| line.strip_prefix("name = ")).map(|name| name.trim_matches('"'));
    name.map(str::to_owned).ok_or_else(|| format!("{}: no line `name = \"...\"`", manifest.display()))
}
