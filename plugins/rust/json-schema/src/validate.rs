//! Whether a value satisfies a schema that was checked.

use crate::number::{self, is_multiple, is_whole, order};
use espalier_sdk::serde_json::{Map, Number, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Deepest nesting of schema and value together. JSON that is nested deeper than 128 is none.
const DEPTH_MAX: u32 = 700;

/// Most steps of one validation: a schema applied to a value, a value compared.
const STEPS_MAX: usize = 2_000_000;

/// Why a validation did not end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Schema and value together are nested too deep.
    TooDeep,
    /// It took too many steps.
    TooMuchWork,
}

/// How many places of the value were checked, and what is wrong in them. A schema that applies to a place twice counts once.
pub fn violations(schema: &Value, value: &Value) -> Result<(u32, Vec<String>), Stopped> {
    violations_within(STEPS_MAX, schema, value)
}

fn violations_within(steps: usize, schema: &Value, value: &Value) -> Result<(u32, Vec<String>), Stopped> {
    let mut validator = Validator {
        root: schema,
        accepted: BTreeMap::new(),
        told: BTreeSet::new(),
        checked: 0,
        found: Vec::new(),
        asked: None,
        depth: 0,
        steps,
        stopped: None,
    };
    validator.value(schema, value, "");
    validator.stopped.map_or(Ok((validator.checked, validator.found)), Err)
}

/// A schema and a value, by where they are.
type Pair = (*const Value, *const Value);

struct Validator<'a> {
    root: &'a Value,
    /// Whether the schema accepts the value, for pairs that were asked: nested `oneOf` would ask for them again and again.
    accepted: BTreeMap<Pair, bool>,
    /// Pairs whose mistakes are in `found`.
    told: BTreeSet<Pair>,
    checked: u32,
    found: Vec<String>,
    /// Where it is only asked whether a schema accepts a value: whether it does so far.
    asked: Option<bool>,
    depth: u32,
    /// Steps left.
    steps: usize,
    stopped: Option<Stopped>,
}

impl<'a> Validator<'a> {
    fn wrong(&mut self, at: &str, what: impl FnOnce() -> String) {
        if self.asked.is_some() {
            self.asked = Some(false);
            return;
        }
        let place = if at.is_empty() { "the answer" } else { at };
        self.found.push(format!("{place} {}", what()));
    }

    /// Whether nothing more can change the result.
    fn is_over(&self) -> bool {
        self.stopped.is_some() || self.asked == Some(false)
    }

    fn work(&mut self, steps: usize) {
        match self.steps.checked_sub(steps) {
            Some(left) => self.steps = left,
            None => self.stopped = self.stopped.or(Some(Stopped::TooMuchWork)),
        }
    }

    fn accepts(&mut self, schema: &'a Value, value: &Value) -> bool {
        self.work(1);
        let pair: Pair = (schema, value);
        if let Some(accepted) = self.accepted.get(&pair) {
            return *accepted;
        }
        let outer = self.asked.replace(true);
        self.apply(schema, value, "");
        let accepted = std::mem::replace(&mut self.asked, outer) == Some(true);
        self.accepted.insert(pair, accepted);
        accepted
    }

    fn value(&mut self, schema: &'a Value, value: &Value, at: &str) {
        if self.is_over() {
            return;
        }
        if self.asked.is_some() {
            self.asked = Some(self.accepts(schema, value));
            return;
        }
        self.work(1);
        if self.told.insert((schema, value)) {
            self.checked += 1;
            self.apply(schema, value, at);
        }
    }

    fn apply(&mut self, schema: &'a Value, value: &Value, at: &str) {
        if self.depth == DEPTH_MAX {
            self.stopped = self.stopped.or(Some(Stopped::TooDeep));
        }
        if self.is_over() {
            return;
        }
        self.depth += 1;
        match schema {
            Value::Bool(true) => {}
            Value::Bool(false) => self.wrong(at, || "is not allowed".to_owned()),
            Value::Object(keywords) => self.keywords(keywords, value, at),
            _ => self.wrong(at, || "has no schema that is one".to_owned()),
        }
        self.depth -= 1;
    }

    /// The place of a part.
    fn below(&self, at: &str, part: impl std::fmt::Display) -> String {
        if self.asked.is_some() { String::new() } else { format!("{at}/{part}") }
    }

