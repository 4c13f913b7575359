//! A stateful shell: one process of bash or sh that reads one line after another from the agent. Each line evaluates a script
//! whose outputs are pipes of its own, so that nothing which an earlier one left running is ever taken for its output.
//!
//! The shell is an interactive one without a terminal: then an interrupt ends what it is doing and not the shell, and most
//! errors do not end it either.

mod turn;

use crate::agent::Agent;
use crate::ids::Key;
use crate::input::Input;
use crate::launch::{self, Launch};
use crate::sys::{self, Exit};
use crate::tree::{Member, Tree};
use crate::users::User;
use crate::{Reason, refusal, terminal};
use espalier_agent_protocol::v1::Terminal;
use parking_lot::{Mutex, MutexGuard};
use rustix::process::Signal;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tonic::Status;
pub use turn::{Turn, run_in};

/// Said to the shell before the first script: no prompts, no history, no expansion of `!`.
const OPENING: &[u8] = b"PS1=; PS2=; unset HISTFILE PROMPT_COMMAND MAILCHECK ENV\n";
/// The same for bash alone.
const OPENING_BASH: &[u8] = b"set +o history +o histexpand\n";

/// One shell.
#[derive(Debug)]
pub struct Shell {
    /// Its id.
    pub key: Key,
    /// For people.
    pub label: String,
    /// When it was opened.
    pub began: Instant,
    /// `bash` or `sh`.
    pub program: &'static str,
    /// Process id.
    pub pid: u32,
    /// What it and its commands started.
    pub tree: Arc<Tree>,
    user: Option<User>,
    control: Input,
    status: AsyncFd<OwnedFd>,
    turn: tokio::sync::Mutex<Progress>,
    ended: Mutex<Option<String>>,
    changed: Notify,
}

/// Between two scripts; held by the one that runs.
#[derive(Debug, Default)]
struct Progress {
    /// Bytes written to it.
    written: u64,
    /// What it said and nobody has looked at.
    said: Vec<u8>,
    /// `$?`.
    last: i32,
}

/// How to open a shell.
#[derive(Debug)]
pub struct Opening {
    /// `bash`, `sh`, or empty.
    pub shell: String,
    /// Where it starts.
    pub folder: Option<CString>,
    /// Its environment, mark included.
    pub environment: Vec<CString>,
    /// PATH of that environment.
    pub path: Vec<u8>,
    /// Who it is; `None`: the agent's user.
    pub user: Option<User>,
    /// For people.
    pub label: String,
}

