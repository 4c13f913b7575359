//! One run of an experiment, from its file to its summary: reads the tasks, takes the run's lock, loads plugins, reaches
//! the models, and hands everything to the scheduler.
//!
//! What is wrong with the input is found before the first rollout. Next: `plan` (which task is which group's),
//! `plugins`, `world` (what the scheduler stands on), `lease` (holding the lock).

pub(crate) mod components;
mod lease;
mod mend;
mod parts;
mod plan;
pub(crate) mod plugins;
mod world;

pub(crate) use components::short;
use parts::off_runtime;
pub(crate) use plan::task_lines;

use crate::experiment::{Experiment, ExperimentError};
use crate::progress::{Counts, PluginChange, ProgressSender, Stage};
use crate::runner::now_ms;
use crate::scheduler::{self, Fatal, Hopeless, Lack, Resume, Schedule};
use crate::shutdown::{Stop, StopSignal};
use components::Finder;
use espalier_core::breaker::Tripped;
use espalier_core::ending::StopReason;
use espalier_core::rollout::AttemptOutcome;
use espalier_core::samples::GroupStatus;
use espalier_inference::models::OpenError;
use espalier_plugin::{Compiler, PluginError};
use espalier_store::{
    AttemptState, Causes, Claim, DoAgain, GroupOpened, Holder, RunSpec, RunState, RunWriter, Start, Store,
    StoreError, StoreUrl,
};
use mend::{EarlierGroup, EarlierResult};
use plan::Plan;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use world::EngineWorld;

/// What the command line adds to an experiment file. None of it is part of what the run is.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Folder or URL of the store.
    pub store: String,
    /// Store whose sandboxes are used; usually the same.
    pub sandboxes: String,
    /// Folders of built plugins, searched in this order.
    pub plugin_folders: Vec<PathBuf>,
    /// Folder of compiled plugin code; safe to delete. `None`: it is compiled each time.
    pub plugin_cache: Option<PathBuf>,
    /// Who compiles plugins.
    pub plugin_compiler: Compiler,
    /// Works only on the first so many groups of the run; a later command without it goes on.
    pub limit: Option<u64>,
    /// Starts a fresh run where one of this name exists.
    pub new: bool,
    /// Goes on without the task lines that are rejected.
    pub skip_bad_tasks: bool,
    /// Tells the run to stop.
    pub stop: StopSignal,
    /// How long attempts may go on after the first stop; [`crate::shutdown::DRAIN`].
    pub drain: Duration,
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq)]
pub struct RunSummary {
    /// In the store.
    pub run_id: String,
    /// The experiment's name.
    pub name: String,
    /// How this session ended.
    pub state: RunEnd,
    /// Whether the whole run is done, beyond what `--limit` asked for.
    pub whole: bool,
    /// Tasks that the run takes: `tasks.limit` of those that were read.
    pub tasks: u64,
    /// Tasks of the file.
    pub tasks_read: u64,
    /// Lines of the task file that were rejected.
    pub rejected: Vec<RejectedTask>,
    /// Counters of the whole run, earlier sessions included.
    pub counts: Counts,
    /// Plugins whose components changed in this session, or, where it opened no group, since the run's last one.
    pub plugins_changed: Vec<PluginChange>,
    /// Time of this session.
    pub elapsed: Duration,
    /// Why rollouts have no reward.
    pub causes: Causes,
    /// 99 of 100 events waited no longer than this for the scheduler in this session.
    pub scheduler_lag_p99: Duration,
}

/// How a session of a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// All groups that this command asked for are closed.
    Finished,
    /// It was told to stop; the same command goes on.
    Interrupted,
}

/// A line of the task file that is no task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedTask {
    /// From 1.
    pub line: u64,
    /// The character of the line, from 1, where the fault is in one place.
    pub column: Option<usize>,
    /// Why.
    pub reason: String,
}

