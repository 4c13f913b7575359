//! Which ids were seen: per client the current epoch, its floor, and the sequences above the floor. Pure; what was answered to
//! an id is kept in `records`.

use std::collections::{BTreeMap, HashMap};

/// Most clients in the life of a sandbox. A forgotten client's ids could run twice, so none is ever forgotten.
const CLIENTS_MAX: usize = 4096;
/// Most runs of neighbouring sequences above a floor. Clients that keep their floor up need a handful.
const RANGES_MAX: usize = 4096;

/// Names a changing call.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Who calls.
    pub client: String,
    /// A higher one ends the lower ones.
    pub epoch: u64,
    /// From 1.
    pub sequence: u64,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It was never seen: it is seen now, and runs.
    New,
    /// It is recorded: answer from there.
    Recorded,
    /// Its epoch is over.
    OldEpoch,
    /// At or below the floor, without a record.
    BelowFloor,
    /// It was seen; its record is gone.
    Forgotten,
    /// Too many clients or gaps: nothing was noted, nothing runs.
    Full,
}

/// All ids of this boot.
#[derive(Debug, Default)]
pub struct Ids {
    clients: HashMap<String, Client>,
}

#[derive(Debug)]
struct Client {
    epoch: u64,
    floor: u64,
    seen: Ranges,
}

impl Ids {
    /// Decides about a call and notes its id where it is new. `recorded`: whether there is a record of it.
    pub fn admit(&mut self, key: &Key, floor: u64, recorded: bool) -> Admission {
        if !self.clients.contains_key(&key.client) {
            if self.clients.len() >= CLIENTS_MAX {
                return Admission::Full;
            }
            let client = Client { epoch: key.epoch, floor: 0, seen: Ranges::default() };
            self.clients.insert(key.client.clone(), client);
        }
        let Some(client) = self.clients.get_mut(&key.client) else { return Admission::Full };
        if key.epoch > client.epoch {
            *client = Client { epoch: key.epoch, floor: 0, seen: Ranges::default() };
        }
        if key.epoch == client.epoch && floor > client.floor {
            client.floor = floor;
            client.seen.drop_to(floor);
        }
        if recorded {
            Admission::Recorded
        } else if key.epoch < client.epoch {
            Admission::OldEpoch
        } else if key.sequence <= client.floor {
            Admission::BelowFloor
        } else if client.seen.contains(key.sequence) {
            Admission::Forgotten
        } else if client.seen.insert(key.sequence) {
            Admission::New
        } else {
            Admission::Full
        }
    }

    /// A call that was new has done nothing and never will: its id may come again.
    pub fn release(&mut self, key: &Key) {
        if let Some(client) = self.clients.get_mut(&key.client)
            && client.epoch == key.epoch
        {
            client.seen.remove(key.sequence);
        }
    }
}

