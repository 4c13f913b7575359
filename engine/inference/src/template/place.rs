//! Finds messages in what a template printed, and keeps control-token text in them literal.
//!
//! Both work by stand-ins of plain letters and digits, which templates neither trim nor escape: one for each special
//! token's text inside a message, and in a second rendering one for each whole message. The second rendering says which
//! text is markup; laid beside the first it gives each message's exact place.

use super::entries::Entry;
use super::{Content, Rendered};
use espalier_core::chat::Role;
use regex::Regex;
use std::borrow::Cow;
use std::ops::Range;

/// Finds the texts of special tokens.
pub(super) struct Literals {
    /// Longest first, so that the longest match wins.
    tokens: Vec<String>,
    /// `None` where there are none.
    any: Option<Regex>,
    /// Tokens that the template's own logic looks for in answers.
    of_template: Vec<String>,
}

/// What stands for special tokens' texts and for images, by number.
pub(super) struct StandIns {
    prefix: String,
    stands_for: Vec<StandsFor>,
}

enum StandsFor {
    /// Text that equals a special token's.
    Literal(String),
    /// An image, by its blob.
    Image(String),
}

/// What stands for messages.
pub(super) struct Markers {
    prefix: String,
    answer: String,
}

/// Where each entry's content was found.
pub(super) struct Placed {
    states: Vec<Place>,
}

/// What became of one entry's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Stands here, as it is or trimmed or as JSON text.
    At(Range<usize>),
    /// Printed, but changed.
    Changed,
    /// Not printed.
    Absent,
}

impl Placed {
    pub(super) fn of(&self, entry: usize) -> &Place {
        self.states.get(entry).unwrap_or(&Place::Absent)
    }
}

/// Digits of a number inside a stand-in.
const DIGITS: usize = 6;

impl Literals {
    pub(super) fn new(tokens: &[String]) -> Literals {
        let mut tokens: Vec<String> = tokens.iter().filter(|token| !token.is_empty()).cloned().collect();
        tokens.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        tokens.dedup();
        let any = alternatives(&tokens);
        Literals { tokens, any, of_template: Vec::new() }
    }

    /// All tokens, longest first.
    pub(super) fn tokens(&self) -> &[String] {
        &self.tokens
    }

    pub(super) fn leave_to_template(&mut self, tokens: Vec<String>) {
        self.of_template = tokens;
    }

    /// Whether this text inside a message of this role is left as it is.
    fn left(&self, role: Role, token: &str) -> bool {
        role == Role::Assistant && self.of_template.iter().any(|left| left == token)
    }

    /// Replaces special tokens' texts inside all contents, and puts images there.
    pub(super) fn hide(&self, entries: &[Entry]) -> (Vec<Entry>, StandIns) {
        let mut stand_ins = StandIns { prefix: unused("Zt", entries), stands_for: Vec::new() };
        let mut hidden = Vec::with_capacity(entries.len());
        for entry in entries {
            let mut content = String::with_capacity(entry.content.len());
            let mut from = 0;
            for (at, blob) in &entry.images {
                content.push_str(&self.hide_text(entry.role, &entry.content[from..*at], &mut stand_ins));
                content.push_str(&stand_ins.stand_in(StandsFor::Image(blob.clone())));
                from = *at;
            }
            content.push_str(&self.hide_text(entry.role, &entry.content[from..], &mut stand_ins));
            hidden.push(Entry { content, ..entry.clone() });
        }
        (hidden, stand_ins)
    }

    fn hide_text<'a>(&self, role: Role, text: &'a str, stand_ins: &mut StandIns) -> Cow<'a, str> {
        let Some(any) = &self.any else { return Cow::Borrowed(text) };
        any.replace_all(text, |found: &regex::Captures<'_>| {
            let token = &found[0];
            if self.left(role, token) {
                return token.to_owned();
            }
            stand_ins.stand_in(StandsFor::Literal(token.to_owned()))
        })
    }

    /// Bytes that both texts share from the start, ending between special tokens.
    pub(super) fn common_prefix(&self, text: &str, other: &str) -> usize {
        let mut shared = text.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
        while !text.is_char_boundary(shared) {
            shared -= 1;
        }
        let Some(any) = &self.any else { return shared };
        any.find_iter(text)
            .take_while(|found| found.start() < shared)
            .find(|found| found.end() > shared)
            .map_or(shared, |found| found.start())
    }
}

impl StandIns {
    fn stand_in(&mut self, what: StandsFor) -> String {
        let number = self.stands_for.len();
        self.stands_for.push(what);
        format!("{}{number:0DIGITS$}z", self.prefix)
    }
}

