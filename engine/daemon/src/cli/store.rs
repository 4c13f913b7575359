//! `espalier store`: the store itself.

use super::Context;
use super::list::open_existing;
use crate::cli::exit::Exit;
use crate::output::problem::Problem;
use crate::output::text::{bytes, counted};
use clap::Subcommand;
use serde_json::json;

/// `espalier store`
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Check that the database and every blob exist and are intact. Changes nothing.
    #[command(after_help = "Examples:
  espalier store check
  espalier store check --store postgres://me@db/runs?blobs=/data/blobs

Exits with 1 if something is damaged, after at most 1,000 lines with details.")]
    Check,
}

pub(super) async fn store(context: &mut Context, command: StoreCommand) -> Result<Exit, Problem> {
    match command {
        StoreCommand::Check => check(context).await,
    }
}

async fn check(context: &mut Context) -> Result<Exit, Problem> {
    let store = open_existing(&context.common.store).await?;
    let check = store.check().await?;
    store.close().await;
    let exit = if check.is_whole() { Exit::Done } else { Exit::Negative };
    let damaged = check.damage.len() as u64 + check.more;
    if context.common.json {
        context.out.json(&json!({
            "store": store.url().to_string(),
            "runs": check.runs,
            "attempts": check.attempts,
            "blobs": check.blobs,
            "bytes": check.bytes,
            "damaged": damaged,
            "damage": check.damage.iter().map(ToString::to_string).collect::<Vec<_>>(),
        }))?;
        return Ok(exit);
    }
    context.out.line(&format!(
        "store {}: {}, {}, {} of {}",
        store.url(),
        counted(check.runs, "run"),
        counted(check.attempts, "attempt"),
        counted(check.blobs, "blob"),
        bytes(check.bytes)
    ))?;
    for damage in &check.damage {
        context.out.line(&format!("damaged: {damage}"))?;
    }
    if check.more > 0 {
        context.out.line(&format!("and {} more", check.more))?;
    }
    context.out.line(&if check.is_whole() {
        "all whole".to_owned()
    } else {
        format!("{damaged} damaged")
    })?;
    Ok(exit)
}
