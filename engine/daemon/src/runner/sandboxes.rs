//! The sandboxes of one attempt: made by the store's service from what experiment and task say, named by run and rollout, and
//! ended when harness and rewards are done with them.

use crate::proxy::{AttemptProxy, RunProxies};
use async_trait::async_trait;
use espalier_core::escalation::{Escalation, Room};
use espalier_core::host::Models;
use espalier_core::limits::SizeText;
use espalier_core::sandbox::{MAIN, SandboxFile, SandboxSpec, SpecError, check_lease};
use espalier_core::service::MODEL_SERVICE;
use espalier_core::task::Task;
use espalier_core::trajectory::SandboxUse;
use espalier_sandbox::error::SandboxError;
use espalier_sandbox::rollout::{Opened, Provider, RolloutSandboxes, Suspend, SuspendingModels};
use espalier_sandbox::service::{Purpose, Sandbox, Sandboxes};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Label: the run.
pub const RUN: &str = "run";
/// Label: the attempt.
pub const ATTEMPT: &str = "attempt";
/// Label: the sandbox's name in its task.
const NAME: &str = "name";

/// What all sandboxes of a run share.
pub struct RunSandboxes {
    /// Makes them.
    pub service: Sandboxes,
    /// `[sandbox]`, where the experiment has one.
    pub file: Option<SandboxFile>,
    /// `sandbox.require`.
    pub require: Vec<String>,
    /// `sandbox.warm`: how many are kept ready, of all kinds together.
    pub warm: usize,
    /// `sandbox.keep_patch`.
    pub keep_patch: bool,
    /// `sandbox.escalate`.
    pub escalation: Escalation,
    /// What this machine has for one.
    pub room: Room,
    /// `sandbox.suspend_after`.
    pub suspend_after: Option<Duration>,
    /// Silence of the engine that ends one.
    pub lease: Duration,
    /// The run.
    pub run_id: String,
    /// `sandbox.model`, where the experiment has one.
    pub(crate) recorded: Option<RecordedModel>,
}

/// The model that programs in sandboxes may ask.
pub(crate) struct RecordedModel {
    /// The experiment's name of it.
    pub(crate) name: String,
    /// Where sandboxes reach it.
    pub(crate) url: String,
    /// The attempts that ask.
    pub(crate) proxies: Arc<RunProxies>,
}

impl RunSandboxes {
    /// Whether a rollout of this task can ask for one.
    pub fn are_there_for(&self, task: &Task) -> bool {
        self.file.is_some() || task.sandbox.is_some() || !task.sandboxes.is_empty()
    }

    /// The models of a rollout: where that was asked for, its sandboxes are suspended while it waits long for them.
    pub(crate) fn models(
        &self,
        models: Arc<dyn Models>,
        sandboxes: &Arc<RolloutSandboxes>,
    ) -> Arc<dyn Models> {
        let Some(after) = self.suspend_after else { return models };
        Arc::new(SuspendingModels { models, sandboxes: Arc::clone(sandboxes), after })
    }

    /// Whether the experiment's values are such as a sandbox can have.
    pub fn check(&self) -> Result<(), SpecError> {
        check_lease(self.lease)?;
        self.file.iter().try_for_each(|file| SandboxSpec::resolve(file, &SandboxFile::default()).map(drop))
    }

    /// Ends what an earlier session of this run left.
    pub async fn reclaim(&self) -> Result<usize, SandboxError> {
        self.service.reclaim(&BTreeMap::from([(RUN.to_owned(), self.run_id.clone())])).await
    }

    /// What a task's sandbox of this name is.
    fn spec(&self, task: &Task, name: &str) -> Result<SandboxSpec, SandboxError> {
        spec_of(self.file.as_ref(), task, name)
    }
}

/// What a task's sandbox of this name is, where the experiment has this `[sandbox]`.
pub(crate) fn spec_of(
    file: Option<&SandboxFile>,
    task: &Task,
    name: &str,
) -> Result<SandboxSpec, SandboxError> {
    let asked = match name {
        MAIN => task.sandbox.as_ref().or_else(|| task.sandboxes.get(MAIN)),
        _ => task.sandboxes.get(name),
    };
    if asked.is_none() && (name != MAIN || file.is_none()) {
        let mut known: Vec<&str> = task.sandboxes.keys().map(String::as_str).collect();
        if (task.sandbox.is_some() || file.is_some()) && !known.contains(&MAIN) {
            known.push(MAIN);
        }
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(SandboxError::Invalid {
            what: "sandbox".to_owned(),
            value: name.to_owned(),
            wanted: format!("one that the task or `[sandbox]` of the experiment names: {known}"),
        });
    }
    let (nothing, silent) = (SandboxFile::default(), SandboxFile::default());
    let experiment = file.unwrap_or(&silent);
    Ok(SandboxSpec::resolve(experiment, asked.unwrap_or(&nothing))?)
}

