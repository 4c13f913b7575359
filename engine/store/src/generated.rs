//! Tasks made by a generator: part of a run's record, so that a resumed run goes on with the same.

use crate::error::StoreError;
use crate::run::RunWriter;
use crate::store::Store;
use crate::write::Write;
use sqlx::{AnyConnection, Row};

/// A task that the run accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratedTask {
    /// The group that takes it, from 0.
    pub place: u64,
    /// Unique in the run.
    pub task_id: String,
    /// Hash of the blob with the task as the generator wrote it.
    pub task_text: String,
}

/// A call of a generator that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratorCall {
    /// Number in the run, from 0.
    pub call: u64,
    /// The group whose task it adapted; `None`: it was asked for new tasks.
    pub of_group: Option<u64>,
    /// Digest of the component.
    pub plugin: String,
    /// Tasks of it that the run took.
    pub accepted: u64,
    /// Tasks of it that are none, or that the run has already.
    pub rejected: u64,
    /// Why it gave none.
    pub failed: Option<String>,
    /// Hash of the blob with what it logged.
    pub record: String,
    /// When, ms since 1970.
    pub ended_ms: u64,
}

impl RunWriter {
    /// Notes a call of the generator and the tasks that came of it, in one transaction. On return the run has them, whatever happens
    /// next.
    pub async fn generated(&self, call: GeneratorCall, tasks: Vec<GeneratedTask>) -> Result<(), StoreError> {
        self.write(Write::Generated { call: Box::new(call), tasks }).await
    }
}

impl Store {
    /// The tasks that a generator made for this run, by place.
    pub async fn generated_tasks(&self, run_id: &str) -> Result<Vec<GeneratedTask>, StoreError> {
        let rows = sqlx::query(
            "SELECT place, task_id, task_text FROM generated_tasks WHERE run_id = $1 ORDER BY place",
        )
        .bind(run_id)
        .fetch_all(self.database().readers())
        .await?;
        rows.iter()
            .map(|row| {
                Ok(GeneratedTask {
                    place: row.try_get::<i64, _>("place")?.unsigned_abs(),
                    task_id: row.try_get("task_id")?,
                    task_text: row.try_get("task_text")?,
                })
            })
            .collect()
    }

    /// The calls of this run's generator, in order.
    pub async fn generator_calls(&self, run_id: &str) -> Result<Vec<GeneratorCall>, StoreError> {
        let rows = sqlx::query(
            "SELECT call, of_group, plugin, accepted, rejected, failed, record, ended_ms FROM generator_calls \
             WHERE run_id = $1 ORDER BY call",
        )
        .bind(run_id)
        .fetch_all(self.database().readers())
        .await?;
        rows.iter()
            .map(|row| {
                let count = |name: &str| row.try_get::<i64, _>(name).map(i64::unsigned_abs);
                Ok(GeneratorCall {
                    call: count("call")?,
                    of_group: row.try_get::<Option<i64>, _>("of_group")?.map(i64::unsigned_abs),
                    plugin: row.try_get("plugin")?,
                    accepted: count("accepted")?,
                    rejected: count("rejected")?,
                    failed: row.try_get("failed")?,
                    record: row.try_get("record")?,
                    ended_ms: count("ended_ms")?,
                })
            })
            .collect()
    }
}

pub(crate) async fn apply(
    connection: &mut AnyConnection,
    run_id: &str,
    call: &GeneratorCall,
    tasks: &[GeneratedTask],
) -> Result<(), StoreError> {
    let inserted = sqlx::query(
        "INSERT INTO generator_calls (run_id, call, of_group, plugin, accepted, rejected, failed, record, ended_ms) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT DO NOTHING",
    )
    .bind(run_id)
    .bind(call.call as i64)
    .bind(call.of_group.map(|group| group as i64))
    .bind(call.plugin.as_str())
    .bind(call.accepted as i64)
    .bind(call.rejected as i64)
    .bind(call.failed.as_deref())
    .bind(call.record.as_str())
    .bind(call.ended_ms as i64)
    .execute(&mut *connection)
    .await?;
    if inserted.rows_affected() == 0 {
        return Ok(());
    }
    for task in tasks {
        sqlx::query(
            "INSERT INTO generated_tasks (run_id, place, task_id, task_text, call) VALUES ($1, $2, $3, $4, $5)",
        )
        .bind(run_id)
        .bind(task.place as i64)
        .bind(task.task_id.as_str())
        .bind(task.task_text.as_str())
        .bind(call.call as i64)
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}
