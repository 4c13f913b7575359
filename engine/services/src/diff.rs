//! What differs between two states.

use crate::pointer;
use serde_json::{Value, json};

/// Differences that are told; the rest is counted.
pub(crate) const DIFFERENCES_MAX: usize = 2_000;

/// A list of `{"path", "change": "added" | "removed" | "changed", "before", "after"}`, deepest places, in the order of the first state
/// and then the second; and how many there are in all. Elements of lists are compared by their place.
pub(crate) fn diff(before: &Value, after: &Value) -> (Vec<Value>, usize) {
    let mut found = Found::default();
    found.compare(before, after);
    (found.differences, found.count)
}

#[derive(Default)]
struct Found {
    place: Vec<String>,
    differences: Vec<Value>,
    count: usize,
}

impl Found {
    fn compare(&mut self, before: &Value, after: &Value) {
        match (before, after) {
            (Value::Object(one), Value::Object(other)) => {
                for (key, before) in one {
                    self.at(key.clone(), |found| match other.get(key) {
                        Some(after) => found.compare(before, after),
                        None => found.note("removed", Some(before), None),
                    });
                }
                for (key, after) in other.iter().filter(|(key, _)| !one.contains_key(*key)) {
                    self.at(key.clone(), |found| found.note("added", None, Some(after)));
                }
            }
            (Value::Array(one), Value::Array(other)) => {
                for index in 0..one.len().max(other.len()) {
                    self.at(index.to_string(), |found| match (one.get(index), other.get(index)) {
                        (Some(before), Some(after)) => found.compare(before, after),
                        (before, None) => found.note("removed", before, None),
                        (None, after) => found.note("added", None, after),
                    });
                }
            }
            (before, after) if before == after => {}
            (before, after) => self.note("changed", Some(before), Some(after)),
        }
    }

    fn at(&mut self, part: String, inside: impl FnOnce(&mut Found)) {
        self.place.push(part);
        inside(self);
        self.place.pop();
    }

    fn note(&mut self, change: &str, before: Option<&Value>, after: Option<&Value>) {
        self.count += 1;
        if self.differences.len() == DIFFERENCES_MAX {
            return;
        }
        let mut difference = json!({ "path": pointer::write(&self.place), "change": change });
        for (key, value) in [("before", before), ("after", after)] {
            if let Some(value) = value {
                difference[key] = value.clone();
            }
        }
        self.differences.push(difference);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_places_are_told() {
        let before = json!({"a": {"b": 1, "c": [1, 2]}, "d/e": true});
        let after = json!({"a": {"b": 2, "c": [1]}, "f": {}});
        let expect = json!([
            {"path": "/a/b", "change": "changed", "before": 1, "after": 2},
            {"path": "/a/c/1", "change": "removed", "before": 2},
            {"path": "/d~1e", "change": "removed", "before": true},
            {"path": "/f", "change": "added", "after": {}},
        ]);
        let (differences, count) = diff(&before, &after);
        assert_eq!((Value::from(differences), count), (expect, 4));
        assert_eq!(diff(&before, &before), (Vec::new(), 0));
    }

    #[test]
    fn what_is_beyond_the_bound_is_counted() {
        let many: Vec<u32> = (0..3_000).collect();
        let (differences, count) = diff(&json!([]), &json!(many));
        assert_eq!((differences.len(), count), (DIFFERENCES_MAX, 3_000));
    }
}
