//! The agent's life: serve, reap, heed signals, watch the lease; then end everything.

use crate::agent::Agent;
use crate::server::{self, Listener};
use crate::sys::{self, Signal, parse_signal};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::unix::AsyncFd;

/// What processes get between SIGTERM and SIGKILL when the agent is told to end.
const TERM_GRACE: Duration = Duration::from_secs(3);
/// How often old records are looked for.
const TIDY_EVERY: Duration = Duration::from_secs(30);

/// Exit code: told to end.
pub const ENDED: u8 = 0;
/// Exit code: the lease ran out.
pub const LEASE_OVER: u8 = 3;
/// Exit code: its one connection was cut, and nobody can reach it any more.
pub const CUT: u8 = 4;

/// Runs until told to end; returns the exit code. Nothing of the sandbox lives after that.
pub async fn run(agent: Arc<Agent>, listener: Listener, signals: OwnedFd) -> u8 {
    let Ok(signals) = sys::readiness(signals) else { return ENDED };
    // Owned by this function; ends with the process.
    let mut serving = tokio::spawn(server::serve(Arc::clone(&agent), listener));
    let mut tidy = tokio::time::interval(TIDY_EVERY);
    let (code, grace) = loop {
        tokio::select! {
            biased;
            told = next(&agent, &signals) => if told { break (ENDED, TERM_GRACE) },
            () = agent.lease.run_out() => break (LEASE_OVER, Duration::ZERO),
            _ = &mut serving => break (CUT, Duration::ZERO),
            _ = tidy.tick() => agent.tidy(),
        }
    };
    let ending = agent.end(grace);
    tokio::pin!(ending);
    loop {
        tokio::select! {
            () = &mut ending => return code,
            _ = next(&agent, &signals) => {}
        }
    }
}

/// Heeds the signals that have come; true when one of them says to end.
async fn next(agent: &Agent, signals: &AsyncFd<OwnedFd>) -> bool {
    let Ok(mut ready) = signals.readable().await else { return true };
    let mut end = false;
    let mut record = [0; 128];
    while rustix::io::read(signals.get_ref(), &mut record) == Ok(record.len()) {
        end |= heed(agent, parse_signal(&record));
    }
    ready.clear_ready();
    // One record may stand for many children.
    agent.reap();
    end
}

fn heed(agent: &Agent, signal: Signal) -> bool {
    if signal.number == libc::SIGCHLD {
        return false;
    }
    // As process 1 the agent obeys only those outside: they have no number here.
    if agent.process_1 && signal.sender != 0 {
        return false;
    }
    if let Some(forwarded) = rustix::process::Signal::from_named_raw(signal.number) {
        agent.forward(forwarded);
    }
    matches!(signal.number, libc::SIGTERM | libc::SIGINT)
}
