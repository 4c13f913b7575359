//! The task generator `fault-generator`: makes what its settings say, so that the host's answer to it can be tested.

use espalier_sdk::schemars::JsonSchema;
use espalier_sdk::serde::Deserialize;
use espalier_sdk::serde_json::{Value, json};
use espalier_sdk::{Failure, Request, Sandbox, Statistics, other};

/// What it makes.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(crate = "espalier_sdk::serde", rename_all = "kebab-case")]
#[schemars(crate = "espalier_sdk::schemars")]
pub enum Fault {
    /// Of each batch one task, and two that are none.
    Invalid,
    /// Tasks that say what a sandbox of its own printed, and how many of these there may be.
    Sandbox,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(crate = "espalier_sdk::serde", deny_unknown_fields)]
#[schemars(crate = "espalier_sdk::schemars")]
pub struct Settings {
    /// In every batch.
    pub fault: Fault,
}

/// Makes tasks.
pub fn generate(request: Request, settings: Settings) -> Result<Vec<Value>, Failure> {
    let id = format!("t{}", request.seed);
    match settings.fault {
        Fault::Invalid => Ok(vec![
            json!({ "id": id, "instruction": "go" }),
            json!({ "id": id, "instruction": "go once more" }),
            json!({ "instruction": "who am I" }),
        ]),
        Fault::Sandbox => Ok(vec![json!({ "id": id, "instruction": in_sandboxes()? })]),
    }
}

fn in_sandboxes() -> Result<String, Failure> {
    let spec = json!({ "memory": "64MiB", "files": { "/srv/word": "made" } });
    let mut made = vec![Sandbox::create(&spec)?];
    let outcome = made[0].exec("cat /srv/word")?;
    if !outcome.succeeded() {
        return Err(other("exec", outcome.ended()));
    }
    let wrong = match Sandbox::create(&json!({ "memory": "much" })) {
        Err(Failure::Invalid(_)) => "invalid".to_owned(),
        other => format!("{other:?}"),
    };
    let bound = loop {
        match Sandbox::create(&spec) {
            Ok(sandbox) => made.push(sandbox),
            Err(Failure::Other(other)) => break other.code,
            Err(failure) => return Err(failure),
        }
    };
    Ok(format!("{}; {} at a time, then {bound}; {wrong}", outcome.stdout.text().trim(), made.len()))
}

/// Makes no variants.
pub fn adapt(_: Value, _: Statistics, _: Settings) -> Result<Vec<Value>, Failure> {
    Ok(Vec::new())
}

espalier_sdk::task_generator!(Settings, generate, adapt);