/// A set of numbers as ranges, first to last.
#[derive(Debug, Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn holder(&self, number: u64) -> Option<(u64, u64)> {
        let (first, last) = self.0.range(..=number).next_back()?;
        (*last >= number).then_some((*first, *last))
    }

    fn contains(&self, number: u64) -> bool {
        self.holder(number).is_some()
    }

    /// False where there is no room for another range.
    fn insert(&mut self, number: u64) -> bool {
        let before = number.checked_sub(1).and_then(|left| self.holder(left));
        let after = number.checked_add(1).and_then(|right| Some((right, *self.0.get(&right)?)));
        let first = before.map_or(number, |(first, _)| first);
        let last = after.map_or(number, |(_, last)| last);
        if before.is_none() && after.is_none() && self.0.len() >= RANGES_MAX {
            return false;
        }
        if let Some((right, _)) = after {
            self.0.remove(&right);
        }
        self.0.insert(first, last);
        true
    }

    fn remove(&mut self, number: u64) {
        let Some((first, last)) = self.holder(number) else { return };
        self.0.remove(&first);
        if first < number {
            self.0.insert(first, number - 1);
        }
        if number < last {
            self.0.insert(number + 1, last);
        }
    }

    fn drop_to(&mut self, floor: u64) {
        let Some(above) = floor.checked_add(1) else {
            self.0.clear();
            return;
        };
        let kept = self.0.split_off(&above);
        let across = self.0.last_key_value().map(|(_, last)| *last).filter(|last| *last >= above);
        self.0 = kept;
        if let Some(last) = across {
            self.0.insert(above, last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Admission::{BelowFloor, Forgotten, Full, New, OldEpoch, Recorded};
    use rand::{RngExt, SeedableRng, rngs::StdRng};
    use std::collections::BTreeSet;

    fn key(epoch: u64, sequence: u64) -> Key {
        Key { client: "c".to_owned(), epoch, sequence }
    }

    #[test]
    fn what_becomes_of_a_call() {
        // (epoch, sequence, floor, recorded) -> admission, one after the other.
        let table = [
            ((1, 1, 0, false), New),
            ((1, 1, 0, true), Recorded),
            ((1, 1, 0, false), Forgotten),
            ((1, 3, 0, false), New),
            ((1, 2, 0, false), New),
            ((1, 5, 3, false), New),
            ((1, 3, 3, false), BelowFloor),
            ((1, 3, 3, true), Recorded),
            ((1, 4, 0, false), New),
            ((1, 2, 0, false), BelowFloor),
            ((1, 9, 9, false), BelowFloor),
            ((2, 1, 0, false), New),
            ((1, 10, 0, false), OldEpoch),
            ((1, 5, 0, true), Recorded),
            ((1, 11, 1000, false), OldEpoch),
            ((2, 2, 0, false), New),
            ((2, u64::MAX, 0, false), New),
            ((2, u64::MAX, u64::MAX, false), BelowFloor),
        ];
        let mut ids = Ids::default();
        for (step, ((epoch, sequence, floor, recorded), expect)) in table.into_iter().enumerate() {
            assert_eq!(ids.admit(&key(epoch, sequence), floor, recorded), expect, "step {step}");
        }
    }

    #[test]
    fn a_released_id_may_come_again() {
        let mut ids = Ids::default();
        for sequence in 1..=5 {
            assert_eq!(ids.admit(&key(1, sequence), 0, false), New);
        }
        ids.release(&key(1, 3));
        assert_eq!(ids.admit(&key(1, 2), 0, false), Forgotten);
        assert_eq!(ids.admit(&key(1, 3), 0, false), New);
        assert_eq!(ids.admit(&key(1, 3), 0, false), Forgotten);
    }

    #[test]
    fn memory_is_bounded_and_nothing_is_forgotten_for_it() {
        let mut ids = Ids::default();
        for n in 0..RANGES_MAX as u64 {
            assert_eq!(ids.admit(&key(1, 2 * n + 1), 0, false), New);
        }
        assert_eq!(ids.admit(&key(1, 1_000_001), 0, false), Full);
        assert_eq!(ids.admit(&key(1, 1), 0, false), Forgotten);
        assert_eq!(ids.admit(&key(1, 2), 0, false), New, "joins two ranges");
        for n in 1..CLIENTS_MAX {
            let key = Key { client: format!("c{n}"), epoch: 1, sequence: 1 };
            assert_eq!(ids.admit(&key, 0, false), New);
        }
        let more = Key { client: "more".to_owned(), epoch: 1, sequence: 1 };
        assert_eq!(ids.admit(&more, 0, false), Full);
    }

    #[test]
    fn no_id_is_new_twice() {
        let seed = 11;
        let mut random = StdRng::seed_from_u64(seed);
        for game in 0..200 {
            let mut ids = Ids::default();
            let (mut ran, mut floor) = (BTreeSet::new(), 0);
            for step in 0..400 {
                let sequence = random.random_range(floor.max(1)..floor + 60);
                if random.random_ratio(1, 10) {
                    floor += random.random_range(0..20);
                }
                let admission = ids.admit(&key(1, sequence), floor, false);
                let at = format!("seed {seed}, game {game}, step {step}, sequence {sequence}, floor {floor}");
                match admission {
                    New => assert!(ran.insert(sequence) && sequence > floor, "{at}"),
                    Forgotten => assert!(ran.contains(&sequence), "{at}"),
                    BelowFloor => assert!(sequence <= floor, "{at}"),
                    other => panic!("{other:?} at {at}"),
                }
            }
        }
    }
}
