//! Making sandboxes for keys: within their quotas, once for each request by its name, in tasks that outlive the request.

use super::kept::CHECKPOINT;
use super::{Entry, OWN, Own, Record, Registry, State, labels, lock, now_ms, used};
use crate::http::shown;
use crate::keys::Key;
use crate::problem::{Code, Problem};
use espalier_core::sandbox::SandboxSpec;
use espalier_sandbox::service::{Purpose, Sandbox, random_id};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Longest name of a sandbox, a label, a request.
const NAME_BYTES_MAX: usize = 128;
/// Labels of a sandbox.
const LABELS_MAX: usize = 64;
/// Longest life.
const LIFETIME_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// Sandboxes of a key that are over and still shown; beyond twice as many the oldest are forgotten.
const OVER_MAX: usize = 1_000;
/// Bytes of requests whose sandboxes are being made.
const ASKED_BYTES_MAX: u64 = 256 << 20;

/// A sandbox as a client wants it.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// The client's own id for it; drawn where it names none.
    pub(crate) id: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) spec: SandboxSpec,
    /// Whether `spec` starts from a checkpoint that this key may use; no image is named like one.
    pub(crate) from_checkpoint: bool,
    /// What it is said to be made of, where that is not what `spec` says.
    pub(crate) image: Option<String>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) lifetime: Duration,
    pub(crate) idle: Option<Duration>,
    pub(crate) require: Vec<String>,
    /// Name of the request and hash of what it asks: the same again gives the same sandbox.
    pub(crate) request: Option<(String, String)>,
}

impl Wanted {
    fn check(&self) -> Result<(), Problem> {
        self.spec.check().map_err(|error| {
            let key = error.key;
            Problem::new(Code::Invalid, format!("{key} is {:?}, wanted is {}", error.value, error.wanted))
        })?;
        if self.spec.image.starts_with(CHECKPOINT) && !self.from_checkpoint {
            let wanted = "an image; name a checkpoint by `checkpoint` of `POST /v1/sandboxes`";
            return Err(Problem::invalid("image", shown(&self.spec.image), wanted));
        }
        check_labels(&self.labels)?;
        check_life(self.lifetime, self.idle)?;
        for (what, text) in [("id", &self.id), ("name", &self.name)] {
            if let Some(text) = text {
                check_name(what, text)?;
            }
        }
        Ok(())
    }

    /// Bytes that are kept until it is made.
    fn bytes(&self) -> u64 {
        let files = self.spec.files.iter().map(|(path, content)| path.len() + content.text().len());
        let variables = self.spec.env.iter().map(|(name, value)| name.len() + value.len());
        let texts = self.spec.setup.iter().map(String::len);
        files.chain(variables).chain(texts).sum::<usize>() as u64
    }
}

impl Record {
    fn new(owner: &Arc<str>, id: &str, wanted: &Wanted) -> Record {
        let (spec, created_ms) = (&wanted.spec, now_ms());
        Record {
            owner: Arc::clone(owner),
            id: id.to_owned(),
            name: wanted.name.clone(),
            image: wanted.image.as_ref().unwrap_or(&spec.image).clone(),
            cpu: spec.cpu,
            memory: spec.memory,
            disk: spec.disk,
            files_max: Some(spec.files_max),
            processes_max: Some(spec.processes_max),
            network: spec.network.clone(),
            labels: wanted.labels.clone(),
            created_ms,
            expires_ms: created_ms + millis(wanted.lifetime),
            idle_s: wanted.idle.map(|idle| idle.as_secs_f64()),
            request: wanted.request.clone(),
            ready: false,
        }
    }
}

/// Bytes of a request, counted as long as it is kept.
struct Asked {
    bytes: u64,
    all: Arc<AtomicU64>,
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Labels of a client.
pub(crate) fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), Problem> {
    if labels.len() > LABELS_MAX {
        let wanted = format!("at most {LABELS_MAX}");
        return Err(Problem::invalid("labels", labels.len(), &wanted));
    }
    for (name, value) in labels {
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.starts_with(OWN) || name.contains('=') {
            let wanted = format!("1 to {NAME_BYTES_MAX} bytes without `=`, not beginning with `{OWN}`");
            return Err(Problem::invalid("the name of a label", shown(name), &wanted));
        }
        if value.len() > 1024 {
            return Err(Problem::invalid(&format!("label {name}"), shown(value), "at most 1024 bytes"));
        }
    }
    Ok(())
}