/// Runs or resumes an experiment.
///
/// Cancelling the future is as a second stop signal: nothing more is written, the store is sound. Every task that is
/// spawned is owned by this future and aborted with it.
pub async fn run(
    experiment: Experiment,
    options: RunOptions,
    progress: ProgressSender,
) -> Result<RunSummary, EngineError> {
    let began = Instant::now();
    let stage = |stage: Stage| progress.send_modify(|progress| progress.stage = stage);
    stage(Stage::Tasks);
    let plan = Arc::new(read_plan(&experiment, &options).await?);
    progress.send_modify(|progress| {
        progress.tasks = plan.tasks_read();
        progress.tasks_rejected = plan.rejected.len() as u64;
        progress.groups_wanted = wanted(&plan, &options);
    });
    let checked = experiment.clone();
    let file_hash = plan.file_hash.clone();
    let (meaning, record) = off_runtime("the experiment's files", move || {
        checked.check_files()?;
        Ok::<_, ExperimentError>((checked.meaning(&file_hash), checked.record()))
    })
    .await??;
    stage(Stage::Store);
    let url: StoreUrl = options.store.parse()?;
    let mut stop = options.stop.clone();
    let store = tokio::select! {
        store = Store::open(&url) => store?,
        _ = stop.harder_than(Stop::Never) => return Err(EngineError::StoppedEarly),
    };
    let spec = RunSpec {
        name: experiment.file.name.clone(),
        meaning,
        experiment: record,
        engine: env!("CARGO_PKG_VERSION").to_owned(),
        groups_planned: Some(plan.wanted()),
    };
    let start = if options.new { Start::New } else { Start::Resume };
    let claim = claim(&store, &spec, start).await?;
    let lease = lease::hold(claim.run.clone());
    let session =
        Session { experiment: Arc::new(experiment), options, plan, run: claim.run, progress, began };
    let result = Box::pin(session.play(&lease)).await;
    // Whoever lost the lock writes nothing more; all others give it back, so the next command need not wait.
    let state = match &result {
        Ok(summary) => Some(if summary.whole { RunState::Finished } else { RunState::Stopped }),
        Err(EngineError::Store(StoreError::Fenced { .. }) | EngineError::Fenced(_)) => None,
        Err(EngineError::Gone { .. } | EngineError::PluginFails(_)) => Some(RunState::Stopped),
        Err(_) => Some(RunState::Failed),
    };
    drop(lease);
    // A run that was made just now and came to no group would only stand before the one that people mean by its name.
    let discarded = match (&result, claim.resumed) {
        (Err(_), None) if state.is_some() => {
            let discarded = tokio::time::timeout(RELEASE_DEADLINE, session.run.discard()).await;
            matches!(discarded, Ok(Ok(true)))
        }
        _ => false,
    };
    let state = state.filter(|_| !discarded);
    if let Some(state) = state {
        let released = tokio::time::timeout(RELEASE_DEADLINE, session.run.release(state, now_ms())).await;
        if let (Ok(_), Ok(Err(error))) = (&result, released) {
            return Err(error.into());
        }
    }
    session.progress.send_modify(|progress| progress.stage = Stage::Done);
    result
}

/// Takes the run's lock. A run in which no rollout ended means nothing yet: a typing error mended after the first try starts
/// the run that was meant, and is no change of one.
async fn claim(store: &Store, spec: &RunSpec, start: Start) -> Result<Claim, StoreError> {
    let here = Holder::this_process();
    match store.claim_run(spec, &here, start, now_ms()).await {
        Err(StoreError::ChangedMeaning { run_id, .. }) if store.run(&run_id).await?.rollouts.ended == 0 => {
            store.claim_run(spec, &here, Start::New, now_ms()).await
        }
        other => other,
    }
}

/// Plugin instances beside a harness and an environment for each rollout: plugins that describe themselves, rewards of
/// groups, environments that outlive a rollout that was cut.
const INSTANCES_SPARE: u32 = 16;
/// How long giving the lock back may take. It runs out by itself otherwise.
const RELEASE_DEADLINE: Duration = Duration::from_secs(5);

