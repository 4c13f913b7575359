//! Every entry below a folder, in an order in which two walks can be compared: a folder before what is in it, names sorted.

use crate::files::folder::names;
use crate::files::{fault, open};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::cmp::Ordering;
use std::ffi::CString;
use std::os::fd::OwnedFd;
use tonic::Status;

/// Deeper folders are left out.
const DEPTH_MAX: usize = 256;
/// What the agent itself leaves lying for a moment.
const OWN_PREFIX: &[u8] = b".espalier-";

/// The order of a walk: as bytes, with the slash before all others.
pub(super) fn order(one: &[u8], other: &[u8]) -> Ordering {
    let rank = |byte: &u8| if *byte == b'/' { 0 } else { u16::from(*byte) + 1 };
    one.iter().map(rank).cmp(other.iter().map(rank))
}

/// What is kept of an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) path: Vec<u8>,
    /// Kind and permission bits as the kernel has them.
    pub(super) kind: u32,
    pub(super) user: u32,
    pub(super) group: u32,
    pub(super) size: u64,
    pub(super) inode: u64,
    pub(super) modified: (i64, u64),
    pub(super) changed: (i64, u64),
}

impl Entry {
    pub(super) fn of(path: Vec<u8>, stat: &Stat) -> Entry {
        Entry {
            path,
            kind: stat.st_mode,
            user: stat.st_uid,
            group: stat.st_gid,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            inode: stat.st_ino,
            modified: (stat.st_mtime, stat.st_mtime_nsec),
            changed: (stat.st_ctime, stat.st_ctime_nsec),
        }
    }

    pub(super) fn is_file(&self) -> bool {
        FileType::from_raw_mode(self.kind) == FileType::RegularFile
    }

    /// A folder differs by its mode and owner alone: what is in it speaks for itself.
    pub(super) fn differs(&self, other: &Entry) -> bool {
        let folder = FileType::from_raw_mode(other.kind) == FileType::Directory;
        let owned = |entry: &Entry| (entry.kind, entry.user, entry.group);
        let content = |entry: &Entry| (entry.size, entry.inode, entry.modified, entry.changed);
        owned(self) != owned(other) || (!folder && content(self) != content(other))
    }
}

/// See the module.
pub(super) struct Walk<'a> {
    except: &'a [Vec<u8>],
    device: u64,
    open: Vec<Open>,
}

struct Open {
    path: Vec<u8>,
    folder: OwnedFd,
    /// Still to come, last first.
    names: Vec<CString>,
}

impl<'a> Walk<'a> {
    /// Walks below a folder; the folder itself is not told.
    pub(super) fn of(root: &[u8], except: &'a [Vec<u8>]) -> Result<Walk<'a>, Status> {
        let failed = |error| fault(root, error);
        let name = CString::new(root).map_err(|_| failed(Errno::INVAL))?;
        let folder = open(CWD, &name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).map_err(failed)?;
        let device = rustix::fs::fstat(&folder).map_err(failed)?.st_dev;
        let path = if root == b"/" { Vec::new() } else { root.to_vec() };
        let mut walk = Walk { except, device, open: Vec::new() };
        walk.enter(path, folder).map_err(failed)?;
        Ok(walk)
    }

    fn enter(&mut self, path: Vec<u8>, folder: OwnedFd) -> Result<(), Errno> {
        let mut names = names(&folder)?;
        names.reverse();
        self.open.push(Open { path, folder, names });
        Ok(())
    }

    fn step(&mut self) -> Result<Option<(Vec<u8>, Stat)>, Status> {
        loop {
            let Some(open) = self.open.last_mut() else { return Ok(None) };
            let Some(name) = open.names.pop() else {
                self.open.pop();
                continue;
            };
            let path = [&open.path, &b"/"[..], name.to_bytes()].concat();
            if name.to_bytes().starts_with(OWN_PREFIX) || self.except.contains(&path) {
                continue;
            }
            let stat = match rustix::fs::statat(&open.folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                // It went away.
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(fault(&path, error)),
            };
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    // Another file system is told as an empty folder.
                    if stat.st_dev == self.device && self.open.len() < DEPTH_MAX {
                        self.descend(&name, &path)?;
                    }
                }
                FileType::RegularFile | FileType::Symlink => {}
                // Sockets, pipes and devices are not work to take along.
                _ => continue,
            }
            return Ok(Some((path, stat)));
        }
    }

    fn descend(&mut self, name: &CString, path: &[u8]) -> Result<(), Status> {
        let Some(parent) = self.open.last() else { return Ok(()) };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let entered = open(&parent.folder, name, flags, Mode::empty())
            .and_then(|folder| self.enter(path.to_vec(), folder));
        match entered {
            // Gone, or not ours to read: the entry itself is still told.
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => Ok(()),
            Err(error) => Err(fault(path, error)),
        }
    }
}

impl Iterator for Walk<'_> {
    type Item = Result<(Vec<u8>, Stat), Status>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step().transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_comes_before_what_is_in_it_and_that_before_its_neighbours() {
        let mut paths = [&b"/a.b"[..], b"/a/z", b"/a", b"/a/b/c", b"/a/b", b"/a b", b"/b"];
        paths.sort_by(|one, other| order(one, other));
        assert_eq!(paths, [&b"/a"[..], b"/a/b", b"/a/b/c", b"/a/z", b"/a b", b"/a.b", b"/b"]);
    }
}
