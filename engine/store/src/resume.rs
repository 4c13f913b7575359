//! What an engine that resumes a run must know: which groups there are, and how far the open ones came.

use crate::error::StoreError;
use crate::query::{ROUNDING, SOLVED_REWARD};
use crate::run::{GroupOpened, RunWriter};
use crate::words;
use espalier_core::ending::{Status, StopReason};
use espalier_core::plugin_failure::PluginFailure;
use espalier_core::samples::GroupStatus;
use sqlx::Row;
use sqlx::any::AnyRow;
use std::collections::BTreeMap;

/// One group of the run.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupProgress {
    /// As it opened, digests of the plugins included: they hold for all its rollouts.
    pub opened: GroupOpened,
    /// `None`: it is open.
    pub status: Option<GroupStatus>,
    /// Rollouts that ever started, by place; empty for a closed group. All others lack everything.
    pub rollouts: BTreeMap<u32, RolloutProgress>,
}

/// How far a rollout came.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RolloutProgress {
    /// By number, ascending.
    pub attempts: Vec<AttemptProgress>,
}

impl RolloutProgress {
    /// The attempt that is the rollout's result.
    pub fn result(&self) -> Option<&AttemptProgress> {
        self.attempts.iter().find(|attempt| matches!(attempt.state, AttemptState::Final(_)))
    }

    /// A number that no attempt had. (That of an attempt that was cut may be used again instead.)
    pub fn next_attempt(&self) -> u32 {
        self.attempts.last().map_or(0, |attempt| attempt.attempt + 1)
    }
}

/// One attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct AttemptProgress {
    /// From 0.
    pub attempt: u32,
    /// How it stands.
    pub state: AttemptState,
    /// Tokens that were sampled in it, as far as it has a record.
    pub sampled: u64,
    /// How plugins failed in it.
    pub failures: Vec<PluginFailure>,
}

/// How an attempt stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AttemptState {
    /// Under way, by the engine that holds the lock.
    Running,
    /// Its engine died. It has no record, and counts against no bound.
    Cut,
    /// Over; another follows.
    Abandoned(AttemptResult),
    /// Over; the rollout's result.
    Final(AttemptResult),
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttemptResult {
    /// Why.
    pub stop_reason: StopReason,
    /// What became of it.
    pub status: Status,
    /// What it is worth; `None`: unscored.
    pub reward: Option<f64>,
    /// Whether its sample was removed.
    pub removed: bool,
}

impl RunWriter {
    /// Mean rewards of the rollouts that count, by group; groups without a reward, and those that do not train, are left out. `group_index`: of this group alone.
    pub async fn mean_rewards(&self, group_index: Option<u64>) -> Result<BTreeMap<u64, f64>, StoreError> {
        let all = group_index.is_none();
        let rows = sqlx::query(
            "SELECT a.group_index, AVG(a.reward) AS mean FROM attempts a JOIN groups g ON g.run_id = a.run_id \
             AND g.group_index = a.group_index AND g.purpose IS NULL WHERE a.run_id = $1 AND a.state = 'final' \
             AND a.replaced = 0 AND a.reward IS NOT NULL AND ($2 = 1 OR a.group_index = $3) GROUP BY a.group_index",
        )
        .bind(self.run_id())
        .bind(i64::from(all))
        .bind(group_index.unwrap_or_default() as i64)
        .fetch_all(self.store().database().readers())
        .await?;
        let mean = |row: &AnyRow| Ok((row.try_get::<i64, _>("group_index")? as u64, row.try_get("mean")?));
        rows.iter().map(mean).collect()
    }

    /// Shares of rollouts with a reward that count and solved their task ([`crate::query::is_solved`]), by group; groups without a reward
    /// are left out. `group_index`: of this group alone.
    pub async fn solved_shares(&self, group_index: Option<u64>) -> Result<BTreeMap<u64, f64>, StoreError> {
        let rows = sqlx::query(
            "SELECT group_index, AVG(CAST(CASE WHEN reward >= $4 THEN 1 ELSE 0 END AS DOUBLE PRECISION)) AS share FROM attempts \
             WHERE run_id = $1 AND state = 'final' AND replaced = 0 AND reward IS NOT NULL \
             AND ($2 = 1 OR group_index = $3) GROUP BY group_index",
        )
        .bind(self.run_id())
        .bind(i64::from(group_index.is_none()))
        .bind(group_index.unwrap_or_default() as i64)
        .bind(SOLVED_REWARD - ROUNDING)
        .fetch_all(self.store().database().readers())
        .await?;
        let share = |row: &AnyRow| Ok((row.try_get::<i64, _>("group_index")? as u64, row.try_get("share")?));
        rows.iter().map(share).collect()
    }

