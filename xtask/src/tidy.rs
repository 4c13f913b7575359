//! The project's own rules, as checks: who may name what, how long files may be, what a text may not hold. A rule that ARCHITECTURE.md
//! states and a source can break is checked here.

mod blocking;
mod crates;
mod pages;
pub use pages::pages_in;
mod released;
mod source;
mod words;

use std::path::{Path, PathBuf};
use walkdir::WalkDir;

/// Most lines of a source file.
const SOURCE_LINES_MAX: usize = 600;

/// Folders whose files are looked at.
const FOLDERS: [&str; 9] =
    ["browser", "engine", "sandbox-agent", "xtask", "plugins", "tests", "benches", "clients", "wit"];

/// Checks every rule; the error lists each place.
pub fn check(root: &Path) -> Result<(), String> {
    let mut faults = Vec::new();
    let files = files(root);
    pages::check(root, &mut faults);
    let pages = pages::all(root);
    let read = |file: &PathBuf| Some((name(root, file), std::fs::read_to_string(file).ok()?));
    let texts: Vec<(String, String)> = files.iter().chain(&pages).filter_map(read).collect();
    for (name, text) in &texts {
        check_file(name, text, &mut faults);
    }
    let sources = source::read(root, &files);
    for source in &sources {
        blocking::check(&source.name, &source.text, &mut faults);
        crates::check(source, &mut faults);
    }
    words::check(&sources, &texts, &mut faults);
    released::check(root, &mut faults);
    if faults.is_empty() { Ok(()) } else { Err(format!("tidy:\n  {}", faults.join("\n  "))) }
}

/// A file's name from the root.
fn name(root: &Path, file: &Path) -> String {
    file.strip_prefix(root).unwrap_or(file).to_string_lossy().into_owned()
}

fn files(root: &Path) -> Vec<PathBuf> {
    let skipped =
        ["target", "node_modules", "dist", "build", "__pycache__", ".hypothesis", "runs", "generated"];
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
        crates::check_manifest(name, text, faults);
    }
    if !["rs", "py", "js", "wit"].iter().any(|ending| name.ends_with(&format!(".{ending}"))) {
        return;
    }
    let lines = text.lines().count();
    if lines > SOURCE_LINES_MAX {
        faults.push(format!("{name}: {lines} lines, at most {SOURCE_LINES_MAX}"));
    }
    // Spelled apart, so that this file does not find itself.
    let marks = [["TO", "DO"].concat(), ["FIX", "ME"].concat(), ["XX", "X"].concat()];
    for (number, line) in text.lines().enumerate() {
        let word = |mark: &String| line.split(|c: char| !c.is_alphanumeric()).any(|word| word == mark);
        if let Some(mark) = marks.iter().find(|mark| word(mark)) {
            faults.push(format!("{name}:{}: {mark}; open an issue, or do it", number + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_short_and_without_marks() {
        let check = |text: &str, expect: &[&str]| {
            let mut faults = Vec::new();
            check_file("a.rs", text, &mut faults);
            assert_eq!(faults, expect);
        };
        check(&"\n".repeat(600), &[]);
        check(&"\n".repeat(601), &["a.rs: 601 lines, at most 600"]);
        let mark = ["TO", "DO"].concat();
        check(&format!("ok\n// {mark}: later\n"), &[&format!("a.rs:2: {mark}; open an issue, or do it")]);
    }
}
