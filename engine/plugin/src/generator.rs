//! Asking task generators for tasks, and for variants of a task.

use crate::World;
use crate::bindings::task_generator::TaskGeneratorPluginPre;
use crate::bindings::task_generator::exports::espalier::plugin::task_generator as wit;
use crate::guest::Guest;
use crate::host::Inner;
use crate::job::{CallEnd, Called, Export, Job, Returned};
use crate::plugin::Pre;
use espalier_core::generator::{Request, Statistics};
use espalier_core::plugin_failure::PluginFailure;
use espalier_core::trajectory::{HostCall, LogLine};
use wasmtime::Store;

/// The export that makes tasks.
pub const GENERATE_EXPORT: &str = "task-generator.generate";
/// The export that makes variants of one.
pub const ADAPT_EXPORT: &str = "task-generator.adapt";

/// What a call of a generator left.
#[derive(Debug)]
pub struct GeneratorOutcome {
    /// Tasks, each as one record of a task file, unchecked; or why there are none.
    pub result: Result<Vec<String>, String>,
    /// How it failed, where it did.
    pub failure: Option<Box<PluginFailure>>,
    /// Its imports.
    pub host_calls: Vec<HostCall>,
    /// What it logged.
    pub logs: Vec<LogLine>,
}

struct Generate {
    pre: TaskGeneratorPluginPre<Guest>,
    request: wit::Request,
}

impl Export for Generate {
    type Value = Vec<String>;
    const NAME: &'static str = GENERATE_EXPORT;

    async fn call(self, store: &mut Store<Guest>) -> Returned<Self::Value> {
        let plugin = self.pre.instantiate_async(&mut *store).await?;
        plugin.espalier_plugin_task_generator().call_generate(store, &self.request).await
    }
}

struct Adapt {
    pre: TaskGeneratorPluginPre<Guest>,
    task: String,
    statistics: wit::Statistics,
}

impl Export for Adapt {
    type Value = Vec<String>;
    const NAME: &'static str = ADAPT_EXPORT;

    async fn call(self, store: &mut Store<Guest>) -> Returned<Self::Value> {
        let plugin = self.pre.instantiate_async(&mut *store).await?;
        plugin.espalier_plugin_task_generator().call_adapt(store, &self.task, &self.statistics).await
    }
}

pub(crate) async fn generate(host: &Inner, job: Job, request: Request) -> GeneratorOutcome {
    let Pre::TaskGenerator(pre) = &job.plugin.loaded.pre else {
        return outcome(&job.alias, Called::trapped(job.plugin.not_a(World::TaskGenerator)));
    };
    let extra = serde_json::json!({ "batch": request.batch, "accepted": request.accepted });
    let request = wit::Request { count: request.count, seed: request.seed, extra: Some(extra.to_string()) };
    let (alias, export) = (job.alias.clone(), Generate { pre: pre.clone(), request });
    outcome(&alias, host.call(job, export).await)
}

pub(crate) async fn adapt(host: &Inner, job: Job, task: String, statistics: Statistics) -> GeneratorOutcome {
    let Pre::TaskGenerator(pre) = &job.plugin.loaded.pre else {
        return outcome(&job.alias, Called::trapped(job.plugin.not_a(World::TaskGenerator)));
    };
    let statistics = wit::Statistics {
        attempts: statistics.attempts,
        accuracy: statistics.accuracy,
        turns: statistics.turns,
        endings: statistics.endings.into_iter().collect(),
        failures: statistics.failures,
        extra: None,
    };
    let (alias, export) = (job.alias.clone(), Adapt { pre: pre.clone(), task, statistics });
    outcome(&alias, host.call(job, export).await)
}

fn outcome(alias: &str, called: Called<Vec<String>>) -> GeneratorOutcome {
    let is_failure = !matches!(called.end, CallEnd::Returned(_));
    GeneratorOutcome {
        result: match called.end {
            CallEnd::Returned(tasks) => Ok(tasks),
            CallEnd::Failed(failure) => Err(format!("task generator {alias} failed: {failure}")),
            CallEnd::Trapped(text) | CallEnd::BudgetIgnored(text) => Err(text),
        },
        failure: called.failure.filter(|_| is_failure),
        host_calls: called.host_calls,
        logs: called.logs,
    }
}
