//! One sandbox as a rollout knows it: how to reach it, what holds for every command, and what its failures mean.

use super::port::Ports;
use super::{Opened, Provider, Suspend};
use bytes::Bytes;
use espalier_agent_client::wire::{CommandSpec, Variable};
use espalier_agent_client::{Agent, AgentError, Excerpts, Id, Reason, command};
use espalier_core::failure::Failure;
use espalier_core::host::Blobs;
use espalier_core::host::sandbox::{Command, Program, Show, TerminalSize};
use espalier_core::journal::EdgeLog;
use parking_lot::Mutex;
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a command shown in the agent's lists.
const LABEL_BYTES_MAX: usize = 200;
/// How long a command that nobody waits for may resist its end.
const KILL_WITHIN: Duration = Duration::from_secs(5);
/// Ended commands whose records are given up together.
const ACKS_MAX: usize = 32;
/// A command that printed more is given up at once: its output takes room where outputs spill.
const KEEP_PRINTED_MAX: u64 = 64 << 10;

/// See the module.
pub(super) struct Machine {
    pub(super) name: String,
    pub(super) agent: Agent,
    pub(super) blobs: Arc<dyn Blobs>,
    pub(super) provider: Arc<dyn Provider>,
    /// Keeps how commands ended.
    pub(super) edges: Option<Arc<EdgeLog>>,
    /// Whether it is one of `open_fresh`, of which no checkpoint is made.
    pub(super) fresh: bool,
    pub(super) ports: Ports,
    pub(super) suspend: Option<Box<dyn Suspend>>,
    user: String,
    workdir: Bytes,
    environment: Vec<Variable>,
    fault: Mutex<Option<MachineFault>>,
    sequences: Mutex<Sequences>,
    /// Ids of commands that ended and whose outcome was taken.
    acks: Mutex<Vec<Id>>,
    _keep: Option<Box<dyn Any + Send + Sync>>,
}

/// Ids of one call: what it runs, and the signal that ends it where the call is cut.
const IDS_OF_CALL: u64 = 2;
/// Below are the ids of the set-up, which the host counts itself.
const FIRST_OF_GUESTS: u64 = 1 << 32;

/// Which ids the calls of guests have: they follow from the numbers of the calls alone, so that a guest that is driven again
/// asks with the same ones. They rise: where a number is not above those before, another guest has begun to count.
#[derive(Debug, Default)]
struct Sequences {
    /// The id of a call with the number 0; none before the first call.
    base: Option<u64>,
    /// The next id of the call under way.
    next: u64,
    /// All ids from here on are new.
    free: u64,
}

impl Sequences {
    fn begin(&mut self, call: u64) {
        let offset = call.saturating_mul(IDS_OF_CALL);
        let base = *self.base.get_or_insert(FIRST_OF_GUESTS);
        let first = match base.saturating_add(offset) {
            first if first >= self.free => first,
            _ => {
                self.base = Some(self.free);
                self.free.saturating_add(offset)
            }
        };
        (self.next, self.free) = (first, first.saturating_add(IDS_OF_CALL));
    }

    fn take(&mut self) -> Option<u64> {
        self.base?;
        let sequence = self.next;
        self.next += 1;
        self.free = self.free.max(self.next);
        Some(sequence)
    }
}

/// Why the last call failed for infrastructure.
struct MachineFault {
    text: String,
    /// No later call can succeed.
    lasting: bool,
    /// It is to be tried again with more memory.
    out_of_memory: bool,
}

impl Machine {
    /// Looks at the folders of which account is to be kept.
    pub(super) async fn new(
        name: &str,
        opened: Opened,
        blobs: Arc<dyn Blobs>,
        provider: Arc<dyn Provider>,
        edges: Option<Arc<EdgeLog>>,
        fresh: bool,
    ) -> Result<Arc<Machine>, Failure> {
        let Opened { agent, user, workdir, env, account, keep, suspend } = opened;
        let workdir = workdir.unwrap_or_else(|| "/".to_owned());
        let account = account.unwrap_or_else(|| match workdir.as_str() {
            "/" => Vec::new(),
            workdir => vec![workdir.to_owned()],
        });
        let machine = Machine {
            name: name.to_owned(),
            ports: Ports::new(agent.clone()),
            agent,
            blobs,
            provider,
            edges,
            fresh,
            suspend,
            user: user.unwrap_or_default(),
            workdir: workdir.into(),
            environment: variables(&env),
            fault: Mutex::default(),
            sequences: Mutex::default(),
            acks: Mutex::default(),
            _keep: keep,
        };
        if !account.is_empty() {
            let roots = account.into_iter().map(Bytes::from).collect();
            let change = machine.change();
            machine.said(machine.agent.baseline(&change, roots, Vec::new()).await)?;
        }
        Ok(Arc::new(machine))
    }

