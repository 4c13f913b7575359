//! A place for a file: its folder, held open, and its name there. Everything that changes files works with places, so that what
//! is checked is what is changed, whatever a command does to the path meanwhile.

use super::{fault, open};
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use tonic::Status;

/// Most links in a row.
const LINKS_MAX: usize = 40;

/// See the module.
#[derive(Debug)]
pub struct Place {
    /// The folder.
    pub folder: OwnedFd,
    /// The name in it; `.` for the root itself.
    pub name: CString,
    /// The path asked for, for messages.
    pub path: Vec<u8>,
}

/// Who owns what is made.
pub type Owner = Option<(u32, u32)>;

/// Splits a path into folder and last part. Slashes at the end do not count.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let mut path = path;
    while path.len() > 1 && path.ends_with(b"/") {
        path = &path[..path.len() - 1];
    }
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(0) => (b"/", &path[1..]),
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b".", path),
    }
}

impl Place {
    /// Finds the folder of a path; its last part need not exist. `.` and `..` are not names.
    pub fn of(path: &CStr) -> Result<Place, Status> {
        Place::find(path, None)
    }

    /// Like `of`, where no link stands in the way to the folder.
    pub fn without_links(path: &CStr) -> Result<Place, Status> {
        let place = Place::of(path)?;
        let (folder, _) = split(path.to_bytes());
        let failed = |error| fault(path.to_bytes(), error);
        let folder = CString::new(folder).map_err(|_| failed(Errno::INVAL))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat2(CWD, &folder, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
        Ok(Place { folder: opened.map_err(failed)?, ..place })
    }

    /// Like `of`; missing folders are made.
    pub fn with_parents(path: &CStr, owner: Owner) -> Result<Place, Status> {
        Place::find(path, Some(owner))
    }

    fn find(path: &CStr, parents: Option<Owner>) -> Result<Place, Status> {
        let bytes = path.to_bytes();
        let failed = |error| fault(bytes, error);
        let (folder, name) = split(bytes);
        if name == b".." || name == b"." {
            return Err(failed(Errno::INVAL));
        }
        let name = if name.is_empty() { b"." } else { name };
        let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| failed(Errno::INVAL));
        let folder = text(folder)?;
        let opened = match (open_folder(&folder), parents) {
            (Err(Errno::NOENT), Some(owner)) => {
                make_folders(folder.to_bytes(), Mode::from_raw_mode(0o755), owner)
            }
            (opened, _) => opened,
        };
        Ok(Place { folder: opened.map_err(failed)?, name: text(name)?, path: bytes.to_vec() })
    }

    /// The place that a link here points to, link after link; itself where there is no link.
    pub fn follow(self) -> Result<Place, Status> {
        let mut place = self;
        for _ in 0..LINKS_MAX {
            let Ok(target) = rustix::fs::readlinkat(&place.folder, &place.name, Vec::new()) else {
                return Ok(place);
            };
            let failed = |error| fault(&place.path, error);
            let (folder, name) = split(target.to_bytes());
            if name.is_empty() || name == b"." || name == b".." {
                return Err(failed(Errno::ISDIR));
            }
            let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| failed(Errno::INVAL));
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let folder = open(&place.folder, &text(folder)?, flags, Mode::empty()).map_err(failed)?;
            place = Place { folder, name: text(name)?, path: place.path };
        }
        Err(fault(&place.path, Errno::LOOP))
    }

    /// A refusal about this place.
    pub fn fault(&self, error: Errno) -> Status {
        fault(&self.path, error)
    }
}

fn open_folder(path: &CStr) -> Result<OwnedFd, Errno> {
    open(CWD, path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())
}

/// Makes a folder and those above it that are missing; returns the last. What is there already is left as it is.
pub fn make_folders(path: &[u8], mode: Mode, owner: Owner) -> Result<OwnedFd, Errno> {
    let mut folder = open_folder(c"/")?;
    let parts = || path.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
    let last = parts().count();
    for (number, part) in parts().enumerate() {
        let name = CString::new(part).map_err(|_| Errno::INVAL)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        folder = match open(&folder, &name, flags, Mode::empty()) {
            Err(Errno::NOENT) => {
                let mode = if number + 1 == last { mode } else { Mode::from_raw_mode(0o755) };
                make_folder(&folder, &name, mode, owner)?;
                open(&folder, &name, flags, Mode::empty())?
            }
            opened => opened?,
        };
    }
    Ok(folder)
}

/// Makes one folder with exactly this mode.
pub fn make_folder(parent: &OwnedFd, name: &CStr, mode: Mode, owner: Owner) -> Result<(), Errno> {
    match rustix::fs::mkdirat(parent, name, mode) {
        // Somebody was quicker.
        Err(Errno::EXIST) => return Ok(()),
        made => made?,
    }
    if let Some((user, group)) = owner {
        rustix::fs::chownat(
            parent,
            name,
            Some(Uid::from_raw(user)),
            Some(Gid::from_raw(group)),
            AtFlags::SYMLINK_NOFOLLOW,
        )?;
    }
    let made = open(parent, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
    rustix::fs::fchmod(&made, mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_split() {
        for (path, expect) in [
            ("/a/b", ("/a", "b")),
            ("/a/b//", ("/a", "b")),
            ("/a", ("/", "a")),
            ("/", ("/", "")),
            ("///", ("/", "")),
            ("a", (".", "a")),
            ("a/b", ("a", "b")),
        ] {
            let (folder, name) = split(path.as_bytes());
            assert_eq!((folder, name), (expect.0.as_bytes(), expect.1.as_bytes()), "{path}");
        }
    }
}
