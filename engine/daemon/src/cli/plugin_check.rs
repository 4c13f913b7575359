//! `espalier plugin check`: what a component is, whether this engine can load it, and what it costs.

use super::authoring::{built, note_old_sdk};
use super::plugin::PluginCheckArgs;
use super::plugins::{Compiling, components, described, existing, host, names};
use super::{Context, plugin_folders, plugin_test};
use crate::cli::exit::Exit;
use crate::engine::EngineError;
use crate::engine::components::{Components, Finder, Target};
use crate::output::problem::Problem;
use crate::output::table::{Align, Cell, Table};
use crate::output::text::{bytes, counted, duration};
use crate::output::{settings_view, styles};
use crate::project::shown;
use espalier_authoring::Project;
use espalier_authoring::project::MANIFEST;
use espalier_cases::{CaseReport, run_cases};
use espalier_plugin::{Plugin, PluginError, Start};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What was checked.
struct Checked {
    target: Target,
    /// The project that made it, where it is one's `build/NAME.wasm`.
    project: Option<Project>,
    plugin: Arc<Plugin>,
    loading: Loading,
}

/// A load by a host that has not seen the plugin.
struct Loading {
    /// From the cache; `None`: compiled code is not kept on this machine.
    took: Option<Duration>,
    start: Start,
}

pub(super) async fn check(context: &mut Context, args: PluginCheckArgs) -> Result<Exit, Problem> {
    let (reference, project) = of_project(&args.plugin)?;
    let store = existing(&context.common.store).await?;
    let components = components(Finder::new(plugin_folders(None), store))?;
    let target = components.finder().find(&reference, Path::new(".")).await?;
    let project = project.or_else(|| project_of(&target));
    if let Some(project) = &project {
        note_old_sdk(context, project);
    }
    let compiling = match &target {
        Target::File(file) => Some(Compiling::begin(context, components.host(), file).await),
        Target::Kept { .. } => None,
    };
    let plugin = match components.load(&target).await {
        Ok(plugin) => plugin,
        // It was found and read: what is wrong with it is the answer.
        Err(EngineError::Plugin(
            error @ (PluginError::Refused { .. }
            | PluginError::Bound { .. }
            | PluginError::TooLarge { .. }
            | PluginError::Compile { .. }
            | PluginError::Schema { .. }),
        )) => {
            return Err(Problem { exit: Exit::Negative, ..Problem::from(error) });
        }
        Err(error) => return Err(error.into()),
    };
    compiling.into_iter().for_each(Compiling::end);
    let loading = load_again(&components, &reference, &target, &plugin).await?;
    let checked = Checked { target, project, plugin, loading };
    let determinism = determinism(&checked).await?;
    if context.common.json {
        print_json(context, &args.plugin, &checked, &determinism)?;
    } else {
        print(context, &checked, &determinism)?;
    }
    Ok(if matches!(determinism, Determinism::Differs(_)) { Exit::Negative } else { Exit::Done })
}

/// A folder of a project stands for what the project builds.
fn of_project(reference: &str) -> Result<(String, Option<Project>), Problem> {
    let folder = Path::new(reference);
    let is_folder =
        folder.is_dir() && (reference.contains('/') || reference == "." || folder.join(MANIFEST).is_file());
    if !is_folder {
        return Ok((reference.to_owned(), None));
    }
    let project = Project::find(folder)?;
    let output = built(&project)?;
    Ok((output.display().to_string(), Some(project)))
}

/// The project whose component a file is.
fn project_of(target: &Target) -> Option<Project> {
    let Target::File(path) = target else { return None };
    let path = path.canonicalize().ok()?;
    Project::find(path.parent()?).ok().filter(|project| project.output() == path)
}

