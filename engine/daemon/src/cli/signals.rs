//! Ctrl-c and the polite kill: both mean stop. A command that listens ends in order: it takes away what it has begun.

use crate::cli::exit::Exit;
use crate::output::problem::Problem;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How long a command may take to let go of everything when it ends at once.
pub(super) const LET_GO: Duration = Duration::from_secs(2);

/// Both signals, from the moment this is made.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    pub(super) fn new() -> Result<Signals, Problem> {
        let listen = |kind| {
            signal(kind)
                .map_err(|error| Problem::new(Exit::Internal, format!("cannot listen for signals: {error}")))
        };
        Ok(Signals {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// The next one. Cancel-safe.
    pub(super) async fn next(&mut self) {
        let closed = tokio::select! {
            signal = self.interrupt.recv() => signal.is_none(),
            signal = self.terminate.recv() => signal.is_none(),
        };
        if closed {
            std::future::pending::<()>().await;
        }
    }
}
