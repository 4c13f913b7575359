//! Reading a request's JSON, with the path of a field in errors: `messages[2].content[0].type`.

use super::Refused;
use espalier_core::chat::Part;
use serde_json::{Map, Value};

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Field<'a> {
    pub(super) value: &'a Value,
    pub(super) path: String,
}

impl<'a> Field<'a> {
    /// A request, which is an object.
    pub(super) fn root(value: &'a Value) -> Result<Field<'a>, Refused> {
        let root = Field { value, path: String::new() };
        root.object()
            .map(|_| root.clone())
            .map_err(|_| Refused::invalid("body", "the body is not a JSON object".to_owned()))
    }

    /// A field of an object; `None` where it is not there, or null.
    pub(super) fn get(&self, key: &str) -> Option<Field<'a>> {
        let value = self.value.get(key).filter(|value| !value.is_null())?;
        let dot = if self.path.is_empty() { "" } else { "." };
        Some(Field { value, path: format!("{}{dot}{key}", self.path) })
    }

    /// The same, which has to be there.
    pub(super) fn need(&self, key: &str) -> Result<Field<'a>, Refused> {
        let dot = if self.path.is_empty() { "" } else { "." };
        self.get(key).ok_or_else(|| {
            let path = format!("{}{dot}{key}", self.path);
            Refused::invalid(&path, format!("missing `{path}`"))
        })
    }

    pub(super) fn object(&self) -> Result<&'a Map<String, Value>, Refused> {
        self.value.as_object().ok_or_else(|| self.wrong("an object"))
    }

    pub(super) fn text(&self) -> Result<&'a str, Refused> {
        self.value.as_str().ok_or_else(|| self.wrong("a text"))
    }

    pub(super) fn items(&self) -> Result<impl Iterator<Item = Field<'a>> + use<'a>, Refused> {
        let items = self.value.as_array().ok_or_else(|| self.wrong("a list"))?;
        let path = self.path.clone();
        Ok(items.iter().enumerate().map(move |(at, value)| Field { value, path: format!("{path}[{at}]") }))
    }

    pub(super) fn flag(&self) -> Result<bool, Refused> {
        self.value.as_bool().ok_or_else(|| self.wrong("true or false"))
    }

    pub(super) fn count(&self) -> Result<u64, Refused> {
        self.value.as_u64().filter(|count| *count > 0).ok_or_else(|| self.wrong("a number above 0"))
    }

    /// A count of tokens; more than fits is as much as there is.
    pub(super) fn tokens(&self) -> Result<u32, Refused> {
        Ok(u32::try_from(self.count()?).unwrap_or(u32::MAX))
    }

    /// One text or a list of them.
    pub(super) fn texts(&self) -> Result<Vec<String>, Refused> {
        match self.value {
            Value::String(text) => Ok(vec![text.clone()]),
            _ => self.items()?.map(|item| item.text().map(str::to_owned)).collect(),
        }
    }

    /// The field's error: what stands there is shown.
    pub(super) fn wrong(&self, expected: &str) -> Refused {
        let mut shown: String = self.value.to_string().chars().take(60).collect();
        if shown.chars().count() == 60 {
            shown.push_str("...");
        }
        Refused::invalid(&self.path, format!("invalid `{}` {shown}: expected {expected}", self.path))
    }

    pub(super) fn unsupported(&self, what: &str) -> Refused {
        Refused::unsupported(&self.path, what)
    }

    /// Refuses a field of this name whose value asks for something: neither absent, nor null, nor one of these.
    pub(super) fn without(&self, key: &str, harmless: &[Value], what: &str) -> Result<(), Refused> {
        match self.get(key) {
            Some(field) if !harmless.contains(field.value) => Err(field.unsupported(what)),
            _ => Ok(()),
        }
    }

    /// The arguments of a call as JSON text of an object.
    pub(super) fn arguments(&self) -> Result<String, Refused> {
        match self.value {
            Value::Object(_) => Ok(self.value.to_string()),
            Value::String(text) if text.trim().is_empty() => Ok("{}".to_owned()),
            Value::String(text) => match serde_json::from_str::<Map<String, Value>>(text) {
                Ok(_) => Ok(text.clone()),
                Err(_) => Err(self.wrong("the text of a JSON object")),
            },
            _ => Err(self.wrong("the text of a JSON object")),
        }
    }
}

/// Adds a text as servers join them: texts of one message stand on lines of their own.
pub(super) fn push_text(parts: &mut Vec<Part>, text: &str) {
    match parts.last_mut() {
        Some(Part::Text(last)) => {
            last.push('\n');
            last.push_str(text);
        }
        _ => parts.push(Part::Text(text.to_owned())),
    }
}
