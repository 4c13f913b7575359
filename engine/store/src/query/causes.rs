//! Why rollouts have no reward, counted: what failed in the same way in the same place is one cause.

use crate::error::StoreError;
use crate::store::Store;
use crate::words;
use espalier_core::ending::StopReason;
use espalier_core::plugin_failure::{PluginFailure, Signature, normalised};
use serde::{Deserialize, Serialize};
use sqlx::Row;
use std::collections::HashMap;

/// Rows read at a time.
const PAGE: i64 = 1_000;
/// Causes told apart; what is met beyond is counted together.
const CAUSES_MAX: usize = 10_000;

/// A shorter name of a task may stand in any text by chance.
const TASK_BYTES_MIN: usize = 4;

/// One cause.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cause {
    /// Results that it left without a reward.
    pub rollouts: u64,
    /// How their harness ended, in the first of them.
    pub stop_reason: StopReason,
    /// The plugin that failed, where one did; as in the first of them.
    pub failure: Option<PluginFailure>,
    /// The error in the first of them; `None`: its ending says it all.
    pub error: Option<String>,
    /// The first of them.
    pub first: String,
}

/// The causes of a run, most rollouts first. A rollout in which two plugins failed counts for both.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Causes {
    /// The most frequent.
    pub list: Vec<Cause>,
    /// Further causes.
    pub more: u64,
}

#[derive(PartialEq, Eq, Hash)]
enum Key {
    Plugin(Signature, String),
    Error(String),
}

impl Store {
    /// Why results of the run have no reward, by at most `most` causes.
    pub async fn causes(&self, run_id: &str, most: usize) -> Result<Causes, StoreError> {
        let mut places: HashMap<Key, usize> = HashMap::new();
        let mut causes: Vec<Cause> = Vec::new();
        let mut untold = 0u64;
        let mut behind = -1;
        loop {
            let rows = sqlx::query(
                "SELECT a.rollout_id, a.traj_id, a.stop_reason, a.error, a.removed, a.failures, g.task_id \
                 FROM attempts a \
                 JOIN groups g ON g.run_id = a.run_id AND g.group_index = a.group_index \
                 WHERE a.run_id = $1 AND a.state = 'final' AND a.reward IS NULL AND a.rollout_id > $2 \
                 ORDER BY a.rollout_id LIMIT $3",
            )
            .bind(run_id)
            .bind(behind)
            .bind(PAGE)
            .fetch_all(self.database().readers())
            .await?;
            for row in &rows {
                behind = row.try_get::<i64, _>("rollout_id")?;
                let stop_reason = words::parse_stop_reason(row.try_get("stop_reason")?)?;
                let removed: Option<&str> = row.try_get("removed")?;
                let mut error: Option<String> = row.try_get("error")?;
                let mut failures = words::parse_failures(row.try_get("failures")?)?;
                // One that was removed has no other cause, whatever failed besides.
                if let Some(why) = removed {
                    error = Some(format!("removed: {why}"));
                    failures.clear();
                }
                // The name of the task makes no other cause.
                let task: &str = row.try_get("task_id")?;
                let without = |text: &str| match task.len() {
                    TASK_BYTES_MIN.. => text.replace(task, "#"),
                    _ => text.to_owned(),
                };
                let mut found: Vec<(Key, Option<PluginFailure>)> = failures
                    .into_iter()
                    .map(|one| {
                        let alike = PluginFailure { message: without(&one.message), ..one.clone() };
                        (Key::Plugin(alike.signature(), normalised(&alike.message)), Some(one))
                    })
                    .collect();
                if found.is_empty() {
                    let text = error
                        .as_deref()
                        .map_or(stop_reason.as_str().to_owned(), |error| normalised(&without(error)));
                    found.push((Key::Error(text), None));
                }
                for (key, failure) in found {
                    if let Some(place) = places.get(&key) {
                        causes[*place].rollouts += 1;
                    } else if causes.len() < CAUSES_MAX {
                        places.insert(key, causes.len());
                        let (error, first) = (error.clone(), row.try_get("traj_id")?);
                        causes.push(Cause { rollouts: 1, stop_reason, failure, error, first });
                    } else {
                        untold += 1;
                    }
                }
            }
            if (rows.len() as i64) < PAGE {
                break;
            }
        }
        // Stable: among equals, what was met first.
        causes.sort_by_key(|cause| std::cmp::Reverse(cause.rollouts));
        let more = causes.len().saturating_sub(most) as u64 + u64::from(untold > 0);
        causes.truncate(most);
        Ok(Causes { list: causes, more })
    }
}