impl Shell {
    /// Starts a shell. The reason of a failure is told to the client.
    pub fn open(
        agent: &Arc<Agent>,
        key: Key,
        opening: Opening,
        tree: Arc<Tree>,
    ) -> Result<Arc<Shell>, Status> {
        let io = |error: rustix::io::Errno| refusal(Reason::Io, format!("a shell's pipes: {error}"));
        let flags = rustix::pipe::PipeFlags::CLOEXEC;
        let (control_reader, control) = rustix::pipe::pipe_with(flags).map_err(io)?;
        let (status, status_writer) = rustix::pipe::pipe_with(flags).map_err(io)?;
        rustix::io::ioctl_fionbio(&control, true).map_err(io)?;
        rustix::io::ioctl_fionbio(&status, true).map_err(io)?;
        let null = agent.null().map_err(|error| refusal(Reason::Io, format!("/dev/null: {error}")))?;
        // An interactive shell wants a terminal to set, or complains in what the script prints.
        let (terminal, side) = match terminal::open(&Terminal::default()) {
            Ok((controller, side)) => (Some(controller), side),
            Err(_) => (None, null),
        };
        let mut failure = None;
        for program in programs(&opening.shell)?.iter().copied() {
            let arguments: &[&[u8]] = match program {
                "bash" => &[b"bash", b"--noprofile", b"--norc", b"--noediting", b"-i"],
                _ => &[b"sh", b"-i"],
            };
            let mut candidates = launch::candidates(program.as_bytes(), &opening.path);
            candidates.extend(launch::text(format!("/bin/{program}").as_bytes()));
            let launch = Launch {
                candidates,
                arguments: arguments.iter().filter_map(|word| launch::text(word)).collect(),
                environment: opening.environment.clone(),
                folder: opening.folder.clone(),
                stdio: [control_reader.as_fd(), status_writer.as_fd(), side.as_fd()],
                terminal: false,
                ..agent.launch(&tree, opening.user.as_ref())
            };
            match agent.start(&launch, &tree, program.as_bytes()) {
                Ok((pid, exit)) => {
                    let register =
                        |fd| sys::readiness(fd).map_err(|error| refusal(Reason::Io, error.to_string()));
                    let control_pipe = register(control)?;
                    let shell = Arc::new(Shell {
                        key,
                        label: opening.label,
                        began: Instant::now(),
                        program,
                        pid,
                        tree,
                        user: opening.user,
                        control: Input::default(),
                        status: register(status)?,
                        turn: tokio::sync::Mutex::default(),
                        ended: Mutex::default(),
                        changed: Notify::new(),
                    });
                    shell.control.open(control_pipe, false);
                    if let Some(terminal) = terminal {
                        // Owned by the agent; ends when no process has the terminal open.
                        tokio::spawn(drain(register(terminal)?));
                    }
                    // Owned by the agent; ends with the shell.
                    tokio::spawn(watch_end(Arc::clone(agent), Arc::clone(&shell), exit));
                    return Ok(shell);
                }
                Err((Reason::NotFound, message)) => failure = Some((Reason::NotFound, message)),
                Err((reason, message)) => return Err(refusal(reason, message)),
            }
        }
        let (reason, message) = failure.unwrap_or((Reason::NotFound, "no shell".to_owned()));
        Err(refusal(reason, message))
    }

    /// Whether it has ended.
    pub fn is_ended(&self) -> bool {
        self.lock().is_some()
    }

    /// How it ended, for people.
    pub fn ended(&self) -> Option<String> {
        self.lock().clone()
    }

    /// Ends it and all it started.
    pub async fn close(&self) {
        self.tree.kill(&[]).await;
        self.until_ended().await;
    }

    async fn until_ended(&self) -> String {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(how) = self.ended() {
                return how;
            }
            changed.await;
        }
    }

    fn set_ended(&self, how: String) {
        self.lock().get_or_insert(how);
        self.control.close();
        self.changed.notify_waiters();
    }

    /// Interrupts what it is doing.
    fn interrupt(&self) {
        if let Some(leader) = self.tree.leader()
            && let Some(pid) = rustix::process::Pid::from_raw(leader.cast_signed())
        {
            let _ = rustix::process::kill_process(pid, Signal::INT);
        }
    }

    /// Processes that a script which begins now must not answer for.
    fn before(&self) -> Vec<Member> {
        self.tree.members()
    }

    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        self.ended.lock()
    }
}

/// The programs to try.
fn programs(wanted: &str) -> Result<&'static [&'static str], Status> {
    match wanted {
        "" => Ok(&["bash", "sh"]),
        "bash" => Ok(&["bash"]),
        "sh" => Ok(&["sh"]),
        other => Err(refusal(Reason::Invalid, format!("shell `{other}`: expected `bash` or `sh`"))),
    }
}

/// What a shell says to nobody: prompts, and jobs that have ended.
async fn drain(terminal: AsyncFd<OwnedFd>) {
    let mut bytes = [0; 512];
    while let Ok(ready) = terminal.readable().await {
        match rustix::io::read(terminal.get_ref(), &mut bytes) {
            Ok(0) => return,
            Ok(_) => {}
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => sys::not_ready(ready).await,
            Err(_) => return,
        }
    }
}

async fn watch_end(agent: Arc<Agent>, shell: Arc<Shell>, exit: oneshot::Receiver<Exit>) {
    let exit = exit.await.unwrap_or_default();
    shell.set_ended(match (exit.code(), exit.signal()) {
        (Some(code), _) => format!("the shell ended with exit code {code}"),
        (None, Some(signal)) => format!("the shell was ended by signal {signal}"),
        (None, None) => "the shell is gone".to_owned(),
    });
    agent.ended(&shell.key);
}
