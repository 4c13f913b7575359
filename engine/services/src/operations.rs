//! What an application lets its pages do: operations that `app.json` declares, checked and carried out here.
//!
//! A definition is data: arguments with their forms, what must hold in the state, and effects on it. An operation happens whole or not at
//! all. The form is documented in docs/services.md.

use crate::pointer::{self, Place};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Longest text of an argument whose definition has no `max`.
const TEXT_CHARS_MAX: u64 = 10_000;
/// Largest list of an argument whose definition has no `max`.
const LIST_ITEMS_MAX: u64 = 100;

/// One operation, as written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Operation {
    #[serde(default)]
    arguments: BTreeMap<String, Argument>,
    #[serde(default)]
    requires: Vec<Requirement>,
    effects: Vec<Effect>,
}

/// The form of one argument.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Argument {
    r#type: Type,
    /// Taken where the caller says nothing.
    #[serde(default)]
    default: Option<Value>,
    /// Least number, characters or elements.
    #[serde(default)]
    min: Option<f64>,
    /// Most of them.
    #[serde(default)]
    max: Option<f64>,
    /// The values there are.
    #[serde(default)]
    one_of: Option<Vec<Value>>,
    /// It is a key of the object there.
    #[serde(default)]
    key_of: Option<Path>,
    /// The form of a text.
    #[serde(default)]
    form: Option<Form>,
    /// The form of each element of a list.
    #[serde(default)]
    items: Option<Box<Argument>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Type {
    String,
    Integer,
    Number,
    Boolean,
    List,
}

/// The form of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Form {
    /// One line.
    Line,
    /// `name@host.tld`.
    Email,
    /// `2026-01-31`.
    Date,
    /// `23:59`.
    Time,
}

/// What must hold before anything happens.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Requirement {
    #[serde(flatten)]
    what: Condition,
    /// What the page is told otherwise.
    message: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Condition {
    /// Something stands there.
    Exists(Path),
    /// Nothing does.
    Absent(Path),
    /// An object, a list or a text there has something in it.
    NotEmpty(Path),
    /// The two are the same.
    Equal(Term, Term),
    /// They are not.
    Differ(Term, Term),
    /// The first is less than the second: numbers, or texts by their characters.
    Less(Term, Term),
    /// The same, or less.
    AtMost(Term, Term),
}

/// One change.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Effect {
    /// Puts a value at a place whose surroundings are there.
    Set { path: Path, value: Term },
    /// Puts a value into an object under a key of its own: `prefix` and the next number. The key is told to the page as `id`, and is
    /// `{"$id": true}` in values.
    Insert { path: Path, prefix: String, value: Term },
    /// Adds a value at the end of a list.
    Append { path: Path, value: Term },
    /// Takes away what stands there.
    Remove { path: Path },
    /// Empties an object or a list.
    Clear { path: Path },
}

/// A place with `{NAME}` for the argument of this name, a whole part.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
struct Path(Place);

impl TryFrom<String> for Path {
    type Error = String;

    fn try_from(text: String) -> Result<Path, String> {
        pointer::parse(&text).map(Path)
    }
}

/// A value, with `{"$argument": NAME}`, `{"$state": PATH}` and `{"$id": true}` in it.
#[derive(Clone, Debug)]
enum Term {
    Literal(Value),
    Argument(String),
    State(Path),
    Id,
    Object(Vec<(String, Term)>),
    List(Vec<Term>),
}

