//! Requests of the HTTP service by the names that their clients gave them, and what each has made.

use crate::error::StoreError;
use crate::store::Store;
use sqlx::Row;

/// What a request has made, or one of several things that it made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiRequest {
    /// Public part of the caller's key.
    pub key_id: String,
    /// The client's name for the request.
    pub name: String,
    /// Which of several things, from 0.
    pub part: u32,
    /// Hash of what the request means.
    pub asked: String,
    /// What was made, as JSON of the service.
    pub made: String,
    /// When.
    pub made_ms: u64,
}

impl ApiRequest {
    /// What it takes in the database, nearly.
    fn bytes(&self) -> usize {
        128 + self.key_id.len() + self.name.len() + self.asked.len() + self.made.len()
    }
}

impl Store {
    /// Keeps what requests have made, all or none of it. One that is known since `since_ms` stays as it is; an older one is replaced.
    pub async fn keep_requests(&self, made: &[ApiRequest], since_ms: u64) -> Result<(), StoreError> {
        let mut transaction = self.database().begin().await?;
        for one in made {
            sqlx::query(
                "INSERT INTO api_requests (key_id, name, part, asked, made, bytes, made_ms) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7) \
                 ON CONFLICT (key_id, name, part) DO UPDATE SET asked = excluded.asked, made = excluded.made, \
                 bytes = excluded.bytes, made_ms = excluded.made_ms WHERE api_requests.made_ms < $8",
            )
            .bind(&one.key_id)
            .bind(&one.name)
            .bind(i64::from(one.part))
            .bind(&one.asked)
            .bind(&one.made)
            .bind(i64::try_from(one.bytes()).unwrap_or(i64::MAX))
            .bind(signed(one.made_ms))
            .bind(signed(since_ms))
            .execute(&mut *transaction)
            .await?;
        }
        Ok(transaction.commit().await?)
    }

    /// What the request of this name has made since then, by its parts.
    pub async fn request(
        &self,
        key_id: &str,
        name: &str,
        since_ms: u64,
    ) -> Result<Vec<ApiRequest>, StoreError> {
        let query = sqlx::query(
            "SELECT part, asked, made, made_ms FROM api_requests \
             WHERE key_id = $1 AND name = $2 AND made_ms >= $3 ORDER BY part",
        );
        let query = query.bind(key_id).bind(name).bind(signed(since_ms));
        let rows = query.fetch_all(self.database().readers()).await?;
        let read = |row: &sqlx::any::AnyRow| {
            Ok(ApiRequest {
                key_id: key_id.to_owned(),
                name: name.to_owned(),
                part: u32::try_from(row.try_get::<i64, _>("part")?).unwrap_or(u32::MAX),
                asked: row.try_get("asked")?,
                made: row.try_get("made")?,
                made_ms: u64::try_from(row.try_get::<i64, _>("made_ms")?).unwrap_or_default(),
            })
        };
        rows.iter().map(read).collect()
    }

    /// Forgets what was made before `since_ms`, and of each key all beyond its newest `bytes_max` bytes. Says how many rows went.
    pub async fn forget_requests(&self, since_ms: u64, bytes_max: u64) -> Result<u64, StoreError> {
        let mut transaction = self.database().begin().await?;
        let old = sqlx::query("DELETE FROM api_requests WHERE made_ms < $1")
            .bind(signed(since_ms))
            .execute(&mut *transaction)
            .await?;
        let beyond = sqlx::query(
            "DELETE FROM api_requests WHERE (key_id, name, part) IN (SELECT key_id, name, part FROM \
             (SELECT key_id, name, part, SUM(bytes) OVER (PARTITION BY key_id ORDER BY made_ms DESC, name, part \
             ROWS UNBOUNDED PRECEDING) AS newer FROM api_requests) AS kept WHERE newer > $1)",
        )
        .bind(signed(bytes_max))
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(old.rows_affected().saturating_add(beyond.rows_affected()))
    }
}

/// Databases count with a sign.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
