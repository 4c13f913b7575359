//! Executes one attempt at a rollout: meter, models, environment, harness; then the ending, the scores, the record.
//!
//! [`Runner::run`] always returns, under the limits of the rollout; it retries rewards, never an attempt, and
//! decides nothing about groups. To the store it writes that the attempt started, and blobs; what it returns is the one event
//! that the scheduler is sent. How an attempt
//! ended is [`classify`]'s word alone.

mod absent;
mod again;
mod patch;
mod record;
pub mod sandboxes;
mod score;

pub(crate) use again::ScoredAgain;

use crate::scheduler::{AttemptStart, MissingPart};
use espalier_core::breaker::PluginReport;
use espalier_core::ending::{Ending, Evidence, HarnessEnd, Lost, Scored, Status, StopReason, classify};
use espalier_core::failure::Failure;
use espalier_core::group::GroupsConfig;
use espalier_core::host::sandbox::Sandboxes as SandboxesOfRollout;
use espalier_core::host::{Blobs, Capabilities, Environments, Models};
use espalier_core::ledger::{self, Trainability};
use espalier_core::limits::Limits;
use espalier_core::meter::Meter;
use espalier_core::plugin_failure::PluginFailure;
use espalier_core::rollout::AttemptOutcome;
use espalier_core::samples::TokenSums;
use espalier_core::seed::{Purpose, SeedScope};
use espalier_core::signal::RewardConfig;
use espalier_core::task::{Task, TaskId, TaskView};
use espalier_core::trajectory::{AttemptRecord, LogLine, LogSource};
use espalier_inference::models::{Model, RolloutContext, RolloutModels};
use espalier_plugin::{EnvironmentRun, HARNESS_EXPORT, HarnessOutcome, HarnessRun, Plugin, PluginHost};
use espalier_sandbox::rollout::{Provider, RolloutSandboxes};
use espalier_store::{AttemptStarted, IssuedBlob, RolloutBlobs, RunWriter, StoreError, ids};
use sandboxes::{AttemptSandboxes, RunSandboxes, Stage};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

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
    /// Experiment over task over default.
    pub limits: Limits,
    /// Drives the turns.
    pub harness: Loaded,
    /// The simulated world, where there is one.
    pub environment: Option<Loaded>,
    /// In the order of `[[rewards]]`.
    pub rewards: Vec<Loaded>,
    /// Digests by alias.
    pub digests: BTreeMap<String, String>,
    /// When the group opened, ms since 1970: what the clock of its environments says, so that they start alike.
    pub opened_ms: u64,
}

