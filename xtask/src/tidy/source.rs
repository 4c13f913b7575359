//! Rust sources as the rules see them: code without comments, texts and tests, and the paths that it names. A scanner, no parser:
//! it needs neither expansion nor types, since the rules ask which names stand where.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// One source file.
#[derive(Clone, Debug)]
pub(super) struct Source {
    /// From the root, with slashes.
    pub(super) name: String,
    /// As it stands.
    pub(super) text: String,
    /// Line by line as long as `text`, with blanks in the place of comments, of what texts hold, and of tests.
    pub(super) code: String,
    /// Whether all of it is tests.
    pub(super) is_test: bool,
}

/// A path in the code: `a::b::c`, a name alone, or a macro's with its `!`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    /// From 1.
    pub(super) line: usize,
    /// Its parts, of a `use` with all that stands before the braces.
    pub(super) parts: Vec<String>,
}

impl Source {
    /// A source from one file; whether it is part of the tests is also said by whoever declares it ([`mark_tests`]).
    pub(super) fn new(name: &str, text: &str) -> Source {
        let plain = blanked(text);
        let is_test = ["/tests/", "/benches/"].iter().any(|folder| name.contains(folder))
            || name.ends_with("/tests.rs");
        let code = without_tests(&plain);
        Source { name: name.to_owned(), text: text.to_owned(), code, is_test }
    }

    /// Whether it lies in this folder or is this file.
    pub(super) fn is_in(&self, place: &str) -> bool {
        self.name.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Every path that its code names, in order.
    pub(super) fn paths(&self) -> Vec<Named> {
        paths(&self.code)
    }

    /// Files that it declares as tests, from the root: `#[cfg(test)] mod name;`.
    fn declared_tests(&self) -> Vec<String> {
        let plain = blanked(&self.text);
        let words = words(&plain);
        let texts: Vec<&str> = words.iter().map(|(_, word)| *word).collect();
        let folder = match self.name.rsplit_once('/') {
            Some((folder, "lib.rs" | "main.rs" | "mod.rs")) => folder.to_owned(),
            _ => self.name.trim_end_matches(".rs").to_owned(),
        };
        let declared = texts.windows(TEST_ITEM.len() + 3).filter(|seen| {
            seen[..TEST_ITEM.len()] == TEST_ITEM
                && seen[TEST_ITEM.len()] == "mod"
                && seen[TEST_ITEM.len() + 2] == ";"
        });
        declared.map(|seen| format!("{folder}/{}", seen[TEST_ITEM.len() + 1])).collect()
    }
}

/// Marks files that others declare as their tests.
pub(super) fn mark_tests(sources: &mut [Source]) {
    let tests: BTreeSet<String> = sources.iter().flat_map(Source::declared_tests).collect();
    for source in sources {
        let is_below = |test: &String| source.name.strip_prefix(test.as_str());
        source.is_test |=
            tests.iter().filter_map(is_below).any(|rest| rest == ".rs" || rest.starts_with('/'));
    }
}

/// The sources among these files.
pub(super) fn read(root: &Path, files: &[PathBuf]) -> Vec<Source> {
    let mut sources: Vec<Source> = files
        .iter()
        .filter(|file| file.extension().is_some_and(|extension| extension == "rs"))
        .filter_map(|file| {
            let name = file.strip_prefix(root).unwrap_or(file).to_string_lossy().into_owned();
            Some(Source::new(&name, &std::fs::read_to_string(file).ok()?))
        })
        .collect();
    mark_tests(&mut sources);
    sources
}

/// What stands before an item that is only there for tests.
const TEST_ITEM: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];

