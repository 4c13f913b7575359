//! Folders listed; entries made, removed and moved.

use super::place::{Owner, Place, make_folders};
use super::{blocking, describe, fault, open, path, random_name, stat_entry};
use crate::{Reason, refusal};
use bytes::Bytes;
use espalier_agent_protocol::v1::{Entry, FileKind, FileStat, ListFolderEvent, ListFolderRequest};
use futures::stream::{BoxStream, StreamExt};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Uid};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use tonic::Status;

/// Deepest listing.
const DEPTH_MAX: u32 = 64;
/// Entries in one message.
const ENTRIES_IN_MESSAGE: usize = 256;
/// Names of one folder, in a listing.
const NAMES_BYTES_MAX: usize = 4 << 20;
/// Deepest tree that is removed or copied.
const NESTING_MAX: u32 = 512;

/// What stands at a path.
pub fn stat(path: &CStr, follow: bool) -> Result<FileStat, Errno> {
    if follow {
        let file = open(CWD, path, OFlags::PATH, Mode::empty())?;
        return Ok(describe(&rustix::fs::fstat(&file)?, Vec::new()));
    }
    stat_entry(CWD, path)
}

/// A folder that is still to be listed.
struct Pending {
    /// From the folder that was asked for.
    path: Vec<u8>,
    depth: u32,
}

/// A folder whose entries are being told. Its names are in memory, and nothing else of it.
struct Current {
    of: Pending,
    folder: OwnedFd,
    names: std::vec::IntoIter<CString>,
    below: Vec<Pending>,
}

struct Listing {
    root: Arc<OwnedFd>,
    pending: Vec<Pending>,
    current: Option<Current>,
    depth_max: u32,
}

/// Streams the entries of a folder, and of those below it as deep as asked. Links are listed and not followed.
pub async fn list(
    request: ListFolderRequest,
) -> Result<BoxStream<'static, Result<ListFolderEvent, Status>>, Status> {
    let name = request.path;
    let root = blocking(move || {
        open(CWD, &path(&name)?, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
            .map_err(|error| fault(&name, error))
    })
    .await?;
    let listing = Listing {
        root: Arc::new(root),
        pending: vec![Pending { path: Vec::new(), depth: 1 }],
        current: None,
        depth_max: request.depth.clamp(1, DEPTH_MAX),
    };
    let events = futures::stream::try_unfold(listing, |mut listing| async move {
        let (event, listing) = blocking(move || {
            let entries = std::iter::from_fn(|| listing.next()).take(ENTRIES_IN_MESSAGE).collect();
            Ok((ListFolderEvent { entries }, listing))
        })
        .await?;
        Ok((!event.entries.is_empty()).then_some((event, listing)))
    });
    Ok(events.boxed())
}

impl Listing {
    /// The next entry, of this folder or of the next that is pending.
    fn next(&mut self) -> Option<Entry> {
        loop {
            let Some(current) = &mut self.current else {
                let of = self.pending.pop()?;
                match self.names(&of.path) {
                    Ok((folder, names)) => {
                        let names = names.into_iter();
                        self.current = Some(Current { of, folder, names, below: Vec::new() });
                    }
                    Err(error) => {
                        let error = match error {
                            Errno::OVERFLOW => format!("its names have more than {NAMES_BYTES_MAX} bytes"),
                            error => std::io::Error::from(error).to_string(),
                        };
                        return Some(Entry { path: of.path.into(), stat: None, error });
                    }
                }
                continue;
            };
            let Some(name) = current.names.next() else {
                current.below.reverse();
                self.pending.append(&mut current.below);
                self.current = None;
                continue;
            };
            let Pending { path, depth } = &current.of;
            let full = if path.is_empty() {
                name.to_bytes().to_vec()
            } else {
                [path, &b"/"[..], name.to_bytes()].concat()
            };
            let (stat, error) = match stat_entry(&current.folder, &name) {
                Ok(stat) => (Some(stat), String::new()),
                Err(error) => (None, std::io::Error::from(error).to_string()),
            };
            if stat.as_ref().is_some_and(|stat| stat.kind() == FileKind::Folder) && *depth < self.depth_max {
                current.below.push(Pending { path: full.clone(), depth: depth + 1 });
            }
            return Some(Entry { path: Bytes::from(full), stat, error });
        }
    }

