//! Groups and attempts, one by one.

use super::{number, optional_number, sums};
use crate::blobs::IssuedBlob;
use crate::error::StoreError;
use crate::resume::{self, AttemptState};
use crate::run::GroupOpened;
use crate::store::Store;
use crate::{ids, record, words};
use espalier_core::host::BlobInfo;
use espalier_core::plugin_failure::PluginFailure;
use espalier_core::samples::{GroupStatus, TokenSums};
use espalier_core::trajectory::AttemptRecord;
use sqlx::Row;
use sqlx::any::AnyRow;

/// One group.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupRow {
    /// Unique in the store.
    pub group_id: String,
    /// As it opened.
    pub opened: GroupOpened,
    /// `None`: it is open.
    pub status: Option<GroupStatus>,
    /// Why it is not delivered.
    pub drop_reason: Option<String>,
    /// Rollouts with a reward.
    pub n_ready: Option<u32>,
    /// ms since 1970.
    pub closed_ms: Option<u64>,
}

/// One attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct AttemptRow {
    /// Unique in the store.
    pub traj_id: String,
    /// The run.
    pub run_id: String,
    /// The group.
    pub group_index: u64,
    /// Place in the group.
    pub rollout_index: u32,
    /// From 0.
    pub attempt: u32,
    /// How it stands.
    pub state: AttemptState,
    /// Whether its rollout does not count in its group: [`AttemptRow::left_out`] says why.
    pub replaced: bool,
    /// ms since 1970.
    pub started_ms: u64,
    /// ms since 1970.
    pub ended_ms: Option<u64>,
    /// The blob that holds its record.
    pub record: Option<String>,
    /// Turns of the group's model.
    pub turns: u64,
    /// Its tokens.
    pub tokens: TokenSums,
    /// Its first error: code and text.
    pub error: Option<String>,
    /// The code of its first error.
    pub error_code: Option<String>,
    /// How plugins failed in it.
    pub failures: Vec<PluginFailure>,
}

/// Why a rollout does not count in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftOut {
    /// It ended without a reward, and others came in its place.
    Replaced,
    /// It has a reward or was removed, and others were chosen.
    NotChosen,
}

impl LeftOut {
    /// As people read it.
    pub fn as_str(self) -> &'static str {
        match self {
            LeftOut::Replaced => "replaced",
            LeftOut::NotChosen => "not chosen",
        }
    }
}

impl AttemptRow {
    /// Why its rollout does not count in its group; `None`: it does, or the group is open.
    pub fn left_out(&self) -> Option<LeftOut> {
        let worth = match self.state {
            AttemptState::Final(result) => result.reward.is_some() || result.removed,
            AttemptState::Running | AttemptState::Cut | AttemptState::Abandoned(_) => false,
        };
        self.replaced.then_some(if worth { LeftOut::NotChosen } else { LeftOut::Replaced })
    }
}

impl Store {
    /// The attempt that `text` names: its id, its rollout's id (then its result, or its last attempt), or the
    /// beginning of either.
    pub async fn resolve_attempt(&self, text: &str) -> Result<String, StoreError> {
        if text.is_empty() {
            return Err(self.not_found("rollout", text));
        }
        match (self.resolve_attempt_id(text).await, split_place(text)) {
            (Err(StoreError::NotFound { .. }), Some((run, place))) => {
                let run_id = self.resolve_run(run).await.map_err(|error| match error {
                    StoreError::NotFound { .. } => self.not_found("rollout", text),
                    other => other,
                })?;
                self.resolve_attempt_id(&format!("{run_id}{place}")).await
            }
            (result, _) => result,
        }
    }

    async fn resolve_attempt_id(&self, text: &str) -> Result<String, StoreError> {
        let rows = sqlx::query(
            "SELECT traj_id, state, attempt FROM attempts WHERE substr(traj_id, 1, length($1)) = $1 \
             ORDER BY run_id, group_index, rollout_index, attempt",
        )
        .bind(text)
        .fetch_all(self.database().readers())
        .await?;
        // By rollout, in order: its result, or else its last attempt.
        let mut rollouts: Vec<(String, String, bool)> = Vec::new();
        for row in &rows {
            let traj_id: String = row.try_get("traj_id")?;
            if traj_id == text {
                return Ok(traj_id);
            }
            let rollout = traj_id.rsplit_once(".a").map_or(&*traj_id, |(rollout, _)| rollout).to_owned();
            let is_result = row.try_get::<&str, _>("state")? == "final";
            match rollouts.last_mut().filter(|(last, ..)| *last == rollout) {
                None => rollouts.push((rollout, traj_id, is_result)),
                Some((.., true)) => {}
                Some((_, kept, has_result)) => (*kept, *has_result) = (traj_id, is_result),
            }
        }
        let named = rollouts.iter().position(|(rollout, ..)| rollout == text);
        if let Some(index) = named {
            return Ok(rollouts.swap_remove(index).1);
        }
        let rollout =
            self.only("rollout", text, rollouts.iter().map(|(rollout, ..)| rollout.clone()).collect())?;
        let named = rollouts.into_iter().find(|(id, ..)| *id == rollout);
        Ok(named.expect("it was found among them").1)
    }

    /// The groups of a run, by place.
    pub async fn groups(&self, run_id: &str) -> Result<Vec<GroupRow>, StoreError> {
        let rows = sqlx::query("SELECT * FROM groups WHERE run_id = $1 ORDER BY group_index")
            .bind(run_id)
            .fetch_all(self.database().readers())
            .await?;
        rows.iter().map(group_row).collect()
    }

