//! Which sandboxes there are, and whose. What a client asks is asked with its key: what is another's is not there.
//!
//! What has to outlive this process stands in a label of the sandbox itself ([`LABEL`]), so there is no second truth: a service
//! that starts again finds its sandboxes by it and renews their leases. What was being made when it died is ended. What outlives the
//! sandbox, too, stands in the store: which names of requests are used up (`requests`).

mod adopt;
mod disk;
mod kept;
mod make;
mod permits;
mod requests;
mod sweep;
mod tenant;
mod view;

use crate::problem::{Code, Problem};
use crate::shares::Shares;
use espalier_core::sandbox::SandboxSpec;
use espalier_sandbox::backend::Placed;
use espalier_sandbox::service::{Sandbox, Sandboxes};
use espalier_store::Store;
use parking_lot::{Mutex, MutexGuard};
use permits::Permits;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tenant::Tenant;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

pub(crate) use kept::{CHECKPOINT, CheckpointView};
pub(crate) use make::{LIFETIME, Wanted, check_labels, check_life, check_name, millis};
pub(crate) use requests::{Meaning, Request};
pub(crate) use tenant::Place;
pub use tenant::Used;
pub(crate) use view::Reaches;
pub use view::{SandboxState, SandboxView};

/// Label of a sandbox of this service: a [`LabelRecord`].
const LABEL: &str = "espalier.api";
/// Names of labels that are not the client's.
const OWN: &str = "espalier.";

/// Bounds of the service.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Silence of this service that ends a sandbox.
    pub lease: Duration,
    /// Sandboxes of all keys.
    pub sandboxes_max: usize,
    /// Sandboxes that are made at once; more wait.
    pub making_max: usize,
    /// How long one is still shown after its end.
    pub shown_after: Duration,
    /// Making one, unless its request says how long that may take.
    pub make_max: Duration,
    /// Bytes of files, variables and texts of those that are being made, of all keys.
    pub making_bytes_max: u64,
    /// How long the name of a request stands for what it made.
    pub request_kept: Duration,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            lease: Duration::from_secs(120),
            sandboxes_max: 10_000,
            making_max: 50,
            shown_after: Duration::from_secs(300),
            make_max: Duration::from_secs(1800),
            making_bytes_max: 256 << 20,
            request_kept: Duration::from_secs(24 * 3600),
        }
    }
}

/// What is kept of a sandbox in its label.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LabelRecord {
    pub(crate) owner: Arc<str>,
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) name: Option<String>,
    /// Without its contents. Its keys stand among those of the record.
    #[serde(flatten)]
    pub(crate) spec: SandboxSpec,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) created_ms: u64,
    pub(crate) expires_ms: u64,
    #[serde(default)]
    pub(crate) idle_s: Option<f64>,
    /// The client's name for the request that made it, and a hash of what it asked.
    #[serde(default)]
    pub(crate) request: Option<(String, String)>,
    /// Which of several sandboxes of that request it is.
    #[serde(default)]
    pub(crate) part: u32,
    /// Silence of every service that ends it.
    #[serde(default)]
    pub(crate) lease_ms: Option<u64>,
    /// Files and set-up are in it.
    pub(crate) ready: bool,
}

/// A sandbox of a key.
pub struct Entry {
    record: Mutex<LabelRecord>,
    seen: Mutex<Instant>,
    /// Streams and calls that are under way.
    busy: AtomicUsize,
    state: watch::Sender<EntryState>,
    /// Who changes what is kept of it, one after the other: in the sandbox first, in `record` last.
    turn: tokio::sync::Mutex<()>,
    /// What is still to be deleted below it, after its end.
    left: Mutex<Option<String>>,
    /// A checkpoint at a time: its labels pass through the sandbox's.
    keeping: tokio::sync::Mutex<()>,
}

/// How a sandbox stands.
#[derive(Clone)]
pub(crate) enum EntryState {
    Creating,
    Running(Box<Sandbox>),
    /// A service before this one made it, and its agent has not answered yet. It is tried until then.
    Silent(Box<Placed>, Instant),
    Failed(Problem, Instant),
    Ended(String, Instant),
}

