//! Checkpoints of keys. Whose one is, the label says that its sandbox had when it was taken.

use super::tenant::label_bytes;
use super::{Entry, LABEL, LabelRecord, Registry, Request};
use crate::keys::Key;
use crate::problem::{Code, Problem};
use espalier_sandbox::backend::Checkpoint;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use utoipa::ToSchema;

/// Label of a sandbox while it is kept, and so of the checkpoint: a [`Note`].
const NOTE: &str = "espalier.api-checkpoint";
/// In front of a checkpoint's id, in the place of an image's name.
pub(crate) const CHECKPOINT: &str = "checkpoint:";
/// Checkpoints of a key.
const CHECKPOINTS_MAX: usize = 1_000;
/// Bytes of what is known of them, labels above all.
const CHECKPOINT_BYTES_MAX: usize = 4 << 20;
/// What one takes besides its texts, nearly.
const CHECKPOINT_BYTES: usize = 512;

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

/// A checkpoint: the file system of a sandbox at one moment.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Checkpoint)]
pub(crate) struct CheckpointView {
    /// The id of the checkpoint, for `checkpoint` of a new sandbox.
    pub id: String,
    /// The id of the sandbox it was taken of.
    pub sandbox_id: String,
    /// The image of that sandbox.
    pub image: String,
    /// The labels of the client.
    pub labels: BTreeMap<String, String>,
    /// When it was taken, in milliseconds since 1970.
    pub created_ms: u64,
}

/// What is known of the checkpoints of all keys: what is asked of one key's costs nothing for another's.
#[derive(Default)]
pub(super) struct Kept {
    by_key: HashMap<Arc<str>, BTreeMap<String, Arc<Known>>>,
}

/// A checkpoint of a key.
struct Known {
    view: CheckpointView,
    /// The request that took it, and the hash of what it asked.
    request: Option<(String, String)>,
    /// Bytes of disk that count for its key: what its sandbox had written, or may have where the backend does not tell.
    disk: u64,
}

impl Known {
    fn of(kept: &Checkpoint, record: &LabelRecord, note: Note) -> Known {
        let (view, disk) = (view(kept, record, &note), kept.bytes.unwrap_or(record.spec.disk));
        Known { view, request: note.request.zip(note.asked), disk }
    }

    fn bytes(&self) -> usize {
        bytes(&self.view.image, &self.view.labels)
    }
}

/// What it takes to know of a checkpoint, nearly.
fn bytes(image: &str, labels: &BTreeMap<String, String>) -> usize {
    CHECKPOINT_BYTES + image.len() + label_bytes(labels)
}

impl Kept {
    fn of(&self, owner: &str) -> impl Iterator<Item = &Arc<Known>> {
        self.by_key.get(owner).into_iter().flat_map(BTreeMap::values)
    }

    fn insert(&mut self, owner: &Arc<str>, known: Known) {
        let of_key = self.by_key.entry(Arc::clone(owner)).or_default();
        of_key.insert(known.view.id.clone(), Arc::new(known));
    }

    fn remove(&mut self, owner: &str, id: &str) {
        if let Some(of_key) = self.by_key.get_mut(owner) {
            of_key.remove(id);
            if of_key.is_empty() {
                self.by_key.remove(owner);
            }
        }
    }

    /// Bytes of disk of a key's checkpoints together.
    pub(super) fn disk(&self, owner: &str) -> u64 {
        self.of(owner).fold(0, |sum, known| sum.saturating_add(known.disk))
    }

    /// Whether a key may take one more that takes so many bytes to know.
    fn admits(&self, owner: &str, bytes: usize) -> Result<(), Problem> {
        let (count, held) =
            self.of(owner).fold((0usize, bytes), |(count, held), known| (count + 1, held + known.bytes()));
        let detail = if count >= CHECKPOINTS_MAX {
            format!("the key has {CHECKPOINTS_MAX} checkpoints, the maximum")
        } else if held > CHECKPOINT_BYTES_MAX {
            format!("labels of the key's checkpoints would take more than {CHECKPOINT_BYTES_MAX} bytes")
        } else {
            return Ok(());
        };
        Err(Problem::new(Code::QuotaExceeded, detail).hint("delete some: `DELETE /v1/checkpoints/{id}`"))
    }
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
        let record = entry.record();
        let owner = Arc::clone(&record.owner);
        let _turn = entry.keeping.lock().await;
        if let Some(request) = &request
            && let Some(known) = self.checkpoint_of(&owner, request).await?
        {
            return Ok(known);
        }
        // One that was taken, and whose request was not written to the store before the service ended.
        if let Some(request) = &request
            && let Some(known) = self.taken_by(&owner, &request.name)
        {
            request.check(known.request.as_ref().map_or("", |(_, asked)| asked))?;
            self.remember_checkpoint(&owner, request, &known.view).await?;
            return Ok(known.view.clone());
        }
        self.shared.kept.lock().admits(&owner, bytes(&record.spec.image, &labels))?;
        let (name, asked) = request.clone().map(|request| (request.name, request.asked)).unzip();
        let note = Note { labels, request: name, asked, passing: false };
        let kept = self.take(entry, &note).await?;
        let known = Known::of(&kept, &record, note);
        if let Err(problem) = self.disk_admits(&owner, known.disk).await {
            self.shared.sandboxes.delete_checkpoint(&kept.id).await?;
            return Err(problem);
        }
        let taken = known.view.clone();
        self.shared.kept.lock().insert(&owner, known);
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