impl<'de> Deserialize<'de> for Term {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Term, D::Error> {
        Term::read(Value::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl Term {
    fn read(value: Value) -> Result<Term, String> {
        match value {
            Value::Object(map) => {
                let special = map.iter().next().filter(|(key, _)| key.starts_with('$') && map.len() == 1);
                match special.map(|(key, value)| (key.as_str(), value)) {
                    Some(("$argument", Value::String(name))) => Ok(Term::Argument(name.clone())),
                    Some(("$state", Value::String(path))) => Ok(Term::State(Path::try_from(path.clone())?)),
                    Some(("$id", Value::Bool(true))) => Ok(Term::Id),
                    Some((key, value)) => Err(format!(
                        "{key:?} with {value}: expected `$argument` with a name, `$state` with a path, or `$id` with true"
                    )),
                    None => {
                        let terms = map.into_iter().map(|(key, value)| Ok((key, Term::read(value)?)));
                        terms.collect::<Result<_, String>>().map(Term::Object)
                    }
                }
            }
            Value::Array(items) => {
                items.into_iter().map(Term::read).collect::<Result<_, _>>().map(Term::List)
            }
            literal => Ok(Term::Literal(literal)),
        }
    }

    /// Whether it is an id, or has one in it.
    fn check(&self, operation: &Operation, with_id: bool) -> Result<(), String> {
        match self {
            Term::Literal(_) => Ok(()),
            Term::Argument(name) => operation.knows(name),
            Term::State(path) => path.check(operation),
            Term::Id if with_id => Ok(()),
            Term::Id => Err("`$id` outside of `insert`".to_owned()),
            Term::Object(parts) => parts.iter().try_for_each(|(_, term)| term.check(operation, with_id)),
            Term::List(terms) => terms.iter().try_for_each(|term| term.check(operation, with_id)),
        }
    }
}

impl Path {
    /// The argument that a part stands for.
    fn argument(part: &str) -> Option<&str> {
        part.strip_prefix('{')?.strip_suffix('}')
    }

    fn check(&self, operation: &Operation) -> Result<(), String> {
        self.0.iter().filter_map(|part| Path::argument(part)).try_for_each(|name| operation.knows(name))
    }
}

/// What a page is told of an operation that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused(pub(crate) String);

/// What it is told of one that was carried out.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Done {
    pub(crate) state: Value,
    /// The key that `insert` made, the last one.
    pub(crate) id: Option<String>,
    /// The numbers that `insert` has given, with those of this operation.
    pub(crate) numbers: Numbers,
}

/// The highest number that `insert` has given in a session, by place and prefix: what was removed leaves its number behind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Numbers(BTreeMap<(Place, String), u32>);

/// What an operation is carried out on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before<'a> {
    /// How the session began: no new entry has the key of one that was there.
    pub(crate) initial: &'a Value,
    pub(crate) current: &'a Value,
    pub(crate) numbers: &'a Numbers,
}

impl Before<'_> {
    /// The next key of an object.
    fn next_key(&self, state: &Value, numbers: &mut Numbers, place: &Place, prefix: &str) -> String {
        let number = |key: &String| key.strip_prefix(prefix)?.parse::<u32>().ok();
        let highest = |state: &Value| match pointer::get(state, place) {
            Some(Value::Object(map)) => map.keys().filter_map(number).max().unwrap_or(0),
            _ => 0,
        };
        let given = numbers.0.entry((place.clone(), prefix.to_owned())).or_default();
        *given = (*given).max(highest(state)).max(highest(self.initial)).saturating_add(1);
        format!("{prefix}{given}")
    }
}

impl Operation {
    fn knows(&self, name: &str) -> Result<(), String> {
        match self.arguments.contains_key(name) {
            true => Ok(()),
            false => Err(format!("there is no argument {name:?}")),
        }
    }

