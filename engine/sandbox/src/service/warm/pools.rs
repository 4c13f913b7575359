//! How many sandboxes of which kind are kept ready: pure, with one bound for all.

use crate::service::Purpose;
use espalier_core::sandbox::SandboxSpec;
use sha2::{Digest, Sha256};
use std::collections::{HashMap, VecDeque};

/// All that makes one sandbox like another: spec, lease, promises, whose image it may be; as a hash, since a spec holds files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::service) struct Kind([u8; 32]);

impl Kind {
    pub(in crate::service) fn of(spec: &SandboxSpec, purpose: &Purpose) -> Kind {
        let like = (spec, purpose.lease.as_millis(), &purpose.require, purpose.registry_credentials);
        Kind(Sha256::digest(serde_json::to_vec(&like).unwrap_or_default()).into())
    }
}

/// What is ready, by kind. Each use makes one more of its kind wanted: so there are as many of a kind as are asked for at once, and
/// kinds that take turns keep theirs as long as the bound has room for all. Where it has not, the kind goes first that was used
/// least recently.
#[derive(Debug)]
pub(in crate::service) struct Pools<T> {
    /// Maximum number of sandboxes of all kinds, including those being created.
    bound: usize,
    /// Those with something in them, so no more than the bound.
    kinds: HashMap<Kind, Pool<T>>,
    uses: u64,
}

#[derive(Debug)]
struct Pool<T> {
    /// The last of all uses that was of it.
    used: u64,
    /// Being made.
    coming: usize,
    /// Oldest first.
    ready: VecDeque<T>,
}

/// What a use leads to.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::service) struct Wanted<T> {
    /// Whether one is to be made; it counts as coming from here on.
    pub(in crate::service) make: bool,
    /// To be ended.
    pub(in crate::service) surplus: Option<T>,
}

impl<T> Default for Pools<T> {
    fn default() -> Pools<T> {
        Pools { bound: 0, kinds: HashMap::new(), uses: 0 }
    }
}

impl<T> Pools<T> {
    /// How many are kept from now on; gives what is too many.
    pub(in crate::service) fn bound(&mut self, count: usize) -> Vec<T> {
        self.bound = count;
        let mut surplus = Vec::new();
        while self.count() > self.bound
            && let Some(one) = self.take_from_oldest(None)
        {
            surplus.push(one);
        }
        surplus
    }

    /// One that is ready.
    pub(in crate::service) fn take(&mut self, kind: &Kind) -> Option<T> {
        let one = self.kinds.get_mut(kind)?.ready.pop_front();
        self.drop_empty();
        one
    }

    /// A sandbox of this kind was used.
    pub(in crate::service) fn wanted(&mut self, kind: &Kind) -> Wanted<T> {
        self.uses += 1;
        if let Some(pool) = self.kinds.get_mut(kind) {
            pool.used = self.uses;
        }
        let is_full = self.count() >= self.bound;
        let surplus = if is_full { self.take_from_oldest(Some(kind)) } else { None };
        let make = self.count() < self.bound;
        if make {
            let new = Pool { used: self.uses, coming: 0, ready: VecDeque::new() };
            self.kinds.entry(*kind).or_insert(new).coming += 1;
        }
        Wanted { make, surplus }
    }

    /// One that has been made, or could not be. Given back: it is wanted no more.
    pub(in crate::service) fn put(&mut self, kind: Kind, made: Option<T>) -> Option<T> {
        if let Some(pool) = self.kinds.get_mut(&kind) {
            pool.coming = pool.coming.saturating_sub(1);
        }
        let has_room = self.count() < self.bound;
        match (made, self.kinds.get_mut(&kind)) {
            (Some(made), Some(pool)) if has_room => {
                pool.ready.push_back(made);
                None
            }
            (made, _) => {
                self.drop_empty();
                made
            }
        }
    }

    /// These have ended by themselves.
    pub(in crate::service) fn forget(&mut self, is_over: impl Fn(&T) -> bool) {
        for pool in self.kinds.values_mut() {
            pool.ready.retain(|one| !is_over(one));
        }
        self.drop_empty();
    }

    /// How many can be taken.
    pub(in crate::service) fn ready(&self) -> usize {
        self.kinds.values().map(|pool| pool.ready.len()).sum()
    }

    fn count(&self) -> usize {
        self.kinds.values().map(|pool| pool.coming + pool.ready.len()).sum()
    }

