//! What the scheduler stands on in the engine: the store, the plugins and the runner.

use super::EngineError;
use super::plan::Plan;
use super::plugins::Plugins;
use crate::experiment::Experiment;
use crate::runner::sandboxes::RunSandboxes;
use crate::runner::{Finished, GroupContext, Runner, now_ms};
use crate::scheduler::{AttemptEnded, AttemptStart, Fatal, Hopeless, Outbox, World};
use async_trait::async_trait;
use espalier_core::ending::StopReason;
use espalier_core::group::Verdict;
use espalier_core::ledger;
use espalier_core::limits::Limits;
use espalier_core::rollout::Fate;
use espalier_core::samples::{GroupKind, TokenSums};
use espalier_store::{AttemptEnd, GroupClosed, GroupOpened, StoreError};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Time of an attempt that no limit counts: start, grace, closing the environment, blobs.
const UNCOUNTED: Duration = Duration::from_secs(120);

pub(super) struct EngineWorld {
    experiment: Arc<Experiment>,
    plan: Arc<Plan>,
    plugins: Plugins,
    runner: Runner,
    /// Groups that were open when the session began, as they were opened.
    opened: BTreeMap<u64, GroupOpened>,
}

impl EngineWorld {
    pub(super) fn new(
        experiment: Arc<Experiment>,
        plan: Arc<Plan>,
        plugins: Plugins,
        runner: Runner,
        opened: BTreeMap<u64, GroupOpened>,
    ) -> Self {
        EngineWorld { experiment, plan, plugins, runner, opened }
    }

    /// What makes its sandboxes.
    pub(super) fn sandboxes(&self) -> Option<Arc<RunSandboxes>> {
        self.runner.sandboxes.clone()
    }

    async fn open(&self, group_index: u64) -> Result<GroupContext, EngineError> {
        let before = self.opened.get(&group_index);
        let slot = self.plan.slot(group_index).ok_or_else(|| {
            EngineError::Engine(format!("group {group_index} has no task; the store knows of more groups"))
        })?;
        let plugins = self.plugins.load(&self.experiment, before.map(|opened| &opened.plugins)).await?;
        let file = &self.experiment.file;
        let limits = Limits::resolve(&file.limits, &slot.task.limits)
            .map_err(|error| EngineError::Engine(format!("task {}: {error}", slot.task.id)))?;
        let digests = plugins.digests();
        let opened_ms = match before {
            Some(opened) => opened.opened_ms,
            None => {
                self.plugins.keep(&plugins).await?;
                let opened_ms = now_ms();
                let own = plugins.environment.as_ref().map(|loaded| loaded.alias.clone());
                let version =
                    self.runner.models.get(&self.runner.group_model).map(|model| {
                        model.info.version.clone().unwrap_or_else(|| model.config.version.clone())
                    });
                let opened = GroupOpened {
                    group_index,
                    kind: GroupKind::Task,
                    model: self.runner.group_model.clone(),
                    parent: None,
                    task_id: slot.task.id.as_str().to_owned(),
                    task_hash: slot.task.hash(),
                    repeat: slot.repeat,
                    environment: slot.task.environment.clone().or(own).unwrap_or_default(),
                    n_requested: file.groups.size,
                    dispatch_version: version.unwrap_or_default(),
                    deadline_ms: None,
                    plugins: digests.clone(),
                    opened_ms,
                };
                self.runner.run.open_group(opened).await?;
                opened_ms
            }
        };
        Ok(GroupContext {
            group_index,
            whole_task: Arc::new(slot.task.view(true)),
            task: slot.task,
            repeat: slot.repeat,
            limits,
            harness: plugins.harness,
            environment: plugins.environment,
            rewards: plugins.rewards,
            digests,
            opened_ms,
        })
    }
}

#[async_trait]
impl World for EngineWorld {
    type Group = GroupContext;
    type Record = Box<Finished>;

    async fn open_group(&self, group_index: u64) -> Result<GroupContext, Fatal> {
        self.open(group_index).await.map_err(|error| match error {
            EngineError::Store(error) => fatal(error),
            other => Fatal::Opening(Box::new(other)),
        })
    }

    async fn run_attempt(
        &self,
        group: Arc<GroupContext>,
        start: AttemptStart,
        outbox: Outbox<Box<Finished>>,
    ) {
        let mut finished = Box::new(self.runner.run(&group, &start).await);
        let hopeless = match finished.outcome.stop_reason {
            StopReason::Infrastructure => self.runner.gone().await,
            StopReason::HarnessFailure | StopReason::GuestTrap => finished.lacks.take().map(Hopeless::Lacks),
            _ => None,
        };
        let (rollout, key, outcome) = (start.rollout, start.key, finished.outcome);
        let sent_at = Instant::now();
        outbox
            .send(AttemptEnded {
                rollout,
                key,
                outcome,
                record: Some(finished),
                lost: None,
                hopeless,
                sent_at,
            })
            .await;
    }

    fn attempt_deadline(&self, group: &GroupContext) -> Duration {
        let tries: u32 = self.runner.rewards.iter().map(|reward| reward.attempts).sum();
        let tries = tries + u32::from(self.runner.keeps_patches());
        group.limits.rollout_wall + group.limits.scoring_wall.saturating_mul(tries) + UNCOUNTED
    }

    async fn store_attempt(
        &self,
        group: Arc<GroupContext>,
        ended: AttemptEnded<Box<Finished>>,
        fate: Fate,
    ) -> Result<TokenSums, Fatal> {
        let AttemptEnded { rollout, key, outcome, record, lost, .. } = ended;
        let mut finished = match record {
            Some(finished) => *finished,
            None => {
                let (queued, cancel) = (Duration::ZERO, espalier_plugin::CancelToken::new());
                let start = AttemptStart { rollout, key, level: 0, last: true, queued, cancel };
                self.runner.ensure_started(&group, &start).await.map_err(fatal)?;
                self.runner.nothing_left(&group, &start, outcome, lost.unwrap_or_default())
            }
        };
        if fate == Fate::Abandoned {
            ledger::abandon(&mut finished.record.trajectory);
        }
        let sums = finished.record.trajectory.token_sums();
        let end = AttemptEnd {
            record: finished.record,
            fate: match fate {
                Fate::Final => espalier_store::Fate::Final,
                Fate::Abandoned => espalier_store::Fate::Abandoned,
            },
            blobs: finished.blobs,
            ended_ms: finished.ended_ms,
        };
        self.runner.run.attempt_ended(end).await.map_err(fatal)?;
        Ok(sums)
    }

    async fn close_group(&self, group: Arc<GroupContext>, verdict: Verdict) -> Result<(), Fatal> {
        let closed = GroupClosed {
            group_index: group.group_index,
            status: verdict.status,
            drop_reason: verdict.drop_reason,
            n_ready: verdict.n_ready,
            replaced: verdict.replaced,
            closed_ms: now_ms(),
        };
        self.runner.run.close_group(closed).await.map_err(fatal)
    }
}

fn fatal(error: StoreError) -> Fatal {
    match error {
        StoreError::Fenced { .. } => Fatal::Fenced(error.to_string()),
        error => Fatal::Store(error),
    }
}
