//! `espalier sandbox`: sandboxes by hand.

mod copy;
mod execute;

use super::Context;
use super::signals::Signals;
use crate::cli::exit::Exit;
use crate::output::problem::Problem;
use crate::output::styles;
use crate::output::table::{Align, Cell, Table};
use crate::output::text::{age, counted};
use clap::{Args, Subcommand};
use espalier_core::limits::{DurationText, SizeText};
use espalier_core::sandbox::{Network, SandboxFile, SandboxSpec};
use espalier_images::Stop;
use espalier_sandbox::backend::Placed;
use espalier_sandbox::service::{IMAGE, Purpose, Sandbox, Sandboxes, random_id};
use serde_json::json;
use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::timeout;

/// How long a stopped export may take to remove what it has written.
const CLEAN_UP_MAX: Duration = Duration::from_secs(10);

/// `espalier sandbox`
#[derive(Debug, Subcommand)]
pub enum SandboxCommand {
    /// Create sandboxes and print their ids.
    #[command(after_help = "Examples:
  espalier sandbox create                          this machine's programs
  espalier sandbox create debian:12 --memory 1GiB --cpu 2 --lease 2h
  espalier sandbox create oci:./image --allow pypi.org:443
  espalier sandbox create checkpoint:ID --count 4  four copies of a checkpoint

A sandbox ends when it receives no request for the length of its lease. Without
--loopback or --allow it has no network.")]
    Create(Box<CreateArgs>),
    /// Run a command in a sandbox.
    #[command(after_help = "Examples:
  espalier sandbox exec ID -- ls -l /
  espalier sandbox exec ID --timeout 10s -- sh -c 'make test'
  tar c src | espalier sandbox exec ID --stdin -- tar x -C /root

Exits with the exit code of the command, or with
  124    the command timed out
  125    espalier itself failed, or output was lost
  137    the command ran out of memory (also reported on stderr)
  141    the command was killed because nothing reads its output
  128+N  the command was killed by signal N

Ctrl-C and SIGTERM are passed to the command; a second one kills it.")]
    Exec(ExecArgs),
    /// Open a terminal in a sandbox.
    #[command(after_help = "Example:
  espalier sandbox shell ID")]
    Shell(ShellArgs),
    /// Copy files and folders to or from a sandbox.
    #[command(after_help = "Examples:
  espalier sandbox cp src ID:/root/src
  espalier sandbox cp ID:/root/result.txt .

Copies files, folders and links. Anything left out (sockets, devices, unreadable
files) is reported, and the exit code is then 1. A copy out of a sandbox never
writes through a link and never replaces an entry of another type.")]
    Cp(CopyArgs),
    /// List sandboxes or checkpoints.
    #[command(after_help = "Examples:
  espalier sandbox list
  espalier sandbox list --label task=7 --json")]
    List(ListArgs),
    /// Delete sandboxes or checkpoints.
    #[command(after_help = "Examples:
  espalier sandbox delete ID
  espalier sandbox delete --all
  espalier sandbox delete --checkpoint ID")]
    Delete(DeleteArgs),
    /// Create a checkpoint of the file system of a sandbox and print its id. Processes keep running and are not part of it.
    #[command(after_help = "Example:
  espalier sandbox checkpoint ID")]
    Checkpoint(CheckpointArgs),
    /// Write a checkpoint to an OCI archive, for `create oci-archive:FILE` on this or another machine.
    #[command(after_help = "Examples:
  espalier sandbox export CHECKPOINT work.tar
  espalier sandbox create oci-archive:work.tar

The archive includes the image the sandbox was created from. For a sandbox of
`host` it contains only the changes, which are applied over the programs of the
machine that reads it.")]
    Export(ExportArgs),
}

