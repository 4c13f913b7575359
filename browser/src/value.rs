//! JavaScript values on the way in and out.

use crate::error::{BrowserError, Result};
use crate::handle::JsHandle;
use crate::protocol::RemoteObject;
use chromiumoxide::cdp::js_protocol::runtime::CallArgument;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde::de::value::{F64Deserializer, StringDeserializer};
use serde_json::value::RawValue;
use std::sync::Arc;

/// A JavaScript value with what JSON cannot say: `undefined`, `NaN`, dates, big integers, cycles.
#[derive(Clone, Debug, PartialEq)]
pub enum JsValue {
    /// `undefined`.
    Undefined,
    /// `null`.
    Null,
    /// A boolean.
    Bool(bool),
    /// A number, with `NaN`, the infinities and `-0`.
    Number(f64),
    /// A big integer, in decimal digits.
    BigInt(String),
    /// A string.
    String(String),
    /// A date, as `toISOString` writes it.
    Date(String),
    /// A regular expression.
    RegExp {
        /// Between the slashes.
        pattern: String,
        /// After them.
        flags: String,
    },
    /// An array.
    Array(Vec<JsValue>),
    /// An object's own enumerable properties, in order.
    Object(Vec<(String, JsValue)>),
    /// A `Map`.
    Map(Vec<(JsValue, JsValue)>),
    /// A `Set`.
    Set(Vec<JsValue>),
    /// An object that already occurs in this value: a cycle, or a second reference.
    Reference,
    /// Anything else, by its type: `function`, `symbol`, `node`, `window`, `error`, ...
    Other(String),
}

impl JsValue {
    /// The property of an object.
    pub fn get(&self, name: &str) -> Option<&JsValue> {
        match self {
            JsValue::Object(properties) => {
                properties.iter().find(|(property, _)| property == name).map(|(_, value)| value)
            }
            _ => None,
        }
    }

    /// A string's text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            JsValue::String(text) => Some(text),
            _ => None,
        }
    }

    /// A number.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            JsValue::Number(number) => Some(*number),
            _ => None,
        }
    }

    pub(crate) fn from_remote(object: &RemoteObject) -> Result<JsValue> {
        if let Some(deep) = &object.deep_serialized_value {
            let deep = serde_json::from_str(deep.get());
            return Ok(from_deep(
                deep.map_err(|error| BrowserError::unreadable("Runtime.evaluate", &error))?,
            ));
        }
        if object.kind == "undefined" {
            return Ok(JsValue::Undefined);
        }
        if let Some(special) = &object.unserializable_value {
            return Ok(special_number(special));
        }
        match &object.value {
            Some(value) => {
                let json: serde_json::Value = read(value)?;
                Ok(JsValue::from(json))
            }
            None => Ok(JsValue::Other(object.kind.clone())),
        }
    }
}

impl From<serde_json::Value> for JsValue {
    fn from(json: serde_json::Value) -> Self {
        match json {
            serde_json::Value::Null => JsValue::Null,
            serde_json::Value::Bool(value) => JsValue::Bool(value),
            serde_json::Value::Number(number) => JsValue::Number(number.as_f64().unwrap_or(f64::NAN)),
            serde_json::Value::String(text) => JsValue::String(text),
            serde_json::Value::Array(items) => JsValue::Array(items.into_iter().map(JsValue::from).collect()),
            serde_json::Value::Object(map) => {
                JsValue::Object(map.into_iter().map(|(name, value)| (name, JsValue::from(value))).collect())
            }
        }
    }
}

