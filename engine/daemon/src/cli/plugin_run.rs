//! `espalier plugin run`: plays one rollout of a project's plugin, in a store that is gone afterwards, and shows it.

use super::authoring::built;
use super::list::open_existing;
use super::plugin_test::{component, warn_if_stale};
use super::plugins::host;
use super::show::show_rollout;
use super::side_run::{SideRun, carry_out};
use super::{Context, ShowArgs, plugin_folders};
use crate::cli::exit::Exit;
use crate::engine;
use crate::experiment::{Experiment, POLICY};
use crate::installed;
use crate::output::problem::Problem;
use crate::project::shown;
use crate::regular;
use clap::Args;
use espalier_authoring::{Kind, Project};
use espalier_core::judge;
use espalier_core::samples::GroupStatus;
use espalier_core::task::Task;
use serde_json::Value;
use std::io::Read;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// `espalier plugin run`
#[derive(Debug, Args)]
pub struct PluginRunArgs {
    /// A folder of the project.
    #[arg(default_value = ".")]
    pub dir: PathBuf,
    /// What to play.
    #[command(flatten)]
    pub play: PlayArgs,
}

/// What one rollout is played with.
#[derive(Clone, Debug, Args)]
pub struct PlayArgs {
    /// Task file; default: the tasks of experiment.toml.
    #[arg(long, value_name = "FILE")]
    pub task: Option<PathBuf>,
    /// Id of the task to play; default: the first one.
    #[arg(long, value_name = "ID")]
    pub id: Option<String>,
    /// The model that the plugin asks: `scripted`, `embedded`, or KIND=URL with the kind of a model server. Default: as
    /// experiment.toml says.
    #[arg(long, value_name = "MODEL", value_parser = model)]
    pub model: Option<ModelArg>,
    /// Override one key of experiment.toml; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

/// A model, as an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelArg {
    /// Reads its answers off a list.
    Scripted,
    /// The engine starts it.
    Embedded,
    /// A server.
    Server {
        /// Of its protocol.
        kind: String,
        /// Where it is.
        url: String,
    },
}

/// Kinds of model servers.
const SERVERS: [&str; 4] = ["llama-cpp", "vllm", "sglang", "openai-chat"];

fn model(text: &str) -> Result<ModelArg, String> {
    match text {
        "scripted" => Ok(ModelArg::Scripted),
        "embedded" => Ok(ModelArg::Embedded),
        server => {
            let parts = server.split_once('=').filter(|(kind, _)| SERVERS.contains(kind));
            let expected =
                format!("expected scripted, embedded, or KIND=URL with a KIND of {}", SERVERS.join(", "));
            let (kind, url) = parts.ok_or(expected)?;
            Ok(ModelArg::Server { kind: kind.to_owned(), url: url.to_owned() })
        }
    }
}

impl ModelArg {
    /// The table of the model; `None`: the experiment's own stays.
    fn table(&self) -> Option<String> {
        match self {
            ModelArg::Scripted => None,
            ModelArg::Embedded => Some("{ kind = \"llama-cpp\", embedded = true }".to_owned()),
            ModelArg::Server { kind, url } => {
                Some(format!("{{ kind = \"{kind}\", url = {} }}", Value::from(url.as_str())))
            }
        }
    }
}

pub(super) async fn run(context: &mut Context, args: PluginRunArgs) -> Result<Exit, Problem> {
    let project = Project::find(&args.dir)?;
    let output = built(&project)?;
    warn_if_stale(context, &project).await?;
    let host = host()?;
    if host.has_cache() && !host.is_compiled(&output).await {
        component(context, &host, &project).await?;
    }
    drop(host);
    play(context, &project, &args.play).await
}

/// Plays one rollout, of a group reward one group, and shows the first.
pub(super) async fn play(context: &mut Context, project: &Project, args: &PlayArgs) -> Result<Exit, Problem> {
    let folder = tempfile::Builder::new().prefix("espalier-play-").tempdir().map_err(|error| {
        Problem::new(Exit::Unavailable, format!("cannot make a temporary folder: {error}"))
            .hint("name a writable folder in TMPDIR")
    })?;
    let experiment = experiment(project, args, &folder)?;
    let store = folder.path().join("store").to_string_lossy().into_owned();
    let around = project.folder.join("experiment.toml");
    let side_run = SideRun {
        label: "run",
        store: store.clone(),
        plugin_folders: plugin_folders(Some(&around)),
        limit: Some(1),
    };
    let summary = carry_out(context, experiment, side_run).await?;
    let store = open_existing(&store).await?;
    let shows = ShowArgs {
        ids: Vec::new(),
        tokens: false,
        calls: false,
        full: false,
        logs: false,
        blob: None,
        html: None,
        all: false,
    };
    let traj_id = store.resolve_attempt(&format!("{}.g0.r0", summary.run_id)).await?;
    show_rollout(context, &store, &traj_id, &shows).await?;
    let failed = summary.counts.groups_closed.get(&GroupStatus::Failed).copied().unwrap_or_default();
    Ok(if failed > 0 { Exit::Negative } else { Exit::Done })
}

