//! Words that a reader who knows the field would have to look up: banned in names, and phrases that plain technical English says
//! otherwise, in comments, messages, help and pages. What is still there is counted file by file in `words.toml`; the sum does not grow, and
//! `ESPALIER_TIDY_WORDS=write` writes the list again after a rename.

use super::source::Source;
use std::collections::BTreeMap;
use std::path::Path;

/// Parts of names (`yard` of `KeeperYard`, `yard_lock`), and what the field says.
const NAMES: [(&str, &str); 34] = [
    ("yard", "table"),
    ("bear", "spawn"),
    ("bears", "spawns"),
    ("born", "spawned"),
    ("birth", "spawn"),
    ("doom", "kill_reason"),
    ("doomed", "killed"),
    ("farewell", "delete_on_drop"),
    ("door", "listener"),
    ("doors", "listeners"),
    ("talk", "conversation, exchange"),
    ("talks", "exchanges"),
    ("hopeless", "run_blocker"),
    ("lack", "missing"),
    ("lacks", "missing"),
    ("lacking", "missing"),
    ("tongue", "protocol"),
    ("become_", "transition"),
    ("mend", "repair, retry"),
    ("mends", "repairs"),
    ("mended", "repaired"),
    ("mendable", "repairable"),
    ("wish", "option, request"),
    ("wishes", "options"),
    ("lent", "borrowed, leased"),
    ("harm", "damage"),
    ("manner", "variant"),
    ("trouble", "error"),
    ("fate", "outcome"),
    ("dice", "rng"),
    ("desk", "fixture"),
    ("census", "inventory"),
    ("relief", "reclaim"),
    ("relieve", "reclaim"),
];

/// Phrases, and what to write.
const PHRASES: [(&str, &str); 22] = [
    ("way out", "egress"),
    ("ways out", "egress"),
    ("polite kill", "SIGTERM"),
    (" is no JSON", "is not valid JSON"),
    (" is no number", "expected a number"),
    (" is no object", "expected an object"),
    (" is no duration", "invalid duration"),
    (" is no size", "invalid size"),
    (" is no folder", "is not a directory"),
    (" is no version", "is not a version"),
    (" is no tar", "is not a tar archive"),
    (" is no text", "is not text"),
    (" is no name", "is not a valid name"),
    (" is no answer", "is not an answer"),
    (" are no tasks", "are not tasks"),
    ("that is none", "that is not one"),
    ("wanted is", "expected"),
    ("wanted are", "expected"),
    ("\"They.", "a description says what a thing is"),
    ("\"Of the ", "a description says what a thing is"),
    ("is made anew", "is created again"),
    ("the house", "the code, the engine"),
];

/// Where the counts stand.
const COUNTS: &str = "xtask/src/tidy/words.toml";
/// Files that hold the words because they name them.
const LISTS: [&str; 2] = ["xtask/src/tidy/words.rs", COUNTS];

/// Checks sources, and other texts as (name, text), against the counts.
pub(super) fn check(root: &Path, sources: &[Source], texts: &[(String, String)], faults: &mut Vec<String>) {
    let names = sources.iter().map(|source| (source.name.as_str(), in_names(&source.text)));
    let phrases = texts.iter().map(|(name, text)| (name.as_str(), in_prose(text)));
    let mut found: BTreeMap<String, Vec<Found>> = BTreeMap::new();
    for (name, places) in names.chain(phrases).filter(|(name, _)| !LISTS.contains(name)) {
        if !places.is_empty() {
            found.entry(name.to_owned()).or_default().extend(places);
        }
    }
    let file = root.join(COUNTS);
    if std::env::var_os("ESPALIER_TIDY_WORDS").is_some_and(|value| value == "write") {
        let lines = found.iter().map(|(name, places)| format!("\"{name}\" = {}\n", places.len()));
        let text = format!(
            "# Banned words that are still there, by file: see words.rs.\n{}",
            lines.collect::<String>()
        );
        if let Err(error) = std::fs::write(&file, text) {
            faults.push(format!("{COUNTS}: {error}"));
        }
        return;
    }
    let counts = std::fs::read_to_string(&file).unwrap_or_default();
    match toml::from_str(&counts) {
        Ok(counts) => compare(&found, &counts, faults),
        Err(error) => faults.push(format!("{COUNTS}: {error}")),
    }
}

