//! The plugins of a run: resolved when a group opens, kept in the store, checked against their schema.

use super::EngineError;
use crate::experiment::Experiment;
use crate::runner::Loaded;
use espalier_plugin::{Plugin, PluginError, PluginHost, Registry, World};
use espalier_store::Store;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// The plugins that one group runs with.
#[derive(Debug)]
pub(crate) struct GroupPlugins {
    pub(crate) harness: Loaded,
    pub(crate) environment: Option<Loaded>,
    /// In the order of `[[rewards]]`.
    pub(crate) rewards: Vec<Loaded>,
}

impl GroupPlugins {
    /// Digests by alias, as samples and the store name them.
    pub(crate) fn digests(&self) -> BTreeMap<String, String> {
        self.all().map(|loaded| (loaded.alias.clone(), loaded.plugin.digest().to_owned())).collect()
    }

    fn all(&self) -> impl Iterator<Item = &Loaded> {
        [&self.harness].into_iter().chain(&self.environment).chain(&self.rewards)
    }
}

/// Finds and loads plugins.
#[derive(Debug)]
pub(crate) struct Plugins {
    host: PluginHost,
    registry: Registry,
    /// Where components are put that only the store still has.
    components: PathBuf,
    store: Store,
    /// Files that were loaded, by path, with what tells that they have changed.
    loaded: Mutex<HashMap<PathBuf, (Stamp, Arc<Plugin>)>>,
    /// Digests whose component is in the store.
    kept: Mutex<HashSet<String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    modified: SystemTime,
    bytes: u64,
}

/// One place of an experiment file that names a plugin.
struct Reference<'a> {
    key: String,
    plugin: &'a str,
    world: World,
    settings: &'a serde_json::Map<String, serde_json::Value>,
}

impl Plugins {
    pub(crate) fn new(host: PluginHost, folders: Vec<PathBuf>, components: PathBuf, store: Store) -> Self {
        let registry = Registry::new(folders);
        Plugins { host, registry, components, store, loaded: Mutex::default(), kept: Mutex::default() }
    }

    /// Loads what the experiment names. `digests` are those that an open group was opened with: they hold, even where
    /// the files have changed since. Errors point at the place in the file.
    pub(crate) async fn load(
        &self,
        experiment: &Experiment,
        digests: Option<&BTreeMap<String, String>>,
    ) -> Result<GroupPlugins, EngineError> {
        let file = &experiment.file;
        let mut taken: BTreeMap<String, String> = BTreeMap::new();
        let harness = Reference {
            key: "harness".to_owned(),
            plugin: &file.harness.plugin,
            world: World::Harness,
            settings: &file.harness.settings,
        };
        let harness = self.load_one(experiment, harness, digests, &mut taken).await?;
        let mut environment = None;
        if let Some(config) = &file.environment
            && let Some(plugin) = &config.plugin
        {
            let key = "environment".to_owned();
            let reference = Reference { key, plugin, world: World::Environment, settings: &config.settings };
            environment = Some(self.load_one(experiment, reference, digests, &mut taken).await?);
        }
        let mut rewards = Vec::new();
        for (index, config) in file.rewards.iter().enumerate() {
            let reference = Reference {
                key: format!("rewards.{index}"),
                plugin: &config.plugin,
                world: World::Reward,
                settings: &config.settings,
            };
            rewards.push(self.load_one(experiment, reference, digests, &mut taken).await?);
        }
        Ok(GroupPlugins { harness, environment, rewards })
    }

