//! `espalier task import`: published sets of software tasks as a task file.

use super::Context;
use crate::cli::exit::Exit;
use crate::output::problem::Problem;
use crate::output::text::counted;
use clap::Args;
use espalier_tasks::dataset::{DatasetError, Format, HarborOptions, RowOptions, harbor_task, read};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Maximum size of one Harbor folder; larger ones are data that belongs into its image.
const FOLDER_BYTES_MAX: u64 = 64 << 20;
/// Records that are named; the rest is counted.
const NAMED_MAX: usize = 20;

/// `espalier task import`
#[derive(Debug, Args)]
pub struct TaskImportArgs {
    /// swe-bench, swe-rebench, swe-rebench-v2, swe-gym, or harbor.
    pub format: String,
    /// A file of rows (JSON lines or one JSON array); for harbor the folder of a task, or a folder of such folders.
    pub source: PathBuf,
    /// The task file to write.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Image of every task, where `{id}` is replaced by the name of the task; default: the image published by the set.
    #[arg(long)]
    pub image: Option<String>,
    /// Shell text that runs the tests, where `{files}` is replaced by the test files; default: the command of the set.
    #[arg(long)]
    pub command: Option<String>,
    /// Parser of the test output: docs/grading.md lists the parsers.
    #[arg(long)]
    pub parser: Option<String>,
    /// Run pytest with the guard of `tests-reward`; published images may be too old for it.
    #[arg(long)]
    pub guard: bool,
    /// Import only this task; may be repeated.
    #[arg(long, value_name = "ID")]
    pub only: Vec<String>,
    /// Skip records that are not valid tasks.
    #[arg(long)]
    pub skip_bad_tasks: bool,
}

type Records = Vec<Result<String, DatasetError>>;

pub(super) fn import(context: &mut Context, args: &TaskImportArgs) -> Result<Exit, Problem> {
    let records = if args.format == "harbor" { folders(args)? } else { rows(args)? };
    let mut tasks = Vec::new();
    let mut bad = Vec::new();
    for record in records {
        match record {
            Ok(line) if wanted(&line, &args.only) => tasks.push(line),
            Ok(_) => {}
            Err(error) => bad.push(error),
        }
    }
    for error in bad.iter().take(NAMED_MAX) {
        context.screen.say(&error.to_string());
    }
    if bad.len() > NAMED_MAX {
        context.screen.say(&format!("and {} more", bad.len() - NAMED_MAX));
    }
    let shown = args.source.display();
    if !bad.is_empty() && !args.skip_bad_tasks {
        let text = format!("{} of {shown} cannot be read", counted(bad.len() as u64, "record"));
        return Err(Problem::new(Exit::Input, text)
            .hint("nothing was written; --skip-bad-tasks writes the other tasks"));
    }
    if tasks.is_empty() {
        return Err(Problem::new(Exit::Input, format!("{shown} contains none of the requested tasks")));
    }
    write_tasks(&args.out, &tasks)?;
    if context.common.json {
        let rejected: Vec<String> = bad.iter().map(ToString::to_string).collect();
        let out = args.out.display().to_string();
        context.out.json(&json!({ "out": out, "tasks": tasks.len(), "rejected": rejected }))?;
    } else {
        let tasks = counted(tasks.len() as u64, "task");
        context.screen.say(&format!("{tasks} in {}", args.out.display()));
    }
    Ok(Exit::Done)
}

fn wanted(line: &str, only: &[String]) -> bool {
    let id = || serde_json::from_str::<serde_json::Value>(line).ok()?["id"].as_str().map(str::to_owned);
    only.is_empty() || id().is_some_and(|id| only.contains(&id))
}

fn rows(args: &TaskImportArgs) -> Result<Records, Problem> {
    let Some(format) = Format::from_name(&args.format) else {
        let known: Vec<&str> = Format::ALL.iter().map(|(name, _)| *name).chain(["harbor"]).collect();
        let text = format!("unknown task format {:?}: expected one of {}", args.format, known.join(", "));
        return Err(Problem::new(Exit::Input, text));
    };
    let text = std::fs::read_to_string(&args.source).map_err(|error| {
        Problem::new(Exit::Input, format!("{} cannot be read: {error}", args.source.display())).hint(
            "expected a file of JSON lines or one JSON array; convert other formats such as Parquet first",
        )
    })?;
    let options = RowOptions {
        image: args.image.clone(),
        command: args.command.clone(),
        parser: args.parser.clone(),
        guard: args.guard,
    };
    Ok(read(format, &text, &options).collect())
}

fn folders(args: &TaskImportArgs) -> Result<Records, Problem> {
    for (given, name) in
        [(args.command.is_some(), "--command"), (args.parser.is_some(), "--parser"), (args.guard, "--guard")]
    {
        if given {
            return Err(Problem::new(
                Exit::Input,
                format!("{name} does not apply to Harbor tasks: each has its own test.sh"),
            ));
        }
    }
    let failed = |path: &Path, error: std::io::Error| {
        Problem::new(Exit::Input, format!("{} cannot be read: {error}", path.display()))
    };
    let source = &args.source;
    let mut places = vec![source.clone()];
    if !source.join("task.toml").is_file() {
        let entries = std::fs::read_dir(source).map_err(|error| failed(source, error))?.flatten();
        places = entries.map(|entry| entry.path()).filter(|path| path.join("task.toml").is_file()).collect();
        places.sort();
    }
    let options = HarborOptions { image: args.image.clone() };
    let one = |(index, place): (usize, &PathBuf)| {
        let name = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut files = BTreeMap::new();
        let mut room = FOLDER_BYTES_MAX;
        collect(place, "", &mut files, &mut room).map_err(|error| failed(place, error))?;
        Ok(harbor_task(&name, &files, &options).map_err(|error| DatasetError { record: index + 1, ..error }))
    };
    places.iter().enumerate().map(one).collect()
}

/// The plain files below a folder; links are left out.
fn collect(
    folder: &Path,
    below: &str,
    files: &mut BTreeMap<String, Vec<u8>>,
    room: &mut u64,
) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let Some(name) = entry.file_name().to_str().map(|name| format!("{below}{name}")) else { continue };
        let kind = entry.file_type()?;
        if kind.is_dir() {
            collect(&entry.path(), &format!("{name}/"), files, room)?;
        } else if kind.is_file() {
            let bytes = entry.metadata()?.len();
            *room = room.checked_sub(bytes).ok_or_else(|| {
                std::io::Error::other(format!("more than {} MiB of files", FOLDER_BYTES_MAX >> 20))
            })?;
            files.insert(name, std::fs::read(entry.path())?);
        }
    }
    Ok(())
}

/// Writes a task file.
pub(super) fn write_tasks(out: &Path, tasks: &[String]) -> Result<(), Problem> {
    write(out, tasks).map_err(|error| {
        Problem::new(Exit::Unavailable, format!("{} cannot be written: {error}", out.display()))
    })
}

/// The file appears when it is whole.
fn write(out: &Path, tasks: &[String]) -> std::io::Result<()> {
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new()
        .prefix(".tasks-")
        .permissions(PermissionsExt::from_mode(0o644))
        .tempfile_in(folder)?;
    for task in tasks {
        writeln!(file, "{task}")?;
    }
    file.as_file().sync_all()?;
    file.persist(out).map(drop).map_err(|error| error.error)
}
