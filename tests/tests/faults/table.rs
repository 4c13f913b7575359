//! docs/plugin-failures.md, made of what was said.

use crate::Told;
use crate::language::{LANGUAGES, Language};
use espalier_tests::place::repository;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

/// A failure in the order of the page: its key, its title, what the plugin does, and whether a line can be expected of it.
const FAILURES: [(&str, &str, &str, bool); 22] = [
    ("loop", "Endless loop", "It does not return, and calls nothing.", true),
    (
        "pattern",
        "Regular expression",
        "One that backtracks is looked for in a text that it does not match.",
        true,
    ),
    ("memory", "Memory", "It takes memory without end.", true),
    ("stack", "Stack", "It calls itself without end.", true),
    ("panic", "Panic or exception", "Nobody catches it.", true),
    ("wrong-json", "Wrong JSON", "The data of its report cannot be written as JSON.", false),
    ("unknown-tool", "Unknown tool", "The model calls a tool that was not offered.", false),
    (
        "wrong-settings",
        "Wrong settings",
        "The experiment sets `lines = \"many\"` and the misspelt `line`.",
        false,
    ),
    (
        "missing-export",
        "Missing export",
        "The line that makes a plugin of the function was forgotten.",
        false,
    ),
    ("wrong-world", "Wrong world", "`plugin.toml` says `kind = \"reward\"`, the source is a harness.", false),
    ("unknown-version", "Unknown version", "It was built for a newer interface than the engine has.", false),
    ("invalid-handle", "Invalid handle", "It uses a handle that it was not given, or has given up.", false),
    ("foreign-blob", "Foreign blob", "It reads a blob that belongs to another rollout.", false),
    ("call-after-end", "Call after the end", "It goes on after its budget of turns is used up.", true),
    (
        "random",
        "Non-determinism",
        "It draws random numbers by the means of its language, and walks through a hash table.",
        false,
    ),
    ("log-flood", "Log flood", "It logs 10,000 lines of 1 KiB where 64 KiB are kept.", false),
    ("slow-start", "Slow start", "What it does before its first call does not end.", true),
    ("constructor", "Trap in a constructor", "What it does before its first call fails.", true),
    ("error", "Returned error", "It returns a failure of its own.", false),
    ("oversized", "Oversized result", "Its answer has 20 MiB.", false),
    ("wasi-http", "Forbidden WASI", "It imports `wasi:http`.", false),
    ("network", "Files and network", "It opens a file or a connection by the means of its language.", false),
];

/// Why a language names no line, where one can be expected.
const UNNAMED: [(&str, &str); 1] = [(
    "go",
    "Go's compiler writes no line tables for WebAssembly. Panics and loops have a line, of anything else the author's functions are named",
)];

/// What every language said.
#[derive(Default)]
pub(crate) struct Table {
    told: BTreeMap<(&'static str, &'static str), Told>,
}

const HEAD: &str = "# When a plugin fails\n\n\
<!-- Written by tests/tests/faults: change the test, not this page. -->\n\n\
Each failure below was caused in a run of the engine, in each language, by the projects in `tests/faults`. None of them hurts its neighbours: \
every other rollout of the same run is played to its end. How to find the cause of one: `espalier show ROLLOUT --logs`.\n\n\
The first table has the line in the author's source that the engine names; `12-14` is a line of these, where the engine stops a plugin wherever it \
is; `-`: none is named. What is said of each failure stands below.\n";

impl Table {
    pub(crate) fn add(&mut self, language: &Language, told: Vec<Told>) {
        let name = LANGUAGES.iter().find(|known| known.name == language.name).unwrap().name;
        for one in told {
            let failure = one.failure;
            assert!(self.told.insert((failure, name), one).is_none(), "{name}: {failure} is told twice");
        }
    }

    /// Compares the page with what was said; a language that was not tried keeps what the page has.
    pub(crate) fn check(&self) {
        for (key, ..) in FAILURES {
            for language in &LANGUAGES {
                let tried = self.told.keys().any(|(_, name)| *name == language.name);
                let there = self.told.contains_key(&(key, language.name));
                assert_eq!(tried, there, "{}: {key}", language.name);
            }
        }
        self.check_lines();
        let page = repository().join("docs/plugin-failures.md");
        let old = fs::read_to_string(&page).unwrap_or_default();
        let new = self.page(&old);
        if std::env::var_os("ESPALIER_UPDATE").is_some() {
            fs::write(&page, new).unwrap();
        } else if let Some((old, new)) = first_difference(&old, &new) {
            panic!(
                "docs/plugin-failures.md is stale:\n- {old}\n+ {new}\nESPALIER_UPDATE=1 writes what is said now"
            );
        }
    }

