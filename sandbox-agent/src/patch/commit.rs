//! A plan put on disk: everything new is written beside its place first, then each goes into its place at once; where one
//! cannot, those before it are taken back. A file whose name a folder takes goes before all else, and a folder whose name a file
//! takes goes whole.

use super::plan::{Content, Plan};
use crate::files::{fault, open, random_name};
use crate::{Reason, refusal};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Uid};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::io::Read;
use std::os::fd::OwnedFd;
use tonic::Status;

/// The folder that a patch is about. Nothing above or beside it is touched, whatever links lie in it.
#[derive(Debug)]
pub(super) struct Root {
    folder: OwnedFd,
}

impl Root {
    pub(super) fn open(path: &CStr) -> Result<Root, Status> {
        let folder = open(CWD, path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty());
        Ok(Root { folder: folder.map_err(|error| fault(path.to_bytes(), error))? })
    }

    fn beneath(&self, name: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(&self.folder, name, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
    }

    /// The folder of a name, and its last part.
    fn place(&self, name: &[u8]) -> Result<(OwnedFd, CString), Errno> {
        let (folder, last) = crate::files::place::split(name);
        let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| Errno::INVAL);
        Ok((self.beneath(&text(folder)?, OFlags::PATH | OFlags::DIRECTORY)?, text(last)?))
    }

    /// A file as it is.
    pub(super) fn read(&self, name: &[u8], bytes_max: usize) -> Result<Content, Errno> {
        let (folder, last) = self.place(name)?;
        let stat = rustix::fs::statat(&folder, &last, AtFlags::SYMLINK_NOFOLLOW)?;
        let mode = stat.st_mode & 0o7777;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => {
                let bytes = rustix::fs::readlinkat(&folder, &last, Vec::new())?.into_bytes();
                return Ok(Content { bytes, mode, link: true });
            }
            FileType::RegularFile => {}
            FileType::Directory => return Err(Errno::ISDIR),
            _ => return Err(Errno::INVAL),
        }
        let file = open(&folder, &last, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK, Mode::empty())?;
        let mut bytes = Vec::new();
        let read = std::fs::File::from(file).take(bytes_max as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        if bytes.len() > bytes_max { Err(Errno::FBIG) } else { Ok(Content { bytes, mode, link: false }) }
    }

    /// Makes the folders of a name that are missing; notes which.
    fn make_parents(&self, name: &[u8], made: &mut Vec<Vec<u8>>) -> Result<(), Errno> {
        let mut ends = name.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        ends.try_for_each(|end| {
            let folder = &name[..end];
            match self.place(folder) {
                Ok((parent, last)) => match rustix::fs::mkdirat(&parent, &last, Mode::from_raw_mode(0o755)) {
                    Ok(()) => {
                        made.push(folder.to_vec());
                        own_as_parent(&parent, &last)
                    }
                    Err(Errno::EXIST) => Ok(()),
                    Err(error) => Err(error),
                },
                Err(error) => Err(error),
            }
        })
    }

    /// A folder and those in it, where it holds nothing but files that a plan takes away; each folder before those in it.
    fn emptied(&self, name: &[u8], plan: &Plan) -> Result<Option<Vec<Vec<u8>>>, Errno> {
        let mut folders = vec![name.to_vec()];
        let mut at = 0;
        while let Some(folder) = folders.get(at).cloned() {
            let (parent, last) = self.place(&folder)?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
            for entry in Dir::read_from(open(&parent, &last, flags, Mode::empty())?)? {
                let entry = entry?;
                let last = entry.file_name().to_bytes();
                if matches!(last, b"." | b"..") {
                    continue;
                }
                let inner = [&folder, &b"/"[..], last].concat();
                match plan.files.get(&inner) {
                    Some(None) => {}
                    None if entry.file_type() == FileType::Directory => folders.push(inner),
                    _ => return Ok(None),
                }
            }
            at += 1;
        }
        Ok(Some(folders))
    }

