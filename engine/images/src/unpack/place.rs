//! The folder that is unpacked into: names are walked from its root by descriptors, symbolic links inside it are followed as
//! if it were the root of the machine, and nothing outside is ever reached.

use crate::fault::Fault;
use crate::merged::Merged;
use crate::path_of;
use crate::unpack::meta::{self, Meta, whiteout};
use crate::unpack::{Rights, remove};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

const NAME_MAX: usize = 255;
const PATH_MAX: usize = 4096;
/// Folders inside each other.
const DEPTH_MAX: usize = 256;
/// Bytes of the names and attributes of folders, which are kept until the end.
const KEPT_BYTES_MAX: usize = 256 << 20;
/// Symbolic links on the way of one name, as the kernel has it.
const FOLLOWS_MAX: usize = 40;

/// The parts of a name in a tar. Those of an absolute name begin at the image's root.
pub(super) fn parts(path: &[u8]) -> Result<Vec<&[u8]>, Fault> {
    let refused =
        |why: &str| Fault::bad(format!("{}: {why}", path_of(&path[..path.len().min(PATH_MAX)]).display()));
    if path.len() > PATH_MAX || path.contains(&0) {
        return Err(refused("not a valid file name"));
    }
    let named = |part: &&[u8]| !part.is_empty() && *part != b".";
    let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(named).collect();
    if parts.contains(&b"..".as_slice()) {
        return Err(refused("`..` in a name could leave the image"));
    }
    if parts.len() > DEPTH_MAX || parts.iter().any(|part| part.len() > NAME_MAX) {
        return Err(refused("a name too long or too deep"));
    }
    Ok(parts)
}

/// Appends a part to a path.
pub(super) fn push(path: &mut Vec<u8>, part: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(part);
}

/// A folder, and where it lies without any symbolic link.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) fd: Rc<OwnedFd>,
    pub(super) path: Vec<u8>,
}

impl Place {
    pub(super) fn join(&self, name: &[u8]) -> Vec<u8> {
        let mut path = self.path.clone();
        push(&mut path, name);
        path
    }
}

/// Where something would lie; the descriptor is missing where this layer has no such folder.
pub(super) struct Looked {
    pub(super) fd: Option<Rc<OwnedFd>>,
    pub(super) path: Vec<u8>,
}

/// The folder, and what its folders shall look like in the end.
pub(super) struct Tree<'a> {
    root: Rc<OwnedFd>,
    rights: Rights,
    below: Option<&'a Merged>,
    /// Set last, since making a file in a folder changes it. By path.
    folders: BTreeMap<Vec<u8>, Meta>,
    /// Bytes in `folders`, those that were replaced too.
    kept_bytes: usize,
    /// Folders made so far, and how many may be.
    made: u64,
    made_max: u64,
    /// Folders that nothing described.
    implied: BTreeSet<Vec<u8>>,
    /// Folders through which nothing of the layers below shows.
    opaque: BTreeSet<Vec<u8>>,
    /// The folder of the last entry, by its name as written: mostly that of the next.
    last: Option<(Vec<u8>, Place)>,
}

impl<'a> Tree<'a> {
    pub(super) fn new(root: OwnedFd, rights: Rights, made_max: u64, below: Option<&'a Merged>) -> Tree<'a> {
        Tree {
            kept_bytes: 0,
            made: 0,
            made_max,
            root: Rc::new(root),
            rights,
            below,
            folders: BTreeMap::new(),
            implied: BTreeSet::new(),
            opaque: BTreeSet::new(),
            last: None,
        }
    }

    pub(super) fn rights(&self) -> Rights {
        self.rights
    }

    pub(super) fn below(&self) -> Option<&'a Merged> {
        self.below
    }

    /// The folder of these parts, which is made where it is missing.
    pub(super) fn make(&mut self, parts: &[&[u8]]) -> Result<Place, Fault> {
        let written = parts.join(b"/".as_slice());
        if let Some((last, place)) = &self.last
            && *last == written
        {
            return Ok(place.clone());
        }
        let looked = self.walk(parts, true)?;
        let fd = looked.fd.expect("a walk that makes folders ends in one");
        let place = Place { fd, path: looked.path };
        self.last = Some((written, place.clone()));
        Ok(place)
    }

    /// The folder of these parts as far as it is there, and what it holds by that name.
    pub(super) fn look(&mut self, parts: &[&[u8]], name: &[u8]) -> Result<(Looked, Option<Stat>), Fault> {
        let looked = self.walk(parts, false)?;
        let found = match &looked.fd {
            Some(fd) => stat(fd, name, &looked.path)?,
            None => None,
        };
        Ok((looked, found))
    }