/// How long it may live, and be idle.
pub(crate) fn check_life(lifetime: Duration, idle: Option<Duration>) -> Result<(), Problem> {
    if lifetime.is_zero() || lifetime > LIFETIME_MAX {
        return Err(Problem::invalid("lifetime_s", lifetime.as_secs_f64(), "more than 0, at most 604800"));
    }
    match idle {
        Some(idle) if idle < Duration::from_secs(1) || idle > LIFETIME_MAX => {
            Err(Problem::invalid("idle_s", idle.as_secs_f64(), "1 to 604800"))
        }
        _ => Ok(()),
    }
}

/// Names that stand in paths and headers.
pub(crate) fn check_name(what: &str, text: &str) -> Result<(), Problem> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if text.is_empty() || text.len() > 64 || !text.bytes().all(plain) || text.bytes().all(|byte| byte == b'.')
    {
        return Err(Problem::invalid(what, shown(text), "1 to 64 letters, digits, `.`, `_`, `-`"));
    }
    Ok(())
}

impl Registry {
    /// Begins to make a sandbox, or finds the one that this request has made. It is made whatever becomes of the request.
    pub(crate) fn create(&self, key: &Key, wanted: Wanted) -> Result<Arc<Entry>, Problem> {
        let mut made = self.create_all(key, vec![wanted], None)?;
        Ok(made.remove(0))
    }

    /// The same for several at once: all of them or none. `checkpoint`: what they start from, which is dropped when all are made.
    pub(crate) fn create_all(
        &self,
        key: &Key,
        wanted: Vec<Wanted>,
        checkpoint: Option<&Arc<super::kept::Passing>>,
    ) -> Result<Vec<Arc<Entry>>, Problem> {
        wanted.iter().try_for_each(Wanted::check)?;
        let mut entries = Vec::with_capacity(wanted.len());
        let mut begun = Vec::new();
        {
            let mut tenants = self.tenants();
            let everyone: u64 = tenants.values().map(|own| used(own).sandboxes).sum();
            let own = tenants.entry(Arc::clone(&key.id)).or_default();
            forget_old(own);
            let mut fresh: Vec<Wanted> = Vec::new();
            for wanted in wanted {
                match wanted.request.as_ref().map(|request| same(own, request)).transpose()?.flatten() {
                    Some(entry) => entries.push(entry),
                    None => fresh.push(wanted),
                }
            }
            for wanted in &fresh {
                let taken = wanted.id.as_ref().and_then(|id| own.get(id));
                if let Some(entry) = taken
                    && !entry.state.borrow().is_over()
                {
                    let id = wanted.id.as_deref().unwrap_or_default();
                    return Err(Problem::new(Code::Conflict, format!("there is a sandbox {id} already"))
                        .hint("delete it first, or choose another id"));
                }
            }
            within(key, used(own), &fresh)?;
            let most = self.shared.bounds.sandboxes_max as u64;
            if everyone + fresh.len() as u64 > most {
                let detail = format!("the service holds {most} sandboxes, its most");
                return Err(Problem::new(Code::Unavailable, detail).retry_after(5));
            }
            let bytes: u64 = fresh.iter().map(Wanted::bytes).sum();
            let asked = self.shared.asked.load(Ordering::Relaxed);
            if asked > 0 && asked + bytes > ASKED_BYTES_MAX {
                let detail =
                    "the files of sandboxes that are being made take all the memory there is for them";
                return Err(Problem::new(Code::Unavailable, detail).retry_after(1));
            }
            for wanted in fresh {
                let id = wanted.id.clone().unwrap_or_else(random_id);
                let record = Record::new(&key.id, &id, &wanted);
                let entry = Entry::new(record, State::Creating);
                own.insert(id, Arc::clone(&entry));
                entries.push(Arc::clone(&entry));
                let all = Arc::clone(&self.shared.asked);
                let asked = Asked { bytes: wanted.bytes(), all };
                asked.all.fetch_add(asked.bytes, Ordering::Relaxed);
                begun.push((entry, wanted, asked));
            }
        }
        for (entry, wanted, asked) in begun {
            let (registry, checkpoint) = (self.clone(), checkpoint.cloned());
            // Owned by `tasks`, which a drain waits for; bounded by `make_max`; ends with the sandbox running or failed.
            self.shared.tasks.spawn(async move {
                registry.make(&entry, wanted).await;
                drop((checkpoint, asked));
            });
        }
        Ok(entries)
    }

    /// What a request of this name and content has made.
    pub(crate) fn by_request(
        &self,
        owner: &str,
        request: &(String, String),
    ) -> Result<Option<Arc<Entry>>, Problem> {
        self.tenants().get(owner).map_or(Ok(None), |own| same(own, request))
    }

