//! Commands that wait for their readers, as at a full pipe, where that was asked for: what they print is then never more than
//! what is kept, and nothing falls out. All others are read as they print, for nobody's sake.

use crate::job::Job;
use crate::output::MEMORY_EACH;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Bytes of an output that no reader has taken; half of what is kept without any disk.
const AHEAD_MAX: u64 = MEMORY_EACH / 2;
/// How long a command waits without a reader (one whose connection was cut comes back) before it goes on for nobody.
const READERLESS_MAX: Duration = Duration::from_secs(30);

/// A command's pace.
#[derive(Debug, Default)]
pub struct Pace {
    waits: AtomicBool,
    readers: AtomicUsize,
}

impl Pace {
    /// From now on the command waits.
    pub fn wait(&self) {
        self.waits.store(true, Ordering::Relaxed);
    }

    /// Whether it waits.
    pub fn waits(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }

    /// Whether somebody reads.
    pub fn has_readers(&self) -> bool {
        self.readers.load(Ordering::Relaxed) > 0
    }

    /// A reader came.
    pub fn came(&self) {
        self.readers.fetch_add(1, Ordering::Relaxed);
    }

    /// A reader has gone.
    pub fn went(&self) {
        self.readers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How many bytes may be read from a command's output now; waits until there are some.
pub async fn room(job: &Job, stream: usize) -> usize {
    while job.pace.waits() {
        let room = job.until(|job| {
            let ahead = job.ahead(stream);
            (ahead < AHEAD_MAX).then(|| usize::try_from(AHEAD_MAX - ahead).unwrap_or(usize::MAX))
        });
        match tokio::time::timeout(READERLESS_MAX, room).await {
            Ok(room) => return room,
            Err(_) if !job.pace.has_readers() => {
                job.pace.waits.store(false, Ordering::Relaxed);
            }
            Err(_) => {}
        }
    }
    usize::MAX
}
