//! Pages for people: short enough to be read, with the commands that people type and paths that exist.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use walkdir::WalkDir;

/// Pages with the most lines that they have.
const LINES_MAX: [(&str, usize); 2] = [("ARCHITECTURE.md", 200), ("SPEC.md", 250)];
/// Pages whose paths are not checked.
const PATHS_UNCHECKED: [&str; 1] = ["CHANGELOG.md"];
/// What a checkout has only after a build.
const BUILT: [&str; 3] = ["dist", "plugins/dist", "tasks"];

/// Checks them.
pub(super) fn check(root: &Path, faults: &mut Vec<String>) {
    for (page, lines_max) in LINES_MAX {
        let lines = std::fs::read_to_string(root.join(page)).map_or(0, |text| text.lines().count());
        if lines == 0 {
            faults.push(format!("{page}: missing or empty"));
        } else if lines > lines_max {
            faults.push(format!("{page}: {lines} lines, at most {lines_max}"));
        }
    }
    let paths = Paths::of(root);
    for path in all(root) {
        let name = super::name(root, &path);
        if !PATHS_UNCHECKED.contains(&&*name) {
            paths.check(&name, &std::fs::read_to_string(&path).unwrap_or_default(), faults);
        }
    }
    match crate::guides::guides(root) {
        Ok(guides) => {
            let differs = |(path, text): &(PathBuf, String)| {
                std::fs::read_to_string(path).is_ok_and(|now| now != *text)
            };
            for (path, _) in guides.iter().filter(|guide| differs(guide)) {
                let name = super::name(root, path);
                faults.push(format!(
                    "{name}: shows other templates than plugins/templates has; run `make guides`"
                ));
            }
        }
        Err(error) => faults.push(error),
    }
    let of_libraries =
        ["browser", "browser/docs", "clients/python", "sandbox-agent"].map(|folder| root.join(folder));
    let pages: Vec<PathBuf> =
        all(root).into_iter().chain(of_libraries.iter().flat_map(|folder| pages_in(folder, 1))).collect();
    faults.extend(crate::links::broken(root, &pages));
    for path in guides(root) {
        let name = super::name(root, &path);
        check_guide(&name, &std::fs::read_to_string(&path).unwrap_or_default(), faults);
    }
}

/// Every page of the root and of `docs/`.
pub(super) fn all(root: &Path) -> Vec<PathBuf> {
    pages_in(root, 1).chain(pages_in(&root.join("docs"), 9)).collect()
}

/// The pages of a folder, and of those so far below it.
pub fn pages_in(folder: &Path, depth: usize) -> impl Iterator<Item = PathBuf> + use<> {
    let walk = WalkDir::new(folder).max_depth(depth).sort_by_file_name().into_iter();
    let found = walk.filter_map(Result::ok).map(walkdir::DirEntry::into_path);
    found.filter(|path| path.extension().is_some_and(|ending| ending == "md"))
}

/// What people read to learn which command to type.
fn guides(root: &Path) -> Vec<PathBuf> {
    let is_guide = |path: &PathBuf| {
        !["ARCHITECTURE.md", "CHANGELOG.md", "SPEC.md"].iter().any(|page| path.ends_with(page))
    };
    all(root).into_iter().filter(is_guide).collect()
}

/// A guide names what `make` does: without make's environment, cargo builds everything once more in a folder of its own.
fn check_guide(name: &str, text: &str, faults: &mut Vec<String>) {
    for (number, _) in text.lines().enumerate().filter(|(_, line)| line.contains("cargo xtask")) {
        faults.push(format!("{name}:{}: mentions `cargo xtask`; use the `make` command", number + 1));
    }
}

/// The repository's files and folders, as pages name them.
struct Paths {
    /// Names of folders that a path can begin with: those of the root, and the engine's crates.
    beginnings: BTreeSet<String>,
    /// Every end of every path; those of sources also without `.rs`. Of a crate of the engine also without `src`.
    known: BTreeSet<String>,
}

