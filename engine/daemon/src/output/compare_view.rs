//! `show RUN RUN ...`: runs side by side. What differs in their experiments, their figures, and the tasks that they have in
//! common.
//!
//! Rewards of one task's rollouts belong together, so standard errors are by task: of a mean over the common tasks, that
//! of the tasks' means; of a difference, that of the tasks' differences, which takes out how hard each task is.

use super::table::{Align, Cell, Table};
use super::text::{count, cut, duration, score, share};
use super::versions::Versions;
use super::{Look, styles};
use espalier_core::ending::StopReason;
use espalier_store::{AttemptRow, AttemptState, RunRow, RunTotals, is_solved};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// One run of the comparison.
#[derive(Clone, Debug)]
pub struct Compared {
    /// Row and counts.
    pub run: RunRow,
    /// The word for its state.
    pub state: String,
    /// Sums.
    pub totals: RunTotals,
    /// Which components its plugins were.
    pub versions: Versions,
    /// By task.
    pub tasks: BTreeMap<String, TaskRewards>,
}

/// The rewards of one task's rollouts in one run, over all passes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TaskRewards {
    /// Rollouts with a reward.
    pub scored: u64,
    /// How many of these have a full reward.
    pub solved: u64,
    /// Sum of the rewards.
    pub sum: f64,
}

impl TaskRewards {
    /// Adds what ended with a reward.
    pub fn add(&mut self, attempts: &[AttemptRow]) {
        for attempt in attempts {
            if let AttemptState::Final(result) = attempt.state
                && let Some(reward) = result.reward
            {
                self.scored += 1;
                self.solved += u64::from(is_solved(reward));
                self.sum += reward;
            }
        }
    }

    fn mean(&self) -> Option<f64> {
        (self.scored > 0).then(|| self.sum / self.scored as f64)
    }
}

/// A key that the runs' experiments do not agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DifferingKey {
    /// Dotted path.
    pub key: String,
    /// JSON text by run; `None`: it has no such key.
    pub values: Vec<Option<String>>,
}

/// All that is shown of several runs.
#[derive(Clone, Debug)]
pub struct CompareView {
    /// At least two, in the order in which they were named.
    pub runs: Vec<Compared>,
    /// In order of keys.
    pub differences: Vec<DifferingKey>,
    /// Whether every task is shown, not only those that differ most.
    pub all: bool,
}

/// A mean with its standard error; `None` where one value has none.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Mean {
    mean: f64,
    error: Option<f64>,
}

impl Mean {
    fn of(values: &[f64]) -> Option<Mean> {
        if values.is_empty() {
            return None;
        }
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let error = (values.len() > 1).then(|| (squares / (n - 1.0) / n).sqrt());
        Some(Mean { mean, error })
    }

    fn text(mean: Option<Mean>) -> String {
        match mean {
            Some(Mean { mean, error: Some(error) }) => format!("{mean:.3} \u{b1} {error:.3}"),
            Some(Mean { mean, error: None }) => score(Some(mean)),
            None => "-".to_owned(),
        }
    }

    fn json(mean: Option<Mean>) -> Value {
        mean.map_or(Value::Null, |mean| json!({ "mean": mean.mean, "standard_error": mean.error }))
    }
}

impl CompareView {
    /// Tasks shown without `--all`.
    pub const TASKS_SHOWN: usize = 10;

    /// As text. A column for each run is never cut, so many runs are wider than a narrow terminal.
    pub fn lines(&self, look: &Look) -> Vec<String> {
        let mut lines = self.figures().lines(look);
        for table in [self.words("ended by", &self.endings()), self.words("not trained", &self.excluded())] {
            if !table.is_empty() {
                lines.push(String::new());
                lines.extend(table.lines(look));
            }
        }
        let plugins = self.plugin_table();
        if !plugins.is_empty() {
            lines.push(String::new());
            lines.extend(plugins.lines(look));
        }
        lines.push(String::new());
        if self.differences.is_empty() {
            lines.push(look.paint(styles::FAINT, "the same experiment"));
        } else {
            lines.extend(self.difference_table(look).lines(look));
        }
        lines.push(String::new());
        lines.extend(self.task_lines(look));
        lines
    }

