//! What the scheduler stands on: who opens groups, runs attempts and writes records, and the words between them.
//!
//! The runner and the store are behind [`SchedulerBackend`] in the engine, a simulation with seeded faults in the tests.

use super::source::SourceFailed;
use crate::engine::EngineError;
use async_trait::async_trait;
use espalier_core::breaker::{PluginReport, Tripped};
use espalier_core::group::{GroupReward, Verdict};
use espalier_core::rollout::{AttemptKey, AttemptOutcome, Disposition};
use espalier_core::samples::TokenSums;
use espalier_plugin::CancelToken;
use espalier_store::StoreError;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Names a rollout in its run. Ordered, so that earlier groups come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RolloutKey {
    /// Place of the group in the run, from 0.
    pub group_index: u64,
    /// Place in the group, from 0.
    pub rollout_index: u32,
}

/// One attempt to be run.
#[derive(Clone, Debug)]
pub struct AttemptStart {
    /// Whose attempt.
    pub rollout: RolloutKey,
    /// Which.
    pub key: AttemptKey,
    /// Levels of memory above what its sandboxes have at first: as many as earlier attempts ran out of it.
    pub level: u32,
    /// Whether no attempt follows this one, however it ends.
    pub last: bool,
    /// Whether the attempt has a record and is only to be scored again.
    pub score_again: bool,
    /// How long the rollout waited for its permit.
    pub queued: Duration,
    /// Fires when the attempt must come to an end: imports fail as cancelled, and the ending is `cancelled`.
    pub cancel: CancelToken,
}

/// Why attempts cannot come to anything now, as found out by one that did not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunBlocker {
    /// A model's server does not answer. Believed when a rollout has used up its attempts: it may come back.
    Away {
        /// The experiment's name of it.
        model: String,
        /// What its server did.
        why: String,
    },
    /// A model will not answer before somebody changes something.
    Unusable {
        /// The experiment's name of it.
        model: String,
        /// What its server said.
        why: String,
    },
    /// The harness failed for want of a part that the experiment does not have.
    Missing(MissingPart),
}

/// A part that a harness asked for and the engine does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MissingPart {
    /// `[environment]`.
    Environment,
    /// `[browser]`.
    Browser,
    /// `[models.NAME]`.
    Model(String),
}

/// The one event that a runner sends for each attempt.
#[derive(Debug)]
pub struct AttemptEnded<R> {
    /// Whose attempt.
    pub rollout: RolloutKey,
    /// Which.
    pub key: AttemptKey,
    /// How it ended.
    pub outcome: AttemptOutcome,
    /// What it left; `None` where it left nothing (a panic, or no word by its deadline).
    pub record: Option<R>,
    /// Why there is no record.
    pub lost: Option<String>,
    /// Why the next attempts would end like this one, where they would.
    pub blocker: Option<RunBlocker>,
    /// What its plugins did.
    pub plugins: PluginReport,
    /// It was to be scored again, and must be sampled again instead.
    pub sample_again: bool,
    /// When it was sent: for the lag.
    pub sent_at: Instant,
}

/// The way back to the scheduler.
#[derive(Debug)]
pub struct Outbox<R>(mpsc::Sender<AttemptEnded<R>>);

impl<R> Clone for Outbox<R> {
    fn clone(&self) -> Self {
        Outbox(self.0.clone())
    }
}

impl<R> Outbox<R> {
    /// Into an inbox with as many places as there are permits.
    pub(super) fn new(sender: mpsc::Sender<AttemptEnded<R>>) -> Self {
        Outbox(sender)
    }

    /// Sends; waits while the inbox is full. A scheduler that is gone takes nothing: the attempt is cut.
    pub async fn send(&self, ended: AttemptEnded<R>) {
        // An error means that the run is over: nobody is left to tell.
        let _ = self.0.send(ended).await;
    }
}

/// The sums of tokens of a record that was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Token sums of the record.
    pub tokens: TokenSums,
    /// Token sums of the record that it replaced, if it was scored again.
    pub before: TokenSums,
}