    /// Refuses a definition that could never be carried out.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (name, argument) in &self.arguments {
            argument.check().map_err(|problem| format!("argument {name:?}: {problem}"))?;
        }
        for requirement in &self.requires {
            match &requirement.what {
                Condition::Exists(path) | Condition::Absent(path) | Condition::NotEmpty(path) => {
                    path.check(self)
                }
                Condition::Equal(one, other)
                | Condition::Differ(one, other)
                | Condition::Less(one, other)
                | Condition::AtMost(one, other) => {
                    one.check(self, false).and_then(|()| other.check(self, false))
                }
            }?;
        }
        if self.effects.is_empty() {
            return Err("`effects` is empty".to_owned());
        }
        for effect in &self.effects {
            match effect {
                Effect::Set { path, value } | Effect::Append { path, value } => {
                    path.check(self).and_then(|()| value.check(self, false))
                }
                Effect::Insert { path, value, .. } => path.check(self).and_then(|()| value.check(self, true)),
                Effect::Remove { path } | Effect::Clear { path } => path.check(self),
            }?;
        }
        Ok(())
    }

    /// Carries it out on a state. Nothing is changed in place.
    pub(crate) fn apply(&self, before: Before<'_>, given: &Map<String, Value>) -> Result<Done, Refused> {
        let state = before.current;
        if let Some(unknown) = given.keys().find(|name| !self.arguments.contains_key(*name)) {
            let known: Vec<&str> = self.arguments.keys().map(String::as_str).collect();
            let unknown: String = unknown.chars().take(100).collect();
            return Err(Refused(format!("unknown argument {unknown:?}: expected {}", known.join(", "))));
        }
        let mut arguments = BTreeMap::new();
        for (name, argument) in &self.arguments {
            let value = given.get(name).or(argument.default.as_ref());
            let value = value.ok_or_else(|| Refused(format!("argument {name:?} is missing")))?;
            argument.fits(value, state).map_err(|why| Refused(format!("argument {name:?}: {why}")))?;
            arguments.insert(name.as_str(), value);
        }
        for Requirement { what, message } in &self.requires {
            if !holds(what, &Scope { state, arguments: &arguments, id: None })? {
                return Err(Refused(message.clone()));
            }
        }
        let mut done = Done { state: state.clone(), id: None, numbers: before.numbers.clone() };
        for effect in &self.effects {
            carry_out(effect, &mut done, &arguments, &before)?;
        }
        Ok(done)
    }
}

