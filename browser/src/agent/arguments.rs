//! Arguments of tools: each kind writes its JSON Schema and checks a value against it, so that both say the same. What
//! models commonly write otherwise is taken: numbers as text, a point as text, words in other case.

use super::key_names::canonical_key;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;

/// Keys of one call.
const KEYS_MAX: usize = 100;
/// How much of a wrong value an error shows, in characters.
const SHOWN_CHARS_MAX: usize = 80;

/// One argument of a tool.
#[derive(Debug)]
pub(super) struct Argument {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) presence: Presence,
    pub(super) description: &'static str,
}

/// What an argument takes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// `[x, y]`, each 0 to 1000.
    Point,
    /// A reference of the page description, such as `e12`.
    Ref,
    Integer {
        min: i64,
        max: i64,
    },
    Number {
        min: f64,
        max: f64,
    },
    Text {
        chars_max: usize,
    },
    Choice(&'static [&'static str]),
    Flag,
    /// Names of keys, and characters.
    Keys,
}

/// Whether an argument has to be given.
#[derive(Clone, Copy, Debug)]
pub(super) enum Presence {
    Required,
    Optional,
    /// One of those with the same label has to be given, and only one.
    Either(&'static str),
    /// At most one of those with the same label is given.
    AtMostOne(&'static str),
    Default(Preset),
}

/// A default.
#[derive(Clone, Copy, Debug)]
pub(super) enum Preset {
    Integer(i64),
    Number(f64),
    Word(&'static str),
    Flag(bool),
}

/// A value that was checked.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Checked {
    Point(f64, f64),
    Ref(u64),
    Integer(i64),
    Number(f64),
    Text(String),
    Flag(bool),
    Keys(Vec<String>),
}

/// The checked arguments of one call, with defaults.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Arguments(BTreeMap<&'static str, Checked>);

impl Kind {
    /// The JSON Schema of the argument, without its description and default.
    pub(super) fn schema(self) -> Value {
        match self {
            Kind::Point => json!({
                "type": "array", "items": { "type": "number", "minimum": 0, "maximum": 1000 }, "minItems": 2, "maxItems": 2,
            }),
            Kind::Ref => json!({ "type": "string", "pattern": "^e[0-9]+$" }),
            Kind::Integer { min, max } => json!({ "type": "integer", "minimum": min, "maximum": max }),
            Kind::Number { min, max } => json!({ "type": "number", "minimum": min, "maximum": max }),
            Kind::Text { chars_max } => json!({ "type": "string", "maxLength": chars_max }),
            Kind::Choice(words) => json!({ "type": "string", "enum": words }),
            Kind::Flag => json!({ "type": "boolean" }),
            Kind::Keys => json!({
                "type": "array", "items": { "type": "string" }, "minItems": 1, "maxItems": KEYS_MAX,
            }),
        }
    }

    /// The value, or `None` where it is none of this kind.
    fn check(self, value: &Value) -> Option<Checked> {
        match self {
            Kind::Point => point(value).map(|(x, y)| Checked::Point(x, y)),
            Kind::Ref => reference(value).map(Checked::Ref),
            Kind::Integer { min, max } => {
                let number = number(value).filter(|number| number.fract() == 0.0)?;
                // Bounds of tools are far below 2^53.
                let number = number as i64;
                (min..=max).contains(&number).then_some(Checked::Integer(number))
            }
            Kind::Number { min, max } => {
                number(value).filter(|number| (min..=max).contains(number)).map(Checked::Number)
            }
            Kind::Text { chars_max } => {
                let text = match value {
                    Value::String(text) => text.clone(),
                    Value::Number(number) => number.to_string(),
                    Value::Bool(flag) => flag.to_string(),
                    _ => return None,
                };
                (text.chars().count() <= chars_max).then_some(Checked::Text(text))
            }
            Kind::Choice(words) => {
                let word = value.as_str()?.trim();
                let known = words.iter().find(|known| known.eq_ignore_ascii_case(word))?;
                Some(Checked::Text((*known).to_owned()))
            }
            Kind::Flag => flag(value).map(Checked::Flag),
            Kind::Keys => keys(value).map(Checked::Keys),
        }
    }
}

impl fmt::Display for Kind {
    /// What a value may be, for errors.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Point => f.write_str("[x, y], each a number from 0 to 1000"),
            Kind::Ref => f.write_str("a reference of the last page description, such as \"e12\""),
            Kind::Integer { min, max } => write!(f, "a whole number from {min} to {max}"),
            Kind::Number { min, max } => write!(f, "a number from {min} to {max}"),
            Kind::Text { chars_max } => write!(f, "a text of at most {chars_max} characters"),
            Kind::Choice(words) => {
                let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
                f.write_str(&words.join(" or "))
            }
            Kind::Flag => f.write_str("true or false"),
            Kind::Keys => write!(
                f,
                "a list of 1 to {KEYS_MAX} keys, each a single character or a name such as \"Enter\", \"Tab\", \"ArrowDown\" or \
                 \"Control\" (hint: `write` types a text)"
            ),
        }
    }
}

