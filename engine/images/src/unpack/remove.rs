//! Removes a file or a whole folder by descriptors: follows no link, and opens what an ordinary user closed.

use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};

/// Removes `name` in `parent`, with all that is in it. What is not there is fine.
pub(crate) fn remove(parent: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || rustix::fs::openat(parent, name, flags, Mode::empty());
    let folder = match open() {
        Err(Errno::ACCESS) => {
            // A folder of our own store: nobody can have put a link in its place.
            rustix::fs::chmodat(parent, name, Mode::RWXU, AtFlags::empty())?;
            open()?
        }
        folder => folder?,
    };
    for entry in Dir::read_from(&folder)? {
        let entry = entry?;
        let inner = entry.file_name().to_bytes();
        if inner == b"." || inner == b".." {
            continue;
        }
        match remove(folder.as_fd(), inner) {
            Err(Errno::ACCESS) => {
                rustix::fs::fchmod(&folder, Mode::RWXU)?;
                remove(folder.as_fd(), inner)?;
            }
            done => done?,
        }
    }
    match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOENT) => Ok(()),
        done => done,
    }
}
