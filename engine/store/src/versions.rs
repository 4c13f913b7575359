//! New weights of the models of a run, in the order in which they came.

use crate::error::StoreError;
use crate::run::RunWriter;
use crate::store::Store;
use crate::write::Write;
use sqlx::{AnyConnection, Row};

/// Weights that a model was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelVersion {
    /// The experiment's name of the model.
    pub model: String,
    /// Label of the weights.
    pub label: String,
    /// The trainer's step that they come from.
    pub train_step: Option<i64>,
    /// When, ms since 1970.
    pub taken_ms: u64,
    /// What the update came to, JSON.
    pub report: String,
}

impl RunWriter {
    /// Notes new weights, behind those that the model had before.
    pub async fn model_version(&self, version: ModelVersion) -> Result<(), StoreError> {
        self.write(Write::ModelVersion(Box::new(version))).await
    }
}

impl Store {
    /// The weights that the models of a run were given, oldest first.
    pub async fn model_versions(&self, run_id: &str) -> Result<Vec<ModelVersion>, StoreError> {
        let rows = sqlx::query(
            "SELECT model, label, train_step, taken_ms, report FROM model_versions WHERE run_id = $1 \
             ORDER BY taken_ms, model, version",
        )
        .bind(run_id)
        .fetch_all(self.database().readers())
        .await?;
        rows.iter()
            .map(|row| {
                Ok(ModelVersion {
                    model: row.try_get("model")?,
                    label: row.try_get("label")?,
                    train_step: row.try_get("train_step")?,
                    taken_ms: row.try_get::<i64, _>("taken_ms")?.unsigned_abs(),
                    report: row.try_get("report")?,
                })
            })
            .collect()
    }
}

pub(crate) async fn apply(
    connection: &mut AnyConnection,
    run_id: &str,
    new: &ModelVersion,
) -> Result<(), StoreError> {
    let last: Option<i64> =
        sqlx::query_scalar("SELECT MAX(version) FROM model_versions WHERE run_id = $1 AND model = $2")
            .bind(run_id)
            .bind(new.model.as_str())
            .fetch_one(&mut *connection)
            .await?;
    sqlx::query(
        "INSERT INTO model_versions (run_id, model, version, label, train_step, taken_ms, report) \
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
    )
    .bind(run_id)
    .bind(new.model.as_str())
    .bind(last.unwrap_or(0) + 1)
    .bind(new.label.as_str())
    .bind(new.train_step)
    .bind(new.taken_ms as i64)
    .bind(new.report.as_str())
    .execute(connection)
    .await?;
    Ok(())
}