/// The project's experiment, or that of a new project of its kind, of one task and one rollout.
fn experiment(project: &Project, args: &PlayArgs, folder: &TempDir) -> Result<Experiment, Problem> {
    let kind = project.manifest.kind;
    let own = project.folder.join("experiment.toml");
    let mut sets = vec![
        "groups.min_size=1".to_owned(),
        "groups.attempts=1".to_owned(),
        "groups.replacements=0".to_owned(),
    ];
    if kind != Kind::GroupReward {
        sets.push("groups.size=1".to_owned());
    }
    let file = if own.is_file() {
        own
    } else {
        sets.push(format!("{}={}", plugin_key(kind), quoted(&project.output())));
        if kind != Kind::TaskGenerator {
            sets.push(format!("tasks.source={}", quoted(&project.folder.join("tasks.jsonl"))));
        }
        default_experiment(project, folder.path())?
    };
    let tasks = project.folder.join("tasks.jsonl");
    let named = args.id.is_some() && kind != Kind::TaskGenerator && tasks.is_file();
    if let Some(task) = args.task.as_ref().or(named.then_some(&tasks)) {
        if kind == Kind::TaskGenerator {
            let text = "`--task` is not for a task generator, which makes the task that is played";
            return Err(Problem::new(Exit::Input, text).hint("leave it out"));
        }
        sets.push(format!("tasks.source={}", quoted(&one_task(task, args.id.as_deref(), folder.path())?)));
    }
    if let Some(table) = args.model.as_ref().and_then(ModelArg::table) {
        let model = if kind == Kind::Judge { judge::MODEL } else { POLICY };
        sets.push(format!("models.{model}={table}"));
    }
    sets.extend(args.set.iter().cloned());
    Ok(Experiment::read(&file, &sets)?)
}

/// The key of an experiment that names a plugin of this kind.
fn plugin_key(kind: Kind) -> &'static str {
    match kind {
        Kind::Harness => "harness.plugin",
        Kind::Environment => "environment.plugin",
        Kind::Reward => "rewards.0.plugin",
        Kind::GroupReward => "group_rewards.0.plugin",
        Kind::Judge => "judges.0.plugin",
        Kind::TaskGenerator => "tasks.plugin",
    }
}

/// A path as `--set` takes it.
fn quoted(path: &Path) -> String {
    Value::from(path.to_string_lossy().as_ref()).to_string()
}

/// Writes the experiment of a new project of this kind.
fn default_experiment(project: &Project, folder: &Path) -> Result<PathBuf, Problem> {
    let kind = project.manifest.kind.as_str();
    let template = installed::sources()
        .map(|sources| sources.templates.join("kinds").join(kind).join("experiment.toml"));
    let text = template.and_then(|template| std::fs::read_to_string(template).ok()).ok_or_else(|| {
        let text = format!("there is no {}", shown(&project.folder.join("experiment.toml")));
        Problem::new(Exit::Input, text).hint("write one: docs/experiments.md")
    })?;
    let file = folder.join("experiment.toml");
    std::fs::write(&file, text.replace("{{name}}", &project.manifest.name))
        .map_err(|error| written(&file, &error))?;
    Ok(file)
}

/// Writes a file of one task of another.
fn one_task(from: &Path, id: Option<&str>, folder: &Path) -> Result<PathBuf, Problem> {
    let refuse = |text: String| Problem::new(Exit::Input, format!("task file {}: {text}", from.display()));
    let mut bytes = Vec::new();
    regular::open(from)
        .and_then(|mut file| file.read_to_end(&mut bytes))
        .map_err(|error| refuse(error.to_string()))?;
    for (number, line) in engine::task_lines(&bytes) {
        let task = line.and_then(|line| Ok((line, Task::parse(line).map_err(|error| error.to_string())?)));
        let (line, task) = task.map_err(|error| refuse(format!("line {number}: {error}")))?;
        if id.is_none_or(|id| id == task.id.as_str()) {
            let file = folder.join("task.jsonl");
            std::fs::write(&file, format!("{line}\n")).map_err(|error| written(&file, &error))?;
            return Ok(file);
        }
    }
    Err(match id {
        Some(id) => refuse(format!("has no task {id:?}")),
        None => refuse("has no tasks".to_owned()),
    })
}

fn written(file: &Path, error: &std::io::Error) -> Problem {
    Problem::new(Exit::Unavailable, format!("cannot write {}: {error}", file.display()))
        .hint("name a writable folder in TMPDIR")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_named_by_a_word_or_by_its_kind_and_address() {
        assert_eq!(model("scripted"), Ok(ModelArg::Scripted));
        let server = model("vllm=http://127.0.0.1:8000").unwrap();
        assert_eq!(server.table().unwrap(), "{ kind = \"vllm\", url = \"http://127.0.0.1:8000\" }");
        for wrong in ["http://127.0.0.1:8000", "tgi=http://a", ""] {
            assert!(model(wrong).unwrap_err().contains("KIND=URL"), "{wrong}");
        }
    }
}
