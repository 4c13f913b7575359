//! Which schemas can be checked: JSON Schema (draft 2020-12) as far as answers of models are described with it. A keyword that is not known is refused: a schema
//! that is half read would pass what it should not.

use crate::number::is_whole;
use crate::validate::kind_of;
use espalier_sdk::serde_json::Value;
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

/// Whether every keyword of the schema is known and has a value of its form, and every `$ref` points at a schema and not at itself.
pub fn check(schema: &Value) -> Result<(), Unsupported> {
    let mut places = Vec::new();
    check_at(schema, "", &mut places)?;
    let schemas = places.iter().map(|(_, schema)| std::ptr::from_ref(*schema)).collect();
    let mut references = References { root: schema, schemas, ended: BTreeSet::new(), path: Vec::new() };
    places.iter().try_for_each(|(at, schema)| references.follow(schema, at))
}

/// `places`: all schemas that were seen.
fn check_at<'a>(
    schema: &'a Value,
    at: &str,
    places: &mut Vec<(String, &'a Value)>,
) -> Result<(), Unsupported> {
    places.push((at.to_owned(), schema));
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
                    check_at(schema, &below(&format!("/{name}")), places)?;
                }
            }
            "items" | "additionalProperties" | "not" => check_at(value, &below(""), places)?,
            "anyOf" | "oneOf" | "allOf" | "prefixItems" => {
                let Some(schemas) = value.as_array().filter(|list| !list.is_empty()) else {
                    return expected("a list of schemas");
                };
                for (place, schema) in schemas.iter().enumerate() {
                    check_at(schema, &below(&format!("/{place}")), places)?;
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
                if !value.as_number().is_some_and(is_whole) || value.as_f64().is_some_and(|size| size < 0.0) {
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

/// Most schemas that are applied to the same value, each by the one before it.
const PATH_MAX: usize = 128;

/// Follows each `$ref`, and refuses schemas that are applied to a value again and again without going into it.
struct References<'a> {
    root: &'a Value,
    /// Where schemas are.
    schemas: BTreeSet<*const Value>,
    /// Those that lead to no loop.
    ended: BTreeSet<*const Value>,
    /// Those that are being applied.
    path: Vec<*const Value>,
}

impl<'a> References<'a> {
    fn follow(&mut self, schema: &'a Value, at: &str) -> Result<(), Unsupported> {
        let Value::Object(keywords) = schema else { return Ok(()) };
        if self.ended.contains(&std::ptr::from_ref(schema)) {
            return Ok(());
        }
        let refuse = |what: String| Err(Unsupported { at: at.to_owned(), what });
        if self.path.len() >= PATH_MAX {
            return refuse("is reached over too many schemas".to_owned());
        }
        self.path.push(schema);
        if let Some(to) = keywords.get("$ref").and_then(Value::as_str) {
            match self.root.pointer(&to[1..]) {
                None => return refuse(format!("`$ref` {to} is not there")),
                Some(next) if !self.schemas.contains(&std::ptr::from_ref(next)) => {
                    return refuse(format!("`$ref` {to} is no schema"));
                }
                Some(next) if self.path.contains(&std::ptr::from_ref(next)) => {
                    return refuse(format!("`$ref` {to} leads to itself"));
                }
                Some(next) => self.follow(next, &to[1..])?,
            }
        }
        for name in ["allOf", "anyOf", "oneOf"] {
            for (place, schema) in
                keywords.get(name).and_then(Value::as_array).into_iter().flatten().enumerate()
            {
                self.follow(schema, &format!("{at}/{name}/{place}"))?;
            }
        }
        if let Some(schema) = keywords.get("not") {
            self.follow(schema, &format!("{at}/not"))?;
        }
        self.path.pop();
        self.ended.insert(schema);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use espalier_sdk::serde_json::json;

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
                json!({ "properties": { "a": { "$ref": "#/$defs/b" } } }),
                "schema/properties/a: `$ref` #/$defs/b is not there",
            ),
            (json!({ "items": { "$ref": "#/$defs/b" } }), "schema/items: `$ref` #/$defs/b is not there"),
            (
                json!({ "$defs": { "a": { "prefixItems": [true, { "not": { "$ref": "#/$defs/b" } }] } } }),
                "schema/$defs/a/prefixItems/1/not: `$ref` #/$defs/b is not there",
            ),
            (
                json!({ "additionalProperties": { "$ref": "#/$defs/a/const" }, "$defs": { "a": { "const": {} } } }),
                "schema/additionalProperties: `$ref` #/$defs/a/const is no schema",
            ),
            (
                json!({ "$defs": { "a": { "$ref": "#/$defs/a" } }, "$ref": "#/$defs/a" }),
                "schema/$defs/a: `$ref` #/$defs/a leads to itself",
            ),
            (
                json!({
                    "properties": { "x": { "$ref": "#/$defs/a" } },
                    "$defs": { "a": { "anyOf": [true, { "$ref": "#/$defs/b" }] }, "b": { "not": { "$ref": "#/$defs/a" } } },
                }),
                "schema/$defs/b/not: `$ref` #/$defs/a leads to itself",
            ),
            (
                json!({ "type": "text" }),
                "schema/type: is \"text\", expected one or a list of null, boolean, number, integer, string, array, object",
            ),
        ] {
            assert_eq!(check(&schema).unwrap_err().to_string(), told);
        }
    }

    #[test]
    fn references_may_lead_through_values_and_not_over_too_many_schemas() {
        for through in ["items", "additionalProperties"] {
            let schema =
                json!({ "$defs": { "a": { through: { "$ref": "#/$defs/a" } } }, "$ref": "#/$defs/a" });
            assert_eq!(check(&schema), Ok(()), "{through}");
        }
        // Each of them twice: that many ways are not followed one by one.
        let chain = |links: usize| {
            let link = |at: usize| {
                let next = json!({ "$ref": format!("#/$defs/{}", at + 1) });
                (at.to_string(), json!({ "allOf": [next, next] }))
            };
            let mut defs: espalier_sdk::serde_json::Map<String, Value> = (0..links).map(link).collect();
            defs.insert(links.to_string(), json!(true));
            json!({ "$defs": defs })
        };
        assert_eq!(check(&chain(60)), Ok(()));
        assert!(check(&chain(70)).unwrap_err().to_string().ends_with("is reached over too many schemas"));
    }
}
