//! What was deleted before it was there: a creation that arrives after its deletion makes nothing. Both may come over different
//! connections, so their order says nothing.

use crate::keeper::home;
use std::collections::{HashSet, VecDeque};

/// As many are remembered; creations are late by the time of a reconnection.
const MOST: usize = 4096;

/// See the module. Ids are never used twice, so nothing else is kept from being made.
#[derive(Debug, Default)]
pub(super) struct Gone {
    ids: HashSet<String>,
    /// Oldest first.
    order: VecDeque<String>,
}

impl Gone {
    /// Remembers one, in place of the oldest where there are too many.
    pub(super) fn add(&mut self, id: &str) {
        if !home::is_name(id) || !self.ids.insert(id.to_owned()) {
            return;
        }
        self.order.push_back(id.to_owned());
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
    }

    /// Whether it is remembered.
    pub(super) fn contains(&self, id: &str) -> bool {
        self.ids.contains(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_are_remembered_each_once_and_no_more_than_the_bound() {
        let mut gone = Gone::default();
        for number in 0..MOST + 10 {
            gone.add(&format!("id-{number}"));
            gone.add("id-5");
        }
        gone.add(&"x".repeat(10_000));
        gone.add("../../etc");
        assert_eq!((gone.ids.len(), gone.order.len()), (MOST, MOST));
        let forgotten = gone.contains("id-3");
        assert!(!forgotten && gone.contains(&format!("id-{}", MOST + 9)));
    }
}