/// What earlier sessions left.
struct Earlier {
    /// For the scheduler.
    resume: Resume,
    /// How each group that is open, or opens again, was opened.
    opened: BTreeMap<u64, GroupOpened>,
    /// Groups that are open or failed, with their results.
    groups: Vec<EarlierGroup>,
    /// Digests by alias of the group that opened last.
    versions: BTreeMap<String, String>,
}

/// Causes told apart at the end of a run.
const CAUSES_MAX: usize = 100;
/// Groups looked at for how many tasks there are: no more than a few tasks are of interest.
const TASKS_LOOKED_AT: usize = 1_000;

struct Session {
    experiment: Arc<Experiment>,
    options: RunOptions,
    plan: Arc<Plan>,
    run: RunWriter,
    progress: ProgressSender,
    began: Instant,
}

impl Session {
    async fn play(&self, lease: &lease::Lease) -> Result<RunSummary, EngineError> {
        let Earlier { mut resume, mut opened, groups: earlier, mut versions } = self.resume().await?;
        let wanted = wanted(&self.plan, &self.options);
        // What `--limit` leaves for later is no reserve: only the whole run replenishes.
        let mut groups = self.experiment.file.groups.clone();
        groups.replenish &= wanted >= self.plan.wanted();
        let filtered = resume.counts.groups_closed.get(&GroupStatus::Filtered).copied().unwrap_or(0);
        let target = if groups.replenish { wanted + filtered } else { wanted }.min(self.plan.available());
        let earlier: Vec<EarlierGroup> =
            earlier.into_iter().filter(|group| !group.failed || group.opened.group_index < target).collect();
        let nothing_left = resume.open.is_empty() && (0..target).all(|index| resume.closed.contains(&index));
        let lost = earlier.iter().any(EarlierGroup::was_lost);
        let failing = earlier.iter().any(EarlierGroup::may_be_mended);
        let all_done = async |resume: Resume| {
            self.progress.send_modify(|progress| progress.counts.clone_from(&resume.counts));
            let whole = resume.closed.len() as u64 >= self.plan.wanted();
            let finder = Finder::new(self.options.plugin_folders.clone(), Some(self.run.store().clone()));
            let now = plugins::digests_now(&finder, &self.experiment).await;
            let changed = PluginChange::between(&versions, &now, None);
            self.progress.send_modify(|progress| progress.plugins_changed = changed);
            self.summary(RunEnd::Finished, whole, resume.counts, Duration::ZERO).await
        };
        if nothing_left && !lost && !failing {
            return all_done(resume).await;
        }
        let interrupted = async {
            let stop = self.options.stop.clone().harder_than(Stop::Never).await;
            tracing::debug!(?stop, "stopped before the first rollout");
        };
        let mut interrupted = std::pin::pin!(interrupted);
        let loaded = tokio::select! {
            loaded = self.plugins() => loaded,
            () = &mut interrupted => {
                return self.summary(RunEnd::Interrupted, false, resume.counts, Duration::ZERO).await;
            }
        };
        let (host, plugins, loaded) = match loaded {
            Ok(loaded) => loaded,
            Err(error) if nothing_left && !lost => {
                tracing::warn!(%error, "whether a plugin was mended cannot be told");
                return all_done(resume).await;
            }
            Err(error) => return Err(error),
        };
        let mends = mend::plan(&groups, &earlier, &loaded.digests());
        if nothing_left && mends.is_empty() {
            return all_done(resume).await;
        }
        let runner = tokio::select! {
            runner = self.runner(host) => runner?,
            () = &mut interrupted => {
                return self.summary(RunEnd::Interrupted, false, resume.counts, Duration::ZERO).await;
            }
        };
        if !mends.is_empty() {
            // A group that is done again must find them, whatever becomes of the files.
            plugins.keep(&loaded).await?;
            let (mut run, mut score) = (0, 0);
            for mend in &mends {
                run += mend.again.run.len();
                score += mend.again.score.len();
                if let Some(plugins) = mend.plugins.clone() {
                    let (group_index, rollouts) = (mend.group_index, mend.again.run.clone());
                    self.run.do_again(DoAgain { group_index, rollouts, plugins }).await?;
                }
            }
            tracing::warn!(
                groups = mends.len(),
                results_given_up = run,
                results_scored_again = score,
                "groups that infrastructure or a plugin that is another now has failed go on"
            );
            // Groups that go on under other components are told like those that open under them.
            let renewed = mends.iter().find_map(|mend| Some((mend.group_index, mend.plugins.clone()?)));
            if let Some((group_index, digests)) = renewed {
                let changed = PluginChange::between(&versions, &digests, Some(group_index));
                self.progress.send_modify(|progress| progress.plugins_changed.extend(changed));
                versions = digests;
            }
            Earlier { resume, opened, .. } = self.resume().await?;
            let to_score = mends.into_iter().filter(|mend| !mend.again.score.is_empty());
            resume.score_again =
                to_score.map(|mend| (mend.group_index, mend.again.score.into_iter().collect())).collect();
        }
        let (experiment, plan) = (Arc::clone(&self.experiment), Arc::clone(&self.plan));
        let world = Arc::new(EngineWorld::new(
            experiment,
            plan,
            plugins,
            runner,
            (opened, versions),
            self.progress.clone(),
        ));
        let open_tasks = (0..target).filter(|index| !resume.closed.contains(index));
        let tasks: BTreeSet<String> = (open_tasks.filter_map(|index| self.plan.slot(index)))
            .map(|slot| slot.task.id.as_str().to_owned())
            .take(TASKS_LOOKED_AT)
            .collect();
        let schedule = Schedule {
            groups,
            available: self.plan.available(),
            wanted,
            resume,
            seed: self.experiment.file.seed ^ now_ms(),
            drain: self.options.drain,
            tasks: tasks.len() as u64,
        };
        let stop = self.options.stop.clone();
        let sandboxes = world.sandboxes();
        let run = Box::pin(scheduler::run(world, schedule, stop, lease.lost(), self.progress.clone()));
        let outcome = run.await;
        if let Some(sandboxes) = sandboxes {
            sandboxes.service.close().await;
        }
        let outcome = outcome.map_err(|fatal| match fatal {
            Fatal::Hopeless(hopeless) => self.explain(hopeless),
            other => other.into(),
        })?;
        let end = if outcome.finished { RunEnd::Finished } else { RunEnd::Interrupted };
        let whole = outcome.finished && wanted >= self.plan.wanted();
        self.summary(end, whole, outcome.counts, outcome.lag.quantile(0.99)).await
    }