    async fn load_one(
        &self,
        experiment: &Experiment,
        reference: Reference<'_>,
        digests: Option<&BTreeMap<String, String>>,
        taken: &mut BTreeMap<String, String>,
    ) -> Result<Loaded, EngineError> {
        let key = format!("{}.plugin", reference.key);
        let path = self.registry.resolve(reference.plugin, &experiment.folder).map_err(|error| {
            experiment.refuse(&key, error.to_string(), "`espalier plugin list` shows what is there")
        });
        let base = alias_of(reference.plugin);
        let pinned = match digests.and_then(|digests| recorded(digests, &base, taken)) {
            // The file may be another by now, or gone: what the group opened with holds.
            Some(digest) => Some(digest.to_owned()),
            None => self.store.alias(reference.plugin).await?,
        };
        let plugin = match pinned {
            Some(digest) => self.load_digest(path.ok().as_deref(), &digest).await?,
            None => self.load_file(&path?).await.map_err(|error| refused(experiment, &key, &error))?,
        };
        if plugin.world() != reference.world {
            let (is, wanted) = (plugin.world().as_str(), reference.world.as_str());
            let idle = if plugin.world().is_run() { "" } else { ", which no experiment can name yet" };
            let problem =
                format!("plugin `{}` is of world {is}{idle}, here {wanted} is wanted", reference.plugin);
            return Err(experiment
                .refuse(
                    &key,
                    problem,
                    "name another plugin: `espalier plugin list` shows which is of which world",
                )
                .into());
        }
        let settings = serde_json::Value::Object(reference.settings.clone());
        let settings = plugin.check_settings(&settings).map_err(|error| {
            let first = error.problems.first().map_or("", |problem| problem.key.trim_matches('.'));
            let at = format!("{}.settings.{first}", reference.key);
            experiment.refuse(
                &at,
                error.to_string(),
                "`espalier plugin check` prints the schema of its settings",
            )
        })?;
        let alias = free_alias(&base, plugin.digest(), taken);
        taken.insert(alias.clone(), plugin.digest().to_owned());
        Ok(Loaded { alias, plugin, settings })
    }

    async fn load_file(&self, path: &Path) -> Result<Arc<Plugin>, PluginError> {
        let stamp = stamp(path);
        if let (Some(stamp), Some((of, plugin))) = (stamp, lock(&self.loaded).get(path))
            && *of == stamp
        {
            return Ok(Arc::clone(plugin));
        }
        let plugin = self.host.load(path).await?;
        if let Some(stamp) = stamp {
            lock(&self.loaded).insert(path.to_owned(), (stamp, Arc::clone(&plugin)));
        }
        Ok(plugin)
    }

    /// The component of a digest: the file where it still is that one, else what the store has kept.
    async fn load_digest(&self, path: Option<&Path>, digest: &str) -> Result<Arc<Plugin>, EngineError> {
        if let Some(path) = path
            && let Ok(plugin) = self.load_file(path).await
            && plugin.digest() == digest
        {
            return Ok(plugin);
        }
        let file = self.components.join(format!("{digest}.wasm"));
        if file.is_file() {
            // The folder is a cache that anybody may write to: what lies there is believed by its digest alone.
            match self.load_file(&file).await {
                Ok(plugin) if plugin.digest() == digest => return Ok(plugin),
                Ok(_) | Err(_) => {
                    tracing::warn!(file = %file.display(), "not the component of its name; written anew");
                }
            }
        }
        let bytes = self.store.blobs().read_whole(digest).await?;
        write_whole(&self.components, &file, &bytes)
            .map_err(|source| EngineError::PluginCache { path: file.clone(), source })?;
        let plugin = self.host.load(&file).await?;
        if plugin.digest() != digest {
            let text = format!("{} changed while it was loaded; start again", file.display());
            return Err(EngineError::Engine(text));
        }
        Ok(plugin)
    }

    /// Puts the components of a group's plugins into the store, so that the group can be resumed whatever happens to
    /// the files.
    pub(crate) async fn keep(&self, plugins: &GroupPlugins) -> Result<(), EngineError> {
        for loaded in plugins.all() {
            let digest = loaded.plugin.digest();
            if lock(&self.kept).contains(digest) {
                continue;
            }
            let path = loaded.plugin.path();
            let bytes =
                std::fs::read(path).map_err(|source| PluginError::Read { path: path.to_owned(), source })?;
            let hash = self.store.blobs().put(bytes).await?;
            if hash != digest {
                let text = format!("{} changed while the group opened; start again", path.display());
                return Err(EngineError::Engine(text));
            }
            lock(&self.kept).insert(hash);
        }
        Ok(())
    }
}