/// What scoring the rollouts of a group together came to.
#[derive(Debug)]
pub struct GroupScored<S> {
    /// What each is worth now, by place.
    pub rewards: BTreeMap<u32, GroupReward>,
    /// Their tokens, before and now.
    pub written: Written,
    /// What the plugins did.
    pub plugins: PluginReport,
    /// For [`SchedulerBackend::close_group`].
    pub scores: S,
}

/// What the scheduler stands on.
#[async_trait]
pub trait SchedulerBackend: Send + Sync + 'static {
    /// An open group, with all that its rollouts share (task, plugin versions).
    type Group: Send + Sync + 'static;
    /// What a group is about, as its source gives it.
    type Task: Send + 'static;
    /// What an attempt leaves.
    type Output: Send + 'static;
    /// What scoring the rollouts of a group together leaves, to be written when the group closes.
    type Scores: Send + 'static;

    /// The group at this place is about to be opened; groups are told of in the order in which they begin.
    fn opening(&self, _group_index: u64) {}
    /// Opens the group at this place for a task, durably. `None`: an earlier session has opened it, and it keeps what it was
    /// opened with.
    async fn open_group(&self, group_index: u64, task: Option<Self::Task>) -> Result<Self::Group, Fatal>;
    /// Runs one attempt and sends exactly one [`AttemptEnded`], also when it is cancelled.
    async fn run_attempt(&self, group: Arc<Self::Group>, start: AttemptStart, outbox: Outbox<Self::Output>);
    /// The longest an attempt may take, scoring included, until it is given up.
    fn attempt_deadline(&self, group: &Self::Group) -> Duration;

    /// Rollouts that the task of the group asks for; `None`: as many as `[groups]` says.
    fn size(&self, _group: &Self::Group) -> Option<u32> {
        None
    }
    /// How long the group may still wait for its rollouts; `None`: as long as they take.
    fn time_left(&self, group: &Self::Group) -> Option<Duration>;
    /// The task of a group, for the circuit breaker.
    fn task(&self, group: &Self::Group) -> String;
    /// Writes an attempt's record, durably; gives the sums of its tokens.
    async fn store_attempt(
        &self,
        group: Arc<Self::Group>,
        ended: AttemptEnded<Self::Output>,
        disposition: Disposition,
    ) -> Result<Written, Fatal>;
    /// Whether rewards see the rollouts of this group together.
    fn scores_together(&self, group: &Self::Group) -> bool;
    /// The longest that this may take, until the run counts as stuck.
    fn group_scoring_deadline(&self, group: &Self::Group) -> Duration;
    /// Lets the rewards of the group see these rollouts, whose records are durable. Writes nothing. `None`: it was cancelled.
    async fn score_group(
        &self,
        group: Arc<Self::Group>,
        rollouts: Vec<u32>,
        cancel: CancelToken,
    ) -> Result<Option<GroupScored<Self::Scores>>, Fatal>;
    /// Writes what became of a group, durably, and with it what its rollouts were scored together.
    async fn close_group(
        &self,
        group: Arc<Self::Group>,
        verdict: Verdict,
        scores: Option<Self::Scores>,
    ) -> Result<(), Fatal>;
}

/// Why the run cannot go on. Nothing durable is lost: the same command resumes.
#[derive(Debug, thiserror::Error)]
pub enum Fatal {
    /// Another process has the run now: this one must not write any more.
    #[error("another engine has taken this run over: {0}")]
    Fenced(String),
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
    /// A group could not be opened: a plugin could not be loaded any more.
    #[error(transparent)]
    Opening(Box<EngineError>),
    /// No attempt can come to anything now.
    #[error("no rollout can come to anything: {0:?}")]
    Blocked(RunBlocker),
    /// A plugin fails again and again in the same way.
    #[error("{0}")]
    PluginFails(Box<Tripped>),
    /// The source of tasks failed; what had begun has ended.
    #[error(transparent)]
    Tasks(SourceFailed),
    /// A task of the engine panicked or did not end.
    #[error("{0}")]
    Engine(String),
}