    fn remove_folder(&self, name: &[u8]) -> bool {
        self.place(name)
            .is_ok_and(|(parent, last)| rustix::fs::unlinkat(&parent, &last, AtFlags::REMOVEDIR).is_ok())
    }
}

/// What is new belongs to whom its folder belongs to.
fn own_as_parent(parent: &OwnedFd, name: &CStr) -> Result<(), Errno> {
    if !crate::sys::is_root() {
        return Ok(());
    }
    let stat = rustix::fs::fstat(parent)?;
    let owner = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    rustix::fs::chownat(parent, name, Some(owner.0), Some(owner.1), AtFlags::SYMLINK_NOFOLLOW)
}

/// One file's step.
struct Step<'a> {
    name: &'a [u8],
    folder: OwnedFd,
    last: CString,
    /// New content; where the step is done, what was there before.
    draft: CString,
    content: Option<&'a Content>,
    existed: bool,
    /// Where there was a folder: it and those in it, all of which go.
    folders: Vec<Vec<u8>>,
    done: bool,
}

/// Puts a plan on disk, or nothing of it.
pub(super) fn commit(root: &Root, plan: &Plan) -> Result<(), Status> {
    let mut made = Vec::new();
    // Files whose names folders take, and all others.
    let (mut first, mut steps) = (Vec::new(), Vec::new());
    let done = clear(root, plan, &mut first)
        .and_then(|()| prepare(root, plan, &mut made, &mut steps))
        .and_then(|()| steps.iter_mut().try_for_each(Step::run));
    if done.is_err() {
        steps.iter_mut().rev().for_each(Step::take_back);
        for folder in made.iter().rev() {
            root.remove_folder(folder);
        }
        first.iter_mut().rev().for_each(Step::take_back);
        return done;
    }
    steps.append(&mut first);
    for step in steps.iter().filter(|step| step.folders.is_empty()) {
        let _ = rustix::fs::unlinkat(&step.folder, &step.draft, AtFlags::empty());
    }
    for step in &steps {
        for folder in step.folders.iter().rev() {
            root.remove_folder(&step.moved(folder));
        }
    }
    for step in steps.iter().filter(|step| step.content.is_none()) {
        remove_empty_parents(root, step.name);
    }
    Ok(())
}

/// As git does it: folders that a deletion leaves empty go too.
fn remove_empty_parents(root: &Root, name: &[u8]) {
    let mut name = name;
    while let Some(end) = name.iter().rposition(|byte| *byte == b'/') {
        name = &name[..end];
        if !root.remove_folder(name) {
            return;
        }
    }
}

/// Takes files out of the way of folders.
fn clear<'a>(root: &Root, plan: &'a Plan, steps: &mut Vec<Step<'a>>) -> Result<(), Status> {
    let deleted = plan.files.iter().filter(|(_, content)| content.is_none()).map(|(name, _)| name);
    for name in deleted.filter(|name| plan.makes_folder(name)) {
        if let Some((mut step, _)) = Step::new(root, plan, name, None)? {
            step.run()?;
            steps.push(step);
        }
    }
    Ok(())
}

fn prepare<'a>(
    root: &Root,
    plan: &'a Plan,
    made: &mut Vec<Vec<u8>>,
    steps: &mut Vec<Step<'a>>,
) -> Result<(), Status> {
    for (name, content) in &plan.files {
        if content.is_none() && plan.makes_folder(name) {
            continue;
        }
        let failed = |error| fault(name, error);
        if content.is_some() {
            root.make_parents(name, made).map_err(failed)?;
        }
        let Some((step, owner)) = Step::new(root, plan, name, content.as_ref())? else { continue };
        let written = step.write(owner);
        steps.push(step);
        written.map_err(failed)?;
    }
    Ok(())
}

/// User and group of what was there.
type Owner = Option<(u32, u32)>;

