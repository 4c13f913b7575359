//! The text of an experiment file with the place of every key, and errors that point there.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Why an experiment file is refused. In every case the user changes the file or the command line.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ExperimentError {
    /// The file cannot be read.
    #[error("cannot read experiment file {}: {problem}", path.display())]
    Read {
        /// The file as named.
        path: PathBuf,
        /// What the system said.
        problem: String,
    },
    /// A `--set` argument is not `key=value`.
    #[error("invalid `--set {argument}`: expected KEY=VALUE")]
    Set {
        /// The argument.
        argument: String,
    },
    /// A key or value of it.
    #[error("{}", .0.problem)]
    Invalid(Box<Invalid>),
}

/// What is wrong at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// Sentence that names key and value.
    pub problem: String,
    /// Where.
    pub place: Place,
    /// What to do about it.
    pub hint: Option<String>,
}

/// Where a value was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the file.
    File {
        /// As it was named on the command line.
        file: PathBuf,
        /// From 1.
        line: usize,
        /// From 1, in characters.
        column: usize,
        /// The whole line.
        text: String,
        /// Characters of the line that are meant; at least 1.
        width: usize,
    },
    /// On the command line.
    Set {
        /// The argument of `--set`.
        argument: String,
    },
}

/// A file that was parsed as TOML, with `--set` applied.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    text: String,
    value: Value,
    /// By path (`groups.size`, `rewards.0.plugin`): the spans of key and value.
    spans: BTreeMap<String, Spans>,
    /// By path: the argument that set it.
    arguments: BTreeMap<String, String>,
}

#[derive(Clone, Debug)]
struct Spans {
    key: Range<usize>,
    value: Range<usize>,
}

impl Source {
    /// Reads and parses; values that JSON cannot carry (dates, infinities) are refused.
    pub fn read(path: &Path, sets: &[String]) -> Result<Arc<Source>, ExperimentError> {
        let text = std::fs::read_to_string(path).map_err(|error| ExperimentError::Read {
            path: path.to_path_buf(),
            problem: match error.kind() {
                std::io::ErrorKind::NotFound => "no such file".to_owned(),
                std::io::ErrorKind::IsADirectory => "it is a directory".to_owned(),
                std::io::ErrorKind::InvalidData => "it is not UTF-8 text".to_owned(),
                _ => error.to_string(),
            },
        })?;
        Source::from_text(path, text, sets).map(Arc::new)
    }

    /// As [`Source::read`], of text that was read before.
    pub fn from_text(path: &Path, text: String, sets: &[String]) -> Result<Source, ExperimentError> {
        let mut source = Source {
            path: path.to_path_buf(),
            text,
            value: Value::Null,
            spans: BTreeMap::new(),
            arguments: BTreeMap::new(),
        };
        let text = source.text.clone();
        let document = DeTable::parse(&text).map_err(|error| {
            let span = error.span().unwrap_or(0..0);
            source.invalid(
                format!("not valid TOML: {}", error.message().replace('\n', ", ")),
                source.place_of_span(span),
                None,
            )
        })?;
        let table = source.table(document.get_ref(), "")?;
        source.value = Value::Object(table);
        for argument in sets {
            source.set(argument)?;
        }
        Ok(source)
    }

