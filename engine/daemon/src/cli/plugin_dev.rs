//! `espalier plugin dev`: after each change of a project's files builds it, runs its cases, and plays one task. Where only cases, tasks
//! or the experiment changed, there is nothing to build.
//!
//! Changes are found by looking at the files' times, which works on every file system, network and container ones too.

use super::Context;
use super::authoring::{build_project, note_old_sdk};
use super::plugin_run::{PlayArgs, play};
use super::plugin_test::{cases_of, component, exit, lines};
use super::plugins::host;
use crate::cli::exit::Exit;
use crate::engine::off_runtime;
use crate::output::problem::Problem;
use crate::output::styles;
use crate::output::text::{duration, one_line};
use crate::project::shown;
use clap::Args;
use espalier_authoring::Project;
use espalier_cases::run_cases;
use espalier_plugin::PluginHost;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// `espalier plugin dev`
#[derive(Debug, Args)]
pub struct PluginDevArgs {
    /// A folder of the project.
    #[arg(default_value = ".")]
    pub dir: PathBuf,
    /// What to play after each build.
    #[command(flatten)]
    pub play: PlayArgs,
    /// Do not play a task.
    #[arg(long)]
    pub no_play: bool,
    /// Build, test and play once, and end.
    #[arg(long)]
    pub once: bool,
}

/// How often the files are looked at.
const PERIOD: Duration = Duration::from_millis(300);
/// Files that are watched at most, so that a look stays short.
const FILES_MAX: usize = 5_000;
/// Folders that builds write to; hidden ones are left out too.
const OF_BUILDS: [&str; 4] = ["build", "target", "node_modules", "__pycache__"];
/// Files that builds write.
const LOCKS: [&str; 3] = ["Cargo.lock", "package-lock.json", "go.sum"];

/// The files of a project as they are.
type Files = BTreeMap<PathBuf, (Option<SystemTime>, u64)>;

pub(super) async fn dev(context: &mut Context, args: PluginDevArgs) -> Result<Exit, Problem> {
    let mut project = Project::find(&args.dir)?;
    note_old_sdk(context, &project);
    let host = host()?;
    let mut is_built = false;
    loop {
        let before = files(&project).await?;
        let result = cycle(context, &project, &host, &args, &mut is_built).await;
        context.out.flush()?;
        match result {
            result if args.once => return result,
            Ok(_) => {}
            Err(problem) if problem.exit == Exit::Interrupted || problem.is_closed_pipe() => {
                return Err(problem);
            }
            Err(problem) => {
                let text = problem.text(&context.screen.look, context.common.verbose);
                context.screen.say(text.trim_end());
            }
        }
        let waiting = "waiting for changes; press ctrl-c to end";
        context.screen.say(&context.screen.look.paint(styles::FAINT, waiting));
        let changed = next_changes(&project, before).await?;
        is_built &= changed.iter().all(|path| is_only_played(path));
        let name = changed.first().map_or(String::new(), |path| one_line(&path.display().to_string()));
        let more = match changed.len() {
            0 | 1 => String::new(),
            several => format!(" and {} more", several - 1),
        };
        let label = context.screen.look.paint(styles::STRONG, "changed");
        context.screen.say(&format!("\n{label} {name}{more}"));
        // A manifest that is wrong is told by the next build.
        if let Ok(read) = Project::read(&project.folder) {
            project = read;
        }
    }
}

/// Builds what is not built, runs the cases, plays. A failed case does not keep the task from being played.
async fn cycle(
    context: &mut Context,
    project: &Project,
    host: &PluginHost,
    args: &PluginDevArgs,
    is_built: &mut bool,
) -> Result<Exit, Problem> {
    Project::read(&project.folder)?;
    if !*is_built || !project.output().is_file() {
        *is_built = false;
        let began = Instant::now();
        let built = build_project(context, project).await?;
        *is_built = true;
        if !context.common.json {
            let text = format!("built {} in {}", shown(&built), duration(began.elapsed()));
            context.screen.say(&context.screen.look.paint(styles::FAINT, &text));
        }
    }
    let plugin = component(context, host, project).await?;
    let tested = match cases_of(project, &[]).await {
        Ok(cases) => {
            let report = run_cases(host, &plugin, &project.manifest.name, &cases).await;
            for line in lines(&report, &context.out.look) {
                context.out.line(&line)?;
            }
            exit(&report)
        }
        Err(problem) => {
            context.screen.say(problem.text(&context.screen.look, false).trim_end());
            Exit::Done
        }
    };
    if args.no_play {
        return Ok(tested);
    }
    context.out.line("")?;
    context.out.flush()?;
    let played = Box::pin(play(context, project, &args.play)).await?;
    Ok(if tested == Exit::Done { played } else { tested })
}