    /// One of the kind that was used least recently, but of this.
    fn take_from_oldest(&mut self, but: Option<&Kind>) -> Option<T> {
        let others =
            self.kinds.iter_mut().filter(|(kind, pool)| Some(*kind) != but && !pool.ready.is_empty());
        let one = others.min_by_key(|(_, pool)| pool.used)?.1.ready.pop_front();
        self.drop_empty();
        one
    }

    fn drop_empty(&mut self) {
        self.kinds.retain(|_, pool| pool.coming > 0 || !pool.ready.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(name: &str) -> Kind {
        let spec = SandboxSpec { image: name.to_owned(), ..SandboxSpec::default() };
        Kind::of(&spec, &Purpose::new("test"))
    }

    /// Uses sandboxes of these kinds, one after the other, and makes at once what is wanted. Says which found one ready (in upper
    /// case), and what is ready in the end.
    fn play(bound: usize, uses: &str) -> (String, String) {
        let mut pools = Pools::default();
        assert!(pools.bound(bound).is_empty());
        let mut found = String::new();
        for letter in uses.chars() {
            let kind = kind(&letter.to_string());
            let ready = pools.take(&kind);
            found.push(if ready.is_some() { letter.to_ascii_uppercase() } else { letter });
            let wanted = pools.wanted(&kind);
            if wanted.make {
                assert_eq!(pools.put(kind, Some(letter)), None);
            }
            assert!(pools.count() <= bound && pools.kinds.len() <= bound, "{uses}");
        }
        let mut left: Vec<char> = pools.bound(0);
        left.sort_unstable();
        assert!(pools.kinds.is_empty());
        (found, left.into_iter().collect())
    }

    #[test]
    fn as_many_are_ready_as_the_bound_says_and_those_that_were_used_last() {
        for (bound, uses, found, left) in [
            (0, "aa", "aa", ""),
            (1, "aaa", "aAA", "a"),
            (1, "abab", "abab", "b"),
            (2, "ababab", "abABAB", "ab"),
            (2, "abcabc", "abcabc", "bc"),
            (3, "abcabcd", "abcABCd", "bcd"),
            (4, "abbbbbc", "abBBBBc", "abc"),
        ] {
            assert_eq!(play(bound, uses), (found.to_owned(), left.to_owned()), "{bound} {uses}");
        }
    }

    #[test]
    fn what_is_being_made_counts_and_is_given_back_where_it_is_too_much() {
        let mut pools = Pools::default();
        pools.bound(2);
        let (a, b) = (kind("a"), kind("b"));
        assert!(pools.wanted(&a).make && pools.wanted(&a).make);
        assert_eq!(pools.wanted(&a), Wanted { make: false, surplus: None }, "two come already");
        assert_eq!(pools.wanted(&b), Wanted { make: false, surplus: None }, "nothing is there to give way");
        assert_eq!(pools.put(a, Some("one")), None);
        assert_eq!(pools.wanted(&b), Wanted { make: true, surplus: Some("one") });
        assert_eq!(pools.put(a, None), None, "it could not be made");
        assert!(pools.bound(0).is_empty());
        assert_eq!(pools.put(b, Some("two")), Some("two"), "wanted no more");
        assert!(pools.kinds.is_empty());
    }

    #[test]
    fn one_that_ended_by_itself_is_not_given_and_leaves_its_place() {
        let mut pools = Pools::default();
        pools.bound(1);
        let a = kind("a");
        assert!(pools.wanted(&a).make);
        pools.put(a, Some("one"));
        pools.forget(|one| *one == "one");
        assert_eq!(pools.take(&a), None);
        assert!(pools.wanted(&a).make);
    }

    #[test]
    fn kinds_are_told_apart_by_all_that_makes_them_alike() {
        let (spec, purpose) = (SandboxSpec::default(), Purpose::new("one"));
        let one = Kind::of(&spec, &purpose);
        assert_eq!(one, Kind::of(&spec, &Purpose::new("another")));
        let long = Purpose { lease: std::time::Duration::from_secs(61), ..Purpose::new("one") };
        let strict = Purpose { require: vec!["memory-limit".to_owned()], ..Purpose::new("one") };
        let other = SandboxSpec { setup: vec!["true".to_owned()], ..spec.clone() };
        for different in [Kind::of(&spec, &long), Kind::of(&spec, &strict), Kind::of(&other, &purpose)] {
            assert_ne!(one, different);
        }
    }
}
