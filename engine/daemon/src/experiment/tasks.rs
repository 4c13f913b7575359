//! `[tasks]`: where tasks come from, and what does not go together there.

use super::source::Source;
use super::{ExperimentError, TaskOrder, TasksConfig};
use espalier_core::curriculum::CurriculumConfig;
use espalier_core::generator::AdaptConfig;

/// Where tasks come from.
pub(super) fn check(tasks: &TasksConfig, source: &Source) -> Result<(), ExperimentError> {
    let refuse = |key: &str, problem: String, hint: &str| Err(source.refuse(key, problem, hint));
    if let Some(trainer) = &tasks.trainer {
        return super::trainer::check(trainer, tasks, source);
    }
    if tasks.plugin.is_none() {
        if tasks.source.is_none() {
            let hint = "add `source = \"tasks.jsonl\"`, relative to this file, the `plugin` that makes them, or `[tasks.trainer]`";
            return refuse("tasks", "`tasks` has no source".to_owned(), hint);
        }
        let of_generators = [
            ("settings", !tasks.settings.is_empty()),
            ("batch", tasks.batch.is_some()),
            ("adapt", tasks.adapt.is_some()),
            ("grants", !tasks.grants.is_empty()),
        ];
        if let Some((key, _)) = of_generators.into_iter().find(|(_, given)| *given) {
            let key = format!("tasks.{key}");
            let problem = format!("`{key}` is for a task generator, but the tasks are those of a file");
            return refuse(&key, problem, "name the generator in `tasks.plugin` in place of `tasks.source`");
        }
        if let Some(Err((key, problem))) = tasks.curriculum.as_ref().map(CurriculumConfig::check) {
            let hint = "see \"Curriculum\" in docs/training.md";
            let key = format!("tasks.curriculum.{key}");
            return refuse(&key, format!("`{key}` {problem}"), hint);
        }
        return Ok(());
    }
    if tasks.source.is_some() {
        let problem = "`tasks` has both a `source` and a `plugin`".to_owned();
        return refuse("tasks.plugin", problem, "leave one of them out");
    }
    if tasks.limit.is_none() {
        let problem =
            "`tasks.plugin` is an endless source of tasks, but there is no `tasks.limit`".to_owned();
        return refuse("tasks.plugin", problem, "add `limit = 100`, or as many tasks as the run is to take");
    }
    let of_file = "is for the tasks of a file, but `tasks.plugin` makes them";
    if tasks.repeat > 1 {
        return refuse("tasks.repeat", format!("`tasks.repeat` {of_file}"), "leave it out");
    }
    if tasks.order != TaskOrder::File {
        return refuse("tasks.order", format!("`tasks.order` {of_file}"), "leave it out");
    }
    if tasks.curriculum.is_some() {
        return refuse("tasks.curriculum", format!("`tasks.curriculum` {of_file}"), "leave it out");
    }
    if let Some(batch) = tasks.batch.filter(|batch| !(1..=1000).contains(batch)) {
        let problem = format!("`tasks.batch` is {batch}, expected 1 to 1000");
        return refuse("tasks.batch", problem, "choose a number in that range");
    }
    if let Some(AdaptConfig { below, above }) = tasks.adapt
        && !(0.0 <= below && below < above && above <= 1.0)
    {
        let problem = format!("`tasks.adapt` is below = {below}, above = {above}");
        let hint =
            "both are shares of solved rollouts, 0 to 1, and `below` is less: { below = 0.2, above = 0.8 }";
        return refuse("tasks.adapt", problem, hint);
    }
    Ok(())
}
