//! What one key has: its sandboxes, those that are over for a while, and the requests that made them by their names.

use super::{Entry, EntryState, LabelRecord};
use espalier_core::sandbox::{Network, SandboxSpec};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

/// Sandboxes that are over and still shown; where there are twice as many, the oldest are forgotten.
const OVER_MAX: usize = 1_000;
/// Bytes of them; the same.
const OVER_BYTES_MAX: usize = 4 << 20;

/// What a key holds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Used {
    /// Sandboxes that are being made or run.
    pub sandboxes: u64,
    /// Cores.
    pub cpu: f64,
    /// Bytes.
    pub memory: u64,
    /// Bytes of disk: what its sandboxes may write.
    pub disk: u64,
}

impl Used {
    /// By one sandbox.
    pub(super) fn of(spec: &SandboxSpec) -> Used {
        Used { sandboxes: 1, cpu: spec.cpu, memory: spec.memory, disk: spec.disk }
    }

    /// With what is held besides.
    pub(super) fn add(&mut self, more: Used) {
        self.sandboxes = self.sandboxes.saturating_add(more.sandboxes);
        self.cpu += more.cpu;
        self.memory = self.memory.saturating_add(more.memory);
        self.disk = self.disk.saturating_add(more.disk);
    }
}

/// A sandbox's place in lists: the newest first.
pub(crate) type Place = (Reverse<u64>, String);

impl Entry {
    /// Where it stands in lists, for ever.
    pub(crate) fn place(&self) -> Place {
        let record = self.record.lock();
        (Reverse(record.created_ms), record.id.clone())
    }
}

/// What labels take in memory, nearly.
pub(super) fn label_bytes(labels: &BTreeMap<String, String>) -> usize {
    labels.iter().map(|(name, value)| 64 + name.len() + value.len()).sum()
}

impl LabelRecord {
    /// What is kept of it while it is shown, nearly.
    fn bytes(&self) -> usize {
        let labels = label_bytes(&self.labels);
        let network = match &self.spec.network {
            Network::Allow(rules) => rules.iter().map(|rule| 24 + rule.len()).sum(),
            _ => 0,
        };
        512 + self.spec.image.len() + labels + network
    }
}

/// What one key has.
#[derive(Default)]
pub(super) struct Tenant {
    by_id: HashMap<String, Arc<Entry>>,
    /// By the name of the request that made them, and its part.
    by_request: HashMap<String, BTreeMap<u32, Arc<Entry>>>,
    /// Held from looking for what a request has made until it is being made.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Tenant {
    pub(super) fn get(&self, id: &str) -> Option<Arc<Entry>> {
        self.by_id.get(id).cloned()
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.by_id.values()
    }

