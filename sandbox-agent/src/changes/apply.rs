//! Changes of another sandbox put into this one. They are taken in as a whole first; no path of them leads outside of the folder
//! they are for, nor through a link.

use super::{clean, is_below, scratch};
use crate::agent::Agent;
use crate::files::folder::remove_entry;
use crate::files::place::Place;
use crate::files::writing::{Wanted, Writing};
use crate::files::{self, blocking, fault, open, random_name};
use crate::{Reason, refusal};
use bytes::{Buf, Bytes, BytesMut};
use espalier_agent_protocol::MESSAGE_BYTES_MAX;
use espalier_agent_protocol::v1::{
    ApplyChangesAnswer, ApplyChangesHeader, ApplyChangesRequest, Change, ChangeEvent, FileKind, FileStat,
    apply_changes_request::Part, change::Action, change_event::Event,
};
use prost::Message;
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use std::ffi::CString;
use std::fs::File;
use std::io::{BufWriter, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tonic::{Status, Streaming};

/// Changes taken in and not applied yet.
#[derive(Debug)]
pub struct Staged {
    file: File,
    root: Vec<u8>,
}

/// Takes in a stream up to its end.
pub async fn receive(
    agent: &Arc<Agent>,
    header: &ApplyChangesHeader,
    parts: &mut Streaming<ApplyChangesRequest>,
) -> Result<Staged, Option<Status>> {
    let root = if header.root.is_empty() { b"/".to_vec() } else { clean(&header.root).map_err(Some)? };
    let file = scratch(agent).map_err(Some)?;
    let mut writer = BufWriter::with_capacity(256 << 10, file);
    loop {
        let event = match parts.message().await {
            Ok(Some(ApplyChangesRequest { part: Some(Part::Change(change)) })) => Event::Change(change),
            Ok(Some(ApplyChangesRequest { part: Some(Part::Chunk(chunk)) })) => Event::Chunk(chunk),
            Ok(Some(ApplyChangesRequest { part: Some(Part::End(end)) })) => Event::End(end),
            Ok(Some(_)) => {
                return Err(Some(refusal(Reason::Invalid, "apply changes: a message that is not a change")));
            }
            // Cut, or given up by the client.
            Ok(None) | Err(_) => return Err(None),
        };
        let last = matches!(event, Event::End(_));
        let bytes = ChangeEvent { event: Some(event) }.encode_length_delimited_to_vec();
        let stored = blocking(move || {
            let stored = writer.write_all(&bytes).and_then(|()| if last { writer.flush() } else { Ok(()) });
            stored.map(|()| writer).map_err(|error| files::fault_io(b"changes on their way", &error))
        });
        writer = stored.await.map_err(Some)?;
        if last {
            let file =
                writer.into_inner().map_err(|error| Some(files::fault_io(b"changes", error.error())))?;
            return Ok(Staged { file, root });
        }
    }
}

/// Events of the staged file.
struct Events {
    file: File,
    buffer: BytesMut,
}

impl Events {
    fn next(&mut self) -> Result<Option<Event>, Status> {
        let failed = |error: std::io::Error| files::fault_io(b"changes", &error);
        loop {
            let mut ahead = &self.buffer[..];
            if let Ok(length) = prost::decode_length_delimiter(&mut ahead)
                && ahead.len() >= length
            {
                self.buffer.advance(self.buffer.len() - ahead.len());
                let event = ChangeEvent::decode(self.buffer.split_to(length));
                return Ok(event
                    .map_err(|error| refusal(Reason::Invalid, format!("changes: {error}")))?
                    .event);
            }
            if self.buffer.len() > MESSAGE_BYTES_MAX {
                return Err(refusal(Reason::Invalid, "changes: an event that is too large"));
            }
            let mut piece = vec![0; 256 << 10];
            let count = self.file.read(&mut piece).map_err(failed)?;
            if count == 0 {
                return Ok(None);
            }
            self.buffer.extend_from_slice(&piece[..count]);
        }
    }
}

impl Staged {
    /// Applies all of it, in order. A failure names the path; what came before it stays applied.
    pub fn apply(mut self) -> Result<ApplyChangesAnswer, Status> {
        self.file.rewind().map_err(|error| files::fault_io(b"changes", &error))?;
        let name = CString::new(&self.root[..]).map_err(|_| fault(&self.root, Errno::INVAL))?;
        let folder = open(CWD, &name, OFlags::PATH | OFlags::DIRECTORY, Mode::empty());
        let root = Root { folder: folder.map_err(|error| fault(&self.root, error))?, path: self.root };
        let mut events = Events { file: self.file, buffer: BytesMut::new() };
        let mut target =
            Target { root, answer: ApplyChangesAnswer::default(), draft: None, folders: Vec::new() };
        while let Some(event) = events.next()? {
            match event {
                Event::Change(change) => target.begin(&change)?,
                Event::Chunk(chunk) => {
                    if let Some((draft, _)) = &target.draft {
                        draft.write(&chunk)?;
                    }
                }
                Event::End(_) => {
                    target.finish()?;
                    return Ok(target.answer);
                }
            }
        }
        Err(refusal(Reason::Invalid, "changes: they end early"))
    }
}

/// The folder that changes are for.
struct Root {
    folder: OwnedFd,
    path: Vec<u8>,
}

impl Root {
    /// A place below it, reached through folders alone.
    fn place(&self, path: &[u8]) -> Result<Place, Status> {
        self.find(path).map_err(|error| fault(path, error))
    }

    fn find(&self, path: &[u8]) -> Result<Place, Errno> {
        let relative = path.strip_prefix(&self.path[..]).unwrap_or(path);
        let start = relative.iter().position(|byte| *byte != b'/').ok_or(Errno::INVAL)?;
        let (folder, name) = crate::files::place::split(&relative[start..]);
        let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| Errno::INVAL);
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::openat2(&self.folder, text(folder)?, flags, Mode::empty(), resolve)?;
        Ok(Place { folder, name: text(name)?, path: path.to_vec() })
    }
}