    /// For programs. `of_runs`: what `show --json` says of each.
    pub fn json(&self, of_runs: &[Value]) -> Value {
        let common = self.common();
        let differences: Vec<Value> =
            self.differences.iter().map(|one| json!({ "key": one.key, "values": one.values })).collect();
        let rewards: Vec<Value> = (0..self.runs.len())
            .map(|run| {
                json!({
                    "run_id": self.runs[run].run.run_id,
                    "mean_reward": self.runs[run].run.rollouts.mean_reward(),
                    "common_mean_reward": Mean::json(self.common_reward(&common, run)),
                    "difference_to_first": Mean::json(self.difference(&common, run)),
                })
            })
            .collect();
        let tasks: Vec<Value> = common
            .iter()
            .map(|task| {
                let of_run = |run: &Compared| {
                    let rewards = &run.tasks[*task];
                    json!({ "scored": rewards.scored, "solved": rewards.solved, "mean_reward": rewards.mean() })
                };
                json!({ "task_id": task, "runs": self.runs.iter().map(of_run).collect::<Vec<_>>() })
            })
            .collect();
        json!({ "runs": of_runs, "rewards": rewards, "differences": differences, "tasks": tasks })
    }

    fn heading(&self, first: &str) -> Table {
        let names = self.runs.iter().map(|one| (one.run.run_id.as_str(), Align::Right));
        Table::new(&std::iter::once((first, Align::Left)).chain(names).collect::<Vec<_>>())
    }

    /// The components behind each plugin's name: two runs of one experiment may have had different ones.
    fn plugin_table(&self) -> Table {
        let names: BTreeSet<&str> = self.runs.iter().flat_map(|one| one.versions.names()).collect();
        let mut table = self.heading("plugin");
        for name in names {
            let cells = self.runs.iter().map(|one| match one.versions.cell(name) {
                None => Cell::styled("-", styles::FAINT),
                Some(digests) => digests.into(),
            });
            table.row(std::iter::once(name.into()).chain(cells).collect());
        }
        table
    }

    fn figures(&self) -> Table {
        let mut table = self.heading("run");
        let common = self.common();
        let mut row = |name: &str, cell: &dyn Fn(&Compared) -> String| {
            let cells = self.runs.iter().map(|one| cell(one).into());
            table.row(std::iter::once(Cell::styled(name, styles::FAINT)).chain(cells).collect());
        };
        row("state", &|one| one.state.clone());
        row("groups", &|one| count(one.run.groups.values().sum::<u64>() + one.run.groups_open));
        row("rollouts", &|one| count(one.run.rollouts.ended));
        row("scored", &|one| count(one.run.rollouts.rewarded));
        row("solved", &|one| {
            let rollouts = &one.run.rollouts;
            format!("{} ({})", count(rollouts.solved), share(rollouts.solved, rollouts.rewarded))
        });
        row("turns", &|one| count(one.totals.turns));
        row("tokens sampled", &|one| count(one.totals.tokens.sampled));
        row("trained", &|one| count(one.totals.tokens.trained));
        row("masked", &|one| count(one.totals.tokens.masked));
        row("dropped", &|one| count(one.totals.tokens.dropped));
        row("time", &|one| one.elapsed().map_or("-".to_owned(), duration));
        row("tokens/s", &|one| one.per_second(one.totals.tokens.sampled));
        row("rollouts/s", &|one| one.per_second(one.run.rollouts.ended));
        row("wait for a call", &|one| match one.totals.calls {
            0 => "-".to_owned(),
            calls => duration(Duration::from_millis(one.totals.timing.model / calls)),
        });
        let mut row = |name: &str, cell: &dyn Fn(usize) -> String| {
            let cells = (0..self.runs.len()).map(|run| cell(run).into());
            table.row(std::iter::once(Cell::styled(name, styles::FAINT)).chain(cells).collect());
        };
        row("mean reward", &|run| score(self.runs[run].run.rollouts.mean_reward()));
        if !common.is_empty() {
            row(&format!("on {} common tasks", count(common.len() as u64)), &|run| {
                Mean::text(self.common_reward(&common, run))
            });
            row("difference", &|run| match run {
                0 => String::new(),
                run => Mean::text(self.difference(&common, run)),
            });
        }
        table
    }

    /// A row for each word that any run has, most first.
    fn words(&self, heading: &str, runs: &[BTreeMap<String, u64>]) -> Table {
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        for (word, n) in runs.iter().flatten() {
            *sums.entry(word).or_default() += n;
        }
        let mut words: Vec<_> = sums.into_iter().collect();
        words.sort_by_key(|(word, n)| (std::cmp::Reverse(*n), *word));
        let mut table = self.heading(heading);
        for (word, _) in words {
            let cells = runs.iter().map(|run| match run.get(word) {
                None => Cell::styled("-", styles::FAINT),
                Some(n) => format!("{} ({})", count(*n), share(*n, run.values().sum())).into(),
            });
            table.row(std::iter::once(word.into()).chain(cells).collect());
        }
        table
    }

