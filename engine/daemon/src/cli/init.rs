//! `espalier init`: an experiment with its tasks, to start from. Writes all of its files or none, and never over another.

use super::Context;
use crate::cli::exit::Exit;
use crate::installed;
use crate::output::problem::Problem;
use crate::output::styles;
use crate::output::table::{Align, Cell, Table};
use clap::{Args, ValueEnum};
use serde_json::json;
use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// What `espalier run` takes where no file is named.
pub const EXPERIMENT: &str = "experiment.toml";
const TASKS: &str = "tasks.jsonl";
const README: &str = "README.md";

/// `espalier init`
#[derive(Debug, Args)]
pub struct InitArgs {
    /// Name of the example experiment.
    #[arg(value_enum, default_value = "textcraft")]
    pub template: Template,
    /// The folder to write to; created if it is missing.
    #[arg(default_value = ".")]
    pub folder: PathBuf,
    /// List the example experiments, and write nothing.
    #[arg(long)]
    pub list: bool,
}

/// The experiments that `espalier init` writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Template {
    /// A text game: crafting goals.
    Textcraft,
    /// Small tasks for a shell, each in a sandbox.
    Shell,
    /// Small software tasks, graded by hidden tests.
    Swe,
    /// Tasks in web applications, each in a browser.
    Gui,
}

/// Where a template's tasks come from.
enum Tasks {
    /// A task file that is installed with the program.
    Installed(&'static str),
    /// These lines.
    Text(&'static [&'static str]),
}

/// The files of one application of `experiments/apps`, as they are written below a starter.
macro_rules! app {
    ($name:literal) => {
        app!($name, "app.js", "app.json", "base.css", "index.html", "session.js", "style.css")
    };
    ($name:literal, $($file:literal),+) => {
        [$((
            concat!("apps/", $name, "/", $file),
            include_str!(concat!("../../../../experiments/apps/", $name, "/", $file)),
        )),+]
    };
}

/// What the template `gui` has beside its experiment.
const GUI: [&[(&str, &str)]; 4] = [
    &[
        ("model.toml", include_str!("init/gui-model.toml")),
        ("miniwob.toml", include_str!("init/gui-miniwob.toml")),
    ],
    &app!("mail"),
    &app!("calendar"),
    &app!("shop"),
];
const TRAIN: &str = include_str!("../../../../experiments/gui.toml");
const TRAIN_TASKS: (&str, &str) = ("tasks/gui.jsonl", "web.jsonl");

impl Template {
    fn name(self) -> &'static str {
        match self {
            Template::Textcraft => "textcraft",
            Template::Shell => "shell",
            Template::Swe => "swe",
            Template::Gui => "gui",
        }
    }

    /// What it is, and what it needs beside the embedded model.
    fn about(self) -> (&'static str, &'static str) {
        match self {
            Template::Textcraft => {
                ("32 crafting goals of a text game; a small model solves about a third", "nothing")
            }
            Template::Shell => {
                ("20 small tasks for a shell, each in a sandbox", "sandboxes (`espalier doctor`)")
            }
            Template::Swe => (
                "3 small Python libraries with a defect, graded by hidden tests",
                "sandboxes; python3 of this machine",
            ),
            Template::Gui => (
                "11 tasks in web applications, by their reference solutions; also for a model of yours",
                "sandboxes; chromium-headless-shell",
            ),
        }
    }

    /// The project's own experiment, and the task file that it names.
    fn experiment(self) -> (&'static str, &'static str) {
        match self {
            Template::Textcraft => {
                (include_str!("../../../../experiments/textcraft.toml"), "../tasks/textcraft.jsonl")
            }
            Template::Shell => (include_str!("../../../../experiments/shell.toml"), "../tasks/shell.jsonl"),
            Template::Swe => (include_str!("init/swe.toml"), TASKS),
            Template::Gui => (include_str!("init/gui.toml"), TASKS),
        }
    }

    fn tasks(self) -> Tasks {
        match self {
            Template::Textcraft => Tasks::Installed("textcraft.jsonl"),
            Template::Shell => Tasks::Installed("shell.jsonl"),
            Template::Swe => Tasks::Text(&[include_str!("init/swe.jsonl")]),
            Template::Gui => Tasks::Text(&[
                include_str!("../../../../experiments/tasks/mail.jsonl"),
                include_str!("../../../../experiments/tasks/calendar.jsonl"),
                include_str!("../../../../experiments/tasks/shop.jsonl"),
            ]),
        }
    }

    fn readme(self) -> &'static str {
        match self {
            Template::Textcraft => include_str!("init/textcraft.md"),
            Template::Shell => include_str!("init/shell.md"),
            Template::Swe => include_str!("init/swe.md"),
            Template::Gui => include_str!("init/gui.md"),
        }
    }

    /// Files beside the three that every template has.
    fn others(self) -> Vec<(&'static str, String)> {
        if self != Template::Gui {
            return Vec::new();
        }
        let (source, tasks) = TRAIN_TASKS;
        let training = [
            ("train.toml", TRAIN.replacen(source, tasks, 1)),
            (tasks, include_str!("../../../../experiments/tasks/gui.jsonl").to_owned()),
        ];
        let written = GUI.into_iter().flatten().map(|(name, text)| (*name, (*text).to_owned()));
        written.chain(training).collect()
    }

    /// The files, by their paths below the folder.
    fn files(self) -> Result<Vec<(&'static str, String)>, Problem> {
        let (experiment, source) = self.experiment();
        let tasks = match self.tasks() {
            Tasks::Text(lines) => lines.concat(),
            Tasks::Installed(name) => installed_tasks(name)?,
        };
        let mut files = vec![
            (EXPERIMENT, experiment.replacen(source, TASKS, 1)),
            (TASKS, tasks),
            (README, self.readme().to_owned()),
        ];
        files.extend(self.others());
        Ok(files)
    }
}

