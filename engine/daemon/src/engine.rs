//! One run of an experiment, from its file to its summary: reads the tasks, takes the run's lock, loads plugins, reaches
//! the models, and hands everything to the scheduler.
//!
//! What is wrong with the input is found before the first rollout. Next: `plan` (which task is which group's),
//! `plugins`, `world` (what the scheduler stands on), `lease` (holding the lock).

mod lease;
mod plan;
mod plugins;
mod world;

pub(crate) use plan::task_lines;

use crate::experiment::{Experiment, ExperimentError, POLICY};
use crate::progress::{Counts, ProgressSender, Stage};
use crate::runner::sandboxes::RunSandboxes;
use crate::runner::{Runner, now_ms};
use crate::scheduler::{self, Fatal, Hopeless, Lack, Resume, Schedule};
use crate::shutdown::{Stop, StopSignal};
use espalier_core::ending::StopReason;
use espalier_core::group;
use espalier_core::rollout::AttemptOutcome;
use espalier_core::samples::GroupStatus;
use espalier_inference::error::EndpointError;
use espalier_inference::models::{Model, OpenError};
use espalier_inference::tokenizer::TokenizerError;
use espalier_plugin::{PluginError, PluginHost, PluginHostConfig};
use espalier_store::{
    AttemptState, Claim, GroupOpened, Holder, RunSpec, RunState, RunWriter, Start, Store, StoreError,
    StoreUrl,
};
use plan::Plan;
use plugins::Plugins;
use std::collections::BTreeMap;
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
    /// Folder of compiled plugin code; safe to delete, safe to share.
    pub plugin_cache: PathBuf,
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
    /// Tasks that were read.
    pub tasks: u64,
    /// Lines of the task file that were rejected.
    pub rejected: Vec<RejectedTask>,
    /// Counters of the whole run, earlier sessions included.
    pub counts: Counts,
    /// Time of this session.
    pub elapsed: Duration,
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
    let plan = Arc::new(read_plan(&experiment, &options)?);
    progress.send_modify(|progress| {
        progress.tasks = plan.tasks();
        progress.tasks_rejected = plan.rejected.len() as u64;
        progress.groups_wanted = wanted(&plan, &options);
    });
    experiment.check_files()?;
    stage(Stage::Store);
    let url: StoreUrl = options.store.parse()?;
    let mut stop = options.stop.clone();
    let store = tokio::select! {
        store = Store::open(&url) => store?,
        _ = stop.harder_than(Stop::Never) => return Err(EngineError::StoppedEarly),
    };
    let spec = RunSpec {
        name: experiment.file.name.clone(),
        meaning: experiment.meaning(&plan.file_hash),
        experiment: experiment.record(),
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
        Err(EngineError::Gone { .. }) => Some(RunState::Stopped),
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
    /// Groups that infrastructure alone has failed, with the rollouts to be run again.
    lost: BTreeMap<u64, Vec<u32>>,
}

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
        let Earlier { mut resume, opened, lost } = self.resume().await?;
        let wanted = wanted(&self.plan, &self.options);
        // What `--limit` leaves for later is no reserve: only the whole run replenishes.
        let mut groups = self.experiment.file.groups.clone();
        groups.replenish &= wanted >= self.plan.wanted();
        let filtered = resume.counts.groups_closed.get(&GroupStatus::Filtered).copied().unwrap_or(0);
        let target = if groups.replenish { wanted + filtered } else { wanted }.min(self.plan.available());
        let again: Vec<_> = lost.into_iter().filter(|(index, _)| *index < target).collect();
        let nothing_left = resume.open.is_empty() && (0..target).all(|index| resume.closed.contains(&index));
        if nothing_left && again.is_empty() {
            self.progress.send_modify(|progress| progress.counts.clone_from(&resume.counts));
            let whole = resume.closed.len() as u64 >= self.plan.wanted();
            return Ok(self.summary(RunEnd::Finished, whole, resume.counts, Duration::ZERO));
        }
        let world = tokio::select! {
            world = self.world(opened) => Arc::new(world?),
            stop = async { self.options.stop.clone().harder_than(Stop::Never).await } => {
                tracing::debug!(?stop, "stopped before the first rollout");
                return Ok(self.summary(RunEnd::Interrupted, false, resume.counts, Duration::ZERO));
            }
        };
        if !again.is_empty() {
            tracing::info!(groups = again.len(), "groups that infrastructure alone has failed are run again");
            for (group_index, rollouts) in again {
                self.run.reopen_group(group_index, rollouts).await?;
            }
            resume = self.resume().await?.resume;
        }
        let schedule = Schedule {
            groups,
            available: self.plan.available(),
            wanted,
            resume,
            seed: self.experiment.file.seed ^ now_ms(),
            drain: self.options.drain,
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
        Ok(self.summary(end, whole, outcome.counts, outcome.lag.quantile(0.99)))
    }

    fn summary(&self, state: RunEnd, whole: bool, counts: Counts, scheduler_lag_p99: Duration) -> RunSummary {
        RunSummary {
            run_id: self.run.run_id().to_owned(),
            name: self.experiment.file.name.clone(),
            state,
            whole,
            tasks: self.plan.tasks(),
            rejected: self.plan.rejected.clone(),
            counts,
            elapsed: self.began.elapsed(),
            scheduler_lag_p99,
        }
    }

    /// What earlier sessions left.
    async fn resume(&self) -> Result<Earlier, EngineError> {
        let mut resume = Resume::default();
        let mut opened = BTreeMap::new();
        let mut lost = BTreeMap::new();
        for group in self.run.progress().await? {
            let index = group.opened.group_index;
            if let Some(status) = group.status {
                resume.closed.insert(index);
                *resume.counts.groups_closed.entry(status).or_default() += 1;
                if status == GroupStatus::Failed {
                    let attempts = self.run.store().attempts(self.run.run_id(), index).await?;
                    let ends = attempts.iter().filter_map(|attempt| match attempt.state {
                        AttemptState::Final(end) => {
                            Some((attempt.rollout_index, end.stop_reason, end.reward.is_some()))
                        }
                        _ => None,
                    });
                    let again = group::reopened(group.opened.n_requested, &ends.collect::<Vec<_>>());
                    if !again.is_empty() {
                        lost.insert(index, again);
                        opened.insert(index, group.opened);
                    }
                }
                continue;
            }
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
        Ok(Earlier { resume, opened, lost })
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

    /// Loads plugins, reaches models. Everything that can be wrong with them is found here.
    async fn world(&self, opened: BTreeMap<u64, GroupOpened>) -> Result<EngineWorld, EngineError> {
        let (file, options) = (&self.experiment.file, &self.options);
        self.progress.send_modify(|progress| progress.stage = Stage::Plugins);
        let host = PluginHost::new(PluginHostConfig {
            cache_dir: options.plugin_cache.clone(),
            guest_threads: std::thread::available_parallelism().map_or(2, usize::from),
            instances_max: file.groups.concurrent_rollouts.saturating_mul(2).saturating_add(INSTANCES_SPARE),
            io: tokio::runtime::Handle::current(),
        })?;
        let components = options.plugin_cache.join("components");
        let store = self.run.store().clone();
        let plugins = Plugins::new(host.clone(), options.plugin_folders.clone(), components, store);
        plugins.load(&self.experiment, None).await?;
        if file.rewards.is_empty() {
            let problem =
                "there is no `[[rewards]]`: every rollout would end without a reward, and every group fail";
            let hint = "add one, like `[[rewards]]` with `plugin = \"environment-reward\"`";
            return Err(self.experiment.refuse("rewards", problem, hint).into());
        }
        self.progress.send_modify(|progress| progress.stage = Stage::Models);
        let mut models = BTreeMap::new();
        for (name, config) in &file.models {
            let mut config = config.clone();
            config.resolve_paths(&self.experiment.folder);
            let model = Model::open(name, config, file.seed, now_ms()).await;
            let model = model.map_err(|error| self.refuse_model(name, &error))?;
            models.insert(name.clone(), model);
        }
        let runner = Runner {
            host,
            run: self.run.clone(),
            models: Arc::new(models),
            group_model: POLICY.to_owned(),
            seed: file.seed,
            groups: file.groups.clone(),
            rewards: file.rewards.clone(),
            private_task: file.harness.sees_private_task(),
            sandboxes: self.sandboxes().await?,
        };
        let (experiment, plan) = (Arc::clone(&self.experiment), Arc::clone(&self.plan));
        Ok(EngineWorld::new(experiment, plan, plugins, runner, opened))
    }

    /// `None` where neither experiment nor tasks speak of any. What an earlier session of this run left is ended: its attempts
    /// are made again.
    async fn sandboxes(&self) -> Result<Option<Arc<RunSandboxes>>, EngineError> {
        let file = &self.experiment.file;
        if file.sandbox.is_none() && !self.plan.speaks_of_sandboxes() {
            return Ok(None);
        }
        let config = file.sandbox.clone().unwrap_or_default();
        let images_max = config.images_max.map(|size| size.0);
        let sandboxes = RunSandboxes {
            service: crate::sandboxes::open(&self.options.sandboxes.parse()?, images_max)?,
            file: file.sandbox.as_ref().map(|config| config.file(&self.experiment.folder)),
            require: config.require,
            warm: config.warm,
            keep_patch: config.keep_patch,
            escalation: config.escalate,
            room: crate::runner::sandboxes::room(),
            lease: config.lease.0,
            run_id: self.run.run_id().to_owned(),
        };
        // A value that no sandbox can have, and a promise that this machine cannot keep, are told before the first rollout.
        if let Err(error) = sandboxes.check() {
            let key = format!("sandbox.{}", error.key.split('.').next().unwrap_or_default());
            return Err(self.experiment.refuse(&key, error.to_string(), "see docs/sandboxes.md").into());
        }
        let promises = sandboxes.service.backend().promises().await?;
        for promise in &sandboxes.require {
            let problem = match promises.get(promise) {
                Some(Ok(())) => continue,
                Some(Err(remedy)) => format!("this machine cannot promise `{promise}`: {remedy}"),
                None => {
                    let known: Vec<&str> = promises.keys().map(String::as_str).collect();
                    format!("`{promise}` is no promise; there are {}", known.join(", "))
                }
            };
            return Err(self
                .experiment
                .refuse("sandbox.require", problem, "`espalier doctor` lists what can be promised")
                .into());
        }
        let left = sandboxes.reclaim().await?;
        if left > 0 {
            tracing::info!(left, "ended sandboxes that an earlier session of the run left");
        }
        Ok(Some(Arc::new(sandboxes)))
    }

    /// What the experiment says wrongly is refused at its place; what its server does is not the file's matter.
    fn refuse_model(&self, name: &str, error: &OpenError) -> EngineError {
        let key = match error {
            OpenError::Endpoint(EndpointError::Config(error)) => Some(error.key),
            OpenError::Template(_) | OpenError::NoTemplate | OpenError::TemplateFile { .. } => {
                Some("template")
            }
            OpenError::Tokenizer(TokenizerError::File { .. } | TokenizerError::Unsuited(_)) => {
                Some("tokenizer")
            }
            OpenError::Endpoint(_) | OpenError::Tokenizer(_) => None,
        };
        if let Some(key) = key {
            let hint = error.hint().unwrap_or_default();
            let problem = format!("`models.{name}`: {error}");
            return self.experiment.refuse(&format!("models.{name}.{key}"), problem, &hint).into();
        }
        let hint = error.hint().unwrap_or_else(|| "is the server running, and is `url` right?".to_owned());
        EngineError::Model { name: name.to_owned(), problem: error.to_string(), hint }
    }
}

fn read_plan(experiment: &Experiment, options: &RunOptions) -> Result<Plan, EngineError> {
    let file = &experiment.file;
    let Some(path) = experiment.task_file() else {
        let problem = "`tasks` names no source".to_owned();
        return Err(experiment.refuse("tasks", problem, "add `source = \"tasks.jsonl\"`").into());
    };
    Plan::read(&path, &file.tasks, &file.limits, file.seed, options.skip_bad_tasks)
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
        problem: String,
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
    /// The folder of compiled plugins cannot be written.
    #[error("cannot write {} in the plugin cache", path.display())]
    PluginCache {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A model cannot be reached or used.
    #[error("models.{name}: {problem}")]
    Model {
        /// The experiment's name of it.
        name: String,
        /// What is wrong.
        problem: String,
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
            Fatal::Engine(text) => EngineError::Engine(text),
        }
    }
}

impl EngineError {
    /// What the user may do, if anything.
    pub fn hint(&self) -> Option<String> {
        match self {
            EngineError::BadTasks { .. } => {
                Some("mend the lines, or add --skip-bad-tasks to go on without them".to_owned())
            }
            EngineError::Store(error) => error.hint(),
            EngineError::PluginCache { .. } => {
                Some("name a folder that can be written in ESPALIER_CACHE".to_owned())
            }
            EngineError::Model { hint, .. } => Some(hint.clone()),
            EngineError::Gone { for_good: false, .. } => {
                Some("what was finished is kept; the same command goes on when the server is back".to_owned())
            }
            EngineError::Gone { for_good: true, .. } => {
                Some("what was finished is kept; mend this, and the same command goes on".to_owned())
            }
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
