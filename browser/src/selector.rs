//! Selectors as text, and the steps of a query that they and locators stand for. What each step finds is written in
//! `injected/query.js`.

use crate::error::{BrowserError, Result};
use serde_json::{Map, Value, json};

/// One step of a query.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Step {
    engine: &'static str,
    body: Value,
}

impl Step {
    pub(crate) fn new(engine: &'static str, body: impl Into<Value>) -> Step {
        Step { engine, body: body.into() }
    }

    pub(crate) fn json(&self) -> Value {
        json!({ "engine": self.engine, "body": self.body })
    }
}

pub(crate) fn steps_json(steps: &[Step]) -> Value {
    Value::Array(steps.iter().map(Step::json).collect())
}

/// A text that is looked for: a part of it in any case (`"save".into()`), the whole ([`TextMatch::exact`]), or a regular
/// expression ([`TextMatch::regex`]). White space counts as one space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextMatch(Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Part(String),
    Exact(String),
    Pattern { pattern: String, flags: String },
}

impl TextMatch {
    /// The whole text, in this case.
    pub fn exact(text: impl Into<String>) -> TextMatch {
        TextMatch(Kind::Exact(text.into()))
    }

    /// A regular expression of JavaScript with its flags, such as `i`.
    pub fn regex(pattern: impl Into<String>, flags: impl Into<String>) -> TextMatch {
        TextMatch(Kind::Pattern { pattern: pattern.into(), flags: flags.into() })
    }

    pub(crate) fn json(&self) -> Value {
        match &self.0 {
            Kind::Part(text) => json!(text),
            Kind::Exact(text) => json!({ "text": text, "exact": true }),
            Kind::Pattern { pattern, flags } => json!({ "pattern": pattern, "flags": flags }),
        }
    }
}

impl From<&str> for TextMatch {
    fn from(text: &str) -> Self {
        TextMatch(Kind::Part(text.to_owned()))
    }
}

impl From<String> for TextMatch {
    fn from(text: String) -> Self {
        TextMatch(Kind::Part(text))
    }
}

/// What an element of a role must be like besides.
#[derive(Clone, Debug, Default)]
pub struct RoleOptions {
    /// The accessible name.
    pub name: Option<TextMatch>,
    /// The accessible description.
    pub description: Option<TextMatch>,
    /// `aria-checked`, or what a checkbox shows.
    pub checked: Option<bool>,
    /// Whether it is disabled.
    pub disabled: Option<bool>,
    /// `aria-expanded`.
    pub expanded: Option<bool>,
    /// Of a heading: 1 to 6; of a tree item: its depth.
    pub level: Option<u32>,
    /// `aria-pressed`.
    pub pressed: Option<bool>,
    /// `aria-selected`.
    pub selected: Option<bool>,
    /// Whether hidden elements are found, too. Default: false.
    pub include_hidden: bool,
}

impl RoleOptions {
    /// With this accessible name.
    pub fn named(name: impl Into<TextMatch>) -> RoleOptions {
        RoleOptions { name: Some(name.into()), ..RoleOptions::default() }
    }

    pub(crate) fn step(&self, role: &str) -> Step {
        let mut body = Map::new();
        body.insert("role".to_owned(), json!(role));
        let texts = [("name", &self.name), ("description", &self.description)];
        for (key, text) in texts {
            if let Some(text) = text {
                body.insert(key.to_owned(), text.json());
            }
        }
        let states = [
            ("checked", self.checked),
            ("disabled", self.disabled),
            ("expanded", self.expanded),
            ("pressed", self.pressed),
            ("selected", self.selected),
        ];
        for (key, state) in states {
            if let Some(state) = state {
                body.insert(key.to_owned(), json!(state));
            }
        }
        if let Some(level) = self.level {
            body.insert("level".to_owned(), json!(level));
        }
        if self.include_hidden {
            body.insert("include_hidden".to_owned(), json!(true));
        }
        Step::new("role", Value::Object(body))
    }
}

