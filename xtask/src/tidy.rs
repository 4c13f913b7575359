//! The project's own rules, as checks: who may name which dependency, how long files may be, what a text may not hold.

mod blocking;
mod released;

use std::path::{Path, PathBuf};
use walkdir::WalkDir;

/// Most lines of a source file.
const SOURCE_LINES_MAX: usize = 600;

/// Pages that stay short enough to be read: name, most lines.
const PAGES: [(&str, usize); 2] = [("ARCHITECTURE.md", 250), ("SPEC.md", 250)];

/// A dependency and the only crates that may name it.
const OWNERS: [(&str, &[&str]); 9] = [
    ("wasmtime", &["engine/plugin"]),
    ("sqlx", &["engine/store"]),
    ("tonic", &[]),
    ("reqwest", &["engine/inference"]),
    ("oci-client", &["engine/images"]),
    ("axum", &["engine/api"]),
    ("minijinja", &["engine/inference"]),
    ("tokenizers", &["engine/inference"]),
    ("clap", &["engine/daemon", "xtask", "benches"]),
];

/// What `core` does without: it computes, others do.
const NOT_IN_CORE: [&str; 6] = ["tokio", "reqwest", "sqlx", "wasmtime", "axum", "minijinja"];

/// Folders whose files are looked at.
const FOLDERS: [&str; 8] =
    ["engine", "sandbox-agent", "xtask", "plugins", "tests", "benches", "clients", "wit"];

/// Checks every rule; the error lists each place.
pub fn check(root: &Path) -> Result<(), String> {
    let mut faults = Vec::new();
    for (page, lines_max) in PAGES {
        let lines = std::fs::read_to_string(root.join(page)).map_or(0, |text| text.lines().count());
        if lines == 0 {
            faults.push(format!("{page}: missing or empty"));
        } else if lines > lines_max {
            faults.push(format!("{page}: {lines} lines, at most {lines_max}"));
        }
    }
    for path in pages(root) {
        let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        check_page(&name, &std::fs::read_to_string(&path).unwrap_or_default(), &mut faults);
    }
    for path in files(root) {
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        check_file(&name, &text, &mut faults);
    }
    released::check(root, &mut faults);
    if faults.is_empty() { Ok(()) } else { Err(format!("tidy:\n  {}", faults.join("\n  "))) }
}

/// What people read to learn which command to type.
fn pages(root: &Path) -> Vec<PathBuf> {
    let docs = WalkDir::new(root.join("docs")).sort_by_file_name().into_iter().filter_map(Result::ok);
    let docs =
        docs.map(walkdir::DirEntry::into_path).filter(|path| path.extension().is_some_and(|e| e == "md"));
    ["README.md", "CONTRIBUTING.md"].map(|page| root.join(page)).into_iter().chain(docs).collect()
}

/// A page names what `make` does: without make's environment, cargo builds everything once more in a folder of its own.
fn check_page(name: &str, text: &str, faults: &mut Vec<String>) {
    for (number, _) in text.lines().enumerate().filter(|(_, line)| line.contains("cargo xtask")) {
        faults.push(format!("{name}:{}: names `cargo xtask`; name the `make` command", number + 1));
    }
}

fn files(root: &Path) -> Vec<PathBuf> {
    let skipped = ["target", "node_modules", "dist", "build", "__pycache__", "runs", "generated"];
    let walks = FOLDERS.iter().flat_map(|folder| {
        WalkDir::new(root.join(folder))
            .sort_by_file_name()
            .into_iter()
            .filter_entry(move |entry| !skipped.iter().any(|name| entry.file_name() == *name))
    });
    walks
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_file())
        .map(walkdir::DirEntry::into_path)
        .collect()
}

/// The rules of one file, by its name from the root.
fn check_file(name: &str, text: &str, faults: &mut Vec<String>) {
    if name.ends_with("Cargo.toml") {
        check_manifest(name, text, faults);
    }
    if !["rs", "py", "js", "wit"].iter().any(|ending| name.ends_with(&format!(".{ending}"))) {
        return;
    }
    blocking::check(name, text, faults);
    let lines = text.lines().count();
    if lines > SOURCE_LINES_MAX {
        faults.push(format!("{name}: {lines} lines, at most {SOURCE_LINES_MAX}"));
    }
    // Spelled apart, so that this file does not find itself.
    let marks = [["TO", "DO"].concat(), ["FIX", "ME"].concat(), ["XX", "X"].concat()];
    for (number, line) in text.lines().enumerate() {
        let word = |mark: &String| line.split(|c: char| !c.is_alphanumeric()).any(|word| word == mark);
        if let Some(mark) = marks.iter().find(|mark| word(mark)) {
            faults.push(format!("{name}:{}: {mark}; say it in an issue, or do it", number + 1));
        }
    }
}

fn check_manifest(name: &str, text: &str, faults: &mut Vec<String>) {
    let folder = name.trim_end_matches("/Cargo.toml");
    let mut runtime = false;
    for line in text.lines() {
        if line.starts_with('[') {
            runtime = line.starts_with("[dependencies");
        }
        let key = line.split(['=', '.', ' ']).next().unwrap_or_default();
        if runtime && folder == "engine/core" && NOT_IN_CORE.contains(&key) {
            faults.push(format!("{name}: core does not know `{key}`"));
        }
        for (dependency, owners) in OWNERS {
            if runtime && key == dependency && folder.starts_with("engine") && !owners.contains(&folder) {
                let owners =
                    if owners.is_empty() { "crates beside the engine".to_owned() } else { owners.join(", ") };
                faults.push(format!("{name}: only {owners} may name `{dependency}`"));
            }
        }
        let own = folder != "plugins/rust" && line.contains("version = \"") && runtime;
        if own {
            faults.push(format!("{name}: `{key}`: versions stand in the root"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn faults(name: &str, text: &str, expect: &[&str]) {
        let mut faults = Vec::new();
        check_file(name, text, &mut faults);
        assert_eq!(faults, expect);
    }

    #[test]
    fn a_page_names_the_make_command() {
        let mut faults = Vec::new();
        check_page("docs/a.md", "`make plugins`\n\n`cargo xtask plugins idle`\n", &mut faults);
        assert_eq!(faults, ["docs/a.md:3: names `cargo xtask`; name the `make` command"]);
    }

    #[test]
    fn each_rule_finds_its_breach() {
        faults("engine/core/Cargo.toml", "[dependencies]\nserde.workspace = true\n", &[]);
        faults(
            "engine/core/Cargo.toml",
            "[dependencies]\ntokio.workspace = true\n",
            &["engine/core/Cargo.toml: core does not know `tokio`"],
        );
        faults("engine/core/Cargo.toml", "[dev-dependencies]\ntokio.workspace = true\n", &[]);
        faults(
            "engine/store/Cargo.toml",
            "[dependencies]\nwasmtime.workspace = true\n",
            &["engine/store/Cargo.toml: only engine/plugin may name `wasmtime`"],
        );
        faults(
            "engine/store/Cargo.toml",
            "[dependencies]\nrand = { version = \"1\" }\n",
            &["engine/store/Cargo.toml: `rand`: versions stand in the root"],
        );
        faults("a.rs", &"\n".repeat(601), &["a.rs: 601 lines, at most 600"]);
        let mark = ["TO", "DO"].concat();
        faults(
            "a.rs",
            &format!("ok\n// {mark}: later\n"),
            &[&format!("a.rs:2: {mark}; say it in an issue, or do it")],
        );
    }
}
