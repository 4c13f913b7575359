//! Hosting an environment plugin: one instance for each rollout, behind [`espalier_core::host::Environments`].

use crate::bindings::environment::EnvironmentPlugin;
use crate::convert::{failure_in, observation_in, step_in, task_out};
use crate::cpu::CpuClock;
use crate::guest::Guest;
use crate::harness::check_json;
use crate::host::Inner;
use crate::job::{InstanceSetup, JobClock};
use crate::logs::Logs;
use crate::places::Place;
use crate::plugin::Pre;
use crate::trap::{self, Stop};
use crate::{CancelToken, Plugin, World};
use async_trait::async_trait;
use espalier_core::attempt::{AttemptCapability, Draft};
use espalier_core::ending::Lost;
use espalier_core::failure::Failure;
use espalier_core::host::{Capabilities, Environment, Environments, Observation, StepResult};
use espalier_core::meter::Meter;
use espalier_core::plugin_failure::PluginFailure;
use espalier_core::task::TaskView;
use espalier_core::trajectory::{LogLine, Step};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use wasmtime::Store;

/// How long `close` waits for the plugin.
const CLOSE_WALL: Duration = Duration::from_secs(5);

/// The environment of one rollout.
pub struct EnvironmentRun {
    /// A plugin of the world environment.
    pub plugin: Arc<Plugin>,
    /// The name by which the experiment calls it.
    pub alias: String,
    /// The task, with its private part; shared by the rollouts of a group.
    pub task: Arc<TaskView>,
    /// What [`Plugin::check_settings`] gave back.
    pub settings: String,
    /// Seed of `random`, below 2^53: the same for all rollouts of a group.
    pub seed: u64,
    /// What `clock` says from first to last, ms since 1970.
    pub start_ms: u64,
    /// The rollout's: turn numbers and limits are read from it. The imports of the environment are not counted in it,
    /// but against limits of the same size of their own.
    pub meter: Arc<Meter>,
}

/// Keeps the instance, records the steps, and remembers why the plugin failed.
///
/// A call that its caller gives up (an import out of time) runs to its end, which the plugin's own limits bound; since
/// the world has then moved unseen, a harness that goes on with it is told `unavailable`, and that is the plugin's
/// failure.
pub struct EnvironmentHost {
    shared: Arc<Shared>,
}

struct Shared {
    host: Arc<Inner>,
    plugin: Arc<Plugin>,
    alias: String,
    task: Arc<TaskView>,
    meter: Arc<Meter>,
    logs: Logs,
    opened: AtomicBool,
    kill: Arc<AtomicBool>,
    cpu: Arc<CpuClock>,
    instance: Arc<tokio::sync::Mutex<Instance>>,
    records: Mutex<Records>,
}

#[derive(Default)]
struct Records {
    steps: Vec<Step>,
    failure: Option<String>,
    /// The same in parts.
    plugin_failure: Option<Box<PluginFailure>>,
    /// Exports that did their work.
    served: BTreeSet<&'static str>,
    given_up: Option<&'static str>,
    env_time: Duration,
}

/// The plugin's instance.
enum Instance {
    /// Its store is ready, it is not instantiated yet.
    Fresh(Box<Store<Guest>>),
    /// It runs.
    Live(Box<Live>),
    /// It is over: closed, trapped or failed.
    Gone,
}

struct Live {
    store: Store<Guest>,
    plugin: EnvironmentPlugin,
    stage: Stage,
    /// Last, so that it is given back behind the instance.
    _place: Place,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    BeforeReset,
    Running,
    Done,
}

/// Why a call brought nothing.
enum Fault {
    /// The harness misused it; nothing happened.
    Misuse(String),
    /// The plugin failed; the instance is over.
    Broken(String, Option<Box<PluginFailure>>),
}

impl From<trap::TrapReport> for Fault {
    fn from(report: trap::TrapReport) -> Fault {
        Fault::Broken(report.text, Some(report.failure))
    }
}

