//! Whose turn it is to carry a sandbox's way out. Two that accept connections from one socket would each carry some of them, and
//! one that leaves would cut what it carries.

use super::Asker;
use std::collections::HashMap;

/// Doors that are lent, by sandbox: first who has it, then who waits.
#[derive(Debug, Default)]
pub(super) struct Doors {
    asked: HashMap<String, Vec<Asker>>,
}

impl Doors {
    /// Somebody asks for a door; whether it is theirs now. Otherwise they wait.
    pub(super) fn ask(&mut self, sandbox: &str, asker: Asker) -> bool {
        let askers = self.asked.entry(sandbox.to_owned()).or_default();
        askers.push(asker);
        askers.len() == 1
    }

    /// Whether a connection is for a door.
    pub(super) fn is_asked_by(&self, line: u64) -> bool {
        self.asked.values().flatten().any(|asker| asker.line == line)
    }

    /// Forgets those whose connection is closed; whose turn it is now.
    pub(super) fn given_back(&mut self, is_open: impl Fn(u64) -> bool) -> Vec<(String, Asker)> {
        let mut next = Vec::new();
        self.asked.retain(|sandbox, askers| {
            let before = askers.first().copied();
            askers.retain(|asker| is_open(asker.line));
            match askers.first() {
                Some(first) if before != Some(*first) => next.push((sandbox.clone(), *first)),
                _ => {}
            }
            !askers.is_empty()
        });
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_door_has_one_owner_and_then_the_next() {
        let mut doors = Doors::default();
        let asker = |line| Asker { line, number: 1 };
        assert!(doors.ask("a", asker(1)));
        assert!(doors.ask("b", asker(2)));
        assert!(!doors.ask("a", asker(3)));
        assert!(!doors.ask("a", asker(4)));
        assert_eq!(doors.given_back(|_| true), []);
        assert_eq!(doors.given_back(|line| line != 3), [], "one that waited has gone");
        assert_eq!(doors.given_back(|line| line != 1 && line != 3), [("a".to_owned(), asker(4))]);
        assert_eq!(doors.given_back(|line| line == 2), []);
        assert!(doors.ask("a", asker(5)));
    }
}
