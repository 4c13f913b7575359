//! The processes that a command started, however they try to leave it: found by cgroup where there is one, else by marks that
//! every child inherits; and killed, all of them and nothing else.
//!
//! The marks, strongest first. A limit that the kernel never enforces (`RLIMIT_LOCKS`): a process can lower it, and nothing
//! else, so another command's mark cannot be forged. A variable of the environment. The session of the command's leader. A
//! process that has lost all three, on purpose, is reached only by a cgroup.

mod process;

use crate::cgroup::Group;
use parking_lot::Mutex;
pub use process::Proc;
use process::Stat;
use rustix::process::{Pid, Signal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// The limit that carries the mark: `RLIMIT_LOCKS`.
pub const MARK_LIMIT: i32 = 10;
/// The variable that carries the mark.
pub const MARK_VARIABLE: &str = "ESPALIER_COMMAND";

/// High bits of every mark, so that a limit set by somebody else is not taken for one.
const MARK_TAG: u64 = 0x4553;
/// How long a killed tree may take to vanish before what is left counts as unkillable.
const VANISH_MAX: Duration = Duration::from_secs(5);
/// Processes that one look below a leader takes in.
const BELOW_LEADER_MAX: u32 = 1000;

/// Makes marks: the tag, 16 bits of this boot, a counter.
#[derive(Debug)]
pub struct Marks {
    boot: u16,
    next: u32,
}

impl Marks {
    /// Marks of one boot.
    pub fn new(boot: [u8; 2]) -> Marks {
        Marks { boot: u16::from_ne_bytes(boot), next: 0 }
    }

    /// One that was not used before.
    pub fn make(&mut self) -> u64 {
        self.next = self.next.wrapping_add(1);
        self.prefix() | u64::from(self.next)
    }

    fn prefix(&self) -> u64 {
        MARK_TAG << 48 | u64::from(self.boot) << 32
    }
}

/// The same mark of any boot.
fn is_mark(value: u64) -> bool {
    value >> 48 == MARK_TAG
}

/// One command's processes.
#[derive(Debug)]
pub struct Tree {
    /// In limit and environment.
    mark: u64,
    /// Bits of the mark that count.
    mask: u64,
    /// The leader, while the agent has not reaped it; 0 after that.
    leader: AtomicU32,
    group: Mutex<Option<Arc<Group>>>,
    /// Nothing of it lives, for ever.
    over: AtomicBool,
    proc: Arc<Proc>,
}

/// A process, named so that another one with its number is not meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Member {
    /// Process id.
    pub pid: u32,
    /// Start, in ticks since boot.
    pub started: u64,
    /// Its process group.
    group: u32,
}

impl Tree {
    /// A tree without processes yet.
    pub fn new(mark: u64, group: Option<Group>, proc: Arc<Proc>) -> Tree {
        let group = Mutex::new(group.map(Arc::new));
        Tree { mark, mask: u64::MAX, leader: 0.into(), group, over: false.into(), proc }
    }

    /// All that this boot of the agent has ever started.
    pub fn of_boot(marks: &Marks, proc: Arc<Proc>) -> Tree {
        let (mark, mask) = (marks.prefix(), !u64::from(u32::MAX));
        Tree { mark, mask, leader: 0.into(), group: Mutex::default(), over: false.into(), proc }
    }

    /// What its processes inherit.
    pub fn mark(&self) -> u64 {
        self.mark
    }

    /// The cgroup to start the leader in.
    pub fn group(&self) -> Option<Arc<Group>> {
        self.group.lock().clone()
    }