impl EnvironmentHost {
    pub(crate) fn new(host: Arc<Inner>, run: EnvironmentRun) -> EnvironmentHost {
        let limits = run.meter.limits().clone();
        let logs = Logs::of_rollout(&run.alias, limits.log_bytes, &run.meter);
        let store = host.store(InstanceSetup {
            alias: run.alias.clone(),
            digest: run.plugin.digest().to_owned(),
            settings: run.settings,
            capabilities: Capabilities::default(),
            meter: Arc::new(Meter::new(limits)),
            logs: logs.clone(),
            wall: None,
            clock: JobClock::Frozen { now_ms: run.start_ms },
            seed: run.seed,
            closed: None,
            record_calls: false,
            cancel: CancelToken::new(),
        });
        let kill = store.data().gate.kill_switch();
        let cpu = Arc::clone(&store.data().gate.cpu);
        EnvironmentHost {
            shared: Arc::new(Shared {
                host,
                plugin: run.plugin,
                alias: run.alias,
                task: run.task,
                meter: run.meter,
                logs,
                opened: AtomicBool::new(false),
                kill,
                cpu,
                instance: Arc::new(tokio::sync::Mutex::new(Instance::Fresh(Box::new(store)))),
                records: Mutex::default(),
            }),
        }
    }

    /// The steps since the last reset.
    pub fn steps(&self) -> Vec<Step> {
        self.shared.records().steps.clone()
    }

    /// Why the plugin trapped or failed, if it did: evidence for `environment-failure`.
    pub fn failure(&self) -> Option<String> {
        self.shared.records().failure.clone()
    }

    /// The same in parts, where the plugin was at fault.
    pub fn plugin_failure(&self) -> Option<PluginFailure> {
        self.shared.records().plugin_failure.as_deref().cloned()
    }

    /// What the plugin logged.
    pub fn logs(&self) -> Vec<LogLine> {
        self.shared.logs.lines()
    }

    /// Tells the plugin that the episode is over and drops the instance. Bounded by 5 s; a plugin that needs longer, or
    /// still runs a call that was given up, is stopped. Later calls are `invalid`.
    pub async fn end_episode(&self) {
        let shared = Arc::clone(&self.shared);
        let closing = self.shared.spawn(move |instance| {
            Box::pin(async move {
            if let Instance::Live(mut live) = std::mem::replace(instance, Instance::Gone) {
                let plugin = &live.plugin;
                if let Err(error) = plugin.espalier_environment_provider().call_close(&mut live.store).await {
                    let text = trap::report(&error, live.store.data(), "provider.close").text;
                    tracing::warn!(plugin = %shared.alias, text, "environment plugin failed while closing");
                }
            }
            Ok(())
            })
        });
        // On the engine's runtime, like every timer.
        let kill = Arc::clone(&self.shared.kill);
        let bounded = self.shared.host.io.spawn(async move {
            if tokio::time::timeout(CLOSE_WALL, closing).await.is_err() {
                kill.store(true, Ordering::Relaxed);
            }
        });
        let _ = bounded.await;
        self.shared.logs.end_lines();
    }
}

impl Drop for EnvironmentHost {
    fn drop(&mut self) {
        self.shared.kill.store(true, Ordering::Relaxed);
    }
}

/// Leaves steps, logs and time; that its plugin failed is a loss of the attempt.
#[async_trait]
impl AttemptCapability for EnvironmentHost {
    async fn close(&self, draft: &mut Draft) {
        self.end_episode().await;
        let records = self.shared.records();
        draft.steps.clone_from(&records.steps);
        draft.env_time = records.env_time;
        draft.logs.extend(self.shared.logs.lines());
        draft.log_bytes_dropped += self.shared.logs.dropped_bytes();
        draft.plugins.failures.extend(records.plugin_failure.as_deref().cloned());
        for export in &records.served {
            draft.plugins.serve(self.shared.plugin.digest(), &format!("provider.{export}"));
        }
    }

    fn lost(&self) -> Option<Lost> {
        self.failure().map(Lost::Environment)
    }
}

