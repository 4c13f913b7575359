//! Sandboxes as engines see them: in lists, and by their labels.

use super::{Phase, Sandbox, SandboxTable, unknown};
use crate::wire::{Listed, PAGE_BYTES, Page, Refusal, SandboxRecord};
use std::collections::BTreeMap;
use std::ops::Bound;

impl SandboxTable {
    /// A page of those that take calls.
    pub(in super::super) fn list(&self, after: &str, brief: bool) -> Page<Listed> {
        page(after, &self.sandboxes, |sandbox| sandbox.listed(brief))
    }

    /// One that takes calls.
    pub(in super::super) fn find(&self, id: &str) -> Option<Listed> {
        self.sandboxes.get(id).and_then(|sandbox| sandbox.listed(false))
    }

    /// Sets labels; `None` removes one. All of them or none.
    pub(in super::super) fn label(
        &mut self,
        id: &str,
        labels: BTreeMap<String, Option<String>>,
    ) -> Result<(), Refusal> {
        let sandbox = self.sandboxes.get(id).ok_or_else(|| unknown(id))?;
        let mut record = sandbox.record.clone();
        for (name, value) in labels {
            match value {
                Some(value) => record.order.labels.insert(name, value),
                None => record.order.labels.remove(&name),
            };
        }
        self.home.write_record(&record).map_err(|error| self.refuse("its record", &error))?;
        if let Some(sandbox) = self.sandboxes.get_mut(id) {
            sandbox.record = record;
        }
        Ok(())
    }
}

impl Sandbox {
    /// As lists show it; `None`: it takes no calls.
    pub(super) fn listed(&self, brief: bool) -> Option<Listed> {
        let SandboxRecord { order, created_s, pid, suspended, .. } = &self.record;
        matches!(self.state, Phase::Running).then(|| Listed {
            id: order.id.clone(),
            secret: order.secret.clone(),
            labels: if brief { BTreeMap::new() } else { order.labels.clone() },
            created_s: *created_s,
            pid: *pid,
            suspended: *suspended,
        })
    }
}

/// Entries of a map after an id, until they are long enough together.
pub(super) fn page<T, E: serde::Serialize>(
    after: &str,
    all: &BTreeMap<String, T>,
    entry: impl Fn(&T) -> Option<E>,
) -> Page<E> {
    let (mut entries, mut bytes) = (Vec::new(), 0);
    for value in all.range::<str, _>((Bound::Excluded(after), Bound::Unbounded)).map(|(_, value)| value) {
        let Some(entry) = entry(value) else { continue };
        if bytes > PAGE_BYTES {
            return Page { entries, more: true };
        }
        bytes += serde_json::to_vec(&entry).map_or(0, |text| text.len());
        entries.push(entry);
    }
    Page { entries, more: false }
}
