//! The reward `json-schema`: 1 where the answer is JSON that satisfies a JSON Schema, else 0; a score `share` says how much of it does.

mod check;
mod number;
mod validate;

pub use check::{Unsupported, check};
use espalier_sdk::schemars::JsonSchema;
use espalier_sdk::serde::Deserialize;
use espalier_sdk::serde_json::{self, Value};
use espalier_sdk::{Failure, RolloutView, Score, fenced, invalid, other};
pub use validate::{Stopped, violations};

/// What the answer has to satisfy.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(crate = "espalier_sdk::serde", default, deny_unknown_fields)]
#[schemars(crate = "espalier_sdk::schemars")]
pub struct Settings {
    /// The schema. Default: `schema` of the task's private part.
    pub schema: Option<Value>,
    /// Whether the answer may have text around the JSON: the last block of it between ``` counts, else what stands between the first
    /// and the last brace.
    pub lenient: bool,
}

/// The JSON of an answer.
pub fn json_in(answer: &str, lenient: bool) -> Result<Value, String> {
    let strict = serde_json::from_str(answer.trim());
    match strict {
        Ok(value) => return Ok(value),
        Err(error) if !lenient => return Err(format!("no JSON: {error}")),
        Err(_) => {}
    }
    let braced = answer.find(['{', '[']).zip(answer.rfind(['}', ']'])).filter(|(open, close)| open < close);
    let braced = braced.map(|(open, close)| &answer[open..=close]);
    let found =
        fenced(answer).into_iter().chain(braced).find_map(|text| serde_json::from_str(text.trim()).ok());
    found.ok_or_else(|| "no JSON in the answer".to_owned())
}

/// Scores a rollout. Errors: `invalid` without a schema and for one that cannot be checked, `too-deep`, `too-much-work`.
pub fn score(rollout: RolloutView, settings: Settings) -> Result<Vec<Score>, Failure> {
    let schema = settings.schema.or_else(|| rollout.task.private_field("schema"));
    let schema =
        schema.ok_or_else(|| invalid("neither settings.schema nor private.schema of the task is there"))?;
    check(&schema).map_err(|unsupported| invalid(unsupported.to_string()))?;
    let answer = rollout.answer().unwrap_or_default();
    let (value, share, reason) = match json_in(answer, settings.lenient) {
        Err(why) => (0.0, 0.0, why),
        Ok(json) => {
            let (checked, found) = violations(&schema, &json).map_err(|stopped| match stopped {
                Stopped::TooDeep => {
                    other("too-deep", "schema and answer together are nested too deep to be checked")
                }
                Stopped::TooMuchWork => {
                    other("too-much-work", "schema and answer together take too many steps to be checked")
                }
            })?;
            let share = 1.0 - found.len() as f64 / f64::from(checked.max(1));
            match found.first() {
                None => (1.0, 1.0, "satisfies the schema".to_owned()),
                Some(first) => (0.0, share.max(0.0), format!("{first} ({} in all)", found.len())),
            }
        }
    };
    Ok(vec![Score::reward(value).because(reason), Score::named("share", share)])
}

espalier_sdk::reward!(Settings, score);

#[cfg(test)]
mod tests {
    use super::*;
    use espalier_sdk::serde_json::json;

    #[test]
    fn json_is_found_where_it_may_stand() {
        let expect = json!({ "a": 1 });
        for (answer, lenient, found) in [
            (" {\"a\": 1}\n", false, true),
            ("Here: {\"a\": 1}", false, false),
            ("Here: {\"a\": 1}.", true, true),
            ("```\nx\n```\nor\n```json\n{\"a\": 1}\n```\nthat is all", true, true),
            ("none", true, false),
        ] {
            assert_eq!(json_in(answer, lenient).ok(), found.then(|| expect.clone()), "{answer}");
        }
    }
}
