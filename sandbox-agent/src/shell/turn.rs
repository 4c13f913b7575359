//! One script in a shell: its pipes, its line, its end.

use super::{OPENING, OPENING_BASH, Progress, Shell};
use crate::agent::Agent;
use crate::job::{self, Job, Pipe, Times};
use crate::tree::Member;
use crate::{Reason, files, sys};
use espalier_agent_protocol::v1::{self as wire, outcome};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::process::Signal;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long a shell may take to give up a script that timed out, before it is ended itself.
const GIVE_UP_MAX: Duration = Duration::from_millis(500);
/// It is interrupted so often in any case: on a busy machine a single attempt can take long.
const INTERRUPTS_MIN: u32 = 10;
/// Between two attempts to interrupt it.
const INTERRUPT_EVERY: Duration = Duration::from_millis(50);
/// Folders for the pipes of a script, tried in turn.
const FOLDERS: [&str; 5] = ["/tmp", "/dev/shm", "/var/tmp", "/run", "/"];

/// A script to run.
#[derive(Debug)]
pub struct Turn {
    /// Shell text, without NUL.
    pub script: Vec<u8>,
    /// Its standard input.
    pub stdin: Vec<u8>,
    /// Standard error goes to standard output.
    pub merge: bool,
    /// How long it may take.
    pub times: Times,
}

/// How the shell came back.
enum ShellReturn {
    Status(i32),
    Ended,
}

/// Runs a script when the shell is free. Owned by the agent; ends with the script.
pub async fn run_in(agent: Arc<Agent>, job: Arc<Job>, shell: Arc<Shell>, turn: Turn) {
    run(&agent, &job, &shell, &turn).await;
    agent.ended(&job.key);
}

async fn run(agent: &Arc<Agent>, job: &Arc<Job>, shell: &Arc<Shell>, turn: &Turn) {
    let mut progress = shell.turn.lock().await;
    let unstarted = |reason: Reason, message: String| {
        let unstarted = wire::Unstarted { reason: reason.into(), message };
        job.end(outcome::Outcome::Unstarted(unstarted), |_| ());
    };
    if let Some(how) = shell.ended() {
        return unstarted(Reason::ShellEnded, how);
    }
    let places = match Places::make(shell, turn) {
        Ok(places) => places,
        Err(error) => return unstarted(Reason::Denied, format!("no folder for a script's pipes: {error}")),
    };
    let Places { names, mut keepers, pipes } = places;
    job.set_started(shell.pid, Arc::clone(&shell.tree), None);
    for (stream, pipe) in &pipes {
        job.open(*stream);
        // Owned by the agent; ends when the last writer is gone.
        tokio::spawn(job::pump(Arc::clone(agent), Arc::clone(job), *stream, Arc::clone(pipe)));
    }
    let before = shell.before();
    let kills_before = agent.memory_kills(&shell.tree);
    let token = agent.token();
    let line = names.line(turn, &token, progress.last, shell.program == "bash", progress.written == 0);
    let length = line.len() as u64;
    let started = progress.written;
    let mut back = {
        let exchange = exchange(shell, &mut progress, &line, &token);
        match turn.times.timeout {
            None => Some(exchange.await),
            Some(timeout) => agent.clock.timeout(timeout, exchange).await,
        }
    };
    let timed_out = back.is_none();
    let mut unkillable = 0;
    if timed_out {
        if progress.written == started + length {
            back = give_up(shell, &mut progress, &token, &before).await;
        }
        if back.is_none() {
            unkillable = shell.tree.kill(&[]).await;
            shell.until_ended().await;
            back = Some(ShellReturn::Ended);
        }
    }
    keepers.clear();
    names.remove();
    job::drain(agent, job, &pipes, turn.times.drain).await;
    let memory_kills = agent.memory_kills(&shell.tree).saturating_sub(kills_before);
    let status = match back {
        Some(ShellReturn::Status(status)) => Some(status),
        _ => None,
    };
    let outcome = match status {
        _ if timed_out => outcome::Outcome::TimedOut(wire::TimedOut { unkillable }),
        Some(137) if memory_kills > 0 && agent.counts_alone(&shell.tree) => {
            outcome::Outcome::OutOfMemory(wire::OutOfMemory {})
        }
        Some(status) => outcome::Outcome::ExitCode(status),
        None => shell.last_outcome(memory_kills),
    };
    progress.last = status.unwrap_or(0);
    let left = shell.tree.members().into_iter().filter(|member| !before.contains(member)).count();
    job.end(outcome, |ended| {
        ended.shell_ended = status.is_none();
        ended.left_running = u32::try_from(left).unwrap_or(u32::MAX);
        ended.memory_kills = u32::try_from(memory_kills).unwrap_or(u32::MAX);
    });
}

