//! The browsers of one rollout: opened when first asked for, kept until it is scored.

use crate::MAIN;
use crate::convert;
use crate::episode::EpisodeNetwork;
use crate::launcher::{OwnBrowser, start_beside};
use crate::run::{RunBrowsers, unknown_to_chromium};
use crate::session::{Home, PageSession};
use async_trait::async_trait;
use espalier_browser::BrowserContext;
use espalier_browser::agent::{Effect, Session, StepOutcome};
use espalier_core::attempt::{AttemptCapability, Draft};
use espalier_core::browser::{BrowserSpec, Deterministic};
use espalier_core::ending::Lost;
use espalier_core::failure::Failure;
use espalier_core::host::Blobs;
use espalier_core::host::browser::{BrowserSession, Browsers};
use espalier_core::service::ServiceSession;
use espalier_core::task::Task;
use espalier_sandbox::service::Sandbox;
use parking_lot::Mutex;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What was lost of a rollout's browser, the first time. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Losses {
    lost: Arc<Mutex<Option<String>>>,
    /// The sandbox that it ran in is to be tried again with more memory.
    memory: Arc<Mutex<Option<String>>>,
}

impl Losses {
    /// Notes a loss, and says what the plugin is told of it.
    pub(crate) fn lost(&self, why: impl Display) -> Failure {
        let text = format!("browser: {why}");
        self.lost.lock().get_or_insert_with(|| text.clone());
        Failure::Unavailable(text)
    }
}

/// The sandboxes of a rollout, for a browser that runs in one of them.
#[async_trait]
pub trait TaskSandboxes: Send + Sync {
    /// The sandbox of this name, opened if nobody has yet, with an agent's client of its own.
    async fn sandbox(&self, name: &str) -> Result<Sandbox, Failure>;
    /// The browser in it was killed for memory. Where it is to be tried again with more, this says so.
    fn killed_for_memory(&self, name: &str) -> Option<String>;
}

/// See the module.
pub struct RolloutBrowsers {
    run: Arc<RunBrowsers>,
    task: Arc<Task>,
    blobs: Arc<dyn Blobs>,
    /// Of the services that the task has.
    services: Option<ServiceSession>,
    /// Of the rollout, where it has any.
    sandboxes: Option<Arc<dyn TaskSandboxes>>,
    /// Held while it is being opened: who asks meanwhile waits.
    session: tokio::sync::Mutex<State>,
    losses: Losses,
    /// Whether it was asked for after its end.
    missed: AtomicBool,
}

enum State {
    Unopened,
    Open(Arc<PageSession>),
    /// The rollout is over.
    Ended,
}

impl RolloutBrowsers {
    /// Nothing is started.
    pub fn new(run: Arc<RunBrowsers>, task: Arc<Task>, blobs: Arc<dyn Blobs>) -> RolloutBrowsers {
        RolloutBrowsers::with(State::Unopened, (run, task, blobs))
    }

    /// Where the rollout is over and its browser with it: it cannot be opened again.
    pub fn ended(run: Arc<RunBrowsers>, task: Arc<Task>, blobs: Arc<dyn Blobs>) -> RolloutBrowsers {
        RolloutBrowsers::with(State::Ended, (run, task, blobs))
    }

    fn with(
        state: State,
        (run, task, blobs): (Arc<RunBrowsers>, Arc<Task>, Arc<dyn Blobs>),
    ) -> RolloutBrowsers {
        let (session, losses) = (tokio::sync::Mutex::new(state), Losses::default());
        let (services, sandboxes) = (None, None);
        RolloutBrowsers {
            run,
            task,
            blobs,
            services,
            sandboxes,
            session,
            losses,
            missed: AtomicBool::new(false),
        }
    }

    /// With the session of its services: their cookie is in the browser from the start, the session's id in its start page.
    #[must_use]
    pub fn with_services(self, services: Option<ServiceSession>) -> RolloutBrowsers {
        RolloutBrowsers { services, ..self }
    }

    /// With the rollout's sandboxes: a task may say that its browser runs in one of them.
    #[must_use]
    pub fn with_sandboxes(self, sandboxes: Option<Arc<dyn TaskSandboxes>>) -> RolloutBrowsers {
        RolloutBrowsers { sandboxes, ..self }
    }

    /// Whether it was asked for after its end.
    pub fn was_missed(&self) -> bool {
        self.missed.load(Ordering::Relaxed)
    }

    async fn start(&self) -> Result<PageSession, Failure> {
        let spec = self.run.spec(&self.task).map_err(|error| Failure::Invalid(error.to_string()))?;
        if !self.task.services.is_empty() && self.services.is_none() {
            return Err(self.losses.lost("there is no session of the task's services"));
        }
        let spec = convert::with_services(spec, self.services.as_ref());
        let lost = |error: espalier_browser::BrowserError| self.unopened(&spec, error);
        let options = convert::context_options(&spec, self.services.as_ref());
        let home = match &spec.sandbox {
            None => Home::Pooled(self.run.context(&spec.network, options).await.map_err(lost)?),
            Some(name) => {
                let own = self.start_in(name).await?;
                match own.browser.new_context(options).await {
                    Ok(context) => Home::Own(own, context),
                    Err(error) => {
                        own.end().await;
                        return Err(lost(error));
                    }
                }
            }
        };
        match self.begin(&home, &spec).await {
            Ok((session, network)) => {
                let (agents, blobs) = (self.run.agents().clone(), Arc::clone(&self.blobs));
                Ok(PageSession::new(session, (home, network), agents, blobs, self.losses.clone()))
            }
            Err(failure) => {
                home.end().await;
                Err(failure)
            }
        }
    }