impl Preset {
    pub(super) fn json(self) -> Value {
        match self {
            Preset::Integer(number) => number.into(),
            Preset::Number(number) => number.into(),
            Preset::Word(word) => word.into(),
            Preset::Flag(flag) => flag.into(),
        }
    }

    fn checked(self) -> Checked {
        match self {
            Preset::Integer(number) => Checked::Integer(number),
            Preset::Number(number) => Checked::Number(number),
            Preset::Word(word) => Checked::Text(word.to_owned()),
            Preset::Flag(flag) => Checked::Flag(flag),
        }
    }
}

impl Arguments {
    /// Checks the arguments of a call of `tool`. The error names the argument, its value and what it may be.
    pub(super) fn check(tool: &str, takes: &[&Argument], given: &Value) -> Result<Arguments, String> {
        let given = object(given)
            .ok_or_else(|| format!("invalid arguments of {tool} {}: expected a JSON object", shown(given)))?;
        let mut checked = BTreeMap::new();
        for (name, value) in given.iter().filter(|(_, value)| !value.is_null()) {
            let argument = takes.iter().find(|argument| argument.name.eq_ignore_ascii_case(name.trim()));
            let argument = argument.ok_or_else(|| {
                let known: Vec<&str> = takes.iter().map(|argument| argument.name).collect();
                let known = if known.is_empty() { "no argument".to_owned() } else { known.join(", ") };
                format!("invalid {tool}.{name}: expected {known}")
            })?;
            let read = argument.kind.check(value).ok_or_else(|| {
                format!("invalid {tool}.{} {}: expected {}", argument.name, shown(value), argument.kind)
            })?;
            checked.insert(argument.name, read);
        }
        for argument in takes {
            let is_given = checked.contains_key(argument.name);
            match argument.presence {
                Presence::Default(preset) if !is_given => {
                    checked.insert(argument.name, preset.checked());
                }
                Presence::Required if !is_given => {
                    return Err(format!("missing {tool}.{}: expected {}", argument.name, argument.kind));
                }
                Presence::Either(label) => check_group(tool, takes, label, true, &checked)?,
                Presence::AtMostOne(label) => check_group(tool, takes, label, false, &checked)?,
                _ => {}
            }
        }
        Ok(Arguments(checked))
    }

    pub(super) fn point(&self, name: &str) -> Option<(f64, f64)> {
        match self.0.get(name) {
            Some(Checked::Point(x, y)) => Some((*x, *y)),
            _ => None,
        }
    }

    pub(super) fn reference(&self, name: &str) -> Option<u64> {
        match self.0.get(name) {
            Some(Checked::Ref(number)) => Some(*number),
            _ => None,
        }
    }

    /// A whole number that is required or has a default.
    pub(super) fn integer(&self, name: &str) -> i64 {
        match self.0.get(name) {
            Some(Checked::Integer(number)) => *number,
            _ => 0,
        }
    }