    /// The file as written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Reads the typed form; the first error comes with its place and the nearest known name.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, ExperimentError> {
        serde_path_to_error::deserialize(&self.value).map_err(|error| {
            // `rewards[0].weight` is `rewards.0.weight` here, as in `--set`.
            let path = error.path().to_string().replace('[', ".").replace(']', "");
            self.explain(if path == "." { "" } else { &path }, &error.into_inner().to_string())
        })
    }

    /// An error at the place of `key`, or of the nearest table around it.
    pub fn refuse(&self, key: &str, problem: String, hint: &str) -> ExperimentError {
        self.invalid(problem, self.place(key), Some(hint.to_owned()))
    }

    /// Where the value of `key` was written; where it was not, the table around it.
    pub fn place(&self, key: &str) -> Place {
        self.place_by(key, |spans| spans.value.clone())
    }

    fn place_by(&self, key: &str, choose: impl Fn(&Spans) -> Range<usize>) -> Place {
        let mut at = key;
        loop {
            if let Some(argument) = self.arguments.get(at) {
                return Place::Set { argument: argument.clone() };
            }
            if let Some(spans) = self.spans.get(at) {
                // A table's value may span many lines: its header says enough.
                let span = if at == key { choose(spans) } else { spans.key.clone() };
                return self.place_of_span(span);
            }
            match at.rfind('.') {
                Some(end) => at = &at[..end],
                None => return self.place_of_span(0..0),
            }
        }
    }

    fn place_of_span(&self, span: Range<usize>) -> Place {
        let start = span.start.min(self.text.len());
        let line_start = self.text[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = self.text[start..].find('\n').map_or(self.text.len(), |at| start + at);
        let end = span.end.clamp(start, line_end);
        Place::File {
            file: self.path.clone(),
            line: self.text[..start].matches('\n').count() + 1,
            column: self.text[line_start..start].chars().count() + 1,
            text: self.text[line_start..line_end].trim_end().to_owned(),
            width: self.text[start..end].chars().count().max(1),
        }
    }

    fn invalid(&self, problem: String, place: Place, hint: Option<String>) -> ExperimentError {
        ExperimentError::Invalid(Box::new(Invalid { problem, place, hint }))
    }

    /// Turns serde's words into a sentence with key and value.
    fn explain(&self, path: &str, message: &str) -> ExperimentError {
        if let Some((unknown, known)) = unknown_name(message, "unknown field") {
            // The path may or may not end with the key itself.
            let table = match path.rsplit_once('.') {
                Some((table, last)) if last == unknown => table,
                None if path == unknown => "",
                _ => path,
            };
            let key = join(table, &unknown);
            let place = self.place_by(&key, |spans| spans.key.clone());
            let within = if table.is_empty() { String::new() } else { format!(" in `{table}`") };
            let problem = format!("unknown key `{unknown}`{within}");
            return self.invalid(problem, place, Some(name_hint(&unknown, &known, "key")));
        }
        let place = self.place(path);
        if let Some((unknown, known)) = unknown_name(message, "unknown variant") {
            let problem = format!("`{path}` is \"{unknown}\"");
            return self.invalid(problem, place, Some(name_hint(&unknown, &known, "value")));
        }
        if let Some(field) = message.strip_prefix("missing field `").and_then(|rest| rest.split('`').next()) {
            let (problem, hint) = if path.is_empty() {
                let hint = match field {
                    "name" => "add `name = \"...\"` at the top of the file".to_owned(),
                    section => format!("add a section `[{section}]`: docs/experiments.md has an example"),
                };
                (format!("key `{field}` is missing"), hint)
            } else {
                (format!("`{path}` has no `{field}`"), format!("add `{field} = ...` to `{path}`"))
            };
            return self.invalid(problem, place, Some(hint));
        }
        if let Some((found, expected)) = message
            .strip_prefix("invalid type: ")
            .or_else(|| message.strip_prefix("invalid value: "))
            .and_then(|rest| rest.split_once(", expected "))
        {
            let problem =
                format!("`{path}` is {}, expected {}", plain_found(found), plain_expected(expected));
            return self.invalid(problem, place, type_hint(expected));
        }
        let problem = if path.is_empty() { message.to_owned() } else { format!("`{path}`: {message}") };
        self.invalid(problem, place, None)
    }

    fn table(&mut self, table: &DeTable<'_>, path: &str) -> Result<Map<String, Value>, ExperimentError> {
        let mut map = Map::new();
        for (key, value) in table {
            let at = join(path, key.get_ref());
            self.spans.insert(at.clone(), Spans { key: key.span(), value: value.span() });
            map.insert(key.get_ref().to_string(), self.value(value, &at)?);
        }
        Ok(map)
    }

    fn value(&mut self, value: &Spanned<DeValue<'_>>, path: &str) -> Result<Value, ExperimentError> {
        let refuse = |this: &Self, problem: String, hint: &str| Err(this.refuse(path, problem, hint));
        match value.get_ref() {
            DeValue::String(text) => Ok(Value::String(text.to_string())),
            DeValue::Boolean(bit) => Ok(Value::Bool(*bit)),
            DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
                Ok(number) => Ok(Value::from(number)),
                Err(_) => refuse(
                    self,
                    format!("`{path}` is {}, too large for a whole number", number.as_str()),
                    "stay below 2^63",
                ),
            },
            DeValue::Float(number) => {
                let parsed: Option<f64> = number.as_str().parse().ok();
                match parsed.and_then(serde_json::Number::from_f64) {
                    Some(number) => Ok(Value::Number(number)),
                    None => refuse(self, format!("`{path}` is {}", number.as_str()), "write a finite number"),
                }
            }
            DeValue::Datetime(date) => {
                refuse(self, format!("`{path}` is the date {date}"), "write it as text, in quotes")
            }
            DeValue::Array(items) => {
                let mut list = Vec::with_capacity(items.len());
                for (index, item) in items.iter().enumerate() {
                    let at = join(path, &index.to_string());
                    self.spans.insert(at.clone(), Spans { key: item.span(), value: item.span() });
                    list.push(self.value(item, &at)?);
                }
                Ok(Value::Array(list))
            }
            DeValue::Table(table) => Ok(Value::Object(self.table(table, path)?)),
        }
    }

    /// Applies one `key.path=value`.
    fn set(&mut self, argument: &str) -> Result<(), ExperimentError> {
        let malformed = || ExperimentError::Set { argument: argument.to_owned() };
        let (path, text) = argument.split_once('=').ok_or_else(malformed)?;
        let path = path.trim();
        if path.is_empty() || path.split('.').any(str::is_empty) {
            return Err(malformed());
        }
        self.arguments.insert(path.to_owned(), argument.to_owned());
        let value = self.argument_value(path, text.trim())?;
        // Keys below were written in the file, and are gone now.
        let below = format!("{path}.");
        self.spans.retain(|key, _| !key.starts_with(&below));
        let mut at = &mut self.value;
        for name in path.split('.') {
            at = match at {
                Value::Array(items) => {
                    let count = items.len();
                    let item = name.parse::<usize>().ok().and_then(|index| items.get_mut(index));
                    item.ok_or_else(|| {
                        ExperimentError::Invalid(Box::new(Invalid {
                            problem: format!("`{name}` in `{path}` is not an item of a list of {count}"),
                            place: Place::Set { argument: argument.to_owned() },
                            hint: Some("items are counted from 0, like `rewards.0.weight=2`".to_owned()),
                        }))
                    })?
                }
                Value::Object(map) => map.entry(name).or_insert(Value::Null),
                other => {
                    *other = Value::Object(Map::new());
                    match other {
                        Value::Object(map) => map.entry(name).or_insert(Value::Null),
                        _ => unreachable!("it became an object in the line above"),
                    }
                }
            };
        }
        *at = value;
        Ok(())
    }

    /// A TOML value, or a bare word as text.
    fn argument_value(&mut self, path: &str, text: &str) -> Result<Value, ExperimentError> {
        // A digest may look like a number; it names a plugin all the same.
        if path.rsplit('.').next() == Some("plugin") && !text.starts_with(['"', '\'']) {
            return Ok(Value::String(text.to_owned()));
        }
        let line = format!("value = {text}");
        let Ok(document) = DeTable::parse(&line) else { return Ok(Value::String(text.to_owned())) };
        let table = document.get_ref();
        match table.get("value") {
            Some(value) if table.len() == 1 => {
                let mut inner = Source {
                    path: self.path.clone(),
                    text: line.clone(),
                    value: Value::Null,
                    spans: BTreeMap::new(),
                    arguments: self.arguments.clone(),
                };
                inner.value(value, path)
            }
            _ => Ok(Value::String(text.to_owned())),
        }
    }
}

