//! Makes an overlay's lower folder of a layer's tar.
//!
//! The tar is untrusted: every name is walked from the folder's own descriptor part by part
//! (`unpack/place.rs`), so that no `..`, symbolic link or hard link leads out of it. What it means:
//! - `.wh.NAME` becomes a character device 0:0, `.wh..wh..opq` an opaque mark on its folder: `trusted.overlay.opaque` for
//!   root, `user.overlay.opaque` else. Both hide what lower layers hold, never what this one does, in whatever order.
//! - Of two entries of one name the later holds; a folder over a folder keeps what is in it.
//! - Absolute names begin at the image's root. `..` in a name is refused, as is a mark of the overlay's own.
//! - Root keeps owners, devices and capabilities. For everybody else all is the user's own, and devices and capabilities are
//!   left out and counted.
//!
//! A layer is unpacked without those below it, once for all images. Where it leans on them (a folder that it does not list
//! itself, a hard link to a file that is not its own), [`Report`] says so, and it is unpacked again with [`Merged`].

mod meta;
mod place;
mod remove;

pub(crate) use meta::{whiteout, xattrs};
pub(crate) use remove::remove;

use crate::entries::{Entries, Entry, Kind};
use crate::fault::Fault;
use crate::merged::Merged;
use crate::path_of;
use meta::Meta;
use place::Tree;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What the process may do to files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Owners, devices, capabilities and trusted attributes.
    Root,
    /// Its own files.
    User,
}

impl Rights {
    /// The attribute that makes a folder opaque for the overlay file systems that such a process mounts.
    pub fn opaque(self) -> &'static str {
        match self {
            Rights::Root => "trusted.overlay.opaque",
            Rights::User => "user.overlay.opaque",
        }
    }
}

/// Bytes of a layer's tar, and of a single file with its holes.
pub(crate) const LAYER_BYTES_MAX: u64 = 64 << 30;

/// What a layer may hold at most.
#[derive(Clone, Copy, Debug)]
pub struct LayerBounds {
    /// Bytes of its tar, and of a single file; default 64 GiB.
    pub bytes_max: u64,
    /// Entries, and folders that come of them; default 2,000,000.
    pub entries_max: u64,
}

impl Default for LayerBounds {
    fn default() -> LayerBounds {
        LayerBounds { bytes_max: LAYER_BYTES_MAX, entries_max: 2_000_000 }
    }
}

/// What came of a layer.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Report {
    /// Entries of the tar.
    pub entries: u64,
    /// About how many bytes it takes on the disk.
    pub disk_bytes: u64,
    /// Device nodes left out, since an ordinary user cannot make them.
    pub devices_skipped: u64,
    /// Extended attributes left out: the file system or the user cannot hold them, or they mean only the machine that made them.
    pub xattrs_skipped: u64,
    /// Folders that the layer does not list, hexadecimal: how they look depends on the layers below.
    pub implied: Vec<String>,
    /// Hard links to files that the layer does not hold; they are missing in the folder.
    pub links_missing: u64,
}

/// Unpacks into an empty folder. Blocks; on a fault the folder is left half full.
pub(crate) fn unpack<R: Read>(
    folder: OwnedFd,
    entries: &mut Entries<R>,
    rights: Rights,
    bounds: LayerBounds,
    below: Option<&Merged>,
) -> Result<Report, Fault> {
    let mut unpacker = Unpacker {
        tree: Tree::new(folder, rights, bounds.entries_max, below),
        bounds,
        report: Report::default(),
    };
    while let Some(entry) = entries.next()? {
        unpacker.apply(&entry, entries)?;
    }
    unpacker.finish()
}

struct Unpacker<'a> {
    tree: Tree<'a>,
    bounds: LayerBounds,
    report: Report,
}

/// Zeros of this length and place are left as a hole.
const HOLE: usize = 32 << 10;
const MARK: &[u8] = b".wh.";