    /// The groups of a run behind this place, from the first where it is `None`; at most so many.
    pub async fn groups_after(
        &self,
        run_id: &str,
        after: Option<u64>,
        most: u32,
    ) -> Result<Vec<GroupRow>, StoreError> {
        let rows = sqlx::query(
            "SELECT * FROM groups WHERE run_id = $1 AND group_index > $2 ORDER BY group_index LIMIT $3",
        )
        .bind(run_id)
        .bind(after.map_or(-1, |after| i64::try_from(after).unwrap_or(i64::MAX)))
        .bind(i64::from(most))
        .fetch_all(self.database().readers())
        .await?;
        rows.iter().map(group_row).collect()
    }

    /// That there is no rollout of this name.
    pub fn no_rollout(&self, text: &str) -> StoreError {
        self.not_found("rollout", text)
    }

    /// One group.
    pub async fn group(&self, run_id: &str, group_index: u64) -> Result<GroupRow, StoreError> {
        let row = sqlx::query("SELECT * FROM groups WHERE run_id = $1 AND group_index = $2")
            .bind(run_id)
            .bind(group_index as i64)
            .fetch_optional(self.database().readers())
            .await?;
        group_row(&row.ok_or_else(|| self.not_found("group", &ids::group_id(run_id, group_index)))?)
    }

    /// The attempts of a group, by rollout and number.
    pub async fn attempts(&self, run_id: &str, group_index: u64) -> Result<Vec<AttemptRow>, StoreError> {
        let rows = sqlx::query(
            "SELECT * FROM attempts WHERE run_id = $1 AND group_index = $2 ORDER BY rollout_index, attempt",
        )
        .bind(run_id)
        .bind(group_index as i64)
        .fetch_all(self.database().readers())
        .await?;
        rows.iter().map(attempt_row).collect()
    }

    /// One attempt by its whole id.
    pub async fn attempt(&self, traj_id: &str) -> Result<AttemptRow, StoreError> {
        let row = sqlx::query("SELECT * FROM attempts WHERE traj_id = $1")
            .bind(traj_id)
            .fetch_optional(self.database().readers())
            .await?;
        attempt_row(&row.ok_or_else(|| self.not_found("rollout", traj_id))?)
    }

    /// The record of an attempt; `None` while it runs, and where it was cut.
    pub async fn record(&self, attempt: &AttemptRow) -> Result<Option<AttemptRecord>, StoreError> {
        let Some(hash) = &attempt.record else { return Ok(None) };
        let bytes = self.blobs().read_whole(hash).await.map_err(|error| match error {
            StoreError::NotFound { what: "blob", id, place } => StoreError::Damaged {
                place: format!("the record of {}", attempt.traj_id),
                text: format!("its blob {id} is not in {place}"),
            },
            StoreError::Damaged { place, text } => {
                StoreError::Damaged { place: format!("the record of {} ({place})", attempt.traj_id), text }
            }
            other => other,
        })?;
        record::read(&attempt.traj_id, &bytes).map(Some)
    }

    /// The blobs that were issued to an attempt.
    pub async fn issued_blobs(&self, traj_id: &str) -> Result<Vec<IssuedBlob>, StoreError> {
        let rows = sqlx::query("SELECT hash, length, media_type FROM blobs WHERE traj_id = $1 ORDER BY hash")
            .bind(traj_id)
            .fetch_all(self.database().readers())
            .await?;
        rows.iter()
            .map(|row| {
                let info =
                    BlobInfo { length: number(row, "length")?, media_type: row.try_get("media_type")? };
                Ok(IssuedBlob { hash: row.try_get("hash")?, info })
            })
            .collect()
    }
}

/// `NAME.g4.r1` in two: the run as somebody names it, and the place in it.
fn split_place(text: &str) -> Option<(&str, &str)> {
    let at = text.rfind(".g")?;
    let (run, place) = text.split_at(at);
    let digit = place[2..].starts_with(|c: char| c.is_ascii_digit());
    (digit && !run.is_empty()).then_some((run, place))
}

fn group_row(row: &AnyRow) -> Result<GroupRow, StoreError> {
    let status: Option<&str> = row.try_get("status")?;
    Ok(GroupRow {
        group_id: row.try_get("group_id")?,
        opened: resume::opened(row)?,
        status: status.map(words::parse_group_status).transpose()?,
        drop_reason: row.try_get("drop_reason")?,
        n_ready: optional_number(row, "n_ready")?.map(|n| n as u32),
        closed_ms: optional_number(row, "closed_ms")?,
    })
}

fn attempt_row(row: &AnyRow) -> Result<AttemptRow, StoreError> {
    let tokens = match optional_number(row, "sampled")? {
        None => TokenSums::default(),
        Some(_) => sums(row)?,
    };
    Ok(AttemptRow {
        traj_id: row.try_get("traj_id")?,
        run_id: row.try_get("run_id")?,
        group_index: number(row, "group_index")?,
        rollout_index: number(row, "rollout_index")? as u32,
        attempt: number(row, "attempt")? as u32,
        state: resume::attempt_state(row)?,
        replaced: number(row, "replaced")? == 1,
        started_ms: number(row, "started_ms")?,
        ended_ms: optional_number(row, "ended_ms")?,
        record: row.try_get("record")?,
        turns: optional_number(row, "turns")?.unwrap_or_default(),
        tokens,
        error: row.try_get("error")?,
        error_code: row.try_get("error_code")?,
        failures: words::parse_failures(row.try_get("failures")?)?,
    })
}