    fn keywords(&mut self, keywords: &'a Map<String, Value>, value: &Value, at: &str) {
        if let Some(to) = keywords.get("$ref").and_then(Value::as_str) {
            match self.root.pointer(&to[1..]) {
                Some(schema) => self.value(schema, value, at),
                None => self.wrong(at, || format!("has the schema {to}, which is not there")),
            }
        }
        if let Some(types) = keywords.get("type") {
            let any = match types {
                Value::Array(any) => any.iter().filter_map(Value::as_str).collect(),
                one => one.as_str().into_iter().collect::<Vec<_>>(),
            };
            if !any.iter().any(|name| is_of(name, value)) {
                self.wrong(at, || format!("is {}, expected {}", kind_of(value), any.join(" or ")));
                return;
            }
        }
        let listed = keywords.get("enum").and_then(Value::as_array);
        self.work(listed.map_or(0, Vec::len));
        if let Some(any) = listed
            && !any.iter().any(|one| equal(one, value))
        {
            self.wrong(at, || {
                let any: Vec<String> = any.iter().map(ToString::to_string).collect();
                format!("is {value}, expected one of {}", any.join(", "))
            });
        }
        if let Some(one) = keywords.get("const").filter(|one| !equal(one, value)) {
            self.wrong(at, || format!("is {value}, expected {one}"));
        }
        if self.is_over() {
            return;
        }
        self.combined(keywords, value, at);
        match value {
            Value::Object(object) => self.object(keywords, object, at),
            Value::Array(array) => self.array(keywords, array, at),
            Value::String(text) => {
                if keywords.contains_key("minLength") || keywords.contains_key("maxLength") {
                    self.work(text.len() / 16);
                    self.bounds(keywords, &text.chars().count().into(), "minLength", "maxLength", at);
                }
            }
            Value::Number(number) => self.number(keywords, number, at),
            Value::Null | Value::Bool(_) => {}
        }
    }

    fn combined(&mut self, keywords: &'a Map<String, Value>, value: &Value, at: &str) {
        let list = |name: &str| keywords.get(name).and_then(Value::as_array);
        for schema in list("allOf").into_iter().flatten() {
            self.value(schema, value, at);
        }
        if let Some(any) = list("anyOf")
            && !any.iter().any(|schema| self.accepts(schema, value))
        {
            self.wrong(at, || "fits none of `anyOf`".to_owned());
        }
        if let Some(any) = list("oneOf") {
            let fitting = any.iter().filter(|schema| self.accepts(schema, value)).count();
            if fitting != 1 {
                self.wrong(at, || format!("fits {fitting} of `oneOf`, expected one"));
            }
        }
        if let Some(schema) = keywords.get("not")
            && self.accepts(schema, value)
        {
            self.wrong(at, || "fits `not`".to_owned());
        }
    }

    fn object(&mut self, keywords: &'a Map<String, Value>, object: &Map<String, Value>, at: &str) {
        self.bounds(keywords, &object.len().into(), "minProperties", "maxProperties", at);
        let properties = keywords.get("properties").and_then(Value::as_object);
        for name in keywords.get("required").and_then(Value::as_array).into_iter().flatten() {
            let name = name.as_str().unwrap_or_default();
            self.work(1);
            self.checked += u32::from(self.asked.is_none());
            if !object.contains_key(name) {
                self.wrong(&self.below(at, name), || "is missing".to_owned());
            }
        }
        for (name, value) in object {
            if self.is_over() {
                return;
            }
            let at = self.below(at, name);
            match (properties.and_then(|known| known.get(name)), keywords.get("additionalProperties")) {
                (Some(schema), _) => self.value(schema, value, &at),
                (None, Some(schema)) => self.value(schema, value, &at),
                (None, None) => {}
            }
        }
    }

    fn array(&mut self, keywords: &'a Map<String, Value>, array: &[Value], at: &str) {
        self.bounds(keywords, &array.len().into(), "minItems", "maxItems", at);
        let first =
            keywords.get("prefixItems").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        for (place, value) in array.iter().enumerate() {
            if self.is_over() {
                return;
            }
            let at = self.below(at, place);
            match (first.get(place), keywords.get("items")) {
                (Some(schema), _) | (None, Some(schema)) => self.value(schema, value, &at),
                (None, None) => {}
            }
        }
        let unique = keywords.get("uniqueItems").and_then(Value::as_bool).unwrap_or(false);
        let mut seen = BTreeSet::new();
        let mut all_differ = true;
        for one in array.iter().filter(|_| unique) {
            let text = canonical(one);
            self.work(text.len());
            all_differ &= seen.insert(text);
        }
        if !all_differ {
            self.wrong(at, || "has an item twice".to_owned());
        }
    }

    fn number(&mut self, keywords: &Map<String, Value>, number: &Number, at: &str) {
        self.bounds(keywords, number, "minimum", "maximum", at);
        let bound = |name: &str| keywords.get(name).and_then(Value::as_number);
        if let Some(least) = bound("exclusiveMinimum").filter(|least| order(number, least).is_le()) {
            self.wrong(at, || format!("is {number}, expected more than {least}"));
        }
        if let Some(most) = bound("exclusiveMaximum").filter(|most| order(number, most).is_ge()) {
            self.wrong(at, || format!("is {number}, expected less than {most}"));
        }
        if let Some(step) = bound("multipleOf").filter(|step| !is_multiple(number, step)) {
            self.wrong(at, || format!("is {number}, expected a multiple of {step}"));
        }
    }