/// Comments and what texts and characters hold as blanks; line breaks stay.
pub(super) fn blanked(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let blank = |out: &mut Vec<u8>, from: usize, to: usize| {
        for byte in &mut out[from..to.min(bytes.len())] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
    };
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let after_name = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
        let end = match rest {
            [b'/', b'/', ..] => at + rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()),
            [b'/', b'*', ..] => at + comment(rest),
            [b'"', ..] => at + quoted(rest),
            [b'r', b'"' | b'#', ..] if !after_name && raw(rest).is_some() => at + raw(rest).unwrap_or(1),
            [b'\'', b'\\', ..] => {
                at + 3 + rest[3..].iter().position(|byte| *byte == b'\'').map_or(0, |end| end + 1)
            }
            [b'\'', ..] => match text[at + 1..].chars().next() {
                // A character, not a lifetime.
                Some(letter) if rest.get(1 + letter.len_utf8()) == Some(&b'\'') => at + 2 + letter.len_utf8(),
                _ => {
                    at += 1;
                    continue;
                }
            },
            _ => {
                at += 1;
                continue;
            }
        };
        blank(&mut out, at, end);
        at = end;
    }
    String::from_utf8(out).expect("whole letters are replaced by blanks")
}

/// Length of a comment that may hold others.
fn comment(text: &[u8]) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < text.len() {
        match &text[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// Length of a text with its quotes.
fn quoted(text: &[u8]) -> usize {
    let mut at = 1;
    while at < text.len() {
        match text[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

/// Length of a raw text, if it is one.
fn raw(text: &[u8]) -> Option<usize> {
    let marks = text[1..].iter().take_while(|byte| **byte == b'#').count();
    let inner = text[1 + marks..].strip_prefix(b"\"")?;
    let end = [b"\"".to_vec(), vec![b'#'; marks]].concat();
    let at = inner.windows(end.len()).position(|window| window == end.as_slice());
    Some(at.map_or(text.len(), |at| 2 + marks + at + end.len()))
}

/// Code in which items that are only there for tests are blank.
fn without_tests(code: &str) -> String {
    let words = words(code);
    let mut out = code.as_bytes().to_vec();
    let mut at = 0;
    while at + TEST_ITEM.len() < words.len() {
        let is_test = TEST_ITEM.iter().zip(&words[at..]).all(|(wanted, (_, word))| wanted == word);
        if !is_test {
            at += 1;
            continue;
        }
        let (mut depth, mut end) = (0_usize, at + TEST_ITEM.len());
        while end < words.len() {
            match words[end].1 {
                "{" => depth += 1,
                "}" if depth <= 1 => break,
                "}" => depth -= 1,
                ";" if depth == 0 => break,
                _ => {}
            }
            end += 1;
        }
        let until = words.get(end).map_or(code.len(), |(place, _)| place + 1);
        for byte in &mut out[words[at].0..until] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end + 1;
    }
    String::from_utf8(out).expect("whole letters are replaced by blanks")
}

/// Names, `::` and single signs, with their places.
fn words(code: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut letters = code.char_indices().peekable();
    while let Some((at, letter)) = letters.next() {
        if letter.is_whitespace() {
            continue;
        }
        let mut end = at + letter.len_utf8();
        if letter.is_alphanumeric() || letter == '_' {
            while let Some((next, _)) = letters.next_if(|(_, next)| next.is_alphanumeric() || *next == '_') {
                end = next + code[next..].chars().next().map_or(1, char::len_utf8);
            }
        } else if letter == ':' && letters.next_if(|(_, next)| *next == ':').is_some() {
            end += 1;
        }
        found.push((at, &code[at..end]));
    }
    found
}

fn is_name(word: &str) -> bool {
    word.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

fn paths(code: &str) -> Vec<Named> {
    let starts: Vec<usize> =
        std::iter::once(0).chain(code.match_indices('\n').map(|(at, _)| at + 1)).collect();
    let line = |place: usize| starts.partition_point(|start| *start <= place);
    let words = words(code);
    let mut found = Vec::new();
    let mut at = 0;
    while at < words.len() {
        // `use<...>` names what a type captures, and imports nothing.
        if words[at].1 == "use" && words.get(at + 1).is_some_and(|(_, word)| *word != "<") {
            at = tree(&words, at + 1, &[], &line, &mut found);
            continue;
        }
        if !is_name(words[at].1) {
            at += 1;
            continue;
        }
        let first = at;
        let mut parts = vec![words[at].1.to_owned()];
        while words.get(at + 1).is_some_and(|(_, word)| *word == "::")
            && words.get(at + 2).is_some_and(|(_, word)| is_name(word))
        {
            at += 2;
            parts.push(words[at].1.to_owned());
        }
        let is_macro = words.get(at + 1).is_some_and(|(_, word)| *word == "!")
            && words.get(at + 2).is_some_and(|(_, word)| ["(", "[", "{"].contains(word));
        if is_macro && let Some(last) = parts.last_mut() {
            last.push('!');
        }
        found.push(Named { line: line(words[first].0), parts });
        at += 1;
    }
    found
}

/// A branch of a `use` with what stands before it; what comes after the branch.
fn tree(
    words: &[(usize, &str)],
    mut at: usize,
    before: &[String],
    line: &impl Fn(usize) -> usize,
    found: &mut Vec<Named>,
) -> usize {
    let mut parts = before.to_vec();
    let mut place = words.get(at).map_or(0, |(place, _)| *place);
    let mut is_open = true;
    while let Some((here, word)) = words.get(at) {
        match *word {
            "::" => {}
            "{" => {
                is_open = false;
                at += 1;
                while words.get(at).is_some_and(|(_, word)| !["}", ";"].contains(word)) {
                    at = tree(words, at, &parts, line, found);
                    at += usize::from(words.get(at).is_some_and(|(_, word)| *word == ","));
                }
            }
            "as" => at += 1,
            ";" | "," | "}" => break,
            "*" => parts.push("*".to_owned()),
            name => {
                if parts.len() == before.len() {
                    place = *here;
                }
                parts.push(name.to_owned());
            }
        }
        at += 1;
    }
    if is_open && parts.len() > before.len() {
        found.push(Named { line: line(place), parts });
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(code: &str, expect: &[&str]) {
        let source = Source::new("a.rs", code);
        let seen: Vec<String> =
            source.paths().iter().map(|named| format!("{} {}", named.line, named.parts.join("::"))).collect();
        assert_eq!(seen, expect, "{code}");
    }

    #[test]
    fn paths_are_found_in_uses_and_in_code() {
        check("use a::b;", &["1 a::b"]);
        check(
            "use a::{b, c::{self, d as e}, *};\nuse f;",
            &["1 a::b", "1 a::c::self", "1 a::c::d", "1 a::*", "2 f"],
        );
        check("pub(crate) use a::{\n  b,\n};", &["1 pub", "1 crate", "2 a::b"]);
        check("let x = a::b::<C>(d);\n  e!(f)", &["1 let", "1 x", "1 a::b", "1 C", "1 d", "2 e!", "2 f"]);
        check("!a != b", &["1 a", "1 b"]);
    }

    #[test]
    fn comments_texts_and_tests_are_no_code() {
        check("// a::b\n/* c /* d */ e */ f", &["2 f"]);
        check(r#"g("a::b \" c", 'd', '\'', '\u{61}', 'é')"#, &["1 g"]);
        check("h(r#\"a \" b\"#, br\"c\", b'x')", &["1 h", "1 br", "1 b"]);
        check("fn f<'a>(x: &'a T) {}", &["1 fn", "1 f", "1 a", "1 x", "1 a", "1 T"]);
        check("#[cfg(test)]\nmod tests { a; { b } }\nc", &["3 c"]);
        check("#[cfg(test)]\nuse a::b;\nc", &["3 c"]);
        check("#[cfg(test)]\nmod tests;\n#[cfg(not(test))]\nd", &["3 cfg", "3 not", "3 test", "4 d"]);
        check("impl X + use<> { y; }", &["1 impl", "1 X", "1 use", "1 y"]);
    }

    #[test]
    fn files_that_others_declare_as_tests_are_tests() {
        let mut sources = vec![
            Source::new("a/src/b.rs", "#[cfg(test)]\nmod simulation;\nmod real;"),
            Source::new("a/src/b/simulation.rs", ""),
            Source::new("a/src/b/simulation/disk.rs", ""),
            Source::new("a/src/b/real.rs", ""),
            Source::new("a/tests/x.rs", ""),
        ];
        mark_tests(&mut sources);
        assert_eq!(
            sources.iter().map(|source| source.is_test).collect::<Vec<_>>(),
            [false, true, true, false, true]
        );
    }
}
