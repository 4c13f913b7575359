//! Images of requests, kept once as blobs of the rollout: an agent sends each of them again with every call.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use blake3::Hash;
use espalier_core::chat::{Message, Part};
use espalier_core::failure::Failure;
use espalier_core::host::Blobs;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// See the module.
pub(super) struct Images {
    blobs: Option<Arc<dyn Blobs>>,
    /// Blobs by the digest of their URL.
    kept: Mutex<BTreeMap<[u8; 32], String>>,
}

impl Images {
    pub(super) fn new(blobs: Option<Arc<dyn Blobs>>) -> Images {
        Images { blobs, kept: Mutex::default() }
    }

    /// These messages with a blob in the place of each `data:` URL. Errors: `Invalid` for other URLs; those of the blobs.
    pub(super) async fn keep(&self, messages: &[Message]) -> Result<Vec<Message>, Failure> {
        let mut kept = messages.to_vec();
        for part in kept.iter_mut().flat_map(|message| &mut message.parts) {
            if let Part::Image(url) = part {
                *url = self.blob(url).await?;
            }
        }
        Ok(kept)
    }

    async fn blob(&self, url: &str) -> Result<String, Failure> {
        let digest: Hash = blake3::hash(url.as_bytes());
        {
            let kept = self.kept.lock();
            if let Some(blob) = kept.get(digest.as_bytes()) {
                return Ok(blob.clone());
            }
            // Of an earlier response: it is a blob already.
            if kept.values().any(|blob| blob == url) {
                return Ok(url.to_owned());
            }
        }
        let wrong = |why: &str| {
            let shown: String = url.chars().take(40).collect();
            Failure::Invalid(format!("image {shown:?}: {why}; expected data:image/...;base64,..."))
        };
        let Some(blobs) = &self.blobs else { return Err(wrong("images are not taken here")) };
        let (media_type, data) = url
            .strip_prefix("data:")
            .and_then(|rest| rest.split_once(";base64,"))
            .ok_or_else(|| wrong("it is not sent along"))?;
        let bytes = STANDARD.decode(data).map_err(|error| wrong(&error.to_string()))?;
        let blob = blobs.put(bytes, media_type).await?;
        self.kept.lock().insert(*digest.as_bytes(), blob.clone());
        Ok(blob)
    }
}
