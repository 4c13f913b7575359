//! C, by Zig's compiler (PyPI `ziglang`), or by clang with a sysroot of WASI where there is one.

use super::{BuildError, Made, Tools, in_file};
use crate::component;
use crate::project::{Kind, Project};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the templates pin in `requirements.txt`.
const INSTALL: &str = "python3 -m venv .venv && .venv/bin/pip install -r requirements.txt";
/// A reactor, as its exports are called more than once. Traps name lines: an instruction without one of its own, such as the head of a
/// loop, gets that of the one before. Asserts are part of a plugin; a null pointer and an index beyond an array trap where they stand.
const FLAGS: [&str; 13] = [
    "-mexec-model=reactor",
    "-Wl,-z,stack-size=1048576",
    "-O2",
    "-g",
    "-mllvm",
    "-use-unknown-locations=Disable",
    "-UNDEBUG",
    "-fsanitize=null,bounds",
    "-fsanitize-trap=null,bounds",
    "-Wall",
    "-Wextra",
    "-Wno-unused-parameter",
    "-Werror=format-security",
];
/// Where Debian, Fedora and WASI's own packages put libraries and headers of the target.
const SYSROOTS: [&str; 3] = ["/usr", "/usr/wasm32-wasi", "/opt/wasi-sdk/share/wasi-sysroot"];

/// Compiles the project.
pub(super) fn make(project: &Project, tools: &mut Tools<'_>) -> Result<Made, BuildError> {
    let sources = sources(project)?;
    let folder = super::scratch(project)?;
    let output = folder.path().join("module.wasm");
    let mut command = compiler(&project.folder, tools).ok_or_else(|| BuildError::Missing {
        what: "a C compiler for WebAssembly (PyPI ziglang, or clang with WASI_SYSROOT)".to_owned(),
        line: INSTALL.to_owned(),
    })?;
    command.args(FLAGS);
    // Places in logs and traps are relative to the project, wherever it lies.
    command.arg("-fdebug-compilation-dir=").arg(format!("-ffile-prefix-map={}=", project.folder.display()));
    command.args(&sources).arg("-o").arg(&output);
    let printed = tools.run(&mut command).map_err(|error| explained(error, project.manifest.kind))?;
    if !printed.trim().is_empty() {
        tools.say(printed.trim_end());
    }
    let mut module = std::fs::read(&output).map_err(in_file(&output))?;
    component::embed(&mut module, &project.wit(), &project.manifest.kind.world())?;
    Ok(Made::Module { module, wasi: true })
}

/// Those of the SDK, the exports of the project's kind, and the plugin's own, which lie beside its entry. Relative to the project. The SDK
/// comes first: it has its own `abort` and what `assert` calls, and the linker takes the first it sees.
fn sources(project: &Project) -> Result<Vec<PathBuf>, BuildError> {
    let exports = Path::new("sdk/kinds").join(project.manifest.kind.as_str()).with_extension("c");
    if !project.folder.join(&exports).is_file() {
        return Err(BuildError::Missing {
            what: format!("the SDK, {},", exports.display()),
            line: "espalier plugin sdk --lang c --out sdk".to_owned(),
        });
    }
    let entry = project.folder.join(project.entry());
    let mut sources = c_files(&project.folder.join("sdk/src"), &project.folder)?;
    sources.push(exports);
    sources.extend(c_files(entry.parent().unwrap_or(&project.folder), &project.folder)?);
    Ok(sources)
}

/// The files of a folder that end in `.c`, in order.
fn c_files(folder: &Path, project: &Path) -> Result<Vec<PathBuf>, BuildError> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(in_file(folder))? {
        let path = entry.map_err(in_file(folder))?.path();
        if path.extension().is_some_and(|extension| extension == "c") {
            files.push(Tools::argument(path.strip_prefix(project).unwrap_or(&path)));
        }
    }
    files.sort();
    Ok(files)
}