/// Loads it as the next command will: from the cache.
async fn load_again(
    components: &Components,
    reference: &str,
    target: &Target,
    plugin: &Plugin,
) -> Result<Loading, Problem> {
    let first = components.host();
    if !first.has_cache() {
        return Ok(Loading { took: None, start: first.start(plugin).await? });
    }
    let wasm = components.bytes(reference, plugin).await?;
    let host = host()?;
    let name = match target {
        Target::File(path) => path.clone(),
        Target::Kept { digest, .. } => PathBuf::from(format!("{digest}.wasm")),
    };
    let began = Instant::now();
    let again = host.load_bytes(name, wasm).await?;
    Ok(Loading { took: Some(began.elapsed()), start: host.start(&again).await? })
}

/// Whether the project's cases do the same twice.
enum Determinism {
    /// Why it is not known.
    NotChecked(String),
    /// In that many cases.
    Same(u64),
    /// The first case that did not, and in what.
    Differs(String),
}

impl Determinism {
    fn text(&self) -> String {
        match self {
            Determinism::NotChecked(why) => format!("not checked ({why})"),
            Determinism::Same(cases) => {
                format!("{} run twice, with the same calls, logs and results", counted(*cases, "case"))
            }
            Determinism::Differs(how) => format!("not deterministic: {how}"),
        }
    }
}

/// Runs the project's cases twice and compares what the plugin called, logged and returned.
async fn determinism(checked: &Checked) -> Result<Determinism, Problem> {
    let not_checked = |why: &str| Ok(Determinism::NotChecked(why.to_owned()));
    let Some(project) = &checked.project else { return not_checked("no project with cases") };
    let Ok(cases) = plugin_test::cases_of(project, &[]).await else { return not_checked("no cases") };
    let (host, name) = (host()?, &project.manifest.name);
    let plugin = host.load(&project.output()).await?;
    let first = run_cases(&host, &plugin, name, &cases).await;
    let second = run_cases(&host, &plugin, name, &cases).await;
    let ran: Vec<_> =
        first.cases.iter().zip(&second.cases).filter(|(case, _)| case.refused.is_none()).collect();
    if ran.is_empty() {
        return not_checked("no case can be run; `espalier plugin test` says why");
    }
    let difference = ran.iter().find_map(|(one, other)| {
        let what = difference(one, other)?;
        Some(format!("case {} {what}", one.name))
    });
    Ok(difference.map_or(Determinism::Same(ran.len() as u64), Determinism::Differs))
}

/// In what two runs of a case differ.
fn difference(one: &CaseReport, other: &CaseReport) -> Option<String> {
    let calls = one.calls.iter().zip(&other.calls).position(|(call, again)| call != again);
    let shorter = one.calls.len().min(other.calls.len());
    if let Some(index) = calls.or_else(|| (one.calls.len() != other.calls.len()).then_some(shorter)) {
        let name = one.calls.get(index).or(other.calls.get(index)).map_or("", |call| &call.name);
        return Some(format!("differs from call {} on ({name})", index + 1));
    }
    if one.result != other.result {
        return Some("returned something else".to_owned());
    }
    (one.logs != other.logs).then(|| "logged something else".to_owned())
}

/// What is odd about a settings schema; it is one, or the plugin would not have been loaded.
fn schema_warnings(schema: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    if schema["type"] != "object" {
        warnings.push(
            "the settings schema is not of \"type\": \"object\"; settings are always a table".to_owned(),
        );
    }
    if schema["additionalProperties"] != json!(false) {
        warnings.push(
            "unknown settings are accepted, so that a misspelt one is ignored; set \"additionalProperties\": false"
                .to_owned(),
        );
    }
    let properties = schema["properties"].as_object();
    let undescribed: Vec<&str> = properties
        .into_iter()
        .flatten()
        .filter(|(_, property)| property["description"].as_str().is_none_or(str::is_empty))
        .map(|(name, _)| name.as_str())
        .collect();
    if !undescribed.is_empty() {
        warnings.push(format!("settings without a description: {}", undescribed.join(", ")));
    }
    warnings
}

