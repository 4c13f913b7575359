//! Where outputs go that are too large for memory: files without a name, that only the agent can open.

use rustix::fs::{MemfdFlags, Mode, OFlags};
use std::fs::File;
use std::os::fd::OwnedFd;

/// A place for nameless files.
#[derive(Debug)]
pub enum Spill {
    /// A folder, usually outside the sandbox's mount namespace; its disk or quota is what is used.
    Folder(OwnedFd),
    /// Memory, charged to the sandbox.
    Memory,
    /// No place: only what memory of the agent allows is kept.
    Nowhere,
    /// Stands for a device that is always full.
    #[cfg(test)]
    Full,
}

impl Spill {
    /// A new file, gone when closed. `None` where none can be made.
    pub fn file(&self) -> Option<File> {
        match self {
            Spill::Folder(folder) => {
                let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
                let file = rustix::fs::openat(folder, c".", flags, Mode::RUSR | Mode::WUSR);
                file.ok().map(File::from).or_else(memory_file)
            }
            Spill::Memory => memory_file(),
            Spill::Nowhere => None,
            #[cfg(test)]
            Spill::Full => File::options().read(true).write(true).open("/dev/full").ok(),
        }
    }
}

fn memory_file() -> Option<File> {
    rustix::fs::memfd_create(c"output", MemfdFlags::CLOEXEC).ok().map(File::from)
}
