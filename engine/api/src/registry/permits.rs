//! Permits to make sandboxes: so many at once, fair by key. A key has no more of them than are free, and of the keys that wait, the
//! one that has the fewest is next, then the one that had its last the longest ago.

use crate::shares::fits;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tokio::sync::oneshot;

/// Those who have gone are looked for among the waiting of a key when it has so many more.
const LOOKED_AT_EVERY: usize = 64;

/// The permits. Clones are handles to the same.
#[derive(Clone)]
pub(super) struct Permits {
    most: u64,
    state: Arc<Mutex<PermitsState>>,
}

#[derive(Default)]
struct PermitsState {
    given: u64,
    /// Counts who begins to wait and who is served.
    turn: u64,
    keys: HashMap<Arc<str>, KeyPermits>,
}

#[derive(Default)]
struct KeyPermits {
    given: u64,
    /// When it had one last, in turns; 0: not since it began to wait.
    served: u64,
    /// Bounded by the bound on sandboxes: each waits for one.
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    turn: u64,
    sender: oneshot::Sender<Permit>,
}

/// One permit; given back when dropped.
pub(super) struct Permit {
    permits: Permits,
    key: Arc<str>,
}

impl Permits {
    /// So many for all keys together, at least one.
    pub(super) fn new(most: usize) -> Permits {
        Permits { most: (most as u64).max(1), state: Arc::default() }
    }

    /// One for this key, when it is its turn. Who drops this waits no more.
    pub(super) async fn take(&self, key: &Arc<str>) -> Permit {
        let (sender, receiver) = oneshot::channel();
        {
            let mut state = self.state();
            state.turn = state.turn.saturating_add(1);
            let turn = state.turn;
            let waiting = &mut state.keys.entry(Arc::clone(key)).or_default().waiting;
            if waiting.len() % LOOKED_AT_EVERY == LOOKED_AT_EVERY - 1 {
                waiting.retain(|waiting| !waiting.sender.is_closed());
            }
            waiting.push_back(Waiting { turn, sender });
        }
        self.give();
        receiver.await.expect("a sender stays in the queue until it has sent")
    }

    /// Gives out what there is to those whose turn it is.
    fn give(&self) {
        loop {
            // Not in a `while let`, which would hold the state while a permit goes back.
            let next = self.state().next(self.most);
            let Some((key, sender)) = next else { return };
            let permit = Permit { permits: self.clone(), key };
            // Who has gone by now leaves the permit here, and it goes back.
            drop(sender.send(permit));
        }
    }

    fn state(&self) -> MutexGuard<'_, PermitsState> {
        self.state.lock()
    }
}

