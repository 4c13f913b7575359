//! The reward `page-state`: what the rollout's browser shows at its end, held against what the task says of it.
//!
//! A task says in `private.page` what is checked, each with an `expression` in JavaScript, evaluated in the active tab:
//!
//! ```json
//! {"page": [{"expression": "document.title", "equals": "Saved"},
//!           {"expression": "WOB_RAW_REWARD_GLOBAL", "world": "page", "is_score": true}]}
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The settings of the plugin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("x-task" = schemars::schema_for!(OfTask)))]
pub struct Settings {
    /// Name of the browser of the task.
    pub browser: String,
    /// Checks of a task that names none in `private.page`.
    pub checks: Vec<Check>,
    /// Whether each check counts its share, instead of all of them or nothing.
    pub partial: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { browser: "main".to_owned(), checks: Vec::new(), partial: false }
    }
}

/// What it needs of a task.
#[derive(JsonSchema)]
struct OfTask {
    #[serde(default)]
    #[expect(dead_code, reason = "its schema alone is used")]
    private: Option<Private>,
}

#[derive(JsonSchema)]
struct Private {
    /// What is checked; in the place of `checks` of the settings.
    #[serde(default)]
    #[expect(dead_code, reason = "its schema alone is used")]
    page: Option<Vec<Check>>,
}

/// One thing that is checked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// JavaScript, evaluated in the active tab; a promise is awaited.
    pub expression: String,
    /// Where it is evaluated: `isolated` (default), where the page cannot forge what it sees but the document, or `page`, where what the
    /// page's scripts define is seen.
    #[serde(default)]
    pub world: World,
    /// What its value has to be; default true. Numbers and texts are not the same.
    #[serde(default = "is_true")]
    pub equals: Value,
    /// Whether its value is the score, a number, instead of being held against `equals`.
    #[serde(default)]
    pub is_score: bool,
}

fn is_true() -> Value {
    Value::Bool(true)
}

/// Where an expression is evaluated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum World {
    /// A world of its own.
    #[default]
    Isolated,
    /// That of the page's scripts.
    Page,
}

/// The checks of a task: its own, or those of the settings.
pub fn checks(private: Option<&str>, settings: &Settings) -> Result<Vec<Check>, String> {
    let private: Value = private.map_or(Ok(Value::Null), serde_json::from_str).unwrap_or_default();
    let checks = match private.get("page") {
        None | Some(Value::Null) => settings.checks.clone(),
        Some(own) => serde_json::from_value(own.clone())
            .map_err(|error| format!("`private.page` of the task: {error}"))?,
    };
    if checks.is_empty() {
        return Err(
            "nothing to check: `private.page` of the task and `checks` of the settings are empty".to_owned()
        );
    }
    Ok(checks)
}

/// What a value counts, from 0 to 1 unless it is a score, and why.
pub fn count(check: &Check, value: &Value) -> Result<(f64, String), String> {
    if check.is_score {
        return match value.as_f64() {
            Some(score) => Ok((score, format!("{} is {value}", check.expression))),
            None => Err(format!("{} is {value}: expected a number", check.expression)),
        };
    }
    let is_equal = is_same(value, &check.equals);
    let verb = if is_equal { "is" } else { "is not" };
    let found = if is_equal { String::new() } else { format!(" but {}", shown(value)) };
    Ok((if is_equal { 1.0 } else { 0.0 }, format!("{} {verb} {}{found}", check.expression, check.equals)))
}

/// 1 and 1.0 are the same number.
fn is_same(value: &Value, expected: &Value) -> bool {
    match (value, expected) {
        (Value::Number(one), Value::Number(other)) => one == other || one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(key, one)| other.get(key).is_some_and(|other| is_same(one, other)))
        }
        (one, other) => one == other,
    }
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// What one check came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counted {
    /// 1 or 0, or the value of an expression that is a score.
    pub value: f64,
    /// See [`Check::is_score`].
    pub is_score: bool,
}

/// The score of all checks: 0 unless all hold, and then the mean of those that are scores, or 1; with `partial`, the mean of all.
pub fn score(counts: &[Counted], partial: bool) -> f64 {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let all: Vec<f64> = counts.iter().map(|count| count.value).collect();
    if partial {
        return mean(&all);
    }
    if counts.iter().any(|count| !count.is_score && count.value < 1.0) {
        return 0.0;
    }
    let scores: Vec<f64> = counts.iter().filter(|count| count.is_score).map(|count| count.value).collect();
    if scores.is_empty() { 1.0 } else { mean(&scores) }
}

/// Whether an expression failed as no page could help it: it is no JavaScript.
pub fn is_no_script(text: &str) -> bool {
    text.contains("SyntaxError")
}