    /// Every failure that can have a line has one, but for the languages that cannot.
    fn check_lines(&self) {
        for (key, _, _, named) in FAILURES {
            for ((_, name), told) in self.told.iter().filter(|((failure, _), _)| *failure == key) {
                let excused = UNNAMED.iter().any(|(language, _)| language == name);
                let unnamed = named && told.place.is_none() && told.end != "does not happen";
                assert!(!unnamed || excused, "{name}: no line is named for {key}: {}", told.text);
            }
        }
    }

    fn page(&self, old: &str) -> String {
        let mut page = HEAD.to_owned();
        page.push_str("\n| failure |");
        for language in &LANGUAGES {
            write!(page, " {} |", language.title).unwrap();
        }
        page.push_str("\n|---|---|---|---|---|---|---|\n");
        for (key, title, ..) in FAILURES {
            let kept = kept_row(old, &format!("| {title} |"));
            write!(page, "| {title} |").unwrap();
            for (index, language) in LANGUAGES.iter().enumerate() {
                let cell = match self.told.get(&(key, language.name)) {
                    Some(told) => told.place.as_ref().map_or("-".to_owned(), |place| format!("`{place}`")),
                    None => kept.get(index).cloned().unwrap_or_default(),
                };
                write!(page, " {cell} |").unwrap();
            }
            page.push('\n');
        }
        page.push_str("\nWhat cannot be named:\n\n");
        for (name, why) in UNNAMED {
            let of = |key: &str| {
                let unnamed = |told: &Told| told.place.is_none() && told.end != "does not happen";
                self.told.get(&(key, name)).is_none_or(unnamed)
            };
            let titles: Vec<String> = FAILURES
                .iter()
                .filter(|(key, _, _, named)| *named && of(key))
                .map(|(_, title, ..)| title.to_lowercase())
                .collect();
            let title = LANGUAGES.iter().find(|language| language.name == name).unwrap().title;
            writeln!(page, "- {title} ({}): {why}.", titles.join(", ")).unwrap();
        }
        page.push_str(
            "- Other native code that does not end (JavaScript, Python): regular expressions have their line. Of `7 ** 10**9` or a sort, JavaScript \
             names the loop or function around it, Python the line where it runs for the first time since a call of the engine; else the line is \
             one that ran shortly before.\n\
             - A failure that is returned has no line: it names what is wrong, as its author wrote it.\n",
        );
        for (key, title, what, _) in FAILURES {
            write!(page, "\n## {title}\n\n{what}\n\n| language | end | what is said |\n|---|---|---|\n")
                .unwrap();
            for language in &LANGUAGES {
                let row = match self.told.get(&(key, language.name)) {
                    Some(told) => format!("| {} | {} | {} |", language.title, told.end, escaped(&told.text)),
                    None => kept_line(old, title, language.title),
                };
                writeln!(page, "{row}").unwrap();
            }
        }
        page
    }
}

fn escaped(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "\\<")
}

/// The cells of a row of the first table of an older page.
fn kept_row(old: &str, begin: &str) -> Vec<String> {
    let row = old.lines().find_map(|line| line.strip_prefix(begin));
    row.map(|row| row.split('|').map(|cell| cell.trim().to_owned()).collect()).unwrap_or_default()
}

/// The row of a language below the heading of a failure of an older page.
fn kept_line(old: &str, title: &str, language: &str) -> String {
    let section = old.split_once(&format!("\n## {title}\n")).map_or("", |(_, section)| section);
    let begin = format!("| {language} |");
    section.lines().find(|line| line.starts_with(&begin)).unwrap_or_default().to_owned()
}

fn first_difference<'a>(old: &'a str, new: &'a str) -> Option<(&'a str, &'a str)> {
    let lines = old.lines().count().max(new.lines().count());
    let pair = |index| (old.lines().nth(index).unwrap_or(""), new.lines().nth(index).unwrap_or(""));
    (0..lines).map(pair).find(|(old, new)| old != new)
}
