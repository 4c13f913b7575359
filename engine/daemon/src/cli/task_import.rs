//! `espalier task import`: published sets of tasks as a task file.

use super::Context;
use crate::cli::exit::Exit;
use crate::output::problem::Problem;
use crate::output::text::counted;
use crate::output::whole_file::write_whole;
use clap::Args;
use espalier_tasks::dataset::{
    Answers, DatasetError, Format, HarborOptions, RowOptions, SEEDS_MAX, WebOptions, WebSet, harbor_task,
    miniwob_tasks, read, read_web,
};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Maximum size of one Harbor folder; larger ones are data that belongs into its image.
const FOLDER_BYTES_MAX: u64 = 64 << 20;
/// Records that are named; the rest is counted.
const NAMED_MAX: usize = 20;

/// `espalier task import`
#[derive(Debug, Args)]
pub struct TaskImportArgs {
    /// Software tasks: swe-bench, swe-rebench, swe-rebench-v2, swe-gym, or harbor. Tasks on websites: webvoyager,
    /// online-mind2web, or deepshop. Pages of MiniWoB++: miniwob.
    pub format: String,
    /// A file of rows (JSON lines or one JSON array); for harbor the folder of a task, or a folder of such folders; for miniwob
    /// the folder `html` of the package.
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
    /// For tasks on websites: what every task may reach beside its site, such as "*.cdn.example:443"; may be repeated.
    #[arg(long, value_name = "HOST:PORT")]
    pub allow: Vec<String>,
    /// For webvoyager: the set's file of reference answers, which are kept in `private.answer`.
    #[arg(long, value_name = "FILE")]
    pub answers: Option<PathBuf>,
    /// For miniwob: seeds of each page, from 0 on. Default: 1.
    #[arg(long, value_name = "N")]
    pub seeds: Option<u32>,
    /// Import only this task, or for miniwob this page; may be repeated.
    #[arg(long, value_name = "ID")]
    pub only: Vec<String>,
    /// Skip records that are not valid tasks.
    #[arg(long)]
    pub skip_bad_tasks: bool,
}

type Records = Vec<Result<String, DatasetError>>;

