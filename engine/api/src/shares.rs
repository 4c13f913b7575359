//! [`Shares`]: what keys hold of something that there is a bounded amount of, as memory. A key may hold as much as is still free:
//! alone half of it, two keys a third each; so something is free for the next key whatever the others hold.

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;

/// Whether a key that holds so much may take more, where so much is free: it may then hold no more than is free after that.
pub(crate) fn fits(held: u64, more: u64, free: u64) -> bool {
    free.checked_sub(more).is_some_and(|left| held.checked_add(more).is_some_and(|would| would <= left))
}

/// An amount that keys share. Clones are handles to the same.
#[derive(Clone)]
pub(crate) struct Shares {
    most: u64,
    held: Arc<Mutex<Held>>,
}

#[derive(Default)]
struct Held {
    all: u64,
    by_key: HashMap<Arc<str>, u64>,
}

/// What one holder has of it; given back when dropped.
pub(crate) struct Share {
    shares: Shares,
    key: Arc<str>,
    amount: u64,
}

impl Shares {
    /// So much for all keys together.
    pub(crate) fn new(most: u64) -> Shares {
        Shares { most, held: Arc::default() }
    }

    /// Nothing yet, for this key.
    pub(crate) fn share(&self, key: &Arc<str>) -> Share {
        Share { shares: self.clone(), key: Arc::clone(key), amount: 0 }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock()
    }
}

impl Share {
    /// Whether it could take so much more now.
    pub(crate) fn has_room(&self, more: u64) -> bool {
        let held = self.shares.held();
        let of_key = held.by_key.get(&self.key).copied().unwrap_or_default();
        fits(of_key, more, self.shares.most.saturating_sub(held.all))
    }

    /// Takes more; false, and nothing is taken, where the key would hold more than is free.
    pub(crate) fn grow(&mut self, more: u64) -> bool {
        let mut held = self.shares.held();
        let free = self.shares.most.saturating_sub(held.all);
        let of_key = held.by_key.get(&self.key).copied().unwrap_or_default();
        if !fits(of_key, more, free) {
            return false;
        }
        held.all = held.all.saturating_add(more);
        held.by_key.insert(Arc::clone(&self.key), of_key.saturating_add(more));
        self.amount = self.amount.saturating_add(more);
        true
    }

    /// Gives all of it back.
    pub(crate) fn give_back(&mut self) {
        let amount = std::mem::take(&mut self.amount);
        let mut held = self.shares.held();
        held.all = held.all.saturating_sub(amount);
        if let Some(of_key) = held.by_key.get_mut(&self.key) {
            *of_key = of_key.saturating_sub(amount);
            if *of_key == 0 {
                held.by_key.remove(&self.key);
            }
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_holds_no_more_than_it_leaves_free() {
        let shares = Shares::new(120);
        let take = {
            let shares = shares.clone();
            move |key: &str, amount| {
                let mut share = shares.share(&key.into());
                share.grow(amount).then_some(share)
            }
        };
        let alone: Vec<Share> = std::iter::from_fn(|| take("a", 10)).collect();
        assert_eq!(alone.len(), 6, "half of it");
        let second: Vec<Share> = std::iter::from_fn(|| take("b", 10)).collect();
        assert_eq!(second.len(), 3, "half of what is left");
        assert!(take("a", 10).is_none() && take("b", 10).is_none());
        // Whatever they hold, there is some for another.
        let third = take("c", 15);
        assert!(third.is_some());
        drop((alone, second, third));
        assert_eq!(std::iter::from_fn(|| take("d", 1)).collect::<Vec<Share>>().len(), 60);
        assert_eq!(shares.held().all, 0);
        assert!(shares.held().by_key.is_empty());
    }

    #[test]
    fn no_amount_overflows() {
        let shares = Shares::new(u64::MAX);
        let mut share = shares.share(&"a".into());
        assert!(!share.grow(u64::MAX) && share.grow(u64::MAX / 2) && !share.grow(1));
        assert!(!shares.share(&"b".into()).has_room(u64::MAX) && shares.share(&"b".into()).has_room(1));
        share.give_back();
        assert!(share.grow(1));
    }
}
