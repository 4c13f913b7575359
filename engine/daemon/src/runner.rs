//! Executes one attempt at a rollout, in phases: link ([`attempt`]), configure, run, close, score, finish.
//!
//! [`Runner::run`] always returns, under the limits of the rollout; it retries rewards, never an attempt, and
//! decides nothing about groups. To the store it writes that the attempt started, and blobs; what it returns is the one event
//! that the scheduler is sent. How an attempt
//! ended is [`classify`]'s word alone.

mod absent;
mod again;
mod asking;
mod attempt;
mod changes;
mod generator;
mod group;
mod judge;
mod patch;
mod record;
pub mod sandboxes;
mod score;

pub(crate) use again::ScoredAgain;
pub(crate) use generator::{RunGenerator, statistics};

use crate::scheduler::{AttemptStart, MissingPart};
use attempt::Linked;
use espalier_core::attempt::Draft;
use espalier_core::breaker::PluginReport;
use espalier_core::ending::{
    AGENT_FAILED, Ending, Evidence, HarnessEnd, Lost, Outcome, Report, Scored, Status, StopReason, classify,
};
use espalier_core::failure::Failure;
use espalier_core::group::GroupsConfig;
use espalier_core::judge::JudgeConfig;
use espalier_core::ledger;
use espalier_core::limits::Limits;
use espalier_core::plugin_failure::PluginFailure;
use espalier_core::rollout::AttemptOutcome;
use espalier_core::samples::TokenSums;
use espalier_core::seed::{Purpose, SeedScope};
use espalier_core::signal::RewardConfig;
use espalier_core::task::{Task, TaskView};
use espalier_core::trajectory::{AttemptRecord, LogLine, LogSource};
use espalier_engine_browser::RunBrowsers;
use espalier_inference::models::Model;
use espalier_plugin::{HARNESS_EXPORT, HarnessOutcome, Job, JobClock, Plugin, PluginHost};
use espalier_services::RunServices;
use espalier_store::{AttemptStarted, IssuedBlob, RunWriter, StoreError, ids};
use sandboxes::RunSandboxes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A plugin with the name and settings that an experiment gives it.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Its name in samples, tables and `reward_parts`.
    pub alias: String,
    /// The component.
    pub plugin: Arc<Plugin>,
    /// JSON text, checked and with defaults filled in.
    pub settings: String,
}

/// What all rollouts of a group share.
#[derive(Debug)]
pub struct GroupContext {
    /// Place in the run.
    pub group_index: u64,
    /// The task.
    pub task: Arc<Task>,
    /// The task with its private part: what its environments are shown.
    pub whole_task: Arc<TaskView>,
    /// Which pass over the task set, from 0.
    pub repeat: u32,
    /// Rollouts; `None`: as `[groups]` says.
    pub size: Option<u32>,
    /// The server that the policy is called at; `None`: any of its own.
    pub endpoint: Option<String>,
    /// Experiment over task over default.
    pub limits: Limits,
    /// Drives the turns.
    pub harness: Loaded,
    /// The simulated world, where there is one.
    pub environment: Option<Loaded>,
    /// In the order of `[[judges]]`.
    pub judges: Vec<Loaded>,
    /// In the order of `[[rewards]]`, then of `[[group_rewards]]`.
    pub rewards: Vec<Loaded>,
    /// Digests by alias.
    pub digests: BTreeMap<String, String>,
    /// When the group opened, ms since 1970: what the clock of its environments says, so that they start alike.
    pub opened_ms: u64,
    /// When it closes with what is there, ms since 1970.
    pub deadline_ms: Option<u64>,
}

impl GroupContext {
    /// Time until its deadline; `None`: it has none.
    pub fn time_left(&self) -> Option<Duration> {
        self.deadline_ms.map(|deadline| Duration::from_millis(deadline.saturating_sub(now_ms())))
    }