    /// Every group of the run, by place; open ones with their rollouts.
    pub async fn progress(&self) -> Result<Vec<GroupProgress>, StoreError> {
        let readers = self.store().database().readers();
        let rows = sqlx::query("SELECT * FROM groups WHERE run_id = $1 ORDER BY group_index")
            .bind(self.run_id())
            .fetch_all(readers)
            .await?;
        let mut groups = BTreeMap::new();
        for row in &rows {
            let status: Option<&str> = row.try_get("status")?;
            let status = status.map(words::parse_group_status).transpose()?;
            let opened = opened(row)?;
            groups.insert(opened.group_index, GroupProgress { opened, status, rollouts: BTreeMap::new() });
        }
        let rows = sqlx::query(
            "SELECT a.group_index, a.rollout_index, a.attempt, a.state, a.status, a.stop_reason, a.reward, a.removed, \
             a.sampled, a.failures \
             FROM attempts a JOIN groups g ON g.run_id = a.run_id AND g.group_index = a.group_index \
             WHERE a.run_id = $1 AND g.status IS NULL ORDER BY a.group_index, a.rollout_index, a.attempt",
        )
        .bind(self.run_id())
        .fetch_all(readers)
        .await?;
        for row in &rows {
            let index = row.try_get::<i64, _>("group_index")? as u64;
            let Some(group) = groups.get_mut(&index) else { continue };
            let rollout = group.rollouts.entry(row.try_get::<i64, _>("rollout_index")? as u32).or_default();
            let attempt = row.try_get::<i64, _>("attempt")? as u32;
            let failures = words::parse_failures(row.try_get("failures")?)?;
            let sampled = row.try_get::<Option<i64>, _>("sampled")?.unwrap_or_default() as u64;
            rollout.attempts.push(AttemptProgress { attempt, state: attempt_state(row)?, sampled, failures });
        }
        Ok(groups.into_values().collect())
    }
}

pub(crate) fn attempt_state(row: &AnyRow) -> Result<AttemptState, StoreError> {
    let result = || {
        Ok::<_, StoreError>(AttemptResult {
            stop_reason: words::parse_stop_reason(row.try_get("stop_reason")?)?,
            status: words::parse_status(row.try_get("status")?)?,
            reward: row.try_get("reward")?,
            removed: row.try_get::<Option<&str>, _>("removed")?.is_some(),
        })
    };
    Ok(match row.try_get::<&str, _>("state")? {
        "running" => AttemptState::Running,
        "cut" => AttemptState::Cut,
        "abandoned" => AttemptState::Abandoned(result()?),
        "final" => AttemptState::Final(result()?),
        word => {
            let text = format!("state is {word:?}");
            return Err(StoreError::Damaged { place: "a row of attempts".into(), text });
        }
    })
}

/// A row of `groups` as it opened.
pub(crate) fn opened(row: &AnyRow) -> Result<GroupOpened, StoreError> {
    Ok(GroupOpened {
        group_index: row.try_get::<i64, _>("group_index")? as u64,
        model: row.try_get("model")?,
        task_id: row.try_get("task_id")?,
        task_hash: row.try_get("task_hash")?,
        task_text: row.try_get("task_text")?,
        repeat: row.try_get::<i64, _>("task_repeat")? as u32,
        environment: row.try_get("environment")?,
        n_requested: row.try_get::<i64, _>("n_requested")? as u32,
        purpose: words::parse_purpose(row.try_get("purpose")?)?,
        endpoint: row.try_get("endpoint")?,
        dispatch_version: row.try_get("dispatch_version")?,
        deadline_ms: row.try_get::<Option<i64>, _>("deadline_ms")?.map(|ms| ms as u64),
        step_budget: row.try_get::<Option<i64>, _>("step_budget")?.map(|turns| turns as u32),
        plugins: words::json(row.try_get("plugins")?)?,
        opened_ms: row.try_get::<i64, _>("opened_ms")? as u64,
    })
}
