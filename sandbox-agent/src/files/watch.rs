//! Changes below a path as they happen, by inotify.

use super::folder::names;
use super::{fault, open, path};
use crate::{Reason, refusal, sys};
use espalier_agent_protocol::v1::{WatchEvent, WatchRequest, watch_event::Kind};
use futures::stream::{BoxStream, StreamExt};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use tokio::io::unix::AsyncFd;
use tonic::Status;

/// Most folders of one watch.
const FOLDERS_MAX: usize = 8192;

struct Watching {
    queue: AsyncFd<OwnedFd>,
    root: CString,
    recursive: bool,
    /// Watched folders, from the root.
    folders: HashMap<i32, Vec<u8>>,
    /// The first half of a move, until the second comes or does not.
    moving: Option<(u32, Vec<u8>, bool)>,
    ready: VecDeque<WatchEvent>,
    gone: bool,
}

fn mask() -> WatchFlags {
    WatchFlags::CREATE
        | WatchFlags::CLOSE_WRITE
        | WatchFlags::MODIFY
        | WatchFlags::ATTRIB
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
        | WatchFlags::EXCL_UNLINK
}

/// Watches a path; the first event says that the watch stands.
pub fn watch(request: &WatchRequest) -> Result<BoxStream<'static, Result<WatchEvent, Status>>, Status> {
    let root = path(&request.path)?;
    let failed = |error| match error {
        Errno::NOSPC | Errno::MFILE => {
            refusal(Reason::Bound, "no more watches: the limit of the user is reached")
        }
        error => fault(&request.path, error),
    };
    let queue = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).map_err(failed)?;
    let queue = sys::readiness(queue).map_err(|error| refusal(Reason::Io, error.to_string()))?;
    let mut watching = Watching {
        queue,
        root,
        recursive: request.recursive,
        folders: HashMap::new(),
        moving: None,
        ready: VecDeque::new(),
        gone: false,
    };
    watching.add(&[], false).map_err(failed)?;
    watching.say(Kind::Ready, Vec::new(), false);
    Ok(futures::stream::try_unfold(watching, |mut watching| async move {
        let event = watching.next().await?;
        Ok::<_, Status>(event.map(|event| (event, watching)))
    })
    .boxed())
}