/// What this machine has for one sandbox: its cores, and its memory less an eighth for all else.
pub fn room() -> Room {
    let cpu = std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64);
    let told = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = told.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    let memory = kib.unwrap_or(0).saturating_mul(1 << 10);
    Room { cpu, memory: memory - memory / 8 }
}

/// See the module.
pub(crate) struct AttemptSandboxes {
    run: Arc<RunSandboxes>,
    task: Arc<Task>,
    attempt: String,
    /// The model that its programs may ask.
    proxy: Option<Arc<AttemptProxy>>,
    state: Mutex<SandboxesState>,
}

struct SandboxesState {
    /// Ids by name; for checkpoints.
    opened: BTreeMap<String, String>,
    /// Level of sandboxes made from now on.
    level: u32,
    /// Who is at work, and whether it would be asked again after an end without a result.
    stage: Stage,
    made: Vec<SandboxUse>,
    /// Those that the harness had, and that are gone.
    gone: BTreeSet<String>,
    /// Whether one of them was asked for.
    missed: bool,
}

/// Who is at work in the sandboxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The harness.
    Harness {
        /// Whether another attempt may follow.
        again: bool,
    },
    /// A reward.
    Reward {
        /// Whether another try at it may follow.
        again: bool,
    },
}

impl AttemptSandboxes {
    pub(crate) fn new(run: Arc<RunSandboxes>, task: Arc<Task>, attempt: String) -> AttemptSandboxes {
        let (opened, gone) = (BTreeMap::new(), BTreeSet::new());
        let (level, stage) = (0, Stage::Harness { again: false });
        let state = SandboxesState { opened, level, stage, made: Vec::new(), gone, missed: false };
        AttemptSandboxes { run, task, attempt, proxy: None, state: Mutex::new(state) }
    }

    /// With a model that programs in them may ask; in fresh ones they may not.
    pub(super) fn with_proxy(self, proxy: Option<Arc<AttemptProxy>>) -> AttemptSandboxes {
        AttemptSandboxes { proxy, ..self }
    }

    /// At this level, with this one at work.
    pub(super) fn at(self, level: u32, stage: Stage) -> AttemptSandboxes {
        {
            let mut state = self.state();
            (state.level, state.stage) = (level, stage);
        }
        self
    }

    /// Where these are gone: they cannot be opened, only made afresh.
    pub(super) fn without(self, gone: BTreeSet<String>) -> AttemptSandboxes {
        self.state().gone = gone;
        self
    }

    /// Whether a sandbox that is gone was asked for.
    pub(super) fn was_missed(&self) -> bool {
        self.state().missed
    }

    /// From now on somebody else is at work.
    pub(crate) fn now(&self, stage: Stage) {
        self.state().stage = stage;
    }

    fn state(&self) -> MutexGuard<'_, SandboxesState> {
        self.state.lock()
    }

    /// Another client of a sandbox that is open.
    pub(crate) async fn attach(&self, name: &str, client: &str) -> Result<Sandbox, SandboxError> {
        let id = self.state().opened.get(name).cloned();
        let id = id.ok_or_else(|| SandboxError::Lost(format!("sandbox {name} is not open").into()))?;
        let client = format!("{}.{client}", self.attempt);
        self.run.service.attach(&id, &client, self.run.lease).await
    }

    async fn make(&self, name: &str, fresh: bool) -> Result<Sandbox, SandboxError> {
        let level = self.state().level;
        let asked = self.run.spec(&self.task, name)?;
        let mut spec = self.run.escalation.at(&asked, level, self.run.room);
        if self.proxy.is_some() && !fresh {
            spec.network = spec.network.with(&format!("service:{MODEL_SERVICE}"));
        }
        let labels = [(RUN, &self.run.run_id), (ATTEMPT, &self.attempt), (NAME, &name.to_owned())];
        let purpose = Purpose {
            labels: labels.into_iter().map(|(name, value)| (name.to_owned(), value.clone())).collect(),
            lease: self.run.lease,
            require: self.run.require.clone(),
            client: self.attempt.clone(),
            registry_credentials: true,
        };
        let (cpu, memory) = (spec.cpu, spec.memory);
        self.state().made.push(SandboxUse { name: name.to_owned(), fresh, level, cpu, memory });
        // Those of a higher level are few, and each other.
        if self.run.warm > 0 && level == 0 {
            self.run.service.keep_warm(self.run.warm);
            return self.run.service.create_warm(&spec, &purpose).await;
        }
        self.run.service.create(&spec, &purpose).await
    }
}

