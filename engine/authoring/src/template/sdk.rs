//! The copy of an SDK in a project. Its file `.espalier-sdk` says which one it is, and which files were written:
//!
//! ```text
//! python 0.1.0
//! README.md
//! espalier_sdk/__init__.py
//! ```
//!
//! Nothing else in the folder is ever removed or replaced.

use super::{LEFT_OUT, NewError, Sources, copy_file, create, entries, in_file};
use crate::project::Language;
use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

/// The file of a copy that says which SDK it is.
const MARK: &str = ".espalier-sdk";
/// What an SDK's own folder has that a copy does without, or has from elsewhere.
const LEFT_OUT_AT_TOP: [&str; 3] = ["tests", "wit", ".gitignore"];
/// The version of the SDKs that are written.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What a mark says.
#[derive(Debug, Default, PartialEq, Eq)]
struct Mark {
    language: String,
    version: String,
    /// Relative to the copy. Empty in a mark that names no files.
    files: BTreeSet<PathBuf>,
}

impl Mark {
    fn read(folder: &Path) -> Option<Mark> {
        let text = std::fs::read_to_string(folder.join(MARK)).ok()?;
        let mut lines = text.lines();
        let mut words = lines.next()?.split_whitespace().map(str::to_owned);
        let (language, version) = (words.next()?, words.next().unwrap_or_default());
        let is_inside = |file: &PathBuf| file.components().all(|part| matches!(part, Component::Normal(_)));
        let files = lines.filter(|line| !line.is_empty()).map(PathBuf::from).filter(is_inside).collect();
        Some(Mark { language, version, files })
    }

    fn write(folder: &Path, language: Language, files: &BTreeSet<PathBuf>) -> Result<(), NewError> {
        create(folder)?;
        let mut text = format!("{} {VERSION}\n", language.sdk());
        for file in files {
            text.push_str(&format!("{}\n", file.display()));
        }
        let mark = folder.join(MARK);
        std::fs::write(&mark, text).map_err(in_file(&mark))
    }
}

/// The version of the SDK that a folder is a copy of.
pub fn version_of(folder: &Path) -> Option<String> {
    Some(Mark::read(folder)?.version).filter(|version| !version.is_empty())
}

/// Whether a version is older than [`VERSION`]. Anything else than a version is not.
pub fn is_older(version: &str) -> bool {
    let numbers = |version: &str| -> Option<Vec<u32>> {
        let release = version.split(['-', '+']).next()?;
        release.split('.').map(|number| number.parse().ok()).collect()
    };
    match (numbers(version), numbers(VERSION)) {
        (Some(version), Some(own)) => version < own,
        _ => false,
    }
}

/// Writes an SDK with the interfaces in `wit` into a folder, in the place of one that is there. A folder of anything else is kept,
/// and so is every file that no SDK has written.
pub fn refresh_sdk(sources: &Sources, language: Language, folder: &Path) -> Result<(), NewError> {
    let files = files(sources, language)?;
    let new: BTreeSet<PathBuf> = files.iter().map(|(_, to)| to.clone()).collect();
    let is_empty = std::fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none());
    let mut old = BTreeSet::new();
    if !is_empty {
        let mark = Mark::read(folder).filter(|mark| mark.language == language.sdk());
        let language = language.title();
        let mark = mark.ok_or_else(|| NewError::NotAnSdk { folder: folder.to_owned(), language })?;
        // Without a list it wrote what is written now.
        old = if mark.files.is_empty() { new.clone() } else { mark.files };
        let others: Vec<PathBuf> =
            new.difference(&old).filter(|file| is_there(&folder.join(file))).cloned().collect();
        if !others.is_empty() {
            return Err(NewError::NotOfTheSdk { folder: folder.to_owned(), files: others });
        }
    }
    // Whatever happens on the way, the mark names every file that is there.
    Mark::write(folder, language, &new.union(&old).cloned().collect())?;
    for gone in old.difference(&new) {
        remove(folder, gone);
    }
    copy(&files, folder)?;
    Mark::write(folder, language, &new)
}

/// Writes an SDK into a new folder.
pub(super) fn write_sdk(sources: &Sources, language: Language, folder: &Path) -> Result<(), NewError> {
    let files = files(sources, language)?;
    Mark::write(folder, language, &files.iter().map(|(_, to)| to.clone()).collect())?;
    copy(&files, folder)
}

