//! IndexedDB in the stored state of a context. Written as JSON it is what Playwright writes.

use serde::{Deserialize, Serialize};
use serde_json::Value;

const SCRIPT: &str = include_str!("indexed.js");
/// What one origin may have in IndexedDB, written as JSON.
pub(super) const BYTES_MAX: usize = 64 << 20;

/// One database.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IndexedDatabase {
    /// Its name.
    pub name: String,
    /// Its version, from 1.
    pub version: u64,
    /// Its object stores.
    pub stores: Vec<IndexedStore>,
}

/// One object store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IndexedStore {
    /// Its name.
    pub name: String,
    /// Where in its values keys are; `None`: keys are apart, or at several places.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_path: Option<String>,
    /// The places of which keys are made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_path_array: Option<Vec<String>>,
    /// Whether it makes keys itself.
    pub auto_increment: bool,
    /// Its records.
    pub records: Vec<IndexedRecord>,
    /// Its indexes.
    pub indexes: Vec<IndexedIndex>,
}

/// One record. Keys and values that are JSON are written as they are, others (dates, bytes) in Playwright's encoding.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IndexedRecord {
    /// Its key, where the store has no key path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<Value>,
    /// Its key, encoded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_encoded: Option<Value>,
    /// Its value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// Its value, encoded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_encoded: Option<Value>,
}

/// One index of an object store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IndexedIndex {
    /// Its name.
    pub name: String,
    /// Where in values its keys are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_path: Option<String>,
    /// The places of which its keys are made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_path_array: Option<Vec<String>>,
    /// Whether each item of an array is a key.
    pub multi_entry: bool,
    /// Whether a key occurs once only.
    pub unique: bool,
}

/// A function that returns the databases of its document's origin.
pub(super) fn reader() -> String {
    format!("bytesMax => ({}).read(bytesMax)", SCRIPT.trim())
}

/// A function that writes databases.
pub(super) fn writer() -> String {
    format!("databases => ({}).write(databases)", SCRIPT.trim())
}
