//! `espalier show RUN RUN ...`: several runs side by side.

use super::show::{view_json, view_of};
use super::{Context, ShowArgs};
use crate::cli::exit::Exit;
use crate::output::compare_view::{CompareView, Compared, DifferingKey, TaskRewards};
use crate::output::problem::Problem;
use espalier_store::{Store, StoreError, differences};
use serde_json::Value;
use std::collections::BTreeMap;

/// Most runs of one comparison.
const RUNS_MAX: usize = 8;

pub(super) async fn compare(context: &mut Context, store: &Store, args: &ShowArgs) -> Result<Exit, Problem> {
    if args.tokens || args.calls || args.logs {
        return Err(Problem::new(Exit::Input, "--tokens, --calls and --logs need a single rollout")
            .hint("give only the name of the rollout; several names are runs, shown side by side"));
    }
    if args.ids.len() > RUNS_MAX {
        return Err(Problem::new(
            Exit::Input,
            format!("{} runs; at most {RUNS_MAX} can be shown side by side", args.ids.len()),
        )
        .hint("name fewer runs"));
    }
    let (mut runs, mut values, mut meanings) = (Vec::new(), Vec::new(), Vec::new());
    for id in &args.ids {
        let run_id = store.resolve_run(id).await.map_err(|error| match error {
            StoreError::NotFound { id, place, .. } => {
                Problem::new(Exit::Input, format!("no run `{id}` in {place}"))
                    .hint("with several names, each must be a run; `espalier list` shows the runs")
            }
            other => other.into(),
        })?;
        let view = view_of(store, &run_id, usize::MAX).await?;
        let (_, meaning) = store.run_experiment(&run_id).await?;
        meanings.push(meaning);
        if context.common.json {
            values.push(view_json(&view));
        }
        let mut tasks = BTreeMap::new();
        for line in &view.groups {
            let task: &mut TaskRewards = tasks.entry(line.group.opened.task_id.clone()).or_default();
            task.add(&line.attempts);
        }
        runs.push(Compared {
            run: view.run,
            state: view.state,
            totals: view.totals,
            versions: view.versions,
            tasks,
        });
    }
    let view = CompareView { runs, differences: differing(&meanings), all: args.all };
    if context.common.json {
        context.out.json(&view.json(&values))?;
        return Ok(Exit::Done);
    }
    for line in view.lines(&context.out.look) {
        context.out.line(&line)?;
    }
    Ok(Exit::Done)
}

/// The keys in which any meaning differs from the first.
fn differing(meanings: &[Value]) -> Vec<DifferingKey> {
    let mut keys: BTreeMap<String, Vec<Option<String>>> = BTreeMap::new();
    for (place, meaning) in meanings.iter().enumerate().skip(1) {
        for difference in differences(&meanings[0], meaning) {
            let values = keys.entry(difference.key).or_insert_with(|| vec![difference.was; meanings.len()]);
            values[place] = difference.is;
        }
    }
    keys.into_iter().map(|(key, values)| DifferingKey { key, values }).collect()
}
