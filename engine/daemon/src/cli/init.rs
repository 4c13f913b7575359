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
}

/// Where a template's tasks come from.
enum Tasks {
    /// A task file that is installed with the program.
    Installed(&'static str),
    /// This text.
    Text(&'static str),
}

impl Template {
    fn name(self) -> &'static str {
        match self {
            Template::Textcraft => "textcraft",
            Template::Shell => "shell",
            Template::Swe => "swe",
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
        }
    }

    fn tasks(self) -> Tasks {
        match self {
            Template::Textcraft => Tasks::Installed("textcraft.jsonl"),
            Template::Shell => Tasks::Installed("shell.jsonl"),
            Template::Swe => Tasks::Text(include_str!("init/swe.jsonl")),
        }
    }

    fn readme(self) -> &'static str {
        match self {
            Template::Textcraft => include_str!("init/textcraft.md"),
            Template::Shell => include_str!("init/shell.md"),
            Template::Swe => include_str!("init/swe.md"),
        }
    }

    /// The files, by name.
    fn files(self) -> Result<[(&'static str, String); 3], Problem> {
        let (experiment, source) = self.experiment();
        let tasks = match self.tasks() {
            Tasks::Text(text) => text.to_owned(),
            Tasks::Installed(name) => installed_tasks(name)?,
        };
        Ok([
            (EXPERIMENT, experiment.replacen(source, TASKS, 1)),
            (TASKS, tasks),
            (README, self.readme().to_owned()),
        ])
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
    let names = files.map(|(name, _)| args.folder.join(name).display().to_string());
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
    let new = !folder.exists();
    let unwritable = |path: &Path, error: &io::Error| {
        Problem::new(Exit::Unavailable, format!("cannot write {}: {error}", path.display()))
    };
    fs::create_dir_all(folder).map_err(|error| unwritable(folder, &error))?;
    let mut written = Vec::new();
    for (name, text) in files {
        let path = folder.join(name);
        if let Err(error) = write_new(&path, folder, text) {
            for path in written {
                let _ = fs::remove_file(path);
            }
            if new {
                let _ = fs::remove_dir(folder);
            }
            let raced = error.kind() == io::ErrorKind::AlreadyExists;
            return Err(if raced { occupied(name) } else { unwritable(&path, &error) });
        }
        written.push(path);
    }
    Ok(())
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
        let files = [("one", "1".to_owned()), ("no/such/folder", "2".to_owned())];
        assert_eq!(write_all(&new, &files).unwrap_err().exit, Exit::Unavailable);
        assert_eq!(fs::read_dir(&new).unwrap().count(), 1, "nothing but `two`");
        let fresh = folder.path().join("fresh");
        write_all(&fresh, &files).unwrap_err();
        assert!(!fresh.exists());
    }
}
