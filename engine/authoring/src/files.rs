//! Files of a project, which may be anything: only regular ones of a bounded size are read, by this program and by compilers.

use crate::build::BuildError;
use std::fs::Metadata;
use std::path::Path;

/// Bytes of a manifest, and of a file of interfaces.
pub(crate) const TEXT_BYTES_MAX: u64 = 1 << 20;
/// Bytes of any other source.
const SOURCE_BYTES_MAX: u64 = 64 << 20;
/// Endings of what compilers read.
const SOURCES: [&str; 13] =
    ["rs", "js", "mjs", "cjs", "ts", "tsx", "py", "go", "c", "h", "wit", "toml", "json"];
/// Folders with what builds made.
const OF_BUILDS: [&str; 4] = ["build", "target", "node_modules", "__pycache__"];
/// Files looked at, and folders within one another.
const FILES_MAX: usize = 10_000;
const DEPTH_MAX: usize = 16;

/// Why a file is not one to read, from its metadata. A named pipe would be waited for.
pub(crate) fn refusal(file: &Metadata, bytes_max: u64) -> Option<String> {
    if !file.is_file() {
        return Some("it is not a regular file".to_owned());
    }
    (file.len() > bytes_max).then(|| format!("it has more than {} MiB", bytes_max >> 20))
}

/// Refuses a project with a source that a compiler would wait for, or not come to an end of.
pub(crate) fn check_sources(folder: &Path) -> Result<(), BuildError> {
    check_folder(folder, DEPTH_MAX, &mut 0)
}

fn check_folder(folder: &Path, depth: usize, looked_at: &mut usize) -> Result<(), BuildError> {
    // What cannot be read is the compiler's to say.
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        *looked_at += 1;
        if *looked_at > FILES_MAX || name.starts_with('.') || OF_BUILDS.contains(&name.as_ref()) {
            continue;
        }
        let Ok(data) = std::fs::metadata(&path) else { continue };
        let ending = path.extension().and_then(std::ffi::OsStr::to_str).unwrap_or_default();
        if data.is_dir() {
            if depth > 0 {
                check_folder(&path, depth - 1, looked_at)?;
            }
        } else if SOURCES.contains(&ending) {
            let bytes_max = if ending == "wit" { TEXT_BYTES_MAX } else { SOURCE_BYTES_MAX };
            if let Some(reason) = refusal(&data, bytes_max) {
                return Err(BuildError::Source { path, reason });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Command;

    #[test]
    fn pipes_and_endless_files_are_no_sources() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            path
        };
        fs::write(make("src/plugin.c"), "").unwrap();
        std::os::unix::fs::symlink(".", make("src/around")).unwrap();
        assert!(Command::new("mkfifo").arg(make("run/socket")).status().unwrap().success());
        assert!(Command::new("mkfifo").arg(make("build/old.c")).status().unwrap().success());
        check_sources(folder.path()).unwrap();
        let refused = || check_sources(folder.path()).unwrap_err().to_string();
        assert!(Command::new("mkfifo").arg(make("sdk/wit/own.wit")).status().unwrap().success());
        assert!(refused().ends_with("sdk/wit/own.wit: it is not a regular file"), "{}", refused());
        fs::remove_file(make("sdk/wit/own.wit")).unwrap();
        fs::File::create(make("sdk/wit/own.wit")).unwrap().set_len(TEXT_BYTES_MAX + 1).unwrap();
        assert!(refused().ends_with("own.wit: it has more than 1 MiB"), "{}", refused());
    }
}
