//! The model that a judge or a reward of groups asks while rollouts are scored: one model, with limits, seeds and names of its own for
//! each try.

use super::{GroupContext, Runner};
use espalier_core::attempt::Owner;
use espalier_core::host::Blobs;
use espalier_core::judge::{JudgeLimits, MODEL};
use espalier_core::limits::Limits;
use espalier_core::meter::Meter;
use espalier_core::samples::Call;
use espalier_core::seed::{Purpose, SeedScope};
use espalier_core::trajectory::ModelOutput;
use espalier_inference::models::{RolloutContext, RolloutModels};
use espalier_plugin::Job;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Who asks.
pub(super) struct Asker<'a> {
    /// The experiment's name of the model.
    pub(super) model: &'a str,
    pub(super) limits: JudgeLimits,
    /// The rollout that it is asked about; 0 where these are all of a group.
    pub(super) rollout_index: u32,
    /// Place among all that ask, from 0.
    pub(super) place: u32,
    /// Names its calls, with the number of the try.
    pub(super) owner: String,
    pub(super) blobs: Arc<dyn Blobs>,
}

impl Asker<'_> {
    /// The number of its next try, where these calls were made already.
    pub(super) fn next_try<'c>(&self, call_ids: impl Iterator<Item = &'c str>) -> u32 {
        let tried = call_ids.filter_map(|id| {
            let rest = id.strip_prefix(&self.owner)?.strip_prefix('.')?;
            rest.split('.').next()?.parse::<u32>().ok()
        });
        tried.max().map_or(0, |last| last + 1)
    }

    /// A call of the plugin with its own budgets, within `limits.scoring_wall`.
    pub(super) fn bound(&self, group: &GroupContext, job: Job) -> Job {
        let wall = self.limits.wall.map_or(job.wall, |wall| wall.0.min(job.wall));
        Job { meter: self.meter(group), wall, ..job }
    }

    /// The budgets of a rollout, but for what is counted of the model.
    fn meter(&self, group: &GroupContext) -> Arc<Meter> {
        let JudgeLimits { calls, sampled_tokens, .. } = self.limits;
        let rollout = group.limits.clone();
        Arc::new(Meter::new(Limits {
            turns: calls,
            tokens: None,
            sampled_tokens,
            turn_wall: None,
            ..rollout
        }))
    }
}

impl Runner {
    /// The one model of a try, under the name by which every judge opens it and under its own.
    pub(super) fn asked_models(
        &self,
        group: &GroupContext,
        asker: &Asker<'_>,
        tried: u32,
    ) -> Arc<RolloutModels> {
        let model = self.models.get(asker.model);
        let named = [MODEL, asker.model].map(str::to_owned);
        let models: BTreeMap<_, _> =
            named.into_iter().filter_map(|name| Some((name, Arc::clone(model?)))).collect();
        let (run_seed, repeat, rollout_index) = (self.seed, group.repeat, asker.rollout_index);
        let (task, judge) = (Arc::clone(&group.task), asker.place);
        let seed = move |n| {
            let scope = SeedScope { run_seed, task: &task.id, task_seed: task.seed, repeat, rollout_index };
            scope.seed(Purpose::Judge { judge, tried }, n)
        };
        let owner = format!("{}.{tried}", asker.owner);
        let context = RolloutContext {
            policy: asker.model.to_owned(),
            owner: Owner::Attempt(owner.clone()),
            session_id: owner.into(),
            meter: asker.meter(group),
            seed: Box::new(seed),
            sent: None,
            edges: None,
            blobs: Some(Arc::clone(&asker.blobs)),
        };
        Arc::new(RolloutModels::new(Arc::new(models), context))
    }
}

/// What the tries of one plugin sampled.
#[derive(Default)]
pub(super) struct Asked(Mutex<Sampled>);

#[derive(Default)]
pub(super) struct Sampled {
    /// Of all tries.
    pub(super) calls: Vec<Call>,
    /// Of the last one.
    pub(super) last: ModelOutput,
}

impl Asked {
    pub(super) fn note(&self, output: ModelOutput) {
        let mut sampled = self.0.lock();
        sampled.calls.extend(output.calls.iter().cloned());
        sampled.last = output;
    }

    pub(super) fn into_inner(self) -> Sampled {
        self.0.into_inner()
    }
}