/// A task file from beside the program.
fn installed_tasks(name: &str) -> Result<String, Problem> {
    let path = installed::task_file(name).unwrap_or_else(|| PathBuf::from(name));
    fs::read_to_string(&path).map_err(|error| {
        Problem::new(Exit::Unavailable, format!("cannot read {}: {error}", path.display()))
            .hint("it comes with an installation; from source, run `make build`")
    })
}

pub(super) fn init(context: &mut Context, args: &InitArgs) -> Result<Exit, Problem> {
    if args.list {
        return list(context);
    }
    let files = args.template.files()?;
    write_all(&args.folder, &files)?;
    let names: Vec<String> =
        files.iter().map(|(name, _)| args.folder.join(name).display().to_string()).collect();
    if context.common.json {
        context.out.json(&json!({ "template": args.template.name(), "files": names }))?;
        return Ok(Exit::Done);
    }
    for name in names {
        context.out.line(&format!("wrote {}", name.trim_start_matches("./")))?;
    }
    let file = args.folder.join(EXPERIMENT).display().to_string();
    let next = if args.folder == Path::new(".") { "espalier run" } else { &format!("espalier run {file}") };
    context.screen.say(&format!("next: {next}"));
    Ok(Exit::Done)
}

fn list(context: &mut Context) -> Result<Exit, Problem> {
    if context.common.json {
        let list = Template::value_variants().iter().map(|template| {
            let (about, needs) = template.about();
            json!({ "name": template.name(), "about": about, "needs": needs })
        });
        context.out.json(&list.collect::<Vec<_>>())?;
        return Ok(Exit::Done);
    }
    let mut table =
        Table::new(&[("name", Align::Whole), ("experiment", Align::Left), ("needs", Align::Left)]);
    for template in Template::value_variants() {
        let (about, needs) = template.about();
        table.row(vec![Cell::styled(template.name(), styles::STRONG), about.into(), needs.into()]);
    }
    for line in table.lines(&context.out.look) {
        context.out.line(&line)?;
    }
    Ok(Exit::Done)
}

/// All of them, or none.
///
/// Errors: `Input` where one of them is there already; `Unavailable` where the folder cannot be written.
fn write_all(folder: &Path, files: &[(&str, String)]) -> Result<(), Problem> {
    let taken: Vec<String> = files
        .iter()
        .map(|(name, _)| folder.join(name))
        .filter(|path| path.symlink_metadata().is_ok())
        .map(|path| path.display().to_string().trim_start_matches("./").to_owned())
        .collect();
    if !taken.is_empty() {
        return Err(occupied(&taken.join(", ")));
    }
    let unwritable = |path: &Path, error: &io::Error| {
        Problem::new(Exit::Unavailable, format!("cannot write {}: {error}", path.display()))
    };
    let mut made = Made::default();
    made.folder(folder).map_err(|error| unwritable(folder, &error))?;
    for (name, text) in files {
        let path = folder.join(name);
        if let Err(error) = made.file(&path, folder, text) {
            made.take_back();
            let raced = error.kind() == io::ErrorKind::AlreadyExists;
            return Err(if raced { occupied(name) } else { unwritable(&path, &error) });
        }
    }
    Ok(())
}