impl Markers {
    pub(super) fn new(entries: &[Entry]) -> Markers {
        let prefix = unused("Zm", entries);
        Markers { answer: format!("{prefix}answer"), prefix }
    }

    /// Stands for the last answer.
    pub(super) fn answer(&self) -> &str {
        &self.answer
    }

    /// Stands for the content of this entry.
    pub(super) fn content(&self, entry: usize) -> String {
        format!("{}c{entry:0DIGITS$}z", self.prefix)
    }

    /// The entries with markers instead of contents, from `from` on.
    pub(super) fn replaced(&self, entries: &[Entry], from: usize) -> Vec<Entry> {
        let mut replaced = entries.to_vec();
        for (index, entry) in replaced.iter_mut().enumerate().skip(from) {
            if !entry.content.is_empty() {
                entry.content = self.content(index);
            }
        }
        replaced
    }
}

/// A prefix that occurs in no content.
fn unused(stem: &str, entries: &[Entry]) -> String {
    (0u32..)
        .map(|number| format!("{stem}{number}x"))
        .find(|prefix| !entries.iter().any(|entry| entry.content.contains(prefix.as_str())))
        .expect("finite contents leave a number unused")
}

fn alternatives(tokens: &[String]) -> Option<Regex> {
    if tokens.is_empty() {
        return None;
    }
    let pattern = tokens.iter().map(|token| regex::escape(token)).collect::<Vec<_>>().join("|");
    // Vocabularies with some hundred reserved tokens outgrow the default bound.
    let built = regex::RegexBuilder::new(&pattern).size_limit(64 << 20).build();
    Some(built.expect("alternatives of escaped texts are a valid pattern"))
}

/// Finds the contents of `entries[from..]` in `text`; `marked` is the same text with markers for contents.
pub(super) fn place(
    text: &str,
    marked: Option<&str>,
    entries: &[Entry],
    from: usize,
    markers: &Markers,
) -> Placed {
    let aligned = marked.and_then(|marked| align(text, marked, entries, from, markers));
    aligned.unwrap_or_else(|| search(text, marked, entries, from, markers))
}

/// Lays the two texts beside each other: markup must be equal, a marker stands for a form of its content.
fn align(text: &str, marked: &str, entries: &[Entry], from: usize, markers: &Markers) -> Option<Placed> {
    let mut states = vec![Place::Absent; entries.len()];
    let mut at = 0;
    let mut chunks = Chunks { marked, prefix: format!("{}c", markers.prefix) };
    let first = chunks.next_chunk();
    let (mut markup, mut marker) = first;
    loop {
        if !text[at..].starts_with(markup) {
            return None;
        }
        at += markup.len();
        let Some(entry) = marker.filter(|entry| (from..entries.len()).contains(entry)) else {
            return (marker.is_none() && at == text.len()).then_some(Placed { states });
        };
        let (next_markup, next_marker) = chunks.next_chunk();
        let rest = &text[at..];
        let fits = |form: &str| {
            rest.strip_prefix(form).is_some_and(|after| {
                after.starts_with(next_markup) && (next_marker.is_some() || after.len() == next_markup.len())
            })
        };
        let form = forms(&entries[entry].content).into_iter().find(|form| fits(form));
        let len = match (&form, entries[entry].role) {
            (Some(form), _) => form.len(),
            // The template changes an answer: go on behind it.
            (None, Role::Assistant) if !next_markup.is_empty() => rest.find(next_markup)?,
            (None, _) => return None,
        };
        if states[entry] == Place::Absent {
            states[entry] = if form.is_some() { Place::At(at..at + len) } else { Place::Changed };
        }
        at += len;
        (markup, marker) = (next_markup, next_marker);
    }
}

/// Markup up to the next marker, and the entry that it stands for.
struct Chunks<'a> {
    marked: &'a str,
    prefix: String,
}

impl<'a> Chunks<'a> {
    fn next_chunk(&mut self) -> (&'a str, Option<usize>) {
        let Some(start) = self.marked.find(&self.prefix) else {
            return (std::mem::take(&mut self.marked), None);
        };
        let markup = &self.marked[..start];
        let number_at = start + self.prefix.len();
        let number = self.marked.get(number_at..number_at + DIGITS).and_then(|digits| digits.parse().ok());
        self.marked = self.marked.get(number_at + DIGITS + 1..).unwrap_or("");
        (markup, number)
    }
}