    async fn summary(
        &self,
        state: RunEnd,
        whole: bool,
        counts: Counts,
        scheduler_lag_p99: Duration,
    ) -> Result<RunSummary, EngineError> {
        Ok(RunSummary {
            run_id: self.run.run_id().to_owned(),
            name: self.experiment.file.name.clone(),
            state,
            whole,
            tasks: self.plan.tasks(),
            tasks_read: self.plan.tasks_read(),
            rejected: self.plan.rejected.clone(),
            counts,
            plugins_changed: self.progress.borrow().plugins_changed.clone(),
            elapsed: self.began.elapsed(),
            causes: self.run.store().causes(self.run.run_id(), CAUSES_MAX).await?,
            scheduler_lag_p99,
        })
    }

    /// What earlier sessions left.
    async fn resume(&self) -> Result<Earlier, EngineError> {
        let mut resume = Resume::default();
        let mut opened = BTreeMap::new();
        let mut groups = Vec::new();
        let mut versions = BTreeMap::new();
        for group in self.run.progress().await? {
            let index = group.opened.group_index;
            versions.clone_from(&group.opened.plugins);
            if let Some(status) = group.status {
                resume.closed.insert(index);
                *resume.counts.groups_closed.entry(status).or_default() += 1;
                if status == GroupStatus::Failed {
                    let attempts = self.run.store().attempts(self.run.run_id(), index).await?;
                    let results = attempts
                        .into_iter()
                        .filter_map(|one| EarlierResult::of(one.rollout_index, one.state, one.failures));
                    let results = results.collect();
                    groups.push(EarlierGroup { opened: group.opened, failed: true, results });
                }
                continue;
            }
            let results = (group.rollouts.iter())
                .flat_map(|(index, rollout)| rollout.attempts.iter().map(move |one| (*index, one)))
                .filter_map(|(index, one)| EarlierResult::of(index, one.state, one.failures.clone()))
                .collect();
            groups.push(EarlierGroup { opened: group.opened.clone(), failed: false, results });
            let attempts = group.rollouts.into_iter().map(|(rollout_index, rollout)| {
                let durable = rollout.attempts.iter().filter_map(|attempt| match attempt.state {
                    AttemptState::Final(result) => {
                        let (stop_reason, reward) = (result.stop_reason, result.reward);
                        Some((attempt.attempt, AttemptOutcome { stop_reason, reward }))
                    }
                    // Each session has its own patience with the infrastructure: what an earlier one has abandoned
                    // counts against no bound, as if it had been cut.
                    AttemptState::Abandoned(_) => {
                        let stop_reason = StopReason::Cancelled;
                        Some((attempt.attempt, AttemptOutcome { stop_reason, reward: None }))
                    }
                    AttemptState::Running | AttemptState::Cut => None,
                });
                (rollout_index, durable.collect())
            });
            resume.open.insert(index, attempts.collect());
            opened.insert(index, group.opened);
        }
        let totals = self.run.store().run_totals(self.run.run_id()).await?;
        let row = self.run.store().run(self.run.run_id()).await?;
        let counts = &mut resume.counts;
        counts.replacements = row.rollouts.replaced;
        counts.scored = row.rollouts.rewarded;
        counts.solved = row.rollouts.solved;
        counts.reward_sum = row.rollouts.reward_sum;
        counts.endings = totals.endings;
        counts.tokens = totals.tokens;
        counts.resumed_rollouts = counts.ended();
        counts.resumed_tokens = counts.tokens.sampled;
        counts.attempts = counts.ended() + row.rollouts.attempts_abandoned;
        Ok(Earlier { resume, opened, groups, versions })
    }

