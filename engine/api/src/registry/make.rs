//! Making sandboxes for keys: within their quotas, once for each request by its name, in tasks that outlive the request.

use super::kept::CHECKPOINT;
use super::tenant::Used;
use super::{Entry, EntryState, LabelRecord, OWN, Registry, Request, changed_labels, labels, now_ms};
use crate::http::shown;
use crate::keys::{Key, Scope};
use crate::problem::{Code, Problem};
use crate::shares::Share;
use espalier_core::limits::SizeText;
use espalier_core::sandbox::{Network, SandboxSpec};
use espalier_sandbox::service::{Hold, Purpose, Sandbox, random_id};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest name of a sandbox, a label, a request.
const NAME_BYTES_MAX: usize = 128;
/// Labels of a sandbox.
const LABELS_MAX: usize = 64;
/// Life where a request names none.
pub(crate) const LIFETIME: Duration = Duration::from_secs(7200);
/// Longest life.
const LIFETIME_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// Files that are put into a sandbox, and texts of its set-up.
const FILES_MAX: usize = 10_000;
const SETUPS_MAX: usize = 1_000;
/// Entries of an allow-list, and promises that are required.
const RULES_MAX: usize = 256;
const REQUIRED_MAX: usize = 64;
/// What a value takes besides its bytes, nearly.
const VALUE_BYTES: usize = 64;

/// A sandbox as a client wants it.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// The client's own id for it; drawn where it names none.
    pub(crate) id: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) spec: SandboxSpec,
    /// Whether `spec` starts from a checkpoint that this key may use; no image is named like one.
    pub(crate) from_checkpoint: bool,
    /// Image name to report, if it differs from that of `spec`.
    pub(crate) image: Option<String>,
    pub(crate) labels: BTreeMap<String, String>,
    /// From the request on; where `ready_within` is given, from when it is ready.
    pub(crate) lifetime: Duration,
    /// How long making it may take; default [`super::Bounds::make_max`].
    pub(crate) ready_within: Option<Duration>,
    pub(crate) idle: Option<Duration>,
    pub(crate) require: Vec<String>,
    /// The request, by its client's name for it: the same again gives the same sandbox.
    pub(crate) request: Option<Request>,
}

impl Wanted {
    /// A sandbox of this spec, reported by its own image name.
    pub(crate) fn of(spec: SandboxSpec) -> Wanted {
        Wanted {
            id: None,
            name: None,
            spec,
            from_checkpoint: false,
            image: None,
            labels: BTreeMap::new(),
            lifetime: LIFETIME,
            ready_within: None,
            idle: None,
            require: Vec::new(),
            request: None,
        }
    }

