//! What is asked while rollouts are scored: judges, and rewards of groups that have a model.

use super::{ExperimentError, ExperimentFile, POLICY};
use crate::experiment::source::Source;
use espalier_inference::config::ModelKind;

/// What judges and rewards of groups ask, and what judges are called.
pub(super) fn check(file: &ExperimentFile, source: &Source) -> Result<(), ExperimentError> {
    for (index, judge) in file.judges.iter().enumerate() {
        let at = |key: &str| format!("judges.{index}.{key}");
        if let Err((key, problem)) = judge.check() {
            let hint = "see \"Judges\" in docs/experiments.md";
            return Err(source.refuse(&at(&key), format!("`{}` {problem}", at(&key)), hint));
        }
        check_model(file, source, &at("model"), &judge.model)?;
        let is_text = file.models.get(&judge.model).is_some_and(|model| model.kind == ModelKind::OpenAiChat);
        if judge.trained && is_text {
            let problem = format!(
                "`{}`, but `models.{}` is of kind \"openai-chat\", whose answers have no token ids",
                at("trained"),
                judge.model
            );
            let hint = "train a judge behind llama-cpp, vllm or sglang";
            return Err(source.refuse(&at("trained"), problem, hint));
        }
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let whole = |name: &&String| (1..=64).contains(&name.len()) && name.chars().all(fits);
        if let Some(name) = judge.name.as_ref().filter(|name| !whole(name)) {
            let problem = format!("`{}` is {name:?}", at("name"));
            let hint = "use 1 to 64 of letters, digits, `-`, `_` and `.`";
            return Err(source.refuse(&at("name"), problem, hint));
        }
    }
    for (index, reward) in file.group_rewards.iter().enumerate() {
        let at = |key: &str| format!("group_rewards.{index}.{key}");
        let hint = "see \"Rewards of a group\" in docs/experiments.md";
        if let Err((key, problem)) = reward.limits.check() {
            return Err(source.refuse(&at(&key), format!("`{}` {problem}", at(&key)), hint));
        }
        match &reward.model {
            Some(model) => check_model(file, source, &at("model"), model)?,
            None if !reward.limits.are_default() => {
                let problem =
                    format!("`{}` are for a reward that asks a model, but it has no `model`", at("limits"));
                return Err(source.refuse(&at("limits"), problem, hint));
            }
            None => {}
        }
    }
    Ok(())
}

/// Whether a model can be asked while rollouts are scored.
fn check_model(
    file: &ExperimentFile,
    source: &Source,
    key: &str,
    model: &str,
) -> Result<(), ExperimentError> {
    if model == POLICY {
        let problem = format!("`{key}` is the model under training, whose calls are those of the rollout");
        let hint = "to let a model judge itself, name the same server once more: `[models.judge]`";
        return Err(source.refuse(key, problem, hint));
    }
    if !file.models.contains_key(model) {
        let problem = format!("`{key}` is {model:?}, which `[models]` does not have");
        return Err(source.refuse(
            key,
            problem,
            &format!("add `[models.{model}]`, or name one of its models"),
        ));
    }
    Ok(())
}