#[async_trait]
impl Provider for AttemptSandboxes {
    async fn open(&self, name: &str) -> Result<Opened, SandboxError> {
        {
            let mut state = self.state();
            if state.gone.contains(name) {
                state.missed = true;
                return Err(SandboxError::Lost(format!("{name} ended with the harness's attempt").into()));
            }
        }
        let sandbox = self.make(name, false).await?;
        let id = sandbox.placed.id.clone();
        let env = self.proxy.as_ref().map(|proxy| proxy.admit(&id)).unwrap_or_default();
        self.state().opened.insert(name.to_owned(), id);
        Ok(Opened { env, ..lend(&self.run, sandbox) })
    }

    async fn open_fresh(&self, name: &str) -> Result<Opened, SandboxError> {
        Ok(lend(&self.run, self.make(name, true).await?))
    }

    /// With a harness the attempt is repeated; with a reward its next try gets a fresh sandbox of the next level. What a reward does
    /// in the sandbox that the harness left cannot be repeated alone.
    fn out_of_memory(&self, name: &str, fresh: bool) -> Option<String> {
        let asked = self.run.spec(&self.task, name).ok()?;
        let mut state = self.state();
        let level = state.level;
        let repeated = match state.stage {
            Stage::Harness { again } => again && !fresh,
            Stage::Reward { again } => again && fresh,
        };
        if !repeated || !self.run.escalation.rises_above(&asked, level, self.run.room) {
            return None;
        }
        if fresh {
            state.level += 1;
        }
        let [had, next] = [level, level + 1].map(|level| {
            let spec = self.run.escalation.at(&asked, level, self.run.room);
            SizeText(spec.memory)
        });
        Some(format!("it had {had} (level {level}), the next try has {next}"))
    }

    fn made(&self) -> Vec<SandboxUse> {
        self.state().made.clone()
    }

    async fn checkpoint(&self, name: &str) -> Result<String, SandboxError> {
        let id = self.state().opened.get(name).cloned();
        let id = id.ok_or_else(|| SandboxError::Rejected(format!("sandbox {name} is not open").into()))?;
        Ok(self.run.service.checkpoint(&id).await?.id)
    }
}

/// Sandboxes that a task generator creates: as it says, within what the experiment says of sandboxes.
pub(super) struct CreatedSandboxes {
    run: Arc<RunSandboxes>,
    owner: String,
}

impl CreatedSandboxes {
    pub(super) fn new(run: Arc<RunSandboxes>, owner: String) -> CreatedSandboxes {
        CreatedSandboxes { run, owner }
    }
}

#[async_trait]
impl Provider for CreatedSandboxes {
    async fn open(&self, name: &str) -> Result<Opened, SandboxError> {
        Err(SandboxError::Rejected(
            format!("no sandbox {name:?}: a task generator has none by name, it creates them").into(),
        ))
    }

    async fn open_fresh(&self, name: &str) -> Result<Opened, SandboxError> {
        self.open(name).await
    }

    async fn create(&self, spec: &str) -> Result<Opened, SandboxError> {
        let asked: SandboxFile = serde_json::from_str(spec).map_err(|error| SandboxError::Invalid {
            what: "spec".to_owned(),
            value: spec.chars().take(80).collect(),
            wanted: format!("what a task says of a sandbox, as JSON: {error}"),
        })?;
        let silent = SandboxFile::default();
        let spec = SandboxSpec::resolve(self.run.file.as_ref().unwrap_or(&silent), &asked)?;
        let labels = [(RUN, &self.run.run_id), (ATTEMPT, &self.owner)];
        let purpose = Purpose {
            labels: labels.into_iter().map(|(name, value)| (name.to_owned(), value.clone())).collect(),
            lease: self.run.lease,
            require: self.run.require.clone(),
            client: self.owner.clone(),
            registry_credentials: true,
        };
        let sandbox = self.run.service.create(&spec, &purpose).await?;
        Ok(lend(&self.run, sandbox))
    }

    async fn checkpoint(&self, name: &str) -> Result<String, SandboxError> {
        Err(SandboxError::Rejected(format!("no checkpoint is made of the sandbox {name:?}").into()))
    }
}

/// For whoever asked for it, and ended with it.
fn lend(run: &RunSandboxes, sandbox: Sandbox) -> Opened {
    let keep = run.service.hold(&sandbox);
    let suspend = run.suspend_after.map(|_| run.service.suspender(&sandbox));
    Opened {
        user: sandbox.user,
        workdir: Some(sandbox.workdir),
        env: Vec::new(),
        account: None,
        keep: Some(Box::new(keep)),
        suspend: suspend.map(|suspend| Box::new(suspend) as Box<dyn Suspend>),
        agent: sandbox.agent,
    }
}
