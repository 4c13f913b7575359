//! Services that the engine answers itself, as experiments and tasks ask for them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The domain below which names are services.
pub const SERVICE_DOMAIN: &str = "espalier.internal";
/// The service by which programs in a sandbox ask the model of `[sandbox] model`; no service of an experiment has this name then.
pub const MODEL_SERVICE: &str = "model";
/// Longest name of a service.
const NAME_BYTES_MAX: usize = 63;
/// Most services of one experiment.
pub const SERVICES_MAX: usize = 64;
/// Largest state of one session, bytes of its JSON text.
pub const STATE_BYTES_MAX: usize = 1 << 20;
/// Levels that a state may nest.
pub const STATE_DEPTH_MAX: usize = 64;

/// `[services.NAME]`: a service that the engine answers itself, for browsers at `http://NAME.espalier.internal/`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServiceConfig {
    /// What it is.
    pub kind: ServiceKind,
    /// The folder that is served, relative to the experiment file. An `app` needs one; by default `miniwob` is looked for among the
    /// installed Python packages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
}

/// What a service is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ServiceKind {
    /// A web application whose state belongs to the rollout: a folder with `app.json`.
    App,
    /// MiniWoB++, of the Python package `miniwob`.
    Miniwob,
}

impl ServiceKind {
    /// As files write it.
    pub fn as_str(self) -> &'static str {
        match self {
            ServiceKind::App => "app",
            ServiceKind::Miniwob => "miniwob",
        }
    }
}

/// What a task says of a service: how its session begins.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskService {
    /// Of an `app`: its initial state, merged into the one that the application begins with. An object of at most 1 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Value>,
    /// Of `miniwob`: the name of the task, such as `click-button`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// Of `miniwob`: the seed of the episode, below 2^53; default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

/// The session that the services of one rollout share, as its browser is given it.
#[derive(Clone, PartialEq, Eq)]
pub struct ServiceSession {
    /// 128 random bits, hex.
    pub sid: String,
    /// Value of the cookie that makes a request one of this rollout; pages cannot read it.
    pub token: String,
    /// Names of the services that the task has.
    pub names: Vec<String>,
}

/// The cookie that carries [`ServiceSession::token`].
pub const SESSION_COOKIE: &str = "espalier-session";

impl ServiceSession {
    /// The host of each of the services.
    pub fn hosts(&self) -> impl Iterator<Item = String> {
        self.names.iter().map(|name| format!("{name}.{SERVICE_DOMAIN}"))
    }

    /// A URL with the id in the place of `{sid}`.
    pub fn fill(&self, url: &str) -> String {
        url.replace("{sid}", &self.sid)
    }
}

/// The token stays out of logs.
impl std::fmt::Debug for ServiceSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServiceSession").field("names", &self.names).finish_non_exhaustive()
    }
}

/// Refuses what no service can be called. Errors: the name, and what would do.
pub fn check_name(name: &str) -> Result<(), String> {
    let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let begins = name.starts_with(|first: char| first.is_ascii_lowercase());
    if begins && name.len() <= NAME_BYTES_MAX && name.chars().all(fine) {
        return Ok(());
    }
    let name: String = name.chars().take(200).collect();
    Err(format!(
        "service name {name:?} must begin with a letter a to z; letters, digits and `-` follow, {NAME_BYTES_MAX} at most"
    ))
}

/// Refuses what no task can say of services, whatever they are. Errors begin with the key.
pub fn check_task(services: &BTreeMap<String, TaskService>) -> Result<(), String> {
    if services.len() > SERVICES_MAX {
        return Err(format!("services: {} of them, expected {SERVICES_MAX} at most", services.len()));
    }
    for (name, service) in services {
        check_name(name)?;
        let key = format!("services.{name}");
        if let Some(seed) = service.seed.filter(|seed| *seed >= 1 << 53) {
            return Err(format!("{key}.seed {seed} is not below 2^53"));
        }
        if let Some(state) = &service.state {
            check_state(state).map_err(|problem| format!("{key}.state: {problem}"))?;
        }
        if service.task.is_some() && service.state.is_some() {
            return Err(format!(
                "{key}: `task` is of MiniWoB, `state` of an application: leave one of them out"
            ));
        }
    }
    Ok(())
}

