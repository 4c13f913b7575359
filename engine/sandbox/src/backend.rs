//! What makes sandboxes: on this machine ([`crate::local`]), later on a cluster. Nothing above knows which.

use crate::error::SandboxError;
use async_trait::async_trait;
use espalier_agent_client::{Endpoint, Secret};
use espalier_images::Upper;
use futures::future::BoxFuture;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::broadcast;

/// A sandbox to make, its image unpacked and its values checked.
#[derive(Clone, Debug)]
pub struct Order {
    /// New; letters, digits and dashes, up to 40.
    pub id: String,
    /// What its root file system is made of.
    pub root: Root,
    /// Cores.
    pub cpu: f64,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes it may write.
    pub disk: u64,
    /// Files it may make.
    pub files_max: u64,
    /// Processes and threads at once.
    pub processes_max: u32,
    /// What it may reach.
    pub network: Reach,
    /// Silence of every client that ends it.
    pub lease: Duration,
    /// Of every command.
    pub environment: Vec<(String, String)>,
    /// For those who look for it: run, rollout, name.
    pub labels: BTreeMap<String, String>,
    /// Promises that have to hold, by name; a backend that cannot keep one refuses.
    pub require: Vec<String>,
}

/// What a sandbox's root file system is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// Folders of this machine below what is written, by where they are seen; the first at `/`. Lowest first.
    pub overlays: Vec<(PathBuf, Vec<PathBuf>)>,
    /// A checkpoint to start from.
    pub checkpoint: Option<String>,
    /// Files whose lock keeps the folders below: held, shared, as long as the sandbox is there, also without an engine.
    pub holds: Vec<PathBuf>,
}

/// What a sandbox may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Nothing.
    None,
    /// Its own 127.0.0.1.
    Loopback,
    /// The same, and a proxy there; see [`Backend::proxy_door`].
    Proxy,
}

/// A sandbox that is there.
#[derive(Clone, Debug)]
pub struct Placed {
    /// Its id.
    pub id: String,
    /// Where its agent is, and what it takes to be heard by it.
    pub address: Address,
    /// What was ordered.
    pub labels: BTreeMap<String, String>,
    /// Seconds since 1970.
    pub created_s: u64,
    /// Its process 1 as this machine sees it; `None` elsewhere.
    pub pid: Option<u32>,
}

/// Where an agent is.
#[derive(Clone, Debug)]
pub struct Address {
    /// Of a Unix socket.
    pub socket: PathBuf,
    /// The sandbox's secret.
    pub secret: Secret,
}

impl Address {
    /// For the agent's client.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint::Unix(self.socket.clone())
    }
}

/// A kept file system.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// Its id.
    pub id: String,
    /// The sandbox it was made from.
    pub sandbox: String,
    /// What lies below it; starts further sandboxes.
    pub root: Root,
    /// Of that sandbox.
    pub labels: BTreeMap<String, String>,
    /// Seconds since 1970.
    pub created_s: u64,
    /// How long the sandbox was stopped.
    pub frozen: Duration,
    /// Bytes that the sandbox had written itself, without those of a checkpoint it was made from; `None` where nobody counts them.
    pub bytes: Option<u64>,
    /// What was written over each overlay of the root, readable on this machine for root alone.
    pub uppers: Vec<Upper>,
}

/// A sandbox's way out.
pub enum Door {
    /// It is the asker's.
    Lent(LentDoor),
    /// Another engine carries it, or another command; this waits until they have gone.
    Later(BoxFuture<'static, Result<LentDoor, SandboxError>>),
}

/// A listening socket in a sandbox, to be given back by dropping it.
pub struct LentDoor {
    /// Connections of the sandbox come from it.
    pub listener: std::net::TcpListener,
    /// As long as this is there, nobody else has it.
    pub held: Box<dyn Send>,
}

/// A sandbox has ended without being asked to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Which.
    pub sandbox: String,
    /// How, in words.
    pub how: String,
}

/// Makes, finds and ends sandboxes. Every call is bounded in time. Dropping one that changes something leaves it to chance whether it
/// is carried out, but never half of it: whoever drops a creation deletes by its id, which holds in whatever order both arrive.
#[async_trait]
pub trait Backend: Send + Sync {
    /// What it promises of every sandbox, each with the remedy where it cannot. The words are those of `require`.
    async fn promises(&self) -> Result<BTreeMap<String, Result<(), String>>, SandboxError>;
    /// Makes a sandbox; its agent takes calls when this returns.
    async fn create(&self, order: &Order) -> Result<Placed, SandboxError>;
    /// Ends a sandbox; nothing of it is left when this returns. One that is not there is fine.
    async fn delete(&self, id: &str) -> Result<(), SandboxError>;
    /// All that are there, also those that an engine before this one made.
    async fn list(&self) -> Result<Vec<Placed>, SandboxError>;
    /// The ids of all that are there: for those who look only whether one still is.
    async fn ids(&self) -> Result<Vec<String>, SandboxError>;
    /// One of them; `None`: it is not there.
    async fn find(&self, id: &str) -> Result<Option<Placed>, SandboxError>;
    /// Adds, replaces or, by `None`, removes labels.
    async fn relabel(&self, id: &str, labels: BTreeMap<String, Option<String>>) -> Result<(), SandboxError>;
    /// Adds or replaces labels.
    async fn label(&self, id: &str, labels: BTreeMap<String, String>) -> Result<(), SandboxError> {
        self.relabel(id, labels.into_iter().map(|(name, value)| (name, Some(value))).collect()).await
    }
    /// Keeps the file system of a sandbox, which is stopped meanwhile; its processes are not kept.
    async fn checkpoint(&self, id: &str, checkpoint: &str) -> Result<Checkpoint, SandboxError>;
    /// All checkpoints.
    async fn checkpoints(&self) -> Result<Vec<Checkpoint>, SandboxError>;
    /// The ids of all checkpoints.
    async fn checkpoint_ids(&self) -> Result<Vec<String>, SandboxError>;
    /// One of them, and the environment of commands that its sandbox had; `None`: it is not there.
    async fn find_checkpoint(
        &self,
        id: &str,
    ) -> Result<Option<(Checkpoint, Vec<(String, String)>)>, SandboxError>;
    /// Forgets a checkpoint.
    async fn delete_checkpoint(&self, id: &str) -> Result<(), SandboxError>;
    /// The way out of a sandbox that was ordered with [`Reach::Proxy`]. One at a time carries it, of all engines.
    async fn proxy_door(&self, id: &str) -> Result<Door, SandboxError>;
    /// Tells of sandboxes that end by themselves, from now on. A receiver that lags loses the oldest.
    fn ended(&self) -> broadcast::Receiver<Ended>;
}
