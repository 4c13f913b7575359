//! Requests by the names that clients gave them (`Idempotency-Key`): the same again gives what the first one made, for as long as
//! names are kept, whatever has become of what was made. Here while a sandbox is shown, in the store from when it is there.

use super::kept::CheckpointView;
use super::{Entry, EntryState, LabelRecord, Registry, millis, now_ms};
use crate::problem::{Code, Problem};
use espalier_store::ApiRequest;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// What is kept of a key's requests: the newest so many bytes, which are above 100,000 requests of the usual size.
const KEPT_BYTES_MAX: u64 = 64 << 20;
/// How often old ones are forgotten, or after so many bytes more.
const FORGET_EVERY: Duration = Duration::from_secs(300);
const FORGET_BYTES: u64 = 16 << 20;
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// What a request means: two that mean the same are equal, however they were written.
pub(crate) type Meaning = serde_json::Value;

/// A request by its client's name for it.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The client's name, unique among all requests of the key.
    pub(crate) name: String,
    /// Hash of what it means.
    pub(crate) asked: String,
    /// Which of several things that it makes, from 0.
    pub(crate) part: u32,
}

impl Request {
    /// For the first thing that it makes.
    pub(crate) fn new(name: &str, meaning: &Meaning) -> Request {
        let asked = blake3::hash(meaning.to_string().as_bytes()).to_hex().to_string();
        Request { name: name.to_owned(), asked, part: 0 }
    }

    /// The same request for another thing.
    pub(crate) fn part(&self, part: u32) -> Request {
        Request { part, ..self.clone() }
    }

    /// An error where the name stands for another request.
    pub(super) fn check(&self, asked: &str) -> Result<(), Problem> {
        if self.asked == asked {
            return Ok(());
        }
        let detail = format!("Idempotency-Key {} was used for another request", self.name);
        Err(Problem::new(Code::IdReused, detail)
            .hint("use a new key for each request that creates something"))
    }
}

/// What a request has made, as the store keeps it.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Made {
    Sandbox {
        record: Box<LabelRecord>,
        /// Why it could not be made.
        failed: Option<Problem>,
    },
    Checkpoint(CheckpointView),
}

/// Tells who waits whether it is written.
type Written = oneshot::Sender<Result<(), Problem>>;

/// What waits to be written to the store: all that came while one transaction was under way goes with the next. Bounded by those
/// who make something, each of whom waits.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<Vec<(ApiRequest, Written)>>,
    writing: tokio::sync::Mutex<()>,
    /// Written since old ones were forgotten.
    bytes: AtomicU64,
}

impl Registry {
    fn kept_since(&self) -> u64 {
        now_ms().saturating_sub(millis(self.shared.bounds.request_kept))
    }

    /// The sandboxes that a request has made, by its parts; those that are forgotten here are over.
    pub(crate) async fn sandboxes_of(
        &self,
        owner: &str,
        request: &Request,
    ) -> Result<BTreeMap<u32, Arc<Entry>>, Problem> {
        let here = self.tenants().get(owner).and_then(|tenant| tenant.by_request(&request.name).cloned());
        let mut all = here.unwrap_or_default();
        for entry in all.values() {
            let known = entry.record().request;
            known.map_or(Ok(()), |(_, asked)| request.check(&asked))?;
        }
        for (part, made) in self.made_by(owner, request).await? {
            let Made::Sandbox { record, failed } = made else { continue };
            let now = Instant::now();
            let state = match failed {
                Some(problem) => EntryState::Failed(problem, now),
                None => EntryState::Ended("it is gone".to_owned(), now),
            };
            all.entry(part).or_insert_with(|| Entry::new(*record, state));
        }
        Ok(all)
    }

    /// The checkpoint that a request has taken, which may be deleted by now.
    pub(crate) async fn checkpoint_of(
        &self,
        owner: &str,
        request: &Request,
    ) -> Result<Option<CheckpointView>, Problem> {
        // A name that stands for sandboxes stands for no checkpoint.
        self.sandboxes_of(owner, request).await?;
        let made = self.made_by(owner, request).await?;
        Ok(made.into_iter().find_map(|(_, made)| match made {
            Made::Checkpoint(view) => Some(view),
            Made::Sandbox { .. } => None,
        }))
    }