/// Says the line and hears the answer, unless the shell ends.
async fn exchange(shell: &Shell, progress: &mut Progress, line: &[u8], token: &str) -> ShellReturn {
    let mut said = 0;
    let exchange = async {
        // Bytes that were written stay counted when this is given up on.
        while said < line.len() {
            let piece = &line[said..line.len().min(said + 4096)];
            match shell.control.write(progress.written, piece, false).await {
                Ok(taken) if !taken.closed => {
                    progress.written = taken.until;
                    said += piece.len();
                }
                _ => std::future::pending().await,
            }
        }
        hear(shell, progress, token).await
    };
    tokio::select! {
        biased;
        status = exchange => ShellReturn::Status(status),
        _ = shell.until_ended() => ShellReturn::Ended,
    }
}

/// Waits for the line with the token.
async fn hear(shell: &Shell, progress: &mut Progress, token: &str) -> i32 {
    loop {
        while let Some(end) = progress.said.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = progress.said.drain(..=end).collect();
            let text = String::from_utf8_lossy(&line);
            if let Some(status) = text.trim_end().strip_prefix(token)
                && let Ok(status) = status.trim().parse()
            {
                return status;
            }
        }
        // What is not a line of ours is ignored.
        if progress.said.len() > 4096 {
            progress.said.clear();
        }
        let Ok(ready) = shell.status.readable().await else { return std::future::pending().await };
        let mut bytes = [0; 512];
        match rustix::io::read(shell.status.get_ref(), &mut bytes) {
            Ok(0) => return std::future::pending().await,
            Ok(count) => progress.said.extend_from_slice(&bytes[..count]),
            Err(_) => sys::not_ready(ready).await,
        }
    }
}

/// Interrupts the shell and what the script started, until the shell says that it is done with the script. It is never made to
/// go on with the script: where interrupts do not help, it has to end.
async fn give_up(
    shell: &Shell,
    progress: &mut Progress,
    token: &str,
    before: &[Member],
) -> Option<ShellReturn> {
    let deadline = Instant::now() + GIVE_UP_MAX;
    let mut interrupts = 0;
    while interrupts < INTERRUPTS_MIN || Instant::now() < deadline {
        interrupts += 1;
        // The shell first: it takes a child's death by this signal for its own. Then at once the child: an interrupt during which
        // a child ends in its own way is none to the shell. The search for all others may take longer than a child lives.
        shell.interrupt();
        shell.tree.signal_below_leader(Signal::INT, before);
        shell.tree.signal_but(Signal::INT, before);
        // An interrupt makes a shell forget what it has read ahead.
        if let Ok(taken) = shell.control.write(progress.written, &question(token), false).await {
            progress.written = taken.until;
        }
        tokio::select! {
            biased;
            status = tokio::time::timeout(INTERRUPT_EVERY, hear(shell, progress, token)) => {
                if let Ok(status) = status {
                    // What it left running belongs to what took too long.
                    shell.tree.kill(before).await;
                    return Some(ShellReturn::Status(status));
                }
            }
            _ = shell.until_ended() => return Some(ShellReturn::Ended),
        }
    }
    None
}

impl Shell {
    /// The outcome of a script that the shell did not survive.
    fn last_outcome(&self, memory_kills: u64) -> outcome::Outcome {
        let how = self.ended().unwrap_or_default();
        let number = how.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0);
        if how.contains("exit code") {
            outcome::Outcome::ExitCode(number)
        } else if number == libc::SIGKILL && memory_kills > 0 {
            outcome::Outcome::OutOfMemory(wire::OutOfMemory {})
        } else {
            outcome::Outcome::Signal(number)
        }
    }
}

/// The files of one script: two pipes with names, and its input.
struct Places {
    names: Names,
    /// Writers of the agent's own: a pipe nobody has opened yet is not at its end.
    keepers: Vec<OwnedFd>,
    pipes: Vec<(usize, Pipe)>,
}

