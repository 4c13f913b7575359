//! `espalier plugin list`, and what commands load components with.

use super::step::Step;
use super::{Context, plugin_cache, plugin_folders};
use crate::cli::exit::Exit;
use crate::engine::components::{Components, Finder};
use crate::output::problem::Problem;
use crate::output::styles;
use crate::output::table::{Align, Cell, Table};
use crate::output::text::{bytes, one_line};
use crate::project::missing_component;
use espalier_core::cause::with_causes;
use espalier_plugin::{
    Compiler, Names, Plugin, PluginError, PluginHost, PluginHostConfig, Registry, names_of,
};
use espalier_store::{Store, StoreError};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use tokio::runtime::Handle;

/// Hex digits of a digest in a table.
pub(super) const DIGEST_SHOWN: usize = 12;

pub(super) async fn list(context: &mut Context) -> Result<Exit, Problem> {
    let folders = plugin_folders(None);
    let entries = Registry::new(folders.clone()).list();
    if entries.is_empty() {
        let looked: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
        return Err(Problem::new(Exit::Input, format!("no plugins in {}", looked.join(", ")))
            .hint("plugins come with an installation; from source, run `make build`; or set ESPALIER_PLUGINS to other folders"));
    }
    let host = host()?;
    let mut table = Table::new(&[
        ("name", Align::Whole),
        ("world", Align::Whole),
        ("size", Align::Right),
        ("digest", Align::Left),
    ]);
    let mut values = Vec::new();
    let mut refused = false;
    for entry in entries {
        let file = entry.path.display().to_string();
        match host.load(&entry.path).await {
            Ok(plugin) => {
                values.push(described(&entry.name, &plugin));
                table.row(vec![
                    Cell::styled(entry.name, styles::STRONG),
                    plugin.world().as_str().into(),
                    bytes(plugin.size_bytes()).into(),
                    plugin.digest()[..DIGEST_SHOWN].into(),
                ]);
            }
            Err(error) => {
                refused = true;
                values.push(json!({ "name": entry.name, "file": file, "error": with_causes(&error) }));
                table.row(vec![
                    Cell::styled(entry.name, styles::STRONG),
                    Cell::styled("refused", styles::BAD),
                    "".into(),
                    "".into(),
                ]);
            }
        }
    }
    let aliases = aliases(&context.common.store).await;
    if context.common.json {
        let aliases: Vec<Value> =
            aliases.iter().map(|(alias, digest)| json!({ "alias": alias, "digest": digest })).collect();
        context.out.json(&json!({ "plugins": values, "aliases": aliases }))?;
    } else {
        for line in table.lines(&context.out.look) {
            context.out.line(&line)?;
        }
        for (alias, digest) in aliases {
            let target = digest.get(..DIGEST_SHOWN).unwrap_or(&digest);
            context.out.line(&format!("alias {} -> {target}", one_line(&alias)))?;
        }
        if refused {
            context.screen.say("`espalier plugin check NAME` shows why a plugin is refused");
        }
    }
    Ok(Exit::Done)
}

/// The store, where there is one.
pub(super) async fn existing(store: &str) -> Result<Option<Store>, Problem> {
    match Store::open_existing(&store.parse()?).await {
        Ok(store) => Ok(Some(store)),
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// What loads components for a command.
pub(super) fn components(finder: Finder) -> Result<Components, Problem> {
    Ok(Components::new(host()?, finder))
}

/// The aliases of the store, if there is one.
async fn aliases(store: &str) -> Vec<(String, String)> {
    let Ok(url) = store.parse() else { return Vec::new() };
    match Store::open_existing(&url).await {
        // Names of single runs and keys have a colon.
        Ok(store) => {
            let all = store.aliases().await.unwrap_or_default();
            all.into_iter().filter(|(alias, _)| !alias.contains(':')).collect()
        }
        Err(_) => Vec::new(),
    }
}

/// A host of plugins for one command.
pub(super) fn host() -> Result<PluginHost, Problem> {
    let config = PluginHostConfig {
        cache_dir: plugin_cache(),
        compiler: Compiler::this_program(),
        guest_threads: 1,
        instances_max: 4,
        io: Handle::current(),
    };
    Ok(PluginHost::new(config)?)
}

/// Loads a component, and says so where it has to be compiled.
pub(super) async fn load(
    context: &Context,
    host: &PluginHost,
    file: &Path,
) -> Result<Arc<Plugin>, PluginError> {
    let compiling = Compiling::begin(context, host, file).await;
    let plugin = host.load(file).await?;
    compiling.end();
    Ok(plugin)
}

/// Says that a component is compiled, where it is not in the cache.
pub(super) struct Compiling(Option<(Step, String)>);

impl Compiling {
    /// To be called before the file is loaded.
    pub(super) async fn begin(context: &Context, host: &PluginHost, file: &Path) -> Compiling {
        if host.is_compiled(file).await {
            return Compiling(None);
        }
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let step = Step::begin(context, &format!("compiling {name}"));
        Compiling(Some((step, format!("compiled {name}"))))
    }

    /// Says that it is loaded.
    pub(super) fn end(self) {
        if let Some((step, done)) = self.0 {
            step.end(&done);
        }
    }
}

/// What it imports and exports. It was read and parsed a moment ago.
pub(super) fn names(plugin: &Plugin) -> Names {
    std::fs::read(plugin.path()).ok().and_then(|wasm| names_of(&wasm).ok()).unwrap_or_default()
}

/// A plugin for programs.
pub(super) fn described(name: &str, plugin: &Arc<Plugin>) -> Value {
    let names = names(plugin);
    json!({
        "name": name,
        "file": plugin.path().display().to_string(),
        "world": plugin.world().as_str(),
        "digest": plugin.digest(),
        "size_bytes": plugin.size_bytes(),
        "imports": names.imports,
        "exports": names.exports,
        "settings_schema": plugin.settings_schema(),
    })
}

impl From<PluginError> for Problem {
    fn from(error: PluginError) -> Problem {
        let exit = match &error {
            PluginError::Host { .. } | PluginError::CacheFolder { .. } => Exit::Unavailable,
            PluginError::Read { .. }
            | PluginError::Refused { .. }
            | PluginError::Bound { .. }
            | PluginError::TooLarge { .. }
            | PluginError::Compile { .. }
            | PluginError::Schema { .. }
            | PluginError::Settings(_)
            | PluginError::Unknown(_) => Exit::Input,
        };
        let hint = match &error {
            PluginError::Unknown(unknown) => {
                let file = unknown.path.as_deref();
                let hint = file.and_then(missing_component);
                let hint = hint.unwrap_or_else(|| "`espalier plugin list` shows the plugins".to_owned());
                return Problem::of(exit, &error).hint(hint);
            }
            PluginError::CacheFolder { .. } => Some("set ESPALIER_CACHE to a writable folder"),
            PluginError::Host { .. } => Some("`espalier doctor` shows what is missing on this machine"),
            PluginError::Bound { .. } | PluginError::TooLarge { .. } => Some(
                "build it optimised, remove unused code, or split it into several plugins; the limits are in docs/plugins.md",
            ),
            PluginError::Settings(_) => Some("`espalier plugin check NAME` shows the settings of a plugin"),
            _ => None,
        };
        Problem::of(exit, &error).hint_if(hint.map(str::to_owned))
    }
}
