//! A folder that nobody but this process's user can have put anything into.
//!
//! Compiled code is run as it is found. So every folder on the way to it, and every link, belongs to this user or to root,
//! and nobody else can write to it; as sshd asks of `authorized_keys`. A folder like `/tmp`, in which others can make names
//! but cannot take ours away (sticky), may be on the way.

use rustix::fs::{Mode, OFlags};
use std::ffi::OsString;
use std::fs::{DirBuilder, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

/// Links that are followed on the way.
const LINKS_MAX: u32 = 40;
const WRITABLE_BY_GROUP: u32 = 0o020;
const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;
/// What is read of the list of users, to name an owner.
const USERS_BYTES_MAX: u64 = 1 << 20;

/// Why a folder is not used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Somebody else may have put there what is found in it.
    #[error("{0}")]
    Untrusted(String),
    /// It cannot be made or opened.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Opens a folder of this process's user, and makes what is missing of it, for this user alone.
pub fn open_own_folder(path: &Path) -> Result<OwnedFd, FolderError> {
    let user = rustix::process::geteuid().as_raw();
    let real = resolve(path, user, |missing| DirBuilder::new().mode(0o700).create(missing))?;
    open(&real, user)
}

/// What [`open_own_folder`] would say of what there is; nothing is made.
pub fn check_own_folder(path: &Path) -> Result<(), FolderError> {
    let user = rustix::process::geteuid().as_raw();
    let missing = |_: &Path| Err(io::Error::from(io::ErrorKind::NotFound));
    match resolve(path, user, missing) {
        Ok(real) => open(&real, user).map(drop),
        Err(FolderError::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn open(real: &Path, user: u32) -> Result<OwnedFd, FolderError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(real, flags, Mode::empty()).map_err(io::Error::from)?;
    let stat = rustix::fs::fstat(&folder).map_err(io::Error::from)?;
    if stat.st_uid != user {
        return Err(FolderError::Untrusted(format!(
            "{} belongs to {}, not to {}",
            real.display(),
            user_name(stat.st_uid),
            user_name(user)
        )));
    }
    if stat.st_mode & WRITABLE_BY_OTHERS != 0 {
        return Err(writable(real, stat.st_mode, stat.st_uid));
    }
    Ok(folder)
}

/// The path without links, each folder on the way checked before anything in it is believed. What is missing is made.
fn resolve(path: &Path, user: u32, make: impl Fn(&Path) -> io::Result<()>) -> Result<PathBuf, FolderError> {
    let mut left = names(&std::path::absolute(path)?);
    let mut at = PathBuf::from("/");
    check(&at, &std::fs::symlink_metadata(&at)?, user)?;
    let mut links = 0;
    while let Some(name) = left.pop() {
        if name == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&name);
        let metadata = match std::fs::symlink_metadata(&next) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match make(&next) {
                    // Whoever was quicker is looked at like anybody else.
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
                    _ => std::fs::symlink_metadata(&next)?,
                }
            }
            other => other?,
        };
        if metadata.is_symlink() {
            check_owner(&next, &metadata, user)?;
            links += 1;
            if links > LINKS_MAX {
                return Err(io::Error::from(rustix::io::Errno::LOOP).into());
            }
            let target = std::fs::read_link(&next)?;
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            left.extend(names(&target));
        } else if metadata.is_dir() {
            // The last one is looked at more closely, when it is open.
            if !left.is_empty() {
                check(&next, &metadata, user)?;
            }
            at = next;
        } else {
            return Err(io::Error::from(rustix::io::Errno::NOTDIR).into());
        }
    }
    Ok(at)
}

/// Names along a path, the last one first.
fn names(path: &Path) -> Vec<OsString> {
    let names = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        _ => None,
    });
    let mut names: Vec<OsString> = names.collect();
    names.reverse();
    names
}

fn check(folder: &Path, metadata: &Metadata, user: u32) -> Result<(), FolderError> {
    check_owner(folder, metadata, user)?;
    let mode = metadata.mode();
    // Many systems give each user a group of the same number with nobody else in it, and let it write by default.
    let own_group = user != 0 && metadata.gid() == user && mode & WRITABLE_BY_OTHERS == WRITABLE_BY_GROUP;
    if mode & WRITABLE_BY_OTHERS != 0 && mode & STICKY == 0 && !own_group {
        return Err(writable(folder, mode, metadata.uid()));
    }
    Ok(())
}

fn check_owner(path: &Path, metadata: &Metadata, user: u32) -> Result<(), FolderError> {
    let owner = metadata.uid();
    if owner == user || owner == 0 {
        return Ok(());
    }
    let (owner, user) = (user_name(owner), user_name(user));
    Err(FolderError::Untrusted(format!("{} belongs to {owner}, not to {user}", path.display())))
}

