//! The sandboxes of one rollout: what [`espalier_core::host::sandbox`] asks for, over the agent's client.
//!
//! A [`Provider`] makes sandboxes; here they are opened when they are first asked for, kept until the rollout and its rewards
//! are over, and spoken to. Nothing here retries: the client repeats a cut call with its own id, and what it gives up is lost.
//! Reading order: [`machine`] (one sandbox, and what its failures mean) -> [`output`] -> [`handle`], [`process`], [`shell`] ->
//! [`port`]; [`suspend`] is for rollouts that wait.

mod handle;
mod machine;
mod output;
mod patch;
mod port;
mod process;
mod shell;
mod suspend;

use crate::error::SandboxError;
use async_trait::async_trait;
use espalier_agent_client::Agent;
use espalier_core::attempt::{AttemptCapability, Draft};
use espalier_core::ending::Lost;
use espalier_core::failure::Failure;
use espalier_core::host::Blobs;
use espalier_core::host::sandbox::{Sandbox, Sandboxes};
use espalier_core::journal::EdgeLog;
use espalier_core::trajectory::SandboxUse;
pub use patch::Patch;
pub use suspend::{Suspend, SuspendingModels};

use handle::Handle;
use machine::Machine;
use parking_lot::{Mutex, MutexGuard};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::OnceCell;

/// Makes the sandboxes of one rollout, set up as task and experiment say. Its futures may be dropped: what was half made then
/// is its own to clean up.
#[async_trait]
pub trait Provider: Send + Sync {
    /// The sandbox of this name, started and set up. Called once for each name, again only after a failure.
    async fn open(&self, name: &str) -> Result<Opened, SandboxError>;
    /// Another one of the same name, image, files and set-up, that nobody has touched.
    async fn open_fresh(&self, name: &str) -> Result<Opened, SandboxError>;
    /// One made as this text says: what a task says of a sandbox, as JSON.
    async fn create(&self, spec: &str) -> Result<Opened, SandboxError> {
        let _ = spec;
        Err(SandboxError::Rejected("sandboxes are not created here, but opened by name".into()))
    }
    /// A command in the sandbox of this name (with `fresh`, in one of `open_fresh`) was killed for memory. Where it is to be tried
    /// again with more, this says so, and nothing more is done in that sandbox; `None`: it is an outcome like any other.
    fn out_of_memory(&self, name: &str, fresh: bool) -> Option<String> {
        let _ = (name, fresh);
        None
    }
    /// Every sandbox that was made so far, in order: for the record.
    fn made(&self) -> Vec<SandboxUse> {
        Vec::new()
    }
    /// Keeps the file system of the sandbox that was opened by this name; says under which name.
    async fn checkpoint(&self, name: &str) -> Result<String, SandboxError>;
}

/// A sandbox that stands.
pub struct Opened {
    /// Its agent, connected by a client of this rollout alone.
    pub agent: Agent,
    /// Who runs commands; `None`: the agent's own user.
    pub user: Option<String>,
    /// Where commands start and relative paths do; `None`: `/`.
    pub workdir: Option<String>,
    /// Added to the environment of every command.
    pub env: Vec<(String, String)>,
    /// Folders of whose changes account is kept from now on; `None`: the working folder, unless that is `/`.
    pub account: Option<Vec<String>>,
    /// Dropped when nobody uses the sandbox any more: the provider's moment to end it.
    pub keep: Option<Box<dyn Any + Send + Sync>>,
    /// Stops its commands; `None`: nobody can.
    pub suspend: Option<Box<dyn Suspend>>,
}

impl Opened {
    /// With nothing but its agent.
    pub fn new(agent: Agent) -> Opened {
        let (user, workdir, account, keep, suspend) = (None, None, None, None, None);
        Opened { agent, user, workdir, env: Vec::new(), account, keep, suspend }
    }
}

impl std::fmt::Debug for Opened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opened")
            .field("agent", &self.agent)
            .field("workdir", &self.workdir)
            .finish_non_exhaustive()
    }
}

/// See the module. Dropping it lets go of every sandbox.
pub struct RolloutSandboxes {
    provider: Arc<dyn Provider>,
    blobs: Arc<dyn Blobs>,
    edges: Option<Arc<EdgeLog>>,
    state: Mutex<MachinesState>,
}

#[derive(Default)]
struct MachinesState {
    machines: BTreeMap<String, Arc<OnceCell<Arc<Machine>>>>,
    /// Names whose last opening failed for infrastructure, and why.
    unopened: BTreeMap<String, String>,
    /// The set-up of one was killed for memory, and is to be tried with more.
    out_of_memory: Option<String>,
}

impl RolloutSandboxes {
    /// Nothing is opened yet. Long outputs, files and changes go into these blobs, at the rollout's expense.
    pub fn new(provider: Arc<dyn Provider>, blobs: Arc<dyn Blobs>) -> RolloutSandboxes {
        RolloutSandboxes { provider, blobs, edges: None, state: Mutex::default() }
    }

    /// The same, with how each command ends kept.
    pub fn recorded(self, edges: Option<Arc<EdgeLog>>) -> RolloutSandboxes {
        RolloutSandboxes { edges, ..self }
    }

