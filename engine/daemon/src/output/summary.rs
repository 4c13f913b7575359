//! The table at the end of a run, and at the head of `show RUN`: the same lines from the same figures.

use super::table::{Align, Cell, Table};
use super::text::{count, counted, duration, score, share};
use super::{Look, styles};
use espalier_core::ending::{Assembly, StopReason};
use espalier_core::samples::{GroupStatus, TokenSums};
use espalier_core::signal::UnscoredCause;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// What is said of a whole run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunFigures {
    /// In the store.
    pub run_id: String,
    /// The experiment's name.
    pub name: String,
    /// `finished`, `interrupted`, `running` ...
    pub state: String,
    /// Tasks that the run takes; `None` where it is not recorded.
    pub tasks: Option<u64>,
    /// Tasks of the file, where it has more of them than the run takes.
    pub tasks_read: u64,
    /// Task lines that were skipped.
    pub tasks_rejected: u64,
    /// Groups by status.
    pub groups: BTreeMap<GroupStatus, u64>,
    /// Groups that are not closed.
    pub groups_open: u64,
    /// Rollouts by how they ended.
    pub endings: BTreeMap<StopReason, u64>,
    /// Earlier attempts of rollouts, by how they ended.
    pub abandoned: BTreeMap<StopReason, u64>,
    /// Rollouts that a reward gave no score, by why.
    pub unscored: BTreeMap<UnscoredCause, u64>,
    /// Fresh rollouts in the place of ones that ended without a reward.
    pub replacements: u64,
    /// Rollouts that were not chosen for their group.
    pub not_chosen: u64,
    /// Rollouts with a reward.
    pub scored: u64,
    /// Rollouts that solved their task.
    pub solved: u64,
    /// Over the scored ones.
    pub mean_reward: Option<f64>,
    /// Over all attempts.
    pub tokens: TokenSums,
    /// Time that was worked on it; `None` where it is not recorded.
    pub elapsed: Option<Duration>,
}

impl RunFigures {
    /// Rollouts that ended for good.
    pub fn rollouts(&self) -> u64 {
        self.endings.values().sum()
    }

    /// The table, at most as wide as the terminal.
    pub fn lines(&self, look: &Look) -> Vec<String> {
        let mut table = Table::new(&[("", Align::Left), ("", Align::Left)]);
        let mut row = |name: &str, text: Cell| table.row(vec![Cell::styled(name, styles::FAINT), text]);
        row("run", Cell::styled(format!("{} ({})", self.run_id, self.state), styles::STRONG));
        if let Some(tasks) = self.tasks {
            let rejected = match self.tasks_rejected {
                0 => String::new(),
                n => format!(", {} skipped", counted(n, "bad line")),
            };
            let taken_of = if self.tasks_read > tasks {
                format!(" of {} (tasks.limit)", count(self.tasks_read))
            } else {
                String::new()
            };
            row("tasks", format!("{}{taken_of}{rejected}", count(tasks)).into());
        }
        row("groups", self.groups_text().into());
        let replaced = match self.replacements {
            0 => String::new(),
            n => format!(", of them {}", counted(n, "replacement")),
        };
        let not_chosen = match (self.not_chosen, self.replacements) {
            (0, _) => String::new(),
            (n, 0) => format!(", of them {} not chosen", count(n)),
            (n, _) => format!(", {} not chosen", count(n)),
        };
        row("rollouts", format!("{}{replaced}{not_chosen}", count(self.rollouts())).into());
        let solved = format!(
            "{} of {} scored ({})",
            count(self.solved),
            count(self.scored),
            share(self.solved, self.scored)
        );
        row("solved", solved.into());
        row("mean reward", score(self.mean_reward).into());
        row(
            "tokens",
            format!(
                "{} sampled = {} trained + {} masked + {} dropped",
                count(self.tokens.sampled),
                count(self.tokens.trained),
                count(self.tokens.masked),
                count(self.tokens.dropped)
            )
            .into(),
        );
        if !self.tokens.close() {
            row("", Cell::styled("the three sums do not add up to the sampled tokens", styles::BAD));
        }
        if let Some(elapsed) = self.elapsed {
            row("time", duration(elapsed).into());
        }
        let mut lines = table.lines(look);
        if !self.endings.is_empty() {
            lines.push(String::new());
            let mut endings = Table::new(&[
                ("ended by", Align::Left),
                ("rollouts", Align::Right),
                ("share", Align::Right),
                ("", Align::Left),
            ]);
            for (reason, n) in by_count(&self.endings) {
                let row = reason.row();
                let style = match row.assembly {
                    Assembly::Usable => styles::GOOD,
                    Assembly::Backfill => styles::WARN,
                    Assembly::Excluded => styles::BAD,
                };
                endings.row(vec![
                    Cell::styled(reason.as_str(), style),
                    count(n).into(),
                    share(n, self.rollouts()).into(),
                    Cell::styled(row.status.as_str(), styles::FAINT),
                ]);
            }
            lines.extend(endings.lines(look));
        }
        let unscored = self.unscored.iter().map(|(cause, n)| (cause.as_str(), *n));
        lines.extend(causes("without a score for", "rollouts", unscored.collect(), look));
        let abandoned = by_count(&self.abandoned).into_iter().map(|(reason, n)| (reason.as_str(), n));
        lines.extend(causes("tried again after", "attempts", abandoned.collect(), look));
        lines
    }

