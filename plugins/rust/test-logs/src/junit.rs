//! JUnit XML, as pytest and many others write it. A reader of its own for the little of XML that it takes: tags, attributes, the
//! five named and the numbered references. No document types, no entities, nothing is looked up.

use crate::{Results, Status};

/// Longest tag that is looked at, in bytes.
const TAG_BYTES_MAX: usize = 1 << 20;

pub(crate) fn parse(text: &str) -> Results {
    let mut results = Results::default();
    let mut open: Option<(String, Status)> = None;
    for tag in (Tags { rest: text }) {
        let (name, closes) = match tag.strip_prefix('/') {
            Some(name) => (name.trim(), true),
            None => (tag.split([' ', '\t', '\n', '\r', '/']).next().unwrap_or(tag), false),
        };
        match (name, closes) {
            ("testcase", false) => {
                flush(&mut open, &mut results);
                open = Some((name_of(tag), Status::Passed));
                if tag.ends_with('/') {
                    flush(&mut open, &mut results);
                }
            }
            ("testcase" | "testsuite", true) => flush(&mut open, &mut results),
            ("failure" | "error" | "skipped", false) => {
                if let Some((_, status)) = &mut open {
                    let found = match name {
                        "failure" => Status::Failed,
                        "error" => Status::Error,
                        _ if attribute(tag, "type").as_deref() == Some("pytest.xfail") => Status::XFail,
                        _ => Status::Skipped,
                    };
                    *status = found.max(*status);
                }
            }
            _ => {}
        }
    }
    // What is cut in the middle of a test says nothing good of it.
    if let Some((name, status)) = open {
        results.worst(&name, status.max(Status::Error));
    }
    results
}

fn flush(open: &mut Option<(String, Status)>, results: &mut Results) {
    if let Some((name, status)) = open.take() {
        results.worst(&name, status);
    }
}

/// Node id where file and class tell it, else `classname.name`.
fn name_of(tag: &str) -> String {
    let name = attribute(tag, "name").unwrap_or_default();
    let class = attribute(tag, "classname").unwrap_or_default();
    if let Some(file) = attribute(tag, "file").filter(|file| file.ends_with(".py")) {
        let module = file.trim_end_matches(".py").replace('/', ".");
        if class.is_empty() && name == module {
            // It could not be collected.
            return file;
        }
        // A package's own file is called by the package.
        let inner =
            class.strip_prefix(&module).or_else(|| class.strip_prefix(module.strip_suffix(".__init__")?));
        let classes = inner.unwrap_or_default().trim_start_matches('.');
        if classes.is_empty() {
            return format!("{file}::{name}");
        }
        return format!("{file}::{}::{name}", classes.replace('.', "::"));
    }
    if class.is_empty() { name } else { format!("{class}.{name}") }
}

/// The value of an attribute, references resolved.
fn attribute(tag: &str, wanted: &str) -> Option<String> {
    let mut rest = tag.split_once(|c: char| c.is_ascii_whitespace())?.1;
    loop {
        let (name, after) = rest.split_once('=')?;
        let after = after.trim_start();
        let quote = after.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        let (value, after) = after[1..].split_once(quote)?;
        if name.trim() == wanted {
            return Some(unescape(value));
        }
        rest = after;
    }
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        // The longest reference is `&#x10FFFF;`.
        let end = rest.bytes().take(12).position(|byte| byte == b';');
        let letter = end.and_then(|end| reference(&rest[1..end]));
        match (letter, end) {
            (Some(letter), Some(end)) => {
                out.push(letter);
                rest = &rest[end + 1..];
            }
            _ => {
                out.push('&');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    out
}

fn reference(name: &str) -> Option<char> {
    match name {
        "lt" => Some('<'),
        "gt" => Some('>'),
        "amp" => Some('&'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        _ => {
            let number = name.strip_prefix('#')?;
            let value = match number.strip_prefix('x') {
                Some(hex) => u32::from_str_radix(hex, 16),
                None => number.parse(),
            };
            char::from_u32(value.ok()?)
        }
    }
}

/// The insides of tags, in order; comments, CDATA and processing instructions left out.
struct Tags<'a> {
    rest: &'a str,
}

impl<'a> Iterator for Tags<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        loop {
            self.rest = &self.rest[self.rest.find('<')? + 1..];
            let skipped = [("!--", "-->"), ("![CDATA[", "]]>"), ("?", "?>"), ("!", ">")];
            if let Some((open, close)) = skipped.iter().find(|(open, _)| self.rest.starts_with(open)) {
                let inner = &self.rest[open.len()..];
                self.rest = &inner[inner.find(close)? + close.len()..];
                continue;
            }
            let end = end_of_tag(self.rest)?;
            let tag = &self.rest[..end];
            self.rest = &self.rest[end + 1..];
            if end <= TAG_BYTES_MAX {
                return Some(tag);
            }
        }
    }
}

/// Where a tag closes: at the first `>` outside of quotes.
fn end_of_tag(text: &str) -> Option<usize> {
    let mut quote = None;
    for (at, byte) in text.bytes().enumerate() {
        match (quote, byte) {
            (None, b'>') => return Some(at),
            (None, b'"' | b'\'') => quote = Some(byte),
            (Some(open), _) if open == byte => quote = None,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text_of;

    #[test]
    fn cases_and_their_outcomes() {
        let check = |log: &str, expect: &str| assert_eq!(text_of(&parse(log)), expect, "{log}");
        check(
            r#"<?xml version="1.0"?><testsuites><testsuite tests="5"><testcase classname="tests.test_a.TestC.Inner" name="b[&lt;&#233; &amp; &quot;]" file="tests/test_a.py" line="3" time="0.1"/><testcase classname="tests.test_a" name="c" file="tests/test_a.py"><failure message="a &gt; b">x</failure></testcase><testcase classname="m.C" name="d"><skipped type="pytest.xfail" message=""/></testcase><testcase name="e" classname=""><skipped/></testcase><testcase classname="m" name="f"><failure/><error message="in teardown"/></testcase></testsuite></testsuites>"#,
            "PASSED tests/test_a.py::TestC::Inner::b[<é & \"], SKIPPED e, XFAIL m.C.d, FAILED m.f, FAILED tests/test_a.py::c",
        );
        check(
            r#"<testcase name="a" classname='m'><![CDATA[</testcase><testcase name="no"/>]]></testcase>"#,
            "PASSED m.a",
        );
        check(
            r#"<testcase name="a"><system-out>&lt;testcase name="no"/></system-out></testcase>"#,
            "PASSED a",
        );
        check(r#"<testcase name="a > b"/><!-- <testcase name="no"/> -->"#, "PASSED a > b");
        check(r#"<testcase name="a"/><testcase name="b"><fail"#, "PASSED a, ERROR b");
        check(r#"<testcase name="a"/><testcase name="a"><error/></testcase>"#, "ERROR a");
        check("<testcase name=\"&#xffffffff;&bad;&\"/>", "PASSED &#xffffffff;&bad;&");
        check("no xml < at all", "");
        check(r#"<testcase classname="" name="p.a" file="p/a.py"><error/></testcase>"#, "ERROR p/a.py");
        check(r#"<testcase classname="p" name="t" file="p/__init__.py"/>"#, "PASSED p/__init__.py::t");
    }
}
