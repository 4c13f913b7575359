//! Ctrl-c, SIGTERM, and SIGHUP unless it is ignored as under `nohup`: all mean stop, and every command then exits with [`Exit::Interrupted`]. A command that listens itself ends
//! in order: it takes away what it has begun. Any other is dropped where it waits.

use crate::cli::exit::Exit;
use crate::output::problem::Problem;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How long a command may take to let go of everything when it ends at once.
pub(super) const LET_GO: Duration = Duration::from_secs(2);

/// Whether this process was started with SIGHUP ignored. Read before the first handler is set, which would hide it.
static HANG_UP_IGNORED: LazyLock<bool> = LazyLock::new(|| {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 != 0)
});

/// SIGHUP, unless it is ignored.
pub(super) fn hang_up() -> Option<Signal> {
    if *HANG_UP_IGNORED { None } else { signal(SignalKind::hangup()).ok() }
}

/// How many parts of the command listen to signals themselves. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Listeners(Arc<AtomicUsize>);

impl Listeners {
    /// From here on signals are the caller's, as long as it keeps what it gets.
    pub(super) fn add(&self) -> Listening {
        self.0.fetch_add(1, Ordering::SeqCst);
        Listening(self.clone())
    }
}

/// Signals are somebody's until this is dropped.
#[derive(Debug)]
pub(super) struct Listening(Listeners);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The signals, from the moment this is made.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Option<Signal>,
    _listening: Option<Listening>,
}

impl Signals {
    /// For a command that ends in order.
    pub(super) fn new(listeners: &Listeners) -> Result<Signals, Problem> {
        let mut signals = Signals::listen()?;
        signals._listening = Some(listeners.add());
        Ok(signals)
    }

    fn listen() -> Result<Signals, Problem> {
        let listen = |kind| {
            signal(kind)
                .map_err(|error| Problem::new(Exit::Internal, format!("cannot listen for signals: {error}")))
        };
        Ok(Signals {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: hang_up(),
            _listening: None,
        })
    }

    /// The next one. Cancel-safe.
    pub(super) async fn next(&mut self) {
        let hang_up = async {
            match &mut self.hang_up {
                Some(signal) => signal.recv().await,
                None => std::future::pending().await,
            }
        };
        let closed = tokio::select! {
            signal = self.interrupt.recv() => signal.is_none(),
            signal = self.terminate.recv() => signal.is_none(),
            signal = hang_up => signal.is_none(),
        };
        if closed {
            std::future::pending::<()>().await;
        }
    }
}

/// Carries a command out until it ends, or until a signal comes that it does not listen to itself.
pub(super) async fn or_stopped<T>(
    listeners: Listeners,
    work: impl Future<Output = Result<T, Problem>>,
) -> Result<T, Problem> {
    let mut signals = Signals::listen()?;
    let (tell, told) = tokio::sync::oneshot::channel();
    // Owner: this, which aborts it when the command has ended. It ends the process where the command is held up in a call of the
    // operating system and cannot be dropped, or when a second signal comes.
    let watching = tokio::spawn(async move {
        loop {
            signals.next().await;
            if listeners.0.load(Ordering::SeqCst) == 0 {
                break;
            }
        }
        let _ = tell.send(());
        tokio::select! {
            () = tokio::time::sleep(LET_GO) => {}
            () = signals.next() => {}
        }
        std::process::exit(Exit::Interrupted.code().into());
    });
    let result = tokio::select! {
        biased;
        result = work => result,
        Ok(()) = told => Err(Problem::new(Exit::Interrupted, "stopped")),
    };
    watching.abort();
    result
}