    /// A number that is required or has a default.
    pub(super) fn number(&self, name: &str) -> f64 {
        match self.0.get(name) {
            Some(Checked::Number(number)) => *number,
            _ => 0.0,
        }
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        match self.0.get(name) {
            Some(Checked::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// A flag that has a default.
    pub(super) fn flag(&self, name: &str) -> bool {
        matches!(self.0.get(name), Some(Checked::Flag(true)))
    }

    pub(super) fn keys(&self, name: &str) -> Vec<String> {
        match self.0.get(name) {
            Some(Checked::Keys(keys)) => keys.clone(),
            _ => Vec::new(),
        }
    }
}

fn check_group(
    tool: &str,
    takes: &[&Argument],
    label: &str,
    required: bool,
    checked: &BTreeMap<&'static str, Checked>,
) -> Result<(), String> {
    let of_group: Vec<&str> = takes
        .iter()
        .filter(|argument| {
            matches!(argument.presence, Presence::Either(of) | Presence::AtMostOne(of) if of == label)
        })
        .map(|argument| argument.name)
        .collect();
    let given = of_group.iter().filter(|name| checked.contains_key(*name)).count();
    let names = of_group.join(" or ");
    match given {
        0 if required && of_group.len() == 1 => Err(format!("missing {tool}.{names}")),
        0 if required => Err(format!("missing {tool}.{names}: expected one of them")),
        0 | 1 => Ok(()),
        _ => Err(format!("invalid {tool}: {} are given, expected only one of them", of_group.join(" and "))),
    }
}

/// The object of arguments: models also send it as text, or leave it out.
fn object(given: &Value) -> Option<serde_json::Map<String, Value>> {
    match given {
        Value::Object(map) => Some(map.clone()),
        Value::Null => Some(serde_json::Map::new()),
        Value::String(text) if text.trim().is_empty() => Some(serde_json::Map::new()),
        Value::String(text) => match serde_json::from_str(text) {
            Ok(Value::Object(map)) => Some(map),
            _ => None,
        },
        _ => None,
    }
}

fn number(value: &Value) -> Option<f64> {
    let number = match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    number.filter(|number| number.is_finite())
}

fn point(value: &Value) -> Option<(f64, f64)> {
    let (x, y) = match value {
        Value::Array(items) => match items.as_slice() {
            [x, y] => (number(x)?, number(y)?),
            _ => return None,
        },
        Value::Object(map) => (number(map.get("x")?)?, number(map.get("y")?)?),
        Value::String(text) => {
            let inner = text.trim().trim_start_matches(['[', '(']).trim_end_matches([']', ')']);
            let (x, y) = inner.split_once(',')?;
            (number(&x.into())?, number(&y.into())?)
        }
        _ => return None,
    };
    let is_inside = |part: f64| (0.0..=1000.0).contains(&part);
    (is_inside(x) && is_inside(y)).then_some((x, y))
}

fn reference(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => {
            let text = text.trim().trim_start_matches('[').trim_end_matches(']');
            let text = text.strip_prefix("ref=").unwrap_or(text);
            let digits = text.strip_prefix(['e', 'E'])?;
            digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
        }
        _ => None,
    }
}

fn flag(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(flag) => Some(*flag),
        Value::String(text) if text.trim().eq_ignore_ascii_case("true") => Some(true),
        Value::String(text) if text.trim().eq_ignore_ascii_case("false") => Some(false),
        _ => None,
    }
}

fn keys(value: &Value) -> Option<Vec<String>> {
    let list: Vec<String> = match value {
        Value::Array(items) => {
            let text = |item: &Value| match item {
                Value::String(text) => Some(text.clone()),
                Value::Number(number) => Some(number.to_string()),
                _ => None,
            };
            items.iter().map(text).collect::<Option<_>>()?
        }
        Value::String(text) => match serde_json::from_str(text) {
            Ok(Value::Array(items)) => return keys(&Value::Array(items)),
            _ => vec![text.clone()],
        },
        _ => return None,
    };
    if list.is_empty() || list.len() > KEYS_MAX {
        return None;
    }
    list.iter().map(|name| canonical_key(name)).collect()
}

/// A value as errors show it.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