/// What the linker misses, in the words of the SDK.
fn explained(error: BuildError, kind: Kind) -> BuildError {
    let BuildError::Failed { mut output, .. } = error else { return error };
    let name = kind.as_str().replace('-', "_");
    let missing = |symbol: &str| {
        let named = format!("undefined symbol: espalier_plugin_{symbol}");
        output.lines().any(|line| line.ends_with(&named))
    };
    let mut hints = Vec::new();
    if missing(&name) {
        hints.push(format!(
            "plugin.toml says kind = \"{}\": the source needs ESPALIER_{}(...)",
            kind.as_str(),
            name.to_uppercase()
        ));
    }
    if missing("settings") {
        hints.push("the source needs ESPALIER_SETTINGS(...) or ESPALIER_NO_SETTINGS()".to_owned());
    }
    for hint in hints {
        output.push_str(&format!("\nhint: {hint}"));
    }
    BuildError::Failed { program: "the C compiler".to_owned(), output }
}

/// The first compiler that this machine has, with its target.
fn compiler(folder: &Path, tools: &mut Tools<'_>) -> Option<Command> {
    let zig = |program: PathBuf, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).args(["cc", "-target", "wasm32-wasi"]);
        command
    };
    let pythons =
        [Some(folder.join(".venv/bin/python")), Tools::in_path("python3"), Tools::in_path("python")];
    for python in pythons.into_iter().flatten().filter(|python| python.is_file()) {
        let find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('ziglang') is None)";
        if tools.run(Command::new(&python).args(["-c", find])).is_ok() {
            return Some(zig(python, &["-m", "ziglang"]));
        }
    }
    if let Some(program) = Tools::in_path("zig") {
        return Some(zig(program, &[]));
    }
    let program = Tools::in_path("clang")?;
    let named = std::env::var_os("WASI_SYSROOT").map(PathBuf::from);
    let sysroot = named
        .into_iter()
        .chain(SYSROOTS.map(PathBuf::from))
        .find(|folder| folder.join("lib/wasm32-wasi/libc.a").is_file())?;
    let mut command = Command::new(program);
    command.arg("--target=wasm32-wasi").arg(format!("--sysroot={}", sysroot.display()));
    Some(command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::project::{Language, Manifest};

    #[test]
    fn the_sources_are_those_beside_the_entry_and_those_of_the_sdk() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for file in [
            "src/plugin.c",
            "-wl.c",
            "src/cards.c",
            "src/cards.h",
            "sdk/src/json.c",
            "sdk/kinds/reward.c",
            "sdk/kinds/judge.c",
        ] {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, "").expect("a file");
        }
        let manifest = Manifest {
            name: "one".to_owned(),
            kind: Kind::Reward,
            language: Language::C,
            entry: Some("src/plugin.c".into()),
        };
        let mut project = Project { folder: folder.path().to_owned(), manifest };
        let files = sources(&project).expect("sources");
        assert_eq!(
            files,
            ["sdk/src/json.c", "sdk/kinds/reward.c", "src/cards.c", "src/plugin.c"].map(PathBuf::from)
        );
        project.manifest.entry = None;
        let files = sources(&project).expect("sources");
        assert_eq!(files.last().map(PathBuf::as_path), Some(Path::new("./-wl.c")));
        project.manifest.kind = Kind::Harness;
        let error = sources(&project).expect_err("no exports of that kind").to_string();
        assert_eq!(error, "the SDK, sdk/kinds/harness.c, is missing");
    }

    #[test]
    fn what_the_linker_misses_is_named_by_the_macro_that_makes_it() {
        let output = "ld: a.o: undefined symbol: espalier_plugin_group_reward".to_owned();
        let error =
            explained(BuildError::Failed { program: "python3".to_owned(), output }, Kind::GroupReward);
        let said = error.to_string();
        assert!(said.starts_with("the C compiler failed:\n"), "{said}");
        assert!(said.ends_with("the source needs ESPALIER_GROUP_REWARD(...)"), "{said}");
        let output = "plugin.c:1:1: error: expected `;`".to_owned();
        let error = explained(BuildError::Failed { program: "python3".to_owned(), output }, Kind::Judge);
        assert_eq!(error.to_string(), "the C compiler failed:\nplugin.c:1:1: error: expected `;`");
    }
}