/// `Runtime.DeepSerializedValue`.
#[derive(Deserialize)]
struct Deep {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    value: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Key {
    Text(String),
    Value(Deep),
}

#[derive(Deserialize)]
struct Pattern {
    pattern: String,
    #[serde(default)]
    flags: String,
}

fn from_deep(deep: Deep) -> JsValue {
    let Some(raw) = &deep.value else {
        return match deep.kind.as_str() {
            "undefined" => JsValue::Undefined,
            "null" => JsValue::Null,
            "object" | "array" | "map" | "set" => JsValue::Reference,
            _ => JsValue::Other(deep.kind),
        };
    };
    known(&deep.kind, raw).unwrap_or(JsValue::Other(deep.kind))
}

fn known(kind: &str, raw: &RawValue) -> Option<JsValue> {
    fn part<T: DeserializeOwned>(raw: &RawValue) -> Option<T> {
        serde_json::from_str(raw.get()).ok()
    }
    let items = |items: Vec<Deep>| items.into_iter().map(from_deep).collect();
    Some(match kind {
        "boolean" => JsValue::Bool(part(raw)?),
        "string" => JsValue::String(part(raw)?),
        "bigint" => JsValue::BigInt(part(raw)?),
        "date" => JsValue::Date(part(raw)?),
        "number" => match part::<f64>(raw) {
            Some(number) => JsValue::Number(number),
            None => special_number(&part::<String>(raw)?),
        },
        "regexp" => {
            let Pattern { pattern, flags } = part(raw)?;
            JsValue::RegExp { pattern, flags }
        }
        "array" => JsValue::Array(items(part(raw)?)),
        "set" => JsValue::Set(items(part(raw)?)),
        "object" => {
            let pairs: Vec<(Key, Deep)> = part(raw)?;
            let property = |(key, value)| {
                let name = match key {
                    Key::Text(text) => text,
                    Key::Value(deep) => deep.kind,
                };
                (name, from_deep(value))
            };
            JsValue::Object(pairs.into_iter().map(property).collect())
        }
        "map" => {
            let pairs: Vec<(Key, Deep)> = part(raw)?;
            let entry = |(key, value)| {
                let key = match key {
                    Key::Text(text) => JsValue::String(text),
                    Key::Value(deep) => from_deep(deep),
                };
                (key, from_deep(value))
            };
            JsValue::Map(pairs.into_iter().map(entry).collect())
        }
        _ => return None,
    })
}

/// `NaN`, `-0`, `Infinity`, `-Infinity`, or a big integer such as `12n`.
fn special_number(text: &str) -> JsValue {
    match text.strip_suffix('n') {
        Some(digits) => JsValue::BigInt(digits.to_owned()),
        None => JsValue::Number(match text {
            "-0" => -0.0,
            "Infinity" => f64::INFINITY,
            "-Infinity" => f64::NEG_INFINITY,
            _ => f64::NAN,
        }),
    }
}

/// The value as JSON gives it to `T`; `undefined` is null, special numbers are `f64`, big integers are strings. `()` and
/// other types without content take whatever there is.
pub(crate) fn into_rust<T: DeserializeOwned>(object: &RemoteObject) -> Result<T> {
    if size_of::<T>() == 0
        && let Ok(nothing) = T::deserialize(serde_json::Value::Null)
    {
        return Ok(nothing);
    }
    if let Some(special) = &object.unserializable_value {
        let read: std::result::Result<T, serde_json::Error> = match special_number(special) {
            JsValue::Number(number) => T::deserialize(F64Deserializer::new(number)),
            JsValue::BigInt(digits) => T::deserialize(StringDeserializer::new(digits)),
            _ => T::deserialize(serde_json::Value::Null),
        };
        return read.map_err(|error| BrowserError::invalid(format!("type for the script's result: {error}")));
    }
    match &object.value {
        Some(value) => read(value),
        None => {
            let null = T::deserialize(serde_json::Value::Null);
            null.map_err(|error| {
                BrowserError::invalid(format!("type for the script's result ({}): {error}", object.kind))
            })
        }
    }
}

fn read<T: DeserializeOwned>(value: &RawValue) -> Result<T> {
    serde_json::from_str(value.get())
        .map_err(|error| BrowserError::invalid(format!("type for the script's result: {error}")))
}

/// An argument of a function that is called in a page. Made with `into()` from texts, numbers, booleans,
/// `serde_json::Value` and references to handles.
#[derive(Clone, Debug)]
pub enum JsArg {
    /// `undefined`.
    Undefined,
    /// What JSON can say.
    Json(serde_json::Value),
    /// A number, with `NaN`, the infinities and `-0`.
    Number(f64),
    /// A big integer, in decimal digits.
    BigInt(String),
    /// An object of the page.
    Handle(JsHandle),
}

impl JsArg {
    pub(crate) fn to_cdp(&self) -> CallArgument {
        let mut argument = CallArgument::default();
        match self {
            JsArg::Undefined => {}
            JsArg::Json(value) => argument.value = Some(value.clone()),
            JsArg::Number(number) => match serde_json::Number::from_f64(*number) {
                Some(finite) if *number != 0.0 || number.is_sign_positive() => {
                    argument.value = Some(serde_json::Value::Number(finite));
                }
                _ => {
                    let text = if *number == 0.0 {
                        "-0"
                    } else if number.is_nan() {
                        "NaN"
                    } else if *number > 0.0 {
                        "Infinity"
                    } else {
                        "-Infinity"
                    };
                    argument.unserializable_value = Some(text.to_owned().into());
                }
            },
            JsArg::BigInt(digits) => argument.unserializable_value = Some(format!("{digits}n").into()),
            JsArg::Handle(handle) => argument.object_id = Some(handle.object_id().to_owned().into()),
        }
        argument
    }
}

impl From<&JsHandle> for JsArg {
    fn from(handle: &JsHandle) -> Self {
        JsArg::Handle(handle.clone())
    }
}

impl From<f64> for JsArg {
    fn from(number: f64) -> Self {
        JsArg::Number(number)
    }
}

impl From<serde_json::Value> for JsArg {
    fn from(value: serde_json::Value) -> Self {
        JsArg::Json(value)
    }
}

impl From<Arc<str>> for JsArg {
    fn from(text: Arc<str>) -> Self {
        JsArg::Json(serde_json::Value::String(text.to_string()))
    }
}

macro_rules! json_args {
    ($($from:ty),*) => {
        $(impl From<$from> for JsArg {
            fn from(value: $from) -> Self {
                JsArg::Json(serde_json::Value::from(value))
            }
        })*
    };
}
json_args!(&str, String, bool, i32, u32, i64, u64, usize, Vec<String>);

#[cfg(test)]
mod tests {
    use super::*;

