//! Records of JSON lines or of one JSON array, and their keys with errors that name them.

use super::shown;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// One record.
#[derive(Debug)]
pub(super) struct Row(Map<String, Value>);

/// The records with their number, from 1.
pub(super) fn rows(text: &str) -> Box<dyn Iterator<Item = (usize, Result<Row, String>)> + '_> {
    let text = text.trim_start_matches('\u{feff}');
    if text.trim_start().starts_with('[') {
        return match serde_json::from_str::<Vec<&RawValue>>(text) {
            Ok(items) => {
                Box::new(items.into_iter().enumerate().map(|(at, item)| (at + 1, Row::read(item.get()))))
            }
            Err(error) => Box::new(std::iter::once((1, Err(format!("not a JSON array: {error}"))))),
        };
    }
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    Box::new(lines.map(|(at, line)| (at + 1, Row::read(line))))
}

impl Row {
    fn read(text: &str) -> Result<Row, String> {
        match serde_json::from_str(text) {
            Ok(Value::Object(map)) => Ok(Row(map)),
            Ok(other) => Err(format!("expected an object, found {}", shown(&other))),
            Err(error) => Err(format!("not valid JSON: {error}")),
        }
    }

    /// The record's own name, where this key has it.
    pub(super) fn name(&self, key: &str) -> Option<String> {
        self.0.get(key)?.as_str().map(str::to_owned)
    }

    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    /// A text that is there and not empty.
    pub(super) fn text(&self, key: &str) -> Result<&str, String> {
        self.optional_text(key)?.ok_or_else(|| format!("`{key}` is missing"))
    }

    /// A text that may be missing or empty.
    pub(super) fn optional_text(&self, key: &str) -> Result<Option<&str>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) if text.trim().is_empty() => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(format!("invalid `{key}` {}: expected a text", shown(other))),
        }
    }

    /// Names of tests: a list, or the JSON text of one.
    pub(super) fn names(&self, key: &str) -> Result<Vec<String>, String> {
        let value = self.get(key).ok_or_else(|| format!("`{key}` is missing"))?;
        let wrong = || {
            format!(
                "invalid `{key}` {}: expected a list of test names, or the JSON text of one",
                shown(value)
            )
        };
        let parsed = match value {
            Value::String(text) => serde_json::from_str(text).map_err(|_| wrong())?,
            other => other.clone(),
        };
        let Value::Array(items) = parsed else { return Err(wrong()) };
        items.into_iter().map(|item| item.as_str().map(str::to_owned).ok_or_else(wrong)).collect()
    }

    /// An object, or the JSON text of one, as a row of its own.
    pub(super) fn inner(&self, key: &str) -> Result<Option<Row>, String> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let parsed =
            value.as_str().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_else(|| value.clone());
        match parsed {
            Value::Object(map) => Ok(Some(Row(map))),
            _ => Err(format!("invalid `{key}` {}: expected an object", shown(value))),
        }
    }

    /// Commands: a text, or a list of them, one line each.
    pub(super) fn commands(&self, key: &str) -> Result<Option<String>, String> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let wrong = || format!("invalid `{key}` {}: expected a command or a list of them", shown(value));
        let text = match value {
            Value::Array(items) => {
                let lines: Option<Vec<&str>> = items.iter().map(Value::as_str).collect();
                lines.ok_or_else(wrong)?.join("\n")
            }
            Value::String(text) => text.clone(),
            _ => return Err(wrong()),
        };
        Ok(Some(text).filter(|text| !text.trim().is_empty()))
    }
}