/// The name in tables and samples: a name as it is, a file by its stem, a digest by its beginning.
fn alias_of(reference: &str) -> String {
    let is_path = reference.contains('/') || reference.ends_with(".wasm");
    let stem = Path::new(reference).file_stem().and_then(|stem| stem.to_str());
    match stem.filter(|_| is_path) {
        Some(stem) => stem.to_owned(),
        None if reference.len() >= 40 && reference.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            reference[..12].to_owned()
        }
        None => reference.to_owned(),
    }
}

/// The alias, or `alias#2` ... where another component has it.
fn free_alias(base: &str, digest: &str, taken: &BTreeMap<String, String>) -> String {
    let fits = |alias: &String| taken.get(alias).is_none_or(|of| of == digest);
    let numbered = (2..).map(|n| format!("{base}#{n}"));
    [base.to_owned()].into_iter().chain(numbered).find(fits).expect("there is always a further number")
}

/// What was recorded under the alias that this reference had when the group opened.
fn recorded<'a>(
    digests: &'a BTreeMap<String, String>,
    base: &str,
    taken: &BTreeMap<String, String>,
) -> Option<&'a str> {
    // References are taken in the same order as then, so the first alias whose component is not taken is it; where all
    // are taken, the same component stands in two places.
    let mut aliases = [base.to_owned()].into_iter().chain((2..).map(|n| format!("{base}#{n}")));
    let known = aliases.by_ref().take_while(|alias| digests.contains_key(alias)).collect::<Vec<_>>();
    let alias = known.iter().find(|alias| !taken.contains_key(*alias)).or(known.first())?;
    digests.get(alias).map(String::as_str)
}

fn refused(experiment: &Experiment, key: &str, error: &PluginError) -> EngineError {
    experiment.refuse(key, error.to_string(), "`espalier plugin check` says more").into()
}

fn stamp(path: &Path) -> Option<Stamp> {
    let data = std::fs::metadata(path).ok()?;
    Some(Stamp { modified: data.modified().ok()?, bytes: data.len() })
}

/// Writes beside and moves into place, so that nobody reads half a component, not even behind a power cut.
fn write_whole(folder: &Path, file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut temporary = tempfile::NamedTempFile::new_in(folder)?;
    temporary.write_all(bytes)?;
    temporary.as_file().sync_data()?;
    temporary.persist(file).map_err(|error| error.error)?;
    std::fs::File::open(folder)?.sync_all()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_are_short_and_never_stand_for_two_components() {
        assert_eq!(alias_of("react-text"), "react-text");
        assert_eq!(alias_of("../build/react-text.wasm"), "react-text");
        assert_eq!(alias_of(&"ab".repeat(32)), "abababababab");
        let mut taken = BTreeMap::new();
        for (digest, expect) in [("one", "x"), ("two", "x#2"), ("one", "x"), ("three", "x#3")] {
            let alias = free_alias("x", digest, &taken);
            assert_eq!(alias, expect);
            taken.insert(alias, digest.to_owned());
        }
    }

    #[test]
    fn a_resumed_group_finds_each_component_under_its_alias() {
        let digests: BTreeMap<String, String> = [("x", "one"), ("x#2", "two")]
            .map(|(alias, digest)| (alias.to_owned(), digest.to_owned()))
            .into();
        let mut taken = BTreeMap::new();
        assert_eq!(recorded(&digests, "x", &taken), Some("one"));
        taken.insert("x".to_owned(), "one".to_owned());
        assert_eq!(recorded(&digests, "x", &taken), Some("two"));
        assert_eq!(recorded(&digests, "y", &taken), None);
    }
}