/// `espalier sandbox create`
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// `host`, the name of an image, oci:FOLDER, oci-archive:FILE, or checkpoint:ID.
    #[arg(default_value = "host")]
    pub image: String,
    /// CPU cores.
    #[arg(long)]
    pub cpu: Option<f64>,
    /// Memory, such as 512MiB.
    #[arg(long)]
    pub memory: Option<SizeText>,
    /// Size of the disk, such as 4GiB.
    #[arg(long)]
    pub disk: Option<SizeText>,
    /// Maximum number of processes and threads.
    #[arg(long, value_name = "N")]
    pub processes_max: Option<u32>,
    /// Enable its own 127.0.0.1.
    #[arg(long)]
    pub loopback: bool,
    /// Allow connections to HOST:PORT, *.DOMAIN:PORT, *:PORT or ADDRESS/BITS:PORT, through a proxy; may be repeated.
    #[arg(long, value_name = "HOST:PORT")]
    pub allow: Vec<String>,
    /// Let programs make user namespaces, as Chromium's own sandbox needs; exposes more of this machine's kernel.
    #[arg(long)]
    pub user_namespaces: bool,
    /// Variable for every command; may be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    pub env: Vec<(String, String)>,
    /// User that runs commands.
    #[arg(long)]
    pub user: Option<String>,
    /// Folder in which commands start.
    #[arg(long, value_name = "FOLDER")]
    pub workdir: Option<String>,
    /// Run the ENTRYPOINT and CMD of the image in the background.
    #[arg(long)]
    pub entrypoint: bool,
    /// Shell text to run before the sandbox is ready.
    #[arg(long, value_name = "SCRIPT")]
    pub setup: Option<String>,
    /// Label to find the sandbox by; may be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    pub label: Vec<(String, String)>,
    /// Time without a request after which it ends, 1s to 24h.
    #[arg(long, default_value = "1h")]
    pub lease: DurationText,
    /// Fail unless the machine makes this promise (`espalier doctor` lists them); may be repeated.
    #[arg(long, value_name = "PROMISE")]
    pub require: Vec<String>,
    /// Number of sandboxes to create.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub count: u32,
}

/// `espalier sandbox exec`
#[derive(Debug, Args)]
pub struct ExecArgs {
    /// Id of the sandbox.
    pub id: String,
    /// User that runs the command.
    #[arg(long)]
    pub user: Option<String>,
    /// Folder to start in.
    #[arg(long, value_name = "FOLDER")]
    pub workdir: Option<String>,
    /// Variable to add to its environment; may be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    pub env: Vec<(String, String)>,
    /// Kill the command and everything it started after this time.
    #[arg(long)]
    pub timeout: Option<DurationText>,
    /// Pass standard input to the command.
    #[arg(long, short = 'i')]
    pub stdin: bool,
    /// Program and arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// `espalier sandbox shell`
#[derive(Debug, Args)]
pub struct ShellArgs {
    /// Id of the sandbox.
    pub id: String,
    /// User that runs the shell.
    #[arg(long)]
    pub user: Option<String>,
}

/// `espalier sandbox cp`
#[derive(Debug, Args)]
pub struct CopyArgs {
    /// A local path, or ID:PATH.
    pub from: String,
    /// ID:PATH, or a local path.
    pub to: String,
}

/// `espalier sandbox list`
#[derive(Debug, Args)]
pub struct ListArgs {
    /// List only those with this label; may be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    pub label: Vec<(String, String)>,
    /// List checkpoints instead of sandboxes.
    #[arg(long)]
    pub checkpoints: bool,
}

/// `espalier sandbox delete`
#[derive(Debug, Args)]
pub struct DeleteArgs {
    /// Ids of the sandboxes.
    #[arg(required_unless_present_any = ["all", "checkpoint"])]
    pub ids: Vec<String>,
    /// Delete every sandbox of the store.
    #[arg(long, conflicts_with = "ids")]
    pub all: bool,
    /// Delete this checkpoint; may be repeated.
    #[arg(long, value_name = "ID")]
    pub checkpoint: Vec<String>,
}

/// `espalier sandbox checkpoint`
#[derive(Debug, Args)]
pub struct CheckpointArgs {
    /// Id of the sandbox.
    pub id: String,
}

/// `espalier sandbox export`
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Id of the checkpoint.
    pub checkpoint: String,
    /// File to write; replaced only when the new one is complete.
    pub file: PathBuf,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    if name.is_empty() {
        Err("the name is empty".to_owned())
    } else {
        Ok((name.to_owned(), value.to_owned()))
    }
}

pub(super) async fn sandbox(context: &mut Context, command: SandboxCommand) -> Result<Exit, Problem> {
    let service = crate::sandboxes::open(
        &context.common.store.parse()?,
        None,
        espalier_sandbox::local::Services::default(),
    )?;
    let listeners = context.listeners.clone();
    let mut signals = match &command {
        // Signals are for the command in the sandbox, from when it runs.
        SandboxCommand::Exec(_) | SandboxCommand::Shell(_) => None,
        _ => Some(Signals::new(&listeners)?),
    };
    let heard = &mut signals;
    let result = match command {
        SandboxCommand::Create(args) => or_heard(heard, Box::pin(create(context, &service, *args))).await,
        SandboxCommand::Exec(args) => {
            Ok(execute::execute(&service, &listeners, args, context.common.verbose).await)
        }
        SandboxCommand::Shell(args) => execute::shell(&service, &listeners, args).await,
        SandboxCommand::Cp(args) => or_heard(heard, copy::copy(&service, &args)).await,
        SandboxCommand::List(args) if args.checkpoints => {
            or_heard(heard, checkpoints(context, &service)).await
        }
        SandboxCommand::List(args) => or_heard(heard, list(context, &service, &args)).await,
        SandboxCommand::Delete(args) => or_heard(heard, delete(context, &service, &args)).await,
        SandboxCommand::Export(args) => export(context, &service, &args, heard).await,
        SandboxCommand::Checkpoint(args) => or_heard(heard, checkpoint(context, &service, &args.id)).await,
    };
    // What could not be finished is ended before the command is; another signal does not wait for it.
    tokio::select! {
        () = service.close() => {}
        () = next(&mut signals) => {}
    }
    result
}

