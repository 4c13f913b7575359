//! Checkpoints of keys. Whose one is, the label says that its sandbox had when it was taken.

use super::{Entry, LABEL, Record, Registry, Request};
use crate::keys::Key;
use crate::problem::{Code, Problem};
use espalier_sandbox::backend::Checkpoint;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use utoipa::ToSchema;

/// Label of a sandbox while it is kept, and so of the checkpoint: a [`Note`].
const NOTE: &str = "espalier.api-checkpoint";
/// In front of a checkpoint's id, in the place of an image's name.
pub(crate) const CHECKPOINT: &str = "checkpoint:";
/// Checkpoints of a key.
const CHECKPOINTS_MAX: usize = 1_000;

/// What is kept of a checkpoint.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Note {
    labels: BTreeMap<String, String>,
    request: Option<String>,
    /// Hash of what that request asked.
    #[serde(default)]
    asked: Option<String>,
    /// Only for forks that are being made.
    passing: bool,
}

/// The file system of a sandbox as it was at a moment.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
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
        request: Option<Request>,
    ) -> Result<CheckpointView, Problem> {
        super::make::check_labels(&labels)?;
        let (registry, entry) = (self.clone(), Arc::clone(entry));
        // Half of it would leave a checkpoint that nobody knows.
        self.aside(async move { registry.checkpoint_now(&entry, labels, request).await }).await
    }

    async fn checkpoint_now(
        &self,
        entry: &Arc<Entry>,
        labels: BTreeMap<String, String>,
        request: Option<Request>,
    ) -> Result<CheckpointView, Problem> {
        let owner = entry.record().owner;
        let _turn = entry.keeping.lock().await;
        if let Some(request) = &request
            && let Some(known) = self.checkpoint_of(&owner, request).await?
        {
            return Ok(known);
        }
        let all = self.kept(&owner).await?;
        // One that was taken, and whose request was not written to the store before the service ended.
        if let Some(request) = &request
            && let Some((kept, record, note)) =
                all.iter().find(|(_, _, note)| note.request.as_ref() == Some(&request.name))
        {
            request.check(note.asked.as_deref().unwrap_or_default())?;
            let known = view(kept, record, note);
            self.remember_checkpoint(&owner, request, &known).await?;
            return Ok(known);
        }
        if all.len() >= CHECKPOINTS_MAX {
            let detail = format!("the key holds {CHECKPOINTS_MAX} checkpoints, its most");
            return Err(
                Problem::new(Code::QuotaExceeded, detail).hint("delete some: `DELETE /v1/checkpoints/{id}`")
            );
        }
        let (name, asked) = request.clone().map(|request| (request.name, request.asked)).unzip();
        let note = Note { labels, request: name, asked, passing: false };
        let kept = self.take(entry, &note).await?;
        let taken = view(&kept, &entry.record(), &note);
        if let Some(request) = &request {
            self.remember_checkpoint(&owner, request, &taken).await?;
        }
        Ok(taken)
    }

    /// A checkpoint for forks alone.
    pub(crate) async fn passing(&self, entry: &Arc<Entry>) -> Result<Arc<Passing>, Problem> {
        let (registry, entry) = (self.clone(), Arc::clone(entry));
        self.aside(async move {
            let _turn = entry.keeping.lock().await;
            let kept = registry.take(&entry, &Note { passing: true, ..Note::default() }).await?;
            Ok(Arc::new(Passing { registry: registry.clone(), id: kept.id }))
        })
        .await
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
    pub(super) async fn drop_passing(&self) {
        let failed = |error| tracing::warn!(%error, "checkpoints of a service before could not be dropped");
        let all = match self.shared.sandboxes.backend().checkpoints().await {
            Ok(all) => all,
            Err(error) => return failed(error),
        };
        for kept in all.iter().filter(|kept| read(kept).is_some_and(|(_, note)| note.passing)) {
            if let Err(error) = self.shared.sandboxes.delete_checkpoint(&kept.id).await {
                failed(error);
            }
        }
    }

    /// What a fork of it is given.
    pub(crate) fn spec_of(
        record: &Record,
        user: Option<String>,
        workdir: Option<String>,
    ) -> espalier_core::sandbox::SandboxSpec {
        let default = espalier_core::sandbox::SandboxSpec::default();
        espalier_core::sandbox::SandboxSpec {
            cpu: record.cpu,
            memory: record.memory,
            disk: record.disk,
            files_max: record.files_max.unwrap_or(default.files_max),
            processes_max: record.processes_max.unwrap_or(default.processes_max),
            network: record.network.clone(),
            user,
            workdir,
            ..default
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
        created_ms: kept.created_s.saturating_mul(1000),
    }
}
