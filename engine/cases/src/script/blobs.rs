//! Blobs in memory.

use async_trait::async_trait;
use espalier_core::failure::Failure;
use espalier_core::host::{BlobInfo, Blobs};
use espalier_core::meter::Meter;
use parking_lot::Mutex;
use std::sync::Arc;

/// The blobs of one case.
pub(crate) struct MemoryBlobs {
    kept: Mutex<Vec<(Vec<u8>, String)>>,
    meter: Arc<Meter>,
}

impl MemoryBlobs {
    pub(crate) fn new(meter: Arc<Meter>) -> MemoryBlobs {
        MemoryBlobs { kept: Mutex::default(), meter }
    }

    /// Keeps bytes that the case brings along.
    pub(crate) fn keep(&self, bytes: Vec<u8>, media_type: &str) -> String {
        let mut kept = self.kept.lock();
        kept.push((bytes, media_type.to_owned()));
        format!("blob-{}", kept.len() - 1)
    }

    fn with<T>(&self, blob: &str, look: impl FnOnce(&[u8], &str) -> T) -> Result<T, Failure> {
        let kept = self.kept.lock();
        let place: Option<usize> = blob.strip_prefix("blob-").and_then(|place| place.parse().ok());
        let found = place.and_then(|place| kept.get(place));
        let (bytes, media_type) = found.ok_or_else(|| Failure::Invalid(format!("no blob {blob:?}")))?;
        Ok(look(bytes, media_type))
    }

    pub(crate) fn whole(&self, blob: &str) -> Result<Vec<u8>, Failure> {
        self.with(blob, |bytes, _| bytes.to_vec())
    }
}

#[async_trait]
impl Blobs for MemoryBlobs {
    async fn put(&self, bytes: Vec<u8>, media_type: &str) -> Result<String, Failure> {
        self.meter.take_blob_bytes(bytes.len() as u64)?;
        Ok(self.keep(bytes, media_type))
    }

    async fn stat(&self, blob: &str) -> Result<BlobInfo, Failure> {
        self.with(blob, |bytes, media_type| BlobInfo {
            length: bytes.len() as u64,
            media_type: media_type.to_owned(),
        })
    }

    async fn read(&self, blob: &str, offset: u64, length: u32) -> Result<Vec<u8>, Failure> {
        self.with(blob, |bytes, _| {
            let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
            let to = from.saturating_add(length as usize).min(bytes.len());
            bytes[from..to].to_vec()
        })
    }
}
