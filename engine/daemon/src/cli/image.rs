//! `espalier image`: the images of a store by hand.

use super::Context;
use crate::cli::exit::Exit;
use crate::output::problem::Problem;
use crate::output::styles;
use crate::output::table::{Align, Cell, Table};
use crate::output::text::{age, bytes, counted};
use clap::{Args, Subcommand};
use espalier_core::limits::SizeText;
use espalier_images::{ImageError, ImageStore, Listed, Progress, Pruned, Source};
use espalier_sandbox::error::SandboxError;
use serde_json::json;
use std::time::{Duration, SystemTime};
use tokio::sync::watch;

/// How often a pull says how far it is.
const SAY_EVERY: Duration = Duration::from_secs(2);

/// `espalier image`
#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Download and unpack an image, and print its digest. Sandboxes do so themselves when they need one.
    #[command(after_help = "Examples:
  espalier image pull debian:12
  espalier image pull oci-archive:base.tar")]
    Pull(PullArgs),
    /// List the images in the store.
    #[command(after_help = "Example:
  espalier image list")]
    List,
    /// Remove images that nothing uses.
    #[command(after_help = "Example:
  espalier image remove docker.io/library/debian:12")]
    Remove(RemoveArgs),
    /// Remove data of no image, and the least recently used images until the store is small enough.
    #[command(after_help = "Examples:
  espalier image prune
  espalier image prune --size-max 20GiB

Images used by a sandbox or a checkpoint are never removed.")]
    Prune(PruneArgs),
}

/// `espalier image pull`
#[derive(Debug, Args)]
pub struct PullArgs {
    /// NAME[:TAG][@DIGEST], oci:FOLDER[:TAG] or oci-archive:FILE[:TAG].
    pub image: String,
}

/// `espalier image remove`
#[derive(Debug, Args)]
pub struct RemoveArgs {
    /// Names as shown by `espalier image list`, or digests.
    #[arg(required = true)]
    pub images: Vec<String>,
}

/// `espalier image prune`
#[derive(Debug, Args)]
pub struct PruneArgs {
    /// Maximum size of the store, such as 20GiB; default: all images stay.
    #[arg(long)]
    pub size_max: Option<SizeText>,
}

pub(super) async fn image(context: &mut Context, command: ImageCommand) -> Result<Exit, Problem> {
    let size_max = match &command {
        ImageCommand::Prune(args) => args.size_max.map(|size| size.0),
        _ => None,
    };
    let store = crate::sandboxes::images(&context.common.store.parse()?, size_max)?;
    match command {
        ImageCommand::Pull(args) => pull(context, &store, &args.image).await,
        ImageCommand::List => list(context, &store).await,
        ImageCommand::Remove(args) => remove(context, &store, &args.images).await,
        ImageCommand::Prune(_) => {
            let pruned = store.prune().await?;
            told(context, &pruned)
        }
    }
}

async fn pull(context: &mut Context, store: &ImageStore, name: &str) -> Result<Exit, Problem> {
    let source = Source::parse(name)?;
    let (progress, mut seen) = watch::channel(Progress::default());
    let mut pulling = std::pin::pin!(store.get(&source, &progress));
    let image = loop {
        tokio::select! {
            pulled = &mut pulling => break pulled?,
            () = tokio::time::sleep(SAY_EVERY) => {
                let now = seen.borrow_and_update().to_string();
                context.screen.say(&format!("{name}: {now}"));
            }
        }
    };
    let digest = image.digest().to_string();
    if context.common.json {
        context.out.json(&json!({ "image": source.to_string(), "digest": digest }))?;
    } else {
        context.out.line(&digest)?;
    }
    Ok(Exit::Done)
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

async fn list(context: &mut Context, store: &ImageStore) -> Result<Exit, Problem> {
    let all = store.list().await?;
    if context.common.json {
        let value = |one: &Listed| {
            json!({
                "digest": one.digest.as_str(),
                "names": one.names,
                "layers": one.layers,
                "bytes": one.bytes,
                "last_used_s": seconds(one.last_used),
                "in_use": one.in_use,
                "pinned_by": one.pinned_by,
                "complete": one.complete,
            })
        };
        context.out.json(&all.iter().map(value).collect::<Vec<_>>())?;
        return Ok(Exit::Done);
    }
    if all.is_empty() {
        context
            .screen
            .say("no images: `espalier image pull` downloads one; sandboxes download theirs when needed");
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&[
        ("image", Align::Left),
        ("digest", Align::Left),
        ("layers", Align::Right),
        ("size", Align::Right),
        ("used", Align::Right),
    ]);
    let now_s = crate::runner::now_ms() / 1000;
    for one in &all {
        let used = match (one.in_use, one.pinned_by.is_empty()) {
            (true, _) => "now".to_owned(),
            (false, false) => "kept".to_owned(),
            (false, true) => age(now_s.saturating_sub(seconds(one.last_used)) * 1000),
        };
        table.row(vec![
            Cell::styled(one.names.first().map_or("", String::as_str), styles::STRONG),
            one.digest.as_str().chars().take(19).collect::<String>().into(),
            one.layers.to_string().into(),
            bytes(one.bytes).into(),
            Cell::styled(used, styles::FAINT),
        ]);
    }
    for line in table.lines(&context.out.look) {
        context.out.line(&line)?;
    }
    Ok(Exit::Done)
}

async fn remove(context: &mut Context, store: &ImageStore, names: &[String]) -> Result<Exit, Problem> {
    let mut all = Pruned::default();
    for name in names {
        let pruned = match store.remove(name).await {
            // As people write it: `debian:12`.
            Err(ImageError::Unknown { .. }) => match store.remove(&Source::parse(name)?.to_string()).await {
                Err(ImageError::Unknown { .. }) => {
                    return Err(Problem::new(Exit::Input, format!("image {name:?} is not in the store"))
                        .hint("`espalier image list` shows the images in the store"));
                }
                other => other?,
            },
            other => other?,
        };
        all.images.extend(pruned.images);
        all.layers += pruned.layers;
        all.bytes += pruned.bytes;
    }
    told(context, &all)
}

fn told(context: &mut Context, pruned: &Pruned) -> Result<Exit, Problem> {
    if context.common.json {
        let images: Vec<&str> = pruned.images.iter().map(|digest| digest.as_str()).collect();
        let value = json!({ "images": images, "layers": pruned.layers, "bytes": pruned.bytes });
        context.out.json(&value)?;
    } else {
        let (images, layers) = (pruned.images.len() as u64, pruned.layers);
        let (images, layers) = (counted(images, "image"), counted(layers, "layer"));
        context.out.line(&format!("removed {images} and {layers}, {}", bytes(pruned.bytes)))?;
    }
    Ok(Exit::Done)
}

impl From<ImageError> for Problem {
    fn from(error: ImageError) -> Problem {
        SandboxError::from(error).into()
    }
}
