//! What a plugin gave, held against what a case names of it. What the case leaves out is not compared; `false` stands for nothing.

use crate::report::{Change, DiffLine, Problem};
use serde_json::{Map, Number, Value};
use similar::{ChangeTag, TextDiff};
use std::time::Duration;

/// Numbers with a fraction that differ by less, in relation to their size, are the same.
const CLOSE: f64 = 1e-9;
/// What is as close to 0 is what sums leave of it.
const ZERO: f64 = 1e-12;
/// After so long a difference is shown as it is known by then.
const DIFF_TIME: Duration = Duration::from_millis(500);
/// Lines shown around those that differ.
const AROUND: usize = 5;

/// The problem where the value is not what is expected.
pub(crate) fn compare(key: &str, expected: &Value, found: &Value) -> Option<Problem> {
    let seen = narrowed(expected, found);
    if seen == *expected {
        return None;
    }
    let text = "is not as expected".to_owned();
    Some(Problem { key: key.to_owned(), text, diff: lines(&pretty(expected), &pretty(&seen)) })
}

/// What was found, of it only what is expected to be something; equal to `expected` where all of that is as expected.
fn narrowed(expected: &Value, found: &Value) -> Value {
    match (expected, found) {
        (Value::Bool(false), Value::Null) => Value::Bool(false),
        (Value::Number(one), Value::Number(other)) if close(one, other) => expected.clone(),
        (Value::Object(wanted), Value::Object(has)) => {
            let value = |name: &String, wanted: &Value| match has.get(name) {
                Some(found) => narrowed(wanted, found),
                None => narrowed(wanted, &Value::Null),
            };
            let seen: Map<String, Value> =
                wanted.iter().map(|(name, wanted)| (name.clone(), value(name, wanted))).collect();
            Value::Object(seen)
        }
        (Value::Array(wanted), Value::Array(has)) => {
            let one = |(place, found): (usize, &Value)| match wanted.get(place) {
                Some(wanted) => narrowed(wanted, found),
                None => found.clone(),
            };
            Value::Array(has.iter().enumerate().map(one).collect())
        }
        _ => found.clone(),
    }
}

fn close(one: &Number, other: &Number) -> bool {
    match (one.as_i128(), other.as_i128()) {
        (Some(one), Some(other)) => one == other,
        _ => {
            let (Some(one), Some(other)) = (one.as_f64(), other.as_f64()) else { return false };
            // 1 and 1.0 are the same, and so are no other whole numbers.
            let whole = one.fract() == 0.0 && other.fract() == 0.0;
            one == other || (!whole && (one - other).abs() <= (CLOSE * one.abs().max(other.abs())).max(ZERO))
        }
    }
}

/// Keys that entries of this kind never have: one that is expected to be nothing would always be.
pub(crate) fn unknown_key(expected: &Value, found: &Value) -> Option<Problem> {
    match (expected, found) {
        (Value::Object(wanted), Value::Object(has)) => {
            let unknown = wanted.keys().find(|name| !has.contains_key(*name))?;
            let known: Vec<String> = has.keys().map(|name| format!("`{name}`")).collect();
            let text = format!("there is no `{unknown}`; there is: {}", known.join(", "));
            Some(Problem { key: unknown.clone(), text, diff: Vec::new() })
        }
        (Value::Array(wanted), Value::Array(has)) => {
            wanted.iter().zip(has).find_map(|(wanted, found)| unknown_key(wanted, found))
        }
        _ => None,
    }
}

fn pretty(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        value => serde_json::to_string_pretty(value).unwrap_or_default(),
    }
}

/// Two texts line by line, what is the same far from any difference left out.
pub(crate) fn lines(expected: &str, found: &str) -> Vec<DiffLine> {
    let diff = TextDiff::configure().timeout(DIFF_TIME).diff_lines(expected, found);
    let line = |change: similar::Change<&str>| DiffLine {
        change: match change.tag() {
            ChangeTag::Equal => Change::Same,
            ChangeTag::Delete => Change::Expected,
            ChangeTag::Insert => Change::Found,
        },
        text: change.value().trim_end_matches('\n').to_owned(),
    };
    let mut lines = Vec::new();
    for group in diff.grouped_ops(AROUND) {
        if !lines.is_empty() {
            lines.push(DiffLine { change: Change::Same, text: "...".to_owned() });
        }
        lines.extend(group.iter().flat_map(|op| diff.iter_changes(op)).map(line));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn same(expected: &Value, found: &Value) -> bool {
        compare("expect", expected, found).is_none()
    }

    #[test]
    fn only_what_is_named_is_compared() {
        let found = json!({ "name": "reward", "value": 0.30000000000000004, "turn": null, "reason": "" });
        assert!(same(&json!({ "value": 0.3 }), &found));
        assert!(same(&json!({ "turn": false, "name": "reward" }), &found));
        assert!(same(&json!({ "extra": false }), &found), "what is not there is nothing");
        assert!(!same(&json!({ "value": false }), &found));
        assert!(!same(&json!({ "value": 0.31 }), &found));
        assert!(!same(&json!({ "name": "turns" }), &found));
    }

    #[test]
    fn lists_are_compared_whole() {
        assert!(same(&json!([{ "a": 1 }, {}]), &json!([{ "a": 1.0, "b": 2 }, { "c": 3 }])));
        assert!(!same(&json!([{ "a": 1 }]), &json!([{ "a": 1 }, { "a": 2 }])));
        assert!(!same(&json!([{ "a": 1 }, { "a": 2 }]), &json!([{ "a": 1 }])));
        assert!(same(&json!([]), &json!([])));
    }

    #[test]
    fn a_difference_shows_the_lines_around_it() {
        let expected = json!({ "outcome": "submitted", "answer": "42" });
        let problem = compare("expect.report", &expected, &json!({ "answer": "41", "outcome": "submitted" }));
        let shown = |line: DiffLine| match line.change {
            Change::Same => format!("  {}", line.text),
            Change::Expected => format!("- {}", line.text),
            Change::Found => format!("+ {}", line.text),
        };
        let lines: Vec<String> = problem.expect("they differ").diff.into_iter().map(shown).collect();
        assert_eq!(
            lines,
            [
                "  {",
                "    \"outcome\": \"submitted\",",
                "-   \"answer\": \"42\"",
                "+   \"answer\": \"41\"",
                "  }"
            ]
        );
    }
}
