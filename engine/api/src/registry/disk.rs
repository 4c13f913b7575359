//! Disk that checkpoints of keys have.

use super::Registry;
use crate::problem::{Code, Problem};
use espalier_core::limits::SizeText;

impl Registry {
    /// Bytes of a key's checkpoints together.
    pub(crate) fn kept_bytes(&self, owner: &str) -> u64 {
        self.shared.kept.lock().disk(owner)
    }

    /// Whether a key may hold a checkpoint of so many bytes, too.
    pub(super) async fn disk_admits(&self, owner: &str, bytes: u64) -> Result<(), Problem> {
        let Some(most) = self.shared.store.key(owner).await?.and_then(|key| key.quotas.disk) else {
            return Ok(());
        };
        let would = self.used(owner).disk.saturating_add(self.kept_bytes(owner)).saturating_add(bytes);
        if would <= most {
            return Ok(());
        }
        let detail = format!(
            "this checkpoint would bring the key to {} of disk, sandboxes included; its quota is {}",
            SizeText(would),
            SizeText(most)
        );
        let hint =
            "delete checkpoints or sandboxes you no longer need; `GET /resources` shows what the key uses";
        Err(Problem::new(Code::QuotaExceeded, detail).hint(hint))
    }
}
