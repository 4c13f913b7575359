//! Folders of files: copied, and packed so that the same files give the same archive.

use super::create;
use crate::shell::quietly;
use std::path::Path;
use std::process::Command;
use walkdir::WalkDir;

/// Copies a file with its permissions, and makes the folders above it.
pub(super) fn copy(from: &Path, to: &Path) -> Result<(), String> {
    create(to.parent().unwrap_or(Path::new("/")))?;
    std::fs::copy(from, to).map(drop).map_err(|error| format!("{}: {error}", from.display()))
}

/// Copies all files of a folder, but for what Python leaves behind.
pub(super) fn copy_all(from: &Path, to: &Path) -> Result<(), String> {
    let wanted = |name: &str| name != "__pycache__" && !name.ends_with(".egg-info");
    let walk =
        WalkDir::new(from).into_iter().filter_entry(|entry| wanted(&entry.file_name().to_string_lossy()));
    for entry in walk {
        let entry = entry.map_err(|error| error.to_string())?;
        let inside = entry.path().strip_prefix(from).unwrap_or(entry.path());
        if entry.file_type().is_file() {
            copy(entry.path(), &to.join(inside))?;
        }
    }
    Ok(())
}

/// All that a folder holds as an archive: in order, of root, with no times.
pub(super) fn pack(folder: &Path, file: &Path, gzip: bool) -> Result<(), String> {
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0", "--format=gnu"]);
    tar.args(["--mode=u+rw,go+r,go-w"]);
    if gzip {
        tar.args(["--use-compress-program", "gzip --no-name"]);
    }
    tar.arg("--create").arg("--file").arg(file).arg("--directory").arg(folder);
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .map_err(|error| format!("{}: {error}", folder.display()))?
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    names.sort();
    quietly(tar.args(names)).map(drop)
}
