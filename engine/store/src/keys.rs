//! Keys of the HTTP service: who may call it, and how much each may hold. A secret itself is never here.

use crate::error::StoreError;
use crate::store::Store;
use sqlx::Row;
use sqlx::any::AnyRow;

/// What a key may hold at once, and how often it may call. `None` does not bound.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quotas {
    /// Sandboxes.
    pub sandboxes: Option<u64>,
    /// Cores of its sandboxes together.
    pub cpu: Option<f64>,
    /// Bytes of memory of its sandboxes together.
    pub memory: Option<u64>,
    /// Bytes of disk of its sandboxes together, and those that its checkpoints have.
    pub disk: Option<u64>,
    /// Runs that the service carries for it.
    pub runs: Option<u64>,
    /// Requests a second, over ten seconds.
    pub requests_per_s: Option<f64>,
}

/// A key as it is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiKey {
    /// Public; a part of what the client sends.
    pub key_id: String,
    /// For people.
    pub name: String,
    /// BLAKE3 of the secret, hex.
    pub hash: String,
    /// Words, one space between.
    pub scopes: String,
    /// Its bounds.
    pub quotas: Quotas,
    /// When it was made.
    pub created_ms: u64,
    /// When it was taken back; it opens nothing from then on.
    pub revoked_ms: Option<u64>,
}

impl Store {
    /// Keeps a new key. A `key_id` that is there already is an error.
    pub async fn add_key(&self, key: &ApiKey) -> Result<(), StoreError> {
        let mut transaction = self.database().begin().await?;
        sqlx::query(
            "INSERT INTO api_keys (key_id, name, hash, scopes, sandboxes_max, cpu_max, memory_max, disk_max, requests_per_s, created_ms, runs_max) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        )
        .bind(&key.key_id)
        .bind(&key.name)
        .bind(&key.hash)
        .bind(&key.scopes)
        .bind(key.quotas.sandboxes.map(|most| most as i64))
        .bind(key.quotas.cpu)
        .bind(key.quotas.memory.map(|most| most as i64))
        .bind(key.quotas.disk.map(|most| most as i64))
        .bind(key.quotas.requests_per_s)
        .bind(key.created_ms as i64)
        .bind(key.quotas.runs.map(|most| most as i64))
        .execute(&mut *transaction)
        .await?;
        Ok(transaction.commit().await?)
    }

    /// A key by its public part, revoked ones too.
    pub async fn key(&self, key_id: &str) -> Result<Option<ApiKey>, StoreError> {
        let query = sqlx::query("SELECT * FROM api_keys WHERE key_id = $1").bind(key_id);
        query.fetch_optional(self.database().readers()).await?.map(|row| read(&row)).transpose()
    }

    /// All keys, oldest first.
    pub async fn keys(&self) -> Result<Vec<ApiKey>, StoreError> {
        let query = sqlx::query("SELECT * FROM api_keys ORDER BY created_ms, key_id");
        query.fetch_all(self.database().readers()).await?.iter().map(read).collect()
    }

    /// Takes a key back; whether there was one that was not.
    pub async fn revoke_key(&self, key_id: &str, now_ms: u64) -> Result<bool, StoreError> {
        let mut transaction = self.database().begin().await?;
        let revoked =
            sqlx::query("UPDATE api_keys SET revoked_ms = $2 WHERE key_id = $1 AND revoked_ms IS NULL")
                .bind(key_id)
                .bind(now_ms as i64)
                .execute(&mut *transaction)
                .await?;
        transaction.commit().await?;
        Ok(revoked.rows_affected() > 0)
    }
}

fn read(row: &AnyRow) -> Result<ApiKey, StoreError> {
    let count = |name: &str| Ok::<_, sqlx::Error>(row.try_get::<Option<i64>, _>(name)?.map(|n| n as u64));
    Ok(ApiKey {
        key_id: row.try_get("key_id")?,
        name: row.try_get("name")?,
        hash: row.try_get("hash")?,
        scopes: row.try_get("scopes")?,
        quotas: Quotas {
            sandboxes: count("sandboxes_max")?,
            cpu: row.try_get("cpu_max")?,
            memory: count("memory_max")?,
            disk: count("disk_max")?,
            runs: count("runs_max")?,
            requests_per_s: row.try_get("requests_per_s")?,
        },
        created_ms: row.try_get::<i64, _>("created_ms")? as u64,
        revoked_ms: count("revoked_ms")?,
    })
}