pub(super) fn import(context: &mut Context, args: &TaskImportArgs) -> Result<Exit, Problem> {
    let set = Set::named(&args.format)?;
    set.refuse_options_of_others(args)?;
    let records = match set {
        Set::Rows(format) => rows(args, format)?,
        Set::Harbor => folders(args)?,
        Set::Web(set) => sites(args, set)?,
        Set::MiniWob => pages(args)?,
    };
    let mut tasks = Vec::new();
    let mut bad = Vec::new();
    for record in records {
        match record {
            // Pages are chosen by their own names, before they are tasks.
            Ok(line) if matches!(set, Set::MiniWob) || wanted(&line, &args.only) => tasks.push(line),
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

/// A published form.
#[derive(Clone, Copy)]
enum Set {
    Rows(Format),
    Harbor,
    Web(WebSet),
    MiniWob,
}

impl Set {
    fn named(name: &str) -> Result<Set, Problem> {
        let rows = Format::from_name(name).map(Set::Rows);
        let found = rows.or_else(|| WebSet::from_name(name).map(Set::Web)).or(match name {
            "harbor" => Some(Set::Harbor),
            "miniwob" => Some(Set::MiniWob),
            _ => None,
        });
        found.ok_or_else(|| {
            let rows = Format::ALL.iter().map(|(name, _)| *name);
            let web = WebSet::ALL.iter().map(|(name, _)| *name);
            let known: Vec<&str> = rows.chain(["harbor"]).chain(web).chain(["miniwob"]).collect();
            let text = format!("unknown task format {name:?}: expected one of {}", known.join(", "));
            Problem::new(Exit::Input, text)
        })
    }

    /// An option that this set cannot follow is an error, not ignored.
    fn refuse_options_of_others(self, args: &TaskImportArgs) -> Result<(), Problem> {
        let (is_rows, is_web) = (matches!(self, Set::Rows(_)), matches!(self, Set::Web(_)));
        let has_answers = matches!(self, Set::Web(WebSet::WebVoyager));
        let options = [
            ("--image", args.image.is_some(), is_rows || matches!(self, Set::Harbor)),
            ("--command", args.command.is_some(), is_rows),
            ("--parser", args.parser.is_some(), is_rows),
            ("--guard", args.guard, is_rows),
            ("--allow", !args.allow.is_empty(), is_web),
            ("--answers", args.answers.is_some(), has_answers),
            ("--seeds", args.seeds.is_some(), matches!(self, Set::MiniWob)),
        ];
        for (name, is_given, applies) in options {
            if is_given && !applies {
                let text = format!("{name} does not apply to tasks of {}", args.format);
                return Err(Problem::new(Exit::Input, text));
            }
        }
        Ok(())
    }
}

fn text_of(path: &Path, hint: &str) -> Result<String, Problem> {
    std::fs::read_to_string(path).map_err(|error| {
        Problem::new(Exit::Input, format!("{} cannot be read: {error}", path.display())).hint(hint)
    })
}

const ROWS_HINT: &str =
    "expected a file of JSON lines or one JSON array; convert other formats such as Parquet first";

fn rows(args: &TaskImportArgs, format: Format) -> Result<Records, Problem> {
    let text = text_of(&args.source, ROWS_HINT)?;
    let options = RowOptions {
        image: args.image.clone(),
        command: args.command.clone(),
        parser: args.parser.clone(),
        guard: args.guard,
    };
    Ok(read(format, &text, &options).collect())
}

fn sites(args: &TaskImportArgs, set: WebSet) -> Result<Records, Problem> {
    super::browser::check_allow(&args.allow)?;
    let answers = args.answers.as_deref().map(|path| {
        let text = text_of(path, "expected the set's file of reference answers, a JSON object")?;
        Answers::read(&text)
            .map_err(|error| Problem::new(Exit::Input, format!("{}: {error}", path.display())))
    });
    let options = WebOptions { allow: args.allow.clone(), answers: answers.transpose()? };
    let text = text_of(&args.source, ROWS_HINT)?;
    Ok(read_web(set, &text, &options).collect())
}

/// The pages of MiniWoB++: `miniwob/*.html` below the folder, and those of flights, `flight/*/wrapper.html`.
fn pages(args: &TaskImportArgs) -> Result<Records, Problem> {
    let seeds = args.seeds.unwrap_or(1);
    if !(1..=SEEDS_MAX).contains(&seeds) {
        return Err(Problem::new(Exit::Input, format!("invalid --seeds {seeds}: expected 1 to {SEEDS_MAX}")));
    }
    let folder = args.source.join("miniwob");
    let entries = std::fs::read_dir(&folder).map_err(|error| {
        Problem::new(Exit::Input, format!("{} cannot be read: {error}", folder.display())).hint(
            "expected the folder `html` of the Python package `miniwob`, with `core` and `miniwob` in it",
        )
    })?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut pages: Vec<String> =
        names.filter_map(|name| name.strip_suffix(".html").map(str::to_owned)).collect();
    let flights = std::fs::read_dir(args.source.join("flight")).into_iter().flatten().flatten();
    let sites = flights.filter(|entry| entry.path().join("wrapper.html").is_file());
    pages.extend(sites.filter_map(|entry| Some(format!("flight.{}", entry.file_name().into_string().ok()?))));
    pages.sort();
    if let Some(unknown) = args.only.iter().find(|only| !pages.contains(only)) {
        return Err(Problem::new(Exit::Input, format!("{} has no page {unknown:?}", folder.display())));
    }
    pages.retain(|page| args.only.is_empty() || args.only.contains(page));
    Ok(miniwob_tasks(&pages, seeds).collect())
}

fn folders(args: &TaskImportArgs) -> Result<Records, Problem> {
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
    let lines = |file: &mut dyn Write| tasks.iter().try_for_each(|task| writeln!(file, "{task}"));
    write_whole(out, lines).map_err(|error| {
        Problem::new(Exit::Unavailable, format!("{} cannot be written: {error}", out.display()))
    })
}
