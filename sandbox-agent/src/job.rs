//! One command, from its record to its end: output pumped, input fed, time watched, tree killed.

use crate::agent::Agent;
use crate::ids::Key;
use crate::input::Input;
use crate::output::{Budget, Output, Piece};
use crate::pace::{self, Pace};
use crate::spill::Spill;
use crate::sys::{self, Exit};
use crate::tree::Tree;
use espalier_agent_protocol::v1::{self as wire, Ended, Outcome, outcome};
use parking_lot::{Mutex, MutexGuard};
use rustix::process::Signal;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

/// How long output is awaited after the leader's exit, unless the spec says otherwise.
pub const DRAIN: Duration = Duration::from_millis(50);
/// How long a killed leader may take to be reaped.
const REAP_MAX: Duration = Duration::from_secs(5);
/// After so many reads in a row others have a turn.
const READS_IN_A_ROW: u32 = 8;

/// One command.
#[derive(Debug)]
pub struct Job {
    /// Its id.
    pub key: Key,
    /// For people.
    pub label: String,
    /// When it was recorded.
    pub began: Instant,
    /// Its standard input.
    pub input: Input,
    /// Whether it waits for readers.
    pub pace: Pace,
    tree: OnceLock<Arc<Tree>>,
    state: Mutex<JobState>,
    changed: Notify,
}

#[derive(Debug)]
struct JobState {
    outputs: [Output; 2],
    /// How far the reader that is farthest has come.
    taken: [u64; 2],
    open: [bool; 2],
    pid: u32,
    ended: Option<Ended>,
    /// A client sent SIGKILL: no sign of a lack of memory.
    killed_by_client: bool,
    terminal: Option<Arc<OwnedFd>>,
}

/// What is new at a reader's offset.
#[derive(Debug)]
pub struct Look {
    /// What stands there, of standard output and standard error.
    pub pieces: [Piece; 2],
    /// Printed in all.
    pub totals: [u64; 2],
    /// Whether more may come.
    pub open: [bool; 2],
    /// How it ended, if it has.
    pub ended: Option<Ended>,
    /// Process id; 0 before the start.
    pub pid: u32,
}

/// How long a command may take.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Until it is killed.
    pub timeout: Option<Duration>,
    /// Between SIGTERM and SIGKILL.
    pub term_grace: Duration,
    /// For output after the leader's exit.
    pub drain: Duration,
}

/// An output's reading end.
pub type Pipe = Arc<AsyncFd<OwnedFd>>;

