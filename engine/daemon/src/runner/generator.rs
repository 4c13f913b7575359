//! Calls of a run's task generator: its models, its sandboxes, its limits.

use super::sandboxes::{CreatedSandboxes, RunSandboxes};
use super::{Loaded, now_ms};
use espalier_core::attempt::Owner;
use espalier_core::generator::{Outcome, Request, SUMMARIES_MAX, Statistics};
use espalier_core::host::sandbox::Sandboxes;
use espalier_core::host::{Blobs, Capabilities, Models};
use espalier_core::ledger::Trainability;
use espalier_core::limits::Limits;
use espalier_core::meter::Meter;
use espalier_core::seed::batch_seed;
use espalier_core::trajectory::AttemptRecord;
use espalier_inference::models::{Model, RolloutContext, RolloutModels};
use espalier_plugin::{CancelToken, GeneratorOutcome, Job, JobClock, PluginHost};
use espalier_sandbox::rollout::{Provider, RolloutSandboxes};
use espalier_store::{AttemptState, RunWriter, StoreError, is_solved};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Calls the generator of a run. Each call has an instance, budgets and a seed of its own.
pub(crate) struct RunGenerator {
    pub(crate) host: PluginHost,
    pub(crate) run: RunWriter,
    pub(crate) models: Arc<BTreeMap<String, Arc<Model>>>,
    /// Where it is granted any.
    pub(crate) sandboxes: Option<Arc<RunSandboxes>>,
    pub(crate) limits: Limits,
    /// Calls of this session, for their names.
    pub(crate) calls: AtomicU64,
}

impl RunGenerator {
    /// Asks for tasks. With what came of it: what its models were asked, as JSON.
    pub(crate) async fn generate(&self, loaded: &Loaded, request: Request) -> (GeneratorOutcome, Value) {
        let (job, models) = self.job(loaded, request.seed);
        let outcome = self.host.generate(job, request).await;
        (outcome, asked(&models))
    }

    /// Asks for variants of a task.
    pub(crate) async fn adapt(
        &self,
        loaded: &Loaded,
        task: String,
        statistics: Statistics,
        seed: u64,
    ) -> (GeneratorOutcome, Value) {
        let (job, models) = self.job(loaded, seed);
        let outcome = self.host.adapt(job, task, statistics).await;
        (outcome, asked(&models))
    }

    /// `seed`: of the batch, or of the group whose task is adapted.
    fn job(&self, loaded: &Loaded, seed: u64) -> (Job, RolloutModels) {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let owner = format!("{}.generator.{}.{call}", self.run.run_id(), self.run.fence());
        let meter = Arc::new(Meter::new(self.limits.clone()));
        let blobs = self.run.rollout_blobs(Arc::clone(&meter)) as Arc<dyn Blobs>;
        let models = RolloutModels::new(
            Arc::clone(&self.models),
            RolloutContext {
                // No model's answers are turns of a rollout, and none trains.
                policy: String::new(),
                owner: Owner::Run(owner.clone()),
                session_id: owner.clone().into(),
                meter: Arc::clone(&meter),
                seed: Box::new(move |n| batch_seed(seed, n)),
                sent: None,
                edges: None,
                blobs: Some(Arc::clone(&blobs)),
            },
        );
        let sandboxes = self.sandboxes.as_ref().map(|run| {
            let provider = Arc::new(CreatedSandboxes::new(Arc::clone(run), owner)) as Arc<dyn Provider>;
            Arc::new(RolloutSandboxes::new(provider, Arc::clone(&blobs))) as Arc<dyn Sandboxes>
        });
        let capabilities = Capabilities {
            models: Some(Arc::new(models.clone()) as Arc<dyn Models>),
            blobs: Some(blobs),
            sandboxes,
            ..Capabilities::default()
        };
        let job = Job {
            plugin: Arc::clone(&loaded.plugin),
            alias: loaded.alias.clone(),
            settings: loaded.settings.clone(),
            capabilities,
            meter,
            wall: self.limits.rollout_wall,
            clock: JobClock::Runs { start_ms: now_ms() },
            seed,
            record_calls: false,
            cancel: CancelToken::new(),
        };
        (job, models)
    }
}

fn asked(models: &RolloutModels) -> Value {
    let output = models.output(Trainability::NotTrainable);
    let tokens: u64 = output.other_calls.iter().map(|call| u64::from(call.n_sampled)).sum();
    json!({ "calls": output.other_calls.len(), "sampled_tokens": tokens, "transcript": output.transcript })
}

/// How the task of a group went that closed: its results, by their rows; records are read of some that failed.
pub(crate) async fn statistics(run: &RunWriter, group_index: u64) -> Result<Statistics, StoreError> {
    let store = run.store();
    let mut results = Vec::new();
    let mut summaries = 0;
    for row in store.attempts(run.run_id(), group_index).await? {
        let AttemptState::Final(result) = row.state else { continue };
        let solved = result.reward.map(is_solved);
        let summary = match solved {
            Some(false) if summaries < SUMMARIES_MAX => {
                summaries += 1;
                store.record(&row).await?.map(|record| summary(&record)).unwrap_or_default()
            }
            _ => String::new(),
        };
        results.push((solved, result.stop_reason, u32::try_from(row.turns).unwrap_or(u32::MAX), summary));
    }
    let outcomes: Vec<Outcome<'_>> = results
        .iter()
        .map(|(solved, stop_reason, turns, summary)| Outcome {
            solved: *solved,
            stop_reason: *stop_reason,
            turns: *turns,
            summary,
        })
        .collect();
    Ok(Statistics::of(&outcomes))
}

/// What a rollout that was scored came to: reasons of its scores, its answer, its last turn.
fn summary(record: &AttemptRecord) -> String {
    let reasons =
        record.scores.iter().map(|scored| scored.score.reason.as_str()).find(|reason| !reason.is_empty());
    let answer = record.report.as_ref().and_then(|report| report.answer.as_deref());
    let last = record.transcript.turns.last().map(|turn| turn.message.joined_text());
    let parts = [
        Some(record.trajectory.stop_reason.as_str().to_owned()),
        reasons.map(str::to_owned),
        answer.map(|answer| format!("answered {answer:?}")),
        last.map(|text| format!("its last turn: {text}")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}