    /// A browser in the rollout's sandbox of this name.
    async fn start_in(&self, name: &str) -> Result<OwnBrowser, Failure> {
        let sandboxes = self.sandboxes.as_ref().ok_or_else(|| {
            Failure::Invalid(format!("browser.sandbox {name:?}: the rollout has no sandboxes"))
        })?;
        let sandbox = sandboxes.sandbox(name).await?;
        // The sandbox does not stay for what its browser has still to tell.
        let (of, name) = (Arc::downgrade(sandboxes), name.to_owned());
        let memory = Arc::clone(&self.losses.memory);
        let on_memory = Box::new(move || {
            if let Some(why) = of.upgrade().and_then(|sandboxes| sandboxes.killed_for_memory(&name)) {
                memory.lock().get_or_insert(why);
            }
        });
        let own = start_beside(sandbox, self.run.process(), on_memory).await;
        own.map_err(|error| self.losses.lost(error))
    }

    async fn begin(
        &self,
        home: &Home,
        spec: &BrowserSpec,
    ) -> Result<(Session, Option<EpisodeNetwork>), Failure> {
        let network = match &spec.deterministic {
            Some(deterministic) => Some(self.network(home.context(), deterministic).await?),
            None => None,
        };
        let session = Session::open(home.context().clone(), convert::session_options(spec)).await;
        let session = session.map_err(|error| self.unopened(spec, error))?;
        self.begin_at(&session, spec).await?;
        Ok((session, network))
    }

    /// A value that Chromium alone can judge is the task's fault, and another attempt would meet it again.
    fn unopened(&self, spec: &BrowserSpec, error: espalier_browser::BrowserError) -> Failure {
        match unknown_to_chromium(spec, &error) {
            Some(error) => Failure::Invalid(error.to_string()),
            None => self.losses.lost(error),
        }
    }

    async fn network(
        &self,
        context: &BrowserContext,
        deterministic: &Deterministic,
    ) -> Result<EpisodeNetwork, Failure> {
        let file = match &deterministic.archive {
            Some(path) => Some(self.run.archives().read(path).await.map_err(|why| self.losses.lost(why))?),
            None => None,
        };
        let network = EpisodeNetwork::begin(context, file, deterministic.misses).await;
        network.map_err(|error| self.losses.lost(error))
    }

    /// Opens the start page. One that cannot be opened is the task's, or the network's: no episode can begin, and nothing is scored.
    async fn begin_at(&self, session: &Session, spec: &BrowserSpec) -> Result<(), Failure> {
        if spec.start_url == BrowserSpec::default().start_url {
            return Ok(());
        }
        let lost = |why: String| self.losses.lost(format_args!("the start page {}: {why}", spec.start_url));
        let step = session.goto(&spec.start_url).await.map_err(|error| lost(error.to_string()))?;
        if let StepOutcome::Failed { text, .. } = step.outcome {
            return Err(lost(text));
        }
        match step.effects.iter().rev().find_map(answer) {
            Some((url, status)) if status >= 400 => {
                Err(lost(format!("{url} was answered with status {status}")))
            }
            _ => Ok(()),
        }
    }
}

/// Where a page came from, and with which status. The last of several is the one that is shown.
fn answer(effect: &Effect) -> Option<(&str, i64)> {
    match effect {
        Effect::Navigated { url, status: Some(status), within_document: false, .. } => Some((url, *status)),
        _ => None,
    }
}

#[async_trait]
impl Browsers for RolloutBrowsers {
    async fn open(&self, name: &str) -> Result<Arc<dyn BrowserSession>, Failure> {
        if name != MAIN {
            return Err(Failure::Invalid(format!("browser {name:?}: this rollout has one, {MAIN:?}")));
        }
        let mut state = self.session.lock().await;
        let session = match &*state {
            State::Open(session) => Arc::clone(session),
            State::Unopened => {
                let session = Arc::new(self.start().await?);
                *state = State::Open(Arc::clone(&session));
                session
            }
            State::Ended => {
                self.missed.store(true, Ordering::Relaxed);
                return Err(Failure::Unavailable("the browser ended with its rollout".to_owned()));
            }
        };
        Ok(session)
    }
}

#[async_trait]
impl AttemptCapability for RolloutBrowsers {
    async fn close(&self, draft: &mut Draft) {
        let session = match &*self.session.lock().await {
            State::Open(session) => Arc::clone(session),
            State::Unopened | State::Ended => return,
        };
        if let Some(network) = session.network() {
            network.keep(&*self.blobs, draft).await;
        }
        if self.losses.lost.lock().is_some() {
            session.home().end().await;
        }
    }

    fn lost(&self) -> Option<Lost> {
        let memory = self.losses.memory.lock().clone().map(Lost::OutOfMemory);
        memory.or_else(|| self.losses.lost.lock().clone().map(Lost::Infrastructure))
    }

    fn finish(&self, _: &mut Draft) {
        // Nobody is at work in it any more: the context is closed as its last handle is dropped.
        if let Ok(mut state) = self.session.try_lock() {
            *state = State::Ended;
        }
    }
}