    fn names(&self, path: &[u8]) -> Result<(OwnedFd, Vec<CString>), Errno> {
        let path = CString::new(if path.is_empty() { b"." } else { path }).map_err(|_| Errno::INVAL)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let folder = open(&*self.root, &path, flags, Mode::empty())?;
        let names = bounded_names(&folder, NAMES_BYTES_MAX)?;
        Ok((folder, names))
    }
}

/// Names in a folder, sorted, without `.` and `..`.
pub fn names(folder: impl AsFd) -> Result<Vec<CString>, Errno> {
    bounded_names(folder, usize::MAX)
}

/// The same; `OVERFLOW` where they are longer together.
fn bounded_names(folder: impl AsFd, bytes_max: usize) -> Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    let mut bytes = 0;
    for entry in Dir::read_from(folder)? {
        let name = entry?.file_name().to_owned();
        if name.as_bytes() != b"." && name.as_bytes() != b".." {
            bytes += name.as_bytes().len();
            if bytes > bytes_max {
                return Err(Errno::OVERFLOW);
            }
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Makes a folder.
pub fn make(path: &CStr, mode: u32, owner: Owner, parents: bool) -> Result<(), Status> {
    let mode = Mode::from_raw_mode(mode);
    if parents {
        return make_folders(path.to_bytes(), mode, owner)
            .map(drop)
            .map_err(|error| fault(path.to_bytes(), error));
    }
    let place = Place::of(path)?;
    if rustix::fs::statat(&place.folder, &place.name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
        return Err(place.fault(Errno::EXIST));
    }
    super::place::make_folder(&place.folder, &place.name, mode, owner).map_err(|error| place.fault(error))
}

/// Removes what stands at a path; returns how many entries went.
pub fn remove(path: &CStr, recursive: bool, missing_ok: bool) -> Result<u64, Status> {
    let place = match Place::of(path) {
        Err(status)
            if missing_ok && espalier_agent_protocol::reason_of(&status) == Some(Reason::NotFound) =>
        {
            return Ok(0);
        }
        place => place?,
    };
    if place.name.as_bytes() == b"." {
        return Err(refusal(Reason::Denied, "`/`: the root cannot be removed"));
    }
    match remove_entry(&place.folder, &place.name, recursive, 0) {
        Err(Errno::NOENT) if missing_ok => Ok(0),
        Err(Errno::ISDIR) => Err(refusal(
            Reason::Kind,
            format!("`{}`: a directory; use `recursive`", String::from_utf8_lossy(&place.path)),
        )),
        done => done.map_err(|error| place.fault(error)),
    }
}

/// Removes an entry, never through a link.
pub fn remove_entry(folder: &OwnedFd, name: &CStr, recursive: bool, depth: u32) -> Result<u64, Errno> {
    match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) => return Ok(1),
        Err(Errno::ISDIR) => {}
        // Some file systems say so of folders.
        Err(Errno::PERM) if is_folder(folder, name) => {}
        Err(error) => return Err(error),
    }
    if !recursive {
        return Err(Errno::ISDIR);
    }
    if depth >= NESTING_MAX {
        return Err(Errno::LOOP);
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let inside = open(folder, name, flags, Mode::empty())?;
    let mut removed = 0;
    for entry in names(&inside)? {
        match remove_entry(&inside, &entry, true, depth + 1) {
            Ok(count) => removed += count,
            // Somebody else removed it.
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
    }
    rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR)?;
    Ok(removed + 1)
}

fn is_folder(folder: &OwnedFd, name: &CStr) -> bool {
    rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// Moves an entry. Within a file system at once; across, copied beside its place and then put into it. `no_links`: not where a link stands
/// in the way to the folder of `to`.
pub fn move_entry(from: &CStr, to: &CStr, replace: bool, no_links: bool) -> Result<(), Status> {
    let to = if no_links { Place::without_links(to) } else { Place::of(to) };
    let (from, to) = (Place::of(from)?, to?);
    let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
    match rustix::fs::renameat_with(&from.folder, &from.name, &to.folder, &to.name, flags) {
        Ok(()) => Ok(()),
        Err(Errno::XDEV) => move_across(&from, &to, flags),
        Err(Errno::NOENT) => Err(from.fault(Errno::NOENT)),
        Err(error) => Err(to.fault(error)),
    }
}

fn move_across(from: &Place, to: &Place, flags: RenameFlags) -> Result<(), Status> {
    let draft = CString::new(format!(".espalier-{}", random_name())).map_err(|_| to.fault(Errno::INVAL))?;
    let copied = copy(&from.folder, &from.name, &to.folder, &draft, 0);
    let moved =
        copied.and_then(|()| rustix::fs::renameat_with(&to.folder, &draft, &to.folder, &to.name, flags));
    if let Err(error) = moved {
        let _ = remove_entry(&to.folder, &draft, true, 0);
        return Err(to.fault(error));
    }
    remove_entry(&from.folder, &from.name, true, 0).map(drop).map_err(|error| from.fault(error))
}

/// Copies an entry with all below it: mode, owner, times, links as links.
fn copy(from: &OwnedFd, name: &CStr, to: &OwnedFd, as_name: &CStr, depth: u32) -> Result<(), Errno> {
    if depth >= NESTING_MAX {
        return Err(Errno::LOOP);
    }
    let stat = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(from, name, Vec::new())?;
            rustix::fs::symlinkat(&target, to, as_name)?;
            return own(to, as_name, &stat);
        }
        FileType::Directory => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
            let inside = open(from, name, flags, Mode::empty())?;
            rustix::fs::mkdirat(to, as_name, Mode::RWXU)?;
            let copy_of = open(to, as_name, flags, Mode::empty())?;
            for entry in names(&inside)? {
                copy(&inside, &entry, &copy_of, &entry, depth + 1)?;
            }
            own(to, as_name, &stat)?;
            rustix::fs::fchmod(&copy_of, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
            return times(&copy_of, &stat);
        }
        FileType::RegularFile => {}
        _ => {
            rustix::fs::mknodat(
                to,
                as_name,
                FileType::from_raw_mode(stat.st_mode),
                Mode::RWXU,
                stat.st_rdev,
            )?;
            return own(to, as_name, &stat);
        }
    }
    let source = open(from, name, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK, Mode::empty())?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    let target = open(to, as_name, flags, Mode::RUSR | Mode::WUSR)?;
    copy_data(&source, &target, u64::try_from(stat.st_size).unwrap_or(0))?;
    own(to, as_name, &stat)?;
    rustix::fs::fchmod(&target, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
    times(&target, &stat)
}

fn copy_data(source: &OwnedFd, target: &OwnedFd, size: u64) -> Result<(), Errno> {
    rustix::fs::ftruncate(target, size)?;
    let mut offset = 0;
    let mut buffer = vec![0; 128 << 10];
    while offset < size {
        offset = match rustix::fs::seek(source, rustix::fs::SeekFrom::Data(offset)) {
            Err(Errno::NXIO) => return Ok(()),
            Err(_) => offset,
            Ok(data) => data,
        };
        let count = rustix::io::pread(source, &mut buffer, offset)?;
        if count == 0 {
            return Ok(());
        }
        let mut written = 0;
        while written < count {
            written += rustix::io::pwrite(target, &buffer[written..count], offset + written as u64)?;
        }
        offset += count as u64;
    }
    Ok(())
}

fn own(folder: &OwnedFd, name: &CStr, stat: &Stat) -> Result<(), Errno> {
    let (user, group) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    match rustix::fs::chownat(folder, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::PERM) if !crate::sys::is_root() => Ok(()),
        done => done,
    }
}

fn times(file: &OwnedFd, stat: &Stat) -> Result<(), Errno> {
    let time = |s, ns: u64| rustix::fs::Timespec { tv_sec: s, tv_nsec: ns.cast_signed() };
    let times = rustix::fs::Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    };
    rustix::fs::futimens(file, &times)
}
