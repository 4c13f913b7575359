//! The reward `app-state`: what a rollout changed in an application of the engine, held against what its task asks for.
//!
//! A task says in `private.app` what has to be different in the end. All else has to be as it was at first:
//!
//! ```json
//! {"app": {"service": "mail",
//!          "expect": [{"path": "/messages/m3/folder", "equals": "archive"},
//!                     {"path": "/messages", "added": {"to": "ann@example.org", "text": {"$contains": "lunch"}}},
//!                     {"path": "/messages/m7", "absent": true}],
//!          "may_change": ["/messages/*/read"]}}
//! ```
//!
//! The states are those of the engine's service, which no page can forge. What a task expects and what is so from the start is a fault of
//! the task: doing nothing would count for it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The settings of the plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("x-task" = schemars::schema_for!(OfTask)))]
pub struct Settings {
    /// Whether what came about counts its share, `fulfilled / (expected + unasked changes)`, instead of all or nothing.
    pub partial: bool,
}

/// What it needs of a task.
#[derive(JsonSchema)]
struct OfTask {
    #[expect(dead_code, reason = "its schema alone is used")]
    private: Private,
}

#[derive(JsonSchema)]
struct Private {
    #[expect(dead_code, reason = "its schema alone is used")]
    app: App,
}

/// One application, or several. Not two alternatives, so that what is wrong is told of the one that was meant.
struct App;

impl JsonSchema for App {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "App".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let one = generator.subschema_for::<Expected>();
        schemars::json_schema!({
            "type": ["object", "array"],
            "if": {"type": "array"},
            "then": {"items": one},
            "else": one,
        })
    }
}

/// What a task expects of one application.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// Its name.
    pub service: String,
    /// What has to be so in the end.
    #[schemars(length(min = 1))]
    pub expect: Vec<Expectation>,
    /// Places that may be different as well, as JSON Pointers with `*` for any one part.
    #[serde(default)]
    pub may_change: Vec<String>,
}

/// One difference; one of `equals`, `added` and `absent`.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Expectation {
    /// Where, as a JSON Pointer.
    #[schemars(regex(pattern = "^(/|$)"))]
    pub path: String,
    /// What stands there.
    #[serde(default, deserialize_with = "given")]
    pub equals: Option<Value>,
    /// What an entry has, among others, that is new in the object there.
    #[serde(default, deserialize_with = "given")]
    pub added: Option<Value>,
    /// Whether nothing stands there any more.
    #[serde(default)]
    pub absent: bool,
}

/// `null` is a value like others.
fn given<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// What the service answers to `/go`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct States {
    /// At first.
    pub initial_state: Value,
    /// In the end.
    pub current_state: Value,
    /// Where they differ; the first of many.
    pub state_diff: Vec<Difference>,
    /// How many differences there are.
    pub differences: usize,
}

/// One place that is different.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Difference {
    /// As a JSON Pointer.
    pub path: String,
}

/// What a rollout came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Expectations that hold.
    pub fulfilled: usize,
    /// All.
    pub expected: usize,
    /// Differences that nobody asked for.
    pub unasked: usize,
    /// For people.
    pub reasons: Vec<String>,
}

