//! The ways in which plugins fail, in each language that they are written in: what the engine says of each, with the line in the
//! author's file where the language can name one. What is said makes docs/plugin-failures.md, which this test keeps in step:
//! `ESPALIER_UPDATE=1` writes it anew.
//!
//! The plugins are projects as `espalier plugin new` makes them, with the source of `tests/faults/LANGUAGE`. Each fails in a run of the real
//! engine, beside rollouts that do not.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod build;
mod language;
mod play;
mod start;
mod table;

use language::{LANGUAGES, Language};
use std::sync::Mutex;
use table::Table;

/// What became of one failure in one language.
struct Told {
    /// Key of the failure.
    failure: &'static str,
    /// How it ended, in a word or two.
    end: String,
    /// `plugin.js:12`, or the lines of a function where the engine stops it anywhere in them.
    place: Option<String>,
    /// What the engine, or the build, says.
    text: String,
}

#[test]
fn every_failure_is_contained_and_named() {
    let tried: Vec<&Language> =
        LANGUAGES.iter().filter(|one| one.name != "go" || xtask::setup::has_go()).collect();
    let (waiting, table) = (Mutex::new(tried), Mutex::new(Table::default()));
    let next = || waiting.lock().unwrap().pop();
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(language) = next() {
                    let told = told(language);
                    table.lock().unwrap().add(language, told);
                }
            });
        }
    });
    table.into_inner().unwrap().check();
}

/// Languages tried at a time.
const AT_ONCE: usize = 2;

/// Everything that is said in one language.
fn told(language: &Language) -> Vec<Told> {
    let mut told = play::rollouts(language);
    told.extend(start::refusals(language));
    told
}

/// What differs between machines and builds is left out of texts.
fn plainly(text: &str, language: &Language) -> String {
    let mut text = text.replace(&format!("plugin {} ", language.plugin()), "plugin ");
    text = without(&text, "(", ")", |inside| inside.len() == 12 && is_hex(inside));
    text = without(&text, "+0x", "", is_hex);
    // Where a compiler keeps what it made on the way.
    let words = text.split_whitespace().map(|word| match word.rsplit_once('/') {
        Some((folder, file)) if folder.starts_with('/') && folder.contains("/zig/o/") => file,
        _ => word,
    });
    text = words.collect::<Vec<_>>().join(" ");
    if let Some((before, rest)) = text.split_once("requested ")
        && let Some((_, after)) = rest.split_once(" KiB of memory")
    {
        text = format!("{before}requested N KiB of memory{after}");
    }
    text
}

fn is_hex(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Without each `open` .. `close` whose inside is to go; with an empty `close` the inside is what is hexadecimal behind `open`.
fn without(text: &str, open: &str, close: &str, goes: impl Fn(&str) -> bool) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, behind)) = rest.split_once(open) {
        let length = match close {
            "" => behind.find(|letter: char| !letter.is_ascii_hexdigit()).unwrap_or(behind.len()),
            close => behind.find(close).unwrap_or(behind.len()),
        };
        out.push_str(before);
        if goes(&behind[..length]) {
            rest = behind[length..].strip_prefix(close).unwrap_or(&behind[length..]);
        } else {
            out.push_str(open);
            rest = behind;
        }
    }
    out.push_str(rest);
    out
}
