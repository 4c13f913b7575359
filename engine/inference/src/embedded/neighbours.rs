//! How many embedded servers of this machine run beside each other: each engine holds the lock of one file in a folder that
//! they share. The kernel lets go of a lock with its process, so what a killed engine leaves counts for nothing.

use std::fs::{self, File};
use std::path::Path;

/// Engines that are told apart; those beyond count as neighbours without a file of their own.
const PLACES: usize = 64;

/// The lock of one file, held for as long as the server runs.
#[derive(Debug, Default)]
pub(super) struct Presence {
    _locked: Option<File>,
    /// Servers that were there before.
    pub(super) others: usize,
}

impl Presence {
    /// Takes the first free place. Where the folder cannot be written, nobody is known.
    pub(super) fn announce(folder: &Path) -> Presence {
        let mut presence = Presence { _locked: None, others: 0 };
        if fs::create_dir_all(folder).is_err() {
            return presence;
        }
        for place in 0..PLACES {
            let file = File::options()
                .create(true)
                .truncate(false)
                .write(true)
                .open(folder.join(format!("{place}.lock")));
            let Ok(file) = file else { return presence };
            match file.try_lock() {
                Err(fs::TryLockError::WouldBlock) => presence.others += 1,
                Ok(()) if presence._locked.is_none() => presence._locked = Some(file),
                // Free: its lock goes with the file.
                Ok(()) => {}
                Err(fs::TryLockError::Error(_)) => return presence,
            }
        }
        presence
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_knows_of_those_that_are_there() {
        let folder = tempfile::tempdir().unwrap();
        let running = folder.path().join("running");
        let first = Presence::announce(&running);
        let second = Presence::announce(&running);
        let third = Presence::announce(&running);
        assert_eq!((first.others, second.others, third.others), (0, 1, 2));
        // A place that was left is taken again, and those behind it are still seen.
        drop(first);
        let again = Presence::announce(&running);
        assert_eq!(again.others, 2);
        drop((second, third, again));
        assert_eq!(Presence::announce(&running).others, 0);
    }

    #[test]
    fn a_folder_that_cannot_be_made_leaves_it_alone() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(Presence::announce(&file.path().join("running")).others, 0);
    }
}