impl EntryState {
    fn is_over(&self) -> bool {
        matches!(self, EntryState::Failed(..) | EntryState::Ended(..))
    }
}

impl Entry {
    fn new(record: LabelRecord, state: EntryState) -> Arc<Entry> {
        Arc::new(Entry {
            record: Mutex::new(record),
            seen: Mutex::new(Instant::now()),
            busy: AtomicUsize::new(0),
            state: watch::Sender::new(state),
            turn: tokio::sync::Mutex::default(),
            left: Mutex::default(),
            keeping: tokio::sync::Mutex::default(),
        })
    }

    pub(crate) fn record(&self) -> LabelRecord {
        self.record.lock().clone()
    }

    pub(crate) fn touch(&self) {
        *self.seen.lock() = Instant::now();
    }

    /// Changes the state, but for one that is over: that is for ever. Whether it was changed.
    fn transition(&self, state: EntryState) -> bool {
        self.replace(state).is_some()
    }

    /// The same; gives the state before.
    fn replace(&self, state: EntryState) -> Option<EntryState> {
        let mut before = None;
        self.state.send_if_modified(|now| {
            if !now.is_over() {
                before = Some(std::mem::replace(now, state));
            }
            before.is_some()
        });
        before
    }

    /// As the backend knows it, while it is there.
    fn backend_id(&self) -> Option<String> {
        match &*self.state.borrow() {
            EntryState::Running(sandbox) => Some(sandbox.placed.id.clone()),
            EntryState::Silent(placed, _) => Some(placed.id.clone()),
            EntryState::Creating | EntryState::Failed(..) | EntryState::Ended(..) => None,
        }
    }

    /// Waits until it runs or is over, or in `over`, until it is over; at most so long.
    pub(crate) async fn settled(&self, over: bool, within: Duration) {
        let mut state = self.state.subscribe();
        let there = |state: &EntryState| match state {
            EntryState::Creating | EntryState::Silent(..) => false,
            EntryState::Running(_) => !over,
            EntryState::Failed(..) | EntryState::Ended(..) => true,
        };
        // The sender is in this entry.
        let _ = tokio::time::timeout(within, state.wait_for(there)).await;
    }
}

/// Says that a call on a sandbox is under way: it is not idle meanwhile.
pub struct Busy(Arc<Entry>);

