//! The template engine, set up as the Python ecosystem sets up Jinja2 for chat templates: blocks trimmed, no escaping,
//! loop controls, `raise_exception`, `strftime_now`, `tojson` without HTML escapes, Python's string and dict methods.

use super::entries::Entry;
use super::{TemplateError, TemplateOptions};
use espalier_core::cause::Failed;
use espalier_core::chat::Tool;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, UndefinedBehavior, Value};
use regex::Regex;
use std::fmt::Write as _;
use std::sync::LazyLock;
use time::OffsetDateTime;

const NAME: &str = "chat";

/// `{% generation %}` marks answers for trainers; only some engines know it. It prints what it encloses.
static GENERATION: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}").expect("the pattern is a constant")
});

/// A parsed template.
pub(super) struct Jinja {
    environment: Environment<'static>,
    bos: String,
    eos: String,
    variables: Vec<(String, Value)>,
}

impl Jinja {
    pub(super) fn new(source: &str, options: &TemplateOptions) -> Result<Jinja, TemplateError> {
        let source = GENERATION.replace_all(source, |found: &regex::Captures<'_>| {
            let word = if found.get(2).is_some() { "endif" } else { "if true" };
            format!("{{%{} {word} {}%}}", &found[1], &found[3])
        });
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.expect("the default delimiters are valid"));
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_formatter(print);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", tojson);
        environment.add_function("raise_exception", raise_exception);
        let now = i128::from(options.now_ms) * 1_000_000;
        let now = OffsetDateTime::from_unix_timestamp_nanos(now).unwrap_or(OffsetDateTime::UNIX_EPOCH);
        environment.add_function("strftime_now", move |format: &str| strftime(now, format));
        environment.add_template_owned(NAME, source.into_owned()).map_err(|error| TemplateError::Syntax {
            line: error.line().unwrap_or(0),
            source: said(&error),
        })?;
        let variables =
            options.variables.iter().map(|(name, value)| (name.clone(), from_json(value))).collect();
        Ok(Jinja { environment, bos: options.bos.clone(), eos: options.eos.clone(), variables })
    }

    /// Renders messages; `tools` as [`tools`] gives them.
    pub(super) fn render(
        &self,
        entries: &[Entry],
        tools: &Value,
        generation_prompt: bool,
    ) -> Result<String, TemplateError> {
        self.render_messages(entries.iter().map(message).collect(), tools, generation_prompt)
    }

    /// Prints a user's message that is given in parts: a text, an image, a text.
    pub(super) fn render_image(&self, before: &str, after: &str) -> Result<String, TemplateError> {
        let text = |text: &str| Value::from_pairs([("type", "text"), ("text", text)]);
        let parts = vec![text(before), Value::from_pairs([("type", "image")]), text(after)];
        let message = Value::from_pairs([("role", Value::from("user")), ("content", Value::from(parts))]);
        self.render_messages(vec![message], &tools(&[])?, false)
    }

    fn render_messages(
        &self,
        messages: Vec<Value>,
        tools: &Value,
        generation_prompt: bool,
    ) -> Result<String, TemplateError> {
        let mut context = vec![
            ("messages".to_owned(), Value::from(messages)),
            ("tools".to_owned(), tools.clone()),
            ("documents".to_owned(), Value::from(())),
            ("add_generation_prompt".to_owned(), Value::from(generation_prompt)),
            ("bos_token".to_owned(), Value::from(&self.bos)),
            ("eos_token".to_owned(), Value::from(&self.eos)),
        ];
        context.extend(self.variables.iter().cloned());
        let template = self.environment.get_template(NAME).expect("added when it was made");
        template.render(Value::from_pairs(context)).map_err(|error| match raised(&error) {
            Some(words) => TemplateError::Raised(words),
            None => TemplateError::Render { line: error.line().unwrap_or(0), source: said(&error) },
        })
    }
}

/// What the template itself said by `raise_exception`, of which the error around it may speak.
fn raised(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    match error.downcast_ref::<Raised>() {
        Some(Raised(words)) => Some(words.clone()),
        None => raised(error.source()?),
    }
}