    /// Why the run cannot go on, in the words of the experiment.
    fn explain(&self, hopeless: Hopeless) -> EngineError {
        let file = &self.experiment.file;
        let harness = &file.harness.plugin;
        match hopeless {
            Hopeless::Away { model, why } => EngineError::Gone { name: model, problem: why, for_good: false },
            Hopeless::Unusable { model, why } => {
                EngineError::Gone { name: model, problem: why, for_good: true }
            }
            Hopeless::Lacks(Lack::Environment) => {
                let problem =
                    format!("harness `{harness}` asks for an environment, and the experiment has none");
                let hint = "add a section `[environment]` with its `plugin`, or name another harness";
                self.experiment.refuse("harness.plugin", problem, hint).into()
            }
            Hopeless::Lacks(Lack::Model(model)) => {
                let names: Vec<&str> = file.models.keys().map(String::as_str).collect();
                let has = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                let problem =
                    format!("harness `{harness}` asks for the model `{model}`, and the experiment has {has}");
                let hint = format!("add a section `[models.{model}]`, or name another harness");
                self.experiment.refuse("harness.plugin", problem, &hint).into()
            }
        }
    }
}

/// Reads, parses and orders the tasks, off the runtime: a set may be large.
async fn read_plan(experiment: &Experiment, options: &RunOptions) -> Result<Plan, EngineError> {
    let file = &experiment.file;
    let Some(path) = experiment.task_file() else {
        let problem = "`tasks` names no source".to_owned();
        return Err(experiment.refuse("tasks", problem, "add `source = \"tasks.jsonl\"`").into());
    };
    let (tasks, limits, seed, skip_bad) =
        (file.tasks.clone(), file.limits.clone(), file.seed, options.skip_bad_tasks);
    off_runtime("the tasks", move || Plan::read(&path, &tasks, &limits, seed, skip_bad)).await?
}

fn wanted(plan: &Plan, options: &RunOptions) -> u64 {
    options.limit.unwrap_or(u64::MAX).min(plan.wanted())
}