/// One content after the other, where the two texts cannot be laid beside each other.
fn search(text: &str, marked: Option<&str>, entries: &[Entry], from: usize, markers: &Markers) -> Placed {
    let mut states = vec![Place::Absent; entries.len()];
    let mut at = 0;
    for (index, entry) in entries.iter().enumerate().skip(from) {
        // What is short may stand in the markup too, so a template that does not print its marker did not print it.
        let printed = marked.is_none_or(|marked| marked.contains(&markers.content(index)));
        if entry.content.is_empty() || !printed {
            continue;
        }
        let found = forms(&entry.content).into_iter().find_map(|form| {
            let start = text[at..].find(form.as_ref()).map(|start| at + start);
            start.or_else(|| text.find(form.as_ref())).map(|start| start..start + form.len())
        });
        states[index] = match found {
            Some(range) => {
                at = at.max(range.end);
                Place::At(range)
            }
            None if marked.is_some() => Place::Changed,
            None => Place::Absent,
        };
    }
    Placed { states }
}

/// How templates print a content: as it is, trimmed, or inside a JSON string.
fn forms(content: &str) -> Vec<Cow<'_, str>> {
    let mut forms = vec![Cow::Borrowed(content)];
    let trimmed = [content.trim(), content.trim_matches('\n'), content.trim_start(), content.trim_end()];
    for form in trimmed {
        if !form.is_empty() && form.len() < content.len() {
            forms.push(Cow::Borrowed(form));
        }
    }
    for form in [content, content.trim()] {
        let json = serde_json::Value::from(form).to_string();
        let inner = &json[1..json.len() - 1];
        if inner != form {
            forms.push(Cow::Owned(inner.to_owned()));
        }
    }
    forms
}

/// Puts special tokens' texts back in place of their stand-ins, and takes those of images out.
pub(super) fn restore(
    text: &str,
    placed: &Placed,
    entries: &[Entry],
    stand_ins: &StandIns,
    literals: &Literals,
) -> Rendered {
    let mut out = Rendered { text: String::with_capacity(text.len()), ..Rendered::default() };
    // (end in the old text, end in the new text) of each stand-in.
    let mut moved: Vec<(usize, usize)> = Vec::new();
    let mut at = 0;
    while let Some(start) = text[at..].find(&stand_ins.prefix).map(|start| at + start) {
        let number_at = start + stand_ins.prefix.len();
        let end = number_at + DIGITS + 1;
        let number = text.get(number_at..number_at + DIGITS).and_then(|digits| digits.parse::<usize>().ok());
        let Some(what) = number.and_then(|number| stand_ins.stands_for.get(number)) else {
            out.text.push_str(&text[at..number_at]);
            at = number_at;
            continue;
        };
        out.text.push_str(&text[at..start]);
        match what {
            StandsFor::Literal(token) => {
                out.literals.push(out.text.len()..out.text.len() + token.len());
                out.text.push_str(token);
            }
            StandsFor::Image(blob) => out.images.push((out.text.len(), blob.clone())),
        }
        moved.push((end, out.text.len()));
        at = end;
    }
    out.text.push_str(&text[at..]);
    let new_place = |old: usize| match moved.partition_point(|(end, _)| *end <= old) {
        0 => old,
        before => moved[before - 1].1 + (old - moved[before - 1].0),
    };
    for (index, entry) in entries.iter().enumerate() {
        if let Place::At(range) = placed.of(index) {
            let range = new_place(range.start)..new_place(range.end);
            out.contents.push(Content { range, message: entry.message, role: entry.role });
        }
    }
    out.contents.sort_by_key(|content| content.range.start);
    literals.close_seams(&mut out);
    out
}

impl Literals {
    /// Text of a special token that only comes about where a content meets something else is literal too.
    fn close_seams(&self, rendered: &mut Rendered) {
        let Some(any) = &self.any else { return };
        let mut seams = Vec::new();
        for found in any.find_iter(&rendered.text) {
            let overlaps = |range: &Range<usize>| range.start < found.end() && found.start() < range.end;
            let first = rendered.contents.partition_point(|content| content.range.end <= found.start());
            let of_content = rendered.contents[first..]
                .iter()
                .take_while(|content| content.range.start < found.end())
                .any(|content| overlaps(&content.range) && !self.left(content.role, found.as_str()));
            if of_content && !rendered.literals.iter().any(overlaps) {
                seams.push(found.range());
            }
        }
        if !seams.is_empty() {
            rendered.literals.extend(seams);
            rendered.literals.sort_by_key(|literal| literal.start);
        }
    }
}

/// Contents in order and nothing else: every special token's text in it is literal.
pub(super) fn plain(entries: &[Entry], literals: &Literals) -> Rendered {
    let mut out = Rendered::default();
    for entry in entries {
        let start = out.text.len();
        out.text.push_str(&entry.content);
        if start < out.text.len() {
            let range = start..out.text.len();
            out.contents.push(Content { range, message: entry.message, role: entry.role });
        }
    }
    if let Some(any) = &literals.any {
        out.literals = any.find_iter(&out.text).map(|found| found.range()).collect();
    }
    out
}