impl Place {
    /// `file:line:column`, or the argument.
    pub fn short(&self) -> String {
        match self {
            Place::File { file, line, column, .. } => format!("{}:{line}:{column}", file.display()),
            Place::Set { argument } => format!("--set {argument}"),
        }
    }
}

/// The known name nearest to `unknown`, if one is near enough to be meant.
pub fn nearest<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&unknown.to_lowercase(), &name.to_lowercase()), name))
        .filter(|(distance, name)| *distance * 3 <= unknown.len().max(name.len()))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// The name that was meant, where serde's message, alone on a line of `text`, refuses one that it does not know.
pub fn meant(text: &str) -> Option<String> {
    let refused =
        |line| unknown_name(line, "unknown field").or_else(|| unknown_name(line, "unknown variant"));
    let (unknown, known) = text.lines().find_map(refused)?;
    nearest(&unknown, known.iter().map(String::as_str)).map(str::to_owned)
}

fn join(table: &str, key: &str) -> String {
    if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") }
}

/// `unknown field `x`, expected one of `a`, `b`` -> (x, [a, b]).
fn unknown_name(message: &str, prefix: &str) -> Option<(String, Vec<String>)> {
    let rest = message.strip_prefix(prefix)?;
    let mut names = rest.split('`').skip(1).step_by(2).map(str::to_owned);
    let unknown = names.next()?;
    Some((unknown, names.collect()))
}

fn name_hint(unknown: &str, known: &[String], word: &str) -> String {
    let list = known.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    match (nearest(unknown, known.iter().map(String::as_str)), known) {
        (Some(near), [_, _, ..]) => format!("did you mean `{near}`? Known: {list}"),
        (Some(near), _) => format!("did you mean `{near}`?"),
        (None, []) => format!("remove the {word}"),
        (None, [one]) => format!("the one known {word} is `{one}`"),
        (None, _) => format!("known {word}s: {list}"),
    }
}

fn plain_found(found: &str) -> String {
    match found.split_once(' ') {
        Some(("string", text)) => format!("the text {text}"),
        Some(("integer" | "floating", number)) => number.trim_start_matches("point ").replace('`', ""),
        Some(("boolean", bit)) => bit.replace('`', ""),
        _ => match found {
            "sequence" => "a list".to_owned(),
            "map" => "a table".to_owned(),
            other => other.to_owned(),
        },
    }
}

fn plain_expected(expected: &str) -> String {
    match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number of 0 or more".to_owned(),
        "i32" | "i64" => "a whole number".to_owned(),
        "f32" | "f64" => "a number".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a string" | "a borrowed string" | "path string" => "text in quotes".to_owned(),
        "a sequence" => "a list".to_owned(),
        "a map" => "a table".to_owned(),
        other => match other.strip_prefix("struct ") {
            Some(_) => "a table".to_owned(),
            None => other.to_owned(),
        },
    }
}

fn type_hint(expected: &str) -> Option<String> {
    let hint = match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" | "i32" | "i64" => "write it without quotes, like 4",
        "f32" | "f64" => "write it without quotes, like 0.8",
        "a boolean" => "write true or false, without quotes",
        "a string" | "a borrowed string" | "path string" => "write it in quotes, like \"10m\" or \"base\"",
        "a sequence" => "write a list, like [\"a\", \"b\"]",
        _ => return None,
    };
    Some(hint.to_owned())
}