impl Job {
    /// A command that is recorded and not started yet.
    pub fn new(key: Key, label: String, keep: u64) -> Job {
        let state = JobState {
            outputs: [Output::new(keep), Output::new(keep)],
            taken: [0; 2],
            open: [false, false],
            pid: 0,
            ended: None,
            killed_by_client: false,
            terminal: None,
        };
        Job {
            key,
            label,
            began: Instant::now(),
            input: Input::default(),
            pace: Pace::default(),
            tree: OnceLock::new(),
            state: Mutex::new(state),
            changed: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, JobState> {
        self.state.lock()
    }

    /// It was started.
    pub fn set_started(&self, pid: u32, tree: Arc<Tree>, terminal: Option<Arc<OwnedFd>>) {
        let _ = self.tree.set(tree);
        let mut state = self.lock();
        state.pid = pid;
        state.terminal = terminal;
        drop(state);
        self.changed.notify_waiters();
    }

    /// The processes it started; `None` before its start.
    pub fn tree(&self) -> Option<&Arc<Tree>> {
        self.tree.get()
    }

    /// The terminal's controlling side.
    pub fn terminal(&self) -> Option<Arc<OwnedFd>> {
        self.lock().terminal.clone()
    }

    /// A client sends this signal.
    pub fn note_signal(&self, signal: Signal) {
        if signal == Signal::KILL {
            self.lock().killed_by_client = true;
        }
    }

    /// Whether it has ended.
    pub fn is_ended(&self) -> bool {
        self.lock().ended.is_some()
    }

    /// How it ended.
    pub fn ended(&self) -> Option<Ended> {
        self.lock().ended.clone()
    }

    /// Process id; 0 before the start.
    pub fn pid(&self) -> u32 {
        self.lock().pid
    }

    /// What stands at these offsets, at most `bytes_max` of each.
    pub fn look(&self, from: [u64; 2], bytes_max: usize) -> Look {
        let state = self.lock();
        let [out, err] = &state.outputs;
        Look {
            pieces: [out.read(from[0], bytes_max), err.read(from[1], bytes_max)],
            totals: [out.total(), err.total()],
            open: state.open,
            ended: state.ended.clone(),
            pid: state.pid,
        }
    }

    /// Head and tail of each output.
    pub fn excerpts(&self, head: u64, tail: u64) -> [wire::Excerpt; 2] {
        let state = self.lock();
        [0, 1].map(|stream| {
            let (head, omitted_bytes, tail) = state.outputs[stream].excerpt(head, tail);
            wire::Excerpt { head: head.into(), omitted_bytes, tail: tail.into() }
        })
    }

    /// Waits until `ready` says something of this command, which is asked again after each change.
    pub async fn until<T>(&self, mut ready: impl FnMut(&Job) -> Option<T>) -> T {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(value) = ready(self) {
                return value;
            }
            changed.await;
        }
    }

    /// Waits for its end.
    pub async fn until_ended(&self) -> Ended {
        self.until(Job::ended).await
    }

    /// Opens an output: bytes will come.
    pub fn open(&self, stream: usize) {
        self.lock().open[stream] = true;
    }

    fn close(&self, stream: usize) {
        self.lock().open[stream] = false;
        self.changed.notify_waiters();
    }

    fn is_open(&self) -> bool {
        self.lock().open.contains(&true)
    }

    /// A reader has come this far.
    pub fn note_taken(&self, at: [u64; 2]) {
        if !self.pace.waits() {
            return;
        }
        let mut state = self.lock();
        for (taken, at) in state.taken.iter_mut().zip(at) {
            *taken = at.max(*taken);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Bytes that were printed and that no reader has taken.
    pub fn ahead(&self, stream: usize) -> u64 {
        let state = self.lock();
        state.outputs[stream].total().saturating_sub(state.taken[stream])
    }

    /// Whether somebody reads it who has not come to its end.
    pub fn is_being_read(&self) -> bool {
        self.pace.has_readers() && (0..2).any(|stream| self.ahead(stream) > 0)
    }

    /// Takes output.
    fn append(&self, stream: usize, bytes: &[u8], budget: &mut Budget, spill: &Spill) {
        self.lock().outputs[stream].append(bytes, budget, spill);
        self.changed.notify_waiters();
    }

    /// Gives up its output.
    pub fn discard(&self, budget: &mut Budget) {
        for output in &mut self.lock().outputs {
            output.discard(budget);
        }
    }

    /// It has ended; the first to say so is believed.
    pub fn end(&self, outcome: outcome::Outcome, fill: impl FnOnce(&mut Ended)) {
        let mut state = self.lock();
        if state.ended.is_some() {
            return;
        }
        let mut ended = Ended {
            outcome: Some(Outcome { outcome: Some(outcome) }),
            duration_ms: u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX),
            stdout_bytes: state.outputs[0].total(),
            stderr_bytes: state.outputs[1].total(),
            disk_full: state.outputs.iter().any(Output::disk_full),
            ..Ended::default()
        };
        fill(&mut ended);
        state.ended = Some(ended);
        drop(state);
        self.changed.notify_waiters();
    }

    /// What a leader's exit means.
    pub fn outcome(&self, exit: Exit, memory_kills: u64, counted_alone: bool) -> outcome::Outcome {
        let out_of_memory = outcome::Outcome::OutOfMemory(wire::OutOfMemory {});
        let killed_by_client = self.lock().killed_by_client;
        match (exit.code(), exit.signal()) {
            // A shell whose last command the kernel killed says 137.
            (Some(137), _) if memory_kills > 0 && counted_alone && !killed_by_client => out_of_memory,
            (_, Some(libc::SIGKILL)) if memory_kills > 0 && !killed_by_client => out_of_memory,
            (Some(code), _) => outcome::Outcome::ExitCode(code),
            (None, signal) => outcome::Outcome::Signal(signal.unwrap_or(0)),
        }
    }
}

/// Reads what an output holds now into the job. `None`: nothing more for the moment. `Some(0)`: its end.
fn take(agent: &Agent, job: &Job, stream: usize, pipe: &OwnedFd, bytes_max: usize) -> Option<usize> {
    let mut scratch = agent.scratch();
    let length = scratch.len().min(bytes_max);
    match rustix::io::read(pipe, &mut scratch[..length]) {
        Ok(0) => {
            job.close(stream);
            Some(0)
        }
        Ok(count) => {
            agent.with_budget(|budget, spill| job.append(stream, &scratch[..count], budget, spill));
            Some(count)
        }
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => None,
        // A terminal without a program on it says EIO.
        Err(_) => {
            job.close(stream);
            Some(0)
        }
    }
}

/// Pumps one output until all its writers are gone. Owned by the agent; outlives the command while something that it left
/// running has the output open, and stops reading for nobody who did not ask for it: a writer must never block or be killed for
/// that.
pub async fn pump(agent: Arc<Agent>, job: Arc<Job>, stream: usize, pipe: Pipe) {
    let mut in_a_row = 0;
    loop {
        let Ok(ready) = pipe.readable().await else {
            job.close(stream);
            return;
        };
        let room = pace::room(&job, stream).await;
        match take(&agent, &job, stream, pipe.get_ref(), room) {
            Some(0) => return,
            Some(_) => in_a_row += 1,
            None => {
                in_a_row = 0;
                sys::not_ready(ready).await;
            }
        }
        if in_a_row >= READS_IN_A_ROW {
            in_a_row = 0;
            tokio::task::yield_now().await;
        }
    }
}

/// Reads what outputs hold at this moment, and no more: a writer that never stops holds nobody up.
pub fn drain_now(agent: &Agent, job: &Job, pipes: &[(usize, Pipe)]) {
    for (stream, pipe) in pipes {
        let mut left = rustix::io::ioctl_fionread(pipe.get_ref().as_fd()).unwrap_or(0);
        // With nothing left one more read finds the end.
        loop {
            if !job.lock().open[*stream] {
                break;
            }
            let bytes_max = if left == 0 { usize::MAX } else { usize::try_from(left).unwrap_or(usize::MAX) };
            match take(agent, job, *stream, pipe.get_ref(), bytes_max) {
                Some(count) if count > 0 && (count as u64) < left => left -= count as u64,
                Some(count) if count > 0 && left > 0 => left = 0,
                _ => break,
            }
        }
    }
}

/// What outputs hold at this moment, as fast as it is read.
async fn drain_at_its_pace(agent: &Agent, job: &Job, pipes: &[(usize, Pipe)]) {
    for (stream, pipe) in pipes {
        let mut left = rustix::io::ioctl_fionread(pipe.get_ref().as_fd()).unwrap_or(0);
        while left > 0 && job.lock().open[*stream] {
            let room = pace::room(job, *stream).await;
            let most = room.min(usize::try_from(left).unwrap_or(usize::MAX));
            match take(agent, job, *stream, pipe.get_ref(), most) {
                Some(count) if count > 0 => left = left.saturating_sub(count as u64),
                _ => break,
            }
        }
    }
}

/// Waits until all output was seen or `drain` has passed.
pub async fn drain(agent: &Agent, job: &Job, pipes: &[(usize, Pipe)], drain: Duration) {
    drain_now(agent, job, pipes);
    if job.is_open() {
        let closed = job.until(|job| (!job.is_open()).then_some(()));
        let _ = tokio::time::timeout(drain, closed).await;
        drain_now(agent, job, pipes);
    }
}

/// The life of a command with a process of its own. Owned by the agent; ends with the command.
pub async fn live(
    agent: Arc<Agent>,
    job: Arc<Job>,
    tree: Arc<Tree>,
    mut exit: oneshot::Receiver<Exit>,
    times: Times,
    pipes: Vec<(usize, Pipe)>,
) {
    let kills_before = agent.memory_kills(&tree);
    let finished = match times.timeout {
        None => Some((&mut exit).await),
        Some(timeout) => agent.clock.timeout(timeout, &mut exit).await,
    };
    let timed_out = finished.is_none();
    let (exit, unkillable) = match finished {
        Some(exit) => (exit.unwrap_or_default(), 0),
        None => {
            let unkillable = kill(&tree, times.term_grace).await;
            let exit = tokio::time::timeout(REAP_MAX, &mut exit).await;
            (exit.ok().and_then(Result::ok).unwrap_or_default(), unkillable)
        }
    };
    if job.pace.waits() {
        drain_at_its_pace(&agent, &job, &pipes).await;
    }
    drain(&agent, &job, &pipes, times.drain).await;
    let memory_kills = agent.memory_kills(&tree).saturating_sub(kills_before);
    let outcome = if timed_out {
        outcome::Outcome::TimedOut(wire::TimedOut { unkillable })
    } else {
        job.outcome(exit, memory_kills, agent.counts_alone(&tree))
    };
    let left_running = agent.left_running(&tree);
    tree.release();
    job.end(outcome, |ended| {
        ended.left_running = left_running;
        ended.memory_kills = u32::try_from(memory_kills).unwrap_or(u32::MAX);
        ended.user_ms = exit.user_us / 1000;
        ended.system_ms = exit.system_us / 1000;
        ended.memory_max_bytes = exit.memory_max_bytes;
    });
    agent.ended(&job.key);
}

async fn kill(tree: &Tree, term_grace: Duration) -> u32 {
    if !term_grace.is_zero() {
        tree.signal(Signal::TERM);
        let deadline = Instant::now() + term_grace;
        while !tree.is_gone() && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    tree.kill(&[]).await
}

/// A pipe whose reading end is the agent's.
pub fn output_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&reader, true)?;
    Ok((reader, writer))
}
