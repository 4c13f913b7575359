//! A file replaced as a whole: written beside its place under a name nobody guesses, then put into it.

use super::place::{Owner, Place};
use super::{describe, open, random_name};
use crate::{Reason, refusal};
use espalier_agent_protocol::v1::{Chunk, FileStat};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Uid};
use rustix::io::Errno;
use std::ffi::CString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use tonic::Status;

/// Mode of a new file.
const MODE_NEW: u32 = 0o644;

/// How the file shall be.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// Permission bits; `None`: as before, or 0644.
    pub mode: Option<u32>,
    /// `None`: as before, or the agent's own.
    pub owner: Owner,
    /// Only where there is nothing yet.
    pub create_new: bool,
    /// A link is replaced itself.
    pub replace_link: bool,
}

/// A file being written. Dropped before [`Writing::commit`] it leaves nothing behind.
#[derive(Debug)]
pub struct Writing {
    place: Place,
    /// Its name until then.
    draft: CString,
    file: File,
    wanted: Wanted,
    committed: bool,
}

impl Writing {
    /// Makes the draft.
    pub fn begin(place: Place, wanted: Wanted) -> Result<Writing, Status> {
        let place = if wanted.replace_link || wanted.create_new { place } else { place.follow()? };
        if wanted.create_new
            && rustix::fs::statat(&place.folder, &place.name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
        {
            return Err(place.fault(Errno::EXIST));
        }
        let name = format!(".espalier-{}", random_name());
        let draft = CString::new(name).map_err(|_| place.fault(Errno::INVAL))?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let file = open(&place.folder, &draft, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|error| place.fault(error))?;
        Ok(Writing { place, draft, file: File::from(file), wanted, committed: false })
    }

    /// Puts bytes at their offset.
    pub fn write(&self, chunk: &Chunk) -> Result<(), Status> {
        self.file
            .write_all_at(&chunk.bytes, chunk.offset)
            .map_err(|error| super::fault_io(&self.place.path, &error))
    }

    /// Gives it its length, mode and owner, and puts it into its place at once. What stood there and is open elsewhere stays as
    /// it was for whoever has it open.
    pub fn commit(self, size: u64) -> Result<FileStat, Status> {
        self.commit_with(size, |_| Ok(()))
    }

    /// The same, with more to do to the file before it is in its place.
    pub fn commit_with(
        mut self,
        size: u64,
        more: impl FnOnce(&File) -> Result<(), Errno>,
    ) -> Result<FileStat, Status> {
        let stat = self.finish(size).and_then(|stat| more(&self.file).map(|()| stat));
        let stat = stat.map_err(|error| self.place.fault(error))?;
        let flags = if self.wanted.create_new { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
        let Place { folder, name, .. } = &self.place;
        if let Err(error) = rustix::fs::renameat_with(folder, &self.draft, folder, name, flags) {
            return Err(self.place.fault(error));
        }
        self.committed = true;
        Ok(stat)
    }

    fn finish(&self, size: u64) -> Result<FileStat, Errno> {
        let Place { folder, name, .. } = &self.place;
        let before = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).ok();
        if before.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory) {
            return Err(Errno::ISDIR);
        }
        let before = before.filter(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
        if size > rustix::fs::fstat(&self.file)?.st_size.cast_unsigned() {
            rustix::fs::ftruncate(&self.file, size)?;
        }
        let owner = self.wanted.owner.or(before.as_ref().map(|stat| (stat.st_uid, stat.st_gid)));
        if let Some((user, group)) = owner {
            let changed =
                rustix::fs::fchown(&self.file, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)));
            // An ordinary user keeps what is its own; an owner that was asked for must be had.
            if changed.is_err() && (self.wanted.owner.is_some() || crate::sys::is_root()) {
                changed?;
            }
        }
        // After the owner: changing that clears setuid.
        let mode = self.wanted.mode.or(before.map(|stat| stat.st_mode & 0o7777)).unwrap_or(MODE_NEW);
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(mode))?;
        Ok(describe(&rustix::fs::fstat(&self.file)?, Vec::new()))
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if !self.committed {
            let _ = rustix::fs::unlinkat(&self.place.folder, &self.draft, AtFlags::empty());
        }
    }
}

/// A mode of the wire.
pub fn mode(mode: Option<u32>) -> Result<Option<u32>, Status> {
    match mode {
        Some(mode) if mode > 0o7777 => {
            Err(refusal(Reason::Invalid, format!("mode {mode:o}: expected at most 7777")))
        }
        other => Ok(other),
    }
}
