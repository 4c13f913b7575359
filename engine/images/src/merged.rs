//! What an overlay of unpacked layers would show by a name, without mounting it.

use crate::fault::Fault;
use crate::unpack::{Rights, whiteout};
use rustix::io::Errno;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Layers as they lie on each other.
#[derive(Clone, Debug)]
pub(crate) struct Merged {
    /// Lowest first.
    layers: Vec<PathBuf>,
    rights: Rights,
}

impl Merged {
    pub(crate) fn new(layers: Vec<PathBuf>, rights: Rights) -> Merged {
        Merged { layers, rights }
    }

    /// Where what shows by this name lies. No symbolic link is followed.
    pub(crate) fn find(&self, path: &[u8]) -> Result<Option<PathBuf>, Fault> {
        let mut folders: Vec<PathBuf> = self.layers.iter().rev().cloned().collect();
        let mut parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).peekable();
        while let Some(part) = parts.next() {
            let mut next = Vec::new();
            for folder in folders {
                let file = folder.join(std::ffi::OsStr::from_bytes(part));
                let stat = match rustix::fs::lstat(&file) {
                    Err(Errno::NOENT) => continue,
                    stat => stat.map_err(Fault::write("looking at", path))?,
                };
                let is_folder =
                    rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Directory;
                if whiteout(&stat) || !is_folder && !next.is_empty() {
                    break;
                }
                if !is_folder {
                    let shows = parts.peek().is_none();
                    return Ok(shows.then_some(file));
                }
                let opaque = self.opaque(&file).map_err(Fault::write("reading attributes of", path))?;
                next.push(file);
                if opaque {
                    break;
                }
            }
            if next.is_empty() {
                return Ok(None);
            }
            folders = next;
        }
        Ok(folders.into_iter().next())
    }

    /// Whether the layers below would make a folder look otherwise than one that the layer above does not describe.
    pub(crate) fn changes(&self, folder: &[u8]) -> Result<bool, Fault> {
        // A symbolic link on the way changes it as well.
        let ends = folder.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
        for end in ends.chain([folder.len()]) {
            if let Some(found) = self.find(&folder[..end])? {
                let stat = found.symlink_metadata().map_err(Fault::write("looking at", folder))?;
                if end == folder.len() || stat.is_symlink() {
                    return Ok(stat.is_symlink() || stat.is_dir());
                }
            }
        }
        Ok(false)
    }

    fn opaque(&self, folder: &Path) -> Result<bool, Errno> {
        let mut value = [0; 1];
        match rustix::fs::lgetxattr(folder, self.rights.opaque(), &mut value[..]) {
            Ok(length) => Ok(value[..length] == *b"y"),
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