    fn walk(&mut self, parts: &[&[u8]], make: bool) -> Result<Looked, Fault> {
        let mut left: VecDeque<Vec<u8>> = parts.iter().map(|part| part.to_vec()).collect();
        let mut stack: Vec<(Vec<u8>, Option<Rc<OwnedFd>>)> = Vec::new();
        let mut follows = 0;
        while let Some(part) = left.pop_front() {
            if part == b".." {
                stack.pop();
                continue;
            }
            let here = match stack.last() {
                Some((_, fd)) => fd.clone(),
                None => Some(self.root.clone()),
            };
            let mut path = joined(&stack);
            push(&mut path, &part);
            let found = match &here {
                Some(fd) => stat(fd, &part, &path)?,
                None => None,
            };
            let mut target = None;
            let mut next = None;
            match (found, &here) {
                (Some(found), Some(here)) if whiteout(&found) => {
                    if make {
                        // Hidden and created again, so that nothing below shows.
                        rustix::fs::unlinkat(here, &part, AtFlags::empty())
                            .map_err(Fault::write("removing", &path))?;
                        next = Some(self.mkdir(here, &part, &path, None)?);
                        self.opaque(&Place { fd: next.clone().expect("just made"), path: path.clone() })?;
                    }
                }
                (Some(found), Some(here)) => match FileType::from_raw_mode(found.st_mode) {
                    FileType::Directory => next = Some(open(here, &part, &path)?),
                    FileType::Symlink => {
                        let link = rustix::fs::readlinkat(here, &part, Vec::new());
                        target = Some(link.map_err(Fault::write("reading", &path))?.into_bytes());
                    }
                    _ if make => {
                        return Err(Fault::bad(format!(
                            "{} is not a directory but contains files",
                            path_of(&path).display()
                        )));
                    }
                    _ => {}
                },
                (_, here) => {
                    let lower = if self.covered(&path) { None } else { self.below };
                    let lower = lower.map(|below| below.find(&path)).transpose()?.flatten();
                    let kind = lower.as_ref().and_then(|lower| lower.symlink_metadata().ok());
                    match (lower, kind) {
                        (Some(lower), Some(kind)) if kind.is_symlink() => {
                            let link = std::fs::read_link(&lower).map_err(Fault::write("reading", &path))?;
                            target = Some(std::os::unix::ffi::OsStringExt::into_vec(link.into_os_string()));
                        }
                        (lower, kind) => {
                            let lower = lower.filter(|_| kind.is_some_and(|kind| kind.is_dir()));
                            if let (Some(here), true) = (here, make) {
                                next = Some(self.mkdir(here, &part, &path, lower.as_deref())?);
                            }
                        }
                    }
                }
            }
            let Some(target) = target else {
                stack.push((part, next));
                if stack.len() > DEPTH_MAX {
                    return Err(Fault::bad(format!("{}: too deep", path_of(&path).display())));
                }
                continue;
            };
            follows += 1;
            if follows > FOLLOWS_MAX || target.len() > PATH_MAX {
                return Err(Fault::bad(format!("{}: too many symbolic links", path_of(&path).display())));
            }
            if target.starts_with(b"/") {
                stack.clear();
            }
            for part in target.split(|byte| *byte == b'/').rev() {
                if !part.is_empty() && part != b"." {
                    left.push_front(part.to_vec());
                }
            }
        }
        let path = joined(&stack);
        let fd = match stack.pop() {
            Some((_, fd)) => fd,
            None => Some(self.root.clone()),
        };
        Ok(Looked { fd, path })
    }

    /// Whether a folder on the way hides all that lies below.
    fn covered(&self, path: &[u8]) -> bool {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
        self.opaque.contains(b"".as_slice())
            || ends.chain([path.len()]).any(|end| self.opaque.contains(&path[..end]))
    }

    fn mkdir(
        &mut self,
        here: &Rc<OwnedFd>,
        name: &[u8],
        path: &[u8],
        like: Option<&std::path::Path>,
    ) -> Result<Rc<OwnedFd>, Fault> {
        rustix::fs::mkdirat(here, name, Mode::from_raw_mode(0o700)).map_err(Fault::write("making", path))?;
        self.made += 1;
        if self.made > self.made_max {
            return Err(Fault::Large(format!("{} folders", self.made_max)));
        }
        let meta = match like {
            Some(like) => meta::of(like, self.rights, path)?,
            None => {
                self.implied.insert(path.to_vec());
                Meta { mode: 0o755, ..Meta::default() }
            }
        };
        self.keep(path, meta)?;
        open(here, name, path)
    }

    fn keep(&mut self, path: &[u8], meta: Meta) -> Result<(), Fault> {
        let attributes = meta.xattrs.iter().map(|(name, value)| name.len() + value.len());
        self.kept_bytes += path.len() + attributes.sum::<usize>() + size_of::<Meta>();
        if self.kept_bytes > KEPT_BYTES_MAX {
            return Err(Fault::Large(format!("{KEPT_BYTES_MAX} bytes of directory names and attributes")));
        }
        self.folders.insert(path.to_vec(), meta);
        Ok(())
    }