/// A template's `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("raised by the template: {0}")]
struct Raised(String);

/// The error's own words, without the debug information.
fn said(error: &Error) -> Failed {
    let kind = error.kind().to_string();
    let words = error.detail().map_or(kind.clone(), |detail| format!("{kind}: {detail}"));
    // Told without its debug information, which shows the values of the whole conversation.
    Failed::from(words)
}

fn message(entry: &Entry) -> Value {
    let mut fields =
        vec![("role", Value::from(entry.role.as_str())), ("content", Value::from(entry.content.as_str()))];
    if let Some(id) = &entry.call_id {
        fields.push(("tool_call_id", Value::from(id)));
    }
    if let Some(tool) = &entry.tool {
        fields.push(("name", Value::from(tool)));
    }
    Value::from_pairs(fields)
}

/// Tools as templates expect them; none at all is `none`, not an empty list.
pub(super) fn tools(tools: &[Tool]) -> Result<Value, TemplateError> {
    if tools.is_empty() {
        return Ok(Value::from(()));
    }
    let mut list = Vec::with_capacity(tools.len());
    for tool in tools {
        let parameters: serde_json::Value = serde_json::from_str(&tool.parameters).map_err(|error| {
            TemplateError::Tool { name: tool.name.clone(), source: Failed::by(error.to_string(), error) }
        })?;
        let function = Value::from_pairs([
            ("name", Value::from(&tool.name)),
            ("description", Value::from(&tool.description)),
            ("parameters", from_json(&parameters)),
        ]);
        list.push(Value::from_pairs([("type", Value::from("function")), ("function", function)]));
    }
    Ok(Value::from(list))
}

fn from_json(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(bool) => Value::from(*bool),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(number), _, _) => Value::from(number),
            (_, Some(number), _) => Value::from(number),
            (_, _, number) => Value::from(number.unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::from(text),
        serde_json::Value::Array(items) => items.iter().map(from_json).collect(),
        serde_json::Value::Object(fields) => {
            Value::from_pairs(fields.iter().map(|(name, value)| (name.as_str(), from_json(value))))
        }
    }
}

/// Prints as Python does: `True`, `None`.
fn print(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.write_str("None").map_err(Error::from),
        ValueKind::Bool => out.write_str(if value.is_true() { "True" } else { "False" }).map_err(Error::from),
        _ => minijinja::escape_formatter(out, state, value),
    }
}

fn raise_exception(text: &str) -> Result<Value, Error> {
    let raised = Raised(text.to_owned());
    Err(Error::new(ErrorKind::InvalidOperation, raised.to_string()).with_source(raised))
}

/// JSON as Python's `json.dumps` writes it. `ensure_ascii` is off by default, as chat templates expect; keys keep
/// their order unless `sort_keys` says otherwise.
#[expect(clippy::needless_pass_by_value, reason = "the engine passes named arguments by value")]
fn tojson(value: &Value, indent: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let named: Option<Value> = kwargs.get("indent")?;
    let ascii: Option<bool> = kwargs.get("ensure_ascii")?;
    let sorted: Option<bool> = kwargs.get("sort_keys")?;
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    kwargs.assert_all_used()?;
    let indent = indent.or(named).filter(|indent| !indent.is_none());
    let indent = indent.map(usize::try_from).transpose()?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        _ if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        _ => (", ".to_owned(), ": ".to_owned()),
    };
    let style = Style { indent, item, key, ascii: ascii.unwrap_or(false), sorted: sorted.unwrap_or(false) };
    let mut out = String::new();
    dump(&mut out, value, &style, 0)?;
    Ok(Value::from_safe_string(out))
}

struct Style {
    indent: Option<usize>,
    item: String,
    key: String,
    ascii: bool,
    sorted: bool,
}