fn writable(folder: &Path, mode: u32, owner: u32) -> FolderError {
    let mode = mode & 0o7777;
    let owner = user_name(owner);
    FolderError::Untrusted(format!(
        "other users can write to {} (mode {mode:04o}, owner {owner})",
        folder.display()
    ))
}

/// `alice (uid 1000)`, or the number alone.
fn user_name(uid: u32) -> String {
    use std::io::Read;
    let mut users = String::new();
    let read = std::fs::File::open("/etc/passwd")
        .and_then(|file| file.take(USERS_BYTES_MAX).read_to_string(&mut users));
    let number = uid.to_string();
    let name = read.ok().and_then(|_| {
        users.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            (fields.nth(1)? == number).then_some(name)
        })
    });
    match name {
        Some(name) => format!("{name} (uid {uid})"),
        None => format!("uid {uid}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn refusal(path: &Path) -> String {
        match open_own_folder(path).unwrap_err() {
            FolderError::Untrusted(text) => text,
            FolderError::Io(error) => panic!("{error}"),
        }
    }

    /// A folder below one that only this user can write to.
    fn place() -> (tempfile::TempDir, PathBuf) {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().canonicalize().unwrap();
        (place, path)
    }

    #[test]
    fn a_missing_folder_is_made_for_this_user_alone() {
        let (_place, path) = place();
        check_own_folder(&path.join("a/b/c")).unwrap();
        assert!(!path.join("a").exists());
        open_own_folder(&path.join("a/b/c")).unwrap();
        for made in ["a", "a/b", "a/b/c"] {
            let made = std::fs::metadata(path.join(made)).unwrap();
            assert_eq!(made.mode() & 0o777, 0o700);
        }
        open_own_folder(&path.join("a/../a/b")).unwrap();
    }

    #[test]
    fn what_others_can_write_to_is_refused_wherever_it_is_on_the_way() {
        let (_place, path) = place();
        let folder = path.join("a/b/c");
        open_own_folder(&folder).unwrap();
        for (at, bits, refused) in [
            ("a/b/c", 0o777, true),
            ("a/b/c", 0o1777, true),
            ("a/b/c", 0o770, true),
            ("a/b/c", 0o702, true),
            ("a/b/c", 0o755, false),
            ("a/b", 0o777, true),
            ("a/b", 0o702, true),
            ("a/b", 0o1777, false),
            ("a", 0o757, true),
            ("a", 0o755, false),
        ] {
            let at = path.join(at);
            mode(&at, bits);
            if refused {
                let text = refusal(&folder);
                let start = format!("other users can write to {} (mode {bits:04o}, owner ", at.display());
                assert!(text.starts_with(&start), "{text}");
                assert!(check_own_folder(&folder).is_err());
            } else {
                open_own_folder(&folder).unwrap();
            }
            mode(&at, 0o700);
        }
    }

    #[test]
    fn links_are_followed_by_the_same_rules() {
        let (_place, path) = place();
        let open = path.join("open");
        std::fs::create_dir(&open).unwrap();
        symlink("real", path.join("link")).unwrap();
        symlink(open.join("within"), path.join("to-open")).unwrap();
        symlink("ring", path.join("ring")).unwrap();
        open_own_folder(&path.join("link/x")).unwrap();
        assert!(path.join("real/x").is_dir());
        mode(&open, 0o777);
        assert!(refusal(&path.join("to-open")).starts_with("other users can write to "));
        assert!(matches!(open_own_folder(&path.join("ring")), Err(FolderError::Io(_))));
        std::fs::write(path.join("file"), "").unwrap();
        assert!(matches!(open_own_folder(&path.join("file/x")), Err(FolderError::Io(_))));
    }

    /// What only root can set up.
    #[test]
    fn what_belongs_to_somebody_else_is_refused_by_name() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let (_place, path) = place();
        let folder = path.join("home/cache");
        open_own_folder(&folder).unwrap();
        let nobody = "nobody (uid 65534)";
        for at in ["home/cache", "home"] {
            let at = path.join(at);
            std::os::unix::fs::chown(&at, Some(65534), Some(65534)).unwrap();
            assert_eq!(
                refusal(&folder),
                format!("{} belongs to {nobody}, not to root (uid 0)", at.display())
            );
            // Nothing is made in a folder of somebody else.
            assert!(refusal(&folder.join("new")).contains(nobody));
            std::os::unix::fs::chown(&at, Some(0), Some(0)).unwrap();
        }
        assert!(!folder.join("new").exists());
        let link = path.join("link");
        symlink("home", &link).unwrap();
        std::os::unix::fs::lchown(&link, Some(65534), Some(65534)).unwrap();
        assert!(refusal(&link).starts_with(&format!("{} belongs to {nobody}", link.display())));
    }
}
