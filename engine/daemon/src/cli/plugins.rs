//! `espalier plugin list`, `plugin check` and `plugin alias`.

use super::list::open_existing;
use super::{Context, PluginAliasArgs, PluginCheckArgs, plugin_cache, plugin_folders};
use crate::cli::exit::Exit;
use crate::output::problem::Problem;
use crate::output::styles;
use crate::output::table::{Align, Cell, Table};
use crate::output::text::bytes;
use crate::runner::now_ms;
use espalier_plugin::{Names, Plugin, PluginError, PluginHost, PluginHostConfig, Registry, names_of};
use espalier_store::Store;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use tokio::runtime::Handle;

/// Hex digits of a digest in a table.
const DIGEST_SHOWN: usize = 12;

pub(super) async fn list(context: &mut Context) -> Result<Exit, Problem> {
    let folders = plugin_folders(None);
    let entries = Registry::new(folders.clone()).list();
    if entries.is_empty() {
        let looked: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
        return Err(Problem::new(Exit::Input, format!("no plugins in {}", looked.join(", ")))
            .hint("`make build` builds those of this repository; ESPALIER_PLUGINS names other folders"));
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
                values.push(json!({ "name": entry.name, "file": file, "error": error.to_string() }));
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
            context.out.line(&format!("alias {alias} -> {target}"))?;
        }
        if refused {
            context.screen.say("`espalier plugin check NAME` says why one is refused");
        }
    }
    Ok(Exit::Done)
}

pub(super) async fn check(context: &mut Context, args: PluginCheckArgs) -> Result<Exit, Problem> {
    let registry = Registry::new(plugin_folders(None));
    let path = registry.resolve(&args.plugin, Path::new(".")).map_err(PluginError::from)?;
    let plugin = match host()?.load(&path).await {
        Ok(plugin) => plugin,
        // It was found and read: what is wrong with it is the answer.
        Err(
            error @ (PluginError::Refused { .. } | PluginError::Compile { .. } | PluginError::Schema { .. }),
        ) => {
            return Err(Problem { exit: Exit::Negative, ..Problem::from(error) });
        }
        Err(error) => return Err(error.into()),
    };
    let names = names(&plugin);
    let out = &mut context.out;
    if context.common.json {
        out.json(&described(&args.plugin, &plugin))?;
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&[("", Align::Left), ("", Align::Left)]);
    let mut row =
        |name: &str, value: String| table.row(vec![Cell::styled(name, styles::FAINT), value.into()]);
    row("file", path.display().to_string());
    row("world", plugin.world().to_string());
    row("digest", plugin.digest().to_owned());
    row("size", bytes(plugin.size_bytes()));
    let mut first = "imports";
    for import in &names.imports {
        row(std::mem::take(&mut first), import.clone());
    }
    first = "exports";
    for export in &names.exports {
        row(std::mem::take(&mut first), export.clone());
    }
    if !plugin.world().is_run() {
        row("note", "this engine recognises the world, but does not run it yet".to_owned());
    }
    for line in table.lines(&out.look) {
        out.line(&line)?;
    }
    let settings = settings_table(plugin.settings_schema());
    if !settings.is_empty() {
        out.line("")?;
        for line in settings.lines(&out.look) {
            out.line(&line)?;
        }
    }
    Ok(Exit::Done)
}

/// Keeps the component in the store, which is made where there is none, and points the alias at it.
pub(super) async fn alias(context: &mut Context, args: PluginAliasArgs) -> Result<Exit, Problem> {
    let PluginAliasArgs { alias, plugin, remove: _ } = args;
    let Some(plugin) = plugin else { return remove_alias(context, &alias).await };
    let named = !alias.is_empty() && alias.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    if !named || alias.ends_with(".wasm") {
        return Err(Problem::new(Exit::Input, format!("alias {alias:?} could be taken for a path"))
            .hint("letters, digits, `-`, `_` and `.` make an alias; it does not end in .wasm"));
    }
    let path =
        Registry::new(plugin_folders(None)).resolve(&plugin, Path::new(".")).map_err(PluginError::from)?;
    // Refused here rather than in the middle of a run.
    let plugin = host()?.load(&path).await?;
    let store = Store::open(&context.common.store.parse()?).await?;
    let bytes = std::fs::read(&path).map_err(|source| PluginError::Read { path, source })?;
    let digest = store.blobs().put(bytes).await?;
    let before = store.alias(&alias).await?;
    store.set_alias(&alias, &digest, now_ms()).await?;
    store.close().await;
    if context.common.json {
        context.out.json(&json!({
            "alias": alias, "digest": digest, "before": before, "world": plugin.world().as_str(),
        }))?;
    } else {
        let short = |digest: &str| digest.get(..DIGEST_SHOWN).unwrap_or(digest).to_owned();
        let was = match before {
            Some(before) if before != digest => format!(", was {}", short(&before)),
            _ => String::new(),
        };
        context.out.line(&format!("alias {alias} -> {} ({}{was})", short(&digest), plugin.world()))?;
    }
    Ok(Exit::Done)
}

