//! Which sandboxes there are, and whose. Every question names a key: what is another's is not there.
//!
//! What has to outlive this process stands in a label of the sandbox itself ([`LABEL`]), so there is no second truth: a service
//! that starts again finds its sandboxes by it and renews their leases. What was being made when it died is ended.

mod adopt;
mod kept;
mod make;
mod sweep;
mod view;

use crate::problem::{Code, Problem};
use espalier_sandbox::service::{Sandbox, Sandboxes};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{Semaphore, watch};
use tokio_util::task::TaskTracker;

pub(crate) use kept::{CHECKPOINT, CheckpointView};
pub(crate) use make::{Wanted, check_labels, check_life, check_name, millis};
pub(crate) use view::Reaches;
pub use view::{SandboxState, SandboxView};

/// Label of a sandbox of this service: a [`Record`].
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
    /// Making one.
    pub make_max: Duration,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            lease: Duration::from_secs(120),
            sandboxes_max: 10_000,
            making_max: 50,
            shown_after: Duration::from_secs(300),
            make_max: Duration::from_secs(1800),
        }
    }
}

/// What is kept of a sandbox in its label.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) owner: Arc<str>,
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) name: Option<String>,
    pub(crate) image: String,
    pub(crate) cpu: f64,
    pub(crate) memory: u64,
    pub(crate) disk: u64,
    #[serde(default)]
    pub(crate) files_max: Option<u64>,
    #[serde(default)]
    pub(crate) processes_max: Option<u32>,
    pub(crate) network: espalier_core::sandbox::Network,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) created_ms: u64,
    pub(crate) expires_ms: u64,
    #[serde(default)]
    pub(crate) idle_s: Option<f64>,
    /// The client's name for the request that made it, and a hash of what it asked.
    #[serde(default)]
    pub(crate) request: Option<(String, String)>,
    /// Files and set-up are in it.
    pub(crate) ready: bool,
}

/// A sandbox of a key.
pub struct Entry {
    record: Mutex<Record>,
    seen: Mutex<Instant>,
    /// Streams and calls that are under way.
    busy: AtomicUsize,
    state: watch::Sender<State>,
    /// What is still to be deleted below it, after its end.
    left: Mutex<Option<String>>,
    /// A checkpoint at a time: its labels pass through the sandbox's.
    keeping: tokio::sync::Mutex<()>,
}

/// How a sandbox stands.
#[derive(Clone)]
pub(crate) enum State {
    Creating,
    Running(Box<Sandbox>),
    Failed(Problem, Instant),
    Ended(String, Instant),
}

impl State {
    fn is_over(&self) -> bool {
        matches!(self, State::Failed(..) | State::Ended(..))
    }
}

impl Entry {
    fn new(record: Record, state: State) -> Arc<Entry> {
        Arc::new(Entry {
            record: Mutex::new(record),
            seen: Mutex::new(Instant::now()),
            busy: AtomicUsize::new(0),
            state: watch::Sender::new(state),
            left: Mutex::default(),
            keeping: tokio::sync::Mutex::default(),
        })
    }

    pub(crate) fn record(&self) -> Record {
        lock(&self.record).clone()
    }

    pub(crate) fn touch(&self) {
        *lock(&self.seen) = Instant::now();
    }

    /// Changes the state, but for one that is over: that is for ever. Whether it was changed.
    fn become_(&self, state: State) -> bool {
        self.replace(state).is_some()
    }

    /// The same; gives the state before.
    fn replace(&self, state: State) -> Option<State> {
        let mut before = None;
        self.state.send_if_modified(|now| {
            if !now.is_over() {
                before = Some(std::mem::replace(now, state));
            }
            before.is_some()
        });
        before
    }

