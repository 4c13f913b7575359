//! What `/proc` says about processes, read through a descriptor that was opened before any command ran: nothing mounted over
//! `/proc` later is believed.

use super::MARK_VARIABLE;
use rustix::fs::{Dir, Mode, OFlags};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The folder `/proc` of the agent's own process namespace.
#[derive(Debug)]
pub struct Proc {
    folder: OwnedFd,
}

/// What is read of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) pid: u32,
    pub(super) state: u8,
    pub(super) group: u32,
    pub(super) session: u32,
    pub(super) started: u64,
}

impl Proc {
    /// Opens `/proc`.
    pub fn open() -> std::io::Result<Proc> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Proc { folder: rustix::fs::open(c"/proc", flags, Mode::empty())? })
    }

    /// The folder.
    pub fn folder(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }

    /// All process ids, ascending.
    pub(super) fn pids(&self) -> Vec<u32> {
        let Ok(entries) = Dir::read_from(&self.folder) else { return Vec::new() };
        entries.flatten().filter_map(|entry| entry.file_name().to_str().ok()?.parse().ok()).collect()
    }

    /// Whether the agent has a child that is not known: an orphan of a command, then. True where the kernel does not tell.
    pub fn has_child_but(&self, known: &dyn Fn(u32) -> bool) -> bool {
        let children = self.children(&format!("self/task/{}", std::process::id()));
        children.is_none_or(|children| children.into_iter().any(|pid| !known(pid)))
    }

    /// The children of a process's first thread; none where the kernel does not tell.
    pub(super) fn children_of(&self, pid: u32) -> Vec<u32> {
        self.children(&format!("{pid}/task/{pid}")).unwrap_or_default()
    }

    fn children(&self, thread: &str) -> Option<Vec<u32>> {
        let text = self.read(&format!("{thread}/children"), 1 << 20)?;
        Some(String::from_utf8_lossy(&text).split_ascii_whitespace().flat_map(str::parse).collect())
    }

    /// The process id that was given out last.
    pub(super) fn newest(&self) -> Option<u32> {
        let text = self.read("loadavg", 256)?;
        std::str::from_utf8(&text).ok()?.split_whitespace().nth(4)?.parse().ok()
    }

    pub(super) fn stat(&self, pid: u32) -> Option<Stat> {
        parse_stat(&self.read(&format!("{pid}/stat"), 1024)?)
    }

    /// The soft limit of file locks.
    pub(super) fn limit(&self, pid: u32) -> Option<u64> {
        parse_limit(&self.read(&format!("{pid}/limits"), 4096)?)
    }

    /// The mark in the environment it was started with.
    pub(super) fn environment_mark(&self, pid: u32) -> Option<u64> {
        let environment = self.read(&format!("{pid}/environ"), 1 << 20)?;
        environment.split(|byte| *byte == 0).find_map(|variable| {
            let value = variable.strip_prefix(MARK_VARIABLE.as_bytes())?.strip_prefix(b"=")?;
            u64::from_str_radix(std::str::from_utf8(value).ok()?, 16).ok()
        })
    }

    fn read(&self, path: &str, bytes_max: u64) -> Option<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(&self.folder, path, flags, Mode::empty()).ok()?;
        let mut bytes = Vec::new();
        std::fs::File::from(file).take(bytes_max).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }
}

/// The name of a process stands in brackets and may hold anything, brackets too.
fn parse_stat(line: &[u8]) -> Option<Stat> {
    let open = line.iter().position(|byte| *byte == b'(')?;
    let close = line.iter().rposition(|byte| *byte == b')')?;
    let pid = std::str::from_utf8(&line[..open]).ok()?.trim().parse().ok()?;
    let rest = std::str::from_utf8(line.get(close + 1..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Stat {
        pid,
        state: *fields.first()?.as_bytes().first()?,
        group: fields.get(2)?.parse().unwrap_or(0),
        session: fields.get(3)?.parse().unwrap_or(0),
        started: fields.get(19)?.parse().ok()?,
    })
}

fn parse_limit(limits: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(limits).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max file locks"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_processes_do_not_confuse() {
        let line = b"17 (a) R 1 (b) S 1 15 14 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 123456 7 8\n";
        let expect = Stat { pid: 17, state: b'S', group: 15, session: 14, started: 123_456 };
        assert_eq!(parse_stat(line), Some(expect));
        assert_eq!(parse_stat(b"17 (a"), None);
        assert_eq!(parse_stat(b""), None);
    }

    #[test]
    fn the_mark_is_read_from_the_limits() {
        let limits = b"Limit   Soft Limit   Hard Limit   Units\nMax file locks            4995148757353987905  4995148757353987905  locks\n";
        assert_eq!(parse_limit(limits), Some(4_995_148_757_353_987_905));
        assert_eq!(
            parse_limit(b"Max file locks            unlimited            unlimited            locks"),
            None
        );
    }

    #[test]
    fn this_process_is_found() {
        let proc = Proc::open().unwrap();
        let me = std::process::id();
        assert!(proc.pids().contains(&me));
        assert_eq!(proc.stat(me).map(|stat| stat.pid), Some(me));
        assert!(proc.newest().is_some());
        let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get().cast_unsigned());
        let siblings = proc.children_of(parent);
        assert!(siblings.is_empty() || siblings.contains(&me), "{siblings:?}");
    }
}