    async fn made_by(&self, owner: &str, request: &Request) -> Result<Vec<(u32, Made)>, Problem> {
        let rows = self.shared.store.request(owner, &request.name, self.kept_since()).await?;
        let read = |row: ApiRequest| {
            request.check(&row.asked)?;
            let made = serde_json::from_str(&row.made).map_err(|error| {
                tracing::error!(%error, name = %row.name, "what a request has made cannot be read");
                Problem::new(Code::Internal, "what this request has made cannot be read")
            })?;
            Ok((row.part, made))
        };
        rows.into_iter().map(read).collect()
    }

    /// Keeps that a request has made this sandbox, or has failed to; returns when that is written.
    pub(super) async fn remember(
        &self,
        record: LabelRecord,
        failed: Option<&Problem>,
    ) -> Result<(), Problem> {
        let Some((name, asked)) = record.request.clone() else { return Ok(()) };
        let (owner, request) = (Arc::clone(&record.owner), Request { name, asked, part: record.part });
        let made = Made::Sandbox { record: Box::new(record), failed: failed.cloned() };
        self.remember_made(&owner, &request, &made).await
    }

    /// The same for a checkpoint.
    pub(super) async fn remember_checkpoint(
        &self,
        owner: &str,
        request: &Request,
        view: &CheckpointView,
    ) -> Result<(), Problem> {
        self.remember_made(owner, request, &Made::Checkpoint(view.clone())).await
    }

    async fn remember_made(&self, owner: &str, request: &Request, made: &Made) -> Result<(), Problem> {
        let row = ApiRequest {
            key_id: owner.to_owned(),
            name: request.name.clone(),
            part: request.part,
            asked: request.asked.clone(),
            made: serde_json::to_string(made).unwrap_or_default(),
            made_ms: now_ms(),
        };
        let (sender, receiver) = oneshot::channel();
        self.shared.made.waiting.lock().push((row, sender));
        let registry = self.clone();
        // Owned by `tasks`, for who waits may be dropped while it writes what others wait for, too; the store bounds it.
        self.shared.tasks.spawn(async move { registry.write_waiting().await });
        let lost = || Err(Problem::new(Code::Unavailable, "the store does not answer").retry_after(1));
        receiver.await.unwrap_or_else(|_| lost())
    }

    async fn write_waiting(&self) {
        let queue = &self.shared.made;
        let _turn = queue.writing.lock().await;
        let (rows, senders): (Vec<_>, Vec<_>) =
            std::mem::take(&mut *queue.waiting.lock()).into_iter().unzip();
        if rows.is_empty() {
            return;
        }
        let bytes: usize = rows.iter().map(|row: &ApiRequest| row.made.len()).sum();
        queue.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let written = self.shared.store.keep_requests(&rows, self.kept_since()).await.map_err(Problem::from);
        for sender in senders {
            // Who waited may have gone.
            let _ = sender.send(written.clone());
        }
    }

    /// Forgets what has had its time, again and again; ends with the task it is awaited in.
    pub(super) async fn forget_requests(&self) {
        let mut tick = tokio::time::interval(LOOK_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut forgotten: Option<Instant> = None;
        loop {
            tick.tick().await;
            let bytes = &self.shared.made.bytes;
            let due = forgotten.is_none_or(|at| at.elapsed() >= FORGET_EVERY);
            if !due && bytes.load(Ordering::Relaxed) < FORGET_BYTES {
                continue;
            }
            bytes.store(0, Ordering::Relaxed);
            forgotten = Some(Instant::now());
            if let Err(error) = self.shared.store.forget_requests(self.kept_since(), KEPT_BYTES_MAX).await {
                tracing::warn!(%error, "old requests could not be forgotten");
            }
        }
    }
}