/// What a task expects: `private.app`, of one application or of several.
pub fn expected(private: Option<&str>) -> Result<Vec<Expected>, String> {
    let private: Value = private.map_or(Ok(Value::Null), serde_json::from_str).unwrap_or_default();
    let expected: Result<Vec<Expected>, _> = match private.get("app") {
        None | Some(Value::Null) => return Err("the task says nothing in `private.app`".to_owned()),
        Some(Value::Array(all)) => all.iter().cloned().map(serde_json::from_value).collect(),
        Some(one) => serde_json::from_value(one.clone()).map(|one| vec![one]),
    };
    let expected = expected.map_err(|error| format!("`private.app` of the task: {error}"))?;
    for Expected { service, expect, .. } in &expected {
        if expect.is_empty() {
            return Err(format!("`private.app` of the task: `expect` of {service} is empty"));
        }
        if expected.iter().filter(|other| other.service == *service).count() > 1 {
            return Err(format!(
                "`private.app` of the task: {service} twice; put all that it expects into one entry"
            ));
        }
        for Expectation { path, equals, added, absent } in expect {
            if !path.is_empty() && !path.starts_with('/') {
                return Err(format!(
                    "`private.app` of the task: path {path:?}: expected a JSON Pointer such as \"/{path}\""
                ));
            }
            if usize::from(equals.is_some()) + usize::from(added.is_some()) + usize::from(*absent) != 1 {
                return Err(format!(
                    "`private.app` of the task: {path}: expected one of `equals`, `added` and `absent`"
                ));
            }
        }
    }
    Ok(expected)
}

/// Compares. Errors: an expectation that holds from the start.
pub fn compare(expected: &Expected, states: &States) -> Result<Outcome, String> {
    let Expected { service, expect, may_change } = expected;
    let (initial, current) = (&states.initial_state, &states.current_state);
    let mut outcome = Outcome { expected: expect.len(), ..Outcome::default() };
    let candidates: Vec<Vec<String>> = expect.iter().map(|one| new_entries(one, initial, current)).collect();
    let found = assigned(&candidates);
    let mut asked: Vec<&str> = Vec::new();
    for (Expectation { path, equals, added, absent }, found) in expect.iter().zip(found) {
        let place = format!("{service}{path}");
        let (before, after) = (initial.pointer(path), current.pointer(path));
        if added.is_some() && before.is_some_and(|before| !before.is_object()) {
            return Err(format!(
                "`private.app` of the task: {place}: `added` needs an object there, found {}",
                before.map_or_else(String::new, shown)
            ));
        }
        let (held, holds, why) = if let Some(pattern) = added {
            asked.extend(found.map(String::as_str));
            let why = match found {
                Some(entry) => format!("{place} has the new entry {}", &entry[path.len() + 1..]),
                None => format!("{place} has no new entry with {pattern}"),
            };
            (false, found.is_some(), why)
        } else {
            asked.push(path);
            let fits = |value: Option<&Value>| match equals {
                Some(pattern) => value.is_some_and(|value| matches(pattern, value, Keys::All)),
                None => *absent && value.is_none(),
            };
            let found = after.map_or_else(|| "absent".to_owned(), shown);
            (fits(before), fits(after), format!("{place} is {found}"))
        };
        if held {
            return Err(format!("`private.app` of the task: {place} is as expected from the start"));
        }
        outcome.fulfilled += usize::from(holds);
        outcome.reasons.push(if holds { why } else { format!("not fulfilled: {why}") });
    }
    let is_asked = |path: &str| {
        asked.iter().any(|place| is_within(path, place, false))
            || may_change.iter().any(|place| is_within(path, place, true))
    };
    let unasked: Vec<&str> =
        states.state_diff.iter().map(|one| one.path.as_str()).filter(|path| !is_asked(path)).collect();
    outcome.unasked = unasked.len() + states.differences.saturating_sub(states.state_diff.len());
    outcome.reasons.extend(unasked.iter().take(5).map(|path| format!("changed unasked: {service}{path}")));
    Ok(outcome)
}

/// Where the entries are that are new and have what `added` says.
fn new_entries(expectation: &Expectation, initial: &Value, current: &Value) -> Vec<String> {
    let Expectation { path, added: Some(pattern), .. } = expectation else { return Vec::new() };
    let before = initial.pointer(path).and_then(Value::as_object);
    let entries = current.pointer(path).and_then(Value::as_object).into_iter().flatten();
    let new = entries.filter(|(key, _)| before.is_none_or(|before| !before.contains_key(*key)));
    let fitting = new.filter(|(_, value)| matches(pattern, value, Keys::AmongOthers));
    fitting.map(|(key, _)| below(path, key)).collect()
}