struct Target {
    root: Root,
    answer: ApplyChangesAnswer,
    /// A file whose content is coming, and what it shall be.
    draft: Option<(Writing, Change)>,
    /// Folders that get their mode last, so that they can be filled.
    folders: Vec<(Vec<u8>, u32)>,
}

impl Target {
    fn begin(&mut self, change: &Change) -> Result<(), Status> {
        self.commit()?;
        let path = clean(&change.path)?;
        if !is_below(&path, &self.root.path) || path == self.root.path {
            return Ok(());
        }
        match change.action() {
            Action::Added => self.answer.added += 1,
            Action::Changed => self.answer.changed += 1,
            Action::Removed => {
                self.answer.removed += 1;
                return self.remove(&path);
            }
        }
        let place = self.root.place(&path)?;
        let stat = change.stat.clone().unwrap_or_default();
        let failed = |error| fault(&path, error);
        self.clear(&place, stat.kind()).map_err(failed)?;
        if !change.hard_link.is_empty() {
            return self.hard_link(&place, &change.hard_link);
        }
        match stat.kind() {
            FileKind::Folder => {
                self.folder(&place, &stat).map_err(failed)?;
                self.folders.push((path, stat.mode));
                Ok(())
            }
            FileKind::Link => link(&place, &stat).map_err(failed),
            FileKind::File => {
                let owner = may_own().then_some((stat.user_id, stat.group_id));
                let wanted =
                    Wanted { mode: Some(stat.mode & 0o7777), owner, create_new: false, replace_link: true };
                self.draft = Some((Writing::begin(place, wanted)?, change.clone()));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// What stands there and is of another kind goes.
    fn clear(&self, place: &Place, kind: FileKind) -> Result<(), Errno> {
        let Ok(stat) = rustix::fs::statat(&place.folder, &place.name, AtFlags::SYMLINK_NOFOLLOW) else {
            return Ok(());
        };
        let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if is_folder == (kind == FileKind::Folder) {
            return Ok(());
        }
        remove_entry(&place.folder, &place.name, true, 0).map(drop)
    }

    fn remove(&self, path: &[u8]) -> Result<(), Status> {
        let removed =
            self.root.find(path).and_then(|place| remove_entry(&place.folder, &place.name, true, 0));
        match removed {
            // It went with its folder, in whose place there may be a file or a link by now.
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
            Err(error) => Err(fault(path, error)),
        }
    }

    fn folder(&self, place: &Place, stat: &FileStat) -> Result<(), Errno> {
        match rustix::fs::mkdirat(&place.folder, &place.name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        own(place, stat)
    }

    fn hard_link(&self, place: &Place, first: &Bytes) -> Result<(), Status> {
        let first = self.root.place(&clean(first)?)?;
        let draft = draft_name().map_err(|error| place.fault(error))?;
        let linked = rustix::fs::linkat(&first.folder, &first.name, &place.folder, &draft, AtFlags::empty());
        linked
            .and_then(|()| rustix::fs::renameat(&place.folder, &draft, &place.folder, &place.name))
            .map_err(|error| place.fault(error))?;
        // Two names of one file: such a rename does nothing.
        let _ = rustix::fs::unlinkat(&place.folder, &draft, AtFlags::empty());
        Ok(())
    }

    /// The file whose content was coming is complete.
    fn commit(&mut self) -> Result<(), Status> {
        let Some((draft, change)) = self.draft.take() else { return Ok(()) };
        let stat = change.stat.unwrap_or_default();
        let path = change.path.clone();
        let size = stat.size;
        draft
            .commit_with(size, |file| {
                for attribute in &change.attributes {
                    let name = CString::new(&attribute.name[..]).map_err(|_| Errno::INVAL)?;
                    match rustix::fs::fsetxattr(file, &name, &attribute.value, XattrFlags::empty()) {
                        // Not every file system or user can.
                        Ok(()) | Err(Errno::OPNOTSUPP | Errno::PERM) => {}
                        Err(error) => return Err(error),
                    }
                }
                let time = Timespec { tv_sec: stat.modified_s, tv_nsec: i64::from(stat.modified_ns) };
                rustix::fs::futimens(file, &Timestamps { last_access: time, last_modification: time })
            })
            .map(drop)
            .map_err(|status| {
                refusal(
                    espalier_agent_protocol::reason_of(&status).unwrap_or(Reason::Io),
                    format!("`{}`: {}", String::from_utf8_lossy(&path), status.message()),
                )
            })
    }

    fn finish(&mut self) -> Result<(), Status> {
        self.commit()?;
        for (path, mode) in std::mem::take(&mut self.folders).into_iter().rev() {
            let place = self.root.place(&path)?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
            let folder = open(&place.folder, &place.name, flags, Mode::empty());
            let folder = folder.map_err(|error| place.fault(error))?;
            rustix::fs::fchmod(&folder, Mode::from_raw_mode(mode & 0o7777))
                .map_err(|error| place.fault(error))?;
        }
        Ok(())
    }
}

fn link(place: &Place, stat: &FileStat) -> Result<(), Errno> {
    let draft = draft_name()?;
    rustix::fs::symlinkat(&stat.target[..], &place.folder, &draft)?;
    rustix::fs::renameat(&place.folder, &draft, &place.folder, &place.name)?;
    own(place, stat)
}

fn own(place: &Place, stat: &FileStat) -> Result<(), Errno> {
    if !may_own() {
        return Ok(());
    }
    let (user, group) = (Uid::from_raw(stat.user_id), Gid::from_raw(stat.group_id));
    rustix::fs::chownat(&place.folder, &place.name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)
}

/// Only root gives files away; an ordinary user's stay its own.
fn may_own() -> bool {
    crate::sys::is_root()
}

fn draft_name() -> Result<CString, Errno> {
    CString::new(format!(".espalier-{}", random_name())).map_err(|_| Errno::INVAL)
}
