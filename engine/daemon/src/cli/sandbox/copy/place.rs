//! Where copies go: everything is made by descriptors of folders that were opened without following a link, so that nothing
//! outside of the target is touched, whatever lies in it from a copy before.

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

/// A folder that copies go into.
#[derive(Debug)]
pub(super) struct Target {
    root: OwnedFd,
    /// The folder that was used last, and its path from the root.
    last: Option<(PathBuf, OwnedFd)>,
}

/// Opens a folder by its one name in another.
fn open(folder: impl AsFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::openat(folder, name, flags, Mode::empty())
}

/// What stands at a name, not followed; `None`: nothing.
fn kind(folder: impl AsFd, name: &OsStr) -> io::Result<Option<FileType>> {
    match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn in_the_way(found: FileType, wanted: &str) -> io::Error {
    let found = match found {
        FileType::Symlink => "a link",
        FileType::Directory => "a folder",
        FileType::RegularFile => "a file",
        _ => "a special file",
    };
    io::Error::other(format!("{found} is in the way of {wanted}"))
}

/// A folder at a name of another: made, or the one that is there, which stays as it is.
fn make(folder: impl AsFd, name: &OsStr, mode: u32) -> io::Result<OwnedFd> {
    let made = match rustix::fs::mkdirat(&folder, name, Mode::RWXU) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(error) => return Err(error.into()),
    };
    let opened = match open(&folder, name) {
        Ok(opened) => opened,
        Err(error) => {
            let found = kind(&folder, name)?.filter(|found| *found != FileType::Directory);
            return Err(found.map_or_else(|| error.into(), |found| in_the_way(found, "a folder")));
        }
    };
    if made {
        rustix::fs::fchmod(&opened, Mode::from_raw_mode(mode & 0o777 | 0o700))?;
    }
    Ok(opened)
}

/// The folder that a path of the user's own is in, and its name there.
fn parent(path: &Path) -> io::Result<(OwnedFd, OsString)> {
    let name = path.file_name().ok_or_else(|| io::Error::other("no name"))?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    Ok((rustix::fs::openat(CWD, folder, flags, Mode::empty())?, name.to_owned()))
}

impl Target {
    /// The folder at this path, made where it is not.
    pub(super) fn folder(path: &Path, mode: u32) -> io::Result<Target> {
        // `..` and the like name a folder that is there, and no name in another.
        let root = match parent(path) {
            Ok((folder, name)) => make(&folder, &name, mode)?,
            Err(_) if path.is_dir() => {
                let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
                rustix::fs::openat(CWD, path, flags, Mode::empty())?
            }
            Err(error) => return Err(error),
        };
        Ok(Target { root, last: None })
    }

    /// The folder that this path is in, and the path from there.
    pub(super) fn beside(path: &Path) -> io::Result<(Target, PathBuf)> {
        let (root, name) = parent(path)?;
        Ok((Target { root, last: None }, name.into()))
    }

    /// The folder that a path below this one is in, and its name there.
    fn at<'a>(&mut self, path: &'a Path) -> io::Result<(&OwnedFd, &'a OsStr)> {
        let name = path.file_name().ok_or_else(|| io::Error::other("no name"))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        if folder.as_os_str().is_empty() {
            return Ok((&self.root, name));
        }
        let (mut opened, rest) = match self.last.take() {
            // Entries come in the order of the tree: often it is the same one, or one below.
            Some((known, opened)) if folder.starts_with(&known) => {
                (opened, folder.strip_prefix(&known).unwrap_or(folder))
            }
            _ => (self.root.try_clone()?, folder),
        };
        for part in rest.components() {
            let Component::Normal(part) = part else { return Err(io::Error::other("not a plain file name")) };
            opened = match open(&opened, part) {
                Ok(opened) => opened,
                Err(error) => {
                    let found = kind(&opened, part)?.filter(|found| *found != FileType::Directory);
                    return Err(found.map_or_else(|| error.into(), |found| in_the_way(found, "a folder")));
                }
            };
        }
        let (_, opened) = self.last.insert((folder.to_owned(), opened));
        Ok((opened, name))
    }

    /// A folder below, made where it is not.
    pub(super) fn make_folder(&mut self, path: &Path, mode: u32) -> io::Result<()> {
        let (folder, name) = self.at(path)?;
        make(folder, name, mode).map(drop)
    }

    /// A link below, in the place of one that was there.
    pub(super) fn link(&mut self, path: &Path, target: &[u8]) -> io::Result<()> {
        let (folder, name) = self.at(path)?;
        match kind(folder, name)? {
            None => {}
            Some(FileType::Symlink) => rustix::fs::unlinkat(folder, name, AtFlags::empty())?,
            Some(found) => return Err(in_the_way(found, "a link")),
        }
        Ok(rustix::fs::symlinkat(target, folder, name)?)
    }

    /// A file that is going to be at this path below.
    pub(super) fn new_file(&mut self, path: &Path) -> io::Result<NewFile> {
        let (folder, name) = self.at(path)?;
        if let Some(found) = kind(folder, name)?.filter(|found| *found != FileType::RegularFile) {
            return Err(in_the_way(found, "a file"));
        }
        let (folder, name) = (folder.try_clone()?, name.to_owned());
        let new = OsString::from(format!(".espalier-{}", espalier_sandbox::service::random_id()));
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&folder, &new, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(NewFile { folder, new: Some(new), name, file: file.into() })
    }
}