impl<'a> Step<'a> {
    /// Nothing is done yet. None where there is nothing to do.
    fn new(
        root: &Root,
        plan: &Plan,
        name: &'a [u8],
        content: Option<&'a Content>,
    ) -> Result<Option<(Step<'a>, Owner)>, Status> {
        let failed = |error| fault(name, error);
        let place = root.place(name);
        if content.is_none() && matches!(place, Err(Errno::NOENT | Errno::NOTDIR)) {
            return Ok(None);
        }
        let (folder, last) = place.map_err(failed)?;
        let before = rustix::fs::statat(&folder, &last, AtFlags::SYMLINK_NOFOLLOW).ok();
        if content.is_none() && before.is_none() {
            return Ok(None);
        }
        let is_folder =
            before.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
        let folders = if is_folder {
            let text = "is a directory with entries that the patch does not remove";
            let refused = || refusal(Reason::Patch, format!("`{}`: {text}", String::from_utf8_lossy(name)));
            root.emptied(name, plan).map_err(failed)?.ok_or_else(refused)?
        } else {
            Vec::new()
        };
        let draft = CString::new(format!(".espalier-{}", random_name())).map_err(|_| failed(Errno::INVAL))?;
        let owner = before.map(|stat| (stat.st_uid, stat.st_gid));
        let existed = before.is_some();
        Ok(Some((Step { name, folder, last, draft, content, existed, folders, done: false }, owner)))
    }

    /// Where a folder in the place of this step lies once the step is done.
    fn moved(&self, folder: &[u8]) -> Vec<u8> {
        let (parent, _) = crate::files::place::split(self.name);
        [parent, b"/", self.draft.as_bytes(), &folder[self.name.len()..]].concat()
    }

    /// Writes the draft.
    fn write(&self, owner: Owner) -> Result<(), Errno> {
        let Some(content) = self.content else { return Ok(()) };
        if content.link {
            rustix::fs::symlinkat(&content.bytes[..], &self.folder, &self.draft)?;
        } else {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
            let file = open(&self.folder, &self.draft, flags, Mode::RUSR | Mode::WUSR)?;
            let mut rest = &content.bytes[..];
            while !rest.is_empty() {
                rest = &rest[rustix::io::write(&file, rest)?..];
            }
            rustix::fs::fchmod(&file, Mode::from_raw_mode(content.mode))?;
        }
        match owner {
            None => own_as_parent(&self.folder, &self.draft),
            Some((user, group)) if crate::sys::is_root() => {
                let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
                rustix::fs::chownat(
                    &self.folder,
                    &self.draft,
                    Some(user),
                    Some(group),
                    AtFlags::SYMLINK_NOFOLLOW,
                )?;
                if content.link {
                    return Ok(());
                }
                // Changing the owner may have cleared bits.
                rustix::fs::chmodat(
                    &self.folder,
                    &self.draft,
                    Mode::from_raw_mode(content.mode),
                    AtFlags::empty(),
                )
            }
            Some(_) => Ok(()),
        }
    }

    /// Puts the draft into its place, and what was there under the draft's name.
    fn run(&mut self) -> Result<(), Status> {
        let (folder, draft, last) = (&self.folder, &self.draft, &self.last);
        let (from, to, flags) = match (self.content, self.existed) {
            (Some(_), false) => (draft, last, RenameFlags::NOREPLACE),
            (Some(_), true) => (draft, last, RenameFlags::EXCHANGE),
            (None, _) => (last, draft, RenameFlags::NOREPLACE),
        };
        rustix::fs::renameat_with(folder, from, folder, to, flags)
            .map_err(|error| fault(self.name, error))?;
        self.done = true;
        Ok(())
    }

    fn take_back(&mut self) {
        let (folder, draft, last) = (&self.folder, &self.draft, &self.last);
        if self.done {
            let _ = match (self.content, self.existed) {
                (Some(_), false) => rustix::fs::unlinkat(folder, last, AtFlags::empty()),
                (Some(_), true) => {
                    rustix::fs::renameat_with(folder, draft, folder, last, RenameFlags::EXCHANGE)
                }
                (None, _) => rustix::fs::renameat_with(folder, draft, folder, last, RenameFlags::NOREPLACE),
            };
        }
        let _ = rustix::fs::unlinkat(folder, draft, AtFlags::empty());
    }
}
