//! Running a harness: one call of `run`, and what it left behind.

use crate::World;
use crate::bindings::harness::HarnessPluginPre;
use crate::convert::{report_in, task_out};
use crate::guest::Guest;
use crate::host::Inner;
use crate::job::{CallEnd, Called, Export, Job, Returned};
use crate::plugin::Pre;
use crate::trap::Stop;
use espalier_core::ending::{HarnessEnd, Report};
use espalier_core::plugin_failure::PluginFailure;
use espalier_core::task::TaskView;
use espalier_core::trajectory::{HostCall, LogLine};
use wasmtime::Store;

/// The export that is called.
pub const EXPORT: &str = "harness.run";

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

struct Run {
    pre: HarnessPluginPre<Guest>,
    task: TaskView,
}

impl Export for Run {
    type Value = Report;
    const NAME: &'static str = EXPORT;

    async fn call(self, store: &mut Store<Guest>) -> Returned<Report> {
        let plugin = self.pre.instantiate_async(&mut *store).await?;
        match plugin.espalier_plugin_harness().call_run(store, &task_out(self.task)).await? {
            Ok(report) => Ok(Ok(checked(report_in(report))?)),
            Err(failure) => Ok(Err(failure)),
        }
    }
}

/// Runs it and gathers what it left.
pub(crate) async fn run(host: &Inner, job: Job, task: TaskView) -> HarnessOutcome {
    let called = match &job.plugin.loaded.pre {
        Pre::Harness(pre) => {
            let run = Run { pre: pre.clone(), task };
            host.call(job, run).await
        }
        _ => Called::trapped(job.plugin.not_a(World::Harness)),
    };
    let is_failure = !matches!(called.end, CallEnd::Returned(_));
    HarnessOutcome {
        end: match called.end {
            CallEnd::Returned(report) => HarnessEnd::Returned(Ok(report)),
            CallEnd::Failed(failure) => HarnessEnd::Returned(Err(failure)),
            CallEnd::Trapped(text) => HarnessEnd::Trapped(text),
            CallEnd::BudgetIgnored(text) => HarnessEnd::BudgetIgnored(text),
        },
        failure: called.failure.filter(|_| is_failure),
        wall: called.wall,
        turn_wall: called.turn_wall,
        host_calls: called.host_calls,
        host_calls_total: called.host_calls_total,
        logs: called.logs,
        log_bytes_dropped: called.log_bytes_dropped,
    }
}

/// The most that a report's answer, data and extra may have, bytes each: they are kept with the rollout and shown to people.
const REPORT_BYTES_MAX: usize = 16 << 20;

/// A report of a size that is kept, whose JSON is JSON.
fn checked(report: Report) -> Result<Report, Stop> {
    for (name, text) in
        [("answer", report.answer.as_ref()), ("data", Some(&report.data)), ("extra", report.extra.as_ref())]
    {
        let bytes = text.map_or(0, String::len);
        if bytes > REPORT_BYTES_MAX {
            return Err(Stop::InvalidData(format!(
                "report.{name} has {bytes} bytes, at most {REPORT_BYTES_MAX} are kept; put what is larger into a blob"
            )));
        }
    }
    for (name, json) in [("data", Some(&report.data)), ("extra", report.extra.as_ref())] {
        if let Some(json) = json {
            check_json(&format!("report.{name}"), json)?;
        }
    }
    Ok(report)
}

/// Errors: what is not valid JSON stops the guest that returned it as `invalid data`.
pub(crate) fn check_json(what: &str, json: &str) -> Result<(), Stop> {
    serde_json::from_str::<serde::de::IgnoredAny>(json).map(drop).map_err(|error| {
        let start: String = json.chars().take(60).collect();
        Stop::InvalidData(format!("{what} is not valid JSON: {error} in {start:?}"))
    })
}