struct Names {
    output: String,
    error: Option<String>,
    input: Option<String>,
}

impl Places {
    fn make(shell: &Shell, turn: &Turn) -> std::io::Result<Places> {
        let mut failure = std::io::Error::other("none was tried");
        for folder in FOLDERS {
            match Places::make_in(folder, shell, turn) {
                Ok(places) => return Ok(places),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn make_in(folder: &str, shell: &Shell, turn: &Turn) -> std::io::Result<Places> {
        let name = |what: &str| format!("{folder}/.espalier-{}-{what}", files::random_name());
        let mut places = Places {
            names: Names { output: name("out"), error: None, input: None },
            keepers: Vec::new(),
            pipes: Vec::new(),
        };
        let made = places.open(name, shell, turn);
        if let Err(error) = made {
            places.names.remove();
            return Err(error);
        }
        Ok(places)
    }

    fn open(&mut self, name: impl Fn(&str) -> String, shell: &Shell, turn: &Turn) -> std::io::Result<()> {
        let output = self.names.output.clone();
        self.fifo(0, &output, shell)?;
        if !turn.merge {
            let error = name("err");
            self.names.error = Some(error.clone());
            self.fifo(1, &error, shell)?;
        }
        if !turn.stdin.is_empty() {
            let input = name("in");
            self.names.input = Some(input.clone());
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::open(&input, flags, Mode::RUSR | Mode::WUSR)?;
            own(&file, shell)?;
            std::io::Write::write_all(&mut std::fs::File::from(file), &turn.stdin)?;
        }
        Ok(())
    }

    fn fifo(&mut self, stream: usize, path: &str, shell: &Shell) -> std::io::Result<()> {
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        let flags = OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let reader = rustix::fs::open(path, flags | OFlags::RDONLY, Mode::empty())?;
        own(&reader, shell)?;
        self.keepers.push(rustix::fs::open(path, flags | OFlags::WRONLY, Mode::empty())?);
        self.pipes.push((stream, Arc::new(sys::readiness(reader)?)));
        Ok(())
    }
}

fn own(file: &OwnedFd, shell: &Shell) -> std::io::Result<()> {
    if let Some(user) = &shell.user {
        rustix::fs::fchown(file, Some(Uid::from_raw(user.id)), Some(Gid::from_raw(user.group)))?;
    }
    Ok(())
}

impl Names {
    fn remove(&self) {
        for path in [Some(&self.output), self.error.as_ref(), self.input.as_ref()].into_iter().flatten() {
            let _ = rustix::fs::unlinkat(rustix::fs::CWD, path.as_str(), AtFlags::empty());
        }
    }

    /// What the shell reads for this script.
    fn line(&self, turn: &Turn, token: &str, last: i32, bash: bool, first: bool) -> Vec<u8> {
        let mut line = Vec::with_capacity(turn.script.len() + 512);
        if first {
            line.extend_from_slice(OPENING);
            if bash {
                line.extend_from_slice(OPENING_BASH);
            }
        }
        let asks_status = turn.script.windows(2).any(|pair| pair == b"$?" || pair == b"?}");
        if last != 0 && asks_status {
            line.extend_from_slice(format!("(exit {last}); ").as_bytes());
        }
        // In sh an error within a bare eval would throw away all input that was read ahead, the question for the status with
        // it. The blank keeps a script that begins with a dash from being taken for options.
        line.extend_from_slice(if bash { b"eval ' '" } else { b"command eval ' '" });
        quote(&turn.script, &mut line);
        let input = self.input.as_deref().unwrap_or("/dev/null");
        let error = self.error.as_ref().map_or_else(|| "&1".to_owned(), |error| format!("'{error}'"));
        line.extend_from_slice(format!(" <'{input}' >'{}' 2>{error}\n", self.output).as_bytes());
        line.extend_from_slice(&question(token));
        line
    }
}

/// Asks for the status of what ran last.
fn question(token: &str) -> Vec<u8> {
    format!("printf '\\n{token} %d\\n' \"$?\"\n").into_bytes()
}

/// In single quotes.
fn quote(text: &[u8], into: &mut Vec<u8>) {
    into.push(b'\'');
    for byte in text {
        match byte {
            b'\'' => into.extend_from_slice(b"'\\''"),
            other => into.push(*other),
        }
    }
    into.push(b'\'');
}
