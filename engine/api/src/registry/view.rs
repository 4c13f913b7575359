//! A sandbox as its owner sees it.

use super::{Entry, EntryState, LabelRecord};
use crate::problem::{Code, Problem};
use espalier_core::sandbox::Network;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// How a sandbox stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SandboxState {
    /// It is being made.
    Creating,
    /// It takes calls.
    Running,
    /// It could not be made.
    Failed,
    /// It is over; shown for some minutes.
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

/// What a sandbox may reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected `none`, `loopback`, or a list of `HOST:PORT` rules")]
pub enum Reaches {
    /// `none`: nothing. `loopback`: its own 127.0.0.1.
    Word(ReachesWord),
    /// Its own 127.0.0.1, and these through a proxy: `HOST:PORT`, `*.DOMAIN:PORT` or `ADDRESS/BITS:PORT`.
    Allow(Vec<String>),
}

/// What needs no list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReachesWord {
    /// Nothing, its own 127.0.0.1 neither.
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

/// Why a sandbox could not be made.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Failure {
    /// Which kind of problem.
    pub code: Code,
    /// What happened.
    pub detail: String,
    /// What to do about it.
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
    /// Its id, for this key.
    pub id: String,
    /// The client's name for it.
    pub name: Option<String>,
    /// How it stands.
    pub state: SandboxState,
    /// What its file system started as.
    pub image: String,
    /// The client's.
    pub labels: BTreeMap<String, String>,
    /// Milliseconds since 1970.
    pub created_ms: u64,
    /// When its life ends, in milliseconds since 1970.
    pub expires_ms: u64,
    /// Silence that ends it, in seconds.
    pub idle_s: Option<f64>,
    /// Cores.
    pub cpu: f64,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes that it may write to its file system.
    pub disk: u64,
    /// What it may reach.
    pub network: Reaches,
    /// Who runs commands; null: root, or it does not run.
    pub user: Option<String>,
    /// Where commands start; null where it does not run.
    pub workdir: Option<String>,
    /// Why it could not be made.
    pub error: Option<Failure>,
    /// How it ended.
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