    /// Gives its cgroup back where nothing lives in it, after the end: records outlive commands by far, and each fork copies and
    /// closes all descriptors there are.
    pub fn release(&self) {
        let empty = self.group().and_then(|group| group.is_empty());
        if empty == Some(true) {
            self.over.store(true, Ordering::Relaxed);
            *self.group.lock() = None;
        }
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// The leader was started, or (0) reaped.
    pub fn set_leader(&self, pid: u32) {
        self.leader.store(pid, Ordering::Relaxed);
    }

    /// The leader, if it was not reaped yet.
    pub fn leader(&self) -> Option<u32> {
        Some(self.leader.load(Ordering::Relaxed)).filter(|pid| *pid != 0)
    }

    /// Its living processes. Zombies are not among them.
    pub fn members(&self) -> Vec<Member> {
        if self.is_over() {
            return Vec::new();
        }
        let pids = match self.group().and_then(|group| group.processes()) {
            Some(pids) => {
                return pids.into_iter().filter_map(|pid| self.proc.stat(pid)).filter_map(alive).collect();
            }
            None => self.proc.pids(),
        };
        pids.into_iter().filter_map(|pid| self.member(pid)).collect()
    }

    /// Whether it has none but those named.
    pub fn is_gone(&self) -> bool {
        match self.group().and_then(|group| group.is_empty()) {
            Some(empty) => empty,
            None => self.members().is_empty(),
        }
    }

    /// The process, if it lives and bears this tree's marks.
    fn member(&self, pid: u32) -> Option<Member> {
        let stat = self.proc.stat(pid)?;
        let member = alive(stat)?;
        let mine = match self.proc.limit(pid).filter(|value| is_mark(*value)) {
            Some(mark) => self.is_mine(mark),
            None => match self.proc.environment_mark(pid) {
                Some(mark) => self.is_mine(mark),
                None => self.leader() == Some(stat.session),
            },
        };
        mine.then_some(member)
    }

    fn is_mine(&self, mark: u64) -> bool {
        mark & self.mask == self.mark
    }

    /// Sends a signal to each process; returns how many got it.
    pub fn signal(&self, signal: Signal) -> u32 {
        let reached = self.members().into_iter().filter(|member| self.send(*member, signal));
        u32::try_from(reached.count()).unwrap_or(u32::MAX)
    }

    /// Sends a signal to each process but those.
    pub fn signal_but(&self, signal: Signal, spared: &[Member]) {
        for member in self.members().into_iter().filter(|member| !spared.contains(member)) {
            self.send(member, signal);
        }
    }

    /// Sends a signal to a process that is still the one that was meant.
    fn send(&self, member: Member, signal: Signal) -> bool {
        let Some(pid) = Pid::from_raw(member.pid.cast_signed()) else { return false };
        let Ok(handle) = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) else {
            // A kernel or a profile without pidfds: the start time was read a moment ago.
            return rustix::process::kill_process(pid, signal).is_ok();
        };
        let same = self.proc.stat(member.pid).is_some_and(|stat| stat.started == member.started);
        same && rustix::process::pidfd_send_signal(handle, signal).is_ok()
    }

    /// Sends a signal to what the leader waits for, as the kernel lists its children and theirs, less those and what is below
    /// them. A few processes are looked at, where [`Tree::members`] looks at all of the machine's: a short-lived child is reached
    /// before it has ended.
    pub fn signal_below_leader(&self, signal: Signal, spared: &[Member]) {
        let mut next: Vec<u32> =
            self.leader().into_iter().flat_map(|pid| self.proc.children_of(pid)).collect();
        let mut left = BELOW_LEADER_MAX;
        while let Some(pid) = next.pop()
            && left > 0
        {
            left -= 1;
            let Some(member) = self.proc.stat(pid).and_then(alive) else { continue };
            if !spared.contains(&member) {
                next.extend(self.proc.children_of(pid));
                self.send(member, signal);
            }
        }
    }

    /// Kills all of it but `spared`. Returns how many processes are left after 5 s: those asleep in the kernel.
    pub async fn kill(&self, spared: &[Member]) -> u32 {
        let deadline = Instant::now() + VANISH_MAX;
        let mut pause = Duration::from_micros(200);
        let mut rounds = 0;
        loop {
            if spared.is_empty()
                && let Some(group) = self.group()
            {
                group.kill();
            }
            let left = self.strike(spared);
            if left == 0 {
                return 0;
            }
            rounds += 1;
            if self.group().is_none() && rounds > 2 {
                self.chase(spared);
            }
            if Instant::now() >= deadline {
                return left;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// One round over all members; returns how many there were.
    fn strike(&self, spared: &[Member]) -> u32 {
        let mut left = 0;
        let mut groups = Vec::new();
        for member in self.members().into_iter().filter(|member| !spared.contains(member)) {
            left += 1;
            self.send(member, Signal::KILL);
            // A whole process group at once cannot fork away meanwhile. Groups do not reach beyond a session, nor sessions
            // beyond a command, unless some of it is to be spared.
            if spared.is_empty() && member.group > 1 && !groups.contains(&member.group) {
                groups.push(member.group);
            }
        }
        for group in groups.into_iter().filter_map(|group| Pid::from_raw(group.cast_signed())) {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
        left
    }

    /// Runs after processes that fork and exit faster than a round takes: the newest process ids, again and again.
    fn chase(&self, spared: &[Member]) {
        for _ in 0..400 {
            let Some(newest) = self.proc.newest() else { return };
            for pid in newest.saturating_sub(3)..=newest + 1 {
                if let Some(member) = self.member(pid)
                    && !spared.contains(&member)
                {
                    self.send(member, Signal::KILL);
                }
            }
        }
    }
}

fn alive(stat: Stat) -> Option<Member> {
    (!matches!(stat.state, b'Z' | b'X' | b'x')).then_some(Member {
        pid: stat.pid,
        started: stat.started,
        group: stat.group,
    })
}