    fn groups_text(&self) -> String {
        let mut parts: Vec<String> = self
            .groups
            .iter()
            .filter(|(_, n)| **n > 0)
            .map(|(status, n)| format!("{} {}", count(*n), status.as_str()))
            .collect();
        if self.groups_open > 0 {
            parts.push(format!("{} open", count(self.groups_open)));
        }
        if parts.is_empty() { "none yet".to_owned() } else { parts.join(", ") }
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let groups: serde_json::Map<String, Value> =
            self.groups.iter().map(|(status, n)| (status.as_str().to_owned(), json!(n))).collect();
        let endings: serde_json::Map<String, Value> =
            self.endings.iter().map(|(reason, n)| (reason.as_str().to_owned(), json!(n))).collect();
        json!({
            "run_id": self.run_id,
            "name": self.name,
            "state": self.state,
            "tasks": self.tasks,
            "tasks_read": self.tasks.map(|tasks| self.tasks_read.max(tasks)),
            "tasks_rejected": self.tasks_rejected,
            "groups": groups,
            "groups_open": self.groups_open,
            "rollouts": self.rollouts(),
            "replacements": self.replacements,
            "not_chosen": self.not_chosen,
            "scored": self.scored,
            "solved": self.solved,
            "mean_reward": self.mean_reward,
            "endings": endings,
            "tokens": {
                "sampled": self.tokens.sampled,
                "trained": self.tokens.trained,
                "masked": self.tokens.masked,
                "dropped": self.tokens.dropped,
            },
            "elapsed_ms": self.elapsed.map(|elapsed| elapsed.as_millis() as u64),
        })
    }
}

/// A table of what was counted; nothing where nothing was.
fn causes(title: &str, counted: &str, found: Vec<(&str, u64)>, look: &Look) -> Vec<String> {
    if found.is_empty() {
        return Vec::new();
    }
    let mut table = Table::new(&[(title, Align::Left), (counted, Align::Right)]);
    for (cause, n) in found {
        table.row(vec![Cell::styled(cause, styles::WARN), count(n).into()]);
    }
    [vec![String::new()], table.lines(look)].concat()
}

fn by_count(endings: &BTreeMap<StopReason, u64>) -> Vec<(StopReason, u64)> {
    let mut list: Vec<_> = endings.iter().filter(|(_, n)| **n > 0).map(|(reason, n)| (*reason, *n)).collect();
    list.sort_by_key(|(reason, n)| (std::cmp::Reverse(*n), *reason));
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_fits_eighty_columns() {
        let figures = RunFigures {
            run_id: "textcraft-3fa9c1d2".into(),
            name: "textcraft".into(),
            state: "finished".into(),
            tasks: Some(48),
            tasks_read: 544,
            tasks_rejected: 1,
            groups: [(GroupStatus::Ready, 45), (GroupStatus::Short, 2), (GroupStatus::Failed, 1)].into(),
            endings: [(StopReason::LimitTurns, 120), (StopReason::Submitted, 70), (StopReason::GuestTrap, 4)]
                .into(),
            abandoned: [(StopReason::OutOfMemory, 3), (StopReason::Infrastructure, 1)].into(),
            unscored: [(UnscoredCause::Wall, 2)].into(),
            replacements: 2,
            scored: 190,
            solved: 41,
            mean_reward: Some(0.2158),
            tokens: TokenSums { sampled: 12_345, trained: 11_900, masked: 400, dropped: 45 },
            elapsed: Some(Duration::from_secs(185)),
            ..RunFigures::default()
        };
        let lines = figures.lines(&Look { colour: false, width: 80, terminal: true });
        assert!(lines.iter().all(|line| crate::output::text::width(line) <= 80));
        insta::assert_snapshot!(lines.join("\n"));
    }
}
