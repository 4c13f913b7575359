//! The words in which enums stand in the tables, and back.

use crate::error::StoreError;
use espalier_core::ending::{Status, StopReason};
use espalier_core::plugin_failure::PluginFailure;
use espalier_core::samples::{GroupPurpose, GroupStatus};

pub(crate) fn parse_group_status(word: &str) -> Result<GroupStatus, StoreError> {
    find(GROUP_STATUSES, GroupStatus::as_str, word)
}

pub(crate) const GROUP_STATUSES: [GroupStatus; 5] =
    [GroupStatus::Ready, GroupStatus::Short, GroupStatus::Stale, GroupStatus::Failed, GroupStatus::Filtered];

/// A column that is NULL where a group trains.
pub(crate) fn parse_purpose(word: Option<&str>) -> Result<GroupPurpose, StoreError> {
    let all = [GroupPurpose::Train, GroupPurpose::Eval];
    word.map_or(Ok(GroupPurpose::Train), |word| find(all, GroupPurpose::as_str, word))
}

pub(crate) fn parse_stop_reason(word: &str) -> Result<StopReason, StoreError> {
    find(StopReason::ALL, StopReason::as_str, word)
}

pub(crate) fn parse_status(word: &str) -> Result<Status, StoreError> {
    let all = [Status::Completed, Status::Truncated, Status::TimeExceeded, Status::Failed, Status::Aborted];
    find(all, Status::as_str, word)
}

fn find<T: Copy, const N: usize>(
    all: [T; N],
    word_of: fn(T) -> &'static str,
    word: &str,
) -> Result<T, StoreError> {
    all.into_iter().find(|one| word_of(*one) == word).ok_or_else(|| StoreError::Damaged {
        place: "a row of the store".into(),
        text: format!("unknown word {word:?}"),
    })
}

/// The column of how plugins failed.
pub(crate) fn failures(failures: &[PluginFailure]) -> Option<String> {
    let text = || serde_json::to_string(failures).expect("words and texts can be written");
    (!failures.is_empty()).then(text)
}

pub(crate) fn parse_failures(text: Option<&str>) -> Result<Vec<PluginFailure>, StoreError> {
    text.map(json).transpose().map(Option::unwrap_or_default)
}

/// JSON text of a column.
pub(crate) fn json<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|error| StoreError::Damaged {
        place: "a row of the store".into(),
        text: format!("{error}: {}", text.chars().take(60).collect::<String>()),
    })
}