    /// Says what a folder shall look like; it is made so at the end.
    pub(super) fn describe(&mut self, path: &[u8], meta: Meta) -> Result<(), Fault> {
        self.implied.remove(path);
        self.keep(path, meta)
    }

    /// An entry that is a folder. One that is there keeps what it holds.
    pub(super) fn folder(&mut self, parent: &Place, name: &[u8], meta: Meta) -> Result<(), Fault> {
        let path = parent.join(name);
        let there = stat(&parent.fd, name, &path)?;
        let kept = there.is_some_and(|there| FileType::from_raw_mode(there.st_mode) == FileType::Directory);
        if !kept {
            let replaces = there.is_some();
            if replaces {
                self.clear(parent, name)?;
            }
            let fd = self.mkdir(&parent.fd, name, &path, None)?;
            if replaces {
                // What stood here, or its mark, hid what lies below.
                self.opaque(&Place { fd, path: path.clone() })?;
            }
        }
        self.describe(&path, meta)
    }

    /// Hides all that lower layers hold in this folder.
    pub(super) fn opaque(&mut self, folder: &Place) -> Result<(), Fault> {
        // Overlays that are mounted in a user namespace read the user's attribute alone, whoever unpacked the layer.
        let mut attributes = vec![self.rights.opaque(), Rights::User.opaque()];
        attributes.dedup();
        for attribute in attributes {
            rustix::fs::fsetxattr(&folder.fd, attribute, b"y", rustix::fs::XattrFlags::empty())
                .map_err(Fault::write("marking as opaque", &folder.path))?;
        }
        self.opaque.insert(folder.path.clone());
        Ok(())
    }

    /// Hides what lower layers hold by that name; what this layer holds stays.
    pub(super) fn hide(&mut self, parent: &Place, name: &[u8]) -> Result<(), Fault> {
        let path = parent.join(name);
        match stat(&parent.fd, name, &path)? {
            None => {
                let mode = Mode::from_raw_mode(0);
                rustix::fs::mknodat(&parent.fd, name, FileType::CharacterDevice, mode, 0)
                    .map_err(Fault::write("hiding", &path))
            }
            Some(there) if FileType::from_raw_mode(there.st_mode) == FileType::Directory => {
                let fd = open(&parent.fd, name, &path)?;
                self.opaque(&Place { fd, path })
            }
            Some(_) => Ok(()),
        }
    }

    /// Makes the name free.
    pub(super) fn clear(&mut self, parent: &Place, name: &[u8]) -> Result<(), Fault> {
        let path = parent.join(name);
        let Some(there) = stat(&parent.fd, name, &path)? else { return Ok(()) };
        let kind = FileType::from_raw_mode(there.st_mode);
        if kind == FileType::Directory {
            let mut inside = path.clone();
            inside.push(b'/');
            let within = |other: &Vec<u8>| *other == path || other.starts_with(&inside);
            self.folders.retain(|other, _| !within(other));
            self.implied.retain(|other| !within(other));
            self.opaque.retain(|other| !within(other));
        }
        if kind != FileType::RegularFile {
            self.last = None;
        }
        remove(parent.fd.as_fd(), name).map_err(Fault::write("removing", &path))
    }

    /// Gives each folder what it shall look like; returns those that nothing described, hexadecimal.
    pub(super) fn finish(mut self, skipped: &mut u64) -> Result<Vec<String>, Fault> {
        let folders = std::mem::take(&mut self.folders);
        if !folders.contains_key(b"".as_slice()) {
            rustix::fs::fchmod(&self.root, Mode::from_raw_mode(0o755))
                .map_err(Fault::write("changing", b""))?;
        }
        // A folder comes before what it holds, so that backwards each is done before it may be closed.
        for (path, meta) in folders.iter().rev() {
            let parts = parts(path)?;
            let looked = self.walk(&parts, false)?;
            let Some(fd) = looked.fd.filter(|_| looked.path == *path) else {
                return Err(Fault::bad(format!("{} is gone", path_of(path).display())));
            };
            meta.onto_file(&fd, self.rights, path, skipped)?;
        }
        Ok(self.implied.iter().map(hex::encode).collect())
    }
}

fn joined(stack: &[(Vec<u8>, Option<Rc<OwnedFd>>)]) -> Vec<u8> {
    let mut path = Vec::new();
    for (part, _) in stack {
        push(&mut path, part);
    }
    path
}

fn stat(fd: &OwnedFd, name: &[u8], path: &[u8]) -> Result<Option<Stat>, Fault> {
    match rustix::fs::statat(fd, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(Fault::write("looking at", path)(error)),
    }
}

fn open(fd: &OwnedFd, name: &[u8], path: &[u8]) -> Result<Rc<OwnedFd>, Fault> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(fd, name, flags, Mode::empty()).map_err(Fault::write("opening", path))?;
    Ok(Rc::new(fd))
}