fn print_json(
    context: &mut Context,
    name: &str,
    checked: &Checked,
    determinism: &Determinism,
) -> Result<(), Problem> {
    let mut value = described(name, &checked.plugin);
    if matches!(checked.target, Target::Kept { .. }) {
        // Where the component was put to be loaded is nobody's affair.
        value["file"] = Value::Null;
        value["store"] = json!(context.common.store);
    }
    if let Some(project) = &checked.project {
        value["project"] = json!(project.folder.display().to_string());
    }
    value["load_ms"] = json!(checked.loading.took.map(|took| took.as_secs_f64() * 1e3));
    value["start_ms"] = json!(checked.loading.start.took.as_secs_f64() * 1e3);
    value["memory_bytes"] = json!(checked.loading.start.memory_bytes);
    value["deterministic"] = match determinism {
        Determinism::NotChecked(_) => Value::Null,
        Determinism::Same(_) => json!(true),
        Determinism::Differs(_) => json!(false),
    };
    value["determinism"] = json!(determinism.text());
    value["warnings"] = json!(schema_warnings(checked.plugin.settings_schema()));
    context.out.json(&value)?;
    Ok(())
}

fn print(context: &mut Context, checked: &Checked, determinism: &Determinism) -> Result<(), Problem> {
    let plugin = &checked.plugin;
    let mut table = Table::new(&[("", Align::Whole), ("", Align::Wrap)]);
    let mut row =
        |name: &str, value: String| table.row(vec![Cell::styled(name, styles::FAINT), value.into()]);
    match &checked.target {
        Target::File(path) => row("file", shown(path)),
        Target::Kept { .. } => row("kept in", context.common.store.clone()),
    }
    if let Some(project) = &checked.project {
        let manifest = &project.manifest;
        row(
            "project",
            format!("{}, a {} in {}", manifest.name, manifest.kind.as_str(), manifest.language.title()),
        );
    }
    row("world", plugin.world().to_string());
    row("digest", plugin.digest().to_owned());
    row("size", bytes(plugin.size_bytes()));
    let names = names(plugin);
    let mut first = "imports";
    for import in &names.imports {
        row(std::mem::take(&mut first), import.clone());
    }
    first = "exports";
    for export in &names.exports {
        row(std::mem::take(&mut first), export.clone());
    }
    let Loading { took, start } = &checked.loading;
    match took {
        Some(took) => row(
            "start",
            format!(
                "{} from the cache, then {} of the plugin's own",
                milliseconds(*took),
                milliseconds(start.took)
            ),
        ),
        None => row("start", format!("{}, without a cache of compiled code", milliseconds(start.took))),
    }
    row("memory", format!("{} after the start", bytes(start.memory_bytes)));
    row("determinism", determinism.text());
    let schema = plugin.settings_schema();
    let properties = schema["properties"].as_object().map_or(0, serde_json::Map::len);
    let unknown = if schema["additionalProperties"] == json!(false) { "refused" } else { "accepted" };
    row("settings", format!("{}; unknown ones are {unknown}", counted(properties as u64, "setting")));
    let out = &mut context.out;
    for line in table.lines(&out.look) {
        out.line(&line)?;
    }
    let settings = settings_view::lines(schema, &out.look);
    if !settings.is_empty() {
        out.line("")?;
    }
    for line in settings {
        out.line(&line)?;
    }
    for warning in schema_warnings(schema) {
        context.screen.say(&format!("warning: {warning}"));
    }
    Ok(())
}

/// Milliseconds with one digit behind the point, as far as that says something.
fn milliseconds(time: Duration) -> String {
    if time < Duration::from_millis(100) {
        format!("{:.1} ms", time.as_secs_f64() * 1e3)
    } else {
        duration(time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_that_lets_mistakes_through_is_told() {
        let warnings = |schema: Value| schema_warnings(&schema).len();
        assert_eq!(warnings(json!({ "type": "object", "additionalProperties": false })), 0);
        assert_eq!(warnings(json!({ "type": "object" })), 1);
        assert_eq!(warnings(json!({ "additionalProperties": { "type": "string" } })), 2);
        let schema = json!({
            "type": "object", "additionalProperties": false,
            "properties": { "a": { "type": "string" }, "b": { "description": "B." } },
        });
        assert_eq!(schema_warnings(&schema), ["settings without a description: a"]);
    }
}
