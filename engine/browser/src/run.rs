//! The browsers that the rollouts of a run share.

use crate::convert;
use crate::episode::Archives;
use crate::launcher::{Agents, SandboxLauncher};
use espalier_browser::{BrowserPool, ContextOptions, PoolOptions, PooledContext};
use espalier_core::browser::{BrowserConfig, BrowserError, BrowserFile, BrowserSpec, ProcessSpec};
use espalier_core::sandbox::Network;
use espalier_core::task::Task;
use espalier_sandbox::service::{Purpose, Sandboxes};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Label of the sandboxes of browsers: what they are.
const KIND: &str = "kind";
/// Processes of one pool: rollouts at once are bounded elsewhere, this machine's memory by its owner.
const PROCESSES_MAX: usize = 256;
/// How long a rollout waits for a process to start, or for a place in one.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// What the browsers of a run are made from.
pub struct RunBrowsersConfig {
    /// Makes the sandboxes that Chromium runs in.
    pub service: Sandboxes,
    /// `[browser]`, where the experiment has one.
    pub config: Option<BrowserConfig>,
    /// Label and value that name the run.
    pub label: (String, String),
    /// Promises that the machine makes to every sandbox.
    pub require: Vec<String>,
    /// Silence of the engine that ends one.
    pub lease: Duration,
    /// Of the experiment file: archives are beside it.
    pub folder: PathBuf,
}

/// The browsers that the rollouts of a run share: a pool of processes for each network that they may reach.
pub struct RunBrowsers {
    service: Sandboxes,
    file: Option<BrowserFile>,
    process: ProcessSpec,
    purpose: Purpose,
    pools: Mutex<Vec<(Network, BrowserPool)>>,
    agents: Agents,
    archives: Archives,
}

/// Why no browser of an experiment can be opened.
#[derive(Debug, thiserror::Error)]
pub enum TryOutError {
    /// A value that Chromium does not take.
    #[error(transparent)]
    Value(#[from] BrowserError),
    /// The browser itself.
    #[error(transparent)]
    Browser(#[from] espalier_browser::BrowserError),
}

/// The value that an error of Chromium's is about: only it knows all of them.
pub(crate) fn unknown_to_chromium(
    spec: &BrowserSpec,
    error: &espalier_browser::BrowserError,
) -> Option<BrowserError> {
    let told = error.to_string();
    let (key, value, wanted) = match () {
        () if told.contains("Invalid timezone") => {
            ("timezone", &spec.timezone, "a time zone that Chromium knows, such as `Europe/Berlin`")
        }
        () if told.contains("Invalid locale") => {
            ("locale", &spec.locale, "a language and region that Chromium knows, such as `en-US`")
        }
        () => return None,
    };
    Some(BrowserError { key, value: value.clone(), wanted })
}

impl RunBrowsers {
    /// Nothing is started. Errors: a value of the experiment that no browser can have.
    pub fn new(config: RunBrowsersConfig) -> Result<RunBrowsers, BrowserError> {
        let process =
            config.config.as_ref().map_or_else(|| Ok(ProcessSpec::default()), BrowserConfig::process)?;
        let file = config.config.as_ref().map(BrowserConfig::file);
        if let Some(file) = &file {
            BrowserSpec::resolve(file, &BrowserFile::default())?;
        }
        let labels = BTreeMap::from([config.label, (KIND.to_owned(), "browser".to_owned())]);
        let purpose = Purpose {
            labels,
            lease: config.lease,
            require: config.require,
            client: "browser".to_owned(),
            registry_credentials: true,
        };
        let (pools, agents) = (Mutex::default(), Agents::default());
        let archives = Archives::new(config.folder);
        Ok(RunBrowsers { service: config.service, file, process, purpose, pools, agents, archives })
    }

    /// Whether a rollout of this task can ask for one.
    pub fn are_there_for(&self, task: &Task) -> bool {
        self.file.is_some() || task.browser.is_some()
    }

    /// What a task's browser is.
    pub fn spec(&self, task: &Task) -> Result<BrowserSpec, BrowserError> {
        let silent = BrowserFile::default();
        BrowserSpec::resolve(self.file.as_ref().unwrap_or(&silent), task.browser.as_ref().unwrap_or(&silent))
    }

    /// Reads the archive that the experiment itself names. Errors name the file.
    pub async fn read_archive(&self) -> Result<(), String> {
        let deterministic = self.file.as_ref().and_then(|file| file.deterministic.as_ref());
        match deterministic.and_then(|deterministic| deterministic.archive.as_ref()) {
            Some(archive) => self.archives.read(archive).await.map(drop),
            None => Ok(()),
        }
    }

    /// Whether Chromium is started without its own sandbox.
    pub fn has_no_sandbox(&self) -> bool {
        self.process.no_sandbox
    }

    pub(crate) fn process(&self) -> &ProcessSpec {
        &self.process
    }

    /// Starts a process and opens a page in it, as rollouts will: what is missing for that is found before the first of them. Browsers that
    /// run in the sandboxes of tasks are found to start there.
    pub async fn try_out(&self) -> Result<(), TryOutError> {
        if self.file.as_ref().is_some_and(|file| file.sandbox.is_some()) {
            return Ok(());
        }
        let silent = BrowserFile::default();
        let spec = BrowserSpec::resolve(self.file.as_ref().unwrap_or(&silent), &silent)?;
        let context = self.context(&spec.network, convert::context_options(&spec, None)).await?;
        context.new_page().await.map(drop).map_err(|error| match unknown_to_chromium(&spec, &error) {
            Some(error) => TryOutError::Value(error),
            None => TryOutError::Browser(error),
        })
    }

    /// A context in a process whose pages reach this.
    pub(crate) async fn context(
        &self,
        network: &Network,
        options: ContextOptions,
    ) -> Result<PooledContext, espalier_browser::BrowserError> {
        self.pool(network)?.new_context(options).await
    }

    pub(crate) fn archives(&self) -> &Archives {
        &self.archives
    }

    pub(crate) fn agents(&self) -> &Agents {
        &self.agents
    }

    fn pool(&self, network: &Network) -> Result<BrowserPool, espalier_browser::BrowserError> {
        let mut pools = self.pools.lock();
        if let Some((_, pool)) = pools.iter().find(|(of, _)| of == network) {
            return Ok(pool.clone());
        }
        let launcher = SandboxLauncher {
            service: self.service.clone(),
            process: self.process.clone(),
            network: network.clone(),
            purpose: self.purpose.clone(),
            agents: self.agents.clone(),
        };
        let options = PoolOptions {
            processes_max: PROCESSES_MAX,
            contexts_per_process: self.process.contexts_max,
            wait: WAIT_MAX,
            ..PoolOptions::default()
        };
        let pool = BrowserPool::with_launcher(options, launcher)?;
        pools.push((network.clone(), pool.clone()));
        Ok(pool)
    }

    /// Ends all processes.
    pub async fn close(&self) {
        let pools = std::mem::take(&mut *self.pools.lock());
        for (_, pool) in pools {
            pool.close().await;
        }
    }
}
