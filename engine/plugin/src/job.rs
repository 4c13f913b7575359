//! Calling a plugin: one instance, one call of one export, and what it left.
//!
//! Whatever the world, an instance is made in one place ([`Inner::store`]), takes its place and runs on the guests' threads in one
//! ([`Inner::in_instance`]), and a call ends in one ([`Inner::call`]). What the end means is the caller's: `harness`, `reward`.

use crate::bindings::harness::espalier::base::types as base;
use crate::convert::failure_in;
use crate::cpu::CpuClock;
use crate::gate::{AbortOnDrop, Gate, GateSetup};
use crate::guest::{self, Guest, GuestSetup};
use crate::host::Inner;
use crate::logs::Logs;
use crate::trap::{self, TrapClass};
use crate::{CancelToken, Plugin};
use espalier_core::failure::Failure;
use espalier_core::host::Capabilities;
use espalier_core::meter::Meter;
use espalier_core::plugin_failure::PluginFailure;
use espalier_core::trajectory::{HostCall, LogLine};
use std::sync::Arc;
use std::time::Duration;
use wasmtime::Store;

/// A call of a plugin, whatever its world.
#[derive(Clone)]
pub struct Job {
    /// The component.
    pub plugin: Arc<Plugin>,
    /// The name by which the experiment calls it.
    pub alias: String,
    /// What [`Plugin::check_settings`] gave back.
    pub settings: String,
    /// What it may use. A reward without blobs cannot be shown long texts.
    pub capabilities: Capabilities,
    /// The limits, and the budgets: those of a rollout, or of this call alone.
    pub meter: Arc<Meter>,
    /// The longest it may take: `limits.rollout_wall`, `limits.scoring_wall`.
    pub wall: Duration,
    /// What it takes for the time.
    pub clock: JobClock,
    /// Seed of `random`, below 2^53.
    pub seed: u64,
    /// Whether arguments and replies of its calls are kept, within their bounds ([`espalier_core::journal`]).
    pub record_calls: bool,
    /// Stops it: imports fail as `cancelled`, then it has the grace of a budget error.
    pub cancel: CancelToken,
}

/// What `clock` says, ms since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobClock {
    /// Real time from here on: a harness.
    Runs {
        /// At the start.
        start_ms: u64,
    },
    /// The same from first to last: what scores or makes something must not depend on when it does.
    Frozen {
        /// For all of the call.
        now_ms: u64,
    },
    /// What it said in a call that was recorded ([`espalier_core::trajectory::HostCall::clock_ms`]).
    Recorded {
        /// From each host call on, in order; then it stands.
        ms: Arc<[u64]>,
    },
}

/// One export of one world, with its arguments.
pub(crate) trait Export: Send + 'static {
    /// What it returns.
    type Value: Send + 'static;
    /// `harness.run` ...
    const NAME: &'static str;

    /// Makes the instance and calls it.
    fn call(self, store: &mut Store<Guest>) -> impl Future<Output = Returned<Self::Value>> + Send;
}

/// What an export gives back: a trap, or the WIT result.
pub(crate) type Returned<T> = wasmtime::Result<Result<T, base::Failure>>;

/// How a call came to its end.
pub(crate) enum CallEnd<T> {
    Returned(T),
    Failed(Failure),
    Trapped(String),
    /// It went on after its budget error and its grace.
    BudgetIgnored(String),
}

/// What a call left.
pub(crate) struct Called<T> {
    pub(crate) end: CallEnd<T>,
    /// How it failed; of a call that returned, what would be told if its value cannot be used. `None`: the host failed.
    pub(crate) failure: Option<Box<PluginFailure>>,
    /// Whether its wall was met.
    pub(crate) wall: bool,
    /// Whether `limits.turn_wall` was met.
    pub(crate) turn_wall: bool,
    pub(crate) host_calls: Vec<HostCall>,
    pub(crate) host_calls_total: u64,
    pub(crate) logs: Vec<LogLine>,
    pub(crate) log_bytes_dropped: u64,
}

impl<T> Called<T> {
    /// One that left nothing else.
    pub(crate) fn trapped(text: String) -> Called<T> {
        Called {
            end: CallEnd::Trapped(text),
            failure: None,
            wall: false,
            turn_wall: false,
            host_calls: Vec::new(),
            host_calls_total: 0,
            logs: Vec::new(),
            log_bytes_dropped: 0,
        }
    }