/// One of its candidates for each, no candidate twice, so that as many as possible have one (augmenting paths).
fn assigned<T: PartialEq>(candidates: &[Vec<T>]) -> Vec<Option<&T>> {
    fn place<'a, T: PartialEq>(
        one: usize,
        candidates: &'a [Vec<T>],
        found: &mut [Option<&'a T>],
        tried: &mut Vec<&'a T>,
    ) -> bool {
        for candidate in &candidates[one] {
            if tried.contains(&candidate) {
                continue;
            }
            tried.push(candidate);
            let holder = found.iter().position(|held| *held == Some(candidate));
            if holder.is_none_or(|holder| place(holder, candidates, found, tried)) {
                found[one] = Some(candidate);
                return true;
            }
        }
        false
    }
    let mut found = vec![None; candidates.len()];
    for one in 0..candidates.len() {
        place(one, candidates, &mut found, &mut Vec::new());
    }
    found
}

/// The score of all applications together.
pub fn score(outcomes: &[Outcome], partial: bool) -> f64 {
    let sum = |count: fn(&Outcome) -> usize| outcomes.iter().map(count).sum::<usize>();
    let (fulfilled, expected, unasked) =
        (sum(|one| one.fulfilled), sum(|one| one.expected), sum(|one| one.unasked));
    if partial {
        return fulfilled as f64 / (expected + unasked) as f64;
    }
    if fulfilled == expected && unasked == 0 { 1.0 } else { 0.0 }
}

fn below(path: &str, key: &str) -> String {
    format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"))
}

/// Whether a path is that of a place, or below it; with `wild`, `*` in the place is any one part.
fn is_within(path: &str, place: &str, wild: bool) -> bool {
    let mut parts = path.split('/');
    place.split('/').all(|wanted| parts.next().is_some_and(|part| (wild && wanted == "*") || wanted == part))
}

/// Which keys an object may have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keys {
    All,
    AmongOthers,
}

/// Whether a value is what a pattern says: the same, or as `{"$contains": TEXT}`, letters in either case, `{"$any": true}`,
/// or `{"$unordered": LIST}`: a list with these elements in any order.
fn matches(pattern: &Value, value: &Value, keys: Keys) -> bool {
    match (pattern, value) {
        (Value::Object(pattern), value) if operator(pattern).is_some() => match (operator(pattern), value) {
            (Some(("$contains", Value::String(text))), Value::String(value)) => {
                value.to_lowercase().contains(&text.to_lowercase())
            }
            (Some(("$contains", item)), Value::Array(items)) => {
                items.iter().any(|value| matches(item, value, Keys::AmongOthers))
            }
            (Some(("$any", _)), _) => true,
            (Some(("$unordered", Value::Array(wanted))), Value::Array(items)) => {
                let fitting = |pattern| {
                    let all = 0..items.len();
                    all.filter(|at| matches(pattern, &items[*at], Keys::All)).collect::<Vec<usize>>()
                };
                wanted.len() == items.len() && {
                    let fitting: Vec<Vec<usize>> = wanted.iter().map(fitting).collect();
                    assigned(&fitting).iter().all(Option::is_some)
                }
            }
            _ => false,
        },
        (Value::Object(pattern), Value::Object(value)) => {
            (keys == Keys::AmongOthers || pattern.len() == value.len())
                && pattern.iter().all(|(key, pattern)| {
                    value.get(key).is_some_and(|value| matches(pattern, value, Keys::All))
                })
        }
        (Value::Array(pattern), Value::Array(value)) => {
            pattern.len() == value.len()
                && pattern.iter().zip(value).all(|(pattern, value)| matches(pattern, value, Keys::All))
        }
        (Value::Number(one), Value::Number(other)) => one == other || one.as_f64() == other.as_f64(),
        (pattern, value) => pattern == value,
    }
}

