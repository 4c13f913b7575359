//! JSON Schema (draft 2020-12) as far as answers of models are described with it. A keyword that is not known is refused: a schema
//! that is half read would pass what it should not.

use espalier_sdk::serde_json::{Map, Value};

/// Keywords that say nothing about what is valid.
const NOTES: [&str; 9] =
    ["$schema", "$id", "$comment", "$defs", "title", "description", "default", "examples", "deprecated"];

/// A keyword of the schema that is not checked here.
#[derive(Debug, PartialEq, Eq)]
pub struct Unsupported {
    at: String,
    keyword: String,
}

impl std::fmt::Display for Unsupported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "schema{}: the keyword `{}` is not supported; known are type, enum, const, properties, required, \
             additionalProperties, items, prefixItems, minItems, maxItems, uniqueItems, minimum, maximum, exclusiveMinimum, \
             exclusiveMaximum, multipleOf, minLength, maxLength, minProperties, maxProperties, anyOf, oneOf, allOf, not, $ref to \
             #/$defs",
            self.at, self.keyword
        )
    }
}

/// Whether every keyword of the schema is known.
pub fn check(schema: &Value) -> Result<(), Unsupported> {
    check_at(schema, "")
}

fn check_at(schema: &Value, at: &str) -> Result<(), Unsupported> {
    let Value::Object(keywords) = schema else { return Ok(()) };
    for (keyword, value) in keywords {
        let below = |name: &str| format!("{at}/{keyword}{name}");
        match keyword.as_str() {
            "properties" | "$defs" => {
                for (name, schema) in value.as_object().into_iter().flatten() {
                    check_at(schema, &below(&format!("/{name}")))?;
                }
            }
            "items" | "additionalProperties" | "not" => check_at(value, &below(""))?,
            "anyOf" | "oneOf" | "allOf" | "prefixItems" => {
                for (place, schema) in value.as_array().into_iter().flatten().enumerate() {
                    check_at(schema, &below(&format!("/{place}")))?;
                }
            }
            "$ref" if value.as_str().is_some_and(|to| to.starts_with("#/$defs/")) => {}
            "type" | "enum" | "const" | "required" | "minItems" | "maxItems" | "uniqueItems" | "minimum"
            | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf" | "minLength"
            | "maxLength" | "minProperties" | "maxProperties" => {}
            keyword if NOTES.contains(&keyword) => {}
            keyword => return Err(Unsupported { at: at.to_owned(), keyword: keyword.to_owned() }),
        }
    }
    Ok(())
}

/// How many places of the value were checked, and what is wrong in them.
pub fn violations(schema: &Value, value: &Value) -> (u32, Vec<String>) {
    let mut validator = Validator { root: schema, checked: 0, found: Vec::new(), depth: 0 };
    validator.value(schema, value, "");
    (validator.checked, validator.found)
}

/// Deepest nesting of schema and value: a `$ref` may lead to itself.
const DEPTH_MAX: u32 = 200;

struct Validator<'a> {
    root: &'a Value,
    checked: u32,
    found: Vec<String>,
    depth: u32,
}

impl<'a> Validator<'a> {
    fn wrong(&mut self, at: &str, what: &str) {
        let place = if at.is_empty() { "the answer" } else { at };
        self.found.push(format!("{place} {what}"));
    }

    fn accepts(&self, schema: &'a Value, value: &Value) -> bool {
        let mut inner = Validator { root: self.root, checked: 0, found: Vec::new(), depth: self.depth };
        inner.value(schema, value, "");
        inner.found.is_empty()
    }

    fn value(&mut self, schema: &'a Value, value: &Value, at: &str) {
        self.checked += 1;
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            self.wrong(at, "is nested too deep");
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
        let twice = |(place, one): (usize, &Value)| array[..place].iter().any(|other| equal(one, other));
        if unique && array.iter().enumerate().any(twice) {
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

/// Numbers by value: 1 and 1.0 are the same.
fn equal(one: &Value, other: &Value) -> bool {
    match (one.as_f64(), other.as_f64()) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
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
            assert_eq!(violations(&schema, &good).1, Vec::<String>::new(), "{schema}");
            assert!(!violations(&schema, &bad).1.is_empty(), "{schema} {bad}");
        }
    }

    #[test]
    fn what_is_wrong_names_its_place_and_an_unknown_keyword_is_refused() {
        let schema = json!({ "properties": { "items": { "items": { "required": ["id"] } } } });
        let (_, found) = violations(&schema, &json!({ "items": [{ "id": 1 }, {}] }));
        assert_eq!(found, ["/items/1/id is missing"]);
        let refused = check(&json!({ "properties": { "a": { "pattern": "^x" } } })).unwrap_err();
        assert!(
            refused.to_string().starts_with("schema/properties/a: the keyword `pattern` is not supported")
        );
        let endless = json!({ "$defs": { "a": { "$ref": "#/$defs/a" } }, "$ref": "#/$defs/a" });
        assert_eq!(violations(&endless, &json!(1)).1, ["the answer is nested too deep"]);
    }
}