    fn bounds(&mut self, keywords: &Map<String, Value>, size: &Number, least: &str, most: &str, at: &str) {
        let bound = |name: &str| keywords.get(name).and_then(Value::as_number);
        if let Some(least) = bound(least).filter(|least| order(size, least).is_lt()) {
            self.wrong(at, || format!("is {size}, expected at least {least}"));
        }
        if let Some(most) = bound(most).filter(|most| order(size, most).is_gt()) {
            self.wrong(at, || format!("is {size}, expected at most {most}"));
        }
    }
}

pub(crate) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn is_of(name: &str, value: &Value) -> bool {
    match name {
        "integer" => value.as_number().is_some_and(is_whole),
        name => name == kind_of(value),
    }
}

/// By value: 1 and 1.0 are the same, and the order of an object's names says nothing.
fn equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => order(one, other).is_eq(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| equal(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            let same = |(name, one)| other.get(name).is_some_and(|other| equal(one, other));
            one.len() == other.len() && one.iter().all(same)
        }
        (one, other) => one == other,
    }
}

/// The same text for the same value.
fn canonical(value: &Value) -> String {
    match value {
        Value::Number(number) => number::canonical(number),
        Value::Array(array) => {
            format!("[{}]", array.iter().map(canonical).collect::<Vec<_>>().join(","))
        }
        Value::Object(object) => {
            let mut fields: Vec<String> = object
                .iter()
                .map(|(name, value)| format!("{}:{}", Value::from(name.as_str()), canonical(value)))
                .collect();
            fields.sort();
            format!("{{{}}}", fields.join(","))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check;
    use espalier_sdk::serde_json::{self, json};

    #[test]
    fn each_keyword_is_checked() {
        for (schema, good, bad) in [
            (json!({ "type": "integer" }), json!(3.0), json!(3.5)),
            (json!({ "type": ["string", "null"] }), json!(null), json!(1)),
            (json!({ "enum": [1, "a"] }), json!(1.0), json!("b")),
            (json!({ "const": { "a": 1 } }), json!({ "a": 1 }), json!({ "a": 2 })),
            (json!({ "required": ["a"] }), json!({ "a": null }), json!({})),
            (json!({ "properties": { "a": { "type": "string" } } }), json!({ "a": "x" }), json!({ "a": 1 })),
            (
                json!({ "properties": { "a": true }, "additionalProperties": false }),
                json!({ "a": 1 }),
                json!({ "b": 1 }),
            ),
            (json!({ "items": { "minimum": 1 }, "maxItems": 2 }), json!([1, 2]), json!([1, 2, 3])),
            (
                json!({ "prefixItems": [{ "type": "string" }], "items": { "type": "number" } }),
                json!(["a", 1]),
                json!([1]),
            ),
            (json!({ "uniqueItems": true }), json!([1, 2]), json!([1, 1.0])),
            (
                json!({ "exclusiveMinimum": 0, "exclusiveMaximum": 2, "multipleOf": 0.5 }),
                json!(1.5),
                json!(0),
            ),
            (json!({ "minLength": 2, "maxLength": 3 }), json!("\u{e4}\u{f6}"), json!("a")),
            (json!({ "anyOf": [{ "type": "string" }, { "minimum": 5 }] }), json!(5), json!(4)),
            (json!({ "oneOf": [{ "minimum": 5 }, { "maximum": 6 }] }), json!(7), json!(5)),
            (json!({ "not": { "type": "null" } }), json!(0), json!(null)),
            (
                json!({ "$defs": { "n": { "type": "number" } }, "items": { "$ref": "#/$defs/n" } }),
                json!([1]),
                json!(["x"]),
            ),
        ] {
            assert_eq!(check(&schema), Ok(()), "{schema}");
            assert_eq!(violations(&schema, &good).unwrap().1, Vec::<String>::new(), "{schema}");
            assert!(!violations(&schema, &bad).unwrap().1.is_empty(), "{schema} {bad}");
        }
    }

    #[test]
    fn what_is_wrong_names_its_place_and_an_unknown_keyword_is_refused() {
        let schema = json!({ "properties": { "items": { "items": { "required": ["id"] } } } });
        let (_, found) = violations(&schema, &json!({ "items": [{ "id": 1 }, {}] })).unwrap();
        assert_eq!(found, ["/items/1/id is missing"]);
        let refused = check(&json!({ "properties": { "a": { "pattern": "^x" } } })).unwrap_err();
        assert!(
            refused.to_string().starts_with("schema/properties/a: the keyword `pattern` is not supported")
        );
    }

    #[test]
    fn recursion_through_values_is_as_deep_as_json_can_be() {
        let list = json!({
            "$defs": { "list": { "allOf": [{ "type": ["array", "integer"] }], "items": { "$ref": "#/$defs/list" } } },
            "$ref": "#/$defs/list",
        });
        assert_eq!(check(&list), Ok(()));
        let nested = |inner: Value| (0..120).fold(inner, |value, _| json!([value]));
        assert_eq!(violations(&list, &nested(json!(1))).unwrap().1, Vec::<String>::new());
        assert!(!violations(&list, &nested(json!("x"))).unwrap().1.is_empty());
        let without = json!({ "not": list["$defs"]["list"].clone(), "$defs": list["$defs"].clone() });
        assert!(!violations(&without, &nested(json!(1))).unwrap().1.is_empty());
        let unique = json!({ "uniqueItems": true });
        let items: Vec<u32> = (0..60_000).collect();
        assert_eq!(violations(&unique, &json!(items)).unwrap().1, Vec::<String>::new());
    }

    #[test]
    fn numbers_are_compared_by_value() {
        for (keyword, bound, number, fits) in [
            ("const", "0", "-0", true),
            ("const", "0", "-0.0", true),
            ("const", "[1]", "[1.0]", true),
            ("const", "1000000000000000", "1e15", true),
            ("const", "9007199254740993", "9007199254740992.0", false),
            ("const", "9007199254740993", "9007199254740992", false),
            ("const", "-9223372036854775808", "-9223372036854775808.0", true),
            ("const", "{\"a\": 1, \"b\": [2]}", "{\"b\": [2.0], \"a\": 1e0}", true),
            ("const", "{\"a\": 1}", "{\"a\": 1, \"b\": 2}", false),
            ("const", "0.1", "1e-1", true),
            ("type", "\"integer\"", "1e300", true),
            ("type", "\"integer\"", "4503599627370495.5", false),
            ("minimum", "9007199254740993", "9007199254740992", false),
            ("exclusiveMaximum", "18446744073709551615", "18446744073709551614", true),
            ("multipleOf", "2", "9007199254740993", false),
            ("multipleOf", "0.01", "1.15", true),
            ("uniqueItems", "true", "[1000000000000000, 1e15]", false),
            ("uniqueItems", "true", "[0, -0.0]", false),
        ] {
            let schema = serde_json::from_str(&format!("{{\"{keyword}\": {bound}}}")).unwrap();
            let (_, found) = violations(&schema, &serde_json::from_str(number).unwrap()).unwrap();
            assert_eq!(found.is_empty(), fits, "{keyword} {bound} {number}: {found:?}");
        }
    }

    #[test]
    fn work_grows_with_schema_and_value_and_has_an_end() {
        let call = |op: &str| json!({ "type": "object", "required": ["op"], "properties": { "op": { "const": op }, "arg": { "$ref": "#/$defs/e" } } });
        let nested = |leaf: &str| (0..60).fold(json!(leaf), |arg, _| json!({ "op": "b", "arg": arg }));
        for choice in ["oneOf", "anyOf", "allOf"] {
            let calls = if choice == "allOf" { [call("b"), call("b")] } else { [call("a"), call("b")] };
            let mut expression = json!({ choice: calls });
            if choice != "allOf" {
                expression = json!({ "anyOf": [{ "const": "x" }, expression] });
            }
            let schema = json!({ "$defs": { "e": expression }, "$ref": "#/$defs/e" });
            for (leaf, fits) in [("x", choice != "allOf"), ("y", false)] {
                let (_, found) = violations_within(20_000, &schema, &nested(leaf)).unwrap();
                assert_eq!(found.is_empty(), fits, "{choice} {leaf}: {found:?}");
            }
        }
        let each = json!({ "items": { "oneOf": [{ "const": 1 }, { "const": 2 }] } });
        for (steps, ends) in [(10_000, true), (1_000, false)] {
            let result = violations_within(steps, &each, &json!(vec![1; 1_000]));
            let expect = if ends { Ok((1_001, Vec::new())) } else { Err(Stopped::TooMuchWork) };
            assert_eq!(result, expect, "{steps}");
        }
        let chain = |links: usize| {
            let link =
                |at: usize| (at.to_string(), json!({ "anyOf": [{ "$ref": format!("#/$defs/{}", at + 1) }] }));
            let mut defs: Map<String, Value> = (0..links).map(link).collect();
            defs.insert(links.to_string(), json!(true));
            json!({ "$defs": defs, "items": { "$ref": "#/$defs/0" } })
        };
        assert!(violations(&chain(340), &json!([1])).is_ok());
        assert_eq!(violations(&chain(360), &json!([1])), Err(Stopped::TooDeep));
    }
}