/// The operator that a pattern is.
fn operator(pattern: &Map<String, Value>) -> Option<(&str, &Value)> {
    let (key, value) = pattern.iter().next().filter(|_| pattern.len() == 1)?;
    ["$contains", "$any", "$unordered"].contains(&key.as_str()).then_some((key.as_str(), value))
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(target_arch = "wasm32")]
mod guest {
    use super::{Outcome, Settings, States, compare, expected, score};
    use espalier_sdk::{Failure, RolloutView, Score, Service, invalid};

    fn run(rollout: RolloutView, settings: Settings) -> Result<Vec<Score>, Failure> {
        let mut outcomes: Vec<Outcome> = Vec::new();
        for one in &expected(rollout.task.private_data.as_deref()).map_err(invalid)? {
            let states: States = Service::named(&one.service).get("/go")?;
            outcomes.push(compare(one, &states).map_err(invalid)?);
        }
        let reasons: Vec<String> = outcomes.iter().flat_map(|outcome| outcome.reasons.clone()).collect();
        let (value, reason) = (score(&outcomes, settings.partial), reasons.join("; "));
        Ok(vec![Score { name: "reward".to_owned(), value, turn: None, reason, extra: None }])
    }

    espalier_sdk::reward!(Settings, run);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn states(current: Value, different: &[&str]) -> States {
        let initial_state =
            json!({"m": {"1": {"folder": "inbox", "read": false}, "2": {"folder": "inbox"}}, "n": 1});
        let state_diff = different.iter().map(|path| Difference { path: (*path).to_owned() }).collect();
        States { initial_state, current_state: current, state_diff, differences: different.len() }
    }

    fn task(expect: Value) -> Expected {
        let private = json!({"app": {"service": "mail", "expect": expect, "may_change": ["/m/*/read"]}});
        expected(Some(&private.to_string())).unwrap().remove(0)
    }

    fn counts(expect: Value, current: Value, different: &[&str]) -> (usize, usize) {
        let outcome = compare(&task(expect), &states(current, different)).unwrap();
        (outcome.fulfilled, outcome.unasked)
    }

    #[test]
    fn what_was_asked_for_counts_and_all_else_costs() {
        let moved = json!([{"path": "/m/1/folder", "equals": "archive"}]);
        let current =
            json!({"m": {"1": {"folder": "archive", "read": true}, "2": {"folder": "inbox"}}, "n": 1});
        assert_eq!(counts(moved.clone(), current.clone(), &["/m/1/folder", "/m/1/read"]), (1, 0));
        assert_eq!(counts(moved.clone(), states(json!(0), &[]).initial_state, &[]), (0, 0));
        let more = json!({"m": {"1": {"folder": "archive"}, "2": {"folder": "archive"}}, "n": 2});
        assert_eq!(counts(moved, more, &["/m/1/folder", "/m/2/folder", "/n"]), (1, 2));
        let gone = json!([{"path": "/m/2", "absent": true}]);
        assert_eq!(counts(gone, json!({"m": {"1": {}}, "n": 1}), &["/m/2"]), (1, 0));
    }

    #[test]
    fn new_entries_are_found_by_what_they_have_each_once() {
        let sent = json!({"path": "/m", "added": {"to": "ann", "text": {"$contains": "LUNCH"}}});
        let current = json!({"m": {"1": {"folder": "inbox", "read": false}, "2": {"folder": "inbox"},
                             "3": {"to": "ann", "text": "Lunch?", "at": 7}, "4": {"to": "bob", "text": "lunch"}}, "n": 1});
        assert_eq!(counts(json!([sent.clone()]), current.clone(), &["/m/3", "/m/4"]), (1, 1));
        assert_eq!(counts(json!([sent.clone(), sent.clone()]), current, &["/m/3", "/m/4"]), (1, 1));
        let none = states(json!(0), &[]).initial_state;
        assert_eq!(counts(json!([sent]), none, &[]), (0, 0));
        // What fits several leaves to others what they alone fit, in any order.
        let current = json!({"m": {"1": {"folder": "inbox", "read": false}, "2": {"folder": "inbox"},
                             "3": {"to": "ann", "text": "lunch"}, "4": {"to": "ann", "text": "tea"}}, "n": 1});
        let any = json!({"path": "/m", "added": {"to": "ann"}});
        let lunch = json!({"path": "/m", "added": {"text": "lunch"}});
        for order in [json!([any.clone(), lunch.clone()]), json!([lunch, any])] {
            assert_eq!(counts(order, current.clone(), &["/m/3", "/m/4"]), (2, 0));
        }
    }

