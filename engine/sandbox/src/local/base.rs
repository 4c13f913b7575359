//! What an image is on this machine: folders below what a sandbox writes, and what the image says of commands.

use super::host;
use super::machine::{ENTRYPOINT, Machine, USER, WORKDIR};
use crate::error::SandboxError;
use espalier_core::cause::{Failed, with_causes};
use espalier_images::{Image, ImageError, ImageOptions, ImageStore, Progress, Remedy, Source};
use espalier_keeper::wire::{Overlay, Root};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use tokio::sync::watch;

/// Label of an exported checkpoint: what its layers lie over, where they are not all there is.
pub(super) const BASE: &str = "espalier.base";
/// The only such: the machine itself.
pub(super) const HOST: &str = "host";

/// Where a sandbox mounts what is its own: in an image nothing, or a folder.
const PLACES: [&str; 3] = ["proc", "dev", "sys"];

/// An image that is ready.
#[derive(Clone, Debug)]
pub(super) struct Base {
    pub(super) root: Root,
    pub(super) environment: Vec<(String, String)>,
    pub(super) workdir: String,
    pub(super) user: Option<String>,
    /// What the image starts by itself.
    pub(super) entrypoint: Vec<String>,
    /// What a sandbox takes along from where it was copied.
    pub(super) labels: BTreeMap<String, String>,
    /// Keeps the layers where they are.
    pub(super) image: Option<Image>,
}

/// Images of one store.
pub(super) struct Bases {
    folder: PathBuf,
    options: ImageOptions,
    /// Opened when the first image is asked for that is not this machine's own.
    store: OnceLock<ImageStore>,
}

impl Bases {
    pub(super) fn new(folder: &Path, options: ImageOptions) -> Bases {
        Bases { folder: folder.to_owned(), options, store: OnceLock::new() }
    }

    /// Where images are kept.
    pub(super) fn store(&self) -> Result<&ImageStore, SandboxError> {
        if let Some(store) = self.store.get() {
            return Ok(store);
        }
        let opened = ImageStore::open(&self.folder, self.options.clone())?;
        Ok(self.store.get_or_init(|| opened))
    }

    /// The image of this name, fetched and unpacked where it was not.
    /// Without `credentials` only what registries give to anybody.
    pub(super) async fn of(
        &self,
        image: &str,
        credentials: bool,
        machine: &Machine,
    ) -> Result<Base, SandboxError> {
        match Source::parse(image)? {
            Source::Host => self.host().await,
            Source::Checkpoint(id) => checkpoint(&id, machine).await,
            source => self.unpacked(&source, credentials).await,
        }
    }

    async fn unpacked(&self, source: &Source, credentials: bool) -> Result<Base, SandboxError> {
        let (progress, _) = watch::channel(Progress::default());
        let image = self.store()?.get_with(source, credentials, &progress).await?;
        image.has_places(&PLACES)?;
        let config = image.config();
        // The keeper of the sandbox locks the same file: sandboxes may outlive this process.
        let number = std::os::fd::AsRawFd::as_raw_fd(&image.hold());
        let holds = tokio::fs::read_link(format!("/proc/self/fd/{number}")).await.into_iter().collect();
        let overlays = match config.labels.get(BASE).map(String::as_str) {
            // What was changed in a sandbox of a machine, over this machine.
            Some(HOST) => over(self.host().await?.root.overlays, image.layers()),
            _ => vec![Overlay { at: "/".into(), lowers: image.layers().to_vec() }],
        };
        let root = Root { overlays, checkpoint: None, holds };
        Ok(Base {
            root,
            environment: config.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
            workdir: if config.workdir.is_empty() { "/".to_owned() } else { config.workdir.clone() },
            user: Some(config.user.clone()).filter(|user| !user.is_empty()),
            entrypoint: config.entrypoint.iter().chain(&config.command).cloned().collect(),
            labels: BTreeMap::from([(super::DIGEST.to_owned(), image.digest().to_string())]),
            image: Some(image),
        })
    }

    async fn host(&self) -> Result<Base, SandboxError> {
        let folder = self.folder.join("host");
        let made = tokio::task::spawn_blocking(move || host::overlays(&folder)).await;
        let overlays = made.map_err(std::io::Error::other).and_then(|made| made);
        let overlays = overlays.map_err(|error| {
            SandboxError::unavailable(format!("the image `host` in {}", self.folder.display()), error)
        })?;
        Ok(Base {
            root: Root { overlays, checkpoint: None, holds: Vec::new() },
            environment: Vec::new(),
            workdir: "/root".to_owned(),
            user: None,
            entrypoint: Vec::new(),
            labels: BTreeMap::new(),
            image: None,
        })
    }
}

/// Layers over each overlay: over one that is not at the root lies what a layer has there.
fn over(mut overlays: Vec<Overlay>, layers: &[PathBuf]) -> Vec<Overlay> {
    for Overlay { at, lowers } in &mut overlays {
        let inner = at.strip_prefix("/").unwrap_or(at);
        let there = layers.iter().map(|layer| layer.join(inner));
        // A link there would lead out of the layer.
        lowers.extend(there.filter(|path| path.symlink_metadata().is_ok_and(|found| found.is_dir())));
    }
    overlays
}

impl From<ImageError> for SandboxError {
    /// What a caller can do without an image.
    fn from(error: ImageError) -> SandboxError {
        let remedy = error.remedy();
        let failed = match error.hint() {
            Some(hint) => Failed::from(format!("{} ({hint})", with_causes(&error))),
            None => Failed::by(error.to_string(), error),
        };
        match remedy {
            Remedy::RejectTask => SandboxError::Rejected(failed),
            Remedy::Retry | Remedy::Stop => SandboxError::Unavailable(failed),
        }
    }
}

/// There is none by that id.
pub(super) fn no_checkpoint(id: &str) -> SandboxError {
    SandboxError::Invalid {
        what: "checkpoint".to_owned(),
        value: id.to_owned(),
        wanted: "an id of `espalier sandbox list --checkpoints`".to_owned(),
    }
}

async fn checkpoint(id: &str, machine: &Machine) -> Result<Base, SandboxError> {
    let kept = machine.find_checkpoint(id).await?.ok_or_else(|| no_checkpoint(id))?;
    let label = |name: &str| kept.labels.get(name).cloned();
    let mut labels = BTreeMap::from([("espalier.checkpoint".to_owned(), id.to_owned())]);
    labels.extend(label(super::DIGEST).map(|digest| (super::DIGEST.to_owned(), digest)));
    Ok(Base {
        workdir: label(WORKDIR).unwrap_or_else(|| "/".to_owned()),
        user: label(USER),
        entrypoint: label(ENTRYPOINT).and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default(),
        environment: kept.environment.unwrap_or_default().variables(),
        labels,
        root: Root { overlays: kept.overlays, checkpoint: Some(kept.id), holds: kept.holds },
        image: None,
    })
}
