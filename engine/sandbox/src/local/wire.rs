//! What engine and keeper say to each other: one JSON text a line over a Unix socket. Plain data, known to both.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Spoken by this version; a keeper of another one is refused, and ends with its sandboxes.
pub(crate) const VERSION: u32 = 2;

/// From the engine. Answers carry the same number and may come in another order.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    /// Chosen by the engine, new for each request of a connection.
    pub number: u64,
    /// What is wanted.
    pub what: What,
}

/// What the engine may want.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum What {
    /// Who is there.
    Hello,
    /// Make a sandbox; answered when its agent takes calls.
    Create(Box<Order>),
    /// End a sandbox; answered when nothing of it is left. One that is not there is fine.
    Delete(String),
    /// All there are.
    List,
    /// Keep the file system of a sandbox, stopped meanwhile, under a new id.
    Checkpoint {
        /// Whose.
        sandbox: String,
        /// The new id.
        checkpoint: String,
    },
    /// All checkpoints with their sizes.
    Checkpoints,
    /// Forget a checkpoint.
    DeleteCheckpoint(String),
    /// Add or replace labels.
    Label {
        /// Whose.
        sandbox: String,
        /// What to set.
        labels: BTreeMap<String, String>,
    },
    /// The socket that an allow-listed sandbox's proxy listens on: passed with the answer. It is lent to one connection, until
    /// that is closed; whoever asks meanwhile hears [`Answer::Later`], and has a second answer when their turn comes.
    Door(String),
}

/// From the keeper.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Said {
    /// To a request.
    Answer {
        /// Of the request.
        number: u64,
        /// What came of it.
        answer: Result<Answer, Refusal>,
    },
    /// A sandbox has ended without being asked to.
    Ended {
        /// Which.
        sandbox: String,
        /// How, in words.
        how: String,
    },
}

/// What came of a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    /// Who is there.
    Hello(Hello),
    /// It is done.
    Done,
    /// Somebody else has it; an answer of the same number follows when they have given it back.
    Later,
    /// A sandbox that takes calls.
    Sandbox(Box<Record>),
    /// All sandboxes.
    Sandboxes(Vec<Record>),
    /// A checkpoint that was made.
    Checkpoint(Checkpoint),
    /// All checkpoints.
    Checkpoints(Vec<Checkpoint>),
}

/// What a keeper is and can do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// See [`VERSION`].
    pub version: u32,
    /// Its process id.
    pub pid: u32,
    /// What it can promise of every sandbox.
    pub abilities: Abilities,
}

/// Why nothing came of it.
#[derive(Clone, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Refusal {
    /// What the caller can do.
    pub kind: RefusalKind,
    /// In words, with the value.
    pub text: String,
}

/// See [`Refusal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RefusalKind {
    /// The request makes no sense.
    Invalid,
    /// No such sandbox or checkpoint.
    Unknown,
    /// This machine cannot.
    Unable,
    /// The pool of disks, or the disk below it, is full.
    DiskFull,
    /// Something of the machine failed.
    Failed,
}

impl Refusal {
    /// See [`RefusalKind`].
    pub(crate) fn new(kind: RefusalKind, text: impl Into<String>) -> Refusal {
        Refusal { kind, text: text.into() }
    }

    /// Something of the machine failed.
    pub(crate) fn failed(what: impl std::fmt::Display, error: impl std::fmt::Display) -> Refusal {
        Refusal::new(RefusalKind::Failed, format!("{what}: {error}"))
    }
}

/// A sandbox to make.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// Letters, digits and dashes, up to 40; new.
    pub id: String,
    /// How its root file system is made.
    pub root: Root,
    /// What it may use.
    pub bounds: Bounds,
    /// What it may reach.
    pub network: Reach,
    /// Silence of the engine that ends it.
    pub lease_ms: u64,
    /// Known to the engine and its agent; hex.
    pub secret: String,
    /// Of every command.
    pub environment: Vec<(String, String)>,
    /// For those who look for it.
    pub labels: BTreeMap<String, String>,
}

/// How a root file system is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Root {
    /// Folders of the machine that lie below what the sandbox writes; the first at `/`.
    pub overlays: Vec<Overlay>,
    /// A checkpoint that it starts from, which has the same overlays.
    pub checkpoint: Option<String>,
    /// Files to lock, shared, while it is there.
    pub holds: Vec<PathBuf>,
}

/// Folders that are seen through each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Overlay {
    /// Where in the sandbox.
    pub at: PathBuf,
    /// Lowest first.
    pub lowers: Vec<PathBuf>,
}

/// What a sandbox may use.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Bounds {
    /// Cores.
    pub cpu: f64,
    /// Bytes.
    pub memory: u64,
    /// Bytes written.
    pub disk: u64,
    /// Files made; holds where disks are memory, elsewhere `disk` bounds them.
    pub files_max: u64,
    /// At once.
    pub processes_max: u32,
}

/// What a sandbox may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Reach {
    /// Nothing.
    None,
    /// Its own 127.0.0.1.
    Loopback,
    /// The same, with a proxy at [`PROXY_PORT`] whose socket the engine fetches.
    Proxy,
}

/// Where programs of an allow-listed sandbox find the proxy, on 127.0.0.1.
pub(crate) const PROXY_PORT: u16 = 3128;

/// A sandbox as it is written down: in its folder before it is begun, and again when it runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    /// What was ordered.
    pub order: Order,
    /// Seconds since 1970.
    pub created_s: u64,
    /// First of the 65,536 user ids it has; 0 for an ordinary user's.
    pub ids_from: u32,
    /// Its process 1 as seen from outside, with its start time in clock ticks since boot; 0 before it runs.
    pub pid: u32,
    /// See `pid`. A process id alone never names a process.
    pub started: u64,
    /// Of the machine's boot that `pid` belongs to.
    pub boot: String,
}

/// A kept file system.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Checkpoint {
    /// Its id.
    pub id: String,
    /// Of the sandbox it was made from.
    pub sandbox: String,
    /// What lies below it.
    pub overlays: Vec<Overlay>,
    /// Files to lock, shared, while it is there.
    pub holds: Vec<PathBuf>,
    /// Of that sandbox: environment of commands.
    pub environment: Vec<(String, String)>,
    /// Of that sandbox.
    pub labels: BTreeMap<String, String>,
    /// Seconds since 1970.
    pub created_s: u64,
    /// How long the sandbox was stopped.
    pub frozen_ms: u64,
    /// Where its files lie, as the keeper sees it: a folder `u<n>` for each overlay.
    pub folder: PathBuf,
}

/// What can be promised here; the words are those of `require`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Abilities {
    /// Each promise with whether it holds and, if not, what would make it hold.
    pub promises: BTreeMap<String, Result<(), String>>,
}

impl Abilities {
    /// The first of these that does not hold, with the remedy.
    pub(crate) fn lacking<'a>(&self, wanted: &'a [String]) -> Option<(&'a str, String)> {
        wanted.iter().find_map(|name| match self.promises.get(name) {
            Some(Ok(())) => None,
            Some(Err(remedy)) => Some((name.as_str(), remedy.clone())),
            None => {
                let known: Vec<&str> = self.promises.keys().map(String::as_str).collect();
                Some((name.as_str(), format!("known are {}", known.join(", "))))
            }
        })
    }
}
