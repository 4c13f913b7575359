//! A thread beside the one that everything else shares. While that one starts a process it waits for the new process, which what
//! runs in the sandbox can stop before it has begun; and a lease that nobody looks at ends nothing. This thread kills such a
//! process, and ends the agent whose lease is long over. A start that only takes long, on a machine that has much else to do, is
//! left alone.

use crate::sys;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often it looks. A process that is stopped before it began is killed at the second look.
const EVERY: Duration = Duration::from_secs(2);
/// Looks that a start which is not stopped outlasts: two minutes.
const LOOKS_MAX: u32 = 60;
/// How long the agent may take to end by itself after its lease.
const OVERDUE: Duration = Duration::from_secs(15);
/// Bytes of the thread's stack.
const STACK_BYTES: usize = 64 << 10;

/// See the module.
#[derive(Debug)]
pub struct Guard {
    /// Descriptor of the process that is being started; below 0: none is.
    starting: AtomicI32,
    /// Counts starts: the one that was seen twice is late.
    starts: AtomicU64,
    /// Why the last was killed, as an [`Errno`]; 0: it was not.
    killed: AtomicI32,
}

impl Default for Guard {
    fn default() -> Guard {
        Guard { starting: AtomicI32::new(-1), starts: AtomicU64::new(0), killed: AtomicI32::new(0) }
    }
}

impl Guard {
    /// Where the kernel writes the descriptor of a process before that runs.
    pub fn place(&self) -> *mut i32 {
        self.starting.as_ptr()
    }

    /// A start begins.
    pub fn begins(&self) {
        self.killed.store(0, Ordering::Relaxed);
        self.starts.fetch_add(1, Ordering::Release);
    }

    /// It is over. The descriptor, which the caller closes, and why the process was killed: `TIMEDOUT` for one that was stopped,
    /// `TIME` for one that took too long.
    pub fn ends(&self) -> (Option<i32>, Option<Errno>) {
        let descriptor = self.starting.swap(-1, Ordering::AcqRel);
        let killed = self.killed.load(Ordering::Acquire);
        ((descriptor >= 0).then_some(descriptor), (killed != 0).then(|| Errno::from_raw_os_error(killed)))
    }

    /// Starts the thread; it lives as long as the process. `overdue` says for how long the lease has been over.
    pub fn watch(
        self: Arc<Guard>,
        overdue: impl Fn() -> Option<Duration> + Send + 'static,
        exit_code: u8,
    ) -> std::io::Result<()> {
        let look = move || {
            let (mut last, mut looks) = ((0, false), 0);
            loop {
                pause();
                if overdue().is_some_and(|time| time > OVERDUE) {
                    sys::leave(exit_code);
                }
                let now = (self.starts.load(Ordering::Acquire), self.starting.load(Ordering::Acquire) >= 0);
                looks = if now.1 && last == now { looks + 1 } else { 0 };
                if looks > 0 {
                    self.kill_if_late(now.0, looks);
                }
                last = now;
            }
        };
        std::thread::Builder::new().name("guard".to_owned()).stack_size(STACK_BYTES).spawn(look).map(drop)
    }

    /// The start of that number, if it is still under way: then whoever would close its descriptor waits for the process.
    fn kill_if_late(&self, start: u64, looks: u32) {
        let descriptor = self.starting.load(Ordering::Acquire);
        if descriptor >= 0
            && self.starts.load(Ordering::Acquire) == start
            && let Some(why) = late(sys::is_stopped(descriptor), looks)
        {
            self.killed.store(why.raw_os_error(), Ordering::Release);
            sys::kill_by_descriptor(descriptor);
        }
    }
}

/// Why a start is to be killed that was seen so many times again.
fn late(stopped: bool, looks: u32) -> Option<Errno> {
    match (stopped, looks) {
        (_, 0) => None,
        (true, _) => Some(Errno::TIMEDOUT),
        (false, looks) => (looks >= LOOKS_MAX).then_some(Errno::TIME),
    }
}

#[expect(clippy::disallowed_methods, reason = "a thread of its own that waits for time to pass")]
fn pause() {
    let until = Instant::now() + EVERY;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        std::thread::sleep(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
    use std::os::fd::{AsFd, AsRawFd};
    use std::process::Command;

    #[test]
    fn only_a_start_that_is_stopped_is_killed_soon() {
        assert_eq!(
            (late(true, 0), late(true, 1), late(true, 60)),
            (None, Some(Errno::TIMEDOUT), Some(Errno::TIMEDOUT))
        );
        assert_eq!((late(false, 1), late(false, 59), late(false, 60)), (None, None, Some(Errno::TIME)));
    }

    #[test]
    fn a_process_that_is_stopped_is_told_from_one_that_runs() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let descriptor = rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let wait = |options| rustix::process::waitid(WaitId::PidFd(descriptor.as_fd()), options).unwrap();
        assert!(!sys::is_stopped(descriptor.as_raw_fd()));
        rustix::process::kill_process(pid, Signal::STOP).unwrap();
        wait(WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT);
        assert!(sys::is_stopped(descriptor.as_raw_fd()) && sys::is_stopped(descriptor.as_raw_fd()));
        rustix::process::kill_process(pid, Signal::CONT).unwrap();
        wait(WaitIdOptions::CONTINUED | WaitIdOptions::NOWAIT);
        assert!(!sys::is_stopped(descriptor.as_raw_fd()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!sys::is_stopped(descriptor.as_raw_fd()));
    }
}
