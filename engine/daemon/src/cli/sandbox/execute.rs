//! Commands and terminals in a sandbox, their bytes carried both ways as they come.

use super::super::signals::{Listeners, Listening, hang_up};
use super::{ExecArgs, ShellArgs, attach};
use crate::cli::exit::Exit;
use crate::output::Look;
use crate::output::problem::Problem;
use bytes::Bytes;
use espalier_agent_client::{Agent, AgentError, Event, Follow, Id, command, wire};
use espalier_core::cause::with_causes;
use espalier_sandbox::service::{Sandbox, Sandboxes, describe};
use rustix::process::Signal;
use rustix::termios::{self, OptionalActions, Termios};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use wire::outcome::Outcome;

/// What `docker exec` and `chroot` exit with when they themselves fail.
const OWN_FAILURE: u8 = 125;
/// As of a program that writes where nobody reads.
const BROKEN_PIPE: u8 = 141;
/// From SIGTERM to SIGKILL.
const TERM_GRACE: Duration = Duration::from_secs(5);
/// For a signal to reach the agent.
const SIGNAL_MAX: Duration = Duration::from_secs(5);
/// From SIGKILL to an end that is heard of.
const KILL_MAX: Duration = Duration::from_secs(10);
/// Pieces of standard input that were read and not sent; the reader waits for room.
const PIECES_MAX: usize = 4;
/// Bytes read at once.
const PIECE_BYTES: usize = 64 << 10;

/// Runs a command; what went wrong is printed, for its exit code stands for the command's.
pub(super) async fn execute(
    service: &Sandboxes,
    listeners: &Listeners,
    args: ExecArgs,
    verbose: bool,
) -> Exit {
    match carry(service, listeners, args).await {
        Ok(code) => Exit::Command(code),
        Err(problem) => {
            eprint!("{}", problem.text(&Look::of_stderr(), verbose));
            Exit::Command(OWN_FAILURE)
        }
    }
}

async fn carry(service: &Sandboxes, listeners: &Listeners, args: ExecArgs) -> Result<u8, Problem> {
    let sandbox = attach(service, &args.id).await?;
    let spec = command::arguments(&args.command);
    let spec = wire::CommandSpec {
        folder: args.workdir.unwrap_or_else(|| sandbox.workdir.clone()).into_bytes().into(),
        user: args.user.or_else(|| sandbox.user.clone()).unwrap_or_default(),
        environment: variables(args.env),
        timeout_ms: args.timeout.map_or(0, |timeout| millis(timeout.0)),
        stdin_open: args.stdin,
        // Whoever reads may be slow.
        wait_for_reader: true,
        ..spec
    };
    run(&sandbox, listeners, spec, args.stdin).await
}

fn variables(pairs: Vec<(String, String)>) -> Vec<wire::Variable> {
    let variable = |(name, value): (String, String)| wire::Variable {
        name: name.into_bytes().into(),
        value: value.into_bytes().into(),
    };
    pairs.into_iter().map(variable).collect()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// Carries output, and input where it is wanted, until the command has ended.
async fn run(
    sandbox: &Sandbox,
    listeners: &Listeners,
    spec: wire::CommandSpec,
    with_input: bool,
) -> Result<u8, Problem> {
    let agent = &sandbox.agent;
    let id = agent.allot();
    let mut follow = agent.exec(&id, spec);
    // Ends with the command: it is aborted below, or its last write finds the command gone.
    let input = with_input.then(|| tokio::spawn(feed(agent.clone(), id.clone())));
    let carried = carry_out(sandbox, listeners, &id, &mut follow).await;
    if let Some(input) = input {
        input.abort();
    }
    carried
}

async fn carry_out(
    sandbox: &Sandbox,
    listeners: &Listeners,
    id: &Id,
    follow: &mut Follow,
) -> Result<u8, Problem> {
    let mut asked = Asked::new(&sandbox.agent, listeners, id);
    let mut printer = Printer::start();
    let mut lost = 0_u64;
    loop {
        let event = tokio::select! {
            event = follow.next() => event,
            code = asked.give_up() => return Ok(code),
        };
        match event.map_err(|error| problem(&sandbox.placed.id, &error))? {
            Some(Event::Output { stream, bytes, .. }) => {
                let printed = tokio::select! {
                    printed = printer.print(stream, bytes) => printed,
                    code = asked.give_up() => return Ok(code),
                };
                if let Err(error) = printed {
                    let _ = asked.kill().await;
                    if error.kind() == ErrorKind::BrokenPipe {
                        return Ok(BROKEN_PIPE);
                    }
                    return Err(Problem::new(Exit::Unavailable, format!("printing its output: {error}")));
                }
            }
            Some(Event::Gap { from, to, .. }) => lost += to.saturating_sub(from),
            Some(Event::Ended(ended)) => {
                let code = code(ended.outcome.and_then(|outcome| outcome.outcome).as_ref());
                if lost == 0 {
                    return Ok(code);
                }
                eprintln!(
                    "espalier: {lost} bytes of output are lost: the sandbox had no space to buffer them \
                     (exit code of the command: {code})"
                );
                return Ok(OWN_FAILURE);
            }
            None => return Err(Problem::new(Exit::Unavailable, "the outcome of the command is unknown")),
        }
    }
}

/// What people at this end ask of a command by signals.
struct Asked<'a> {
    agent: &'a Agent,
    id: &'a Id,
    interrupts: Option<Signals>,
    terminations: Option<Signals>,
    hang_ups: Option<Signals>,
    resizes: Option<Signals>,
    _listening: Listening,
    /// Signals that should end it, so far.
    endings: u32,
    /// When it is killed, where it was told to end.
    deadline: Option<Instant>,
    killed: bool,
}