/// A banned word: line, what it is, and what to write.
type Found = (usize, &'static str, &'static str);

/// The sum counts, so that a file may move; where it grows, the files that grew are named.
fn compare(found: &BTreeMap<String, Vec<Found>>, counts: &BTreeMap<String, usize>, faults: &mut Vec<String>) {
    if found.values().map(Vec::len).sum::<usize>() <= counts.values().sum() {
        return;
    }
    for (name, places) in found {
        let (count, most) = (places.len(), counts.get(name).copied().unwrap_or(0));
        if count > most {
            let words: Vec<String> = places
                .iter()
                .map(|(line, word, instead)| format!("line {line}: {word:?} (write: {instead})"))
                .collect();
            faults
                .push(format!("{name}: {count} banned words, {COUNTS} counts {most}: {}", words.join(", ")));
        }
    }
}

/// Of a source's names, not of its comments and texts.
fn in_names(text: &str) -> Vec<Found> {
    let code = super::source::blanked(text);
    let mut found = Vec::new();
    for (number, line) in code.lines().enumerate() {
        for name in line.split(|letter: char| !letter.is_alphanumeric() && letter != '_') {
            let banned =
                NAMES.iter().filter(|(word, _)| *word == name || parts(name).any(|part| part == *word));
            found.extend(banned.map(|(word, instead)| (number + 1, *word, *instead)));
        }
    }
    found
}

/// `keeper`, `yard` of `KeeperYard` and of `KEEPER_YARD`.
fn parts(name: &str) -> impl Iterator<Item = String> + '_ {
    name.split('_').flat_map(|part| {
        let is_shout = part.chars().all(|letter| !letter.is_lowercase());
        let mut words = vec![String::new()];
        for letter in part.chars() {
            if letter.is_uppercase() && !is_shout {
                words.push(String::new());
            }
            if let Some(last) = words.last_mut() {
                last.extend(letter.to_lowercase());
            }
        }
        words
    })
}

fn in_prose(text: &str) -> Vec<Found> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for (phrase, instead) in PHRASES {
            let is_part =
                |at: usize| line[at + phrase.len()..].starts_with(|next: char| next.is_alphanumeric());
            let whole = line
                .match_indices(phrase)
                .filter(|(at, _)| !phrase.ends_with(char::is_alphanumeric) || !is_part(*at));
            found.extend(whole.map(|_| (number + 1, phrase, instead)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(found: &[Found]) -> Vec<(usize, &str)> {
        found.iter().map(|(line, word, _)| (*line, *word)).collect()
    }

    #[test]
    fn banned_words_are_found_as_parts_of_names_and_as_phrases() {
        let names = in_names(
            "struct KeeperYard;\n// yard\nfn bear(x: Bearer, become_: Y) { YARD_MAX; \"yard\"; backyard }",
        );
        assert_eq!(words(&names), [(1, "yard"), (3, "bear"), (3, "become_"), (3, "yard")]);
        let prose = in_prose("a\n// the way out, `x` is no number, wanted is y\nwanted isle");
        assert_eq!(words(&prose), [(2, "way out"), (2, " is no number"), (2, "wanted is")]);
    }

    #[test]
    fn the_sum_only_shrinks() {
        let found = BTreeMap::from([
            ("a.rs".to_owned(), vec![(3, "yard", "table"), (4, "doom", "kill_reason")]),
            ("b.rs".to_owned(), vec![(1, "yard", "table")]),
        ]);
        let check = |counts: &[(&str, usize)], expect: &[&str]| {
            let counts = counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
            let mut faults = Vec::new();
            compare(&found, &counts, &mut faults);
            assert_eq!(faults, expect);
        };
        check(&[("a.rs", 2), ("b.rs", 1)], &[]);
        check(&[("a.rs", 2), ("old/b.rs", 1)], &[]);
        check(&[("a.rs", 4)], &[]);
        let grew =
            "b.rs: 1 banned words, xtask/src/tidy/words.toml counts 0: line 1: \"yard\" (write: table)";
        check(&[("a.rs", 2)], &[grew]);
    }
}
