//! The commands of `espalier plugin`.

use super::{Context, authoring, plugin_alias, plugin_check, plugin_dev, plugin_run, plugin_test, plugins};
use crate::cli::exit::Exit;
use crate::output::problem::Problem;
use clap::{Args, Subcommand};

/// `espalier plugin`
#[derive(Debug, Subcommand)]
pub enum PluginCommand {
    /// Create a plugin's project: source, build files, SDK, an experiment with tasks, cases for tests.
    #[command(after_help = "Examples:
  espalier plugin new my-agent --kind harness --lang python
  espalier plugin new strict --kind reward --lang rust --dir plugins/strict

Then, in the folder: `espalier plugin build`, `espalier plugin test`.

If the folder exists and is not empty, nothing is written and the exit code is
2.")]
    New(authoring::PluginNewArgs),
    /// Build a project: its source becomes the component build/NAME.wasm.
    #[command(after_help = "Examples:
  espalier plugin build
  espalier plugin build plugins/strict

The project is the folder with `plugin.toml`, or the nearest one above. If the
source does not compile, the compiler's messages are printed and the exit code
is 1. If a program is missing, the error names the line that installs it, and
the exit code is 4.")]
    Build(authoring::PluginBuildArgs),
    /// Run the cases of a project against its component.
    #[command(after_help = "Examples:
  espalier plugin test
  espalier plugin test --case done
  espalier plugin test plugins/strict --json

A case is a file cases/NAME.toml: what the plugin is given, and what it must do
(docs/authoring-cases.md). What differs is shown, and the exit code is 1.")]
    Test(plugin_test::PluginTestArgs),
    /// Watch a project: after each change build it, run its cases, and play one task.
    #[command(after_help = "Examples:
  espalier plugin dev
  espalier plugin dev --model embedded --task tasks.jsonl --id stick
  espalier plugin dev --no-play

Build errors and failed cases are shown, and the next change tries again. Ctrl-c
ends it.")]
    Dev(plugin_dev::PluginDevArgs),
    /// Play one rollout of a project's plugin and show it.
    #[command(after_help = "Examples:
  espalier plugin run
  espalier plugin run --task tasks.jsonl --id stick
  espalier plugin run --model embedded
  espalier plugin run --model vllm=http://127.0.0.1:8000

The other parts are those of the project's experiment.toml; without one, those
of a new project of its kind. Nothing is kept.")]
    Run(plugin_run::PluginRunArgs),
    /// List the plugins that an experiment can use.
    #[command(after_help = "Example:
  espalier plugin list")]
    List,
    /// Show what a component is, whether this engine can load it, and what it costs.
    #[command(after_help = "Examples:
  espalier plugin check                      the project of the current folder
  espalier plugin check build/my-agent.wasm
  espalier plugin check react-text

If the component is refused, the reason is printed and the exit code is 1.")]
    Check(PluginCheckArgs),
    /// Write the SDK of a language to a folder, or replace the one that is there.
    #[command(after_help = "Example:
  espalier plugin sdk --lang python --out sdk    in a project: the SDK of this program")]
    Sdk(authoring::PluginSdkArgs),
    /// Set an alias for a plugin. Runs that use the alias take the new plugin for every group they open from then on.
    #[command(after_help = "Examples:
  espalier plugin alias agent react-text
  espalier plugin alias agent build/my-harness.wasm
  espalier plugin alias agent --remove

Open groups keep the plugin they began with.")]
    Alias(PluginAliasArgs),
}

/// `espalier plugin alias`
#[derive(Debug, Args)]
pub struct PluginAliasArgs {
    /// The alias, used in an experiment as `plugin = "NAME"`.
    pub alias: String,
    /// A component file, an alias, the name of a plugin, or the beginning of a digest.
    #[arg(required_unless_present = "remove")]
    pub plugin: Option<String>,
    /// Remove the alias: the name refers to the plugin of that name again.
    #[arg(long, conflicts_with = "plugin")]
    pub remove: bool,
    /// Set the alias even if its world differs, or open runs that use it cannot continue with the plugin.
    #[arg(long)]
    pub force: bool,
}

/// `espalier plugin check`
#[derive(Debug, Args)]
pub struct PluginCheckArgs {
    /// The folder of a project, a component file, an alias, the name of a plugin, or the beginning of a digest.
    #[arg(default_value = ".")]
    pub plugin: String,
}

pub(super) async fn plugin(context: &mut Context, command: PluginCommand) -> Result<Exit, Problem> {
    match command {
        PluginCommand::New(args) => authoring::new(context, &args),
        PluginCommand::Build(args) => authoring::build(context, args).await,
        PluginCommand::Sdk(args) => authoring::sdk(context, &args),
        PluginCommand::Test(args) => plugin_test::test(context, args).await,
        PluginCommand::Run(args) => plugin_run::run(context, args).await,
        PluginCommand::Dev(args) => Box::pin(plugin_dev::dev(context, args)).await,
        PluginCommand::List => plugins::list(context).await,
        PluginCommand::Check(args) => plugin_check::check(context, args).await,
        PluginCommand::Alias(args) => plugin_alias::alias(context, args).await,
    }
}
