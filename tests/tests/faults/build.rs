//! Builds the projects by the real program. What comes of a build is kept by what it is made of, as plugins of the repository are.

use crate::language::Language;
use espalier_core::line_tables::without_line_tables;
use espalier_tests::place::{binary, plugin_cache, plugin_folder, repository};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use xtask::plugins::kept::Kept;
use xtask::stamp::Stamp;
use xtask::{place, setup};

/// What is built of a source.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Variant {
    /// All of it.
    Whole,
    /// Without what exports the plugin.
    NoExport,
    /// In a project that says that it is a reward.
    OtherKind,
    /// With code outside of functions that fails.
    BadStart,
}

/// The component with its line tables, or what the build says in its place.
pub(crate) type Built = Result<Vec<u8>, String>;

/// What a command left behind.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs the engine's program in a folder.
pub(crate) fn espalier(folder: &Path, arguments: &[&str]) -> Ran {
    let mut command = Command::new(binary());
    command.args(arguments).current_dir(folder).env("ESPALIER_PLUGINS", plugin_folder());
    command.env("ESPALIER_CACHE", plugin_cache()).env("ESPALIER_STORE", folder.join(".espalier"));
    command.env("PATH", setup::authoring_path()).env("CARGO_TARGET_DIR", place::target().join("authoring"));
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ran { code: output.status.code().unwrap(), out: text(&output.stdout), err: text(&output.stderr) }
}

/// Builds a variant, unless it is kept.
pub(crate) fn built(language: &Language, variant: Variant) -> Built {
    let root = repository();
    let toolchain = fs::read_to_string(root.join("rust-toolchain.toml")).unwrap();
    let mut inputs = Stamp::here("faults").text(&toolchain).text(&format!("{}", variant as u8));
    let folders =
        [format!("plugins/{}/sdk", language.sdk), format!("plugins/templates/{}/all", language.name)];
    let files = [format!("tests/faults/{}", language.name), "tests/tests/faults/language.rs".to_owned()];
    for input in folders.iter().chain(&files).map(String::as_str).chain(["wit", "engine/authoring/src"]) {
        inputs = inputs.path(&root.join(input));
    }
    let folder = tempfile::tempdir().unwrap();
    let kept = Kept::of(&inputs, &language.plugin());
    let file = folder.path().join("kept");
    if !kept.take(&file).unwrap() {
        let result = build(language, variant, folder.path());
        fs::write(&file, result.unwrap_or_else(String::into_bytes)).unwrap();
        kept.keep(&file).unwrap();
    }
    let bytes = fs::read(&file).unwrap();
    if bytes.starts_with(b"\0asm") { Ok(bytes) } else { Err(String::from_utf8(bytes).unwrap()) }
}

fn build(language: &Language, variant: Variant, folder: &Path) -> Built {
    let project = folder.join(language.plugin());
    write_project(language, variant, folder);
    let ran = espalier(&project, &["plugin", "build"]);
    assert!(ran.code < 2, "{}: {}", language.name, ran.err);
    if ran.code == 1 {
        let folder = project.canonicalize().unwrap();
        return Err(ran.err.replace(&format!("{}/", folder.display()), ""));
    }
    let output = project.join("build").join(language.plugin());
    let file = [output.with_extension("lines"), output.with_extension("wasm")];
    Ok(fs::read(file.iter().find(|file| file.is_file()).unwrap()).unwrap())
}

/// A project in a folder of its own, with the packages that its template pins.
fn write_project(language: &Language, variant: Variant, folder: &Path) {
    let (name, project) = (language.plugin(), folder.join(language.plugin()));
    let kind = if variant == Variant::OtherKind { "reward" } else { "harness" };
    let ran = espalier(folder, &["plugin", "new", &name, "--kind", kind, "--lang", language.name]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let source = language.text();
    let change = match variant {
        Variant::Whole | Variant::OtherKind => None,
        Variant::NoExport => Some(language.export),
        Variant::BadStart => language.at_build,
    };
    let changed = change.map_or_else(|| source.clone(), |(old, new)| source.replace(old, new));
    assert!(change.is_none() || changed != source, "{}: nothing to change", language.name);
    fs::write(project.join(language.source), changed).unwrap();
    if language.sdk == "javascript" {
        let modules = project.join("node_modules");
        fs::create_dir(&modules).unwrap();
        symlink(project.join("sdk"), modules.join("espalier-sdk")).unwrap();
        for package in fs::read_dir(setup::authoring_packages()).unwrap().map(Result::unwrap) {
            symlink(package.path(), modules.join(package.file_name())).unwrap();
        }
    }
}

/// Puts a component where the engine finds it, its line tables beside it.
pub(crate) fn place_component(file: &Path, with_lines: &[u8]) {
    let component = without_line_tables(with_lines).expect("a component");
    if component != with_lines {
        fs::write(file.with_extension("lines"), with_lines).unwrap();
    }
    fs::write(file, component).unwrap();
}