/// Waits until files are others than before, and gives them, relative to the project. Files that a build has made are no change.
async fn next_changes(project: &Project, mut before: Files) -> Result<Vec<PathBuf>, Problem> {
    let mut new: Option<Files> = None;
    loop {
        let now = files(project).await?;
        let known = new.get_or_insert_with(|| now.clone());
        if differences(&before, &now, known).is_empty() {
            before.extend(now);
            tokio::time::sleep(PERIOD).await;
            continue;
        }
        // Who saves one file often saves more.
        tokio::time::sleep(PERIOD).await;
        let changed = differences(&before, &files(project).await?, known);
        if !changed.is_empty() {
            let below = |path: PathBuf| {
                path.strip_prefix(&project.folder).map_or_else(|_| path.clone(), Path::to_owned)
            };
            return Ok(changed.into_iter().map(below).collect());
        }
    }
}

/// The files that changed, that are in neither of both, or that are gone.
fn differences(before: &Files, now: &Files, made: &Files) -> Vec<PathBuf> {
    let changed = now.iter().filter(|(path, state)| match before.get(*path) {
        Some(was) => was != *state,
        None => !made.contains_key(*path),
    });
    let gone = before.keys().filter(|path| !now.contains_key(*path));
    changed.map(|(path, _)| path).chain(gone).cloned().collect()
}

/// Whether a file, by its path in the project, is a case, or belongs to the experiment that is played: no build reads it.
fn is_only_played(below: &Path) -> bool {
    if below.starts_with("cases") {
        return true;
    }
    let name = below.to_string_lossy();
    !name.contains('/')
        && (name.ends_with(".jsonl") || name.starts_with("experiment") && name.ends_with(".toml"))
}

/// A source of the project that is newer than its component.
pub(super) async fn newer_source(project: &Project) -> Result<Option<PathBuf>, Problem> {
    let (files, output) = (files(project).await?, project.output());
    let built = off_runtime("a project's files", move || std::fs::metadata(output)?.modified()).await?;
    let Ok(built) = built else { return Ok(None) };
    let is_source = |path: &Path| {
        let below = path.strip_prefix(&project.folder).unwrap_or(path);
        let ending = below.extension().and_then(std::ffi::OsStr::to_str);
        !below.starts_with("cases")
            && !matches!(ending, None | Some("toml" | "json" | "jsonl" | "md" | "txt"))
    };
    let newer = |(path, (modified, _)): &(&PathBuf, &(Option<SystemTime>, u64))| {
        is_source(path) && modified.is_some_and(|modified| modified > built)
    };
    Ok(files.iter().find(newer).map(|(path, _)| path.clone()))
}

async fn files(project: &Project) -> Result<Files, Problem> {
    let folder = project.folder.clone();
    Ok(off_runtime("a project's files", move || {
        let mut files = Files::new();
        add_files(&folder, &mut files);
        files
    })
    .await?)
}

fn add_files(folder: &Path, files: &mut Files) {
    // What cannot be read is not watched.
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let (Ok(kind), path) = (entry.file_type(), entry.path()) else { continue };
        if name.starts_with('.') || files.len() >= FILES_MAX {
            continue;
        }
        if kind.is_dir() && !OF_BUILDS.contains(&name.as_ref()) {
            add_files(&path, files);
        } else if kind.is_file() && !LOCKS.contains(&name.as_ref()) {
            let data = entry.metadata().ok();
            let state = data.map_or((None, 0), |data| (data.modified().ok(), data.len()));
            files.insert(path, state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_build_makes_is_no_change_and_what_an_author_edits_is() {
        let files = |list: &[(&str, u64)]| -> Files {
            list.iter().map(|(name, size)| (PathBuf::from(name), (None, *size))).collect()
        };
        let before = files(&[("a", 1), ("b", 1)]);
        let made = files(&[("a", 1), ("b", 1), ("made", 1)]);
        let changed = |now: &[(&str, u64)]| -> Vec<String> {
            let changed = differences(&before, &files(now), &made);
            changed.iter().map(|path| path.display().to_string()).collect()
        };
        assert_eq!(changed(&[("a", 1), ("b", 1), ("made", 1)]), [""; 0]);
        assert_eq!(changed(&[("a", 2), ("b", 1)]), ["a"]);
        assert_eq!(changed(&[("a", 1)]), ["b"]);
        assert_eq!(changed(&[("a", 2), ("b", 1), ("new", 1)]), ["a", "new"]);
    }

    #[test]
    fn only_what_a_build_reads_is_built_again() {
        let played = |name: &str| is_only_played(Path::new(name));
        assert!(
            ["cases/right.toml", "cases/run.json", "experiment.toml", "tasks.jsonl"].map(played) == [true; 4]
        );
        let read =
            ["plugin.py", "plugin.toml", "Cargo.toml", "src/experiment.toml", "src/words.jsonl", "prompt.md"];
        assert!(read.map(played) == [false; 6]);
    }
}