#[async_trait]
impl Environments for EnvironmentHost {
    async fn open(&self) -> Result<Box<dyn Environment>, Failure> {
        if self.shared.opened.swap(true, Ordering::AcqRel) {
            return Err(Failure::Invalid("the environment is open already".to_owned()));
        }
        Ok(Box::new(OpenWorld { shared: Arc::clone(&self.shared) }))
    }
}

/// The handle that the harness's side holds.
struct OpenWorld {
    shared: Arc<Shared>,
}

#[async_trait]
impl Environment for OpenWorld {
    async fn reset(&mut self) -> Result<Observation, Failure> {
        let task = task_out(TaskView::clone(&self.shared.task));
        let shared = Arc::clone(&self.shared);
        self.shared
            .call("reset", move |live: &mut Live| {
                Box::pin(async move {
                    let provider = live.plugin.espalier_environment_provider();
                    let returned = provider.call_reset(&mut live.store, &task).await;
                    let seen = observation_in(shared.returned("reset", returned, &live.store)?);
                    live.stage = Stage::Running;
                    shared.records().steps.clear();
                    Ok(seen)
                })
            })
            .await
    }

    async fn step(&mut self, action: String) -> Result<StepResult, Failure> {
        let shared = Arc::clone(&self.shared);
        self.shared
            .call("step", move |live: &mut Live| {
                Box::pin(async move {
                    live.in_episode()?;
                    let turn = shared.meter.turns().saturating_sub(1);
                    let provider = live.plugin.espalier_environment_provider();
                    let returned = provider.call_step(&mut live.store, &action).await;
                    let result = step_in(shared.returned("step", returned, &live.store)?);
                    check_step(&result)
                        .map_err(|stop| trap::report(&stop.into(), live.store.data(), "provider.step"))?;
                    if result.done {
                        live.stage = Stage::Done;
                    }
                    shared.records().steps.push(Step {
                        turn,
                        action,
                        observation: result.observation.text.clone(),
                        reward: result.reward,
                        done: result.done,
                        info: result.info.clone(),
                    });
                    Ok(result)
                })
            })
            .await
    }

    async fn actions(&mut self) -> Result<Vec<String>, Failure> {
        let shared = Arc::clone(&self.shared);
        self.shared
            .call("actions", move |live: &mut Live| {
                Box::pin(async move {
                    live.in_episode()?;
                    let provider = live.plugin.espalier_environment_provider();
                    let returned = provider.call_actions(&mut live.store).await;
                    shared.returned("actions", returned, &live.store)
                })
            })
            .await
    }
}

impl Live {
    fn in_episode(&self) -> Result<(), Fault> {
        match self.stage {
            Stage::Running => Ok(()),
            Stage::BeforeReset => Err(Fault::Misuse("the environment was not reset yet".to_owned())),
            Stage::Done => Err(Fault::Misuse("the episode is done; reset starts another".to_owned())),
        }
    }
}

fn check_step(result: &StepResult) -> Result<(), Stop> {
    if let Some(reward) = result.reward.filter(|reward| !reward.is_finite()) {
        return Err(Stop::InvalidData(format!("the step's reward is {reward}; a reward is finite")));
    }
    check_json("the step's info", &result.info)
}

/// The future of one call of the plugin.
type CallFuture<'a, T> = std::pin::Pin<Box<dyn Future<Output = Result<T, Fault>> + Send + 'a>>;