fn dump(out: &mut String, value: &Value, style: &Style, depth: usize) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
        ValueKind::Number => out.push_str(&float(f64::try_from(value.clone())?)),
        ValueKind::String => dump_text(out, value.as_str().unwrap_or_default(), style.ascii),
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sorted {
                keys.sort_by_key(ToString::to_string);
            }
            let count = keys.len();
            out.push('{');
            for (index, key) in keys.iter().enumerate() {
                line(out, style, depth + 1);
                dump_text(out, &key.to_string(), style.ascii);
                out.push_str(&style.key);
                dump(out, &value.get_item(key)?, style, depth + 1)?;
                if index + 1 < count {
                    out.push_str(&style.item);
                }
            }
            if count > 0 {
                line(out, style, depth);
            }
            out.push('}');
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                line(out, style, depth + 1);
                dump(out, item, style, depth + 1)?;
                if index + 1 < items.len() {
                    out.push_str(&style.item);
                }
            }
            if !items.is_empty() {
                line(out, style, depth);
            }
            out.push(']');
        }
        kind => {
            let text = format!("{kind} is not JSON serializable");
            return Err(Error::new(ErrorKind::InvalidOperation, text));
        }
    }
    Ok(())
}

fn line(out: &mut String, style: &Style, depth: usize) {
    if let Some(indent) = style.indent {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', indent * depth));
    }
}

/// Python's shortest form: `1.0`, `1e+20`, `1e-05`.
fn float(number: f64) -> String {
    if !number.is_finite() {
        let word = if number.is_nan() { "NaN" } else { "Infinity" };
        return if number < 0.0 { format!("-{word}") } else { word.to_owned() };
    }
    let magnitude = number.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{number:e}");
        let (digits, exponent) = text.split_once('e').expect("the format writes an exponent");
        let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    format!("{number:?}")
}

fn dump_text(out: &mut String, text: &str, ascii: bool) {
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            letter if letter < ' ' || (ascii && !letter.is_ascii()) => {
                for unit in letter.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            letter => out.push(letter),
        }
    }
    out.push('"');
}

/// The directives of `strftime` that dates in prompts use; an unknown one is an error, not a guess.
fn strftime(now: OffsetDateTime, format: &str) -> Result<String, Error> {
    let mut out = String::with_capacity(format.len() + 8);
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        let mut directive = letters.next();
        let padded = directive != Some('-');
        if !padded {
            directive = letters.next();
        }
        let mut number = |value: u32, width: usize| {
            let _ = if padded { write!(out, "{value:0width$}") } else { write!(out, "{value}") };
        };
        let hour = u32::from(now.hour());
        match directive {
            Some('Y') => number(u32::try_from(now.year()).unwrap_or(0), 4),
            Some('y') => number(u32::try_from(now.year().rem_euclid(100)).unwrap_or(0), 2),
            Some('m') => number(u32::from(u8::from(now.month())), 2),
            Some('d') => number(u32::from(now.day()), 2),
            Some('H') => number(hour, 2),
            Some('I') => number((hour + 11) % 12 + 1, 2),
            Some('M') => number(u32::from(now.minute()), 2),
            Some('S') => number(u32::from(now.second()), 2),
            Some('j') => number(u32::from(now.ordinal()), 3),
            Some('e') => {
                let _ = write!(out, "{:>2}", now.day());
            }
            Some('p') => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('B') => out.push_str(&now.month().to_string()),
            Some('b' | 'h') => out.push_str(&now.month().to_string()[..3]),
            Some('A') => out.push_str(&now.weekday().to_string()),
            Some('a') => out.push_str(&now.weekday().to_string()[..3]),
            Some('F') => {
                let _ = write!(out, "{:04}-{:02}-{:02}", now.year(), u8::from(now.month()), now.day());
            }
            Some('T') => {
                let _ = write!(out, "{:02}:{:02}:{:02}", now.hour(), now.minute(), now.second());
            }
            Some('Z') => out.push_str("UTC"),
            Some('z') => out.push_str("+0000"),
            Some('%') => out.push('%'),
            other => {
                let directive = other.map_or_else(String::new, String::from);
                let text = format!("strftime_now does not know %{directive}");
                return Err(Error::new(ErrorKind::InvalidOperation, text));
            }
        }
    }
    Ok(out)
}