async fn next(signals: &mut Option<Signals>) {
    match signals {
        Some(signals) => signals.next().await,
        None => std::future::pending().await,
    }
}

/// What the work comes to, unless a signal comes before that: it is then dropped.
async fn or_heard<T>(
    signals: &mut Option<Signals>,
    work: impl Future<Output = Result<T, Problem>>,
) -> Result<T, Problem> {
    tokio::select! {
        result = work => result,
        () = next(signals) => Err(Problem::new(Exit::Interrupted, "stopped")),
    }
}

/// A sandbox of the store, for one command.
async fn attach(service: &Sandboxes, id: &str) -> Result<Sandbox, Problem> {
    let client = format!("cli-{}", random_id());
    // Its lease stays what it is.
    Ok(service.attach(id, &client, Duration::ZERO).await?)
}

async fn create(context: &mut Context, service: &Sandboxes, args: CreateArgs) -> Result<Exit, Problem> {
    let network = match (args.loopback, args.allow.is_empty()) {
        (_, false) => Network::Allow(args.allow),
        (true, true) => Network::Loopback,
        (false, true) => Network::None,
    };
    let file = SandboxFile {
        image: Some(args.image),
        cpu: args.cpu,
        memory: args.memory,
        disk: args.disk,
        processes_max: args.processes_max,
        network: Some(network),
        user_namespaces: args.user_namespaces.then_some(true),
        env: args.env.into_iter().collect(),
        user: args.user,
        workdir: args.workdir,
        entrypoint: args.entrypoint.then_some(true),
        setup: args.setup,
        ..SandboxFile::default()
    };
    let spec = SandboxSpec::resolve(&file, &SandboxFile::default())
        .map_err(|error| Problem::of(Exit::Input, &error))?;
    let purpose = Purpose {
        labels: args.label.into_iter().collect(),
        lease: args.lease.0,
        require: args.require,
        client: format!("cli-{}", random_id()),
        registry_credentials: true,
    };
    let mut ids = Vec::new();
    let mut failed = None;
    for _ in 0..args.count {
        match service.create(&spec, &purpose).await {
            Ok(sandbox) => {
                if !context.common.json {
                    context.out.line(&sandbox.placed.id)?;
                }
                ids.push(sandbox.placed.id);
            }
            // Those that were made are there, and are named.
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    if let Some(error) = failed {
        if context.common.json && !ids.is_empty() {
            context.out.json(&ids)?;
        }
        return Err(error.into());
    }
    if matches!(spec.network, Network::Allow(_)) {
        context.screen.say("the network is reachable only while an espalier command works on the sandbox");
    }
    if context.common.json {
        context.out.json(&ids)?;
    }
    Ok(Exit::Done)
}

async fn list(context: &mut Context, service: &Sandboxes, args: &ListArgs) -> Result<Exit, Problem> {
    let is_labelled =
        |placed: &Placed| args.label.iter().all(|(name, value)| placed.labels.get(name) == Some(value));
    let all: Vec<Placed> = service.list().await?.into_iter().filter(is_labelled).collect();
    if context.common.json {
        let values: Vec<_> = all
            .iter()
            .map(|placed| {
                json!({
                    "id": placed.id,
                    "created_s": placed.created_s,
                    "suspended": placed.suspended,
                    "pid": placed.pid,
                    "image": placed.labels.get(IMAGE),
                    "labels": placed.labels,
                })
            })
            .collect();
        context.out.json(&values)?;
        return Ok(Exit::Done);
    }
    if all.is_empty() {
        context.screen.say("no sandboxes: `espalier sandbox create` creates one");
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&[
        ("sandbox", Align::Whole),
        ("state", Align::Left),
        ("image", Align::Left),
        ("labels", Align::Left),
        ("age", Align::Right),
    ]);
    let now_s = crate::runner::now_ms() / 1000;
    for placed in &all {
        table.row(vec![
            Cell::styled(placed.id.as_str(), styles::STRONG),
            if placed.suspended { "suspended" } else { "running" }.into(),
            placed.labels.get(IMAGE).map_or("", String::as_str).into(),
            labels(&placed.labels).into(),
            Cell::styled(age(now_s.saturating_sub(placed.created_s) * 1000), styles::FAINT),
        ]);
    }
    for line in table.lines(&context.out.look) {
        context.out.line(&line)?;
    }
    Ok(Exit::Done)
}

/// Without the service's own.
fn labels(labels: &BTreeMap<String, String>) -> String {
    let own = labels.iter().filter(|(name, _)| !name.starts_with("espalier."));
    own.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

async fn checkpoints(context: &mut Context, service: &Sandboxes) -> Result<Exit, Problem> {
    let all = service.backend().checkpoints().await?;
    if context.common.json {
        let values: Vec<_> = all
            .iter()
            .map(|kept| json!({ "id": kept.id, "sandbox": kept.sandbox, "created_s": kept.created_s }))
            .collect();
        context.out.json(&values)?;
        return Ok(Exit::Done);
    }
    if all.is_empty() {
        context.screen.say("no checkpoints: `espalier sandbox checkpoint ID` creates one");
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&[("checkpoint", Align::Whole), ("of", Align::Left), ("age", Align::Right)]);
    let now_s = crate::runner::now_ms() / 1000;
    for kept in &all {
        table.row(vec![
            Cell::styled(kept.id.as_str(), styles::STRONG),
            kept.sandbox.as_str().into(),
            Cell::styled(age(now_s.saturating_sub(kept.created_s) * 1000), styles::FAINT),
        ]);
    }
    for line in table.lines(&context.out.look) {
        context.out.line(&line)?;
    }
    Ok(Exit::Done)
}

async fn delete(context: &mut Context, service: &Sandboxes, args: &DeleteArgs) -> Result<Exit, Problem> {
    let there: Vec<String> = service.list().await?.into_iter().map(|placed| placed.id).collect();
    let ids = if args.all { &there } else { &args.ids };
    let mut exit = Exit::Done;
    for id in ids {
        if there.contains(id) {
            service.delete(id).await?;
        } else {
            context.screen.say(&format!("there is no sandbox {id:?}"));
            exit = Exit::Negative;
        }
    }
    let mut kept = Vec::new();
    if !args.checkpoint.is_empty() {
        kept = service.backend().checkpoints().await?;
    }
    for id in &args.checkpoint {
        if kept.iter().any(|kept| kept.id == *id) {
            service.delete_checkpoint(id).await?;
        } else {
            context.screen.say(&format!("there is no checkpoint {id:?}"));
            exit = Exit::Negative;
        }
    }
    Ok(exit)
}

async fn checkpoint(context: &mut Context, service: &Sandboxes, id: &str) -> Result<Exit, Problem> {
    let kept = service.checkpoint(id).await?;
    if context.common.json {
        let frozen_ms = u64::try_from(kept.frozen.as_millis()).unwrap_or(u64::MAX);
        context.out.json(&json!({ "id": kept.id, "sandbox": kept.sandbox, "frozen_ms": frozen_ms }))?;
    } else {
        context.out.line(&kept.id)?;
    }
    Ok(Exit::Done)
}

async fn export(
    context: &mut Context,
    service: &Sandboxes,
    args: &ExportArgs,
    signals: &mut Option<Signals>,
) -> Result<Exit, Problem> {
    let stop = Stop::default();
    let mut work = std::pin::pin!(service.export(&args.checkpoint, &args.file, &stop));
    let written = tokio::select! {
        written = &mut work => written,
        () = next(signals) => {
            stop.tell();
            let stopped = Problem::new(Exit::Interrupted, "stopped; nothing was written");
            tokio::select! {
                // It may have been done just now.
                written = timeout(CLEAN_UP_MAX, work) => match written {
                    Ok(Ok(written)) => Ok(written),
                    _ => return Err(stopped),
                },
                () = next(signals) => return Err(stopped),
            }
        }
    };
    let written = written?;
    let skipped: u64 = written.layers.iter().map(|layer| layer.skipped).sum();
    if skipped > 0 {
        context
            .screen
            .say(&format!("left out {}: an image layer cannot contain it", counted(skipped, "socket")));
    }
    if context.common.json {
        let layers: Vec<_> = written.layers.iter().map(|layer| {
            json!({ "digest": layer.digest.as_str(), "bytes": layer.size, "entries": layer.entries })
        }).collect();
        context.out.json(&json!({ "digest": written.digest.as_str(), "layers": layers }))?;
    } else {
        context.out.line(written.digest.as_str())?;
    }
    Ok(Exit::Done)
}