    fn deep(json: &str) -> JsValue {
        from_deep(serde_json::from_str(json).expect("a deep value"))
    }

    #[test]
    fn deep_values_keep_what_json_cannot_say() {
        assert_eq!(deep(r#"{"type":"undefined"}"#), JsValue::Undefined);
        assert_eq!(deep(r#"{"type":"bigint","value":"12"}"#), JsValue::BigInt("12".into()));
        assert!(matches!(deep(r#"{"type":"number","value":"NaN"}"#), JsValue::Number(n) if n.is_nan()));
        let object = deep(
            r#"{"type":"object","weakLocalObjectReference":1,"value":[["self",{"type":"object",
                "weakLocalObjectReference":1}],["when",{"type":"date","value":"2020-01-01T00:00:00.000Z"}]]}"#,
        );
        assert_eq!(object.get("self"), Some(&JsValue::Reference));
        assert_eq!(object.get("when"), Some(&JsValue::Date("2020-01-01T00:00:00.000Z".into())));
        let map = deep(r#"{"type":"map","value":[["a",{"type":"number","value":1}]]}"#);
        assert_eq!(map, JsValue::Map(vec![(JsValue::String("a".into()), JsValue::Number(1.0))]));
    }

    #[test]
    fn special_numbers_reach_rust() {
        let object =
            |text: &str| RemoteObject { unserializable_value: Some(text.into()), ..RemoteObject::default() };
        assert!(into_rust::<f64>(&object("NaN")).expect("a number").is_nan());
        assert_eq!(into_rust::<String>(&object("12n")).expect("digits"), "12");
        assert!(into_rust::<Vec<u8>>(&object("NaN")).is_err());
        assert_eq!(into_rust::<Option<u8>>(&RemoteObject::default()), Ok(None));
    }

    #[test]
    fn arguments_keep_their_sign_and_kind() {
        let special = |arg: JsArg| arg.to_cdp().unserializable_value.map(String::from);
        assert_eq!(special(JsArg::Number(-0.0)).as_deref(), Some("-0"));
        assert_eq!(special(JsArg::Number(f64::NEG_INFINITY)).as_deref(), Some("-Infinity"));
        assert_eq!(special(JsArg::BigInt("7".into())).as_deref(), Some("7n"));
        assert_eq!(JsArg::from(1.5).to_cdp().value, Some(serde_json::json!(1.5)));
    }
}