/// Refuses what no session can have as its state.
pub fn check_state(state: &Value) -> Result<(), String> {
    if !state.is_object() {
        return Err("expected an object".to_owned());
    }
    check_value(state, 0)?;
    let bytes = state.to_string().len();
    if bytes > STATE_BYTES_MAX {
        return Err(format!("{bytes} bytes, expected {STATE_BYTES_MAX} at most"));
    }
    Ok(())
}

/// Keys that mean something else to JavaScript.
const FORBIDDEN_KEYS: [&str; 3] = ["__proto__", "constructor", "prototype"];

fn check_value(value: &Value, depth: usize) -> Result<(), String> {
    if depth > STATE_DEPTH_MAX {
        return Err(format!("nests deeper than {STATE_DEPTH_MAX} levels"));
    }
    match value {
        Value::Object(map) => map.iter().try_for_each(|(key, value)| {
            if FORBIDDEN_KEYS.contains(&key.as_str()) {
                return Err(format!("the key `{key}` is not allowed: JavaScript reads it as something else"));
            }
            check_value(value, depth + 1)
        }),
        Value::Array(items) => items.iter().try_for_each(|value| check_value(value, depth + 1)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_task_can_say_is_refused_by_name() {
        let check = |text: &str, expect: &str| {
            let services = serde_json::from_str(text).unwrap();
            assert_eq!(check_task(&services).unwrap_err(), expect, "{text}");
        };
        check(
            r#"{"Mail":{}}"#,
            "service name \"Mail\" must begin with a letter a to z; letters, digits and `-` follow, 63 at most",
        );
        check(r#"{"a":{"seed":9007199254740992}}"#, "services.a.seed 9007199254740992 is not below 2^53");
        check(r#"{"a":{"state":[]}}"#, "services.a.state: expected an object");
        check(
            r#"{"a":{"state":{"b":{"__proto__":{"admin":true}}}}}"#,
            "services.a.state: the key `__proto__` is not allowed: JavaScript reads it as something else",
        );
        let deep = format!("{}1{}", r#"{"a":"#.repeat(66), "}".repeat(66));
        check(&format!(r#"{{"a":{{"state":{deep}}}}}"#), "services.a.state: nests deeper than 64 levels");
        let long = "x".repeat(STATE_BYTES_MAX);
        let bytes = STATE_BYTES_MAX + 8;
        check(
            &format!(r#"{{"a":{{"state":{{"a":"{long}"}}}}}}"#),
            &format!("services.a.state: {bytes} bytes, expected 1048576 at most"),
        );
        check(
            r#"{"a":{"state":{},"task":"click-button"}}"#,
            "services.a: `task` is of MiniWoB, `state` of an application: leave one of them out",
        );
        let fine: BTreeMap<String, TaskService> =
            serde_json::from_str(r#"{"miniwob":{"task":"click-button","seed":3},"mail":{"state":{}}}"#)
                .unwrap();
        assert_eq!(check_task(&fine), Ok(()));
    }

    #[test]
    fn the_id_takes_its_place_in_urls_and_the_token_is_never_shown() {
        let (sid, token) = ("0f".to_owned(), "secret".to_owned());
        let session = ServiceSession { sid, token, names: vec!["mail".to_owned()] };
        assert_eq!(
            session.fill("http://mail.espalier.internal/?sid={sid}"),
            "http://mail.espalier.internal/?sid=0f"
        );
        assert_eq!(session.hosts().collect::<Vec<_>>(), ["mail.espalier.internal"]);
        assert!(!format!("{session:?}").contains("secret"));
    }
}