impl PermitsState {
    /// Who has the next permit, which counts as given from here on.
    fn next(&mut self, most: u64) -> Option<(Arc<str>, oneshot::Sender<Permit>)> {
        let free = most.saturating_sub(self.given);
        if free == 0 {
            return None;
        }
        for of_key in self.keys.values_mut() {
            while of_key.waiting.front().is_some_and(|waiting| waiting.sender.is_closed()) {
                of_key.waiting.pop_front();
            }
        }
        self.keys.retain(|_, of_key| of_key.given > 0 || !of_key.waiting.is_empty());
        let may = |of_key: &KeyPermits| of_key.given == 0 || fits(of_key.given, 1, free);
        let turns = self.keys.iter().filter(|(_, of_key)| may(of_key)).filter_map(|(key, of_key)| {
            Some(((of_key.given, of_key.served, of_key.waiting.front()?.turn), Arc::clone(key)))
        });
        let (_, key) = turns.min()?;
        let of_key = self.keys.get_mut(&key)?;
        let waiting = of_key.waiting.pop_front()?;
        self.turn = self.turn.saturating_add(1);
        of_key.served = self.turn;
        of_key.given = of_key.given.saturating_add(1);
        self.given = self.given.saturating_add(1);
        Some((key, waiting.sender))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        {
            let mut state = self.permits.state();
            state.given = state.given.saturating_sub(1);
            if let Some(of_key) = state.keys.get_mut(&self.key) {
                of_key.given = of_key.given.saturating_sub(1);
            }
        }
        self.permits.give();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use futures::future::BoxFuture;

    /// Permits, those who wait for one, in order, and those who have one, by key.
    struct Queue {
        permits: Permits,
        waiting: Vec<(&'static str, BoxFuture<'static, Permit>)>,
        given: Vec<(&'static str, Permit)>,
    }

    impl Queue {
        fn new(most: usize) -> Queue {
            Queue { permits: Permits::new(most), waiting: Vec::new(), given: Vec::new() }
        }

        fn ask(&mut self, key: &'static str, count: usize) {
            for _ in 0..count {
                let permits = self.permits.clone();
                self.waiting.push((key, async move { permits.take(&key.into()).await }.boxed()));
            }
            self.look();
        }

        fn give_back(&mut self, key: &str) {
            let at = self.given.iter().position(|(of, _)| *of == key).unwrap();
            self.given.remove(at);
            self.look();
        }

        fn look(&mut self) {
            let mut still = Vec::new();
            for (key, mut waiting) in std::mem::take(&mut self.waiting) {
                match (&mut waiting).now_or_never() {
                    Some(permit) => self.given.push((key, permit)),
                    None => still.push((key, waiting)),
                }
            }
            self.waiting = still;
        }

        fn has(&self, key: &str) -> usize {
            self.given.iter().filter(|(of, _)| *of == key).count()
        }
    }

    #[test]
    fn one_key_cannot_have_all_and_another_never_waits_for_it() {
        let mut queue = Queue::new(50);
        queue.ask("a", 200);
        assert_eq!(queue.has("a"), 25);
        queue.ask("b", 1);
        assert_eq!(queue.has("b"), 1);
        queue.ask("b", 99);
        assert_eq!((queue.has("a"), queue.has("b")), (25, 12));
        queue.ask("c", 1);
        assert_eq!(queue.has("c"), 1);
    }

    #[test]
    fn what_is_given_back_goes_to_who_has_the_fewest() {
        let mut queue = Queue::new(8);
        queue.ask("a", 10);
        queue.ask("b", 10);
        queue.ask("c", 2);
        assert_eq!((queue.has("a"), queue.has("b"), queue.has("c")), (4, 2, 1));
        for (back, expect) in
            [("a", (3, 2, 1)), ("a", (2, 2, 2)), ("c", (2, 2, 1)), ("c", (3, 2, 0)), ("b", (3, 2, 0))]
        {
            queue.give_back(back);
            assert_eq!((queue.has("a"), queue.has("b"), queue.has("c")), expect, "after {back}");
        }
    }

    #[test]
    fn a_single_permit_goes_around() {
        let mut queue = Queue::new(1);
        queue.ask("a", 3);
        queue.ask("b", 1);
        assert_eq!((queue.has("a"), queue.has("b")), (1, 0));
        for (back, expect) in [("a", (0, 1)), ("b", (1, 0)), ("a", (1, 0))] {
            queue.give_back(back);
            assert_eq!((queue.has("a"), queue.has("b")), expect, "after {back}");
        }
    }

    #[test]
    fn who_has_gone_holds_nothing() {
        let mut queue = Queue::new(2);
        queue.ask("a", 500);
        queue.waiting.truncate(1);
        queue.give_back("a");
        assert_eq!(queue.has("a"), 1);
        queue.given.clear();
        queue.waiting.clear();
        queue.ask("b", 1);
        queue.ask("c", 1);
        assert_eq!((queue.has("b"), queue.has("c")), (1, 1));
        queue.given.clear();
        // The next who asks finds a clean table.
        queue.ask("d", 1);
        let state = queue.permits.state();
        let found = (state.given, state.keys.len());
        drop(state);
        assert_eq!(found, (1, 1));
    }
}