/// What was written so far.
#[derive(Default)]
struct Made {
    /// Parents before what is in them.
    folders: Vec<PathBuf>,
    files: Vec<PathBuf>,
}

impl Made {
    /// With the folders above it that are missing.
    fn folder(&mut self, folder: &Path) -> io::Result<()> {
        let missing: Vec<_> = folder.ancestors().take_while(|folder| !folder.exists()).collect();
        fs::create_dir_all(folder)?;
        self.folders
            .extend(missing.into_iter().rev().filter(|one| *one != Path::new("")).map(Path::to_owned));
        Ok(())
    }

    fn file(&mut self, path: &Path, folder: &Path, text: &str) -> io::Result<()> {
        self.folder(path.parent().unwrap_or(folder))?;
        write_new(path, folder, text)?;
        self.files.push(path.to_owned());
        Ok(())
    }

    /// Folders in which something else was put meanwhile stay.
    fn take_back(self) {
        for file in self.files {
            let _ = fs::remove_file(file);
        }
        for folder in self.folders.iter().rev() {
            let _ = fs::remove_dir(folder);
        }
    }
}

/// The whole file appears at once, and only where there is none.
fn write_new(path: &Path, folder: &Path, text: &str) -> io::Result<()> {
    let mut file = tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.persist_noclobber(path).map_err(|error| error.error)?;
    Ok(())
}

fn occupied(files: &str) -> Problem {
    Problem::new(Exit::Input, format!("{files}: already exists; nothing was written"))
        .hint("name another folder: `espalier init TEMPLATE FOLDER`")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Experiment;

    #[test]
    fn every_experiment_names_the_task_file_beside_it() {
        for template in Template::value_variants() {
            let (experiment, source) = template.experiment();
            assert_eq!(experiment.matches(source).count(), 1, "{}", template.name());
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(EXPERIMENT);
            fs::write(&path, experiment.replacen(source, TASKS, 1)).unwrap();
            let read = Experiment::read(&path, &[]).unwrap();
            assert_eq!(read.file.name, template.name());
            assert_eq!(read.file.tasks.source.as_deref(), Some(Path::new(TASKS)), "{}", template.name());
            assert!(template.readme().contains("espalier run"));
        }
    }

    #[test]
    fn all_files_are_written_or_none() {
        let folder = tempfile::tempdir().unwrap();
        let new = folder.path().join("a/new");
        let files = [("one", "1".to_owned()), ("two", "2".to_owned())];
        write_all(&new, &files).unwrap();
        assert_eq!(fs::read_to_string(new.join("two")).unwrap(), "2");
        fs::remove_file(new.join("one")).unwrap();

        let error = write_all(&new, &files).unwrap_err();
        assert_eq!(error.exit, Exit::Input);
        assert!(error.message.contains("two: already exists"), "{}", error.message);
        assert!(!new.join("one").exists());

        // What cannot be written takes back what was.
        let files = [("one", "1".to_owned()), ("below/it", "1".to_owned()), ("two/below", "2".to_owned())];
        write_all(&new, &files).unwrap_err();
        assert_eq!(fs::read_dir(&new).unwrap().count(), 1, "nothing but `two`");
        let fresh = folder.path().join("fresh/and/deep");
        write_all(&fresh, &[("one", "1".to_owned()), ("one/below", "2".to_owned())]).unwrap_err();
        assert!(!folder.path().join("fresh").exists());
    }

    #[test]
    fn the_other_experiments_of_a_template_are_whole() {
        let folder = tempfile::tempdir().unwrap();
        let files = Template::Gui.files().unwrap();
        write_all(folder.path(), &files).unwrap();
        for name in ["model.toml", "train.toml", "miniwob.toml"] {
            let read = Experiment::read(&folder.path().join(name), &[]).unwrap();
            let tasks = read.file.tasks.source.unwrap();
            let is_written = files.iter().any(|(name, _)| Path::new(name) == tasks);
            assert!(is_written || name == "miniwob.toml", "{name} names {}", tasks.display());
            assert!(Template::Gui.readme().contains(name));
        }
    }
}