impl Asked<'_> {
    fn new<'a>(agent: &'a Agent, listeners: &Listeners, id: &'a Id) -> Asked<'a> {
        Asked {
            agent,
            id,
            interrupts: signal(SignalKind::interrupt()).ok(),
            terminations: signal(SignalKind::terminate()).ok(),
            hang_ups: hang_up(),
            resizes: signal(SignalKind::window_change()).ok(),
            _listening: listeners.add(),
            endings: 0,
            deadline: None,
            killed: false,
        }
    }

    /// Carries signals to the command for as long as it is waited for. Ctrl-C is passed on, a second one kills; SIGTERM is
    /// passed on, and kills after a while. Returns, with an exit code, where a killed command is not seen to end.
    async fn give_up(&mut self) -> u8 {
        loop {
            tokio::select! {
                Some(()) = next(&mut self.interrupts) => self.end(Signal::INT, None),
                Some(()) = next(&mut self.terminations) => self.end(Signal::TERM, Some(TERM_GRACE)),
                Some(()) = next(&mut self.hang_ups) => self.end(Signal::HUP, Some(TERM_GRACE)),
                Some(()) = next(&mut self.resizes) => {
                    if let Some(terminal) = size() {
                        let _ = timeout(SIGNAL_MAX, self.agent.resize(self.id, terminal)).await;
                    }
                }
                () = passed(self.deadline) => {
                    if self.killed {
                        eprintln!("espalier: the command was killed; its outcome is unknown");
                        return OWN_FAILURE;
                    }
                    self.kill();
                }
            }
        }
    }

    fn end(&mut self, signal: Signal, grace: Option<Duration>) {
        self.endings += 1;
        if self.endings > 1 {
            self.kill();
        } else {
            self.deadline = grace.map(|grace| Instant::now() + grace);
            self.send(signal);
        }
    }

    fn kill(&mut self) -> JoinHandle<()> {
        self.killed = true;
        self.deadline = Some(Instant::now() + KILL_MAX);
        self.send(Signal::KILL)
    }

    /// To all that the command has started. A task of its own, bounded: output that comes meanwhile must not cut it off.
    fn send(&self, signal: Signal) -> JoinHandle<()> {
        let (agent, id) = (self.agent.clone(), self.id.clone());
        tokio::spawn(async move {
            let call = agent.allot();
            let _ = timeout(SIGNAL_MAX, agent.signal(&call, &id, signal.as_raw(), true)).await;
        })
    }
}

