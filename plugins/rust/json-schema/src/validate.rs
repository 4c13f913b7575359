//! JSON Schema (draft 2020-12) as far as answers of models are described with it. A keyword that is not known is refused: a schema
//! that is half read would pass what it should not.

use espalier_sdk::serde_json::{Map, Value};
use std::collections::BTreeSet;

/// Keywords that say nothing about what is valid.
const NOTES: [&str; 9] =
    ["$schema", "$id", "$comment", "$defs", "title", "description", "default", "examples", "deprecated"];

/// A part of the schema that cannot be checked here.
#[derive(Debug, PartialEq, Eq)]
pub struct Unsupported {
    at: String,
    what: String,
}

impl std::fmt::Display for Unsupported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "schema{}: {}", self.at, self.what)
    }
}

const KNOWN: &str = "known are type, enum, const, properties, required, additionalProperties, items, prefixItems, minItems, maxItems, \
    uniqueItems, minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf, minLength, maxLength, minProperties, \
    maxProperties, anyOf, oneOf, allOf, not, $ref to #/$defs";

/// Names of `type`.
const TYPES: [&str; 7] = ["null", "boolean", "number", "integer", "string", "array", "object"];

/// Whether every keyword of the schema is known and has a value of its form, and no `$ref` leads to itself.
pub fn check(schema: &Value) -> Result<(), Unsupported> {
    check_at(schema, "")?;
    let mut seen = Vec::new();
    check_loops(schema, schema, &mut seen)?;
    let defs = schema.get("$defs").and_then(Value::as_object);
    for schema_of_name in defs.into_iter().flat_map(Map::values) {
        check_loops(schema, schema_of_name, &mut seen)?;
    }
    Ok(())
}

fn check_at(schema: &Value, at: &str) -> Result<(), Unsupported> {
    let refuse = |at: String, what: String| Err(Unsupported { at, what });
    let keywords = match schema {
        Value::Object(keywords) => keywords,
        Value::Bool(_) => return Ok(()),
        other => {
            return refuse(
                at.to_owned(),
                format!("is {}, expected a schema: an object or a boolean", kind_of(other)),
            );
        }
    };
    for (keyword, value) in keywords {
        let below = |name: &str| format!("{at}/{keyword}{name}");
        let expected = |what: &str| refuse(below(""), format!("is {value}, expected {what}"));
        match keyword.as_str() {
            "properties" | "$defs" => {
                let Some(schemas) = value.as_object() else { return expected("an object of schemas") };
                for (name, schema) in schemas {
                    check_at(schema, &below(&format!("/{name}")))?;
                }
            }
            "items" | "additionalProperties" | "not" => check_at(value, &below(""))?,
            "anyOf" | "oneOf" | "allOf" | "prefixItems" => {
                let Some(schemas) = value.as_array().filter(|list| !list.is_empty()) else {
                    return expected("a list of schemas");
                };
                for (place, schema) in schemas.iter().enumerate() {
                    check_at(schema, &below(&format!("/{place}")))?;
                }
            }
            "$ref" if value.as_str().is_some_and(|to| to.starts_with("#/$defs/")) => {}
            "type" => {
                let one = std::slice::from_ref(value);
                let names = value.as_array().map_or(one, Vec::as_slice);
                let known = |name: &Value| name.as_str().is_some_and(|name| TYPES.contains(&name));
                if names.is_empty() || !names.iter().all(known) {
                    return expected(&format!("one or a list of {}", TYPES.join(", ")));
                }
            }
            "enum" if value.is_array() => {}
            "enum" => return expected("a list of values"),
            "required" if value.as_array().is_some_and(|names| names.iter().all(Value::is_string)) => {}
            "required" => return expected("a list of names"),
            "uniqueItems" if value.is_boolean() => {}
            "uniqueItems" => return expected("a boolean"),
            "minItems" | "maxItems" | "minLength" | "maxLength" | "minProperties" | "maxProperties" => {
                if !value.as_f64().is_some_and(|size| size >= 0.0 && size.fract() == 0.0) {
                    return expected("a number of 0 or more without a fraction");
                }
            }
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" if value.is_number() => {}
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => return expected("a number"),
            "multipleOf" if value.as_f64().is_some_and(|step| step > 0.0) => {}
            "multipleOf" => return expected("a number above 0"),
            "const" => {}
            keyword if NOTES.contains(&keyword) => {}
            keyword => {
                return refuse(at.to_owned(), format!("the keyword `{keyword}` is not supported; {KNOWN}"));
            }
        }
    }
    Ok(())
}