    /// Why it is to be tried again with more memory, if it is.
    pub(super) fn out_of_memory(&self) -> Option<String> {
        let fault = self.fault.lock();
        let fault = fault.as_ref().filter(|fault| fault.out_of_memory);
        fault.map(|fault| format!("sandbox {}: {}", self.name, fault.text))
    }

    /// A command was killed for memory. Errors: `Unavailable` where more of it can be had, from now on for every call.
    pub(super) fn killed_for_memory(&self) -> Result<(), Failure> {
        let Some(more) = self.provider.out_of_memory(&self.name, self.fresh) else { return Ok(()) };
        let text = format!("a command was killed for memory; {more}");
        let failure = Failure::Unavailable(format!("sandbox {}: {text}", self.name));
        let mut fault = self.fault.lock();
        fault.get_or_insert(MachineFault { text, lasting: true, out_of_memory: true });
        Err(failure)
    }

    /// No later call can succeed.
    pub(super) fn give_up(&self, why: &str) {
        let mut fault = self.fault.lock();
        let text = why.to_owned();
        fault.get_or_insert(MachineFault { text, lasting: true, out_of_memory: false });
    }

    /// Why it counts as lost, if it does.
    pub(super) fn lost(&self) -> Option<String> {
        let fault = self.fault.lock();
        fault.as_ref().map(|fault| format!("sandbox {}: {}", self.name, fault.text))
    }

    /// What an answer of the agent means, noting whether the sandbox can still be reached.
    pub(super) fn said<T>(&self, answer: Result<T, AgentError>) -> Result<T, Failure> {
        let mut fault = self.fault.lock();
        if let Some(MachineFault { text, out_of_memory: true, .. }) = &*fault {
            return Err(Failure::Unavailable(format!("sandbox {}: {text}", self.name)));
        }
        let error = match answer {
            Ok(answer) => {
                fault.take_if(|fault| !fault.lasting);
                return Ok(answer);
            }
            Err(error) => error,
        };
        let unavailable = |lasting: bool| {
            let text = espalier_core::cause::with_causes(&error);
            (MachineFault { text: text.clone(), lasting, out_of_memory: false }, text)
        };
        let (noted, text) = match &error {
            AgentError::Refused {
                reason: reason @ (Reason::Unauthenticated | Reason::Version | Reason::Ending),
                ..
            } => unavailable(*reason == Reason::Ending),
            AgentError::Lost(_) => unavailable(true),
            AgentError::Protocol(_) | AgentError::Local { .. } => unavailable(false),
            AgentError::Refused { reason, message, .. } => {
                fault.take_if(|fault| !fault.lasting);
                return Err(refusal(*reason, message.clone()));
            }
        };
        *fault = Some(noted);
        Err(Failure::Unavailable(format!("sandbox {}: {text}", self.name)))
    }

    /// An absolute path.
    pub(super) fn place(&self, path: &[u8]) -> Bytes {
        if path.starts_with(b"/") {
            return Bytes::copy_from_slice(path);
        }
        [&self.workdir[..], b"/", path].concat().into()
    }

    /// Where commands start that say nothing else.
    pub(super) fn folder(&self, cwd: Option<&[u8]>) -> Bytes {
        cwd.map_or_else(|| self.workdir.clone(), |cwd| self.place(cwd))
    }

    /// Who runs it.
    pub(super) fn user(&self, user: Option<String>) -> String {
        user.unwrap_or_else(|| self.user.clone())
    }

    /// The sandbox's variables, then these.
    pub(super) fn environment(&self, env: &[(String, String)]) -> Vec<Variable> {
        let mut all = self.environment.clone();
        all.extend(variables(env));
        all
    }

    /// What to tell the agent. `keep` bytes of each output stay with it; 0: as many as it wants.
    pub(super) fn spec(&self, command: Command, keep: u64) -> CommandSpec {
        let (base, label) = match command.program {
            Program::Shell(text) => {
                let label = label(&text);
                (command::script(text), label)
            }
            Program::Argv(words) => {
                let label = label(&words.join(" "));
                (command::arguments(words), label)
            }
        };
        CommandSpec {
            folder: self.folder(command.cwd.as_deref()),
            environment: self.environment(&command.env),
            user: self.user(command.user),
            timeout_ms: millis(command.timeout),
            stdin: command.stdin.into(),
            merge_stderr: command.merge_stderr,
            terminal: command.terminal.map(size),
            output_keep_bytes: keep,
            label,
            ..base
        }
    }

    /// The guest's call of this number begins: the ids of what it changes follow from it.
    pub(super) fn begin(&self, call: u64) {
        self.sequences.lock().begin(call);
    }

    /// The next id of the call under way, or one of the host's own where no guest has called yet.
    fn id(&self) -> Id {
        let mut sequences = self.sequences.lock();
        match sequences.take() {
            Some(sequence) => self.agent.claim(sequence),
            None => self.agent.allot(),
        }
    }