    /// The longest time that a harness may take now: the rollout's own, or what is left of the group's.
    pub fn wall(&self) -> Duration {
        let left = self.time_left().unwrap_or(Duration::MAX).max(Duration::from_millis(1));
        self.limits.rollout_wall.min(left)
    }
}

/// Executes attempts. One for each run.
pub struct Runner {
    /// Runs guests.
    pub host: PluginHost,
    /// The run's place in the store.
    pub run: RunWriter,
    /// Opened and tried.
    pub models: Arc<BTreeMap<String, Arc<Model>>>,
    /// The model that is trained: [`RolloutContext::policy`](espalier_inference::models::RolloutContext::policy).
    pub policy: String,
    /// The experiment's seed.
    pub seed: u64,
    /// `[groups]`.
    pub groups: GroupsConfig,
    /// `[[judges]]`.
    pub judges: Vec<JudgeConfig>,
    /// `[[rewards]]`, then `[[group_rewards]]`.
    pub rewards: Vec<RewardConfig>,
    /// Whether arguments and replies of the harness's calls are kept.
    pub record_calls: bool,
    /// Whether the harness sees the private part of the task.
    pub private_task: bool,
    /// Makes sandboxes, where experiment or tasks speak of any.
    pub sandboxes: Option<Arc<RunSandboxes>>,
    /// Opens browsers, where experiment or tasks speak of any.
    pub browsers: Option<Arc<RunBrowsers>>,
    /// What `[services]` has.
    pub services: Arc<RunServices>,
}

/// What an attempt left.
#[derive(Debug)]
pub struct Finished {
    /// All that is kept of it.
    pub record: AttemptRecord,
    /// Blobs that it may read.
    pub blobs: Vec<IssuedBlob>,
    /// How it ended, for the scheduler.
    pub outcome: AttemptOutcome,
    /// When it ended, ms since 1970.
    pub ended_ms: u64,
    /// What the harness asked for and the experiment does not have.
    pub missing: Option<MissingPart>,
    /// What its plugins did, for the circuit breaker.
    pub plugins: PluginReport,
    /// Where it was scored again: the sums of its tokens before.
    pub scored_again: Option<TokenSums>,
}

/// The names and seeds of one attempt.
pub(crate) struct Names {
    pub(crate) traj_id: String,
    pub(crate) rollout_id: i64,
    pub(crate) session_id: Arc<str>,
}

impl Runner {
    /// Executes one attempt and returns what it left, scored where its ending is.
    ///
    /// Bounded by `limits.rollout_wall` with its grace, then by `limits.scoring_wall` for each try of each reward.
    /// `start.cancel` cuts it: what it returns then ended as `cancelled`.
    pub async fn run(&self, group: &GroupContext, start: &AttemptStart) -> Finished {
        let began = Instant::now();
        let names = self.names(group, start);
        let linked = self.link(group, start, &names);
        let policy = self.models.get(&self.policy).zip(group.endpoint.as_deref());
        let _pinned = policy.map(|(model, url)| model.pin(&names.session_id, url));
        let mut draft = Draft::empty(Ending { stop_reason: StopReason::Cancelled, error: None }, now_ms());
        if let Err(error) = self.run.attempt_started(started(start, &names)).await {
            draft.ending = classify(&Evidence {
                cancelled: start.cancel.is_cancelled(),
                harness: HarnessEnd::Returned(Err(Failure::Unavailable(error.to_string()))),
                lost: Some(Lost::Infrastructure(format!("store: {error}"))),
                wall: false,
                turn_wall: false,
                agent: None,
            });
            return self.finish(group, start, &names, draft, &linked);
        }
        let job = self.configure(group, start, &linked);
        draft.boot = began.elapsed();
        let outcome = Box::pin(self.host.run_harness(job, group.task.view(self.private_task))).await;
        // On the heap only once they are due: a rollout is parked in its harness most of its life.
        Box::pin(self.close(group, start, &linked, outcome, &mut draft)).await;
        if self.is_scored(draft.ending.stop_reason) {
            if self.keeps_patches() {
                Box::pin(self.keep_patch(group, start, &linked.scoring, &mut draft)).await;
            }
            let scoring = Instant::now();
            let none = again::Scores::default();
            Box::pin(self.score(group, start, &names, &mut draft, &linked.scoring, &none)).await;
            if self.keeps_changes() {
                Box::pin(self.keep_changes(group, start, &linked.scoring, &mut draft)).await;
            }
            draft.score_time = scoring.elapsed();
        }
        self.finish(group, start, &names, draft, &linked)
    }