    /// The one that a request of this name took.
    fn taken_by(&self, owner: &str, request: &str) -> Option<Arc<Known>> {
        let kept = self.shared.kept.lock();
        kept.of(owner)
            .find(|known| known.request.as_ref().is_some_and(|(name, _)| name == request))
            .map(Arc::clone)
    }

    /// The checkpoints of a key, newest first.
    pub(crate) fn checkpoints(&self, key: &Key) -> Vec<CheckpointView> {
        let mut all: Vec<_> = self.shared.kept.lock().of(&key.id).map(Arc::clone).collect();
        all.sort_by(|one, other| {
            (other.view.created_ms, &other.view.id).cmp(&(one.view.created_ms, &one.view.id))
        });
        all.iter().map(|known| known.view.clone()).collect()
    }

    /// A checkpoint of a key, with what its sandbox was given.
    pub(crate) async fn find_checkpoint(
        &self,
        owner: &str,
        id: &str,
    ) -> Result<(CheckpointView, LabelRecord), Problem> {
        let unknown = || Problem::not_found("checkpoint", id);
        let known = self.shared.kept.lock().of(owner).find(|known| known.view.id == id).map(Arc::clone);
        let known = known.ok_or_else(unknown)?;
        let found = self.shared.sandboxes.backend().find_checkpoint(id).await?;
        let Some((record, _)) = found.and_then(|kept| read(&kept)) else {
            // Deleted by the command line.
            self.shared.kept.lock().remove(owner, id);
            return Err(unknown());
        };
        Ok((known.view.clone(), record))
    }

    /// Deletes a checkpoint of a key; sandboxes created from it are not affected.
    pub(crate) async fn delete_checkpoint(&self, owner: &str, id: &str) -> Result<(), Problem> {
        self.find_checkpoint(owner, id).await?;
        self.shared.sandboxes.delete_checkpoint(id).await?;
        self.shared.kept.lock().remove(owner, id);
        Ok(())
    }

    /// Those that a service before this one took, one after the other; what it kept for forks alone is dropped.
    pub(super) async fn adopt_checkpoints(&self) -> Result<(), Problem> {
        let backend = self.shared.sandboxes.backend();
        for id in backend.checkpoint_ids().await? {
            let Some(kept) = backend.find_checkpoint(&id).await? else { continue };
            let Some((record, note)) = read(&kept) else { continue };
            if note.passing {
                if let Err(error) = self.shared.sandboxes.delete_checkpoint(&id).await {
                    tracing::warn!(checkpoint = %id, %error, "one of a service before could not be dropped");
                }
                continue;
            }
            self.shared.kept.lock().insert(&record.owner, Known::of(&kept, &record, note));
        }
        Ok(())
    }

    /// Forgets those that the command line has deleted.
    pub(super) async fn compare_checkpoints(&self) {
        let known: Vec<(Arc<str>, String)> = {
            let kept = self.shared.kept.lock();
            let ids = kept.by_key.iter();
            ids.flat_map(|(owner, ids)| ids.keys().map(|id| (Arc::clone(owner), id.clone()))).collect()
        };
        if known.is_empty() {
            return;
        }
        let Ok(there) = self.shared.sandboxes.backend().checkpoint_ids().await else { return };
        let there: HashSet<String> = there.into_iter().collect();
        let mut kept = self.shared.kept.lock();
        for (owner, id) in known.iter().filter(|(_, id)| !there.contains(id)) {
            kept.remove(owner, id);
        }
    }
}

fn read(kept: &Checkpoint) -> Option<(LabelRecord, Note)> {
    let record = serde_json::from_str(kept.labels.get(LABEL)?).ok()?;
    let note = serde_json::from_str(kept.labels.get(NOTE)?).ok()?;
    Some((record, note))
}

fn view(kept: &Checkpoint, record: &LabelRecord, note: &Note) -> CheckpointView {
    CheckpointView {
        id: kept.id.clone(),
        sandbox_id: record.id.clone(),
        image: record.spec.image.clone(),
        labels: note.labels.clone(),
        created_ms: kept.created_s.saturating_mul(1000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(number: usize, label: &str) -> Known {
        let view = CheckpointView {
            id: format!("c{number}"),
            sandbox_id: "s".to_owned(),
            image: "host".to_owned(),
            labels: BTreeMap::from([("x".to_owned(), label.to_owned())]),
            created_ms: number as u64,
        };
        Known { view, request: None, disk: 7 }
    }

    #[test]
    fn a_key_has_a_bounded_number_and_its_labels_a_bounded_size() {
        for (label, most) in [("", CHECKPOINTS_MAX), (&*"x".repeat(100_000), 41)] {
            let mut kept = Kept::default();
            let key: Arc<str> = "key".into();
            let mut taken = 0;
            while kept.admits(&key, known(taken, label).bytes()).is_ok() {
                kept.insert(&key, known(taken, label));
                taken += 1;
            }
            assert_eq!(taken, most);
            let refused = kept.admits(&key, known(taken, label).bytes()).unwrap_err();
            assert_eq!(refused.code, Code::QuotaExceeded);
            assert!(kept.admits("other", known(0, label).bytes()).is_ok());
            assert_eq!((kept.disk(&key), kept.disk("other")), (7 * most as u64, 0));
            kept.remove(&key, "c0");
            assert!(kept.admits(&key, known(0, label).bytes()).is_ok());
        }
    }
}