    fn endings(&self) -> Vec<BTreeMap<String, u64>> {
        let word = |(reason, n): (&StopReason, &u64)| (reason.as_str().to_owned(), *n);
        self.runs.iter().map(|one| one.totals.endings.iter().map(word).collect()).collect()
    }

    fn excluded(&self) -> Vec<BTreeMap<String, u64>> {
        let of_run = |one: &Compared| {
            let words = one.totals.exclusions.iter();
            words.map(|each| (format!("{} {}", each.reason, each.how), each.tokens)).collect()
        };
        self.runs.iter().map(of_run).collect()
    }

    fn difference_table(&self, look: &Look) -> Table {
        let mut table = self.heading("differs in");
        let columns = (look.width / (self.runs.len() + 1)).max(12);
        for difference in &self.differences {
            let values = difference.values.iter().map(|value| match value {
                None => Cell::styled("(absent)", styles::FAINT),
                Some(text) => cut(text, columns).into(),
            });
            table.row(std::iter::once(difference.key.as_str().into()).chain(values).collect());
        }
        table
    }

    /// Solved in how many of the rollouts, by task; those first on which the runs are farthest apart.
    fn task_lines(&self, look: &Look) -> Vec<String> {
        let common = self.common();
        if common.is_empty() {
            return vec![look.paint(styles::FAINT, "no task in common")];
        }
        let spread = |task: &str| {
            let means = self.runs.iter().filter_map(|one| one.tasks[task].mean());
            let (least, most) = means.fold((f64::MAX, f64::MIN), |(a, b), mean| (a.min(mean), b.max(mean)));
            (most - least).max(0.0)
        };
        let mut tasks: Vec<(&str, f64)> = common.iter().map(|task| (*task, spread(task))).collect();
        tasks.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(b.0)));
        let shown = if self.all { tasks.len() } else { tasks.len().min(Self::TASKS_SHOWN) };
        let mut table = self.heading("task: solved, mean reward");
        for (task, _) in &tasks[..shown] {
            let cells = self.runs.iter().map(|one| {
                let rewards = &one.tasks[*task];
                format!("{} of {}  {:>6}", rewards.solved, rewards.scored, score(rewards.mean())).into()
            });
            table.row(std::iter::once(cut(task, look.width / 2).into()).chain(cells).collect());
        }
        let mut lines = table.lines(look);
        if shown < tasks.len() {
            let ids: Vec<&str> = self.runs.iter().map(|one| one.run.run_id.as_str()).collect();
            let hidden = count((tasks.len() - shown) as u64);
            lines.push(
                look.paint(styles::FAINT, &format!("{hidden} more: espalier show {} --all", ids.join(" "))),
            );
        }
        lines
    }

    /// Tasks that have a reward in every run.
    fn common(&self) -> BTreeSet<&str> {
        let scored = |one: &'_ Compared, task: &str| one.tasks.get(task).is_some_and(|it| it.scored > 0);
        let first = self.runs.iter().take(1).flat_map(|one| one.tasks.keys().map(String::as_str));
        first.filter(|task| self.runs.iter().all(|one| scored(one, task))).collect()
    }

    fn common_reward(&self, common: &BTreeSet<&str>, run: usize) -> Option<Mean> {
        let means: Vec<f64> = common.iter().filter_map(|task| self.runs[run].tasks[*task].mean()).collect();
        Mean::of(&means)
    }

    /// To the first run, over the tasks in common.
    fn difference(&self, common: &BTreeSet<&str>, run: usize) -> Option<Mean> {
        let of = |task: &str| Some(self.runs[run].tasks[task].mean()? - self.runs[0].tasks[task].mean()?);
        let differences: Vec<f64> = common.iter().filter_map(|task| of(task)).collect();
        Mean::of(&differences)
    }
}

impl Compared {
    /// From the first start to the last end of an attempt.
    fn elapsed(&self) -> Option<Duration> {
        self.totals.span_ms.map(|(first, last)| Duration::from_millis(last.saturating_sub(first)))
    }

    fn per_second(&self, n: u64) -> String {
        match self.elapsed().map(|elapsed| elapsed.as_secs_f64()).filter(|seconds| *seconds > 0.0) {
            Some(seconds) => format!("{:.1}", n as f64 / seconds),
            None => "-".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests;
