//! Whose turn it is to carry the egress of a sandbox. Two that accept connections from one socket would each carry some of them, and
//! one that leaves would cut what it carries.

use super::Requester;
use std::collections::HashMap;

/// Doors that are lent, by sandbox: first who has it, then who waits.
#[derive(Debug, Default)]
pub(super) struct EgressListeners {
    asked: HashMap<String, Vec<Requester>>,
}

impl EgressListeners {
    /// A connection asks for a listener: whether it has it now. Otherwise it waits.
    pub(super) fn ask(&mut self, sandbox: &str, requester: Requester) -> bool {
        let requesters = self.asked.entry(sandbox.to_owned()).or_default();
        requesters.push(requester);
        requesters.len() == 1
    }

    /// Whether a connection asked for a listener.
    pub(super) fn is_asked_by(&self, line: u64) -> bool {
        self.asked.values().flatten().any(|requester| requester.line == line)
    }

    /// Forgets those whose connection is closed; whose turn it is now.
    pub(super) fn given_back(&mut self, is_open: impl Fn(u64) -> bool) -> Vec<(String, Requester)> {
        let mut next = Vec::new();
        self.asked.retain(|sandbox, requesters| {
            let before = requesters.first().copied();
            requesters.retain(|requester| is_open(requester.line));
            match requesters.first() {
                Some(first) if before != Some(*first) => next.push((sandbox.clone(), *first)),
                _ => {}
            }
            !requesters.is_empty()
        });
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_has_one_owner_and_then_the_next() {
        let mut listeners = EgressListeners::default();
        let requester = |line| Requester { line, number: 1 };
        assert!(listeners.ask("a", requester(1)));
        assert!(listeners.ask("b", requester(2)));
        assert!(!listeners.ask("a", requester(3)));
        assert!(!listeners.ask("a", requester(4)));
        assert_eq!(listeners.given_back(|_| true), []);
        assert_eq!(listeners.given_back(|line| line != 3), [], "one that waited has gone");
        assert_eq!(listeners.given_back(|line| line != 1 && line != 3), [("a".to_owned(), requester(4))]);
        assert_eq!(listeners.given_back(|line| line == 2), []);
        assert!(listeners.ask("a", requester(5)));
    }
}
