//! A loaded plugin: what it is, and how its settings are checked.

use crate::bindings::environment::EnvironmentPluginPre;
use crate::bindings::group_reward::GroupRewardPluginPre;
use crate::bindings::harness::HarnessPluginPre;
use crate::bindings::judge::JudgePluginPre;
use crate::bindings::reward::RewardPluginPre;
use crate::bindings::task_generator::TaskGeneratorPluginPre;
use crate::guest::Guest;
use crate::{SettingsError, World, settings};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use wasmtime::component::InstancePre;

/// A compiled and linked component of a known world. Immutable; a new version is another digest.
pub struct Plugin {
    pub(crate) path: PathBuf,
    pub(crate) loaded: Arc<Loaded>,
}

/// What is shared by all paths that hold the same component.
pub(crate) struct Loaded {
    pub(crate) digest: String,
    pub(crate) world: World,
    pub(crate) size_bytes: u64,
    pub(crate) schema: Value,
    pub(crate) validator: jsonschema::Validator,
    /// Of what it needs of a task, where its schema says so.
    pub(crate) task_validator: Option<jsonschema::Validator>,
    pub(crate) pre: Pre,
    /// What an instance takes of [`crate::places`].
    pub(crate) places: u32,
}

/// What it cost to make an instance and to ask it for its settings' schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Time, without that of loading the code.
    pub took: Duration,
    /// Bytes of linear memory that the instance had then.
    pub memory_bytes: u64,
}

/// The component, type-checked and linked once.
pub(crate) enum Pre {
    Harness(HarnessPluginPre<Guest>),
    Environment(EnvironmentPluginPre<Guest>),
    Reward(RewardPluginPre<Guest>),
    GroupReward(GroupRewardPluginPre<Guest>),
    Judge(JudgePluginPre<Guest>),
    TaskGenerator(TaskGeneratorPluginPre<Guest>),
}

impl Pre {
    pub(crate) fn instance_pre(&self) -> InstancePre<Guest> {
        match self {
            Pre::Harness(pre) => pre.instance_pre(),
            Pre::Environment(pre) => pre.instance_pre(),
            Pre::Reward(pre) => pre.instance_pre(),
            Pre::GroupReward(pre) => pre.instance_pre(),
            Pre::Judge(pre) => pre.instance_pre(),
            Pre::TaskGenerator(pre) => pre.instance_pre(),
        }
        .clone()
    }
}

impl Plugin {
    /// blake3 of the component, hex.
    pub fn digest(&self) -> &str {
        &self.loaded.digest
    }

    /// Its world.
    pub fn world(&self) -> World {
        self.loaded.world
    }

    /// The file it was loaded from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file's name without its ending; of a digest the beginning.
    pub fn name(&self) -> &str {
        name_of(&self.path)
    }

    /// Bytes of the component.
    pub fn size_bytes(&self) -> u64 {
        self.loaded.size_bytes
    }

    /// JSON Schema of its settings.
    pub fn settings_schema(&self) -> &Value {
        &self.loaded.schema
    }

    /// Checks settings against the schema and fills in its defaults; gives the JSON text that the guest reads.
    ///
    /// Errors: every key that breaks the schema, with its value and what to do.
    pub fn check_settings(&self, settings: &Value) -> Result<String, SettingsError> {
        settings::check(self.name(), &self.loaded.schema, &self.loaded.validator, settings)
            .map(|filled| filled.to_string())
    }

    /// Whether its schema says under `x-task` what it needs of a task.
    pub fn checks_tasks(&self) -> bool {
        self.loaded.task_validator.is_some()
    }

    /// Holds a task, as `{"data", "private"}`, against `x-task` of the schema. Errors: the first thing that does not fit, with its place.
    pub fn check_task(&self, task: &Value) -> Result<(), String> {
        let Loaded { schema, task_validator, .. } = &*self.loaded;
        let problem = task_validator.as_ref().and_then(|of| settings::problem_of_task(schema, of, task));
        problem.map_or(Ok(()), Err)
    }

    /// `plugin x.wasm is a reward-plugin; expected a harness-plugin`.
    pub(crate) fn not_a(&self, wanted: World) -> String {
        format!("plugin {} is a {}; expected a {wanted}", self.path.display(), self.world())
    }
}

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plugin")
            .field("path", &self.path)
            .field("digest", &self.loaded.digest)
            .field("world", &self.loaded.world)
            .finish_non_exhaustive()
    }
}

/// What a component is called by its file: the name without its ending; of a digest the beginning.
pub(crate) fn name_of(path: &Path) -> &str {
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("?");
    let is_digest = stem.len() == 64 && stem.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_digest { &stem[..12] } else { stem }
}

/// The digest that names a component: blake3, hex.
pub fn digest_of(component: &[u8]) -> String {
    blake3::hash(component).to_hex().to_string()
}
