//! `espalier task`: the commands on tasks.

use super::{Context, task_check, task_import, task_sdist};
use crate::cli::exit::Exit;
use crate::output::problem::Problem;
use clap::Subcommand;

/// `espalier task`
#[derive(Debug, Subcommand)]
pub enum TaskCommand {
    /// Check that each task can be solved and is not solved initially, or that a task file is valid.
    #[command(after_help = "Examples:
  espalier task check experiments/textcraft.toml
  espalier task check experiments/tasks/textcraft.jsonl

For an experiment, the reference solution of each task must score `full` and
doing nothing must score `idle`, which [check] of the experiment sets (default 1
and 0). For a task file, only the form of each line is checked.")]
    Check(task_check::TaskCheckArgs),
    /// Convert a published set of tasks to a task file.
    #[command(after_help = "Examples:
  espalier task import swe-bench verified.jsonl --out tasks/verified.jsonl
  espalier task import swe-rebench-v2 rows.json --out rebench.jsonl
  espalier task import harbor terminal-bench/tasks --out tasks/terminal.jsonl
  espalier task import webvoyager WebVoyager_data.jsonl --allow '*.cdn.example:443' --out tasks/sites.jsonl
  espalier task import miniwob site-packages/miniwob/html --seeds 4 --out tasks/miniwob.jsonl

Score software tasks with the reward `tests-reward`: docs/grading.md. Tasks on
websites and pages of MiniWoB++: docs/browsers.md.")]
    Import(task_import::TaskImportArgs),
    /// Create a task from two releases of a Python library: the old source, the changelog and the new tests.
    #[command(after_help = "Examples:
  espalier task from-sdist sqlparse 0.5.0 0.5.1 --out tasks/sqlparse.jsonl
  espalier task from-sdist soupsieve 2.4 2.4.1 --require pytest --require html5lib
  espalier task from-sdist mylib mylib-1.0.tar.gz mylib-1.1.tar.gz

The tests run five times on each source, in sandboxes; tests whose result
changes between runs are left out. If the pair is not suitable for a task, the
reason is printed and the exit code is 1. Score these tasks with the reward
`tests-reward`: docs/tasks.md, docs/grading.md.")]
    FromSdist(task_sdist::FromSdistArgs),
    /// Create a set of tasks from releases of Python libraries.
    #[command(after_help = "Examples:
  espalier task from-manifest experiments/tasks/swe.toml --out tasks/swe.jsonl
  espalier task from-manifest swe.toml --only sqlparse --out sqlparse.jsonl

Pairs that are not suitable for a task are reported, the others are created,
and the exit code is 1. Finished tasks are not created again.")]
    FromManifest(task_sdist::FromManifestArgs),
}

pub(super) async fn task(context: &mut Context, command: TaskCommand) -> Result<Exit, Problem> {
    match command {
        TaskCommand::Check(args) => task_check::check(context, args).await,
        TaskCommand::Import(args) => task_import::import(context, &args),
        TaskCommand::FromSdist(args) => task_sdist::from_sdist(context, args).await,
        TaskCommand::FromManifest(args) => task_sdist::from_manifest(context, args).await,
    }
}