    /// Waits until it runs or is over, or in `over`, until it is over; at most so long.
    pub(crate) async fn settled(&self, over: bool, within: Duration) {
        let mut state = self.state.subscribe();
        let there = |state: &State| match state {
            State::Creating => false,
            State::Running(_) => !over,
            State::Failed(..) | State::Ended(..) => true,
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

/// What a key holds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Used {
    /// Sandboxes that are being made or run.
    pub sandboxes: u64,
    /// Cores.
    pub cpu: f64,
    /// Bytes.
    pub memory: u64,
}

/// The sandboxes of one key, by id.
type Own = HashMap<String, Arc<Entry>>;

/// All sandboxes of the service. Clones share it.
#[derive(Clone)]
pub struct Registry {
    shared: Arc<Shared>,
}

struct Shared {
    sandboxes: Sandboxes,
    bounds: Bounds,
    /// Of each key, by id. The one truth of what is whose while this process lives.
    tenants: Mutex<HashMap<Arc<str>, Own>>,
    making: Semaphore,
    /// Bytes of requests whose sandboxes are being made.
    asked: Arc<AtomicU64>,
    tasks: TaskTracker,
    /// What this process is called by agents.
    client: String,
}

impl Registry {
    /// Over these sandboxes; [`Registry::adopt`] finds those of the service before.
    pub fn new(sandboxes: Sandboxes, bounds: Bounds) -> Registry {
        let shared = Shared {
            sandboxes,
            tenants: Mutex::default(),
            making: Semaphore::new(bounds.making_max),
            asked: Arc::default(),
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

    fn tenants(&self) -> MutexGuard<'_, HashMap<Arc<str>, Own>> {
        lock(&self.shared.tenants)
    }

    /// A sandbox of this key.
    pub(crate) fn find(&self, owner: &str, id: &str) -> Result<Arc<Entry>, Problem> {
        let found = self.tenants().get(owner).and_then(|own| own.get(id)).cloned();
        found.ok_or_else(|| Problem::not_found("sandbox", id))
    }

    /// A running sandbox of this key. One that is being made is not waited for.
    pub(crate) fn running(&self, owner: &str, id: &str) -> Result<(Sandbox, Busy), Problem> {
        let entry = self.find(owner, id)?;
        let sandbox = match &*entry.state.borrow() {
            State::Running(sandbox) => (**sandbox).clone(),
            State::Creating => {
                return Err(Problem::new(Code::Conflict, format!("sandbox {id} is still being made"))
                    .hint("wait for it: `GET /v1/sandboxes/{id}/wait`"));
            }
            State::Failed(problem, _) => {
                return Err(Problem::new(
                    Code::SandboxLost,
                    format!("sandbox {id} could not be made: {}", problem.detail),
                ));
            }
            State::Ended(how, _) => {
                return Err(Problem::new(Code::SandboxLost, format!("sandbox {id} has ended: {how}")));
            }
        };
        entry.touch();
        Ok((sandbox, Busy::new(entry)))
    }

    /// All of a key, newest first.
    pub(crate) fn list(&self, owner: &str) -> Vec<Arc<Entry>> {
        let mut all: Vec<Arc<Entry>> =
            self.tenants().get(owner).map(|own| own.values().cloned().collect()).unwrap_or_default();
        all.sort_by_cached_key(|entry| {
            let record = lock(&entry.record);
            (std::cmp::Reverse(record.created_ms), record.id.clone())
        });
        all
    }

    /// What a key holds.
    pub fn used(&self, owner: &str) -> Used {
        self.tenants().get(owner).map(used).unwrap_or_default()
    }

    /// What all keys hold, and how many sandboxes are in which state.
    pub fn totals(&self) -> (Used, BTreeMap<SandboxState, usize>) {
        let tenants = self.tenants();
        let (mut all, mut states) = (Used::default(), BTreeMap::new());
        for own in tenants.values() {
            let of_key = used(own);
            all.sandboxes += of_key.sandboxes;
            all.cpu += of_key.cpu;
            all.memory += of_key.memory;
            for entry in own.values() {
                *states.entry(SandboxState::of(&entry.state.borrow())).or_default() += 1;
            }
        }
        (all, states)
    }

    /// Changes what is kept of a sandbox, in it too.
    pub(crate) async fn change(
        &self,
        entry: &Entry,
        change: impl FnOnce(&mut Record),
    ) -> Result<(), Problem> {
        let record = {
            let mut record = lock(&entry.record);
            change(&mut record);
            record.clone()
        };
        entry.touch();
        let backend_id = match &*entry.state.borrow() {
            State::Running(sandbox) => sandbox.placed.id.clone(),
            _ => return Ok(()),
        };
        Ok(self.shared.sandboxes.backend().label(&backend_id, labels(&record)).await?)
    }

    /// Ends a sandbox; one that is over stays so. What could not be deleted is tried again by the next call, and from time to time.
    pub(crate) async fn delete(&self, entry: &Arc<Entry>, how: &str) -> Result<(), Problem> {
        // From here on nobody reaches it. One that is being made is ended by its maker.
        if let Some(State::Running(sandbox)) = entry.replace(State::Ended(how.to_owned(), Instant::now())) {
            *lock(&entry.left) = Some(sandbox.placed.id.clone());
        }
        let Some(id) = lock(&entry.left).clone() else { return Ok(()) };
        let (sandboxes, entry) = (self.shared.sandboxes.clone(), Arc::clone(entry));
        // Whatever becomes of the request. Owned by `tasks`; the backend bounds it.
        let ended = self.shared.tasks.spawn(async move {
            // One that is gone already is no error there.
            sandboxes.delete(&id).await.map(|()| *lock(&entry.left) = None)
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

fn used(own: &Own) -> Used {
    let mut used = Used::default();
    for entry in own.values().filter(|entry| !entry.state.borrow().is_over()) {
        let record = lock(&entry.record);
        used.sandboxes += 1;
        used.cpu += record.cpu;
        used.memory += record.memory;
    }
    used
}

/// The labels of a sandbox with this record: the client's own stand beside, for `espalier sandbox list --label`.
fn labels(record: &Record) -> BTreeMap<String, String> {
    let mut labels = record.labels.clone();
    labels.insert(LABEL.to_owned(), serde_json::to_string(record).unwrap_or_default());
    labels
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