    /// The call of the harness.
    fn configure(&self, group: &GroupContext, start: &AttemptStart, linked: &Linked) -> Job {
        Job {
            plugin: Arc::clone(&group.harness.plugin),
            alias: group.harness.alias.clone(),
            settings: group.harness.settings.clone(),
            capabilities: linked.harness.clone(),
            meter: Arc::clone(&linked.meter),
            wall: group.wall(),
            clock: JobClock::Runs { start_ms: now_ms() },
            seed: self.scope(group, start).seed(Purpose::Harness, 0),
            record_calls: self.record_calls,
            cancel: start.cancel.clone(),
        }
    }

    /// The harness has ended: closes what it used, and says how the attempt ended.
    async fn close(
        &self,
        group: &GroupContext,
        start: &AttemptStart,
        linked: &Linked,
        outcome: HarnessOutcome,
        draft: &mut Draft,
    ) {
        let cancelled = start.cancel.is_cancelled();
        if self.private_task {
            draft.logs.push(granted(&group.harness.alias));
        }
        draft.logs.extend(outcome.logs);
        draft.log_bytes_dropped = outcome.log_bytes_dropped;
        draft.host_calls = outcome.host_calls;
        if let HarnessEnd::Returned(Ok(report)) = &outcome.end {
            draft.report = Some(report.clone());
            draft.plugins.serve(group.harness.plugin.digest(), HARNESS_EXPORT);
        }
        linked.parts.close(draft).await;
        draft.add_time_of_machines();
        let evidence = Evidence {
            cancelled,
            harness: outcome.end,
            lost: linked.parts.lost(),
            wall: outcome.wall,
            turn_wall: outcome.turn_wall,
            agent: linked.proxy.as_ref().map(|proxy| proxy.calls()),
        };
        draft.ending = classify(&evidence);
        if let HarnessEnd::Returned(Err(Failure::Other { code, text })) = &evidence.harness
            && code == AGENT_FAILED
            && draft.ending.stop_reason.row().status != Status::Failed
        {
            draft.report = Some(agent_failed(text));
        }
        match draft.ending.stop_reason {
            // The harness fails because the environment did.
            StopReason::EnvironmentFailure => {}
            stop_reason if stop_reason.row().status == Status::Failed => {
                let own = outcome.failure.map(|failure| *failure).map(|failure| {
                    // A harness that fails because something else did is not at fault.
                    let excused = failure.excused || evidence.lost.is_some() || cancelled;
                    PluginFailure { excused, ..failure }
                });
                draft.plugins.failures.splice(0..0, own);
            }
            _ => draft.plugins.failures.clear(),
        }
        draft.ended_ms = now_ms();
    }

    fn is_scored(&self, stop_reason: StopReason) -> bool {
        match stop_reason.row().scored {
            Scored::Yes => true,
            Scored::IfTimeExceededIsScored => self.groups.score_time_exceeded,
            Scored::No => false,
        }
    }

    fn names(&self, group: &GroupContext, start: &AttemptStart) -> Names {
        let (run_id, rollout_index) = (self.run.run_id(), start.rollout.rollout_index);
        let session_id = format!("{}.r{rollout_index}", ids::group_id(run_id, group.group_index));
        Names {
            traj_id: ids::traj_id(run_id, group.group_index, rollout_index, start.key.attempt),
            rollout_id: ids::rollout_id(group.group_index, rollout_index),
            session_id: session_id.into(),
        }
    }

