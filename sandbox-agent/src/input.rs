//! Standard input of a command: bytes at their offsets, each written once however often it is sent.

use parking_lot::{Mutex, MutexGuard};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tokio::io::unix::AsyncFd;

/// End of input on a terminal.
const END_OF_TRANSMISSION: u8 = 4;

/// See the module.
#[derive(Debug, Default)]
pub struct Input {
    state: Mutex<InputState>,
    /// One writer at a time, in the order in which they came.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct InputState {
    /// Where bytes go; `None`: nothing more is taken.
    pipe: Option<Arc<AsyncFd<OwnedFd>>>,
    terminal: bool,
    taken: u64,
}

/// How far input was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Bytes below it were written.
    pub until: u64,
    /// Nothing more will be.
    pub closed: bool,
}

impl Input {
    /// Bytes will go here.
    pub fn open(&self, pipe: AsyncFd<OwnedFd>, terminal: bool) {
        let mut state = self.lock();
        state.pipe = Some(Arc::new(pipe));
        state.terminal = terminal;
    }

    /// Writes bytes that begin at `offset`; those that were taken before are left out. No bytes wait for nobody: how far others
    /// have come. `Err`: bytes before `offset` are missing, and how many were taken.
    pub async fn write(&self, offset: u64, bytes: &[u8], end: bool) -> Result<Taken, u64> {
        let _turn = if bytes.is_empty() && !end { None } else { Some(self.turn.lock().await) };
        let taken = self.lock().taken;
        let Some(known) = taken.checked_sub(offset) else { return Err(taken) };
        let known = usize::try_from(known).unwrap_or(usize::MAX).min(bytes.len());
        let mut rest = &bytes[known..];
        while !rest.is_empty() {
            let Some(pipe) = self.lock().pipe.clone() else { break };
            let Ok(ready) = pipe.writable().await else { break };
            match rustix::io::write(pipe.get_ref(), rest) {
                Ok(count) => {
                    self.lock().taken += count as u64;
                    rest = &rest[count..];
                }
                Err(rustix::io::Errno::AGAIN) => crate::sys::not_ready(ready).await,
                Err(rustix::io::Errno::INTR) => {}
                // Nobody reads any more.
                Err(_) => self.lock().pipe = None,
            }
        }
        if end && rest.is_empty() {
            self.close();
        }
        let state = self.lock();
        Ok(Taken { until: state.taken, closed: state.pipe.is_none() })
    }

    /// Nothing more is taken.
    pub fn close(&self) {
        let mut state = self.lock();
        if let Some(pipe) = state.pipe.take()
            && state.terminal
        {
            // Twice: the first ends a line that was begun.
            let _ = rustix::io::write(pipe.get_ref(), &[END_OF_TRANSMISSION, END_OF_TRANSMISSION]);
        }
    }

    fn lock(&self) -> MutexGuard<'_, InputState> {
        self.state.lock()
    }
}
