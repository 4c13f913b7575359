//! From an answer of the model to estimates. Nothing is guessed: an answer with one entry that is not an estimate has none.

use espalier_sdk::serde_json::{self, Value};

/// How likely the task was to be solved at the beginning of a turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// Of the rollout.
    pub turn: u32,
    /// 0 to 1.
    pub value: f64,
    /// Why; empty where the model said nothing.
    pub reason: String,
}

/// The estimates in the last JSON list of objects of an answer about so many turns. Errors: why it has none.
pub fn parse(text: &str, turns: u32) -> Result<Vec<Estimate>, String> {
    let list = last_list(text).ok_or("no JSON list of objects")?;
    let mut estimates: Vec<Estimate> = Vec::with_capacity(list.len());
    for entry in &list {
        let turn =
            entry.get("turn").and_then(Value::as_u64).ok_or_else(|| format!("no `turn` in {entry}"))?;
        let turn = u32::try_from(turn).ok().filter(|turn| *turn < turns);
        let turn = turn.ok_or_else(|| format!("the rollout has {turns} turns, not that of {entry}"))?;
        let value = entry.get("value").and_then(Value::as_f64).filter(|value| (0.0..=1.0).contains(value));
        let value = value.ok_or_else(|| format!("no `value` of 0 to 1 in {entry}"))?;
        if estimates.iter().any(|other| other.turn == turn) {
            return Err(format!("turn {turn} has two values"));
        }
        let reason = entry.get("reason").and_then(Value::as_str).unwrap_or_default().to_owned();
        estimates.push(Estimate { turn, value, reason });
    }
    Ok(estimates)
}

/// The last list that is not empty and holds objects alone.
fn last_list(text: &str) -> Option<Vec<Value>> {
    let (mut last, mut rest) = (None, text);
    while let Some(start) = rest.find('[') {
        let mut values = serde_json::Deserializer::from_str(&rest[start..]).into_iter::<Value>();
        match values.next() {
            Some(Ok(Value::Array(list))) => {
                if !list.is_empty() && list.iter().all(Value::is_object) {
                    last = Some(list);
                }
                rest = &rest[start + values.byte_offset()..];
            }
            _ => rest = &rest[start + 1..],
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_list_of_an_answer_counts_and_nothing_is_guessed() {
        for (text, expect) in [
            (
                r#"[{"turn": 0, "value": 0.4, "reason": "begins"}, {"turn": 2, "value": 0.1}]"#,
                Ok(vec![(0, 0.4), (2, 0.1)]),
            ),
            ("Turn 1 is [bad].\n```json\n[{\"turn\": 1, \"value\": 1}]\n```", Ok(vec![(1, 1.0)])),
            (r#"[{"turn": 0, "value": 0.9}] no: [{"turn": 0, "value": 0.2}] [1]"#, Ok(vec![(0, 0.2)])),
            ("no list at all", Err("no JSON list of objects")),
            ("[]", Err("no JSON list of objects")),
            (r#"[{"turn": 0, "value": 0.4"#, Err("no JSON list of objects")),
            (
                r#"[{"turn": 3, "value": 0.4}]"#,
                Err(r#"the rollout has 3 turns, not that of {"turn":3,"value":0.4}"#),
            ),
            (r#"[{"turn": 0, "value": 1.4}]"#, Err(r#"no `value` of 0 to 1 in {"turn":0,"value":1.4}"#)),
            (r#"[{"value": 0.4}]"#, Err(r#"no `turn` in {"value":0.4}"#)),
            (r#"[{"turn": 0, "value": 0.4}, {"turn": 0, "value": 0.5}]"#, Err("turn 0 has two values")),
        ] {
            let found = parse(text, 3);
            let found = found.map(|all| all.iter().map(|one| (one.turn, one.value)).collect::<Vec<_>>());
            assert_eq!(found, expect.map_err(str::to_owned), "{text}");
        }
    }
}
