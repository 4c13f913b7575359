//! Folders whose images a service gives to strangers. They name a path in one of them; nothing outside is looked at, no link is
//! followed, and only plain files are opened, so that nothing there can hang, or be anything but an image.

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

/// What stands at a path.
pub(crate) enum Found {
    Folder(OwnedFd),
    File(File),
}

/// Looks for a path in each of the folders: from the folder, or from the root and then through one of them. Whatever keeps it from
/// being a folder or a plain file in one of them, there is none.
pub(crate) fn find(folders: &[PathBuf], path: &Path) -> Option<Found> {
    folders.iter().find_map(|folder| {
        let inner = if path.is_absolute() { path.strip_prefix(folder).ok()? } else { path };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(CWD, folder, flags, Mode::empty()).ok()?;
        // The folder itself may be an image.
        if inner.as_os_str().is_empty() {
            return Some(Found::Folder(opened));
        }
        open_folder(&opened, inner)
            .map(Found::Folder)
            .or_else(|_| open_file(&opened, inner).map(Found::File))
            .ok()
    })
}

fn open_folder(folder: impl AsFd, path: &Path) -> Result<OwnedFd, Errno> {
    beneath(folder.as_fd(), path, OFlags::PATH | OFlags::DIRECTORY)
}

/// A plain file below a folder.
pub(crate) fn open_file(folder: impl AsFd, path: &Path) -> Result<File, Errno> {
    let is_plain = |file: &OwnedFd| -> Result<(), Errno> {
        let kind = FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode);
        if kind == FileType::RegularFile { Ok(()) } else { Err(Errno::NOENT) }
    };
    // Opening a device does something; looking at it first does not.
    is_plain(&beneath(folder.as_fd(), path, OFlags::PATH)?)?;
    // It may be a pipe by now.
    let file = beneath(folder.as_fd(), path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
    is_plain(&file)?;
    Ok(file.into())
}

/// Opens what is below a folder, through no link.
fn beneath(folder: impl AsFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(part) => parts.push(part),
            Component::CurDir => {}
            _ => return Err(Errno::XDEV),
        }
    }
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let plain: PathBuf = parts.iter().collect();
    match rustix::fs::openat2(&folder, &plain, flags, Mode::empty(), resolve) {
        // A kernel before 5.6, or a filter that does not know the call.
        Err(Errno::NOSYS | Errno::PERM) => step_by_step(folder, &parts, flags),
        opened => opened,
    }
}

fn step_by_step(folder: impl AsFd, parts: &[&OsStr], flags: OFlags) -> Result<OwnedFd, Errno> {
    let (last, parents) = parts.split_last().ok_or(Errno::NOENT)?;
    let way = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = rustix::fs::openat(&folder, ".", way, Mode::empty())?;
    for part in parents {
        at = rustix::fs::openat(&at, *part, way, Mode::empty())?;
    }
    let opened = rustix::fs::openat(&at, *last, flags, Mode::empty())?;
    // With `O_PATH` a link itself is opened.
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode);
    if kind == FileType::Symlink { Err(Errno::LOOP) } else { Ok(opened) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_plain_files_and_folders_within_are_found() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        std::fs::create_dir_all(at("told/deep")).unwrap();
        std::fs::create_dir(at("other")).unwrap();
        for file in ["told/file", "told/deep/file", "other/file"] {
            std::fs::write(at(file), "x").unwrap();
        }
        symlink(at("other"), at("told/out")).unwrap();
        symlink("deep", at("told/within")).unwrap();
        symlink("file", at("told/link")).unwrap();
        rustix::fs::mknodat(CWD, at("told/pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        let folders = [at("told")];
        let absolute = |name: &str| at(name).to_str().unwrap().to_owned();
        for (path, expect) in [
            ("file".to_owned(), Some("file")),
            ("deep/file".to_owned(), Some("file")),
            ("./deep//file".to_owned(), Some("file")),
            ("deep".to_owned(), Some("folder")),
            (absolute("told/file"), Some("file")),
            (absolute("told"), Some("folder")),
            ("none".to_owned(), None),
            ("deep/../file".to_owned(), None),
            ("../other/file".to_owned(), None),
            ("../none".to_owned(), None),
            ("out".to_owned(), None),
            ("out/file".to_owned(), None),
            ("within/file".to_owned(), None),
            ("link".to_owned(), None),
            ("pipe".to_owned(), None),
            ("file/x".to_owned(), None),
            (absolute("told/../other/file"), None),
            (absolute("other/file"), None),
            ("/etc/passwd".to_owned(), None),
            ("/dev/zero".to_owned(), None),
        ] {
            let found = find(&folders, Path::new(&path)).map(|found| match found {
                Found::Folder(_) => "folder",
                Found::File(_) => "file",
            });
            assert_eq!(found, expect, "{path}");
        }
        // The same on a kernel without `openat2`.
        let told =
            rustix::fs::openat(CWD, at("told"), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        for (path, expect) in [
            ("deep/file", true),
            ("file", true),
            ("link", false),
            ("within/file", false),
            ("out/file", false),
        ] {
            let parts: Vec<&OsStr> = Path::new(path).iter().collect();
            for flags in [OFlags::PATH, OFlags::RDONLY] {
                let opened = step_by_step(&told, &parts, flags | OFlags::NOFOLLOW).is_ok();
                assert_eq!(opened, expect, "{path} {flags:?}");
            }
        }
    }
}