/// Refuses schemas that are applied to a value again and again without going into it. `path`: those that are being applied.
fn check_loops<'a>(root: &'a Value, schema: &'a Value, path: &mut Vec<&'a str>) -> Result<(), Unsupported> {
    let Value::Object(keywords) = schema else { return Ok(()) };
    if let Some(to) = keywords.get("$ref").and_then(Value::as_str) {
        let refuse = |what: &str| Err(Unsupported { at: String::new(), what: format!("`$ref` {to} {what}") });
        if path.contains(&to) {
            return refuse("leads to itself");
        }
        let Some(next) = root.pointer(&to[1..]) else { return refuse("is not there") };
        path.push(to);
        check_loops(root, next, path)?;
        path.pop();
    }
    let lists = ["allOf", "anyOf", "oneOf"].into_iter().filter_map(|name| keywords.get(name)?.as_array());
    for schema in lists.flatten().chain(keywords.get("not")) {
        check_loops(root, schema, path)?;
    }
    Ok(())
}

/// How many places of the value were checked, and what is wrong in them. `None`: they are nested too deep to tell.
pub fn violations(schema: &Value, value: &Value) -> Option<(u32, Vec<String>)> {
    let mut validator = Validator { root: schema, checked: 0, found: Vec::new(), depth: 0, too_deep: false };
    validator.value(schema, value, "");
    (!validator.too_deep).then_some((validator.checked, validator.found))
}

/// Deepest nesting of schema and value together. JSON that is nested deeper than 128 is none.
const DEPTH_MAX: u32 = 1_000;

struct Validator<'a> {
    root: &'a Value,
    checked: u32,
    found: Vec<String>,
    depth: u32,
    too_deep: bool,
}

impl<'a> Validator<'a> {
    fn wrong(&mut self, at: &str, what: &str) {
        let place = if at.is_empty() { "the answer" } else { at };
        self.found.push(format!("{place} {what}"));
    }

    fn accepts(&mut self, schema: &'a Value, value: &Value) -> bool {
        let (root, depth) = (self.root, self.depth);
        let mut inner = Validator { root, checked: 0, found: Vec::new(), depth, too_deep: false };
        inner.value(schema, value, "");
        self.too_deep |= inner.too_deep;
        inner.found.is_empty()
    }

    fn value(&mut self, schema: &'a Value, value: &Value, at: &str) {
        self.checked += 1;
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            self.too_deep = true;
        } else {
            match schema {
                Value::Bool(true) => {}
                Value::Bool(false) => self.wrong(at, "is not allowed"),
                Value::Object(keywords) => self.keywords(keywords, value, at),
                _ => self.wrong(at, "has no schema that is one"),
            }
        }
        self.depth -= 1;
    }

    fn keywords(&mut self, keywords: &'a Map<String, Value>, value: &Value, at: &str) {
        if let Some(to) = keywords.get("$ref").and_then(Value::as_str) {
            match self.root.pointer(&to[1..]) {
                Some(schema) => self.value(schema, value, at),
                None => self.wrong(at, &format!("has the schema {to}, which is not there")),
            }
        }
        if let Some(types) = keywords.get("type") {
            let any = match types {
                Value::Array(any) => any.iter().filter_map(Value::as_str).collect(),
                one => one.as_str().into_iter().collect::<Vec<_>>(),
            };
            if !any.iter().any(|name| is_of(name, value)) {
                self.wrong(at, &format!("is {}, expected {}", kind_of(value), any.join(" or ")));
                return;
            }
        }
        if let Some(any) = keywords.get("enum").and_then(Value::as_array)
            && !any.iter().any(|one| equal(one, value))
        {
            let any: Vec<String> = any.iter().map(ToString::to_string).collect();
            self.wrong(at, &format!("is {value}, expected one of {}", any.join(", ")));
        }
        if let Some(one) = keywords.get("const").filter(|one| !equal(one, value)) {
            self.wrong(at, &format!("is {value}, expected {one}"));
        }
        self.combined(keywords, value, at);
        match value {
            Value::Object(object) => self.object(keywords, object, at),
            Value::Array(array) => self.array(keywords, array, at),
            Value::String(text) => {
                self.bounds(keywords, text.chars().count() as f64, "minLength", "maxLength", at)
            }
            Value::Number(number) => self.number(keywords, number.as_f64().unwrap_or(f64::NAN), at),
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
            self.wrong(at, "fits none of `anyOf`");
        }
        if let Some(any) = list("oneOf") {
            let fitting = any.iter().filter(|schema| self.accepts(schema, value)).count();
            if fitting != 1 {
                self.wrong(at, &format!("fits {fitting} of `oneOf`, expected one"));
            }
        }
        if let Some(schema) = keywords.get("not")
            && self.accepts(schema, value)
        {
            self.wrong(at, "fits `not`");
        }
    }

    fn object(&mut self, keywords: &'a Map<String, Value>, object: &Map<String, Value>, at: &str) {
        self.bounds(keywords, object.len() as f64, "minProperties", "maxProperties", at);
        let properties = keywords.get("properties").and_then(Value::as_object);
        for name in keywords.get("required").and_then(Value::as_array).into_iter().flatten() {
            let name = name.as_str().unwrap_or_default();
            self.checked += 1;
            if !object.contains_key(name) {
                self.wrong(&format!("{at}/{name}"), "is missing");
            }
        }
        for (name, value) in object {
            let at = format!("{at}/{name}");
            match (properties.and_then(|known| known.get(name)), keywords.get("additionalProperties")) {
                (Some(schema), _) => self.value(schema, value, &at),
                (None, Some(schema)) => self.value(schema, value, &at),
                (None, None) => {}
            }
        }
    }

    fn array(&mut self, keywords: &'a Map<String, Value>, array: &[Value], at: &str) {
        self.bounds(keywords, array.len() as f64, "minItems", "maxItems", at);
        let first =
            keywords.get("prefixItems").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        for (place, value) in array.iter().enumerate() {
            let at = format!("{at}/{place}");
            match (first.get(place), keywords.get("items")) {
                (Some(schema), _) | (None, Some(schema)) => self.value(schema, value, &at),
                (None, None) => {}
            }
        }
        let unique = keywords.get("uniqueItems").and_then(Value::as_bool).unwrap_or(false);
        let mut seen = BTreeSet::new();
        if unique && !array.iter().all(|one| seen.insert(canonical(one))) {
            self.wrong(at, "has an item twice");
        }
    }

    fn number(&mut self, keywords: &Map<String, Value>, number: f64, at: &str) {
        self.bounds(keywords, number, "minimum", "maximum", at);
        let bound = |name: &str| keywords.get(name).and_then(Value::as_f64);
        if let Some(least) = bound("exclusiveMinimum").filter(|least| number <= *least) {
            self.wrong(at, &format!("is {number}, expected more than {least}"));
        }
        if let Some(most) = bound("exclusiveMaximum").filter(|most| number >= *most) {
            self.wrong(at, &format!("is {number}, expected less than {most}"));
        }
        if let Some(step) = bound("multipleOf").filter(|step| *step > 0.0) {
            let times = number / step;
            if (times - times.round()).abs() > 1e-9 {
                self.wrong(at, &format!("is {number}, expected a multiple of {step}"));
            }
        }
    }

    fn bounds(&mut self, keywords: &Map<String, Value>, size: f64, least: &str, most: &str, at: &str) {
        let bound = |name: &str| keywords.get(name).and_then(Value::as_f64);
        if let Some(least) = bound(least).filter(|least| size < *least) {
            self.wrong(at, &format!("is {size}, expected at least {least}"));
        }
        if let Some(most) = bound(most).filter(|most| size > *most) {
            self.wrong(at, &format!("is {size}, expected at most {most}"));
        }
    }
}

