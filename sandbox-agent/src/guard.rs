//! A thread beside the one that everything else shares. While that one starts a process it waits for the new process, which what
//! runs in the sandbox can stop before it has begun; and a lease that nobody looks at ends nothing. This thread kills such a
//! process, and ends the agent whose lease is long over.

use crate::sys;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often it looks. A process that was stopped before it began is killed at the second look.
const EVERY: Duration = Duration::from_secs(2);
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
    /// The last was killed.
    killed: AtomicBool,
}

impl Default for Guard {
    fn default() -> Guard {
        Guard { starting: AtomicI32::new(-1), starts: AtomicU64::new(0), killed: AtomicBool::new(false) }
    }
}

impl Guard {
    /// Where the kernel writes the descriptor of a process before that runs.
    pub fn place(&self) -> *mut i32 {
        self.starting.as_ptr()
    }

    /// A start begins.
    pub fn begins(&self) {
        self.killed.store(false, Ordering::Relaxed);
        self.starts.fetch_add(1, Ordering::Release);
    }

    /// It is over. The descriptor, which the caller closes, and whether the process was killed for being late.
    pub fn ends(&self) -> (Option<i32>, bool) {
        let descriptor = self.starting.swap(-1, Ordering::AcqRel);
        ((descriptor >= 0).then_some(descriptor), self.killed.load(Ordering::Acquire))
    }

    /// Starts the thread; it lives as long as the process. `overdue` says for how long the lease has been over.
    pub fn watch(
        self: Arc<Guard>,
        overdue: impl Fn() -> Option<Duration> + Send + 'static,
        exit_code: u8,
    ) -> std::io::Result<()> {
        let look = move || {
            let mut last = (0, false);
            loop {
                pause();
                if overdue().is_some_and(|time| time > OVERDUE) {
                    sys::leave(exit_code);
                }
                let now = (self.starts.load(Ordering::Acquire), self.starting.load(Ordering::Acquire) >= 0);
                if now.1 && last == now {
                    self.kill(now.0);
                }
                last = now;
            }
        };
        std::thread::Builder::new().name("guard".to_owned()).stack_size(STACK_BYTES).spawn(look).map(drop)
    }

    /// The start of that number, if it is still under way: then whoever would close its descriptor waits for the process.
    fn kill(&self, start: u64) {
        let descriptor = self.starting.load(Ordering::Acquire);
        if descriptor >= 0 && self.starts.load(Ordering::Acquire) == start {
            self.killed.store(true, Ordering::Release);
            sys::kill_by_descriptor(descriptor);
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a thread of its own that waits for time to pass")]
fn pause() {
    let until = Instant::now() + EVERY;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        std::thread::sleep(left);
    }
}
