//! The form in which an attempt's record is kept: msgpack with field names, in a zstd frame with its checksum.

use crate::error::StoreError;
use espalier_core::trajectory::AttemptRecord;
use std::io::{Read, Write};

/// Fast, and within a few percent of the slower levels on token arrays.
const LEVEL: i32 = 3;
/// A record that unpacks to more is taken for damaged.
const RECORD_BYTES_MAX: u64 = 4 << 30;

pub(crate) fn write(record: &AttemptRecord) -> Result<Vec<u8>, StoreError> {
    let failed = |source: Box<dyn std::error::Error + Send + Sync>| StoreError::Failed {
        place: format!("record of {}", record.trajectory.traj_id),
        source,
    };
    let plain = rmp_serde::to_vec_named(record).map_err(|error| failed(error.into()))?;
    let pack = || {
        let mut encoder = zstd::Encoder::new(Vec::new(), LEVEL)?;
        encoder.include_checksum(true)?;
        encoder.set_pledged_src_size(Some(plain.len() as u64))?;
        encoder.write_all(&plain)?;
        encoder.finish()
    };
    pack().map_err(|error: std::io::Error| failed(error.into()))
}

pub(crate) fn read(traj_id: &str, bytes: &[u8]) -> Result<AttemptRecord, StoreError> {
    let damaged = |text: String| StoreError::Damaged { place: format!("record of {traj_id}"), text };
    let mut plain = Vec::new();
    zstd::Decoder::new(bytes)
        .and_then(|decoder| decoder.take(RECORD_BYTES_MAX).read_to_end(&mut plain))
        .map_err(|error| damaged(error.to_string()))?;
    rmp_serde::from_slice(&plain).map_err(|error| damaged(error.to_string()))
}