impl Busy {
    fn new(entry: Arc<Entry>) -> Busy {
        entry.busy.fetch_add(1, Ordering::Relaxed);
        Busy(entry)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.touch();
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All sandboxes of the service. Clones share it.
#[derive(Clone)]
pub struct Registry {
    shared: Arc<Shared>,
}

struct Shared {
    sandboxes: Sandboxes,
    store: Arc<Store>,
    bounds: Bounds,
    /// What each key has. The one truth of what is whose while this process lives.
    tenants: Mutex<HashMap<Arc<str>, Tenant>>,
    /// The checkpoints of each key.
    kept: Mutex<kept::Kept>,
    making: Permits,
    /// Bytes of requests whose sandboxes are being made.
    asked: Shares,
    /// What requests have made and the store does not have yet.
    made: requests::Queue,
    tasks: TaskTracker,
    /// What this process is called by agents.
    client: String,
}

impl Registry {
    /// Over these sandboxes; [`Registry::adopt`] finds those of the service before. What requests have made is kept in the store.
    pub fn new(sandboxes: Sandboxes, store: Arc<Store>, bounds: Bounds) -> Registry {
        let shared = Shared {
            sandboxes,
            store,
            tenants: Mutex::default(),
            kept: Mutex::default(),
            making: Permits::new(bounds.making_max),
            asked: Shares::new(bounds.making_bytes_max),
            made: requests::Queue::default(),
            tasks: TaskTracker::new(),
            client: format!("c.srv-{}", espalier_sandbox::service::random_id()),
            bounds,
        };
        Registry { shared: Arc::new(shared) }
    }

    /// The bounds.
    pub fn bounds(&self) -> &Bounds {
        &self.shared.bounds
    }

    /// Where they are made.
    pub(crate) fn sandboxes(&self) -> &Sandboxes {
        &self.shared.sandboxes
    }

    fn tenants(&self) -> MutexGuard<'_, HashMap<Arc<str>, Tenant>> {
        self.shared.tenants.lock()
    }

    /// A sandbox of this key.
    pub(crate) fn find(&self, owner: &str, id: &str) -> Result<Arc<Entry>, Problem> {
        let found = self.tenants().get(owner).and_then(|tenant| tenant.get(id));
        found.ok_or_else(|| Problem::not_found("sandbox", id))
    }

    /// A running sandbox of this key. One that is being made is not waited for.
    pub(crate) fn running(&self, owner: &str, id: &str) -> Result<(Sandbox, Busy), Problem> {
        let entry = self.find(owner, id)?;
        let sandbox = match &*entry.state.borrow() {
            EntryState::Running(sandbox) => (**sandbox).clone(),
            EntryState::Creating => {
                return Err(Problem::new(Code::Conflict, format!("sandbox {id} is still being created"))
                    .hint("wait for it: `GET /v1/sandboxes/{id}/wait`"));
            }
            EntryState::Silent(..) => {
                let detail = format!("sandbox {id} has not answered since the service was started");
                return Err(Problem::new(Code::Unavailable, detail)
                    .retry_after(1)
                    .hint("the service keeps trying until the lease of the sandbox expires"));
            }
            EntryState::Failed(problem, _) => {
                return Err(Problem::new(
                    Code::SandboxLost,
                    format!("sandbox {id} could not be created: {}", problem.detail),
                ));
            }
            EntryState::Ended(how, _) => {
                return Err(Problem::new(Code::SandboxLost, format!("sandbox {id} has ended: {how}")));
            }
        };
        entry.touch();
        Ok((sandbox, Busy::new(entry)))
    }

    /// All of a key, newest first.
    pub(crate) fn list(&self, owner: &str) -> Vec<Arc<Entry>> {
        let mut all: Vec<Arc<Entry>> =
            self.tenants().get(owner).map(|tenant| tenant.entries().cloned().collect()).unwrap_or_default();
        all.sort_by_cached_key(|entry| entry.place());
        all
    }

    /// What a key holds.
    pub fn used(&self, owner: &str) -> Used {
        self.tenants().get(owner).map(Tenant::used).unwrap_or_default()
    }

    /// What all keys hold, and how many sandboxes are in which state.
    pub fn totals(&self) -> (Used, BTreeMap<SandboxState, usize>) {
        let tenants = self.tenants();
        let (mut all, mut states) = (Used::default(), BTreeMap::new());
        for tenant in tenants.values() {
            all.add(tenant.used());
            for entry in tenant.entries() {
                *states.entry(SandboxState::of(&entry.state.borrow())).or_default() += 1;
            }
        }
        (all, states)
    }

    /// Changes what is kept of a sandbox, in it and then here. Changes of one sandbox are made one after the other, and whole: the last
    /// one stands in both places, whatever becomes of the request.
    pub(crate) async fn change(
        &self,
        entry: &Arc<Entry>,
        change: impl FnOnce(&mut LabelRecord) + Send + 'static,
    ) -> Result<(), Problem> {
        entry.touch();
        let (registry, entry) = (self.clone(), Arc::clone(entry));
        self.aside(async move {
            let _turn = entry.turn.lock().await;
            let before = entry.record();
            let mut record = before.clone();
            change(&mut record);
            if let Some(id) = entry.backend_id() {
                let labels = changed_labels(&before, &record);
                registry.shared.sandboxes.backend().relabel(&id, labels).await?;
            }
            *entry.record.lock() = record;
            Ok(())
        })
        .await
    }

    /// Carries work to its end whatever becomes of the request that wants it.
    async fn aside<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Problem>> + Send + 'static,
    ) -> Result<T, Problem> {
        // Owned by `tasks`; the backend bounds it.
        let done = self.shared.tasks.spawn(work).await;
        done.map_err(|error| Problem::new(Code::Internal, format!("the service failed on it: {error}")))?
    }

