//! A web application whose state belongs to one rollout: a folder with `index.html` and `app.json`.
//!
//! `app.json`: `{"state": {...}, "operations": {NAME: {...}}}`. Where it declares operations, pages change the state by those alone;
//! where it declares none, they may put any state in its place, as the applications that CUA-Gym publishes do.

use crate::diff::diff;
use crate::folder::Folder;
use crate::operations::{Before, Numbers, Operation, Refused};
use crate::pointer;
use bytes::Bytes;
use espalier_core::service::{TaskService, check_state};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The file that describes it; pages do not see it.
pub(crate) const DEFINITION: &str = "app.json";
/// The page behind `/`.
pub(crate) const INDEX: &str = "index.html";
/// Uploads of one session.
const UPLOADS_MAX: usize = 32;
/// Bytes of one upload.
pub(crate) const UPLOAD_BYTES_MAX: usize = 1 << 20;
/// Bytes of all uploads of one session.
const UPLOADS_BYTES_MAX: usize = 8 << 20;
/// Longest name of an upload, bytes.
const UPLOAD_NAME_BYTES_MAX: usize = 100;

/// What a folder says.
#[derive(Debug)]
pub struct App {
    pub(crate) folder: Folder,
    state: Value,
    operations: BTreeMap<String, Operation>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Definition {
    #[serde(default = "empty")]
    state: Value,
    #[serde(default)]
    operations: BTreeMap<String, Operation>,
}

fn empty() -> Value {
    Value::Object(Map::new())
}

impl App {
    /// Reads `app.json`. Errors name the place in it.
    pub fn new(folder: Folder) -> Result<App, String> {
        if folder.file(INDEX).is_none() {
            return Err(format!("no `{INDEX}` in it"));
        }
        let text = folder.file(DEFINITION).ok_or_else(|| format!("no `{DEFINITION}` in it"))?;
        let definition: Definition =
            serde_json::from_slice(text).map_err(|error| format!("{DEFINITION}: {error}"))?;
        check_state(&definition.state).map_err(|problem| format!("{DEFINITION}: `state`: {problem}"))?;
        for (name, operation) in &definition.operations {
            operation.check().map_err(|problem| format!("{DEFINITION}: operation `{name}`: {problem}"))?;
        }
        Ok(App { folder, state: definition.state, operations: definition.operations })
    }

    /// Refuses what a task cannot say of it. Errors begin with `.KEY`.
    pub(crate) fn check(&self, service: &TaskService) -> Result<(), String> {
        if service.task.is_some() || service.seed.is_some() {
            let key = if service.task.is_some() { "task" } else { "seed" };
            return Err(format!(
                ".{key} is for MiniWoB, and the service is an application: expected `state`"
            ));
        }
        check_state(&self.initial(service)).map_err(|problem| format!(".state, merged: {problem}"))
    }

    fn initial(&self, service: &TaskService) -> Value {
        let mut state = self.state.clone();
        if let Some(own) = &service.state {
            pointer::merge(&mut state, own.clone());
        }
        state
    }

    /// How a session begins.
    pub(crate) fn session(&self, service: &TaskService) -> AppSession {
        let initial = self.initial(service);
        let (current, is_set) = (initial.clone(), service.state.is_some());
        AppSession { initial, current, is_set, numbers: Numbers::default(), uploads: BTreeMap::new() }
    }

    /// Whether pages change the state by operations alone.
    pub(crate) fn has_operations(&self) -> bool {
        !self.operations.is_empty()
    }

    /// Carries out an operation of a page. The session is as it was where it is refused.
    pub(crate) fn operate(
        &self,
        session: &mut AppSession,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Result<Value, String> {
        let Some(operation) = self.operations.get(name) else {
            let known: Vec<&str> = self.operations.keys().map(String::as_str).collect();
            let name: String = name.chars().take(100).collect();
            return Err(format!("unknown operation {name:?}: expected one of {}", known.join(", ")));
        };
        let AppSession { initial, current, numbers, .. } = &*session;
        let done =
            operation.apply(Before { initial, current, numbers }, arguments).map_err(|Refused(why)| why)?;
        check_state(&done.state).map_err(|problem| format!("the state behind it: {problem}"))?;
        (session.current, session.numbers) = (done.state, done.numbers);
        Ok(json!({ "id": done.id, "state": session.current }))
    }
}

/// The state of one rollout.
#[derive(Debug)]
pub(crate) struct AppSession {
    initial: Value,
    pub(crate) current: Value,
    /// Whether the initial state was given, by the task or by `set`.
    is_set: bool,
    numbers: Numbers,
    uploads: BTreeMap<String, Bytes>,
}

impl AppSession {
    /// `set`, with the engine's key: writes the initial state, once.
    pub(crate) fn set(&mut self, state: Value) -> Result<(), String> {
        if self.is_set {
            return Err("the initial state is set already".to_owned());
        }
        check_state(&state)?;
        self.initial = state.clone();
        self.current = state;
        self.is_set = true;
        Ok(())
    }

    /// `set_current`: puts a state in the place of the current one, or merges it into that.
    pub(crate) fn set_current(&mut self, state: Value, is_merge: bool) -> Result<(), String> {
        let mut next = state;
        if is_merge {
            check_state(&next)?;
            let own = std::mem::replace(&mut next, self.current.clone());
            pointer::merge(&mut next, own);
        }
        check_state(&next)?;
        self.current = next;
        Ok(())
    }

    /// `reset`: back to the initial state, without uploads.
    pub(crate) fn reset(&mut self) {
        self.current.clone_from(&self.initial);
        self.numbers = Numbers::default();
        self.uploads.clear();
    }

    /// What `/go` tells.
    pub(crate) fn go(&self) -> Value {
        let (differences, count) = diff(&self.initial, &self.current);
        json!({
            "initial_state": self.initial,
            "current_state": self.current,
            "state_diff": differences,
            "differences": count,
        })
    }

    pub(crate) fn upload(&mut self, name: &str, bytes: Bytes) -> Result<Value, String> {
        check_upload_name(name)?;
        if bytes.len() > UPLOAD_BYTES_MAX {
            return Err(format!("{} bytes, expected {UPLOAD_BYTES_MAX} at most", bytes.len()));
        }
        let others = || self.uploads.iter().filter(|(other, _)| *other != name);
        let held: usize = others().map(|(_, bytes)| bytes.len()).sum();
        if others().count() >= UPLOADS_MAX || held + bytes.len() > UPLOADS_BYTES_MAX {
            return Err(format!(
                "the session has room for {UPLOADS_MAX} files of {UPLOADS_BYTES_MAX} bytes together"
            ));
        }
        let size = bytes.len();
        self.uploads.insert(name.to_owned(), bytes);
        Ok(json!({ "name": name, "size": size }))
    }

    pub(crate) fn file(&self, name: &str) -> Option<Bytes> {
        self.uploads.get(name).cloned()
    }
}

fn check_upload_name(name: &str) -> Result<(), String> {
    let fine = |c: char| c.is_alphanumeric() || "._- ()".contains(c);
    let is_fine = (1..=UPLOAD_NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(fine);
    if is_fine && !name.starts_with('.') {
        return Ok(());
    }
    let name: String = name.chars().take(100).collect();
    Err(format!(
        "name {name:?}: expected letters, digits, `.`, `_`, `-`, spaces and brackets, {UPLOAD_NAME_BYTES_MAX} bytes at most, not beginning with `.`"
    ))
}
