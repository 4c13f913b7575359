//! Names in an instruction that only the solution has: who reads them knows how it was done.

use super::SourceFile;
use std::collections::{BTreeMap, BTreeSet};

/// Names that stand in the text and in the code of the new source, and nowhere else: neither in `known` files (the tree before, and
/// the tests, which say what a solution is called by), nor as words of plain English.
pub(super) fn given_away<'a>(
    text: &str,
    source: &BTreeMap<&str, &SourceFile>,
    known: impl IntoIterator<Item = &'a SourceFile>,
) -> Vec<String> {
    let code: Vec<String> = source
        .iter()
        .filter(|(path, _)| path.ends_with(".py") || path.ends_with(".pyi"))
        .map(|(_, file)| code_of(&String::from_utf8_lossy(&file.bytes)))
        .collect();
    let mut only: BTreeSet<&str> = code.iter().flat_map(|code| words(code)).map(|(_, word)| word).collect();
    for file in known {
        let Ok(text) = std::str::from_utf8(&file.bytes) else { continue };
        for (_, word) in words(text) {
            only.remove(word);
        }
    }
    let named = words(text).filter(|(at, word)| only.contains(word) && is_name(text, *at, word));
    let named: BTreeSet<&str> = named.map(|(_, word)| word).collect();
    named.into_iter().map(str::to_owned).collect()
}

/// Python without its comments and texts.
fn code_of(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find(['#', '"', '\'']) {
        code.push_str(&rest[..at]);
        let found = &rest[at..];
        let length =
            if found.starts_with('#') { found.find('\n').unwrap_or(found.len()) } else { text_length(found) };
        code.push(' ');
        rest = &found[length..];
    }
    code.push_str(rest);
    code
}

/// Bytes of the text in quotes that this begins with; one that is not closed ends with its line.
fn text_length(text: &str) -> usize {
    let quote = &text[..1];
    let triple = quote.repeat(3);
    let (end, lines) = if text.starts_with(&triple) { (triple.as_str(), true) } else { (quote, false) };
    let mut at = end.len();
    while at < text.len() {
        let here = &text[at..];
        if here.starts_with(end) {
            return at + end.len();
        }
        if here.starts_with('\n') && !lines {
            return at;
        }
        let skipped = if here.starts_with('\\') { 2 } else { 1 };
        at += here.chars().take(skipped).map(char::len_utf8).sum::<usize>();
    }
    text.len()
}

/// Letters, digits and `_`, not beginning with a digit; with their place.
fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut rest = 0;
    std::iter::from_fn(move || {
        let inner = |c: char| c.is_alphanumeric() || c == '_';
        loop {
            let start = rest + text[rest..].find(inner)?;
            let end = text[start..].find(|c| !inner(c)).map_or(text.len(), |length| start + length);
            rest = end;
            let word = &text[start..end];
            if !word.starts_with(|c: char| c.is_ascii_digit()) {
                return Some((start, word));
            }
        }
    })
}

/// Whether it is written as code is: an ordinary word is not a name of the solution just because the solution contains it.
fn is_name(text: &str, at: usize, word: &str) -> bool {
    let (before, after) = (&text[..at], &text[at + word.len()..]);
    let quoted = before.ends_with('`') || after.starts_with('`');
    let called = after.starts_with('(');
    let next = |text: &str| text.starts_with(char::is_alphanumeric);
    let dotted = before.strip_suffix('.').is_some_and(|before| before.ends_with(char::is_alphanumeric))
        || after.strip_prefix('.').is_some_and(next);
    let mut pairs = word.chars().zip(word.chars().skip(1));
    let hump = pairs.any(|(one, next)| one.is_lowercase() && next.is_uppercase());
    word.contains('_') || hump || quoted || called || dotted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> SourceFile {
        SourceFile { bytes: text.into(), executable: false }
    }

    #[test]
    fn names_of_the_solution_are_found_and_words_are_not() {
        let known = [
            file("def parse(text): pass\nMAX_DEPTH = 3"),
            file("from lib import take_last\n"),
            file("\u{fffd}"),
        ];
        let lexer = file(
            "def take_last(depth): return _grouped(depth)  # in_a_comment\n\
             class HtmlLexer: limit = MAX_DEPTH; note = 'in_a_text'; issue7 = 1\n",
        );
        let settings = file("in_settings = 1");
        let source = BTreeMap::from([("lib/lexer.py", &lexer), ("pyproject.toml", &settings)]);
        let check =
            |text: &str, expect: &[&str]| assert_eq!(given_away(text, &source, &known), expect, "{text}");
        check("Add take_last, limit the depth by MAX_DEPTH.", &[]);
        check("Group by `_grouped` in HtmlLexer.", &["HtmlLexer", "_grouped"]);
        check("The `limit` is new; note(depth).", &["limit", "note"]);
        check("A limit of the depth. note this: unknown words (issue7)", &[]);
        check("in_a_comment, in_a_text, in_settings", &[]);
        check("see lexer.limit", &["limit"]);
        check("It is limited. note", &[]);
    }

    #[test]
    fn comments_and_texts_are_no_code() {
        for (source, expect) in [
            ("a # b 'c\nd", "a  \nd"),
            ("a = 'it\\'s' + b", "a =   + b"),
            ("\"\"\"x\n'y' # z\"\"\" a", "  a"),
            ("a = ''\nb", "a =  \nb"),
            ("a = 'open\nb", "a =  \nb"),
            ("a = \"\u{e4}#\\\u{e4}\" + b", "a =   + b"),
            ("'''never closed", " "),
        ] {
            assert_eq!(code_of(source), expect);
        }
    }
}