async fn passed(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

async fn next(signals: &mut Option<Signals>) -> Option<()> {
    signals.as_mut()?.recv().await
}

/// Writes output on a thread of its own: whoever reads it may be slow, and signals are heard meanwhile.
struct Printer {
    pieces: mpsc::Sender<(wire::Stream, Bytes)>,
    printed: mpsc::Receiver<std::io::Result<()>>,
}

impl Printer {
    fn start() -> Printer {
        let (pieces, mut taken) = mpsc::channel::<(wire::Stream, Bytes)>(1);
        let (done, printed) = mpsc::channel(1);
        // Its own descriptors: the standard library's lock on them would be held while nobody reads, and awaited at the exit.
        let own = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map(File::from);
        let files = (own(std::io::stdout().as_fd()), own(std::io::stderr().as_fd()));
        // Ends with its queue, or with the program.
        std::thread::spawn(move || {
            while let Some((stream, bytes)) = taken.blocking_recv() {
                let file = match stream {
                    wire::Stream::Stdout => &files.0,
                    wire::Stream::Stderr => &files.1,
                };
                let printed = match file {
                    Ok(file) => { file }.write_all(&bytes),
                    Err(error) => Err(error.kind().into()),
                };
                if done.blocking_send(printed).is_err() {
                    return;
                }
            }
        });
        Printer { pieces, printed }
    }

    /// Returns when it was written.
    async fn print(&mut self, stream: wire::Stream, bytes: Bytes) -> std::io::Result<()> {
        let gone = || std::io::Error::other("the printer has gone");
        self.pieces.send((stream, bytes)).await.map_err(|_| gone())?;
        self.printed.recv().await.unwrap_or_else(|| Err(gone()))
    }
}

fn code(outcome: Option<&Outcome>) -> u8 {
    match outcome {
        Some(Outcome::ExitCode(code)) => u8::try_from(*code).unwrap_or(u8::MAX),
        Some(Outcome::Signal(signal)) => u8::try_from(128 + *signal).unwrap_or(u8::MAX),
        other => {
            eprintln!(
                "espalier: the command {}",
                match other {
                    Some(Outcome::Unstarted(_)) | None => format!("did not start: {}", describe(other)),
                    _ => format!("{} and was killed with all it had started", describe(other)),
                }
            );
            match other {
                Some(Outcome::TimedOut(_)) => 124,
                Some(Outcome::OutOfMemory(_)) => 137,
                Some(Outcome::Unstarted(unstarted)) if unstarted.reason() == wire::Reason::NotFound => 127,
                Some(Outcome::Unstarted(unstarted)) if unstarted.reason() == wire::Reason::Denied => 126,
                _ => OWN_FAILURE,
            }
        }
    }
}

/// Standard input to the command, piece by piece, then its end.
async fn feed(agent: Agent, target: Id) {
    let (sender, mut pieces) = mpsc::channel::<Bytes>(PIECES_MAX);
    // A thread of its own: nothing else can read a terminal or a pipe. It ends with the input, or with the program.
    std::thread::spawn(move || {
        let mut stdin = std::io::stdin().lock();
        let mut piece = vec![0; PIECE_BYTES];
        while let Ok(count) = stdin.read(&mut piece) {
            if count == 0 || sender.blocking_send(Bytes::copy_from_slice(&piece[..count])).is_err() {
                return;
            }
        }
    });
    let mut offset = 0;
    loop {
        let piece = pieces.recv().await;
        let end = piece.is_none();
        let piece = piece.unwrap_or_default();
        let length = piece.len() as u64;
        // The command may not be known yet: its start is on the way.
        let answer = loop {
            match agent.input(&agent.allot(), &target, offset, piece.clone(), end).await {
                Err(AgentError::Refused { reason: wire::Reason::NotFound, .. }) => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                other => break other,
            }
        };
        offset += length;
        if end || !matches!(answer, Ok(taken) if !taken.closed) {
            return;
        }
    }
}

fn problem(id: &str, error: &AgentError) -> Problem {
    Problem::new(Exit::Unavailable, format!("sandbox {id}: {}", with_causes(error)))
}

fn size() -> Option<wire::Terminal> {
    let size = termios::tcgetwinsize(std::io::stdin()).ok()?;
    Some(wire::Terminal { rows: size.ws_row.into(), columns: size.ws_col.into() })
}

/// The terminal as it was, put back when dropped.
struct Raw(Termios);

impl Raw {
    fn enter() -> Option<Raw> {
        let before = termios::tcgetattr(std::io::stdin()).ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(std::io::stdin(), OptionalActions::Now, &raw).ok()?;
        Some(Raw(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = termios::tcsetattr(std::io::stdin(), OptionalActions::Flush, &self.0);
    }
}

/// A terminal in a sandbox, as wide as this one.
pub(super) async fn shell(
    service: &Sandboxes,
    listeners: &Listeners,
    args: ShellArgs,
) -> Result<Exit, Problem> {
    let Some(terminal) = size() else {
        return Err(Problem::new(Exit::Input, "standard input is not a terminal")
            .hint("in scripts, use `espalier sandbox exec`"));
    };
    let sandbox = attach(service, &args.id).await?;
    let term = std::env::var("TERM").unwrap_or_else(|_| "xterm".to_owned());
    let spec = wire::CommandSpec {
        folder: sandbox.workdir.clone().into_bytes().into(),
        user: args.user.or_else(|| sandbox.user.clone()).unwrap_or_default(),
        environment: variables(vec![("TERM".to_owned(), term)]),
        stdin_open: true,
        terminal: Some(terminal),
        ..command::script("if command -v bash > /dev/null; then exec bash -i; else exec sh -i; fi")
    };
    let raw = Raw::enter();
    let code = run(&sandbox, listeners, spec, true).await;
    drop(raw);
    Ok(Exit::Command(code?))
}