/// Writes `plugin.wit` and `deps` into a folder.
pub fn write_wit(wit: &Path, folder: &Path) -> Result<(), NewError> {
    copy(&wit_files(wit, Path::new(""))?, folder)
}

/// What a copy consists of: where the installation has it, and where it belongs.
pub(super) fn files(sources: &Sources, language: Language) -> Result<Vec<(PathBuf, PathBuf)>, NewError> {
    let sdk = sources.sdks.join(language.sdk());
    if !sdk.is_dir() {
        return Err(NewError::Incomplete { path: sdk });
    }
    let wit = wit_files(&sources.wit, Path::new("wit"))?;
    let mut files = Vec::new();
    add_files(&sdk, Path::new(""), &LEFT_OUT_AT_TOP, &mut files)?;
    files.extend(wit);
    Ok(files)
}

fn wit_files(wit: &Path, below: &Path) -> Result<Vec<(PathBuf, PathBuf)>, NewError> {
    let plugin = wit.join("plugin.wit");
    if !plugin.is_file() {
        return Err(NewError::Incomplete { path: plugin });
    }
    let mut files = vec![(plugin, below.join("plugin.wit"))];
    add_files(&wit.join("deps"), &below.join("deps"), &[], &mut files)?;
    Ok(files)
}

/// All that is below a folder; `left_out` names what directly in it is not copied.
fn add_files(
    from: &Path,
    below: &Path,
    left_out: &[&str],
    files: &mut Vec<(PathBuf, PathBuf)>,
) -> Result<(), NewError> {
    for path in entries(from)? {
        let name = path.file_name().unwrap_or_default();
        let lost = name.to_string_lossy();
        let is_left_out = left_out.iter().chain(&LEFT_OUT).any(|out| lost == *out);
        if is_left_out || lost.ends_with(".egg-info") {
            continue;
        }
        if path.is_dir() {
            add_files(&path, &below.join(name), &[], files)?;
        } else {
            let to = below.join(name);
            files.push((path, to));
        }
    }
    Ok(())
}

fn copy(files: &[(PathBuf, PathBuf)], folder: &Path) -> Result<(), NewError> {
    create(folder)?;
    // Through a link something else would be written; a pipe would be waited for.
    if let Some((_, odd)) = files.iter().find(|(_, to)| !is_plain(folder, to)) {
        return Err(NewError::NotPlain { path: folder.join(odd) });
    }
    for (from, to) in files {
        let to = folder.join(to);
        create(to.parent().unwrap_or(folder))?;
        copy_file(from, &to)?;
    }
    Ok(())
}

/// Whether nothing is there yet, or a regular file in real folders.
fn is_plain(folder: &Path, file: &Path) -> bool {
    let known = |path: &Path| std::fs::symlink_metadata(folder.join(path)).ok();
    let around = file.ancestors().skip(1).filter(|around| !around.as_os_str().is_empty());
    known(file).is_none_or(|known| known.is_file()) && around.filter_map(known).all(|known| known.is_dir())
}

/// Also a link that leads nowhere is there.
fn is_there(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok()
}

/// Removes a file, and the folders that are empty without it.
fn remove(folder: &Path, file: &Path) {
    let _ = std::fs::remove_file(folder.join(file));
    for around in file.ancestors().skip(1).filter(|around| !around.as_os_str().is_empty()) {
        if std::fs::remove_dir(folder.join(around)).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_versions_are_told() {
        for (version, older) in
            [("0.0.9", true), (VERSION, false), ("99.0.0", false), ("mine", false), ("", false)]
        {
            assert_eq!(is_older(version), older, "{version}");
        }
    }

    #[test]
    fn a_mark_names_nothing_outside_of_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(MARK), "go 0.0.9\nsdk.go\n../mine\n/etc/passwd\nwit/plugin.wit\n")
            .unwrap();
        let mark = Mark::read(folder.path()).unwrap();
        assert_eq!(mark.files, ["sdk.go", "wit/plugin.wit"].map(PathBuf::from).into());
        assert_eq!(version_of(folder.path()).as_deref(), Some("0.0.9"));
    }
}