fn kind_of(value: &Value) -> &'static str {
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
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        name => name == kind_of(value),
    }
}

/// By value: 1 and 1.0 are the same, and the order of an object's names says nothing.
fn equal(one: &Value, other: &Value) -> bool {
    canonical(one) == canonical(other)
}

/// The same text for the same value.
fn canonical(value: &Value) -> String {
    match value {
        Value::Number(number) => match number.as_f64() {
            Some(float)
                if !number.is_i64() && !number.is_u64() && float.fract() == 0.0 && float.abs() < 1e15 =>
            {
                format!("{float:.0}")
            }
            _ => number.to_string(),
        },
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
    use espalier_sdk::serde_json::json;

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
        let endless = json!({ "$defs": { "a": { "$ref": "#/$defs/a" } }, "$ref": "#/$defs/a" });
        assert_eq!(check(&endless).unwrap_err().to_string(), "schema: `$ref` #/$defs/a leads to itself");
    }

    #[test]
    fn values_that_keywords_cannot_have_are_refused() {
        for (schema, told) in [
            (json!({ "required": "name" }), "schema/required: is \"name\", expected a list of names"),
            (
                json!({ "minimum": 0, "exclusiveMinimum": true }),
                "schema/exclusiveMinimum: is true, expected a number",
            ),
            (json!({ "enum": "a" }), "schema/enum: is \"a\", expected a list of values"),
            (
                json!({ "minLength": "5" }),
                "schema/minLength: is \"5\", expected a number of 0 or more without a fraction",
            ),
            (
                json!({ "items": [{}, {}] }),
                "schema/items: is array, expected a schema: an object or a boolean",
            ),
            (json!({ "$ref": "#/$defs/b" }), "schema: `$ref` #/$defs/b is not there"),
            (
                json!({ "type": "text" }),
                "schema/type: is \"text\", expected one or a list of null, boolean, number, integer, string, array, object",
            ),
        ] {
            assert_eq!(check(&schema).unwrap_err().to_string(), told);
        }
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
        assert!(equal(&json!([1]), &json!([1.0])));
        assert!(!equal(&json!(9_007_199_254_740_993_u64), &json!(9_007_199_254_740_992_u64)));
    }
}
