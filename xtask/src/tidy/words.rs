//! Words that a reader who knows the field would have to look up: banned in names, and phrases that plain technical English says
//! otherwise, banned in comments, messages, help and pages. Each is an error with its file, its line and what to write instead.

use super::source::Source;

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
    ("become", "transition, exec"),
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
const PHRASES: [(&str, &str); 46] = [
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
    (" is no part of", "is not part of"),
    (" is no regular", "is not a regular file"),
    (" is no success", "is not a success"),
    (" is no integer", "is not an integer"),
    (" is no call", "is not a call"),
    (" is no manifest", "is not a manifest"),
    (" is no setting", "is not a setting"),
    (" is no WebAssembly", "is not WebAssembly"),
    (" is no value", "is not a value"),
    (" is no terminal", "is not a terminal"),
    (" is no format", "unknown format"),
    (" is no promise", "unknown promise"),
    (" is no socket", "is not a socket"),
    (" is no address", "invalid address"),
    (" are no JSON", "are not JSON"),
    (" are no tests", "are not tests"),
    (" is no good", "is invalid"),
    ("is mended", "is fixed"),
    ("mend it", "fix it"),
    ("mend this", "fix this"),
    ("mend that", "fix that"),
    ("made anew", "created again"),
    ("taken by itself", "taken over automatically"),
    ("by hand of", "by"),
];

/// The file that holds the words because it names them.
const LIST: &str = "xtask/src/tidy/words.rs";

/// Checks sources, and other texts as (name, text).
pub(super) fn check(sources: &[Source], texts: &[(String, String)], faults: &mut Vec<String>) {
    let names = sources.iter().map(|source| (source.name.as_str(), in_names(&source.text)));
    let phrases = texts.iter().map(|(name, text)| (name.as_str(), in_prose(text)));
    for (name, found) in names.chain(phrases).filter(|(name, _)| *name != LIST) {
        let told =
            found.iter().map(|(line, word, instead)| format!("{name}:{line}: {word:?} (write: {instead})"));
        faults.extend(told);
    }
}

/// A banned word: line, what it is, and what to write.
type Found = (usize, &'static str, &'static str);

/// Banned words in a source's names, not in its comments and texts.
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
            "struct KeeperYard;\n// yard\nfn bear(x: Bearer, become_root: Y) { YARD_MAX; \"yard\"; backyard }",
        );
        assert_eq!(words(&names), [(1, "yard"), (3, "bear"), (3, "become"), (3, "yard")]);
        let prose = in_prose("a\n// the way out, `x` is no number, wanted is y\nwanted isle");
        assert_eq!(words(&prose), [(2, "way out"), (2, " is no number"), (2, "wanted is")]);
    }

    #[test]
    fn each_is_told_with_its_place() {
        let text = |name: &str| (name.to_owned(), "//! x\n// the way out\n".to_owned());
        let mut faults = Vec::new();
        check(&[], &[text("a.rs"), text(LIST)], &mut faults);
        assert_eq!(faults, ["a.rs:2: \"way out\" (write: egress)"]);
    }
}