#[cfg(target_arch = "wasm32")]
mod guest {
    use super::{Counted, Settings, World, checks, count, is_no_script, score};
    use espalier_sdk::{Browser, Failure, RolloutView, Score, invalid};
    use serde_json::Value;

    fn run(rollout: RolloutView, settings: Settings) -> Result<Vec<Score>, Failure> {
        let checks = checks(rollout.task.private_data.as_deref(), &settings).map_err(invalid)?;
        let browser = Browser::open(&settings.browser)?;
        let (mut counts, mut reasons) = (Vec::new(), Vec::new());
        for check in &checks {
            let value: Result<Value, Failure> = match check.world {
                World::Isolated => browser.evaluate_isolated(&check.expression),
                World::Page => browser.evaluate(&check.expression),
            };
            let (value, reason) = match value {
                Ok(value) => count(check, &value).map_err(invalid)?,
                Err(Failure::Other(other)) if other.code == "script" && is_no_script(&other.text) => {
                    return Err(invalid(format!("`private.page`: {}: {}", check.expression, other.text)));
                }
                // The page is not what the expression is made for: what it asks for is not there.
                Err(Failure::Other(other)) if other.code == "script" => {
                    (0.0, format!("{}: {}", check.expression, other.text))
                }
                Err(failure) => return Err(failure),
            };
            counts.push(Counted { value, is_score: check.is_score });
            reasons.push(reason);
        }
        let value = score(&counts, settings.partial);
        let reason = reasons.join("; ");
        Ok(vec![Score { name: "reward".to_owned(), value, turn: None, reason, extra: None }])
    }

    espalier_sdk::reward!(Settings, run);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(equals: Value) -> Check {
        Check { expression: "x".to_owned(), world: World::Isolated, equals, is_score: false }
    }

    #[test]
    fn a_value_is_the_same_or_not() {
        for (value, equals, expect) in [
            (json!(true), json!(true), 1.0),
            (json!(1), json!(1.0), 1.0),
            (json!("1"), json!(1), 0.0),
            (json!([1, {"a": 2.0}]), json!([1.0, {"a": 2}]), 1.0),
            (json!([1, 2]), json!([1]), 0.0),
            (json!({"a": 1, "b": 2}), json!({"a": 1}), 0.0),
            (Value::Null, json!(true), 0.0),
        ] {
            assert_eq!(count(&check(equals.clone()), &value).unwrap().0, expect, "{value} {equals}");
        }
        assert_eq!(count(&check(json!("a")), &json!("b")).unwrap().1, r#"x is not "a" but "b""#);
        let scored = Check { is_score: true, ..check(Value::Null) };
        assert_eq!(count(&scored, &json!(-0.5)).unwrap(), (-0.5, "x is -0.5".to_owned()));
        assert_eq!(count(&scored, &json!("a")).unwrap_err(), r#"x is "a": expected a number"#);
    }

    #[test]
    fn all_or_nothing_or_shares() {
        let check = |value| Counted { value, is_score: false };
        let scored = |value| Counted { value, is_score: true };
        for (counts, partial, expect) in [
            (vec![check(1.0), check(0.0)], false, 0.0),
            (vec![check(1.0), check(1.0)], false, 1.0),
            (vec![check(1.0), check(0.0)], true, 0.5),
            (vec![scored(-1.0)], false, -1.0),
            (vec![scored(0.5), check(1.0)], false, 0.5),
            (vec![scored(0.5), scored(1.0), check(1.0)], false, 0.75),
            (vec![scored(0.5), check(0.0)], false, 0.0),
            (vec![scored(0.5), check(0.0)], true, 0.25),
        ] {
            assert_eq!(score(&counts, partial), expect, "{counts:?} {partial}");
        }
        assert!(
            is_no_script("SyntaxError: Unexpected identifier 'bar'") && !is_no_script("TypeError: x is null")
        );
    }

    #[test]
    fn a_task_says_what_is_checked_or_the_settings_do() {
        let settings = Settings { checks: vec![check(json!(1))], ..Settings::default() };
        assert_eq!(checks(None, &settings).unwrap().len(), 1);
        let own = checks(Some(r#"{"page":[{"expression":"document.title"}]}"#), &settings).unwrap();
        assert_eq!((own[0].expression.as_str(), &own[0].equals), ("document.title", &json!(true)));
        let error = checks(Some(r#"{"page":[{"expr":"x"}]}"#), &settings).unwrap_err();
        assert!(error.starts_with("`private.page` of the task: unknown field `expr`"), "{error}");
        assert!(checks(Some("{}"), &Settings::default()).unwrap_err().starts_with("nothing to check"));
    }
}
