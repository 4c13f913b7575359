//! Checkpoints of keys. Whose one is, the label says that its sandbox had when it was taken.

use super::{Entry, LABEL, Record, Registry};
use crate::keys::Key;
use crate::problem::{Code, Problem};
use espalier_sandbox::backend::Checkpoint;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use utoipa::ToSchema;

/// Label of a sandbox while it is kept, and so of the checkpoint: a [`Note`].
const NOTE: &str = "espalier.api-checkpoint";
/// Checkpoints of a key.
const CHECKPOINTS_MAX: usize = 1_000;

/// What is kept of a checkpoint.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Note {
    labels: BTreeMap<String, String>,
    request: Option<String>,
    /// Only for forks that are being made.
    passing: bool,
}

/// The file system of a sandbox as it was at a moment.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Checkpoint)]
pub(crate) struct CheckpointView {
    /// For `checkpoint` of a new sandbox.
    pub id: String,
    /// What it was taken of.
    pub sandbox_id: String,
    /// What that one was made of.
    pub image: String,
    /// The client's.
    pub labels: BTreeMap<String, String>,
    /// Milliseconds since 1970.
    pub created_ms: u64,
}

/// A checkpoint that goes when the last fork is made.
pub(crate) struct Passing {
    registry: Registry,
    pub(crate) id: String,
}

impl Drop for Passing {
    fn drop(&mut self) {
        let (registry, id) = (self.registry.clone(), std::mem::take(&mut self.id));
        let tasks = registry.shared.tasks.clone();
        // Owned by `tasks`; what is left when this process dies, the next one drops.
        tasks.spawn(async move {
            if let Err(error) = registry.shared.sandboxes.delete_checkpoint(&id).await {
                tracing::warn!(checkpoint = %id, %error, "it could not be dropped");
            }
        });
    }
}

impl Registry {
    /// Takes a checkpoint of a sandbox, or finds the one that this request took.
    pub(crate) async fn checkpoint(
        &self,
        entry: &Arc<Entry>,
        labels: BTreeMap<String, String>,
        request: Option<String>,
    ) -> Result<CheckpointView, Problem> {
        super::make::check_labels(&labels)?;
        if let Some(name) = &request {
            super::make::check_name("Idempotency-Key", name)?;
        }
        let owner = entry.record().owner;
        let _turn = entry.keeping.lock().await;
        let all = self.kept(&owner).await?;
        let same = |note: &Note| request.is_some() && note.request == request;
        if let Some((kept, record, note)) = all.iter().find(|(_, _, note)| same(note)) {
            return Ok(view(kept, record, note));
        }
        if all.len() >= CHECKPOINTS_MAX {
            let detail = format!("the key holds {CHECKPOINTS_MAX} checkpoints, its most");
            return Err(
                Problem::new(Code::QuotaExceeded, detail).hint("delete some: `DELETE /v1/checkpoints/{id}`")
            );
        }
        let note = Note { labels, request, passing: false };
        let kept = self.take(entry, &note).await?;
        Ok(view(&kept, &entry.record(), &note))
    }

    /// A checkpoint for forks alone.
    pub(crate) async fn passing(&self, entry: &Arc<Entry>) -> Result<Arc<Passing>, Problem> {
        let _turn = entry.keeping.lock().await;
        let kept = self.take(entry, &Note { passing: true, ..Note::default() }).await?;
        Ok(Arc::new(Passing { registry: self.clone(), id: kept.id }))
    }

    async fn take(&self, entry: &Arc<Entry>, note: &Note) -> Result<Checkpoint, Problem> {
        let record = entry.record();
        let (sandbox, _busy) = self.running(&record.owner, &record.id)?;
        let id = &sandbox.placed.id;
        let text = serde_json::to_string(note).unwrap_or_default();
        let label = |text| BTreeMap::from([(NOTE.to_owned(), text)]);
        let backend = self.shared.sandboxes.backend();
        backend.label(id, label(text)).await?;
        let kept = self.shared.sandboxes.checkpoint(id).await;
        // A label cannot be taken away; an empty one says nothing.
        let _ = backend.label(id, label(String::new())).await;
        Ok(kept?)
    }

    async fn kept(&self, owner: &str) -> Result<Vec<(Checkpoint, Record, Note)>, Problem> {
        let mut all: Vec<_> = self
            .shared
            .sandboxes
            .backend()
            .checkpoints()
            .await?
            .into_iter()
            .filter_map(|kept| {
                let (record, note) = read(&kept)?;
                (&*record.owner == owner && !note.passing).then_some((kept, record, note))
            })
            .collect();
        all.sort_by(|(one, ..), (other, ..)| (other.created_s, &other.id).cmp(&(one.created_s, &one.id)));
        Ok(all)
    }

    /// The checkpoints of a key, newest first.
    pub(crate) async fn checkpoints(&self, key: &Key) -> Result<Vec<CheckpointView>, Problem> {
        Ok(self.kept(&key.id).await?.iter().map(|(kept, record, note)| view(kept, record, note)).collect())
    }

    /// A checkpoint of a key, with what its sandbox was given.
    pub(crate) async fn find_checkpoint(
        &self,
        owner: &str,
        id: &str,
    ) -> Result<(CheckpointView, Record), Problem> {
        let found = self.kept(owner).await?.into_iter().find(|(kept, ..)| kept.id == id);
        let (kept, record, note) = found.ok_or_else(|| Problem::not_found("checkpoint", id))?;
        Ok((view(&kept, &record, &note), record))
    }

    /// Forgets a checkpoint of a key; sandboxes that were made from it keep what they have.
    pub(crate) async fn delete_checkpoint(&self, owner: &str, id: &str) -> Result<(), Problem> {
        self.find_checkpoint(owner, id).await?;
        Ok(self.shared.sandboxes.delete_checkpoint(id).await?)
    }

    /// Drops what the forks of a service before this one left.
    pub(super) async fn drop_passing(&self) -> Result<(), Problem> {
        for kept in self.shared.sandboxes.backend().checkpoints().await? {
            if read(&kept).is_some_and(|(_, note)| note.passing) {
                self.shared.sandboxes.delete_checkpoint(&kept.id).await?;
            }
        }
        Ok(())
    }

    /// What a fork of it is given.
    pub(crate) fn spec_of(
        record: &Record,
        user: Option<String>,
        workdir: Option<String>,
    ) -> espalier_core::sandbox::SandboxSpec {
        espalier_core::sandbox::SandboxSpec {
            cpu: record.cpu,
            memory: record.memory,
            disk: record.disk,
            network: record.network.clone(),
            user,
            workdir,
            ..espalier_core::sandbox::SandboxSpec::default()
        }
    }
}

fn read(kept: &Checkpoint) -> Option<(Record, Note)> {
    let record = serde_json::from_str(kept.labels.get(LABEL)?).ok()?;
    let note = serde_json::from_str(kept.labels.get(NOTE)?).ok()?;
    Some((record, note))
}

fn view(kept: &Checkpoint, record: &Record, note: &Note) -> CheckpointView {
    CheckpointView {
        id: kept.id.clone(),
        sandbox_id: record.id.clone(),
        image: record.image.clone(),
        labels: note.labels.clone(),
        created_ms: kept.created_s * 1000,
    }
}