/// The steps of a selector such as `#form >> text="Save" >> nth=0`. Parts without a known engine in front are CSS, or
/// XPath where they begin with `//` or `..`.
pub(crate) fn parse(selector: &str) -> Result<Vec<Step>> {
    split(selector).into_iter().map(|part| parse_part(part.trim(), selector)).collect()
}

fn parse_part(part: &str, selector: &str) -> Result<Step> {
    let wrong = |why: &str| BrowserError::invalid(format!("selector {selector:?}: {why}"));
    if part.is_empty() {
        return Err(wrong("expected something between and around `>>`"));
    }
    if part.starts_with("//") || part.starts_with("(//") || part.starts_with("..") {
        return Ok(Step::new("xpath", part));
    }
    let named = part.split_once('=').filter(|(engine, _)| {
        engine.chars().all(|char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_'))
    });
    let Some((engine, body)) = named else { return Ok(Step::new("css", part)) };
    Ok(match engine {
        "css" => Step::new("css", body),
        "xpath" => Step::new("xpath", body),
        "text" => Step::new("text", text(body)),
        "id" => Step::new("test_id", json!({ "attribute": "id", "value": { "text": body, "exact": true } })),
        "data-testid" => Step::new("test_id", body),
        "role" => {
            role(body).ok_or_else(|| wrong("expected such as role=button or role=button[name=\"Save\"]"))?
        }
        "nth" => Step::new("nth", body.parse::<i64>().map_err(|_| wrong("expected a number after nth="))?),
        "visible" => match body {
            "true" => Step::new("visible", true),
            "false" => Step::new("visible", false),
            _ => return Err(wrong("expected true or false after visible=")),
        },
        _ => return Err(wrong(&format!("unknown engine {engine:?}"))),
    })
}

/// `Save` is a part, `"Save"` the whole text.
fn text(body: &str) -> Value {
    let inside = body.strip_prefix(['"', '\'']).and_then(|rest| rest.strip_suffix(['"', '\'']));
    match inside {
        Some(text) => TextMatch::exact(text).json(),
        None => TextMatch::from(body).json(),
    }
}

/// `button`, or `button[name="Save"]`.
fn role(body: &str) -> Option<Step> {
    let Some((role, rest)) = body.split_once('[') else { return Some(RoleOptions::default().step(body)) };
    let name = rest.strip_prefix("name=")?.strip_suffix(']')?;
    let name = name.strip_prefix(['"', '\''])?.strip_suffix(['"', '\''])?;
    Some(RoleOptions::named(name).step(role))
}

/// The parts between `>>` that stand in no quotes.
fn split(selector: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut start = 0;
    let mut quote = None;
    let mut escaped = false;
    for (at, byte) in selector.bytes().enumerate() {
        match (quote, byte) {
            _ if escaped => escaped = false,
            (_, b'\\') => escaped = true,
            (Some(open), _) if byte == open => quote = None,
            (None, b'"' | b'\'') => quote = Some(byte),
            (None, b'>') if at >= start && selector[at..].starts_with(">>") => {
                parts.push(&selector[start..at]);
                start = at + 2;
            }
            _ => {}
        }
    }
    parts.push(&selector[start.min(selector.len())..]);
    parts
}

/// The locator in words: `` `button` named "Save" in `#form` ``.
pub(crate) fn describe(steps: &[Step]) -> String {
    let mut text = String::new();
    for step in steps {
        let filter = describe_filter(step);
        match (filter, text.is_empty()) {
            (Some(filter), true) => text = format!("anything {filter}"),
            (Some(filter), false) => text = format!("{text} {filter}"),
            (None, true) => text = describe_finder(step),
            (None, false) => text = format!("{} in {text}", describe_finder(step)),
        }
    }
    text
}

fn describe_finder(step: &Step) -> String {
    let body = &step.body;
    match step.engine {
        "css" | "xpath" => format!("`{}`", body.as_str().unwrap_or_default()),
        "role" => describe_role(body),
        "test_id" => format!("test id {}", describe_text(body.get("value").unwrap_or(body))),
        engine => format!("{engine} {}", describe_text(body)),
    }
}

fn describe_role(body: &Value) -> String {
    let mut text = format!("`{}`", body["role"].as_str().unwrap_or_default());
    for (key, value) in body.as_object().into_iter().flatten() {
        match key.as_str() {
            "role" => {}
            "name" => text.push_str(&format!(" named {}", describe_text(value))),
            "description" => text.push_str(&format!(" described as {}", describe_text(value))),
            "include_hidden" => text.push_str(" (hidden ones too)"),
            _ => text.push_str(&format!(" with {key} {value}")),
        }
    }
    text
}

fn describe_filter(step: &Step) -> Option<String> {
    let body = &step.body;
    let inner = || {
        let steps = body.as_array().into_iter().flatten();
        let engines = steps.map(|step| {
            let body = &step["body"];
            format!("{} {}", step["engine"].as_str().unwrap_or_default(), describe_text(body))
        });
        engines.collect::<Vec<_>>().join(" ")
    };
    Some(match step.engine {
        "nth" => match body.as_i64() {
            Some(0) => "(the first)".to_owned(),
            Some(-1) => "(the last)".to_owned(),
            Some(index) if index > 0 => format!("(number {})", index + 1),
            _ => format!("(number {body} from the end)"),
        },
        "visible" if body == &Value::Bool(false) => "that is hidden".to_owned(),
        "visible" => "that is visible".to_owned(),
        "has_text" => format!("with text {}", describe_text(body)),
        "has_not_text" => format!("without text {}", describe_text(body)),
        "has" => format!("that contains {}", inner()),
        "has_not" => format!("that does not contain {}", inner()),
        "and" => format!("that is {} as well", inner()),
        "or" => format!("or {}", inner()),
        _ => return None,
    })
}

fn describe_text(body: &Value) -> String {
    match (&body["pattern"], &body["text"]) {
        (Value::String(pattern), _) => format!("/{pattern}/{}", body["flags"].as_str().unwrap_or_default()),
        (_, Value::String(text)) => format!("{text:?}"),
        _ => body.as_str().map_or_else(|| body.to_string(), |text| format!("{text:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_read() {
        let steps = |selector: &str| steps_json(&parse(selector).expect("a selector"));
        let one = |engine: &str, body: Value| json!([{ "engine": engine, "body": body }]);
        assert_eq!(steps("div > a[href='x']"), one("css", json!("div > a[href='x']")));
        assert_eq!(steps("//div"), one("xpath", json!("//div")));
        assert_eq!(steps("text=Save"), one("text", json!("Save")));
        assert_eq!(steps("text=\"Save\""), one("text", json!({ "text": "Save", "exact": true })));
        assert_eq!(
            steps("role=button[name=\"A >> B\"]"),
            one("role", json!({ "role": "button", "name": "A >> B" }))
        );
        assert_eq!(
            steps("#a >> nth=-1 >> visible=true"),
            json!([{ "engine": "css", "body": "#a" }, { "engine": "nth", "body": -1 }, { "engine": "visible", "body": true }])
        );
        assert_eq!(steps("[data-x=\"a >> b\"]"), one("css", json!("[data-x=\"a >> b\"]")));
        for wrong in ["", "a >>", "nth=x", "visible=maybe", "role=button[x]", "magic=1"] {
            assert!(matches!(parse(wrong), Err(BrowserError::Invalid { .. })), "{wrong:?}");
        }
    }

    #[test]
    fn steps_read_as_words() {
        let steps = [
            Step::new("css", "#form"),
            RoleOptions::named("Save").step("button"),
            Step::new("has_text", "x"),
            Step::new("nth", 1),
        ];
        assert_eq!(describe(&steps), "`button` named \"Save\" in `#form` with text \"x\" (number 2)");
        let pattern = [Step::new("text", TextMatch::regex("a+", "i").json())];
        assert_eq!(describe(&pattern), "text /a+/i");
        assert_eq!(describe(&[Step::new("test_id", TextMatch::exact("t").json())]), "test id \"t\"");
    }
}