    fn state(&self) -> MutexGuard<'_, MachinesState> {
        self.state.lock()
    }

    /// Those that are open, by name.
    pub fn open_sandboxes(&self) -> Vec<(String, Arc<dyn Sandbox>)> {
        let state = self.state();
        let open = state.machines.iter().filter_map(|(name, cell)| Some((name, cell.get()?)));
        open.map(|(name, machine)| (name.clone(), Arc::new(Handle(Arc::clone(machine))) as Arc<dyn Sandbox>))
            .collect()
    }

    /// What the engine itself runs in this sandbox was killed for memory. Where it is to be tried again with more, this says so, and nothing
    /// more is done in that sandbox; `None`: it is a loss like any other.
    pub fn killed_for_memory(&self, name: &str) -> Option<String> {
        let machine = Arc::clone(self.state().machines.get(name)?.get()?);
        machine.killed_for_memory().err().map(|failure| failure.to_string())
    }

    /// Opens it for the first time, noting whether that can be done.
    async fn make(&self, name: &str) -> Result<Arc<Machine>, Failure> {
        let opened = self.provider.open(name).await;
        let opened = {
            let mut state = self.state();
            opened.map_err(|error| {
                let failure = self.failed(name, &error, false);
                if let (SandboxError::OutOfMemory { .. }, Failure::Unavailable(why)) = (&error, &failure) {
                    state.out_of_memory = Some(why.clone());
                } else if let Failure::Unavailable(_) = failure {
                    state.unopened.insert(name.to_owned(), error.to_string());
                }
                failure
            })?
        };
        let machine = self.machine(name, opened, false).await;
        let mut state = self.state();
        match &machine {
            Err(Failure::Unavailable(why)) => drop(state.unopened.insert(name.to_owned(), why.clone())),
            _ => drop(state.unopened.remove(name)),
        }
        machine
    }

    /// Another one of this name, that nobody has touched.
    async fn fresh(&self, name: &str) -> Result<Arc<Machine>, Failure> {
        let opened = self.provider.open_fresh(name).await.map_err(|error| self.failed(name, &error, true))?;
        self.machine(name, opened, true).await
    }

    async fn machine(&self, name: &str, opened: Opened, fresh: bool) -> Result<Arc<Machine>, Failure> {
        let (blobs, provider) = (Arc::clone(&self.blobs), Arc::clone(&self.provider));
        Machine::new(name, opened, blobs, provider, self.edges.clone(), fresh).await
    }

    fn failed(&self, name: &str, error: &SandboxError, fresh: bool) -> Failure {
        let text = format!("sandbox {name}: {}", error.with_causes());
        match error {
            SandboxError::Invalid { .. } | SandboxError::Rejected(_) => Failure::Invalid(text),
            SandboxError::OutOfMemory { .. } => match self.provider.out_of_memory(name, fresh) {
                Some(more) => Failure::Unavailable(format!("{text}; {more}")),
                None => Failure::Invalid(text),
            },
            SandboxError::Unavailable(_)
            | SandboxError::NoAgent { .. }
            | SandboxError::NoKeeper { .. }
            | SandboxError::Refused { .. }
            | SandboxError::Lost(_) => Failure::Unavailable(text),
        }
    }
}

#[async_trait]
impl AttemptCapability for RolloutSandboxes {
    /// What was lost and stayed lost: a sandbox whose agent is gone, or that could not be opened. Fresh ones do not count.
    fn lost(&self) -> Option<Lost> {
        let state = self.state();
        let killed = state.machines.values().find_map(|cell| cell.get()?.out_of_memory());
        if let Some(why) = killed.or_else(|| state.out_of_memory.clone()) {
            return Some(Lost::OutOfMemory(why));
        }
        let gone = state.machines.values().filter_map(|cell| cell.get()?.lost());
        let unopened = state.unopened.iter().map(|(name, why)| format!("sandbox {name}: {why}"));
        gone.chain(unopened).next().map(Lost::Infrastructure)
    }

    fn finish(&self, draft: &mut Draft) {
        draft.sandboxes.extend(self.provider.made());
    }
}

#[async_trait]
impl Sandboxes for RolloutSandboxes {
    async fn open(&self, name: &str) -> Result<Arc<dyn Sandbox>, Failure> {
        let cell = Arc::clone(self.state().machines.entry(name.to_owned()).or_default());
        let machine = cell.get_or_try_init(|| self.make(name)).await?;
        Ok(Arc::new(Handle(Arc::clone(machine))))
    }

    async fn open_fresh(&self, name: &str) -> Result<Arc<dyn Sandbox>, Failure> {
        Ok(Arc::new(Handle(self.fresh(name).await?)))
    }

    async fn create(&self, spec: &str) -> Result<Arc<dyn Sandbox>, Failure> {
        const CREATED: &str = "created";
        let opened = self.provider.create(spec).await;
        let opened = opened.map_err(|error| self.failed(CREATED, &error, true))?;
        Ok(Arc::new(Handle(self.machine(CREATED, opened, true).await?)))
    }
}