async fn remove_alias(context: &mut Context, alias: &str) -> Result<Exit, Problem> {
    let store = open_existing(&context.common.store).await?;
    let before = store.alias(alias).await?;
    if !store.remove_alias(alias).await? {
        return Err(Problem::new(Exit::Input, format!("no alias `{alias}` in {}", context.common.store))
            .hint("`espalier plugin list` shows the aliases of the store"));
    }
    store.close().await;
    if context.common.json {
        context.out.json(&json!({ "alias": alias, "digest": null, "before": before }))?;
    } else {
        context.out.line(&format!("alias {alias} removed"))?;
    }
    Ok(Exit::Done)
}

/// Those of the store, where there is one.
async fn aliases(store: &str) -> Vec<(String, String)> {
    let Ok(url) = store.parse() else { return Vec::new() };
    match Store::open_existing(&url).await {
        Ok(store) => store.aliases().await.unwrap_or_default(),
        Err(_) => Vec::new(),
    }
}

fn host() -> Result<PluginHost, Problem> {
    let config = PluginHostConfig {
        cache_dir: plugin_cache(),
        guest_threads: 1,
        instances_max: 4,
        io: Handle::current(),
    };
    Ok(PluginHost::new(config)?)
}

/// What it imports and exports. It was read and parsed a moment ago.
fn names(plugin: &Plugin) -> Names {
    std::fs::read(plugin.path()).ok().and_then(|wasm| names_of(&wasm).ok()).unwrap_or_default()
}

fn described(name: &str, plugin: &Arc<Plugin>) -> Value {
    let names = names(plugin);
    json!({
        "name": name,
        "file": plugin.path().display().to_string(),
        "world": plugin.world().as_str(),
        "runs": plugin.world().is_run(),
        "digest": plugin.digest(),
        "size_bytes": plugin.size_bytes(),
        "imports": names.imports,
        "exports": names.exports,
        "settings_schema": plugin.settings_schema(),
    })
}

/// The first level of a settings schema.
fn settings_table(schema: &Value) -> Table {
    let mut table = Table::new(&[
        ("setting", Align::Left),
        ("type", Align::Left),
        ("default", Align::Left),
        ("", Align::Left),
    ]);
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        let word = |key: &str| property.get(key).map_or(String::new(), plain);
        table.row(vec![
            Cell::styled(name.as_str(), styles::STRONG),
            word("type").into(),
            word("default").replace('\n', "\\n").into(),
            word("description").into(),
        ]);
    }
    table
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

impl From<PluginError> for Problem {
    fn from(error: PluginError) -> Problem {
        let exit = match &error {
            PluginError::Host(_) => Exit::Unavailable,
            PluginError::Read { .. }
            | PluginError::Refused { .. }
            | PluginError::Compile { .. }
            | PluginError::Schema { .. }
            | PluginError::Settings(_)
            | PluginError::Unknown(_) => Exit::Input,
        };
        let hint = match &error {
            PluginError::Unknown(_) => Some("`espalier plugin list` shows what there is"),
            PluginError::Host(text) if text.starts_with("cache folder") => {
                Some("name a folder that can be written in ESPALIER_CACHE")
            }
            PluginError::Host(_) => Some("`espalier doctor` says what this machine lacks"),
            PluginError::Settings(_) => Some("`espalier plugin check NAME` shows the settings of a plugin"),
            _ => None,
        };
        Problem::of(exit, &error).hint_if(hint.map(str::to_owned))
    }
}
