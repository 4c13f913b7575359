//! `espalier task from-sdist` and `from-manifest`: tasks out of source archives of Python libraries.

use super::list::open_existing;
use super::side_run::{SideRun, carry_out};
use super::{Context, cache_folder, plugin_folders, task_import};
use crate::cli::exit::Exit;
use crate::experiment::Experiment;
use crate::output::problem::Problem;
use crate::output::text::{count, counted};
use clap::Args;
use espalier_images::{ImageConfig, ImageError, Rights, Upper};
use espalier_plugin::open_own_folder;
use espalier_sandbox::local::write_over_host;
use espalier_store::{AttemptRow, Store};
use espalier_tasks::sdist::{
    self, DraftOptions, Expected, Folders, ImageOrder, Manifest, Origin, Outcome, Runs, SdistError, Version,
    Work, is_name,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// `espalier task from-sdist`
#[derive(Debug, Args)]
pub struct FromSdistArgs {
    /// Name of the library in the package index.
    pub name: String,
    /// The release that the task starts from: a version, or a source archive (.tar.gz).
    #[arg(value_name = "OLD")]
    pub old: String,
    /// The release that solves it: a version, or a source archive.
    #[arg(value_name = "NEW")]
    pub new: String,
    /// The task file to write; default: standard output.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Folder of source archives; missing ones are downloaded to it. Default: a folder in the user's cache folder.
    #[arg(long, value_name = "DIR")]
    pub archives: Option<PathBuf>,
    /// Instruction to use instead of the changelog.
    #[arg(long, value_name = "FILE")]
    pub instruction: Option<PathBuf>,
    /// Requirement of the tests, as for pip; may be repeated.
    #[arg(long, value_name = "REQUIREMENT", default_value = "pytest")]
    pub require: Vec<String>,
    /// Run the tests with the Python packages of this machine (Debian: python3-pytest) only, without installing any.
    #[arg(long, conflicts_with = "require")]
    pub system_packages: bool,
    /// Shell text that runs the tests, instead of pytest over all test files.
    #[arg(long)]
    pub command: Option<String>,
    /// Folder of the archive from which the library is imported; default: found automatically.
    #[arg(long, value_name = "FOLDER")]
    pub root: Option<String>,
    /// Enable 127.0.0.1 for the tests.
    #[arg(long)]
    pub loopback: bool,
    /// Time limit of a run of the tests; default 120.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub timeout: Option<u64>,
}

/// `espalier task from-manifest`
#[derive(Debug, Args)]
pub struct FromManifestArgs {
    /// Manifest of libraries, pairs of versions and requirements (TOML).
    pub manifest: PathBuf,
    /// The task file to write.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Folder of source archives; missing ones are downloaded to it. Default: a folder in the user's cache folder.
    #[arg(long, value_name = "DIR")]
    pub archives: Option<PathBuf>,
    /// Create only this task (`sqlparse-0.5.1`) or the tasks of this library; may be repeated.
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
}

/// One pair as it was asked for.
struct Ask<'a> {
    name: &'a str,
    origins: [Origin; 2],
    requires: Vec<String>,
    options: DraftOptions,
}

/// What to do about what is not the pair's fault.
const GOES_ON: &str = "finished tasks are kept; fix the problem and run the same command again";
/// Most names in a hint.
const NAMES_MAX: usize = 30;

/// Why there is no task.
enum NoTask {
    /// The pair is none: why, and what can be done about it.
    Refused(String, Option<String>),
    /// It could not be found out now.
    Problem(Problem),
}

pub(super) async fn from_sdist(context: &mut Context, args: FromSdistArgs) -> Result<Exit, Problem> {
    let origins = [&args.old, &args.new].map(|text| Origin::parse(text));
    if let Some(wrong) = misnamed(&args.name, &origins) {
        return Err(Problem::new(Exit::Input, wrong));
    }
    let instruction = args.instruction.as_deref().map(read_text).transpose()?;
    let ask = Ask {
        name: &args.name,
        origins,
        requires: if args.system_packages { Vec::new() } else { args.require.clone() },
        options: DraftOptions {
            instruction,
            command: args.command.clone(),
            root: args.root.clone(),
            loopback: args.loopback,
            timeout_s: args.timeout,
        },
    };
    let folders = folders(args.archives.as_deref())?;
    let (line, expected) = match made(context, &ask, &folders, plugin_folders(None)).await {
        Ok(made) => made,
        Err(NoTask::Refused(reason, hint)) => {
            let text = format!("{} {} to {} makes no task: {reason}", args.name, args.old, args.new);
            return Err(Problem::new(Exit::Negative, text).hint_if(hint));
        }
        Err(NoTask::Problem(problem)) => return Err(problem),
    };
    match &args.out {
        Some(out) => task_import::write_tasks(out, &[line])?,
        None if !context.common.json => context.out.line(&line)?,
        None => {}
    }
    if context.common.json {
        let out = args.out.as_ref().map(|out| out.display().to_string());
        context.out.json(&json!({ "out": out, "expected": expected }))?;
    } else {
        context.screen.say(&told(&expected));
    }
    Ok(Exit::Done)
}

