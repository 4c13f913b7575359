//! Checkpoints: made, given to others as an image, forgotten. What lies below one stays in the store of images.

use super::base::{BASE, HOST};
use super::{DIGEST, IMAGE, Sandboxes, Target, USER, WORKDIR, random_id};
use crate::backend::Checkpoint;
use crate::error::SandboxError;
use espalier_egress as egress;
use espalier_images::{Digest, Draft, Image, ImageConfig, ImageStore, Rights, Stop, Written, write_archive};
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

impl Sandboxes {
    /// The images of this machine.
    pub fn store(&self) -> Result<&ImageStore, SandboxError> {
        self.shared.bases.store()
    }

    /// Keeps its file system as it is now; what runs in it goes on, and is not in the copy.
    pub async fn checkpoint(&self, id: &str) -> Result<Checkpoint, SandboxError> {
        let new = random_id();
        // From here on a checkpoint may be there: it goes with this, unless all went well.
        let on_drop = self.delete_on_drop(Target::Checkpoint(new.clone()));
        let kept = self.shared.backend.checkpoint(id, &new).await?;
        if let Some(image) = self.below(&kept).await? {
            self.store()?.pin(&image, &pin(&kept.id)).await?;
        }
        on_drop.forget();
        Ok(kept)
    }

    /// Forgets a checkpoint; sandboxes made from it keep what they have.
    pub async fn delete_checkpoint(&self, id: &str) -> Result<(), SandboxError> {
        self.shared.backend.delete_checkpoint(id).await?;
        Ok(self.store()?.unpin(&pin(id)).await?)
    }

    /// The image of the store that a checkpoint lies over; none below one of this machine.
    async fn below(&self, kept: &Checkpoint) -> Result<Option<Image>, SandboxError> {
        let Some(text) = kept.labels.get(DIGEST) else { return Ok(None) };
        let gone = || {
            let below =
                format!("the image below checkpoint {} ({text}) is not in the store any more", kept.id);
            SandboxError::Unavailable(below.into())
        };
        let digest = Digest::parse(text, "a label").map_err(|_| gone())?;
        self.store()?.find(&digest).await?.map(Some).ok_or_else(gone)
    }

    /// Writes a checkpoint as an OCI archive with the image below it, which `oci-archive:FILE` starts from, here or elsewhere. Of
    /// one over this machine's own programs it holds what was changed alone, and goes over those of the machine that reads it. Told
    /// to stop, or dropped, it removes what it has written; this returns when it has.
    pub async fn export(&self, checkpoint: &str, file: &Path, stop: &Stop) -> Result<Written, SandboxError> {
        let found = self.shared.backend.find_checkpoint(checkpoint).await?;
        let (kept, environment) = found.ok_or_else(|| super::base::no_checkpoint(checkpoint))?;
        let below = self.below(&kept).await?;
        let label = |name: &str| kept.labels.get(name).cloned().unwrap_or_default();
        let ways: BTreeMap<String, String> = egress::environment(super::PROXY_PORT).into_iter().collect();
        let own = |(name, value): &&(String, String)| ways.get(name) != Some(value);
        let mut labels = BTreeMap::from([(IMAGE.to_owned(), label(IMAGE))]);
        match &below {
            Some(image) => labels.extend(image.config().labels.clone()),
            None => drop(labels.insert(BASE.to_owned(), HOST.to_owned())),
        }
        let config = ImageConfig {
            env: environment.iter().filter(own).cloned().collect(),
            workdir: label(WORKDIR),
            user: label(USER),
            labels,
            ..ImageConfig::default()
        };
        let (file, told) = (file.to_owned(), stop.clone());
        let write = move || {
            let base = below.as_ref();
            let draft =
                Draft { tag: TAG, base, uppers: &kept.uppers, rights: Rights::Root, config: Some(&config) };
            write_archive(&file, &draft, &told)
        };
        let _dropped = StopOnDrop(stop);
        let written = tokio::task::spawn_blocking(write).await;
        Ok(written.map_err(|error| SandboxError::unavailable("writing it", error))??)
    }
}
