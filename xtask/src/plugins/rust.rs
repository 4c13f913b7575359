//! The Rust guests: one workspace, one build, by the one toolchain that `rust-toolchain.toml` names. The same source is the same
//! component on every machine: a plugin is known by its digest.

use super::kept::Kept;
use crate::place;
use crate::shell::{quietly, say};
use crate::stamp::Stamp;
use espalier_core::line_tables::without_line_tables;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What guests are built for: without WASI, which they do not need.
const TARGET: &str = "wasm32-unknown-unknown";

/// Settings of cargo for line tables: a plugin's own, and those of `std`, which are ten times their size.
const LINE_TABLES: [&str; 4] =
    ["--config", "profile.release.debug='line-tables-only'", "--config", "profile.release.strip='none'"];

/// The compiler that builds guests.
struct Toolchain {
    /// Library folder of rustc: `<sysroot>/lib/rustlib`.
    rustlib: PathBuf,
    /// `1.95.0`.
    version: String,
    /// Commit of the compiler's own source, which stands in paths of `std`.
    commit: String,
}

impl Toolchain {
    /// The pinned one, with the target, which rustup is asked for where it is missing.
    ///
    /// Any other compiler is refused: its components would have other digests.
    fn find() -> Result<Toolchain, String> {
        let pinned = pinned_version()?;
        let rustc =
            |arguments: &[&str]| quietly(Command::new("rustc").current_dir(workspace()).args(arguments));
        let told = rustc(&["-vV"])?;
        let field =
            |name: &str| told.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().to_owned();
        let version = field("release: ");
        if version != pinned {
            return Err(format!(
                "the Rust plugins are built by Rust {pinned}, and `rustc` here is {version}\n\
                 hint: install rustup, which reads rust-toolchain.toml, or run: rustup toolchain install {pinned}"
            ));
        }
        let rustlib = PathBuf::from(rustc(&["--print", "sysroot"])?.trim()).join("lib/rustlib");
        if !rustlib.join(TARGET).join("lib").is_dir() {
            say(&format!("installing Rust's target {TARGET}"));
            let mut rustup = Command::new("rustup");
            quietly(rustup.current_dir(workspace()).args(["target", "add", TARGET])).map_err(|error| {
                format!("the Rust plugins need the target {TARGET}\nhint: run: rustup target add {TARGET}\n{error}")
            })?;
        }
        Ok(Toolchain { rustlib, version, commit: field("commit-hash: ") })
    }

    /// `cargo build` for the target, less the packages. No path of this machine gets into a component.
    fn cargo(&self) -> Result<Command, String> {
        let host = quietly(Command::new("rustc").args(["--print", "host-tuple"]))?;
        let tools = self.rustlib.join(host.trim()).join("bin");
        let linkers = tools.join("gcc-ld").display().to_string();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut flags = vec!["-Clink-arg=--wasi-adapter=none".to_owned()];
        let mut remap =
            |from: &Path, to: &str| flags.push(format!("--remap-path-prefix={}={to}", from.display()));
        for sources in registries() {
            remap(&sources, "/crates");
        }
        remap(&place::root(), "/espalier");
        remap(&self.rustlib.join("src/rust"), &format!("/rustc/{}", self.commit));

        let mut command = Command::new("cargo");
        command.current_dir(workspace()).args([
            "build",
            "--release",
            "--locked",
            "--quiet",
            "--target",
            TARGET,
        ]);
        command.env("CARGO_TARGET_DIR", place::guest_target()).env("PATH", format!("{linkers}:{path}"));
        command.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", tools.join("wasm-component-ld"));
        command.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
        command.env_remove("RUSTFLAGS").env_remove("CARGO_INCREMENTAL").env_remove("RUSTC_WRAPPER");
        Ok(command)
    }
}

/// The version that `rust-toolchain.toml` names.
fn pinned_version() -> Result<String, String> {
    let file = place::root().join("rust-toolchain.toml");
    let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let version = text.lines().find_map(|line| line.strip_prefix("channel = "));
    version
        .map(|version| version.trim_matches('"').to_owned())
        .ok_or_else(|| format!("{}: no line `channel = \"...\"`", file.display()))
}

/// Where cargo keeps the source of crates: a folder for each registry.
fn registries() -> Vec<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cargo"),
        PathBuf::from,
    );
    let entries = std::fs::read_dir(home.join("registry/src")).into_iter().flatten();
    let mut folders: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    folders.sort();
    folders
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
    let toolchain = Toolchain::find()?;
    let inputs = Stamp::here("plugins-rust")
        .text(&toolchain.version)
        .path(&place::root().join("xtask/src/plugins"))
        .path(&place::root().join("wit"))
        .path(&workspace());
    // A stamp for each: what one command has built is done for the next, whichever plugins either of them names.
    let stamp = |name: &str| inputs.named(&format!("plugin-{name}"));
    let output = |name: &str| dist.join(format!("{name}.wasm"));
    let mut stale = Vec::new();
    let lines = |name: &str| output(name).with_extension("lines");
    for name in names.iter().filter(|name| !stamp(name).is_done(&[output(name), lines(name)])) {
        if Kept::of(&stamp(name), name).take(&lines(name))? {
            split(&lines(name), &output(name))?;
            stamp(name).done()?;
        } else {
            stale.push(name);
        }
    }
    if stale.is_empty() {
        return Ok(());
    }
    let shown = stale.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
    say(&format!("building Rust plugins: {shown}"));
    // Their source is there before the compiler is told what to call the folders.
    quietly(Command::new("cargo").current_dir(workspace()).args(["fetch", "--locked", "--quiet"]))?;
    let mut command = toolchain.cargo()?;
    command.args(LINE_TABLES);
    for name in &stale {
        command.args(["--package", &package_of(name)?]);
    }
    quietly(&mut command)?;
    let built = place::guest_target().join(TARGET).join("release");
    for name in stale {
        let file = built.join(format!("{}.wasm", package_of(name)?.replace('-', "_")));
        super::replace(&file, &lines(name))?;
        split(&lines(name), &output(name))?;
        Kept::of(&stamp(name), name).keep(&lines(name))?;
        stamp(name).done()?;
    }
    Ok(())
}

/// Makes the component of one with line tables, which stays beside it.
fn split(with_lines: &Path, output: &Path) -> Result<(), String> {
    let bytes = std::fs::read(with_lines).map_err(|error| format!("{}: {error}", with_lines.display()))?;
    let component =
        without_line_tables(&bytes).ok_or_else(|| format!("{}: not a component", with_lines.display()))?;
    super::put(output, |beside| std::fs::write(beside, &component))
}

/// The package's name of a plugin's folder.
fn package_of(folder: &str) -> Result<String, String> {
    let manifest = workspace().join(folder).join("Cargo.toml");
    let text =
        std::fs::read_to_string(&manifest).map_err(|error| format!("{}: {error}", manifest.display()))?;
    let name = text.lines().find_map(|line| line.strip_prefix("name = ")).map(|name| name.trim_matches('"'));
    name.map(str::to_owned).ok_or_else(|| format!("{}: no line `name = \"...\"`", manifest.display()))
}
