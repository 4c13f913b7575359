//! Pages for people: short enough to be read, with the commands that people type.

use std::path::{Path, PathBuf};
use walkdir::WalkDir;

/// Pages with the most lines that they have.
const LINES_MAX: [(&str, usize); 2] = [("ARCHITECTURE.md", 200), ("SPEC.md", 250)];
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
    for path in guides(root) {
        let name = super::name(root, &path);
        check_guide(&name, &std::fs::read_to_string(&path).unwrap_or_default(), faults);
    }
}

/// Every page of the root and of `docs/`.
pub(super) fn all(root: &Path) -> Vec<PathBuf> {
    let folders = [(root.to_owned(), 1), (root.join("docs"), 9)];
    let walks = folders.map(|(folder, depth)| WalkDir::new(folder).max_depth(depth).sort_by_file_name());
    let found = walks.into_iter().flatten().filter_map(Result::ok).map(walkdir::DirEntry::into_path);
    found.filter(|path| path.extension().is_some_and(|ending| ending == "md")).collect()
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
        faults.push(format!("{name}:{}: names `cargo xtask`; name the `make` command", number + 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guide_names_the_make_command() {
        let mut faults = Vec::new();
        check_guide("docs/a.md", "`make plugins`\n\n`cargo xtask plugins idle`\n", &mut faults);
        assert_eq!(faults, ["docs/a.md:3: names `cargo xtask`; name the `make` command"]);
    }
}
