//! What was done in a sandbox, as files: added, changed, removed since a baseline. Taken without any program of the sandbox.
//!
//! The baseline is a list of all entries with what the kernel says of them, the time of their last change among it, which no
//! command can set back. It lies where outputs spill; comparing reads it once, in the order of the walk.

pub mod apply;
mod list;
mod walk;

use crate::agent::Agent;
use crate::files::{self, blocking, describe, fault};
use crate::spill::Spill;
use crate::{Reason, refusal};
use espalier_agent_protocol::CHUNK_BYTES;
use espalier_agent_protocol::v1::{
    BaselineRequest, Change, ChangeEvent, ChangesEnd, ChangesRequest, Chunk, Variable, change::Action,
    change_event::Event,
};
use futures::stream::{BoxStream, StreamExt};
use list::{List, Reader, Writer};
use rustix::fs::{CWD, FileType, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::CString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use tonic::Status;
use walk::{Entry, Walk};

/// Bound on the content of one answer, unless the request says otherwise.
const BYTES_MAX: u64 = 1 << 30;
/// Most bytes of one extended attribute.
const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;

/// The state of some folders at one moment.
#[derive(Debug)]
pub struct Baseline {
    roots: Vec<Root>,
    except: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct Root {
    path: Vec<u8>,
    list: List,
}

/// A file of the spill, or memory where there is no spill.
fn scratch(agent: &Agent) -> Result<File, Status> {
    let file = agent.spill().file().or_else(|| Spill::Memory.file());
    file.ok_or_else(|| refusal(Reason::Io, "no space for a list of files"))
}

fn clean(path: &[u8]) -> Result<Vec<u8>, Status> {
    files::path(path)?;
    let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).collect();
    if parts.iter().any(|part| *part == b".." || *part == b".") {
        return Err(refusal(
            Reason::Invalid,
            format!("path `{}`: not a plain path", String::from_utf8_lossy(path)),
        ));
    }
    Ok([b"/", &parts.join(&b'/')[..]].concat())
}

/// Whether a path is a folder or lies below it.
fn is_below(path: &[u8], folder: &[u8]) -> bool {
    folder == b"/" || path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

impl Baseline {
    /// Looks at every entry below the roots.
    pub fn take(agent: &Agent, request: &BaselineRequest) -> Result<Baseline, Status> {
        let except: Result<Vec<_>, _> = request.except.iter().map(|path| clean(path)).collect();
        let mut baseline = Baseline { roots: Vec::new(), except: except? };
        for root in &request.roots {
            let path = clean(root)?;
            let mut writer = Writer::new(scratch(agent)?);
            for entry in Walk::of(&path, &baseline.except)? {
                let (path, stat) = entry?;
                writer.put(&Entry::of(path, &stat)).map_err(|error| files::fault_io(root, &error))?;
            }
            let list = writer.finish().map_err(|error| files::fault_io(root, &error))?;
            baseline.roots.push(Root { path, list });
        }
        if baseline.roots.is_empty() {
            return Err(refusal(Reason::Invalid, "baseline: no folder given"));
        }
        Ok(baseline)
    }

    /// Entries in all lists.
    pub fn entries(&self) -> u64 {
        self.roots.iter().map(|root| root.list.entries).sum()
    }
}

/// A change found, as it is kept between finding and sending.
struct Found {
    action: Action,
    path: Vec<u8>,
}

/// Compares; what was found goes into a list, so that memory stays small.
struct Finding {
    list: Writer,
    end: ChangesEnd,
    removed: Option<Vec<u8>>,
}

impl Finding {
    fn add(&mut self, action: Action, path: &[u8], size: u64) -> std::io::Result<()> {
        match action {
            Action::Added => self.end.added += 1,
            Action::Changed => self.end.changed += 1,
            Action::Removed => {
                // With a folder goes what was in it.
                if self.removed.as_ref().is_some_and(|folder| is_below(path, folder)) {
                    return Ok(());
                }
                self.end.removed += 1;
                self.removed = Some(path.to_vec());
            }
        }
        self.end.content_bytes = self.end.content_bytes.saturating_add(size);
        self.list.put(&Entry { path: path.to_vec(), kind: action as u32, ..Entry::default() })
    }

    fn compare(&mut self, root: &Root, except: &[Vec<u8>], below: &[u8]) -> Result<(), Status> {
        let failed = |error: std::io::Error| files::fault_io(&root.path, &error);
        let mut before = root.list.read();
        let mut old = before.next().map_err(failed)?;
        for entry in Walk::of(&root.path, except)? {
            let (path, stat) = entry?;
            let new = Entry::of(path, &stat);
            while let Some(entry) = old.take_if(|entry| walk::order(&entry.path, &new.path).is_lt()) {
                if is_below(&entry.path, below) {
                    self.add(Action::Removed, &entry.path, 0).map_err(failed)?;
                }
                old = before.next().map_err(failed)?;
            }
            let known = old.take_if(|entry| entry.path == new.path);
            let wanted = is_below(&new.path, below);
            // What is sent of it: holes are not.
            let exists = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
            let size = if new.is_file() { new.size.min(exists) } else { 0 };
            match &known {
                None if wanted => self.add(Action::Added, &new.path, size).map_err(failed)?,
                Some(known) if wanted && known.differs(&new) => {
                    self.add(Action::Changed, &new.path, size).map_err(failed)?;
                }
                _ => {}
            }
            if known.is_some() {
                old = before.next().map_err(failed)?;
            }
        }
        while let Some(entry) = old {
            if is_below(&entry.path, below) {
                self.add(Action::Removed, &entry.path, 0).map_err(failed)?;
            }
            old = before.next().map_err(failed)?;
        }
        Ok(())
    }
}

/// Streams what changed since the baseline.
pub async fn changes(
    agent: &Arc<Agent>,
    request: ChangesRequest,
) -> Result<BoxStream<'static, Result<ChangeEvent, Status>>, Status> {
    let baseline = agent.baseline();
    let baseline = baseline.ok_or_else(|| refusal(Reason::Invalid, "changes: no baseline was taken"))?;
    let agent = Arc::clone(agent);
    let sending = blocking(move || find(&agent, &baseline, &request)).await?;
    let events = futures::stream::try_unfold(sending, |mut sending| async move {
        let (event, sending) = blocking(move || {
            let event = sending.next()?;
            Ok((event, sending))
        })
        .await?;
        Ok(event.map(|event| (ChangeEvent { event: Some(event) }, sending)))
    });
    Ok(events.boxed())
}

fn find(agent: &Agent, baseline: &Baseline, request: &ChangesRequest) -> Result<Sending, Status> {
    let below = if request.root.is_empty() { b"/".to_vec() } else { clean(&request.root)? };
    let list = Writer::new(scratch(agent)?);
    let mut finding = Finding { list, end: ChangesEnd::default(), removed: None };
    let mut looked_at = false;
    for root in &baseline.roots {
        if is_below(&below, &root.path) || is_below(&root.path, &below) {
            looked_at = true;
            finding.compare(root, &baseline.except, &below)?;
        }
    }
    if !looked_at {
        let root = String::from_utf8_lossy(&request.root).into_owned();
        return Err(refusal(Reason::Invalid, format!("changes: `{root}` is in no folder of the baseline")));
    }
    let bytes_max = if request.bytes_max == 0 { BYTES_MAX } else { request.bytes_max };
    let bytes = finding.end.content_bytes;
    if bytes > bytes_max && !request.names_only {
        return Err(refusal(
            Reason::Bound,
            format!("changes: {bytes} bytes of content, at most {bytes_max}"),
        ));
    }
    let Finding { list, end, .. } = finding;
    let list = list.finish().map_err(|error| files::fault_io(&request.root, &error))?;
    Ok(Sending {
        reader: list.read(),
        end: Some(end),
        names_only: request.names_only,
        links: HashMap::new(),
        content: None,
    })
}

/// Sends what was found, one event after the other.
struct Sending {
    reader: Reader,
    end: Option<ChangesEnd>,
    names_only: bool,
    /// First names of files with several.
    links: HashMap<(u64, u64), Vec<u8>>,
    /// A file that is being sent: from where, up to where.
    content: Option<(File, u64, u64)>,
}

impl Sending {
    fn next(&mut self) -> Result<Option<Event>, Status> {
        loop {
            if let Some((file, from, size)) = &mut self.content {
                match chunk(file, *from, *size).map_err(|error| files::fault_io(b"a changed file", &error))? {
                    Some(chunk) => {
                        *from = chunk.offset + chunk.bytes.len() as u64;
                        return Ok(Some(Event::Chunk(chunk)));
                    }
                    None => self.content = None,
                }
            }
            let found =
                self.reader.next().map_err(|error| files::fault_io(b"the list of changes", &error))?;
            let Some(found) = found else { return Ok(self.end.take().map(Event::End)) };
            let action = [Action::Added, Action::Changed, Action::Removed][found.kind.min(2) as usize];
            if let Some(change) = self.change(Found { action, path: found.path })? {
                return Ok(Some(Event::Change(change)));
            }
        }
    }

    /// `None`: it is gone again.
    fn change(&mut self, found: Found) -> Result<Option<Change>, Status> {
        let Found { action, path } = found;
        let mut change = Change { action: action.into(), path: path.clone().into(), ..Change::default() };
        if action == Action::Removed {
            return Ok(Some(change));
        }
        match self.describe(&path, &mut change) {
            Ok(()) => Ok(Some(change)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(fault(&path, error)),
        }
    }

    fn describe(&mut self, path: &[u8], change: &mut Change) -> Result<(), Errno> {
        let name = CString::new(path).map_err(|_| Errno::INVAL)?;
        let stat = rustix::fs::statat(CWD, &name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Symlink {
            change.stat = Some(describe(&stat, rustix::fs::readlinkat(CWD, &name, Vec::new())?.into_bytes()));
            return Ok(());
        }
        change.stat = Some(describe(&stat, Vec::new()));
        if kind == FileType::RegularFile && stat.st_nlink > 1 {
            let number = (stat.st_dev, stat.st_ino);
            if let Some(first) = self.links.get(&number) {
                change.hard_link = first.clone().into();
                return Ok(());
            }
            self.links.insert(number, path.to_vec());
        }
        self.content(&name, &stat, change)
    }

    fn content(&mut self, name: &CString, stat: &Stat, change: &mut Change) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = files::open(CWD, name, flags, Mode::empty())?;
        change.attributes = attributes(&file);
        if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && !self.names_only {
            self.content = Some((File::from(file), 0, u64::try_from(stat.st_size).unwrap_or(0)));
        }
        Ok(())
    }
}

fn chunk(file: &File, from: u64, size: u64) -> std::io::Result<Option<Chunk>> {
    if from >= size {
        return Ok(None);
    }
    let start = match rustix::fs::seek(file, SeekFrom::Data(from)) {
        Err(Errno::NXIO) => return Ok(None),
        Err(_) => from,
        Ok(start) => start,
    };
    let length = usize::try_from(size.saturating_sub(start)).unwrap_or(usize::MAX).min(CHUNK_BYTES);
    let mut bytes = vec![0; length];
    let count = file.read_at(&mut bytes, start)?;
    bytes.truncate(count);
    Ok((count > 0).then(|| Chunk { offset: start, bytes: bytes.into() }))
}

/// Attributes that belong to the work: the user's, access lists, capabilities of programs.
fn attributes(file: &std::os::fd::OwnedFd) -> Vec<Variable> {
    let mut names = Vec::with_capacity(4096);
    if rustix::fs::flistxattr(file, rustix::buffer::spare_capacity(&mut names)).is_err() {
        return Vec::new();
    }
    let wanted = |name: &&[u8]| {
        name.starts_with(b"user.") || name.starts_with(b"system.posix_acl") || *name == b"security.capability"
    };
    let names = names.split(|byte: &u8| *byte == 0).filter(wanted);
    let values = names.filter_map(|name| {
        let mut value = Vec::with_capacity(ATTRIBUTE_BYTES_MAX);
        rustix::fs::fgetxattr(file, name, rustix::buffer::spare_capacity(&mut value)).ok()?;
        Some(Variable { name: name.to_vec().into(), value: value.into() })
    });
    values.collect()
}