impl Watching {
    /// Watches a folder and, where asked, those below it. `tell`: what stands there already is news.
    fn add(&mut self, below: &[u8], tell: bool) -> Result<(), Errno> {
        if self.folders.len() >= FOLDERS_MAX {
            return Err(Errno::NOSPC);
        }
        // By descriptor: no link leads the watch elsewhere.
        let relative = self.relative(below)?;
        let mut flags = OFlags::PATH;
        if !below.is_empty() {
            flags |= OFlags::NOFOLLOW;
        }
        let target = open(CWD, &relative, flags, Mode::empty())?;
        let link = format!("/proc/self/fd/{}", target.as_raw_fd());
        let number = inotify::add_watch(self.queue.get_ref(), link, mask())?;
        self.folders.insert(number, below.to_vec());
        let stat = rustix::fs::fstat(&target)?;
        let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if !is_folder || !self.recursive {
            return Ok(());
        }
        let folder = open(CWD, &relative, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        for name in names(&folder)? {
            let Ok(stat) = rustix::fs::statat(&folder, &name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            let full = join(below, name.to_bytes());
            let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            if tell {
                self.say(Kind::Created, full.clone(), is_folder);
            }
            if is_folder {
                match self.add(&full, tell) {
                    // It went away meanwhile.
                    Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    fn relative(&self, below: &[u8]) -> Result<CString, Errno> {
        CString::new(join(self.root.to_bytes(), below)).map_err(|_| Errno::INVAL)
    }

    fn say(&mut self, kind: Kind, path: Vec<u8>, folder: bool) {
        self.ready.push_back(WatchEvent {
            kind: kind.into(),
            path: path.into(),
            from: Default::default(),
            folder,
        });
    }

    async fn next(&mut self) -> Result<Option<WatchEvent>, Status> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            if self.gone {
                return Ok(None);
            }
            let Ok(mut guard) = self.queue.readable().await else { return Ok(None) };
            let mut buffer = [MaybeUninit::uninit(); 8192];
            let mut seen = Vec::new();
            {
                let mut reader = inotify::Reader::new(guard.get_inner(), &mut buffer);
                loop {
                    match reader.next() {
                        Ok(event) => {
                            let name =
                                event.file_name().map(|name| name.to_bytes().to_vec()).unwrap_or_default();
                            seen.push((event.wd(), event.events(), event.cookie(), name));
                            if reader.is_buffer_empty() {
                                break;
                            }
                        }
                        Err(_) => {
                            guard.clear_ready();
                            break;
                        }
                    }
                }
            }
            for (number, flags, cookie, name) in seen {
                self.take(number, flags, cookie, &name)?;
            }
            self.settle_move();
        }
    }

    fn take(&mut self, number: i32, flags: ReadFlags, cookie: u32, name: &[u8]) -> Result<(), Status> {
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            self.say(Kind::Overflow, Vec::new(), false);
            return Ok(());
        }
        let Some(below) = self.folders.get(&number).cloned() else { return Ok(()) };
        let (path, folder) = (join(&below, name), flags.contains(ReadFlags::ISDIR));
        if flags.contains(ReadFlags::MOVED_TO)
            && let Some((moving, from, _)) = self.moving.take_if(|(moving, ..)| *moving == cookie)
        {
            debug_assert_eq!(moving, cookie);
            self.rename(&from, &path);
            self.ready.push_back(WatchEvent {
                kind: Kind::Moved.into(),
                path: path.into(),
                from: from.into(),
                folder,
            });
            return Ok(());
        }
        self.settle_move();
        if flags.contains(ReadFlags::MOVED_FROM) {
            self.moving = Some((cookie, path, folder));
        } else if flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            self.say(Kind::Created, path.clone(), folder);
            if folder && self.recursive {
                // Any other failure: it is gone again.
                if self.add(&path, true) == Err(Errno::NOSPC) {
                    self.say(Kind::Overflow, Vec::new(), false);
                }
            }
        } else if flags.intersects(ReadFlags::CLOSE_WRITE | ReadFlags::MODIFY) {
            // Many writes in a row are one event until somebody reads it.
            let again =
                self.ready.back().is_some_and(|last| last.kind() == Kind::Changed && last.path == path);
            if !again {
                self.say(Kind::Changed, path, folder);
            }
        } else if flags.contains(ReadFlags::ATTRIB) {
            self.say(Kind::Attributes, path, folder);
        } else if flags.contains(ReadFlags::DELETE) {
            self.say(Kind::Removed, path, folder);
        } else if flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF) && below.is_empty() {
            self.say(Kind::Gone, Vec::new(), folder);
            self.gone = true;
        } else if flags.contains(ReadFlags::IGNORED) {
            self.folders.remove(&number);
        }
        Ok(())
    }

    /// A move out of what is watched is a removal.
    fn settle_move(&mut self) {
        if let Some((_, from, folder)) = self.moving.take() {
            let inside = [&from[..], b"/"].concat();
            let numbers: Vec<i32> = self
                .folders
                .iter()
                .filter(|(_, path)| **path == from || path.starts_with(&inside))
                .map(|(number, _)| *number)
                .collect();
            for number in numbers {
                let _ = inotify::remove_watch(self.queue.get_ref(), number);
                self.folders.remove(&number);
            }
            self.say(Kind::Removed, from, folder);
        }
    }

    /// Folders that moved along are known by their new paths.
    fn rename(&mut self, from: &[u8], to: &[u8]) {
        let inside = [from, b"/"].concat();
        for path in self.folders.values_mut() {
            if *path == from {
                *path = to.to_vec();
            } else if let Some(rest) = path.strip_prefix(&inside[..]) {
                *path = join(to, rest);
            }
        }
    }
}

fn join(folder: &[u8], name: &[u8]) -> Vec<u8> {
    match (folder.is_empty(), name.is_empty()) {
        (true, _) => name.to_vec(),
        (_, true) => folder.to_vec(),
        _ => [folder, b"/", name].concat(),
    }
}
