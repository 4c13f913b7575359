//! A sandbox as its owner sees it.

use super::{Entry, EntryState, LabelRecord};
use crate::problem::{Code, Problem};
use espalier_core::sandbox::Network;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The state of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SandboxState {
    /// It is being created.
    Creating,
    /// It is running and accepts calls.
    Running,
    /// It could not be created.
    Failed,
    /// It has ended; it stays listed for some minutes.
    Ended,
}

impl SandboxState {
    /// As in answers.
    pub(crate) fn word(self) -> &'static str {
        match self {
            SandboxState::Creating => "creating",
            SandboxState::Running => "running",
            SandboxState::Failed => "failed",
            SandboxState::Ended => "ended",
        }
    }

    pub(crate) fn of(state: &EntryState) -> SandboxState {
        match state {
            EntryState::Creating => SandboxState::Creating,
            // Nobody can say otherwise of one that does not answer.
            EntryState::Running(_) | EntryState::Silent(..) => SandboxState::Running,
            EntryState::Failed(..) => SandboxState::Failed,
            EntryState::Ended(..) => SandboxState::Ended,
        }
    }
}

/// What a sandbox may connect to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected `none`, `loopback`, or a list of `HOST:PORT` rules")]
pub enum Reaches {
    /// `none`: nothing, `loopback`: its own 127.0.0.1.
    Word(ReachesWord),
    /// Its own 127.0.0.1, and these addresses through a proxy: `HOST:PORT`, `*.DOMAIN:PORT`, `*:PORT` or `ADDRESS/BITS:PORT`.
    Allow(Vec<String>),
}

/// A network without an allow-list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReachesWord {
    /// No network, not even its own 127.0.0.1.
    None,
    /// Its own 127.0.0.1.
    Loopback,
}

impl From<Network> for Reaches {
    fn from(network: Network) -> Reaches {
        match network {
            Network::None => Reaches::Word(ReachesWord::None),
            Network::Loopback => Reaches::Word(ReachesWord::Loopback),
            Network::Allow(rules) => Reaches::Allow(rules),
        }
    }
}

impl From<Reaches> for Network {
    fn from(reaches: Reaches) -> Network {
        match reaches {
            Reaches::Word(ReachesWord::None) => Network::None,
            Reaches::Word(ReachesWord::Loopback) => Network::Loopback,
            Reaches::Allow(rules) => Network::Allow(rules),
        }
    }
}

/// Why a sandbox could not be created.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Failure {
    /// The kind of problem.
    pub code: Code,
    /// What went wrong.
    pub detail: String,
    /// How to fix it.
    pub hint: Option<String>,
}

impl From<&Problem> for Failure {
    fn from(problem: &Problem) -> Failure {
        Failure { code: problem.code, detail: problem.detail.clone(), hint: problem.hint.clone() }
    }
}

/// A sandbox.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Sandbox)]
pub struct SandboxView {
    /// The id of the sandbox; ids belong to a key.
    pub id: String,
    /// The name given by the client.
    pub name: Option<String>,
    /// The state of the sandbox.
    pub state: SandboxState,
    /// The image or checkpoint it was created from.
    pub image: String,
    /// The labels of the client.
    pub labels: BTreeMap<String, String>,
    /// When it was created, in milliseconds since 1970.
    pub created_ms: u64,
    /// When its lifetime ends, in milliseconds since 1970.
    pub expires_ms: u64,
    /// Seconds without a call after which it is deleted; null: no limit.
    pub idle_s: Option<f64>,
    /// CPU cores.
    pub cpu: f64,
    /// Memory, in bytes.
    pub memory: u64,
    /// Size of its disk, in bytes.
    pub disk: u64,
    /// What it may connect to.
    pub network: Reaches,
    /// The user that runs commands; null: root, or the sandbox is not running.
    pub user: Option<String>,
    /// The folder in which commands start; null if the sandbox is not running.
    pub workdir: Option<String>,
    /// Why it could not be created.
    pub error: Option<Failure>,
    /// How the sandbox ended.
    pub ended: Option<String>,
}

impl Entry {
    /// As its owner sees it.
    pub fn view(&self) -> SandboxView {
        let LabelRecord { id, name, spec, labels, created_ms, expires_ms, idle_s, .. } = self.record();
        let state = self.state.borrow();
        let (user, workdir) = match &*state {
            EntryState::Running(sandbox) => (sandbox.user.clone(), Some(sandbox.workdir.clone())),
            _ => (None, None),
        };
        SandboxView {
            id,
            name,
            state: SandboxState::of(&state),
            image: spec.image,
            labels,
            created_ms,
            expires_ms,
            idle_s,
            cpu: spec.cpu,
            memory: spec.memory,
            disk: spec.disk,
            network: spec.network.into(),
            user,
            workdir,
            error: match &*state {
                EntryState::Failed(problem, _) => Some(problem.into()),
                _ => None,
            },
            ended: match &*state {
                EntryState::Ended(how, _) => Some(how.clone()),
                _ => None,
            },
        }
    }
}