    pub(super) fn turn(&self) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(&self.turn)
    }

    /// A sandbox more; one of the same id is forgotten.
    pub(super) fn insert(&mut self, entry: &Arc<Entry>) {
        let record = entry.record();
        self.forget(&record.id);
        if let Some((name, _)) = record.request {
            self.by_request.entry(name).or_default().insert(record.part, Arc::clone(entry));
        }
        self.by_id.insert(record.id, Arc::clone(entry));
    }

    fn forget(&mut self, id: &str) {
        let Some(entry) = self.by_id.remove(id) else { return };
        let Some((name, _)) = entry.record().request else { return };
        if let Some(parts) = self.by_request.get_mut(&name) {
            parts.retain(|_, part| !Arc::ptr_eq(part, &entry));
            if parts.is_empty() {
                self.by_request.remove(&name);
            }
        }
    }

    /// Keeps those that fit; whether it has something left, or somebody looks something up in it.
    pub(super) fn retain(&mut self, fits: impl Fn(&Entry) -> bool) -> bool {
        let gone: Vec<String> =
            self.by_id.iter().filter(|(_, entry)| !fits(entry)).map(|(id, _)| id.clone()).collect();
        gone.iter().for_each(|id| self.forget(id));
        !self.by_id.is_empty() || Arc::strong_count(&self.turn) > 1
    }

    /// What the request of this name has made, by its parts.
    pub(super) fn by_request(&self, name: &str) -> Option<&BTreeMap<u32, Arc<Entry>>> {
        self.by_request.get(name)
    }

    /// What it holds: sandboxes that are over are not counted.
    pub(super) fn used(&self) -> Used {
        let mut used = Used::default();
        for entry in self.entries().filter(|entry| !entry.state.borrow().is_over()) {
            let record = entry.record.lock();
            used.add(Used::of(&record.spec));
        }
        used
    }

    /// Forgets the oldest of those that are over, where they are many or large.
    pub(super) fn forget_old(&mut self) {
        let over = |entry: &Entry| match &*entry.state.borrow() {
            EntryState::Failed(problem, at) if entry.left.lock().is_none() => {
                Some((*at, problem.detail.len()))
            }
            EntryState::Ended(how, at) if entry.left.lock().is_none() => Some((*at, how.len())),
            _ => None,
        };
        let mut ended: Vec<(Instant, usize, String)> = self
            .by_id
            .iter()
            .filter_map(|(id, entry)| {
                let (at, said) = over(entry)?;
                Some((at, said + entry.record.lock().bytes(), id.clone()))
            })
            .collect();
        let bytes: usize = ended.iter().map(|(_, bytes, _)| bytes).sum();
        if ended.len() <= 2 * OVER_MAX && bytes <= 2 * OVER_BYTES_MAX {
            return;
        }
        ended.sort_by(|one, other| other.cmp(one));
        let mut kept = 0;
        for (number, (_, bytes, id)) in ended.iter().enumerate() {
            kept += bytes;
            if number >= OVER_MAX || kept > OVER_BYTES_MAX {
                self.forget(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Code, Problem};

    fn entry(number: usize, image: &str, state: EntryState) -> Arc<Entry> {
        let record = LabelRecord {
            owner: "key".into(),
            id: format!("s{number}"),
            name: None,
            spec: SandboxSpec {
                image: image.to_owned(),
                cpu: 0.5,
                memory: u64::MAX,
                disk: u64::MAX / 2,
                ..SandboxSpec::default()
            },
            labels: BTreeMap::new(),
            created_ms: number as u64,
            expires_ms: u64::MAX,
            idle_s: None,
            request: Some((format!("r{}", number / 2), String::new())),
            part: (number % 2) as u32,
            lease_ms: None,
            ready: false,
        };
        Entry::new(record, state)
    }

    fn failed() -> EntryState {
        EntryState::Failed(Problem::new(Code::Invalid, "why"), Instant::now())
    }

    #[test]
    fn what_is_over_is_bounded_in_number_and_bytes() {
        for (image, least, most) in [("x", OVER_MAX, 2 * OVER_MAX + 1), (&"x".repeat(100_000), 39, 84)] {
            let mut tenant = Tenant::default();
            tenant.insert(&entry(0, image, EntryState::Creating));
            for number in 1..=5_000 {
                tenant.insert(&entry(number, image, failed()));
                tenant.forget_old();
                let over = tenant.by_id.len() - 1;
                assert!(over <= most && (number <= least || over >= least), "{over} after {number}");
            }
            // The newest are kept, and what is not over; what is forgotten is found by no name.
            assert!(
                tenant.get("s5000").is_some() && tenant.get("s0").is_some() && tenant.get("s1").is_none()
            );
            assert!(tenant.by_request("r2500").is_some() && tenant.by_request("r1").is_none());
            assert_eq!(tenant.by_request("r0").unwrap().len(), 1);
            assert!(tenant.retain(|entry| entry.place().0.0 == 0));
            assert_eq!((tenant.by_id.len(), tenant.by_request.len()), (1, 1));
        }
    }

    #[test]
    fn what_is_held_does_not_overflow() {
        let mut tenant = Tenant::default();
        (0..3).for_each(|number| tenant.insert(&entry(number, "x", EntryState::Creating)));
        tenant.insert(&entry(3, "x", failed()));
        assert_eq!(tenant.used(), Used { sandboxes: 3, cpu: 1.5, memory: u64::MAX, disk: u64::MAX });
    }
}