impl Shared {
    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock()
    }

    /// Runs one export on the guests' threads, records its time, and turns a fault into what the harness is told.
    async fn call<T: Send + 'static>(
        self: &Arc<Self>,
        name: &'static str,
        call: impl for<'a> FnOnce(&'a mut Live) -> CallFuture<'a, T> + Send + 'static,
    ) -> Result<T, Failure> {
        {
            let mut records = self.records();
            if let Some(text) = &records.failure {
                return Err(Failure::Unavailable(text.clone()));
            }
            if let Some(before) = records.given_up {
                let text = format!(
                    "environment {}: {before} did not end in time, and the world is unknown since",
                    self.alias
                );
                records.failure = Some(text.clone());
                return Err(Failure::Unavailable(text));
            }
        }
        let started = Instant::now();
        let mut given_up = NoteOnDrop { shared: self, name, armed: true };
        let shared = Arc::clone(self);
        let result = self
            .spawn(move |instance| {
                Box::pin(async move {
                    let live = shared.live(instance).await?;
                    live.store.set_epoch_deadline(1);
                    live.store.data().gate.cpu.note_call();
                    call(live).await
                })
            })
            .await
            .unwrap_or_else(|error| Err(Fault::Broken(format!("the plugin host failed: {error}"), None)));
        given_up.armed = false;
        self.records().env_time += started.elapsed();
        match result {
            Ok(value) => {
                self.records().served.insert(name);
                Ok(value)
            }
            Err(Fault::Misuse(text)) => Err(Failure::Invalid(text)),
            Err(Fault::Broken(text, failure)) => {
                let mut records = self.records();
                records.failure = Some(text.clone());
                records.plugin_failure = failure;
                drop(records);
                Err(Failure::Unavailable(text))
            }
        }
    }

    /// Runs a job on the instance, alone. The task ends by the plugin's own limits, or by the kill switch; whoever waits
    /// for it may leave. A fault of the plugin drops the instance.
    fn spawn<T: Send + 'static>(
        &self,
        job: impl for<'a> FnOnce(&'a mut Instance) -> CallFuture<'a, T> + Send + 'static,
    ) -> tokio::task::JoinHandle<Result<T, Fault>> {
        let instance = Arc::clone(&self.instance);
        self.host.spawn_detached(Arc::clone(&self.cpu), async move {
            let mut instance = instance.lock_owned().await;
            let result = job(&mut instance).await;
            if let Err(Fault::Broken(..)) = &result {
                *instance = Instance::Gone;
            }
            result
        })
    }

    /// The running instance; it is made on the first call.
    async fn live<'a>(&self, instance: &'a mut Instance) -> Result<&'a mut Live, Fault> {
        if let Instance::Fresh(_) = instance {
            let place = self.host.places.take(self.plugin.loaded.places).await;
            let Instance::Fresh(mut store) = std::mem::replace(instance, Instance::Gone) else {
                unreachable!("it is fresh")
            };
            let Pre::Environment(pre) = &self.plugin.loaded.pre else {
                return Err(Fault::Broken(self.plugin.not_a(World::Environment), None));
            };
            match pre.instantiate_async(&mut *store).await {
                Ok(plugin) => {
                    let stage = Stage::BeforeReset;
                    let live = Live { store: *store, plugin, stage, _place: place };
                    *instance = Instance::Live(Box::new(live));
                }
                Err(error) => {
                    return Err(trap::report(&error, store.data(), "instantiation").into());
                }
            }
        }
        match instance {
            Instance::Live(live) => Ok(live),
            _ => Err(Fault::Misuse("the environment is closed".to_owned())),
        }
    }

    /// The value of an export, or how the plugin failed.
    fn returned<T>(
        &self,
        name: &str,
        returned: wasmtime::Result<Result<T, crate::bindings::harness::espalier::base::types::Failure>>,
        store: &Store<Guest>,
    ) -> Result<T, Fault> {
        match returned {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(failure)) => {
                let failure = failure_in(failure);
                let text = format!("environment {} failed in {name}: {failure}", self.alias);
                let failure = trap::returned(store.data(), &format!("provider.{name}"), &failure);
                Err(Fault::Broken(text, Some(Box::new(failure))))
            }
            Err(error) => Err(trap::report(&error, store.data(), &format!("provider.{name}")).into()),
        }
    }
}

/// Notes a call whose caller left before it was ready.
struct NoteOnDrop<'a> {
    shared: &'a Shared,
    name: &'static str,
    armed: bool,
}

impl Drop for NoteOnDrop<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.shared.records().given_up = Some(self.name);
        }
    }
}