impl Paths {
    fn of(root: &Path) -> Paths {
        let skipped = ["target", "node_modules", "dist", "__pycache__"];
        let shown = |entry: &walkdir::DirEntry| {
            let name = entry.file_name().to_string_lossy();
            entry.depth() == 0 || !(name.starts_with('.') || skipped.contains(&&*name))
        };
        let walk = WalkDir::new(root).into_iter().filter_entry(shown).filter_map(Result::ok);
        let mut paths = Paths { beginnings: BTreeSet::new(), known: BTreeSet::new() };
        for entry in walk.filter(|entry| entry.depth() > 0) {
            paths.add(&super::name(root, entry.path()), entry.file_type().is_dir());
        }
        paths
    }

    fn add(&mut self, name: &str, is_folder: bool) {
        let in_engine = name.strip_prefix("engine/");
        if is_folder {
            let beginning = in_engine.unwrap_or(name);
            if !beginning.contains('/') {
                self.beginnings.insert(beginning.to_owned());
            }
        }
        let without_src = in_engine.and_then(|path| {
            let (owner, rest) = path.split_once("/src/")?;
            Some(format!("{owner}/{rest}"))
        });
        for path in [Some(name), without_src.as_deref()].into_iter().flatten() {
            let ends = path.match_indices('/').map(|(at, _)| &path[at + 1..]);
            for end in std::iter::once(path).chain(ends) {
                self.known.insert(end.to_owned());
                if let Some(module) = end.strip_suffix(".rs") {
                    self.known.insert(module.to_owned());
                }
            }
        }
    }

    /// Each path in backticks exists: `engine/core/src/task.rs`, or shorter `core/task.rs`, or its last names.
    fn check(&self, page: &str, text: &str, faults: &mut Vec<String>) {
        let mut in_block = false;
        for (number, line) in text.lines().enumerate() {
            in_block ^= line.trim_start().starts_with("```");
            if in_block {
                continue;
            }
            for span in line.split('`').skip(1).step_by(2).filter(|span| self.is_path(span)) {
                if !self.known.contains(span.trim_end_matches('*').trim_end_matches('/')) {
                    faults.push(format!("{page}:{}: names `{span}`, which does not exist", number + 1));
                }
            }
        }
    }

    /// Whether a text in backticks is meant as a path of the repository.
    fn is_path(&self, span: &str) -> bool {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/_.-*".contains(&byte);
        let is_built = BUILT.iter().any(|built| {
            span.strip_prefix(built).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        });
        let (beginning, rest) = span.split_once('/').unwrap_or(("", span));
        span.bytes().all(plain)
            && (rest.ends_with(".rs") || (self.beginnings.contains(beginning) && !rest.is_empty()))
            && (!is_built || rest.ends_with(".rs"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_in_backticks_exist() {
        let mut paths = Paths { beginnings: BTreeSet::new(), known: BTreeSet::new() };
        for folder in ["engine", "engine/core", "engine/core/src", "tests"] {
            paths.add(folder, true);
        }
        for file in
            ["engine/core/src/ledger/finish.rs", "engine/core/src/task.rs", "tests/tests/runs/main.rs"]
        {
            paths.add(file, false);
        }
        let mut faults = Vec::new();
        let text = "`engine/core/src/task.rs`, `core/task.rs`, `task.rs`, `ledger/finish.rs`, `tests/tests/runs/main`, \
                    `core/src/`\n```\n`core/gone.rs`\n```\n`core/gone.rs` and `gone.rs`, `tests/test.sh`, `GET /core/x`, \
                    `text/plain`, `tasks/a.jsonl`";
        paths.check("a.md", text, &mut faults);
        let gone = |path: &str| format!("a.md:5: names `{path}`, which does not exist");
        assert_eq!(faults, ["core/gone.rs", "gone.rs", "tests/test.sh"].map(gone));
    }

    #[test]
    fn a_guide_names_the_make_command() {
        let mut faults = Vec::new();
        check_guide("docs/a.md", "`make plugins`\n\n`cargo xtask plugins idle`\n", &mut faults);
        assert_eq!(faults, ["docs/a.md:3: mentions `cargo xtask`; use the `make` command"]);
    }
}
