//! Checkpoints on this machine: made, given to others as an image, forgotten. What lies below one stays in the store of images.

use super::base::{BASE, HOST, no_checkpoint};
use super::machine::{USER, WORKDIR};
use super::{DIGEST, Shared};
use crate::backend::Checkpoint;
use crate::error::SandboxError;
use crate::service::IMAGE;
use espalier_images::{Digest, Draft, Image, ImageConfig, Rights, Stop, Written, write_archive};
use espalier_keeper::wire::{self, PROXY_PORT};
use std::collections::BTreeMap;
use std::path::Path;

/// What an exported checkpoint is called in its archive.
const TAG: &str = "latest";

/// Who wants the image below a checkpoint to stay.
fn pin(checkpoint: &str) -> String {
    format!("checkpoint {checkpoint}")
}

/// Whoever waited for it has gone, or has what was wanted.
struct StopOnDrop<'a>(&'a Stop);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.tell();
    }
}

impl Shared {
    pub(super) async fn checkpoint(&self, id: &str, checkpoint: &str) -> Result<Checkpoint, SandboxError> {
        let kept = self.machine.checkpoint(id, checkpoint).await?;
        if let Some(image) = self.below(&kept).await? {
            self.bases.store()?.pin(&image, &pin(&kept.id)).await?;
        }
        Ok(kept.into())
    }

    pub(super) async fn delete_checkpoint(&self, id: &str) -> Result<(), SandboxError> {
        self.machine.delete_checkpoint(id).await?;
        Ok(self.bases.store()?.unpin(&pin(id)).await?)
    }

    /// The image of the store that a checkpoint lies over; none below one of this machine.
    async fn below(&self, kept: &wire::Checkpoint) -> Result<Option<Image>, SandboxError> {
        let Some(text) = kept.labels.get(DIGEST) else { return Ok(None) };
        let gone = || {
            let below = format!("the image of checkpoint {} ({text}) is no longer in the store", kept.id);
            SandboxError::Unavailable(below.into())
        };
        let digest = Digest::parse(text, "a label").map_err(|_| gone())?;
        self.bases.store()?.find(&digest).await?.map(Some).ok_or_else(gone)
    }

    /// For a checkpoint over this machine's own programs, the archive holds only what was changed, and is applied over those of the machine
    /// that reads it.
    pub(super) async fn export(
        &self,
        checkpoint: &str,
        file: &Path,
        stop: &Stop,
    ) -> Result<Written, SandboxError> {
        let kept =
            self.machine.find_checkpoint(checkpoint).await?.ok_or_else(|| no_checkpoint(checkpoint))?;
        let (below, uppers) = (self.below(&kept).await?, self.machine.uppers(&kept).await?);
        let label = |name: &str| kept.labels.get(name).cloned().unwrap_or_default();
        let of_proxy: BTreeMap<String, String> =
            espalier_egress::environment(PROXY_PORT).into_iter().collect();
        let mut labels = BTreeMap::from([(IMAGE.to_owned(), label(IMAGE))]);
        match &below {
            Some(image) => labels.extend(image.config().labels.clone()),
            None => drop(labels.insert(BASE.to_owned(), HOST.to_owned())),
        }
        let environment = kept.environment.clone().unwrap_or_default().variables();
        let config = ImageConfig {
            env: environment.into_iter().filter(|(name, value)| of_proxy.get(name) != Some(value)).collect(),
            workdir: label(WORKDIR),
            user: label(USER),
            labels,
            ..ImageConfig::default()
        };
        let (file, told) = (file.to_owned(), stop.clone());
        let write = move || {
            let base = below.as_ref();
            let draft =
                Draft { tag: TAG, base, uppers: &uppers, rights: Rights::Root, config: Some(&config) };
            write_archive(&file, &draft, &told)
        };
        let _dropped = StopOnDrop(stop);
        let written = tokio::task::spawn_blocking(write).await;
        Ok(written.map_err(|error| SandboxError::unavailable("writing it", error))??)
    }
}