/// Executes attempts. One for each run.
pub struct Runner {
    /// Runs guests.
    pub host: PluginHost,
    /// The run's place in the store.
    pub run: RunWriter,
    /// Opened and tried.
    pub models: Arc<BTreeMap<String, Arc<Model>>>,
    /// Whose tokens train.
    pub group_model: String,
    /// The experiment's seed.
    pub seed: u64,
    /// `[groups]`.
    pub groups: GroupsConfig,
    /// `[[rewards]]`.
    pub rewards: Vec<RewardConfig>,
    /// Whether arguments and replies of the harness's calls are kept.
    pub record_calls: bool,
    /// Whether the harness sees the private part of the task.
    pub private_task: bool,
    /// Makes sandboxes, where experiment or tasks speak of any.
    pub sandboxes: Option<Arc<RunSandboxes>>,
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

/// What a rollout's rewards are lent of it.
#[derive(Clone, Copy)]
pub(crate) struct ScoringResources<'a> {
    pub(crate) blobs: &'a Arc<RolloutBlobs>,
    pub(crate) sandboxes: Option<&'a Arc<RolloutSandboxes>>,
    pub(crate) provider: Option<&'a AttemptSandboxes>,
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
        let meter = Arc::new(Meter::new(group.limits.clone()));
        let blobs = self.run.rollout_blobs(Arc::clone(&meter));
        let models = RolloutModels::new(Arc::clone(&self.models), self.context(group, start, &names, &meter));
        if let Err(error) = self.run.attempt_started(started(start, &names)).await {
            let lost = Lost::Infrastructure(format!("store: {error}"));
            let harness = HarnessEnd::Returned(Err(Failure::Unavailable(error.to_string())));
            let cancelled = start.cancel.is_cancelled();
            let evidence = Evidence {
                cancelled,
                harness,
                lost: Some(lost),
                environment_failure: None,
                wall: false,
                turn_wall: false,
            };
            let draft = record::Draft::empty(classify(&evidence));
            return self.finish(group, start, &names, draft, &models, &blobs);
        }
        let environment = group.environment.as_ref().map(|loaded| {
            self.host.environment(EnvironmentRun {
                plugin: Arc::clone(&loaded.plugin),
                alias: loaded.alias.clone(),
                task: Arc::clone(&group.whole_task),
                settings: loaded.settings.clone(),
                seed: self.scope(group, start).seed(Purpose::Environment, 0),
                start_ms: group.opened_ms,
                meter: Arc::clone(&meter),
            })
        });
        let makers = self.sandboxes.as_ref().filter(|makers| makers.are_there_for(&group.task));
        let provider = makers.map(|makers| {
            let stage = Stage::Harness { again: !start.last };
            let (makers, task) = (Arc::clone(makers), Arc::clone(&group.task));
            Arc::new(AttemptSandboxes::new(makers, task, names.traj_id.clone(), start.level, stage))
        });
        let sandboxes = provider.clone().map(|provider| {
            Arc::new(RolloutSandboxes::new(
                provider as Arc<dyn Provider>,
                Arc::clone(&blobs) as Arc<dyn Blobs>,
            ))
        });
        let asked = Arc::new(models.clone()) as Arc<dyn Models>;
        let asked = match (makers, &sandboxes) {
            (Some(makers), Some(sandboxes)) => makers.models(asked, sandboxes),
            _ => asked,
        };
        let absent = Arc::new(absent::NoEnvironment::default());
        let mut run = HarnessRun {
            plugin: Arc::clone(&group.harness.plugin),
            alias: group.harness.alias.clone(),
            task: group.task.view(self.private_task),
            settings: group.harness.settings.clone(),
            capabilities: Capabilities {
                models: Some(asked),
                environments: environment.clone().map(|environment| environment as Arc<dyn Environments>),
                blobs: Some(Arc::clone(&blobs) as Arc<dyn Blobs>),
                sandboxes: sandboxes.clone().map(|sandboxes| sandboxes as Arc<dyn SandboxesOfRollout>),
            },
            meter,
            seed: self.scope(group, start).seed(Purpose::Harness, 0),
            start_ms: now_ms(),
            record_calls: self.record_calls,
            cancel: start.cancel.clone(),
        };
        run.capabilities.environments.get_or_insert_with(|| Arc::clone(&absent) as Arc<dyn Environments>);
        let boot = began.elapsed();
        let harness: HarnessOutcome = Box::pin(self.host.run_harness(run)).await;
        let cancelled = start.cancel.is_cancelled();
        let mut draft = record::Draft::empty(Ending { stop_reason: StopReason::Cancelled, error: None });
        let mut environment_failure = None;
        if let Some(environment) = &environment {
            environment.close().await;
            environment_failure = environment.failure();
            draft.steps = environment.steps();
            draft.env_ms = environment.env_ms();
            draft.logs = environment.logs();
            draft.log_bytes_dropped = environment.log_bytes_dropped();
        }
        draft.report = match &harness.end {
            HarnessEnd::Returned(Ok(report)) => Some(report.clone()),
            _ => None,
        };
        let mut failures: Vec<PluginFailure> = harness.failure.map(|failure| *failure).into_iter().collect();
        if draft.report.is_some() {
            draft.report_of_plugins.serve(group.harness.plugin.digest(), HARNESS_EXPORT);
        }
        let evidence = Evidence {
            cancelled,
            harness: harness.end,
            lost: models.lost().or_else(|| sandboxes.as_ref().and_then(|sandboxes| sandboxes.lost())),
            environment_failure,
            wall: harness.wall,
            turn_wall: harness.turn_wall,
        };
        draft.ending = classify(&evidence);
        // A harness that fails because something else did is not at fault.
        let elsewhere = evidence.lost.is_some() || evidence.environment_failure.is_some();
        failures.iter_mut().for_each(|failure| failure.excused |= elsewhere || cancelled);
        if draft.ending.stop_reason == StopReason::EnvironmentFailure {
            failures.clear();
        }
        if let (Some(environment), Some(loaded)) = (&environment, &group.environment) {
            failures.extend(environment.plugin_failure());
            for export in environment.served() {
                draft.report_of_plugins.serve(loaded.plugin.digest(), &export);
            }
        }
        if matches!(draft.ending.stop_reason.row().status, Status::Failed) {
            draft.report_of_plugins.failures = failures;
        }
        draft.host_calls = harness.host_calls;
        draft.logs.splice(0..0, harness.logs);
        draft.log_bytes_dropped += harness.log_bytes_dropped;
        draft.boot = boot;
        if self.private_task {
            draft.logs.insert(0, granted(&group.harness.alias));
        }
        draft.ended_ms = now_ms();
        if self.is_scored(draft.ending.stop_reason) {
            let resources = ScoringResources {
                blobs: &blobs,
                sandboxes: sandboxes.as_ref(),
                provider: provider.as_deref(),
            };
            if self.keeps_patches() {
                self.keep_patch(group, start, &resources, &mut draft).await;
            }
            let scoring = Instant::now();
            let turns = models.policy_turns();
            let none = again::Scores::default();
            self.score(group, start, &names, &mut draft, (models.transcript(), turns), &resources, &none)
                .await;
            draft.score = scoring.elapsed();
        }
        draft.sandboxes = provider.map(|provider| provider.made()).unwrap_or_default();
        let finished = self.finish(group, start, &names, draft, &models, &blobs);
        Finished { missing: absent.missing_part(&models), ..finished }
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