    fn of(mut store: Store<Guest>, export: &str, returned: Returned<T>) -> Called<T> {
        let (end, failure) = match returned {
            Ok(Ok(value)) => (CallEnd::Returned(value), Box::new(trap::failure(store.data(), export))),
            Ok(Err(returned)) => {
                let returned = failure_in(returned);
                let failure = trap::returned(store.data(), export, &returned);
                (CallEnd::Failed(returned), Box::new(failure))
            }
            Err(error) => {
                let report = trap::report(&error, store.data(), export);
                let end = match report.class {
                    TrapClass::BudgetIgnored => CallEnd::BudgetIgnored(report.text),
                    _ => CallEnd::Trapped(report.text),
                };
                (end, report.failure)
            }
        };
        let gate = &mut store.data_mut().gate;
        let (logs, log_bytes_dropped) = gate.logs().take();
        Called {
            end,
            failure: Some(failure),
            wall: gate.wall_met(),
            turn_wall: gate.turn_wall_met(),
            host_calls_total: gate.total(),
            host_calls: gate.take_calls(),
            logs,
            log_bytes_dropped,
        }
    }
}

/// What an instance is made of.
pub(crate) struct InstanceSetup {
    pub(crate) alias: String,
    pub(crate) digest: String,
    pub(crate) settings: String,
    pub(crate) capabilities: Capabilities,
    pub(crate) meter: Arc<Meter>,
    pub(crate) logs: Logs,
    pub(crate) wall: Option<Duration>,
    pub(crate) clock: JobClock,
    pub(crate) seed: u64,
    /// Why imports are refused altogether.
    pub(crate) closed: Option<&'static str>,
    pub(crate) record_calls: bool,
    pub(crate) cancel: CancelToken,
}

impl Inner {
    /// A store for one instance, behind a gate of its own.
    pub(crate) fn store(&self, setup: InstanceSetup) -> Store<Guest> {
        let memory_max = setup.meter.limits().guest_memory;
        let (start_ms, frozen, recorded_ms) = match setup.clock {
            JobClock::Runs { start_ms } => (start_ms, false, None),
            JobClock::Frozen { now_ms } => (now_ms, true, None),
            JobClock::Recorded { ms } => (ms.first().copied().unwrap_or(0), true, Some(ms)),
        };
        let gate = Gate::new(GateSetup {
            io: self.io.clone(),
            meter: setup.meter,
            logs: setup.logs,
            cancel: setup.cancel,
            wall: setup.wall,
            start_ms,
            frozen,
            recorded_ms,
            closed: setup.closed,
            record_calls: setup.record_calls,
        });
        let guest = GuestSetup {
            alias: setup.alias,
            digest: setup.digest,
            gate,
            memory_max,
            settings: setup.settings,
            seed: setup.seed,
            capabilities: setup.capabilities,
        };
        guest::store(&self.engine, guest)
    }

    /// Runs what makes, uses and drops an instance: on the guests' threads, as soon as there is a place for it. Owned by the
    /// handle, which aborts it.
    pub(crate) fn in_instance<T: Send + 'static>(
        &self,
        cpu: Arc<CpuClock>,
        places: u32,
        work: impl Future<Output = T> + Send + 'static,
    ) -> AbortOnDrop<T> {
        let free = Arc::clone(&self.places);
        self.spawn(cpu, async move {
            let _place = free.take(places).await;
            work.await
        })
    }

    /// Carries out a job. Dropping the future stops the guest at its next yield.
    pub(crate) async fn call<E: Export>(&self, job: Job, export: E) -> Called<E::Value> {
        let limits = job.meter.limits();
        let logs = match job.clock {
            JobClock::Runs { .. } => Logs::of_rollout(&job.alias, limits.log_bytes, &job.meter),
            JobClock::Frozen { .. } | JobClock::Recorded { .. } => Logs::new(&job.alias, limits.log_bytes),
        };
        let mut store = self.store(InstanceSetup {
            alias: job.alias,
            digest: job.plugin.digest().to_owned(),
            settings: job.settings,
            capabilities: job.capabilities,
            meter: job.meter,
            logs: logs.clone(),
            wall: Some(job.wall),
            clock: job.clock,
            seed: job.seed,
            closed: None,
            record_calls: job.record_calls,
            cancel: job.cancel,
        });
        let cpu = Arc::clone(&store.data().gate.cpu);
        let work = Box::pin(async move {
            let returned = export.call(&mut store).await;
            Called::of(store, E::NAME, returned)
        });
        self.in_instance(cpu, job.plugin.loaded.places, work).await.unwrap_or_else(|error| {
            let (lines, log_bytes_dropped) = logs.take();
            let called = Called::trapped(format!("the plugin host failed: {error}"));
            Called { logs: lines, log_bytes_dropped, ..called }
        })
    }
}