    fn check(&self) -> Result<(), Problem> {
        self.spec.check().map_err(|error| {
            let key = error.key;
            Problem::new(Code::Invalid, format!("invalid {key} {:?}: expected {}", error.value, error.wanted))
        })?;
        if self.spec.image.starts_with(CHECKPOINT) && !self.from_checkpoint {
            let wanted = "an image; to start from a checkpoint, set `checkpoint` in `POST /v1/sandboxes`";
            return Err(Problem::invalid("image", shown(&self.spec.image), wanted));
        }
        let rules = if let Network::Allow(rules) = &self.spec.network { rules.len() } else { 0 };
        for (what, count, most) in [
            ("files", self.spec.files.len(), FILES_MAX),
            ("setup", self.spec.setup.len(), SETUPS_MAX),
            ("network", rules, RULES_MAX),
            ("require", self.require.len(), REQUIRED_MAX),
        ] {
            if count > most {
                return Err(Problem::invalid(what, format!("{count} entries"), &format!("at most {most}")));
            }
        }
        if let Some(long) = self.require.iter().find(|name| name.len() > NAME_BYTES_MAX) {
            let wanted = format!("names of at most {NAME_BYTES_MAX} bytes");
            return Err(Problem::invalid("require", shown(long), &wanted));
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
        let spec = &self.spec;
        let files = spec.files.iter().map(|(path, content)| path.len() + content.text().len());
        let pairs = spec.env.iter().chain(&self.labels).map(|(name, value)| name.len() + value.len());
        let rules = if let Network::Allow(rules) = &spec.network { &rules[..] } else { &[] };
        let texts = spec.setup.iter().chain(rules).chain(&self.require).map(String::len);
        let bytes: usize = files.chain(pairs).chain(texts).map(|bytes| VALUE_BYTES + bytes).sum();
        (bytes + spec.image.len()) as u64
    }
}

impl LabelRecord {
    fn new(owner: &Arc<str>, id: &str, lease: Duration, wanted: &Wanted) -> LabelRecord {
        let (spec, created_ms) = (&wanted.spec, now_ms());
        LabelRecord {
            owner: Arc::clone(owner),
            id: id.to_owned(),
            name: wanted.name.clone(),
            spec: SandboxSpec {
                image: wanted.image.as_ref().unwrap_or(&spec.image).clone(),
                ..spec.without_contents()
            },
            labels: wanted.labels.clone(),
            created_ms,
            expires_ms: created_ms
                .saturating_add(millis(wanted.lifetime))
                .saturating_add(millis(wanted.ready_within.unwrap_or_default())),
            idle_s: wanted.idle.map(|idle| idle.as_secs_f64()),
            request: wanted.request.as_ref().map(|request| (request.name.clone(), request.asked.clone())),
            part: wanted.request.as_ref().map_or(0, |request| request.part),
            lease_ms: Some(millis(lease)),
            ready: false,
        }
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
            return Err(Problem::invalid(
                &format!("label {}", shown(name)),
                shown(value),
                "at most 1024 bytes",
            ));
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
    /// Begins to make a sandbox for a request without a name. It is made whatever becomes of the request.
    pub(crate) fn create(&self, key: &Key, wanted: Wanted) -> Result<Arc<Entry>, Problem> {
        let mut made = self.create_all(key, vec![wanted], None)?;
        Ok(made.remove(0))
    }

    /// Begins to make what a request with a name wants, all of it or nothing, or finds what that request has made, in the order of its
    /// parts. `checkpoint`: what they start from, which is dropped when all are made.
    pub(crate) async fn create_once(
        &self,
        key: &Key,
        wanted: Vec<Wanted>,
        checkpoint: Option<&Arc<super::kept::Passing>>,
    ) -> Result<Vec<Arc<Entry>>, Problem> {
        let Some(request) = wanted.first().and_then(|wanted| wanted.request.clone()) else {
            return self.create_all(key, wanted, checkpoint);
        };
        let turn = self.tenants().entry(Arc::clone(&key.id)).or_default().turn();
        let _turn = turn.lock().await;
        let mut all = self.sandboxes_of(&key.id, &request).await?;
        let part = |wanted: &Wanted| wanted.request.as_ref().map_or(0, |request| request.part);
        let fresh: Vec<Wanted> =
            wanted.into_iter().filter(|wanted| !all.contains_key(&part(wanted))).collect();
        for entry in self.create_all(key, fresh, checkpoint)? {
            let part = entry.record().part;
            all.insert(part, entry);
        }
        Ok(all.into_values().collect())
    }

    fn create_all(
        &self,
        key: &Key,
        fresh: Vec<Wanted>,
        checkpoint: Option<&Arc<super::kept::Passing>>,
    ) -> Result<Vec<Arc<Entry>>, Problem> {
        fresh.iter().try_for_each(Wanted::check)?;
        let kept = self.kept_bytes(&key.id);
        let mut begun = Vec::with_capacity(fresh.len());
        {
            let mut tenants = self.tenants();
            let mut everyone = Used::default();
            tenants.values().for_each(|tenant| everyone.add(tenant.used()));
            let tenant = tenants.entry(Arc::clone(&key.id)).or_default();
            tenant.forget_old();
            for wanted in &fresh {
                let taken = wanted.id.as_ref().and_then(|id| tenant.get(id));
                if let Some(entry) = taken
                    && !entry.state.borrow().is_over()
                {
                    let id = wanted.id.as_deref().unwrap_or_default();
                    return Err(Problem::new(Code::Conflict, format!("sandbox {id} already exists"))
                        .hint("delete it first, or choose another id"));
                }
            }
            within(key, tenant.used(), kept, &fresh)?;
            let most = self.shared.bounds.sandboxes_max as u64;
            if everyone.sandboxes.saturating_add(fresh.len() as u64) > most {
                let detail = format!("the service has {most} sandboxes, the maximum");
                return Err(Problem::new(Code::Unavailable, detail).retry_after(5));
            }
            let mut shares = Vec::with_capacity(fresh.len());
            for wanted in &fresh {
                let mut share = self.shared.asked.share(&key.id);
                if !share.grow(wanted.bytes()) {
                    let detail = "the sandboxes being created for this key already use all the memory allowed for their \
                                  files, variables and setup";
                    return Err(Problem::new(Code::RateLimited, detail)
                        .retry_after(1)
                        .hint("wait until some of them are running"));
                }
                shares.push(share);
            }
            for (wanted, share) in fresh.into_iter().zip(shares) {
                let id = wanted.id.clone().unwrap_or_else(random_id);
                let record = LabelRecord::new(&key.id, &id, self.shared.bounds.lease, &wanted);
                let entry = Entry::new(record, EntryState::Creating);
                tenant.insert(&entry);
                begun.push((entry, wanted, share));
            }
        }
        let credentials = key.may(Scope::RegistryCredentials);
        let begin = |(entry, wanted, share): (Arc<Entry>, Wanted, Share)| {
            let (registry, checkpoint, made) = (self.clone(), checkpoint.cloned(), Arc::clone(&entry));
            // Owned by `tasks`, which a drain waits for; bounded by `make_max` or `ready_within`; ends with the sandbox running or
            // failed.
            self.shared.tasks.spawn(async move {
                registry.make(&made, wanted, credentials).await;
                drop((checkpoint, share));
            });
            entry
        };
        Ok(begun.into_iter().map(begin).collect())
    }

    /// With `credentials`, its image may be fetched with those of the service's own user.
    async fn make(&self, entry: &Arc<Entry>, wanted: Wanted, credentials: bool) {
        let within = wanted.ready_within.unwrap_or(self.shared.bounds.make_max);
        let made = tokio::time::timeout(within, async {
            tokio::select! {
                // What was begun is taken back where this is dropped.
                () = entry.settled(true, within) => {
                    Err(Problem::new(Code::SandboxLost, "it was deleted before it was ready"))
                }
                made = self.make_one(entry, &wanted, credentials) => made,
            }
        });
        let made = made.await.unwrap_or_else(|_| {
            let detail = format!("the sandbox was not ready after {} s", within.as_secs());
            Err(Problem::new(Code::Timeout, detail).hint("check the size of the image and what `setup` does"))
        });
        if let Err(problem) = made {
            // A request that has failed is known by its name, too.
            if let Err(error) = self.remember(entry.record(), Some(&problem)).await {
                tracing::warn!(sandbox = %entry.record().id, detail = %error.detail, "its request is not kept");
            }
            entry.transition(EntryState::Failed(problem, Instant::now()));
        }
    }

    /// Makes it, up to the state of running.
    async fn make_one(&self, entry: &Arc<Entry>, wanted: &Wanted, credentials: bool) -> Result<(), Problem> {
        // Held until it is there: its files and its set-up are its own affair.
        let permit = self.shared.making.take(&entry.record().owner).await;
        let begun = entry.record();
        let purpose = Purpose {
            labels: labels(&begun),
            lease: self.shared.bounds.lease,
            require: wanted.require.clone(),
            client: self.shared.client.clone(),
            registry_credentials: credentials,
        };
        let sandboxes = &self.shared.sandboxes;
        let sandbox = sandboxes.create_and_tell(&wanted.spec, &purpose, || drop(permit)).await?;
        // Until its label says so, a service that starts meanwhile takes it for half made.
        let hold = sandboxes.hold(&sandbox);
        let lifetime = wanted.ready_within.map(|_| wanted.lifetime);
        self.run(entry, &begun, lifetime, sandbox, hold).await
    }

    /// Says that it runs: in its label first, then in the store, here last. `lifetime`, where it counts from now.
    async fn run(
        &self,
        entry: &Entry,
        begun: &LabelRecord,
        lifetime: Option<Duration>,
        sandbox: Sandbox,
        hold: Hold,
    ) -> Result<(), Problem> {
        let _turn = entry.turn.lock().await;
        let mut record = LabelRecord { ready: true, ..entry.record() };
        if let Some(lifetime) = lifetime {
            record.expires_ms = now_ms().saturating_add(millis(lifetime));
        }
        let labels = changed_labels(begun, &record);
        self.shared.sandboxes.backend().relabel(&sandbox.placed.id, labels).await?;
        self.remember(record.clone(), None).await?;
        *entry.record.lock() = record;
        entry.touch();
        // One that was deleted meanwhile goes with `hold`.
        if entry.transition(EntryState::Running(Box::new(sandbox))) {
            hold.release();
        }
        Ok(())
    }
}

/// Whether a key may hold these too, whose checkpoints have `kept` bytes.
fn within(key: &Key, mut used: Used, kept: u64, more: &[Wanted]) -> Result<(), Problem> {
    for wanted in more {
        used.add(Used::of(&wanted.spec));
    }
    used.disk = used.disk.saturating_add(kept);
    let over = |what: &str, would: String, most: String| {
        Err(Problem::new(
            Code::QuotaExceeded,
            format!("this would bring the key to {would} {what}; its quota is {most}"),
        )
        .hint("delete sandboxes you no longer need; `GET /resources` shows what the key uses"))
    };
    let size = |bytes| SizeText(bytes).to_string();
    let quotas = &key.quotas;
    match (quotas.sandboxes, quotas.cpu, quotas.memory, quotas.disk) {
        _ if more.is_empty() => Ok(()),
        (Some(most), ..) if used.sandboxes > most => {
            over("sandboxes", used.sandboxes.to_string(), most.to_string())
        }
        (_, Some(most), ..) if used.cpu > most => over("cores", used.cpu.to_string(), most.to_string()),
        (_, _, Some(most), _) if used.memory > most => over("of memory", size(used.memory), size(most)),
        (.., Some(most)) if used.disk > most => {
            over("of disk, checkpoints included", size(used.disk), size(most))
        }
        _ => Ok(()),
    }
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
