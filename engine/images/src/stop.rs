//! Telling a thread that writes an image to stop.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Clones share it: what one is told, all know. Whoever writes looks at it between two pieces.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

/// The marker inside an `io::Error` by which a stop is told from a fault.
#[derive(Debug, thiserror::Error)]
#[error("stopped")]
struct Stopped;

impl Stop {
    /// What is being written ends soon, with an error, and removes what it wrote.
    pub fn tell(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn check(&self) -> io::Result<()> {
        if self.0.load(Ordering::Relaxed) { Err(io::Error::other(Stopped)) } else { Ok(()) }
    }

    pub(crate) fn is_of(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Stopped>())
    }

    /// A writer that fails once this was told.
    pub(crate) fn watch<W>(&self, inner: W) -> Watched<W> {
        Watched { inner, stop: self.clone() }
    }
}

pub(crate) struct Watched<W> {
    inner: W,
    stop: Stop,
}

impl<W> Watched<W> {
    pub(crate) fn into_inner(self) -> W {
        self.inner
    }
}

impl<W: Write> Write for Watched<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stop.check()?;
        self.inner.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
