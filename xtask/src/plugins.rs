//! Builds guests of every language into `plugins/dist/`.
//!
//! A folder of `plugins/rust` is a crate of that workspace; a folder of `plugins/javascript` or `plugins/python` has a
//! `plugin.json` that names world and entry; one in Python that is made by the SDK has a `plugin.toml`, too. `FOLDER` becomes `FOLDER.wasm`, `FOLDER-js.wasm`, `FOLDER-py.wasm`. Line
//! tables of Rust are kept beside it, in `FOLDER.lines`.

pub mod kept;
pub mod rust;

use crate::place;
use crate::setup;
use crate::shell::{quietly, say};
use crate::stamp::Stamp;
use kept::Kept;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A language whose plugins are made by one program from a folder of source.
struct Script {
    folder: &'static str,
    suffix: &'static str,
    build: fn(&Source) -> Command,
}

/// One plugin's source and what it becomes.
struct Source {
    folder: PathBuf,
    wit: PathBuf,
    world: String,
    entry: String,
    output: PathBuf,
}

const SCRIPTS: [Script; 2] = [
    Script { folder: "javascript", suffix: "-js", build: componentize_js },
    Script { folder: "python", suffix: "-py", build: componentize_py },
];

fn componentize_js(source: &Source) -> Command {
    let mut command = Command::new("node");
    command.arg(setup::componentize_qjs()).arg("--wit").arg(&source.wit).args(["--world", &source.world]);
    command.arg("--js").arg(&source.entry).args(["--module-root", ".", "--sync", "--stub-wasi"]);
    command.arg("--output").arg(&source.output);
    command
}

fn componentize_py(source: &Source) -> Command {
    let mut command = Command::new(setup::componentize_py());
    command.arg("--wit-path").arg(&source.wit).args(["--world", &source.world]);
    command
        .args(["componentize", &source.entry, "--python-path", "."])
        .arg("--python-path")
        .arg(python_sdk());
    command.arg("--output").arg(&source.output);
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// What plugins in Python may import.
fn python_sdk() -> PathBuf {
    place::root().join("plugins/python/sdk")
}

/// The SDKs by language: what `espalier plugin new` copies into a project.
pub fn sdks() -> impl Iterator<Item = (&'static str, PathBuf)> {
    let folder = |language| (language, place::root().join("plugins").join(language).join("sdk"));
    ["rust", "javascript", "python", "go", "c"].into_iter().map(folder)
}

/// The plugins that an installation has: those in Rust, without the tests' own. The examples of other languages are for readers.
pub fn standard() -> Result<Vec<String>, String> {
    let crates = rust::crates()?;
    Ok(crates.into_iter().filter(|name| !is_fault(name)).collect())
}

/// Whether a plugin is one of those that do wrong on purpose, for tests.
fn is_fault(name: &str) -> bool {
    name.starts_with("fault-")
}

/// Builds the named plugins (names as in `plugins/dist`), or all; what has not changed is left alone.
pub fn build(names: &[String]) -> Result<(), String> {
    let dist = place::dist();
    std::fs::create_dir_all(&dist).map_err(|error| format!("{}: {error}", dist.display()))?;
    let wanted = |name: &str| names.is_empty() || names.iter().any(|known| known == name);

    let crates = rust::crates()?;
    let mut sources = Vec::new();
    for script in &SCRIPTS {
        for source in sources_of(script, &dist)? {
            sources.push((script, source));
        }
    }
    let known = || crates.iter().cloned().chain(sources.iter().map(|(_, source)| name_of(&source.output)));
    if let Some(name) = names.iter().find(|name| !known().any(|known| known == **name)) {
        let known: Vec<String> = known().collect();
        return Err(format!("no plugin `{name}`; expected one of {}", known.join(", ")));
    }
    let crates: Vec<String> = crates.iter().filter(|name| wanted(name)).cloned().collect();

    sources.retain(|(_, source)| wanted(&name_of(&source.output)));

    // The Rust guests keep cargo busy on their own; the others are one process each, one after the other beside it.
    std::thread::scope(|scope| {
        let rust = scope.spawn(|| if crates.is_empty() { Ok(()) } else { rust::build(&crates, &dist) });
        let scripts = build_scripts(&sources);
        rust.join().map_err(|_| "the build of the Rust plugins panicked".to_owned())?.and(scripts)
    })
}

/// Builds plugins in JavaScript and Python, whose toolchains are installed when the first is to be built.
fn build_scripts(sources: &[(&Script, Source)]) -> Result<(), String> {
    let mut ready = false;
    for (script, source) in sources {
        let name = name_of(&source.output);
        let mut command = (script.build)(source);
        let mut inputs = Stamp::here(&format!("plugin-{name}"))
            .text(&source.world)
            .text(setup::GUEST_PINS)
            .path(&place::root().join("xtask/src/plugins.rs"))
            .path(&source.wit)
            .path(&source.folder);
        if source.entry.starts_with("espalier_sdk.") {
            inputs = inputs.path(&python_sdk());
        }
        if inputs.is_done(std::slice::from_ref(&source.output)) {
            continue;
        }
        let kept = Kept::of(&inputs, &name);
        if !kept.take(&source.output)? {
            if !std::mem::replace(&mut ready, true) {
                setup::run(&[setup::Part::Guests])?;
            }
            say(&format!("building plugin {name}"));
            quietly(command.current_dir(&source.folder))?;
            kept.keep(&source.output)?;
        }
        inputs.done()?;
    }
    Ok(())
}

/// Puts a copy in the place of a file.
fn replace(file: &Path, place: &Path) -> Result<(), String> {
    put(place, |beside| std::fs::copy(file, beside).map(drop))
}

/// Puts a new file in the place of another, which a process may have mapped.
fn put(place: &Path, write: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<(), String> {
    let beside = place.with_extension(format!("new-{}", std::process::id()));
    write(&beside)
        .and_then(|()| std::fs::rename(&beside, place))
        .map_err(|error| format!("{}: {error}", place.display()))
}

fn name_of(output: &Path) -> String {
    output.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn sources_of(script: &Script, dist: &Path) -> Result<Vec<Source>, String> {
    let parent = place::root().join("plugins").join(script.folder);
    let mut folders: Vec<PathBuf> = std::fs::read_dir(&parent)
        .map_err(|error| format!("{}: {error}", parent.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|folder| folder.join("plugin.json").is_file())
        .collect();
    folders.sort();
    folders.into_iter().map(|folder| Source::read(folder, script.suffix, dist)).collect()
}

impl Source {
    fn read(folder: PathBuf, suffix: &str, dist: &Path) -> Result<Source, String> {
        let file = folder.join("plugin.json");
        let at = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
        let text = std::fs::read_to_string(&file).map_err(|error| at(&error))?;
        let json: serde_json::Value = serde_json::from_str(&text).map_err(|error| at(&error))?;
        let field = |key: &str| {
            json[key].as_str().map(str::to_owned).ok_or_else(|| at(&format!("`{key}` is missing")))
        };
        Ok(Source {
            wit: json["wit"].as_str().map_or_else(|| place::root().join("wit"), |own| folder.join(own)),
            world: world_of(&field("world")?),
            entry: field("entry")?,
            output: dist.join(format!("{}{suffix}.wasm", name_of(&folder))),
            folder,
        })
    }
}

/// Worlds of the project's own package need no prefix.
fn world_of(name: &str) -> String {
    if name.contains('/') { name.to_owned() } else { format!("espalier:plugin/{name}") }
}
