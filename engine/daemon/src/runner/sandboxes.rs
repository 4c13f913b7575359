//! The sandboxes of one attempt: made by the store's service from what experiment and task say, named by run and rollout, and
//! ended when harness and rewards are done with them.

use async_trait::async_trait;
use espalier_core::sandbox::{MAIN, SandboxFile, SandboxSpec, SpecError, check_lease};
use espalier_core::task::Task;
use espalier_sandbox::error::SandboxError;
use espalier_sandbox::rollout::{Opened, Provider};
use espalier_sandbox::service::{Purpose, Sandbox, Sandboxes};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
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
    /// `sandbox.warm`: how many of a kind are kept ready.
    pub warm: usize,
    /// Silence of the engine that ends one.
    pub lease: Duration,
    /// The run.
    pub run_id: String,
}

impl RunSandboxes {
    /// Whether a rollout of this task can ask for one.
    pub fn are_there_for(&self, task: &Task) -> bool {
        self.file.is_some() || task.sandbox.is_some() || !task.sandboxes.is_empty()
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

    fn spec(&self, task: &Task, name: &str) -> Result<SandboxSpec, SandboxError> {
        let asked = match name {
            MAIN => task.sandbox.as_ref().or_else(|| task.sandboxes.get(MAIN)),
            _ => task.sandboxes.get(name),
        };
        if asked.is_none() && (name != MAIN || self.file.is_none()) {
            let mut known: Vec<&str> = task.sandboxes.keys().map(String::as_str).collect();
            if (task.sandbox.is_some() || self.file.is_some()) && !known.contains(&MAIN) {
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
        let experiment = self.file.as_ref().unwrap_or(&silent);
        Ok(SandboxSpec::resolve(experiment, asked.unwrap_or(&nothing))?)
    }
}

/// See the module.
pub(crate) struct AttemptSandboxes {
    run: Arc<RunSandboxes>,
    task: Arc<Task>,
    attempt: String,
    /// Ids by name; for checkpoints.
    opened: Mutex<BTreeMap<String, String>>,
}

impl AttemptSandboxes {
    pub(crate) fn new(run: Arc<RunSandboxes>, task: Arc<Task>, attempt: String) -> AttemptSandboxes {
        AttemptSandboxes { run, task, attempt, opened: Mutex::default() }
    }

    async fn make(&self, name: &str) -> Result<Sandbox, SandboxError> {
        let spec = self.run.spec(&self.task, name)?;
        if self.run.warm > 0 {
            self.run.service.keep_warm(&spec, self.run.warm);
        }
        let labels = [(RUN, &self.run.run_id), (ATTEMPT, &self.attempt), (NAME, &name.to_owned())];
        let purpose = Purpose {
            labels: labels.into_iter().map(|(name, value)| (name.to_owned(), value.clone())).collect(),
            lease: self.run.lease,
            require: self.run.require.clone(),
            client: self.attempt.clone(),
        };
        self.run.service.create(&spec, &purpose).await
    }

    /// For the rollout, and ended with it.
    fn lend(&self, sandbox: Sandbox) -> Opened {
        let keep = self.run.service.hold(&sandbox);
        Opened {
            user: sandbox.user,
            workdir: Some(sandbox.workdir),
            env: Vec::new(),
            account: None,
            keep: Some(Box::new(keep)),
            agent: sandbox.agent,
        }
    }
}

#[async_trait]
impl Provider for AttemptSandboxes {
    async fn open(&self, name: &str) -> Result<Opened, SandboxError> {
        let sandbox = self.make(name).await?;
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.insert(name.to_owned(), sandbox.placed.id.clone());
        drop(opened);
        Ok(self.lend(sandbox))
    }

    async fn open_fresh(&self, name: &str) -> Result<Opened, SandboxError> {
        Ok(self.lend(self.make(name).await?))
    }

    async fn checkpoint(&self, name: &str) -> Result<String, SandboxError> {
        let id = self.opened.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        let id = id.ok_or_else(|| SandboxError::Rejected(format!("sandbox {name} is not open")))?;
        Ok(self.run.service.checkpoint(&id).await?.id)
    }
}