    async fn make(&self, entry: &Arc<Entry>, wanted: Wanted) {
        let within = self.shared.bounds.make_max;
        let made = tokio::time::timeout(within, async {
            let make = async {
                let _permit = self.shared.making.acquire().await;
                self.make_one(entry, &wanted).await
            };
            tokio::select! {
                // What was begun is taken back where this is dropped.
                () = entry.settled(true, within) => {
                    Err(Problem::new(Code::SandboxLost, "it was ended before it was made"))
                }
                made = make => made,
            }
        });
        let made = made.await.unwrap_or_else(|_| {
            let detail = format!("the sandbox was not ready after {} s", within.as_secs());
            Err(Problem::new(Code::Timeout, detail).hint("look at the image's size and at what `setup` does"))
        });
        match made {
            Ok(sandbox) => {
                let id = sandbox.placed.id.clone();
                entry.touch();
                if !entry.become_(State::Running(Box::new(sandbox))) {
                    // It was deleted meanwhile.
                    let _ = self.shared.sandboxes.delete(&id).await;
                }
            }
            Err(problem) => {
                entry.become_(State::Failed(problem, Instant::now()));
            }
        }
    }

    async fn make_one(&self, entry: &Arc<Entry>, wanted: &Wanted) -> Result<Sandbox, Problem> {
        let purpose = Purpose {
            labels: labels(&entry.record()),
            lease: self.shared.bounds.lease,
            require: wanted.require.clone(),
            client: self.shared.client.clone(),
        };
        let sandbox = self.shared.sandboxes.create(&wanted.spec, &purpose).await?;
        // Until its label says so, a service that starts meanwhile takes it for half made.
        let hold = self.shared.sandboxes.hold(&sandbox);
        let record = {
            let mut record = lock(&entry.record);
            record.ready = true;
            record.clone()
        };
        self.shared.sandboxes.backend().label(&sandbox.placed.id, labels(&record)).await?;
        hold.release();
        Ok(sandbox)
    }
}

/// Forgets those that have long been over, where they are many.
fn forget_old(own: &mut Own) {
    let over = |entry: &Entry| match &*entry.state.borrow() {
        State::Failed(_, at) | State::Ended(_, at) if lock(&entry.left).is_none() => Some(*at),
        _ => None,
    };
    if own.values().filter(|entry| over(entry).is_some()).count() <= 2 * OVER_MAX {
        return;
    }
    let mut ended: Vec<(Instant, String)> =
        own.iter().filter_map(|(id, entry)| Some((over(entry)?, id.clone()))).collect();
    ended.sort();
    for (_, id) in &ended[..ended.len() - OVER_MAX] {
        own.remove(id);
    }
}

/// What a request has made; an error where it is known for another content.
fn same(own: &Own, request: &(String, String)) -> Result<Option<Arc<Entry>>, Problem> {
    for entry in own.values() {
        let known = lock(&entry.record).request.clone();
        match known {
            Some(known) if known == *request => return Ok(Some(Arc::clone(entry))),
            Some((name, _)) if name == request.0 => return Err(name_used(&name)),
            _ => {}
        }
    }
    Ok(None)
}

/// The name of a request that stands for another already.
pub(super) fn name_used(name: &str) -> Problem {
    let detail = format!("Idempotency-Key {name} was used for another request");
    Problem::new(Code::IdReused, detail).hint("each request that makes something has a name of its own")
}

/// Whether a key may hold these too.
fn within(key: &Key, mut used: super::Used, more: &[Wanted]) -> Result<(), Problem> {
    for wanted in more {
        used.sandboxes += 1;
        used.cpu += wanted.spec.cpu;
        used.memory += wanted.spec.memory;
    }
    let over = |what: &str, would: String, most: String| {
        Err(Problem::new(
            Code::QuotaExceeded,
            format!("with this the key would hold {would} {what}, its quota is {most}"),
        )
        .hint("delete sandboxes that are needed no more; `GET /resources` shows what the key holds"))
    };
    let quotas = &key.quotas;
    match (quotas.sandboxes, quotas.cpu, quotas.memory) {
        _ if more.is_empty() => Ok(()),
        (Some(most), _, _) if used.sandboxes > most => {
            over("sandboxes", used.sandboxes.to_string(), most.to_string())
        }
        (_, Some(most), _) if used.cpu > most => over("cores", used.cpu.to_string(), most.to_string()),
        (_, _, Some(most)) if used.memory > most => {
            let size = |bytes| espalier_core::limits::SizeText(bytes).to_string();
            over("of memory", size(used.memory), size(most))
        }
        _ => Ok(()),
    }
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
