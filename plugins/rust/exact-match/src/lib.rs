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
    /// The field of the task's private part that has the expected answer: a string, a number, or a list of which any will do.
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

    /// The score of an answer, `None` where there is none, and why.
    pub fn compare(&self, expected: &Value, answer: Option<&str>) -> (f64, String) {
        let any = match expected {
            Value::Array(any) => any.iter().map(text_of).collect(),
            one => vec![text_of(one)],
        };
        let answered = answer.unwrap_or_default();
        let is_one = answer.is_some() && any.iter().any(|one| self.plain(one) == self.plain(answered));
        let reason = format!("expected `{}`, answered `{answered}`", any.join("` or `"));
        (if is_one { 1.0 } else { 0.0 }, reason)
    }
}

/// A string as it is, anything else as JSON.
fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Scores a rollout. Errors: `invalid` where the task does not say what is expected.
pub fn score(rollout: RolloutView, settings: Settings) -> Result<Vec<Score>, Failure> {
    let expected = rollout.task.private_field(&settings.field);
    let expected =
        expected.ok_or_else(|| invalid(format_args!("the task has no private.{}", settings.field)))?;
    let (value, reason) = settings.compare(&expected, rollout.answer());
    Ok(vec![Score::reward(value).because(reason)])
}

espalier_sdk::reward!(Settings, score);

#[cfg(test)]
mod tests {
    use super::*;
    use espalier_sdk::serde_json::json;

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
            assert_eq!(settings.compare(&expected, answer).0, score, "{expected} {answer:?}");
        }
        let (_, reason) = plain.compare(&json!(["a", "b"]), Some("c"));
        assert_eq!(reason, "expected `a` or `b`, answered `c`");
    }
}
