//! Running a harness: one instance, one call of `run`, and what it left behind.

use crate::bindings::harness::HarnessPluginPre;
use crate::convert::{failure_in, report_in, task_out};
use crate::gate::{Gate, GateSetup};
use crate::guest::{self, Guest, GuestSetup};
use crate::host::Inner;
use crate::logs::Logs;
use crate::plugin::Pre;
use crate::trap::{self, Stop, TrapClass};
use crate::{CancelToken, Plugin, World};
use espalier_core::ending::{HarnessEnd, Report};
use espalier_core::host::Capabilities;
use espalier_core::meter::Meter;
use espalier_core::plugin_failure::PluginFailure;
use espalier_core::task::TaskView;
use espalier_core::trajectory::{HostCall, LogLine};
use std::sync::Arc;
use wasmtime::Store;

/// The export that is called.
pub const EXPORT: &str = "harness.run";

/// One run of a harness.
pub struct HarnessRun {
    /// A plugin of the world harness.
    pub plugin: Arc<Plugin>,
    /// The name by which the experiment calls it.
    pub alias: String,
    /// What it is shown.
    pub task: TaskView,
    /// What [`Plugin::check_settings`] gave back.
    pub settings: String,
    /// What it may use.
    pub capabilities: Capabilities,
    /// The budgets of the rollout, and the limits.
    pub meter: Arc<Meter>,
    /// Seed of `random`, below 2^53.
    pub seed: u64,
    /// What `clock` says at the start, ms since 1970.
    pub start_ms: u64,
    /// Whether arguments and replies of its calls are kept, within their bounds ([`espalier_core::journal`]).
    pub record_calls: bool,
    /// Stops it: imports fail as `cancelled`, then it has the grace of a budget error.
    pub cancel: CancelToken,
}

/// What a run of a harness left.
#[derive(Debug)]
pub struct HarnessOutcome {
    /// How `run` came to its end.
    pub end: HarnessEnd,
    /// How it failed, where it did.
    pub failure: Option<Box<PluginFailure>>,
    /// Whether `limits.rollout_wall` was met.
    pub wall: bool,
    /// Whether `limits.turn_wall` was met.
    pub turn_wall: bool,
    /// Its imports, in order; the first 100,000.
    pub host_calls: Vec<HostCall>,
    /// Imports in all, those beyond `host_calls` included.
    pub host_calls_total: u64,
    /// What it logged.
    pub logs: Vec<LogLine>,
    /// Bytes of logs beyond `limits.log_bytes`.
    pub log_bytes_dropped: u64,
}

/// Runs it on the guests' threads and gathers what it left.
pub(crate) async fn run(host: &Inner, run: HarnessRun) -> HarnessOutcome {
    let Pre::Harness(pre) = &run.plugin.loaded.pre else {
        return HarnessOutcome::ended(HarnessEnd::Trapped(run.plugin.not_a(World::Harness)));
    };
    let limits = run.meter.limits().clone();
    let logs = Logs::of_rollout(&run.alias, limits.log_bytes, &run.meter);
    let gate = Gate::new(GateSetup {
        io: host.io.clone(),
        meter: run.meter,
        logs: logs.clone(),
        cancel: run.cancel,
        wall: Some(limits.rollout_wall),
        start_ms: run.start_ms,
        frozen: false,
        closed: None,
        record_calls: run.record_calls,
    });
    let cpu = Arc::clone(&gate.cpu);
    let store = guest::store(
        &host.engine,
        GuestSetup {
            alias: run.alias,
            digest: run.plugin.digest().to_owned(),
            gate,
            memory_max: limits.guest_memory,
            settings: run.settings,
            seed: run.seed,
            capabilities: run.capabilities,
        },
    );
    let (pre, places, needed) = (pre.clone(), Arc::clone(&host.places), run.plugin.loaded.places);
    let call = async move {
        let _place = places.take(needed).await;
        call(pre, store, run.task).await
    };
    match host.spawn(cpu, call).await {
        Ok(outcome) => outcome,
        Err(error) => {
            let (lines, log_bytes_dropped) = logs.take();
            HarnessOutcome {
                logs: lines,
                log_bytes_dropped,
                ..HarnessOutcome::ended(HarnessEnd::Trapped(format!("the plugin host failed: {error}")))
            }
        }
    }
}

async fn call(pre: HarnessPluginPre<Guest>, mut store: Store<Guest>, task: TaskView) -> HarnessOutcome {
    let returned = async {
        let plugin = pre.instantiate_async(&mut store).await?;
        let returned = plugin.espalier_plugin_harness().call_run(&mut store, &task_out(task)).await?;
        match returned {
            Ok(report) => checked(report_in(report)).map(Ok),
            Err(failure) => Ok(Err(failure_in(failure))),
        }
    }
    .await;
    let (end, failure) = match returned {
        Ok(returned) => {
            let failed = returned.as_ref().err();
            let failure = failed.map(|failure| Box::new(trap::returned(store.data(), EXPORT, failure)));
            (HarnessEnd::Returned(returned), failure)
        }
        Err(error) => {
            let report = trap::report(&error, store.data(), EXPORT);
            let end = match report.class {
                TrapClass::BudgetIgnored => HarnessEnd::BudgetIgnored(report.text),
                _ => HarnessEnd::Trapped(report.text),
            };
            (end, Some(report.failure))
        }
    };
    let gate = &mut store.data_mut().gate;
    let (lines, log_bytes_dropped) = gate.logs().take();
    HarnessOutcome {
        end,
        failure,
        wall: gate.wall_met(),
        turn_wall: gate.turn_wall_met(),
        host_calls_total: gate.total(),
        host_calls: gate.take_calls(),
        logs: lines,
        log_bytes_dropped,
    }
}

/// A report whose JSON is JSON.
fn checked(report: Report) -> wasmtime::Result<Report> {
    for (name, json) in [("data", Some(&report.data)), ("extra", report.extra.as_ref())] {
        if let Some(json) = json {
            check_json(&format!("report.{name}"), json)?;
        }
    }
    Ok(report)
}

/// Errors: text that is not JSON stops the guest that returned it as `invalid data`.
pub(crate) fn check_json(what: &str, json: &str) -> Result<(), Stop> {
    serde_json::from_str::<serde::de::IgnoredAny>(json).map(drop).map_err(|error| {
        let start: String = json.chars().take(60).collect();
        Stop::InvalidData(format!("{what} is not valid JSON: {error} in {start:?}"))
    })
}

impl HarnessOutcome {
    fn ended(end: HarnessEnd) -> HarnessOutcome {
        HarnessOutcome {
            end,
            failure: None,
            wall: false,
            turn_wall: false,
            host_calls: Vec::new(),
            host_calls_total: 0,
            logs: Vec::new(),
            log_bytes_dropped: 0,
        }
    }
}