/// A file that is being written under another name; gone when it is dropped before it is kept.
#[derive(Debug)]
pub(super) struct NewFile {
    folder: OwnedFd,
    new: Option<OsString>,
    name: OsString,
    file: File,
}

impl NewFile {
    /// To write to.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Puts it into its place, with this mode.
    pub(super) fn keep(mut self, mode: u32) -> io::Result<()> {
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(mode & 0o777))?;
        if let Some(new) = &self.new {
            rustix::fs::renameat(&self.folder, new, &self.folder, &self.name)?;
        }
        self.new = None;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(new) = &self.new {
            let _ = rustix::fs::unlinkat(&self.folder, new, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn write(target: &mut Target, path: &str) -> io::Result<()> {
        let new = target.new_file(Path::new(path))?;
        new.file().set_len(3)?;
        new.keep(0o640)
    }

    #[test]
    fn what_lies_in_the_target_leads_nowhere() {
        let place = tempfile::tempdir().unwrap();
        let outside = place.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("file"), "kept").unwrap();
        std::fs::set_permissions(&outside, std::fs::Permissions::from_mode(0o700)).unwrap();
        std::fs::set_permissions(outside.join("file"), std::fs::Permissions::from_mode(0o600)).unwrap();
        let to = place.path().join("to");
        let mut target = Target::folder(&to, 0o777).unwrap();
        symlink(&outside, to.join("folder")).unwrap();
        symlink(outside.join("file"), to.join("file")).unwrap();
        let said = |result: io::Result<()>| result.unwrap_err().to_string();
        assert_eq!(said(target.make_folder(Path::new("folder"), 0o777)), "a link is in the way of a folder");
        assert_eq!(said(target.make_folder(Path::new("file"), 0o777)), "a link is in the way of a folder");
        assert_eq!(said(write(&mut target, "file")), "a link is in the way of a file");
        assert_eq!(said(write(&mut target, "folder/file")), "a link is in the way of a folder");
        assert_eq!(said(target.link(Path::new("folder/new"), b"x")), "a link is in the way of a folder");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&outside), mode(&outside.join("file"))), (0o700, 0o600));
        assert_eq!(std::fs::read_to_string(outside.join("file")).unwrap(), "kept");
        assert!(
            Target::folder(&to.join("folder"), 0o777).is_err(),
            "the target itself is a link of an earlier copy"
        );
        // What is not a link is written, and written again.
        for _ in 0..2 {
            target.make_folder(Path::new("a"), 0o750).unwrap();
            target.make_folder(Path::new("a/b"), 0o750).unwrap();
            write(&mut target, "a/b/c").unwrap();
            target.link(Path::new("a/l"), b"b").unwrap();
            write(&mut target, "a/d").unwrap();
        }
        assert_eq!((mode(&to.join("a/b")), mode(&to.join("a/b/c"))), (0o750, 0o640));
        assert_eq!(said(target.link(Path::new("a/b"), b"x")), "a folder is in the way of a link");
        assert_eq!(said(write(&mut target, "a/b")), "a folder is in the way of a file");
        assert_eq!(std::fs::read_dir(to.join("a/b")).unwrap().count(), 1, "no other name is left");
    }
}