    fn scope<'a>(&self, group: &'a GroupContext, start: &AttemptStart) -> SeedScope<'a> {
        SeedScope {
            run_seed: self.seed,
            task: &group.task.id,
            task_seed: group.task.seed,
            repeat: group.repeat,
            rollout_index: start.rollout.rollout_index,
        }
    }

    /// Lets every capability leave what the record keeps, and puts the record together.
    fn finish(
        &self,
        group: &GroupContext,
        start: &AttemptStart,
        names: &Names,
        mut draft: Draft,
        linked: &Linked,
    ) -> Finished {
        linked.parts.finish(&mut draft);
        let missing = linked.absent.missing_part(&linked.models);
        Finished { missing, ..self.finished(group, start, names, draft, linked.scoring.blobs.issued()) }
    }

    fn finished(
        &self,
        group: &GroupContext,
        start: &AttemptStart,
        names: &Names,
        draft: Draft,
        blobs: Vec<IssuedBlob>,
    ) -> Finished {
        let outcome = AttemptOutcome {
            stop_reason: draft.ending.stop_reason,
            reward: draft.signal.reward,
            removed: draft.signal.removed.is_some(),
        };
        let (ended_ms, plugins) = (draft.ended_ms, draft.plugins.clone());
        let mut record = draft.into_record(record::place(group, start, names));
        if let Some(why) = record.trajectory.removed.take() {
            ledger::remove(&mut record.trajectory, &why);
        } else if record.trajectory.trainable && outcome.reward.is_none() {
            // It trains once it has a reward: what else keeps tokens back is kept apart.
            ledger::withhold(&mut record.trajectory, ledger::reason::NOT_TRAINABLE);
            record.withheld = true;
        }
        record.seed = self.record_calls.then(|| self.scope(group, start).seed(Purpose::Harness, 0));
        Finished { record, blobs, outcome, ended_ms, missing: None, plugins, scored_again: None }
    }

    /// What is kept of an attempt that left nothing: a panic of the engine, or no word by its deadline.
    pub fn nothing_left(
        &self,
        group: &GroupContext,
        start: &AttemptStart,
        outcome: AttemptOutcome,
        why: String,
    ) -> Finished {
        let ending = Ending { stop_reason: outcome.stop_reason, error: Some(why) };
        let finished = self.finished(
            group,
            start,
            &self.names(group, start),
            Draft::empty(ending, now_ms()),
            Vec::new(),
        );
        Finished { outcome, ..finished }
    }

    /// Notes that an attempt started, where that may not have been done.
    pub(crate) async fn ensure_started(
        &self,
        group: &GroupContext,
        start: &AttemptStart,
    ) -> Result<(), StoreError> {
        self.run.attempt_started(started(start, &self.names(group, start))).await
    }
}

/// What rewards are shown of an agent that failed and still counts.
fn agent_failed(text: &str) -> Report {
    let data: serde_json::Value = serde_json::from_str(text).unwrap_or_else(|_| text.into());
    Report { outcome: Outcome::GaveUp, answer: None, data: data.to_string(), extra: None }
}

fn started(start: &AttemptStart, names: &Names) -> AttemptStarted {
    AttemptStarted {
        group_index: start.rollout.group_index,
        rollout_index: start.rollout.rollout_index,
        attempt: start.key.attempt,
        session_id: names.session_id.as_ref().to_owned(),
        started_ms: now_ms(),
    }
}

fn granted(alias: &str) -> LogLine {
    LogLine {
        at_us: 0,
        plugin: alias.to_owned(),
        source: LogSource::Info,
        text: "granted by the experiment: private-task".to_owned(),
        fields: None,
        turn: None,
        call: None,
    }
}

/// Now, ms since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