impl Argument {
    fn check(&self) -> Result<(), String> {
        let of_type = |is: bool, key: &str| match is {
            true => Ok(()),
            false => Err(format!("`{key}` does not go with its `type`")),
        };
        of_type(self.form.is_none() || self.r#type == Type::String, "form")?;
        of_type(self.key_of.is_none() || self.r#type == Type::String, "key_of")?;
        of_type(self.items.is_some() == (self.r#type == Type::List), "items")?;
        if let Some(path) = &self.key_of
            && path.0.iter().any(|part| Path::argument(part).is_some())
        {
            return Err("`key_of` names a place without arguments".to_owned());
        }
        self.items.as_deref().map_or(Ok(()), Argument::check)
    }

    fn fits(&self, value: &Value, state: &Value) -> Result<(), String> {
        if let Some(values) = &self.one_of
            && !values.contains(value)
        {
            let values: Vec<String> = values.iter().map(Value::to_string).collect();
            return Err(format!("expected one of {}", values.join(", ")));
        }
        let within = |amount: f64, most: Option<u64>, unit: &str| {
            let (min, max) = (self.min, self.max.or(most.map(|most| most as f64)));
            if min.is_some_and(|min| amount < min) || max.is_some_and(|max| amount > max) {
                let least = min.map(|min| format!(" {min} at least")).unwrap_or_default();
                let most = max.map(|max| format!(" {max} at most")).unwrap_or_default();
                return Err(format!(
                    "{amount}{unit}: expected{least}{}{most}",
                    if least.is_empty() || most.is_empty() { "" } else { "," }
                ));
            }
            Ok(())
        };
        match (self.r#type, value) {
            (Type::String, Value::String(text)) => {
                within(text.chars().count() as f64, Some(TEXT_CHARS_MAX), " characters")?;
                if let Some(form) = self.form {
                    form.fits(text)?;
                }
                if let Some(path) = &self.key_of {
                    let keys = pointer::get(state, &path.0).and_then(Value::as_object);
                    if !keys.is_some_and(|keys| keys.contains_key(text)) {
                        return Err(format!("there is no such entry in {}", pointer::write(&path.0)));
                    }
                }
                Ok(())
            }
            (Type::Integer, Value::Number(number)) if number.is_i64() || number.is_u64() => {
                within(number.as_f64().unwrap_or(f64::MAX), None, "")
            }
            (Type::Number, Value::Number(number)) => within(number.as_f64().unwrap_or(f64::MAX), None, ""),
            (Type::Boolean, Value::Bool(_)) => Ok(()),
            (Type::List, Value::Array(items)) => {
                within(items.len() as f64, Some(LIST_ITEMS_MAX), " elements")?;
                let form = self.items.as_deref();
                items.iter().try_for_each(|item| form.map_or(Ok(()), |form| form.fits(item, state)))
            }
            (Type::String, _) => Err("expected a text".to_owned()),
            (Type::Integer, _) => Err("expected a whole number".to_owned()),
            (Type::Number, _) => Err("expected a number".to_owned()),
            (Type::Boolean, _) => Err("expected true or false".to_owned()),
            (Type::List, _) => Err("expected a list".to_owned()),
        }
    }
}

impl Form {
    fn fits(self, text: &str) -> Result<(), String> {
        let digits = |text: &str, length: usize| {
            text.len() == length && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        let number = |text: &str, length, from: u32, to: u32| {
            digits(text, length) && text.parse().is_ok_and(|number: u32| (from..=to).contains(&number))
        };
        let (fits, wanted) = match self {
            Form::Line => (!text.chars().any(char::is_control), "one line"),
            Form::Email => {
                let parts = text.split_once('@');
                let plain = |text: &str| {
                    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || ".-_+".contains(c))
                };
                let fits = parts.is_some_and(|(name, host)| {
                    plain(name)
                        && plain(host)
                        && host.contains('.')
                        && host.split('.').all(|part| !part.is_empty())
                });
                (fits, "an address such as ann@example.org")
            }
            Form::Date => {
                let parts: Vec<&str> = text.split('-').collect();
                let fits = matches!(parts[..], [year, month, day]
                    if digits(year, 4) && number(month, 2, 1, 12) && number(day, 2, 1, days(year, month)));
                (fits, "a date such as 2026-01-31")
            }
            Form::Time => {
                let parts = text.split_once(':');
                let fits =
                    parts.is_some_and(|(hour, minute)| number(hour, 2, 0, 23) && number(minute, 2, 0, 59));
                (fits, "a time such as 09:30")
            }
        };
        if fits { Ok(()) } else { Err(format!("expected {wanted}")) }
    }
}

/// Days of a month; both are digits.
fn days(year: &str, month: &str) -> u32 {
    let year: u32 = year.parse().unwrap_or(0);
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        "02" if leap => 29,
        "02" => 28,
        "04" | "06" | "09" | "11" => 30,
        _ => 31,
    }
}

/// What terms and paths speak of.
struct Scope<'a> {
    state: &'a Value,
    arguments: &'a BTreeMap<&'a str, &'a Value>,
    id: Option<&'a str>,
}

impl Scope<'_> {
    fn place(&self, path: &Path) -> Result<Place, Refused> {
        let part = |part: &String| match Path::argument(part) {
            None => Ok(part.clone()),
            Some(name) => match self.arguments.get(name) {
                Some(Value::String(text)) => Ok(text.clone()),
                Some(Value::Number(number)) => Ok(number.to_string()),
                _ => Err(Refused(format!("argument {name:?}: expected a text"))),
            },
        };
        path.0.iter().map(part).collect()
    }

    fn value(&self, term: &Term) -> Result<Value, Refused> {
        match term {
            Term::Literal(value) => Ok(value.clone()),
            Term::Argument(name) => {
                Ok(self.arguments.get(name.as_str()).map_or(Value::Null, |value| (*value).clone()))
            }
            Term::State(path) => {
                let place = self.place(path)?;
                pointer::get(self.state, &place).cloned().ok_or_else(|| nothing_at(&place))
            }
            Term::Id => Ok(self.id.into()),
            Term::Object(parts) => {
                let parts = parts.iter().map(|(key, term)| Ok((key.clone(), self.value(term)?)));
                parts.collect::<Result<Map<_, _>, _>>().map(Value::Object)
            }
            Term::List(terms) => {
                terms.iter().map(|term| self.value(term)).collect::<Result<_, _>>().map(Value::Array)
            }
        }
    }
}

fn nothing_at(place: &[String]) -> Refused {
    Refused(format!("there is nothing at {}", pointer::write(place).chars().take(200).collect::<String>()))
}

fn holds(condition: &Condition, scope: &Scope<'_>) -> Result<bool, Refused> {
    let at = |path: &Path| scope.place(path).map(|place| pointer::get(scope.state, &place));
    Ok(match condition {
        Condition::Exists(path) => at(path)?.is_some(),
        Condition::Absent(path) => at(path)?.is_none(),
        Condition::NotEmpty(path) => match at(path)? {
            Some(Value::Object(map)) => !map.is_empty(),
            Some(Value::Array(items)) => !items.is_empty(),
            Some(Value::String(text)) => !text.is_empty(),
            _ => false,
        },
        Condition::Equal(one, other) => scope.value(one)? == scope.value(other)?,
        Condition::Differ(one, other) => scope.value(one)? != scope.value(other)?,
        Condition::Less(one, other) => {
            order(&scope.value(one)?, &scope.value(other)?) == Some(Ordering::Less)
        }
        Condition::AtMost(one, other) => {
            order(&scope.value(one)?, &scope.value(other)?).is_some_and(Ordering::is_le)
        }
    })
}

/// Of two numbers, or two texts.
fn order(one: &Value, other: &Value) -> Option<Ordering> {
    match (one, other) {
        (Value::String(one), Value::String(other)) => Some(one.cmp(other)),
        (one, other) => one.as_f64()?.partial_cmp(&other.as_f64()?),
    }
}

fn carry_out(
    effect: &Effect,
    done: &mut Done,
    arguments: &BTreeMap<&str, &Value>,
    before: &Before<'_>,
) -> Result<(), Refused> {
    let state = done.state.clone();
    let scope = Scope { state: &state, arguments, id: None };
    match effect {
        Effect::Set { path, value } => {
            let (place, value) = (scope.place(path)?, scope.value(value)?);
            let Some((last, parent)) = place.split_last() else { return Err(nothing_at(&place)) };
            match pointer::get_mut(&mut done.state, parent) {
                Some(Value::Object(map)) => drop(map.insert(last.clone(), value)),
                Some(Value::Array(items)) => {
                    let item = pointer::index(last).and_then(|index| items.get_mut(index));
                    *item.ok_or_else(|| nothing_at(&place))? = value;
                }
                _ => return Err(nothing_at(parent)),
            }
        }
        Effect::Insert { path, prefix, value } => {
            let place = scope.place(path)?;
            let Some(Value::Object(map)) = pointer::get_mut(&mut done.state, &place) else {
                return Err(nothing_at(&place));
            };
            let id = before.next_key(&state, &mut done.numbers, &place, prefix);
            let value = Scope { id: Some(&id), ..scope }.value(value)?;
            map.insert(id.clone(), value);
            done.id = Some(id);
        }
        Effect::Append { path, value } => {
            let (place, value) = (scope.place(path)?, scope.value(value)?);
            match pointer::get_mut(&mut done.state, &place) {
                Some(Value::Array(items)) => items.push(value),
                _ => return Err(nothing_at(&place)),
            }
        }
        Effect::Remove { path } => {
            let place = scope.place(path)?;
            let (last, parent) = place.split_last().ok_or_else(|| nothing_at(&place))?;
            let removed = match pointer::get_mut(&mut done.state, parent) {
                Some(Value::Object(map)) => map.shift_remove(last),
                Some(Value::Array(items)) => {
                    pointer::index(last).filter(|index| *index < items.len()).map(|index| items.remove(index))
                }
                _ => None,
            };
            removed.ok_or_else(|| nothing_at(&place))?;
        }
        Effect::Clear { path } => {
            let place = scope.place(path)?;
            match pointer::get_mut(&mut done.state, &place) {
                Some(Value::Object(map)) => map.clear(),
                Some(Value::Array(items)) => items.clear(),
                _ => return Err(nothing_at(&place)),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