    #[test]
    fn a_task_that_is_solved_from_the_start_is_refused() {
        let expect = task(json!([{"path": "/n", "equals": 1.0}]));
        let error = compare(&expect, &states(json!({"n": 1}), &[])).unwrap_err();
        assert_eq!(error, "`private.app` of the task: mail/n is as expected from the start");
        for (private, expect) in [
            ("{}", "the task says nothing in `private.app`"),
            (
                r#"{"app":{"service":"mail","expect":[]}}"#,
                "`private.app` of the task: `expect` of mail is empty",
            ),
            (
                r#"{"app":{"service":"mail","expect":[{"path":"n","absent":true}]}}"#,
                "`private.app` of the task: path \"n\": expected a JSON Pointer such as \"/n\"",
            ),
            (
                r#"{"app":[{"service":"mail","expect":[{"path":"/n","equals":2}]},{"service":"mail","expect":[{"path":"/m","equals":2}]}]}"#,
                "`private.app` of the task: mail twice; put all that it expects into one entry",
            ),
            (
                r#"{"app":[{"service":"mail","expect":[{"path":"/n","absent":true,"equals":null}]}]}"#,
                "`private.app` of the task: /n: expected one of `equals`, `added` and `absent`",
            ),
        ] {
            assert_eq!(expected(Some(private)).unwrap_err(), expect);
        }
    }

    #[test]
    fn all_or_nothing_or_shares() {
        let outcome =
            |fulfilled, expected, unasked| Outcome { fulfilled, expected, unasked, reasons: Vec::new() };
        assert_eq!(score(&[outcome(2, 2, 0)], false), 1.0);
        assert_eq!(score(&[outcome(2, 2, 0), outcome(0, 1, 0)], false), 0.0);
        assert_eq!(score(&[outcome(2, 2, 1)], false), 0.0);
        assert_eq!(score(&[outcome(2, 2, 2)], true), 0.5);
        assert_eq!(score(&[outcome(0, 2, 0)], true), 0.0);
    }

    #[test]
    fn equals_means_all_keys() {
        let pattern = json!({"a": 1});
        assert!(matches(&pattern, &json!({"a": 1.0}), Keys::All));
        assert!(!matches(&pattern, &json!({"a": 1, "b": 2}), Keys::All));
        assert!(matches(&json!({"a": {"$any": true}}), &json!({"a": null}), Keys::All));
        let any = json!({"$unordered": ["a", "b", "b"]});
        assert!(matches(&any, &json!(["b", "a", "b"]), Keys::All));
        assert!(
            !matches(&any, &json!(["b", "a", "a"]), Keys::All)
                && !matches(&any, &json!(["b", "a"]), Keys::All)
        );
        let any = json!({"$unordered": [{"$any": true}, {"a": 1}]});
        assert!(
            matches(&any, &json!([{"a": 1}, 2]), Keys::All),
            "the first leaves to the second what fits it"
        );
        let order = json!({"items": {"p2": 2}});
        assert!(matches(&order, &json!({"items": {"p2": 2}, "at": 1}), Keys::AmongOthers));
        assert!(
            !matches(&order, &json!({"items": {"p2": 2, "p3": 3}}), Keys::AmongOthers),
            "nor more within"
        );
        assert!(matches(&json!({"$contains": {"a": 1}}), &json!([{"a": 2}, {"a": 1, "b": 0}]), Keys::All));
    }
}