impl Unpacker<'_> {
    fn apply<R: Read>(&mut self, entry: &Entry, entries: &mut Entries<R>) -> Result<(), Fault> {
        self.report.entries += 1;
        if self.report.entries > self.bounds.entries_max {
            return Err(Fault::Large(format!("{} entries", self.bounds.entries_max)));
        }
        if entry.size > self.bounds.bytes_max {
            return Err(Fault::Large(format!("{} bytes", self.bounds.bytes_max)));
        }
        let parts = place::parts(&entry.path)?;
        let meta = self.meta(entry)?;
        let Some((name, parents)) = parts.split_last() else {
            if entry.kind != Kind::Folder {
                return Err(Fault::bad("the root is not a directory"));
            }
            return self.tree.describe(b"", meta);
        };
        if name.starts_with(MARK) {
            return self.mark(&name[MARK.len()..], parents, &entry.path);
        }
        let rights = self.tree.rights();
        let device = match entry.kind {
            Kind::Character(0, 0) => {
                return Err(Fault::bad(format!(
                    "{}: a device 0:0, which hides files",
                    path_of(&entry.path).display()
                )));
            }
            Kind::Character(..) | Kind::Block(..) => true,
            _ => false,
        };
        if device && rights == Rights::User {
            self.report.devices_skipped += 1;
            return Ok(());
        }
        let parent = self.tree.make(parents)?;
        let path = parent.join(name);
        if entry.kind == Kind::Folder {
            self.tree.folder(&parent, name, meta)?;
            self.report.disk_bytes += 4096;
            return Ok(());
        }
        if let Kind::HardLink(target) = &entry.kind {
            return self.hard_link(&parent, name, target, &entry.path);
        }
        self.tree.clear(&parent, name)?;
        let fd = parent.fd.as_fd();
        self.report.disk_bytes += 256;
        match &entry.kind {
            Kind::File => {
                let file = create(fd, name, &path)?;
                self.fill(&file, entry, entries, &path)?;
                meta.onto_file(&file, rights, &path, &mut self.report.xattrs_skipped)
            }
            Kind::Symlink(target) => {
                rustix::fs::symlinkat(target.as_slice(), fd, *name)
                    .map_err(Fault::write("linking", &path))?;
                meta.onto_name(fd, name, rights, &path)
            }
            Kind::Character(major, minor) => self.node(
                fd,
                name,
                &path,
                FileType::CharacterDevice,
                rustix::fs::makedev(*major, *minor),
                &meta,
            ),
            Kind::Block(major, minor) => {
                self.node(fd, name, &path, FileType::BlockDevice, rustix::fs::makedev(*major, *minor), &meta)
            }
            Kind::Fifo => self.node(fd, name, &path, FileType::Fifo, 0, &meta),
            Kind::Folder | Kind::HardLink(_) => Ok(()),
        }
    }

    fn meta(&mut self, entry: &Entry) -> Result<Meta, Fault> {
        let mut xattrs = Vec::new();
        for (name, value) in &entry.xattrs {
            if name.starts_with(b"trusted.overlay.") || name.starts_with(b"user.overlay.") {
                let (path, name) = (path_of(&entry.path), path_of(name));
                let why = format!(
                    "{}: the attribute {}, which is the overlay's own",
                    path.display(),
                    name.display()
                );
                return Err(Fault::Bad(why));
            }
            if meta::kept(name, self.tree.rights()) {
                xattrs.push((name.clone(), value.clone()));
            } else {
                self.report.xattrs_skipped += 1;
            }
        }
        Ok(Meta { mode: entry.mode, uid: entry.uid, gid: entry.gid, mtime: entry.mtime, xattrs })
    }

    /// What hides things of lower layers.
    fn mark(&mut self, hidden: &[u8], parents: &[&[u8]], path: &[u8]) -> Result<(), Fault> {
        if hidden == b".wh..opq" {
            let folder = self.tree.make(parents)?;
            return self.tree.opaque(&folder);
        }
        if hidden.starts_with(MARK) {
            // Notes that aufs made for itself.
            return Ok(());
        }
        if hidden.is_empty() || hidden == b"." || hidden == b".." {
            return Err(Fault::bad(format!("{} hides no entry", path_of(path).display())));
        }
        let parent = self.tree.make(parents)?;
        self.tree.hide(&parent, hidden)
    }

    fn hard_link(
        &mut self,
        parent: &place::Place,
        name: &[u8],
        target: &[u8],
        path: &[u8],
    ) -> Result<(), Fault> {
        let shown = || format!("{}: a hard link to {}", path_of(path).display(), path_of(target).display());
        let parts =
            place::parts(target).map_err(|_| Fault::bad(format!("{}, outside of the image", shown())))?;
        let Some((last, parents)) = parts.split_last() else {
            return Err(Fault::bad(format!("{}, a folder", shown())));
        };
        let (folder, found) = self.tree.look(parents, last)?;
        let full = parent.join(name);
        if let (Some(fd), Some(found)) = (&folder.fd, found) {
            if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
                return Err(Fault::bad(format!("{}, a folder", shown())));
            }
            if !whiteout(&found) {
                let there = rustix::fs::statat(&parent.fd, name, AtFlags::SYMLINK_NOFOLLOW);
                if there.is_ok_and(|there| (there.st_dev, there.st_ino) == (found.st_dev, found.st_ino)) {
                    return Ok(());
                }
                self.tree.clear(parent, name)?;
                return rustix::fs::linkat(fd, *last, &parent.fd, name, AtFlags::empty())
                    .map_err(Fault::write("linking", &full));
            }
        }
        let Some(below) = self.tree.below() else {
            self.report.links_missing += 1;
            return Ok(());
        };
        let mut lower = folder.path;
        place::push(&mut lower, last);
        let Some(lower) = below.find(&lower)? else {
            return Err(Fault::bad(format!("{}, which is not there", shown())));
        };
        self.tree.clear(parent, name)?;
        self.report.disk_bytes += meta::copy(&lower, parent.fd.as_fd(), name, &full, self.tree.rights())?;
        Ok(())
    }

    fn fill<R: Read>(
        &mut self,
        file: &OwnedFd,
        entry: &Entry,
        entries: &mut Entries<R>,
        path: &[u8],
    ) -> Result<(), Fault> {
        let mut written = 0;
        entries.data(|offset, bytes| {
            let mut at = offset;
            for piece in bytes.chunks(HOLE) {
                if piece.len() < HOLE || piece.iter().any(|byte| *byte != 0) {
                    let mut left = piece;
                    while !left.is_empty() {
                        let count =
                            match rustix::io::pwrite(file, left, at + (piece.len() - left.len()) as u64) {
                                Err(Errno::INTR) => continue,
                                count => count.map_err(Fault::write("writing", path))?,
                            };
                        left = &left[count..];
                    }
                    written += piece.len() as u64;
                }
                at += piece.len() as u64;
            }
            Ok(())
        })?;
        self.report.disk_bytes += written.next_multiple_of(4096);
        if written < entry.size {
            rustix::fs::ftruncate(file, entry.size).map_err(Fault::write("writing", path))?;
        }
        Ok(())
    }

    fn node(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        path: &[u8],
        kind: FileType,
        device: u64,
        meta: &Meta,
    ) -> Result<(), Fault> {
        rustix::fs::mknodat(parent, name, kind, Mode::from_raw_mode(0o600), device)
            .map_err(Fault::write("making the node", path))?;
        meta.onto_name(parent, name, self.tree.rights(), path)
    }

    fn finish(mut self) -> Result<Report, Fault> {
        self.report.implied = self.tree.finish(&mut self.report.xattrs_skipped)?;
        Ok(self.report)
    }
}

fn create(parent: BorrowedFd<'_>, name: &[u8], path: &[u8]) -> Result<OwnedFd, Fault> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(0o600))
        .map_err(Fault::write("creating", path))
}