    /// Ends a sandbox; one that is over stays so. What could not be deleted is tried again by the next call, and from time to time.
    pub(crate) async fn delete(&self, entry: &Arc<Entry>, how: &str) -> Result<(), Problem> {
        // From here on nobody reaches it. One that is being made is ended by its maker.
        match entry.replace(EntryState::Ended(how.to_owned(), Instant::now())) {
            Some(EntryState::Running(sandbox)) => *entry.left.lock() = Some(sandbox.placed.id.clone()),
            Some(EntryState::Silent(placed, _)) => *entry.left.lock() = Some(placed.id.clone()),
            _ => {}
        }
        let Some(id) = entry.left.lock().clone() else { return Ok(()) };
        let (sandboxes, entry) = (self.shared.sandboxes.clone(), Arc::clone(entry));
        // Whatever becomes of the request. Owned by `tasks`; the backend bounds it.
        let ended = self.shared.tasks.spawn(async move {
            // One that is gone already is not an error there.
            sandboxes.delete(&id).await.map(|()| *entry.left.lock() = None)
        });
        Ok(ended.await.map_err(|error| Problem::new(Code::Internal, format!("ending it: {error}")))??)
    }

    /// Waits for what is being made and ended, at most so long. The sandboxes stay, for the service that comes next.
    pub async fn close(&self, within: Duration) {
        self.shared.tasks.close();
        if tokio::time::timeout(within, self.shared.tasks.wait()).await.is_err() {
            tracing::warn!("sandboxes were still being made; they end with their leases");
        }
    }
}

/// The labels of a sandbox with this record: the client's own stand beside, for `espalier sandbox list --label`.
fn labels(record: &LabelRecord) -> BTreeMap<String, String> {
    let mut labels = record.labels.clone();
    labels.insert(LABEL.to_owned(), serde_json::to_string(record).unwrap_or_default());
    labels
}

/// What makes the labels of one record those of the next.
fn changed_labels(before: &LabelRecord, record: &LabelRecord) -> BTreeMap<String, Option<String>> {
    let gone = before.labels.keys().map(|name| (name.clone(), None));
    gone.chain(labels(record).into_iter().map(|(name, value)| (name, Some(value)))).collect()
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use espalier_core::sandbox::Network;

    /// As the first service of this form wrote it; the oldest one had no `files_max` and `processes_max`.
    const KEPT: &str = r#"{"owner":"key-1","id":"s1","name":"one","image":"oci:/images/a","cpu":0.5,"memory":67108864,"disk":18446744073709551615,"files_max":1000,"processes_max":64,"network":{"allow":["a.org:443"]},"labels":{"task":"7"},"created_ms":1700000000000,"expires_ms":1700000007200,"idle_s":2.5,"request":["r1","00ff"],"part":3,"lease_ms":120000,"ready":true}"#;

    #[test]
    fn a_record_that_was_kept_is_read_and_kept_as_it_was() {
        let record: LabelRecord = serde_json::from_str(KEPT).unwrap();
        assert_eq!(
            record.spec,
            SandboxSpec {
                image: "oci:/images/a".to_owned(),
                cpu: 0.5,
                memory: 64 << 20,
                disk: u64::MAX,
                files_max: 1000,
                processes_max: 64,
                network: Network::Allow(vec!["a.org:443".to_owned()]),
                ..SandboxSpec::default()
            }
        );
        assert_eq!(
            (&*record.owner, &*record.id, record.part, record.lease_ms),
            ("key-1", "s1", 3, Some(120_000))
        );
        assert_eq!(serde_json::to_string(&record).unwrap(), KEPT);
        let oldest = KEPT.replace(r#""files_max":1000,"processes_max":64,"#, "");
        let record: LabelRecord = serde_json::from_str(&oldest).unwrap();
        assert_eq!((record.spec.files_max, record.spec.processes_max), (500_000, 512));
    }
}
