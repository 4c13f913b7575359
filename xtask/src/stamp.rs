//! What was done and needs no doing again: a stamp holds the hash of all that a result depends on.

use crate::place;
use std::path::{Path, PathBuf};
use walkdir::{DirEntry, WalkDir};

/// Never part of an input.
const LEFT_OUT: [&str; 5] = ["target", "node_modules", "__pycache__", "dist", ".git"];

/// Names a result by its inputs.
#[derive(Clone)]
pub struct Stamp {
    file: PathBuf,
    hash: blake3::Hasher,
}

impl Stamp {
    /// Stamp of something that belongs to this checkout.
    pub fn here(name: &str) -> Stamp {
        Stamp { file: place::root().join(".setup").join(name), hash: blake3::Hasher::new() }
    }

    /// With the same inputs, of another result of this checkout.
    #[must_use]
    pub fn named(&self, name: &str) -> Stamp {
        Stamp { file: Stamp::here(name).file, hash: self.hash.clone() }
    }

    /// Stamp of a folder outside of it; it lies inside, and goes with it.
    pub fn inside(folder: &Path) -> Stamp {
        Stamp { file: folder.join(".espalier-stamp"), hash: blake3::Hasher::new() }
    }

    /// Adds a text.
    #[must_use]
    pub fn text(mut self, text: &str) -> Stamp {
        self.hash.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
        self
    }

    /// Adds a file, or all files of a folder, names and contents. What cannot be read counts as empty.
    #[must_use]
    pub fn path(mut self, path: &Path) -> Stamp {
        let wanted = |entry: &DirEntry| !LEFT_OUT.iter().any(|name| entry.file_name() == *name);
        let walk = WalkDir::new(path).sort_by_file_name().into_iter().filter_entry(wanted);
        for entry in walk.filter_map(Result::ok).filter(|entry| entry.file_type().is_file()) {
            let name = entry.path().strip_prefix(path).unwrap_or(path).to_string_lossy().into_owned();
            let content = std::fs::read(entry.path()).unwrap_or_default();
            self = self.text(&name);
            self.hash.update(&(content.len() as u64).to_le_bytes()).update(&content);
        }
        self
    }

    /// Does the work unless it was done for these inputs and its results are still there.
    pub fn unless_done(
        self,
        results: &[PathBuf],
        work: impl FnOnce() -> Result<(), String>,
    ) -> Result<bool, String> {
        if self.is_done(results) {
            return Ok(false);
        }
        work()?;
        self.done().map(|()| true)
    }

    /// Whether it was done for these inputs, and its results are still there.
    pub fn is_done(&self, results: &[PathBuf]) -> bool {
        let done = std::fs::read_to_string(&self.file).is_ok_and(|old| old == self.text_of());
        done && results.iter().all(|result| result.exists())
    }

    /// Notes that it is done.
    pub fn done(&self) -> Result<(), String> {
        std::fs::create_dir_all(self.file.parent().unwrap_or(Path::new(".")))
            .and_then(|()| std::fs::write(&self.file, self.text_of()))
            .map_err(|error| format!("{}: {error}", self.file.display()))
    }

    /// What names the result: 64 hexadecimal digits.
    pub fn name(&self) -> String {
        self.text_of()
    }

    fn text_of(&self) -> String {
        self.hash.finalize().to_hex().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_for_one_result_is_not_done_for_another() {
        let folder = std::env::temp_dir().join(format!("espalier-stamps-{}", std::process::id()));
        let stamp = |name: &str, inputs: &str| {
            Stamp { file: folder.join(name), hash: blake3::Hasher::new() }.text(inputs)
        };
        stamp("one", "v1").done().unwrap();
        assert!(stamp("one", "v1").is_done(&[]));
        assert!(!stamp("one", "v1").is_done(&[folder.join("gone")]), "its result is gone");
        assert!(!stamp("two", "v1").is_done(&[]) && !stamp("one", "v2").is_done(&[]));
        stamp("two", "v1").done().unwrap();
        assert!(stamp("one", "v1").is_done(&[]), "another result took nothing away");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
