//! Ids of changing calls: allotted here, one counter for each sandbox and client, with the floor below which none is new.

use espalier_agent_protocol::v1::Id;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeSet;

/// Who calls.
#[derive(Clone, Debug)]
pub struct Identity {
    /// A rollout or a session; up to 128 bytes.
    pub client: String,
    /// A higher one ends all lower ones of this client in this sandbox.
    pub epoch: u64,
    /// The first sequence to allot, from 1. After a restart: one above the highest in the journal.
    pub next: u64,
    /// Sequences below `next` that may still be sent for the first time: journaled calls without a result.
    pub unfinished: Vec<u64>,
}

impl Identity {
    /// A client that was never here before.
    pub fn new(client: impl Into<String>) -> Identity {
        Identity { client: client.into(), epoch: 1, next: 1, unfinished: Vec::new() }
    }
}

/// The counter, and which of its numbers may still be sent for the first time.
#[derive(Debug)]
pub(crate) struct Ids {
    client: String,
    epoch: u64,
    open: Mutex<Open>,
}

#[derive(Debug)]
struct Open {
    next: u64,
    unsent: BTreeSet<u64>,
}

impl Ids {
    pub(crate) fn new(identity: Identity) -> Ids {
        let Identity { client, epoch, next, unfinished } = identity;
        let open = Open { next: next.max(1), unsent: unfinished.into_iter().collect() };
        Ids { client, epoch, open: Mutex::new(open) }
    }

    pub(crate) fn allot(&self) -> Id {
        let mut open = self.lock();
        let sequence = open.next;
        open.next += 1;
        open.unsent.insert(sequence);
        Id { client: self.client.clone(), epoch: self.epoch, sequence }
    }

    /// The id with this sequence, which the caller chose above all before.
    pub(crate) fn claim(&self, sequence: u64) -> Id {
        let mut open = self.lock();
        open.next = open.next.max(sequence.saturating_add(1));
        open.unsent.insert(sequence);
        Id { client: self.client.clone(), epoch: self.epoch, sequence }
    }

    /// No new id will be sent at or below it.
    pub(crate) fn floor(&self) -> u64 {
        let open = self.lock();
        open.unsent.first().copied().unwrap_or(open.next) - 1
    }

    /// The call has its answer, or will never be made.
    pub(crate) fn settle(&self, id: &Id) {
        if id.client == self.client && id.epoch == self.epoch {
            self.lock().unsent.remove(&id.sequence);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_lies_below_the_first_call_that_may_still_be_new() {
        let ids = Ids::new(Identity { next: 8, unfinished: vec![3], ..Identity::new("r") });
        assert_eq!(ids.floor(), 2);
        let (eight, nine) = (ids.allot(), ids.allot());
        assert_eq!((eight.sequence, nine.sequence), (8, 9));
        ids.settle(&Id { sequence: 3, ..eight.clone() });
        assert_eq!(ids.floor(), 7);
        ids.settle(&nine);
        assert_eq!(ids.floor(), 7);
        ids.settle(&eight);
        assert_eq!(ids.floor(), 9);
        let (hundred, next) = (ids.claim(100), ids.claim(101));
        assert_eq!(ids.floor(), 99);
        ids.settle(&hundred);
        assert_eq!((ids.floor(), ids.allot().sequence), (100, 102));
        ids.settle(&next);
        assert_eq!(ids.floor(), 101);
    }
}
