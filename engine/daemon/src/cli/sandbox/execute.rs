//! Commands and terminals in a sandbox, their bytes carried both ways as they come.

use super::{ExecArgs, ShellArgs, attach};
use crate::cli::exit::Exit;
use crate::output::Look;
use crate::output::problem::Problem;
use bytes::Bytes;
use espalier_agent_client::{Agent, AgentError, Event, Id, command, wire};
use espalier_sandbox::service::{Sandbox, Sandboxes, describe};
use rustix::termios::{self, OptionalActions, Termios};
use std::io::{Read, Write};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use wire::outcome::Outcome;

/// What `docker exec` and `chroot` exit with when they themselves fail.
const OWN_FAILURE: u8 = 125;
/// Pieces of standard input that were read and not sent; the reader waits for room.
const PIECES_MAX: usize = 4;
/// Bytes read at once.
const PIECE_BYTES: usize = 64 << 10;

/// Runs a command; what went wrong is printed, for its exit code stands for the command's.
pub(super) async fn execute(service: &Sandboxes, args: ExecArgs) -> Exit {
    match carry(service, args).await {
        Ok(code) => Exit::Command(code),
        Err(problem) => {
            eprint!("{}", problem.text(&Look::of_stderr()));
            Exit::Command(OWN_FAILURE)
        }
    }
}

async fn carry(service: &Sandboxes, args: ExecArgs) -> Result<u8, Problem> {
    let sandbox = attach(service, &args.id).await?;
    let spec = command::arguments(&args.command);
    let spec = wire::CommandSpec {
        folder: args.workdir.unwrap_or_else(|| sandbox.workdir.clone()).into_bytes().into(),
        user: args.user.or_else(|| sandbox.user.clone()).unwrap_or_default(),
        environment: variables(args.env),
        timeout_ms: args.timeout.map_or(0, |timeout| millis(timeout.0)),
        stdin_open: args.stdin,
        ..spec
    };
    run(&sandbox, spec, args.stdin).await
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
async fn run(sandbox: &Sandbox, spec: wire::CommandSpec, with_input: bool) -> Result<u8, Problem> {
    let agent = &sandbox.agent;
    let id = agent.allot();
    let mut follow = agent.exec(&id, spec);
    // Ends with the command: it is aborted below, or its last write finds the command gone.
    let input = with_input.then(|| tokio::spawn(feed(agent.clone(), id.clone())));
    let mut interrupts = signal(SignalKind::interrupt()).ok();
    let mut resizes = signal(SignalKind::window_change()).ok();
    let ended = loop {
        let event = tokio::select! {
            event = follow.next() => event,
            Some(()) = next(&mut interrupts) => {
                let _ = agent.signal(&agent.allot(), &id, rustix::process::Signal::INT.as_raw(), true).await;
                continue;
            }
            Some(()) = next(&mut resizes) => {
                if let Some(terminal) = size() {
                    let _ = agent.resize(&id, terminal).await;
                }
                continue;
            }
        };
        match event.map_err(|error| problem(&sandbox.placed.id, &error))? {
            Some(Event::Output { stream, bytes, .. }) => print(stream, &bytes),
            Some(Event::Gap { from, to, .. }) => {
                eprintln!("espalier: {} bytes of output are lost", to.saturating_sub(from));
            }
            Some(Event::Ended(ended)) => break *ended,
            None => return Err(Problem::new(Exit::Unavailable, "the command's end is not known")),
        }
    };
    if let Some(input) = input {
        input.abort();
    }
    Ok(code(ended.outcome.and_then(|outcome| outcome.outcome).as_ref()))
}

async fn next(signals: &mut Option<tokio::signal::unix::Signal>) -> Option<()> {
    signals.as_mut()?.recv().await
}

fn print(stream: wire::Stream, bytes: &[u8]) {
    // Whoever read may have gone; the command goes on, as it would behind a pipe that it does not write to.
    let _ = match stream {
        wire::Stream::Stdout => {
            let mut out = std::io::stdout().lock();
            out.write_all(bytes).and_then(|()| out.flush())
        }
        wire::Stream::Stderr => std::io::stderr().lock().write_all(bytes),
    };
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
    Problem::new(Exit::Unavailable, format!("sandbox {id}: {error}"))
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
pub(super) async fn shell(service: &Sandboxes, args: ShellArgs) -> Result<Exit, Problem> {
    let Some(terminal) = size() else {
        return Err(Problem::new(Exit::Input, "standard input is no terminal")
            .hint("for programs there is `espalier sandbox exec`"));
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
    let code = run(&sandbox, spec, true).await;
    drop(raw);
    Ok(Exit::Command(code?))
}