    fn context(
        &self,
        group: &GroupContext,
        start: &AttemptStart,
        names: &Names,
        meter: &Arc<Meter>,
    ) -> RolloutContext {
        let (run_seed, attempt, repeat) = (self.seed, start.key.attempt, group.repeat);
        let (task, rollout_index) = (Arc::clone(&group.task), start.rollout.rollout_index);
        let seed = move |n| {
            let (task, task_seed): (&TaskId, _) = (&task.id, task.seed);
            let scope = SeedScope { run_seed, task, task_seed, repeat, rollout_index };
            scope.seed(Purpose::Sampling { attempt }, n)
        };
        RolloutContext {
            group_model: self.group_model.clone(),
            traj_id: names.traj_id.clone(),
            session_id: Arc::clone(&names.session_id),
            meter: Arc::clone(meter),
            seed: Box::new(seed),
            sent: None,
        }
    }

    /// Settles who trains, and puts the record together.
    fn finish(
        &self,
        group: &GroupContext,
        start: &AttemptStart,
        names: &Names,
        draft: record::Draft,
        models: &RolloutModels,
        blobs: &RolloutBlobs,
    ) -> Finished {
        let stop_reason = draft.ending.stop_reason;
        let reward = draft.signal.reward;
        let would_train = stop_reason.row().trainable && models.is_trainable();
        let trainability = if would_train { Trainability::Trainable } else { Trainability::NotTrainable };
        let ended_ms = draft.ended_ms;
        let plugins = draft.report_of_plugins.clone();
        let mut record = draft.into_record(group, start, names, models.finish(trainability), would_train);
        if would_train && reward.is_none() {
            // It trains once it has a reward: what else keeps tokens back is kept apart.
            ledger::withhold(&mut record.trajectory, ledger::reason::NOT_TRAINABLE);
            record.withheld = true;
        }
        let outcome = AttemptOutcome { stop_reason, reward };
        let (blobs, missing, scored_again) = (blobs.issued(), None, None);
        Finished { record, blobs, outcome, ended_ms, missing, plugins, scored_again }
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
        let names = self.names(group, start);
        let output = espalier_core::trajectory::ModelOutput::default();
        let draft = record::Draft::empty(ending);
        let ended_ms = draft.ended_ms;
        let record = draft.into_record(group, start, &names, output, false);
        let (blobs, plugins) = (Vec::new(), PluginReport::default());
        Finished { record, blobs, outcome, ended_ms, missing: None, plugins, scored_again: None }
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
