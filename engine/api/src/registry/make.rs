//! Making sandboxes for keys: within their quotas, once for each request by its name, in tasks that outlive the request.

use super::{Entry, OWN, Own, Record, Registry, State, described, labels, lock, now_ms, used};
use crate::keys::Key;
use crate::problem::{Code, Problem};
use espalier_core::sandbox::{Network, SandboxSpec};
use espalier_sandbox::service::{Purpose, Sandbox, random_id};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest name of a sandbox, a label, a request.
const NAME_BYTES_MAX: usize = 128;
/// Labels of a sandbox.
const LABELS_MAX: usize = 64;
/// Longest life.
const LIFETIME_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// A sandbox as a client wants it.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// The client's own id for it; drawn where it names none.
    pub(crate) id: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) spec: SandboxSpec,
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
        check_labels(&self.labels)?;
        check_life(self.lifetime, self.idle)?;
        for (what, text) in [("id", &self.id), ("name", &self.name)] {
            if let Some(text) = text {
                check_name(what, text)?;
            }
        }
        self.request.as_ref().map_or(Ok(()), |(name, _)| check_name("Idempotency-Key", name))
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

/// As much of a client's text as an error repeats.
fn shown(text: &str) -> String {
    text.chars().take(80).collect()
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
            let everyone: usize = tenants.values().map(HashMap::len).sum();
            let own = tenants.entry(Arc::clone(&key.id)).or_default();
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
            if everyone + fresh.len() > self.shared.bounds.sandboxes_max {
                let most = self.shared.bounds.sandboxes_max;
                return Err(Problem::new(
                    Code::Unavailable,
                    format!("the service holds {most} sandboxes, its most"),
                )
                .retry_after(5));
            }
            for wanted in fresh {
                let id = wanted.id.clone().unwrap_or_else(random_id);
                let created_ms = now_ms();
                let mut record = Record {
                    owner: Arc::clone(&key.id),
                    id: id.clone(),
                    name: wanted.name.clone(),
                    image: String::new(),
                    cpu: 0.0,
                    memory: 0,
                    disk: 0,
                    network: Network::None,
                    labels: wanted.labels.clone(),
                    created_ms,
                    expires_ms: created_ms + millis(wanted.lifetime),
                    idle_s: wanted.idle.map(|idle| idle.as_secs_f64()),
                    request: wanted.request.clone(),
                    ready: false,
                };
                described(&wanted.spec, &mut record);
                record.image = wanted.image.clone().unwrap_or(record.image);
                let entry = Entry::new(record, State::Creating);
                own.insert(id, Arc::clone(&entry));
                entries.push(Arc::clone(&entry));
                begun.push((entry, wanted));
            }
        }
        for (entry, wanted) in begun {
            let (registry, checkpoint) = (self.clone(), checkpoint.cloned());
            // Owned by `tasks`, which a drain waits for; bounded by `make_max`; ends with the sandbox running or failed.
            self.shared.tasks.spawn(async move {
                registry.make(&entry, wanted).await;
                drop(checkpoint);
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
            let _permit = self.shared.making.acquire().await;
            if entry.state.borrow().is_over() {
                return Err(Problem::new(Code::SandboxLost, "it was ended before it was made"));
            }
            self.make_one(entry, &wanted).await
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

/// What a request has made; an error where it is known for another content.
fn same(own: &Own, request: &(String, String)) -> Result<Option<Arc<Entry>>, Problem> {
    for entry in own.values() {
        let known = lock(&entry.record).request.clone();
        match known {
            Some(known) if known == *request => return Ok(Some(Arc::clone(entry))),
            Some((name, _)) if name == request.0 => {
                let detail = format!("Idempotency-Key {name} was used for another request");
                return Err(Problem::new(Code::IdReused, detail)
                    .hint("each request that makes something has a name of its own"));
            }
            _ => {}
        }
    }
    Ok(None)
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
