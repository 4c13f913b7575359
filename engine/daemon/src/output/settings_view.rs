//! The settings of a plugin as `plugin check` shows them: the first level of their JSON Schema.

use super::text::{one_line, wrap};
use super::{Look, styles};
use serde_json::Value;

/// Columns before a description.
const INDENT: usize = 4;

/// Of each setting what it may be and its default, and below it what it does.
pub fn lines(schema: &Value, look: &Look) -> Vec<String> {
    let properties = schema["properties"].as_object();
    properties
        .into_iter()
        .flatten()
        .flat_map(|(name, property)| setting_lines(schema, name, property, look))
        .collect()
}

fn setting_lines(schema: &Value, name: &str, property: &Value, look: &Look) -> Vec<String> {
    let mut facts = type_of(schema, property, DEPTH_MAX).join(" | ");
    if let Some(default) = property.get("default") {
        let comma = if facts.is_empty() { "" } else { ", " };
        facts.push_str(&format!("{comma}default {default}"));
    }
    let name = one_line(name);
    let head = wrap(&format!("{name}  {}", one_line(&facts)), look.width.saturating_sub(INDENT));
    let description = description(schema, property);
    let below = if description.is_empty() {
        Vec::new()
    } else {
        wrap(&one_line(&description.replace('\n', " ")), look.width.saturating_sub(INDENT))
    };
    let indented = |line: &String| format!("{:INDENT$}{line}", "").trim_end().to_owned();
    let first = head.iter().take(1).map(|line| match line.strip_prefix(&name) {
        Some(facts) => format!("{}{facts}", look.paint(styles::STRONG, &name)),
        None => line.clone(),
    });
    let further = head.iter().skip(1).map(indented);
    let below = below.iter().map(|line| look.paint(styles::FAINT, &indented(line)));
    first.chain(further).chain(below).collect()
}

/// References and choices followed, one within another.
const DEPTH_MAX: usize = 8;

/// What a value may be, each alternative once: the names of types, or the allowed values themselves. Empty: anything.
fn type_of(schema: &Value, at: &Value, depth: usize) -> Vec<String> {
    let Some(depth) = depth.checked_sub(1) else { return Vec::new() };
    if let Some(value) = at.get("const") {
        return vec![value.to_string()];
    }
    if let Some(values) = at["enum"].as_array() {
        return values.iter().map(Value::to_string).collect();
    }
    if let Some(target) = referred(schema, at) {
        return type_of(schema, target, depth);
    }
    if let Some(choices) = ["oneOf", "anyOf", "allOf"].iter().find_map(|key| at[*key].as_array()) {
        let mut all = Vec::new();
        for one in choices.iter().flat_map(|choice| type_of(schema, choice, depth)) {
            if !all.contains(&one) {
                all.push(one);
            }
        }
        return all;
    }
    let named = |word: &str| match word {
        "array" => match type_of(schema, &at["items"], depth).as_slice() {
            [] => "array".to_owned(),
            items => format!("array of {}", items.join(" | ")),
        },
        word => word.to_owned(),
    };
    match &at["type"] {
        Value::String(word) => vec![named(word)],
        Value::Array(words) => words.iter().filter_map(Value::as_str).map(named).collect(),
        _ => Vec::new(),
    }
}

/// The description of the setting, or of what it refers to.
fn description(schema: &Value, property: &Value) -> String {
    let own = property["description"].as_str();
    let of_target = || referred(schema, property)?["description"].as_str();
    own.or_else(of_target).unwrap_or_default().to_owned()
}

/// What a `$ref` into the same schema leads to.
fn referred<'a>(schema: &'a Value, at: &Value) -> Option<&'a Value> {
    schema.pointer(at["$ref"].as_str()?.strip_prefix('#')?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Look;
    use serde_json::json;

    #[test]
    fn allowed_values_are_named_and_nothing_is_cut() {
        let schema = json!({
            "properties": {
                "form": { "enum": ["boxed", "json", "line"], "default": "boxed", "description": "How a verdict is written." },
                "take": { "$ref": "#/$defs/Take", "default": "last" },
                "limit": { "type": ["integer", "null"], "default": null, "description": "Most of them.\nNone: all." },
                "of": { "anyOf": [{ "$ref": "#/$defs/Take" }, { "type": "null" }] },
                "stop": { "type": "array", "items": { "type": "string" }, "default": [],
                          "description": "Texts that end an answer, none of which is a part of it. The first one that occurs counts, wherever it stands." },
                "any": {},
            },
            "$defs": { "Take": {
                "description": "Which number is the answer.",
                "oneOf": [{ "const": "last", "description": "The last." }, { "const": "only" }],
            } },
        });
        let look = Look { colour: false, width: 80, terminal: true };
        insta::assert_snapshot!(lines(&schema, &look).join("\n"), @r#"
        form  "boxed" | "json" | "line", default "boxed"
            How a verdict is written.
        take  "last" | "only", default "last"
            Which number is the answer.
        limit  integer | null, default null
            Most of them. None: all.
        of  "last" | "only" | null
        stop  array of string, default []
            Texts that end an answer, none of which is a part of it. The first one that
            occurs counts, wherever it stands.
        any
        "#);
    }

    #[test]
    fn a_schema_that_refers_to_itself_ends() {
        let schema = json!({ "properties": { "a": { "$ref": "#/properties/a" } } });
        let look = Look { colour: false, width: 80, terminal: true };
        assert_eq!(lines(&schema, &look), ["a"]);
    }
}
