//! The reward `exact-match`: 1 where the answer is the one in the private part of the task, else 0.

use espalier_sdk::schemars::JsonSchema;
use espalier_sdk::serde::Deserialize;
use espalier_sdk::serde_json::Value;
use espalier_sdk::{Failure, RolloutView, Score, invalid};

/// How answers are compared.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(crate = "espalier_sdk::serde", default, deny_unknown_fields)]
#[schemars(crate = "espalier_sdk::schemars")]
pub struct Settings {
    /// The field of the task's private part that has the expected answer: a string, a number as it stands in the task (one of more than 64 bits as a string), or a list of which any will do.
    pub field: String,
    /// Whether upper and lower case are the same.
    pub ignore_case: bool,
    /// Whether blanks at both ends are ignored.
    pub trim: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { field: "answer".to_owned(), ignore_case: false, trim: true }
    }
}

impl Settings {
    fn plain(&self, text: &str) -> String {
        let text = if self.trim { text.trim() } else { text };
        if self.ignore_case { text.to_lowercase() } else { text.to_owned() }
    }

    /// The texts of which any will do. Errors: `invalid` where it is something else.
    pub fn expected(&self, value: &Value) -> Result<Vec<String>, Failure> {
        let field = &self.field;
        let one = std::slice::from_ref(value);
        let listed = value.as_array().map_or(one, Vec::as_slice);
        if let Some(number) = listed.iter().find(|one| lost_digits(one)) {
            return Err(invalid(format_args!(
                "task.private.{field} has the number {number}, which is too large to be kept digit by digit: write it as a string"
            )));
        }
        let any = match value {
            Value::Array(any) => any.iter().map(text_of).collect(),
            one => text_of(one).map(|one| vec![one]),
        };
        any.filter(|any| !any.is_empty()).ok_or_else(|| {
            invalid(format_args!("task.private.{field} is {value}, expected a string, a number, true, false, or a list of these"))
        })
    }

    /// The score of an answer, `None` where there is none, and why.
    pub fn compare(&self, any: &[String], answer: Option<&str>) -> (f64, String) {
        let answered = answer.unwrap_or_default();
        let is_one = answer.is_some() && any.iter().any(|one| self.plain(one) == self.plain(answered));
        let reason = format!("expected `{}`, answered `{answered}`", any.join("` or `"));
        (if is_one { 1.0 } else { 0.0 }, reason)
    }
}

/// A string as it is, a number, true or false as in JSON.
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}

/// Whether a number may have had other digits in the task: it is a double above which not every whole number is one.
fn lost_digits(value: &Value) -> bool {
    const EXACT: f64 = (1_u64 << 53) as f64;
    !value.is_i64() && !value.is_u64() && value.as_f64().is_some_and(|float| float.abs() >= EXACT)
}

/// Scores a rollout. Errors: `invalid` where the task does not say what is expected.
pub fn score(rollout: RolloutView, settings: Settings) -> Result<Vec<Score>, Failure> {
    let expected = rollout.task.private_field(&settings.field);
    let expected =
        expected.ok_or_else(|| invalid(format_args!("the task has no private.{}", settings.field)))?;
    let (value, reason) = settings.compare(&settings.expected(&expected)?, rollout.answer());
    Ok(vec![Score::reward(value).because(reason)])
}

espalier_sdk::reward!(Settings, score);

#[cfg(test)]
mod tests {
    use super::*;
    use espalier_sdk::serde_json::{self, json};

    #[test]
    fn an_answer_is_compared_as_the_settings_say() {
        let plain = Settings::default();
        let cases = Settings { ignore_case: true, ..Settings::default() };
        let exact = Settings { trim: false, ..Settings::default() };
        for (settings, expected, answer, score) in [
            (&plain, json!("Paris"), Some(" Paris\n"), 1.0),
            (&plain, json!("Paris"), Some("paris"), 0.0),
            (&cases, json!("Paris"), Some("PARIS"), 1.0),
            (&exact, json!("Paris"), Some("Paris "), 0.0),
            (&plain, json!(42), Some("42"), 1.0),
            (&plain, json!(["a", "b"]), Some("b"), 1.0),
            (&plain, json!(["a", "b"]), Some("c"), 0.0),
            (&plain, json!(""), None, 0.0),
        ] {
            let any = settings.expected(&expected).unwrap();
            assert_eq!(settings.compare(&any, answer).0, score, "{expected} {answer:?}");
        }
        for none in [json!(null), json!([]), json!({ "a": 1 }), json!(["a", null])] {
            assert!(plain.expected(&none).is_err(), "{none}");
        }
        for (number, kept) in [
            ("12345678901234567890123", false),
            ("-12345678901234567890123", false),
            ("1e22", false),
            ("[1, 9007199254740993.5]", false),
            ("18446744073709551615", true),
            ("9007199254740993", true),
            ("0.5", true),
        ] {
            let expected = plain.expected(&serde_json::from_str(number).unwrap());
            assert_eq!(expected.is_ok(), kept, "{number}: {expected:?}");
        }
        let (_, reason) = plain.compare(&["a".to_owned(), "b".to_owned()], Some("c"));
        assert_eq!(reason, "expected `a` or `b`, answered `c`");
    }
}
