//! Temporary folders that do not outlive their owner: a lock says whether it lives, and whoever makes the first one of a program removes
//! those whose owner was killed.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;
use tempfile::TempDir;

/// What every one's name begins with.
const PREFIX: &str = "espalier-chromium-";
/// A folder is made before it is locked; nobody takes as long as this in between.
const AGE_MIN: Duration = Duration::from_secs(60);

/// A folder of this process, removed when it is dropped.
#[derive(Debug)]
pub(crate) struct OwnFolder {
    // Removed before the lock is given up.
    folder: TempDir,
    _lock: File,
}

impl OwnFolder {
    /// `kind` is part of its name.
    pub(crate) fn new(kind: &str) -> io::Result<OwnFolder> {
        static SWEPT: Once = Once::new();
        SWEPT.call_once(|| {
            // The folders of others take time, and nothing waits for them.
            let _ = std::thread::Builder::new().name("espalier-folders".to_owned()).spawn(|| {
                sweep(&std::env::temp_dir(), AGE_MIN);
            });
        });
        OwnFolder::below(&std::env::temp_dir(), kind)
    }

    fn below(parent: &Path, kind: &str) -> io::Result<OwnFolder> {
        let folder = tempfile::Builder::new().prefix(&format!("{PREFIX}{kind}-")).tempdir_in(parent)?;
        let lock = File::open(folder.path())?;
        lock.lock()?;
        Ok(OwnFolder { folder, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Removes it, and says so where it cannot.
    pub(crate) fn close(self) -> io::Result<()> {
        self.folder.close()
    }
}

/// Removes the folders of owners that are gone, which are this user's.
fn sweep(parent: &Path, age_min: Duration) {
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    let user = rustix::process::geteuid().as_raw();
    let abandoned = entries.filter_map(Result::ok).filter(|entry| {
        let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        // Of the entry itself: a link is nobody's folder.
        is_ours && entry.metadata().is_ok_and(|of| of.is_dir() && of.uid() == user && is_old(&of, age_min))
    });
    for path in abandoned.map(|entry| entry.path()) {
        if let Err(error) = remove_abandoned(&path) {
            tracing::debug!(%error, folder = %path.display(), "folder of a browser that is gone not removed");
        }
    }
}

fn is_old(of: &Metadata, least: Duration) -> bool {
    of.modified().ok().and_then(|at| at.elapsed().ok()).is_some_and(|age| age >= least)
}

fn remove_abandoned(path: &PathBuf) -> io::Result<()> {
    let lock = File::open(path)?;
    match lock.try_lock() {
        Ok(()) => std::fs::remove_dir_all(path),
        Err(std::fs::TryLockError::WouldBlock) => Ok(()),
        Err(std::fs::TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_owners_that_are_gone_are_removed_and_no_others() {
        let parent = tempfile::tempdir().unwrap();
        let kept = OwnFolder::below(parent.path(), "profile").unwrap();
        let closed = OwnFolder::below(parent.path(), "profile").unwrap();
        let gone = closed.path().to_owned();
        closed.close().unwrap();
        let abandoned = parent.path().join(format!("{PREFIX}downloads-killed"));
        std::fs::create_dir_all(abandoned.join("Default/Cache")).unwrap();
        std::fs::create_dir(parent.path().join("of-somebody-else")).unwrap();
        std::os::unix::fs::symlink("of-somebody-else", parent.path().join(format!("{PREFIX}link"))).unwrap();

        sweep(parent.path(), Duration::from_secs(3600));
        assert!(abandoned.exists(), "it may be a new one whose owner has not locked it yet");
        sweep(parent.path(), Duration::ZERO);

        assert!(!gone.exists() && !abandoned.exists());
        assert!(kept.path().exists() && parent.path().join("of-somebody-else").exists());
        assert!(parent.path().join(format!("{PREFIX}link")).is_symlink());
    }
}