pub(super) async fn from_manifest(context: &mut Context, args: FromManifestArgs) -> Result<Exit, Problem> {
    let text = read_text(&args.manifest)?;
    let manifest = Manifest::parse(&text)
        .map_err(|error| Problem::new(Exit::Input, format!("{}: {error}", args.manifest.display())))?;
    if let Some(problem) = unknown(&manifest, &args.only) {
        return Err(problem);
    }
    let folders = folders(args.archives.as_deref())?;
    let mut later = 0;
    let (mut lines, mut tasks, mut refused) = (Vec::new(), Vec::<Value>::new(), Vec::<Value>::new());
    for library in &manifest.library {
        for [old, new] in &library.pairs {
            let id = format!("{}-{new}", library.name);
            if !args.only.is_empty() && !args.only.contains(&id) && !args.only.contains(&library.name) {
                continue;
            }
            let ask = Ask {
                name: &library.name,
                origins: [old, new].map(|version| Origin::Version(version.clone())),
                requires: manifest.requires.iter().chain(&library.requires).cloned().collect(),
                options: library.options(new),
            };
            let made = made(context, &ask, &folders, plugin_folders(Some(&args.manifest))).await;
            let reason = match made {
                Ok((line, expected)) => {
                    context.screen.say(&format!("{id}: {}", told(&expected)));
                    tasks.push(json!({ "id": id, "fail_to_pass": expected.fail_to_pass.len(), "pass_to_pass": expected.pass_to_pass.len(), "flaky": expected.flaky }));
                    lines.push(line);
                    continue;
                }
                Err(NoTask::Problem(problem)) if problem.exit == Exit::Interrupted => return Err(problem),
                Err(NoTask::Problem(problem)) => {
                    later += 1;
                    format!("not made now: {}", problem.whole())
                }
                Err(NoTask::Refused(reason, _)) => format!("makes no task: {reason}"),
            };
            context.screen.say(&format!("{id} {reason}"));
            refused.push(json!({ "id": id, "reason": reason }));
        }
    }
    if lines.is_empty() && later == refused.len() {
        let text = format!("none of {} could be made now", args.manifest.display());
        return Err(Problem::new(Exit::Unavailable, text).hint(GOES_ON));
    }
    if lines.is_empty() {
        return Err(Problem::new(Exit::Negative, format!("{} makes no task", args.manifest.display())));
    }
    task_import::write_tasks(&args.out, &lines)?;
    if context.common.json {
        let out = args.out.display().to_string();
        context.out.json(&json!({ "out": out, "tasks": tasks, "refused": refused }))?;
    } else {
        let refused = match refused.len() {
            0 => String::new(),
            n => format!(", {} not made", count(n as u64)),
        };
        let text = format!("{} in {}{refused}", counted(lines.len() as u64, "task"), args.out.display());
        context.screen.say(&text);
    }
    Ok(if refused.is_empty() { Exit::Done } else { Exit::Negative })
}

/// What of a command line can be none of what it stands for.
fn misnamed(name: &str, origins: &[Origin]) -> Option<String> {
    if !is_name(name) {
        return Some(format!("invalid package name {name:?}: use letters, digits, `-`, `_` and `.`"));
    }
    origins.iter().find_map(|origin| match origin {
        Origin::Version(text) if Version::parse(text).is_none() => {
            Some(format!("{text:?} is neither a version nor a source archive (.tar.gz)"))
        }
        _ => None,
    })
}

/// The first of these names that the manifest has neither as a task nor as a library.
fn unknown(manifest: &Manifest, only: &[String]) -> Option<Problem> {
    let ids: Vec<String> = manifest
        .library
        .iter()
        .flat_map(|library| library.pairs.iter().map(move |[_, new]| format!("{}-{new}", library.name)))
        .collect();
    let is_known =
        |name: &String| ids.contains(name) || manifest.library.iter().any(|library| library.name == *name);
    let name = only.iter().find(|name| !is_known(name))?;
    let more = if ids.len() > NAMES_MAX { ", ..." } else { "" };
    let known = ids[..ids.len().min(NAMES_MAX)].join(", ");
    let text = format!("--only {name}: the manifest has no such task or library");
    Some(Problem::new(Exit::Input, text).hint(format!("it has {known}{more}")))
}

fn told(expected: &Expected) -> String {
    let flaky = match expected.flaky.len() {
        0 => String::new(),
        n => format!(", {} flaky and left out", count(n as u64)),
    };
    let (fix, keep) = (expected.fail_to_pass.len() as u64, expected.pass_to_pass.len() as u64);
    format!("{} to fix, {} to keep{flaky}", counted(fix, "test"), count(keep))
}

fn read_text(file: &Path) -> Result<String, Problem> {
    std::fs::read_to_string(file)
        .map_err(|error| Problem::new(Exit::Input, format!("{} cannot be read: {error}", file.display())))
}