/// Why a run cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Sandboxes cannot be made here, or not so.
    #[error(transparent)]
    Sandbox(#[from] espalier_sandbox::error::SandboxError),
    /// The experiment file is wrong, or names what is not there; it says where.
    #[error(transparent)]
    Experiment(#[from] ExperimentError),
    /// The task file cannot be read, or holds no task.
    #[error("{}: {problem}", path.display())]
    Tasks {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: &'static str,
        /// What the system said.
        #[source]
        source: Option<std::io::Error>,
    },
    /// Lines of the task file are no tasks, and the user did not ask to skip them.
    #[error("{}: {} of {lines} lines are no tasks; the first: line {}: {}", path.display(), rejected.len(), rejected[0].line, rejected[0].reason)]
    BadTasks {
        /// The file.
        path: PathBuf,
        /// Lines that are not empty.
        lines: u64,
        /// The bad ones; at least one.
        rejected: Vec<RejectedTask>,
    },
    /// The store refuses, or failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A plugin cannot be used.
    #[error(transparent)]
    Plugin(#[from] PluginError),
    /// A model cannot be reached or used.
    #[error("models.{name} cannot be used")]
    Model {
        /// The experiment's name of it.
        name: String,
        /// What is wrong.
        #[source]
        source: Box<OpenError>,
        /// What to do.
        hint: String,
    },
    /// A model went away in the middle of the run. What was finished is kept, the rest is open.
    #[error("models.{name} went away: {problem}")]
    Gone {
        /// The experiment's name of it.
        name: String,
        /// What its server did last.
        problem: String,
        /// Whether it will not come back by itself.
        for_good: bool,
    },
    /// A plugin failed again and again in the same way. What was finished is kept, the rest is open.
    #[error("stopped: {0}")]
    PluginFails(Box<Tripped>),
    /// It was told to stop before there was a run.
    #[error("stopped before the run began")]
    StoppedEarly,
    /// Another engine has taken the run over; this one wrote nothing more.
    #[error("another engine has taken this run over: {0}")]
    Fenced(String),
    /// A task of the engine panicked or did not end. Nothing durable is lost.
    #[error("{0}")]
    Engine(String),
}

impl From<Fatal> for EngineError {
    fn from(fatal: Fatal) -> Self {
        match fatal {
            Fatal::Fenced(reason) => EngineError::Fenced(reason),
            Fatal::Store(error) => EngineError::Store(error),
            Fatal::Opening(error) => *error,
            Fatal::Hopeless(hopeless) => EngineError::Engine(format!("{hopeless:?}")),
            Fatal::PluginFails(tripped) => EngineError::PluginFails(tripped),
            Fatal::Engine(text) => EngineError::Engine(text),
        }
    }
}

impl EngineError {
    /// What the user may do, if anything.
    pub fn hint(&self) -> Option<String> {
        match self {
            EngineError::BadTasks { .. } => {
                Some("mend the lines; `espalier run --skip-bad-tasks` goes on without them".to_owned())
            }
            EngineError::Store(error) => error.hint(),
            EngineError::Model { hint, .. } => Some(hint.clone()),
            EngineError::Gone { for_good: false, .. } => {
                Some("what was finished is kept; the same command goes on when the server is back".to_owned())
            }
            EngineError::Gone { for_good: true, .. } => {
                Some("what was finished is kept; mend this, and the same command goes on".to_owned())
            }
            EngineError::PluginFails(tripped) => Some(format!(
                "mend {} `{}`, and the same command goes on: what it failed is done again, and what is finished is kept \
                 (groups.plugin_failures_max = 0 never stops)",
                tripped.failure.world, tripped.failure.plugin
            )),
            EngineError::Engine(_) => Some("the same command resumes the run".to_owned()),
            EngineError::Experiment(_)
            | EngineError::Tasks { .. }
            | EngineError::Plugin(_)
            | EngineError::StoppedEarly
            | EngineError::Sandbox(_)
            | EngineError::Fenced(_) => None,
        }
    }
}
