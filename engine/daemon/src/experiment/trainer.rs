//! `[tasks.trainer]`: tasks that a trainer posts while the run goes on.

use super::source::Source;
use super::{ExperimentError, ExperimentFile, POLICY, TaskOrder, TasksConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[tasks.trainer]`: tasks that a trainer posts. Not part of what a run is, but that it has them from a trainer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TrainerConfig {
    /// Most tasks that wait for a group; further ones are refused until some have one. 1 to 100,000, default 256.
    pub waiting_max: u64,
    /// Servers of the policy that a task may ask to be played at, among `models.policy.url` and `urls`. Default: none.
    pub endpoints: Vec<String>,
}

impl Default for TrainerConfig {
    fn default() -> Self {
        TrainerConfig { waiting_max: 256, endpoints: Vec::new() }
    }
}

/// What a trainer posts is bounded by it alone.
pub(super) fn check(
    trainer: &TrainerConfig,
    tasks: &TasksConfig,
    source: &Source,
) -> Result<(), ExperimentError> {
    let others = [
        ("source", tasks.source.is_some()),
        ("plugin", tasks.plugin.is_some()),
        ("settings", !tasks.settings.is_empty()),
        ("batch", tasks.batch.is_some()),
        ("adapt", tasks.adapt.is_some()),
        ("grants", !tasks.grants.is_empty()),
        ("curriculum", tasks.curriculum.is_some()),
        ("limit", tasks.limit.is_some()),
        ("repeat", tasks.repeat > 1),
        ("order", tasks.order != TaskOrder::File),
    ];
    if let Some((key, _)) = others.into_iter().find(|(_, given)| *given) {
        let key = format!("tasks.{key}");
        let problem = format!("`{key}` cannot be combined with `tasks.trainer`: a trainer posts the tasks");
        return Err(source.refuse(&key, problem, "leave one of them out"));
    }
    if !(1..=100_000).contains(&trainer.waiting_max) {
        let problem = format!("`tasks.trainer.waiting_max` is {}, expected 1 to 100000", trainer.waiting_max);
        return Err(source.refuse("tasks.trainer.waiting_max", problem, "choose a number in that range"));
    }
    Ok(())
}

/// The servers that tasks may name are the policy's own; schedules by the place of a group would count evaluation.
pub(super) fn check_rest(
    trainer: &TrainerConfig,
    file: &ExperimentFile,
    source: &Source,
) -> Result<(), ExperimentError> {
    let own = file.models.get(POLICY).map(|policy| policy.servers()).unwrap_or_default();
    let other = trainer.endpoints.iter().find(|url| !own.contains(&url.as_str()));
    if let Some(url) = other {
        let problem = format!("`tasks.trainer.endpoints` has {url:?}, which is no server of `models.policy`");
        let hint = "name some of `models.policy.urls`, written alike";
        return Err(source.refuse("tasks.trainer.endpoints", problem, hint));
    }
    if file.step_budget.as_ref().is_some_and(|budget| budget.every.is_none() || budget.step_groups.is_some())
    {
        let problem = "`step_budget` counts groups, and with `tasks.trainer` some are for evaluation";
        let hint = "use `every` without `step_groups`: the trainer says its step with new weights";
        return Err(source.refuse("step_budget", problem.to_owned(), hint));
    }
    Ok(())
}