fn folders(archives: Option<&Path>) -> Result<Folders, Problem> {
    let refused = |reason: String| {
        Problem::new(Exit::Unavailable, reason).hint("set ESPALIER_CACHE to a folder that you own")
    };
    let cache = cache_folder()
        .ok_or_else(|| refused("no cache folder: set ESPALIER_CACHE, XDG_CACHE_HOME or HOME".to_owned()))?;
    let cache = cache.join("sdist");
    // Programs in it are run.
    open_own_folder(&cache).map_err(|error| refused(format!("cache folder {}: {error}", cache.display())))?;
    // Sandboxes are made elsewhere: names of images start from the root.
    let cache = std::path::absolute(&cache).unwrap_or(cache);
    Ok(Folders { archives: archives.map_or_else(|| cache.join("archives"), Path::to_path_buf), cache })
}

/// The task and what it expects: as it was found before, or measured now.
async fn made(
    context: &Context,
    ask: &Ask<'_>,
    folders: &Folders,
    plugins: Vec<PathBuf>,
) -> Result<(String, Expected), NoTask> {
    let (name, origins, requires) = (ask.name.to_owned(), ask.origins.clone(), ask.requires.clone());
    let (options, place) = (ask.options.clone(), folders.clone());
    let begun = run_blocking(move || {
        let [old, new] = &origins;
        let releases = [sdist::release(&name, old, &place)?, sdist::release(&name, new, &place)?];
        let work = Work::new(&name, &releases, &requires, &options, &place)?;
        let kept = work.kept().transpose()?;
        let probe = if kept.is_none() { Some(work.prepare(&place, write_image)?) } else { None };
        Ok((work, kept, probe))
    });
    let (work, kept, probe) = begun.await?;
    let outcome = match (kept, probe) {
        (Some(outcome), _) => outcome,
        (None, Some(probe)) => {
            let experiment = Experiment::read(&probe.experiment(), &[]).map_err(Problem::from)?;
            let store = probe.store().to_string_lossy().into_owned();
            let label = work.draft.id.clone();
            let run = SideRun { label: &label, store: store.clone(), plugin_folders: plugins, limit: None };
            let summary = carry_out(context, experiment, run).await?;
            let store = open_existing(&store).await?;
            let runs = runs_of(&store, &summary.run_id).await;
            store.close().await;
            let runs = runs?;
            run_blocking(move || work.conclude(&runs)).await?
        }
        // What was not found before was prepared.
        (None, None) => return Err(NoTask::Refused("nothing was prepared".to_owned(), None)),
    };
    match outcome {
        Outcome::Task(line, expected) => Ok((line, expected)),
        Outcome::Refused(reason) => Err(NoTask::Refused(reason, None)),
    }
}

fn write_image(order: &ImageOrder<'_>) -> Result<(), ImageError> {
    let config = ImageConfig {
        env: BTreeMap::from([("PATH".to_owned(), order.path.clone())]),
        workdir: order.workdir.to_owned(),
        ..ImageConfig::default()
    };
    let uppers = order.uppers.map(Upper::root);
    write_over_host(order.folder, order.tag, &uppers, Rights::User, &config).map(drop)
}

/// What the runs of a probe reported.
async fn runs_of(store: &Store, run_id: &str) -> Result<Runs, NoTask> {
    let mut runs = Runs::default();
    for group in store.groups(run_id).await.map_err(Problem::from)? {
        let attempts = store.attempts(run_id, group.opened.group_index).await.map_err(Problem::from)?;
        // Those before the last of a place were made again.
        let last: BTreeMap<u32, AttemptRow> =
            attempts.into_iter().map(|attempt| (attempt.rollout_index, attempt)).collect();
        for attempt in last.into_values() {
            let record = store.record(&attempt).await.map_err(Problem::from)?;
            let mut scores = record.iter().flat_map(|record| &record.scores);
            let score = scores.find(|score| score.plugin == "tests-reward").map(|score| &score.score);
            runs.add(&group.opened.task_id, score, attempt.error.as_deref())?;
        }
    }
    Ok(runs)
}

/// Work that blocks, off the engine's threads.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SdistError> + Send + 'static,
) -> Result<T, NoTask> {
    let done = tokio::task::spawn_blocking(work).await;
    match done {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(error.into()),
        Err(error) => Err(NoTask::Problem(Problem::of(Exit::Internal, &error))),
    }
}

impl From<SdistError> for NoTask {
    fn from(error: SdistError) -> NoTask {
        if error.is_final() {
            return NoTask::Refused(error.to_string(), error.hint());
        }
        let problem = Problem::of(Exit::Unavailable, &error);
        NoTask::Problem(problem.hint(error.hint().unwrap_or_else(|| GOES_ON.to_owned())))
    }
}

impl From<Problem> for NoTask {
    fn from(problem: Problem) -> NoTask {
        NoTask::Problem(problem)
    }
}
