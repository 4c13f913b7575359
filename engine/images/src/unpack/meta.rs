//! What a file looks like beside its content: mode, owner, time, attributes; taken from one file, put onto another.

use crate::entries::{Mtime, Xattrs};
use crate::fault::Fault;
use crate::path_of;
use crate::unpack::Rights;
use rustix::fs::{AtFlags, FileType, Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

#[derive(Clone, Debug, Default)]
pub(super) struct Meta {
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mtime: Mtime,
    pub(super) xattrs: Xattrs,
}

/// Most bytes of an attribute's value that the kernel takes.
const XATTR_MAX: usize = 64 << 10;

/// Whether a file hides what lies below it in an overlay.
pub(crate) fn whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

/// Whether an attribute of a layer is put onto the file. Those of the machine that made the layer are not.
pub(super) fn kept(name: &[u8], rights: Rights) -> bool {
    let of_root = ["security.capability", "system.posix_acl_access", "system.posix_acl_default"];
    name.starts_with(b"user.")
        || rights == Rights::Root && of_root.iter().any(|other| other.as_bytes() == name)
}

impl Meta {
    fn times(&self) -> Timestamps {
        let time = Timespec { tv_sec: self.mtime.seconds, tv_nsec: self.mtime.nanos.into() };
        Timestamps { last_access: time, last_modification: time }
    }

    /// Onto an open file or folder.
    pub(super) fn onto_file(
        &self,
        fd: &OwnedFd,
        rights: Rights,
        path: &[u8],
        skipped: &mut u64,
    ) -> Result<(), Fault> {
        if rights == Rights::Root {
            // Takes setuid and capabilities away, so that it comes first.
            rustix::fs::fchown(fd, Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.gid)))
                .map_err(Fault::write("changing the owner of", path))?;
        }
        for (name, value) in &self.xattrs {
            let shown = || format!("{}: the attribute {}", path_of(path).display(), path_of(name).display());
            if value.len() > XATTR_MAX || name.contains(&0) {
                return Err(Fault::bad(format!("{}, which no file system supports", shown())));
            }
            match rustix::fs::fsetxattr(fd, name.as_slice(), value, XattrFlags::empty()) {
                Ok(()) => {}
                Err(Errno::OPNOTSUPP | Errno::PERM | Errno::INVAL | Errno::RANGE) => *skipped += 1,
                // The space within an inode, not that of the disk.
                Err(Errno::NOSPC | Errno::TOOBIG) if value.len() > 1024 => *skipped += 1,
                Err(error) => return Err(Fault::write("setting an attribute of", path)(error)),
            }
        }
        rustix::fs::fchmod(fd, Mode::from_raw_mode(self.mode)).map_err(Fault::write("changing", path))?;
        rustix::fs::futimens(fd, &self.times()).map_err(Fault::write("setting the time of", path))
    }

    /// Onto what cannot be opened: a link, a device, a pipe.
    pub(super) fn onto_name(
        &self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        rights: Rights,
        path: &[u8],
    ) -> Result<(), Fault> {
        let nofollow = AtFlags::SYMLINK_NOFOLLOW;
        if rights == Rights::Root {
            let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
            rustix::fs::chownat(parent, name, Some(uid), Some(gid), nofollow)
                .map_err(Fault::write("changing the owner of", path))?;
        }
        let there = rustix::fs::statat(parent, name, nofollow).map_err(Fault::write("looking at", path))?;
        if FileType::from_raw_mode(there.st_mode) != FileType::Symlink {
            // Just made, in a folder that is ours alone: no link is followed.
            rustix::fs::chmodat(parent, name, Mode::from_raw_mode(self.mode), AtFlags::empty())
                .map_err(Fault::write("changing", path))?;
        }
        rustix::fs::utimensat(parent, name, &self.times(), nofollow)
            .map_err(Fault::write("setting the time of", path))
    }
}

/// What a file of a lower layer looks like.
pub(super) fn of(file: &Path, rights: Rights, path: &[u8]) -> Result<Meta, Fault> {
    let stat = file.symlink_metadata().map_err(Fault::write("looking at", path))?;
    let mut xattrs = Vec::new();
    if !stat.is_symlink() {
        for (name, value) in self::xattrs(file).map_err(Fault::write("reading attributes of", path))? {
            if kept(&name, rights) && !name.starts_with(b"user.overlay.") {
                xattrs.push((name, value));
            }
        }
    }
    let mtime = Mtime { seconds: stat.mtime(), nanos: u32::try_from(stat.mtime_nsec()).unwrap_or_default() };
    Ok(Meta { mode: stat.mode() & 0o7777, uid: stat.uid(), gid: stat.gid(), mtime, xattrs })
}

/// Every attribute of a file, itself and not what it links to, by name.
pub(crate) fn xattrs(file: &Path) -> Result<Xattrs, Errno> {
    let mut names = vec![0_u8; XATTR_MAX];
    let length = match rustix::fs::llistxattr(file, &mut names[..]) {
        Err(Errno::OPNOTSUPP) => 0,
        length => length?,
    };
    let mut found = Vec::new();
    let mut value = Vec::new();
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        value.resize(XATTR_MAX, 0);
        match rustix::fs::lgetxattr(file, name, &mut value[..]) {
            Ok(length) => found.push((name.to_vec(), value[..length].to_vec())),
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM) => {}
            Err(error) => return Err(error),
        }
    }
    found.sort();
    Ok(found)
}

/// Copies everything but folders out of a lower layer, since a hard link cannot reach into it: the overlay shows two files, with
/// the same content. Returns about how many bytes it takes.
pub(super) fn copy(
    file: &Path,
    parent: BorrowedFd<'_>,
    name: &[u8],
    path: &[u8],
    rights: Rights,
) -> Result<u64, Fault> {
    let meta = of(file, rights, path)?;
    let stat = file.symlink_metadata().map_err(Fault::write("looking at", path))?;
    let kind = stat.file_type();
    if kind.is_symlink() {
        let target = std::fs::read_link(file).map_err(Fault::write("reading", path))?;
        rustix::fs::symlinkat(target, parent, name).map_err(Fault::write("linking", path))?;
    } else if kind.is_file() {
        let from = std::fs::File::open(file).map_err(Fault::write("opening", path))?;
        let to = std::fs::File::from(super::create(parent, name, path)?);
        crate::sparse::copy(&from, &to).map_err(Fault::write("copying", path))?;
        let fd = OwnedFd::from(to);
        meta.onto_file(&fd, rights, path, &mut 0)?;
        return Ok(stat.blocks() * 512);
    } else if kind.is_dir() {
        return Err(Fault::bad(format!("{}: a hard link to a folder", path_of(path).display())));
    } else {
        let node = if kind.is_fifo() {
            FileType::Fifo
        } else if kind.is_block_device() {
            FileType::BlockDevice
        } else {
            FileType::CharacterDevice
        };
        rustix::fs::mknodat(parent.as_fd(), name, node, Mode::from_raw_mode(0o600), stat.rdev())
            .map_err(Fault::write("making the node", path))?;
    }
    meta.onto_name(parent, name, rights, path)?;
    Ok(256)
}