    /// An id for a change, given up when the call that uses it is cut.
    pub(super) fn change(&self) -> Change {
        Change { agent: self.agent.clone(), id: self.id() }
    }

    /// Nobody will ask for this command's output again. Most are given up together: a record is small.
    pub(super) async fn forget(&self, id: Id, printed: u64) {
        let ids = {
            let mut acks = self.acks.lock();
            acks.push(id);
            if acks.len() < ACKS_MAX && printed <= KEEP_PRINTED_MAX {
                return;
            }
            std::mem::take(&mut *acks)
        };
        // Bounds of the agent do the same, later.
        let _ = self.agent.ack(ids).await;
    }
}

/// How much of an output its outcome shows: the half of it from the start, the half up to the end.
pub(super) fn excerpts(show: Show) -> Excerpts {
    Excerpts { head_bytes: show.output_max.div_ceil(2), tail_bytes: show.output_max / 2 }
}

/// How much of each output the agent has to keep for what will be asked of it.
pub(super) fn keep(show: Show) -> u64 {
    if show.keep_whole { 0 } else { u64::from(show.output_max) * 2 }
}

/// 0: none.
pub(super) fn millis(timeout: Option<Duration>) -> u64 {
    timeout.map_or(0, |timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1))
}

pub(super) fn size(size: TerminalSize) -> espalier_agent_client::wire::Terminal {
    espalier_agent_client::wire::Terminal { rows: size.rows.into(), columns: size.columns.into() }
}

fn variables(env: &[(String, String)]) -> Vec<Variable> {
    let bytes = |text: &String| Bytes::copy_from_slice(text.as_bytes());
    env.iter().map(|(name, value)| Variable { name: bytes(name), value: bytes(value) }).collect()
}

fn label(text: &str) -> String {
    text[..text.floor_char_boundary(LABEL_BYTES_MAX)].to_owned()
}

/// The agent's refusal in the words of `espalier:sandbox`.
pub(super) fn refusal(reason: Reason, message: String) -> Failure {
    let code = match reason {
        Reason::Invalid | Reason::IdReused | Reason::Unspecified => return Failure::Invalid(message),
        Reason::NotFound => "not-found",
        Reason::Denied => "not-permitted",
        Reason::Kind => "wrong-kind",
        Reason::DiskFull => "disk-full",
        Reason::Patch => "patch",
        Reason::ShellEnded => "shell-ended",
        Reason::Bound => "bound",
        Reason::Expired => "expired",
        Reason::Unsupported => "unsupported",
        Reason::Io => "io",
        Reason::Unauthenticated | Reason::Version | Reason::Ending => return Failure::Unavailable(message),
    };
    Failure::Other { code: code.to_owned(), text: message }
}

/// The id of a change under way. Dropped, it holds the floor of the ids down no longer: what was not sent then never runs.
pub(super) struct Change {
    agent: Agent,
    id: Id,
}

impl std::ops::Deref for Change {
    type Target = Id;

    fn deref(&self) -> &Id {
        &self.id
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        self.agent.settle(&self.id);
    }
}

/// A command that somebody waits for. Dropped before [`Running::ended`], it is killed with all that it started.
pub(super) struct Running {
    agent: Agent,
    id: Option<Id>,
    /// Id of the signal that kills it.
    kill: Id,
}

impl Running {
    pub(super) fn new(machine: &Machine) -> (Running, Id) {
        let (id, kill) = (machine.id(), machine.id());
        (Running { agent: machine.agent.clone(), id: Some(id.clone()), kill }, id)
    }

    /// There is an answer: it ended, or never began.
    pub(super) fn ended(mut self) {
        self.id = None;
        self.agent.settle(&self.kill);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let (agent, kill) = (self.agent.clone(), self.kill.clone());
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        // Owned by nobody: it ends by itself within its bound. Where the engine stops first, the sandbox does, too.
        runtime.spawn(async move {
            let _ = tokio::time::timeout(KILL_WITHIN, agent.signal(&kill, &id, 9, true)).await;
            agent.settle(&kill);
            agent.settle(&id);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_follow_from_the_numbers_of_calls_and_rise() {
        let mut sequences = Sequences::default();
        assert_eq!(sequences.take(), None, "the host's own set-up");
        let mut ids = |calls: &[u64]| -> Vec<u64> {
            calls
                .iter()
                .flat_map(|call| {
                    sequences.begin(*call);
                    [sequences.take(), sequences.take()]
                })
                .map(|id| id.unwrap_or_default() - FIRST_OF_GUESTS)
                .collect()
        };
        assert_eq!(ids(&[0, 1, 7]), [0, 1, 2, 3, 14, 15]);
        // A reward begins to count anew, and another, whose first call here has a higher number.
        assert_eq!(ids(&[0, 2]), [16, 17, 20, 21]);
        assert_eq!(ids(&[9]), [34, 35]);
    }
}
