//! What a task of two releases is made of: the starting tree is the old source, the instruction what the changelog says between
//! the two, the reference the difference of their sources, the hidden tests those of the new one. No file is
//! read or written here.

use super::changelog;
use super::expect::Expected;
use super::parts::{self, Part, part};
use super::version::Version;
use super::{marks, names, patch};
use crate::dataset::checked;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Where the library lies in a sandbox.
pub const WORKDIR: &str = "/code";
/// The interpreter of its image, with pytest and what the tests need beside it.
pub const PYTHON: &str = "/opt/python/bin/python3";
/// Most bytes of hidden tests.
const TESTS_BYTES_MAX: usize = 8 << 20;
/// Most bytes of a reference patch.
const PATCH_BYTES_MAX: usize = 1 << 20;
/// A run of the tests, unless the user says so.
const TIMEOUT_S: u64 = 120;

/// Name of the probe with the reference applied.
pub(super) const AFTER: &str = "after";

/// One file of a release.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceFile {
    /// What it holds.
    pub bytes: Vec<u8>,
    /// Whether it may be executed.
    pub executable: bool,
}

/// The files of a release by path, without the folder around them.
pub type Tree = BTreeMap<String, SourceFile>;

/// One release.
#[derive(Clone, Debug)]
pub struct Release {
    /// As the package says it.
    pub version: Version,
    /// Its source archive.
    pub tree: Tree,
}

/// What a person says over what is found.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct DraftOptions {
    /// Words instead of the changelog's.
    pub instruction: Option<String>,
    /// Shell text that runs the tests, instead of pytest over all test files.
    pub command: Option<String>,
    /// Folder of the tree from which the library is imported; found where it is not said.
    pub root: Option<String>,
    /// Whether tests may reach 127.0.0.1.
    pub loopback: bool,
    /// Seconds for a run of the tests; default 120.
    pub timeout_s: Option<u64>,
}

/// Why two releases make no task.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The order is wrong.
    #[error("{old} is not older than {new}")]
    Order {
        /// The first version.
        old: String,
        /// The second.
        new: String,
    },
    /// No changelog, or it is silent.
    #[error("nothing in the changelog between {old} and {new} (looked at: {looked_at})")]
    NoChangelog {
        /// After this version.
        old: String,
        /// Up to this one.
        new: String,
        /// Files that could have been one.
        looked_at: String,
    },
    /// The instruction holds names of the solution.
    #[error("the instruction reveals names that occur only in the patch: {}", .0.join(", "))]
    GivenAway(Vec<String>),
    /// The new release has no tests in its archive.
    #[error("{0} has no tests in its archive")]
    NoTests(String),
    /// The tests are the same.
    #[error("no test file differs between the two")]
    SameTests,
    /// The source is the same.
    #[error("no source file differs between the two")]
    SameSource,
    /// A difference that no patch in text can say.
    #[error("{0} differs and is not text")]
    Binary(String),
    /// A name that no patch can hold.
    #[error("{0:?} is a name that a patch cannot contain")]
    Name(String),
    /// Too much.
    #[error("{what} of {bytes} bytes, at most {most} are accepted")]
    TooLarge {
        /// What it is a part of.
        what: &'static str,
        /// How much.
        bytes: usize,
        /// How much is taken.
        most: usize,
    },
    /// The new release's tests report nothing on it.
    #[error("the tests do not start: {0}")]
    NoStart(String),
    /// No test tells the releases apart.
    #[error("no test fails before and passes after the change ({passing} pass in both, {flaky} are flaky)")]
    NothingFixed {
        /// Tests that pass in both.
        passing: usize,
        /// Tests that differ from run to run.
        flaky: usize,
    },
    /// All that passes after fails before: the tests do not start there, or hang, and any change that lets them is as good.
    #[error("no test passes before the change ({0} pass after it)")]
    NothingKept(usize),
    /// The library would decide about its own tests.
    #[error("pytest itself needs {0}: the library would run its own tests")]
    RunnerNeeds(String),
    /// More tests than a task names.
    #[error("{tests} tests, at most {most} are listed")]
    TooMany {
        /// How many.
        tests: usize,
        /// How many are named.
        most: usize,
    },
    /// The line made of it is none.
    #[error("{0}")]
    Form(String),
}

/// A task but for the tests that it expects, which have to be measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Draft {
    /// The library and its new version.
    pub id: String,
    /// The library.
    pub library: String,
    /// The version that it starts from.
    pub old: Version,
    /// What the sandbox starts with, below [`WORKDIR`].
    pub start: Tree,
    /// Folder of it from which the library is imported; empty: itself.
    pub root: String,
    /// What can be imported of it: packages by their folder (`google/auth`), modules by their file.
    pub modules: Vec<String>,
    /// What is known of it as an installed package: files of its `dist-info`.
    pub installed: Tree,
    /// For the agent.
    pub instruction: String,
    /// From the old source to the new one.
    pub patch: String,
    /// What gives the private part away where it is found: lines next to each other.
    pub marks: Vec<Vec<String>>,
    tests: Map<String, Value>,
    loopback: bool,
}

impl Draft {
    /// Puts a task together, or says why there is none.
    pub fn new(
        library: &str,
        old: &Release,
        new: &Release,
        options: &DraftOptions,
    ) -> Result<Draft, Refusal> {
        if old.version >= new.version {
            return Err(Refusal::Order { old: old.version.to_string(), new: new.version.to_string() });
        }
        let (before, after) = (of(&old.tree, Part::Test), of(&new.tree, Part::Test));
        if !after.keys().any(|path| path.ends_with(".py")) {
            return Err(Refusal::NoTests(new.version.to_string()));
        }
        if before == after {
            return Err(Refusal::SameTests);
        }
        let bytes = after.values().map(|file| file.bytes.len()).sum();
        if bytes > TESTS_BYTES_MAX {
            return Err(Refusal::TooLarge { what: "tests", bytes, most: TESTS_BYTES_MAX });
        }
        let source = of(&new.tree, Part::Source);
        let patch = patch::between(&of(&old.tree, Part::Source), &source)?;
        if patch.is_empty() {
            return Err(Refusal::SameSource);
        }
        if patch.len() > PATCH_BYTES_MAX {
            return Err(Refusal::TooLarge { what: "a patch", bytes: patch.len(), most: PATCH_BYTES_MAX });
        }
        let words = match &options.instruction {
            Some(words) => words.trim().to_owned(),
            None => changelog::of_tree(&new.tree, library, &old.version, &new.version)?,
        };
        let names = names::given_away(&words, &source, old.tree.values().chain(after.values().copied()));
        if !names.is_empty() {
            return Err(Refusal::GivenAway(names));
        }
        let root = options.root.clone().unwrap_or_else(|| parts::root(&old.tree));
        let mut start = old.tree.clone();
        start.retain(|path, _| parts::stays(path));
        let marks = marks::of(&patch, after.iter().map(|(path, file)| (*path, *file)), old.tree.values());
        Ok(Draft {
            id: format!("{library}-{}", new.version),
            library: library.to_owned(),
            old: old.version.clone(),
            modules: parts::modules(&start, &root, library),
            start,
            root,
            installed: parts::installed(&old.tree),
            instruction: instruction(library, &old.version, &new.version, &words),
            patch,
            marks,
            tests: tests(&before, &after, &named(&new.tree, options, library), options),
            loopback: options.loopback,
        })
    }

    /// The lines of two tasks that show what the tests report: of this source with the reference applied, and as it stands. They
    /// expect nothing.
    pub fn probes(&self, image: &str) -> [String; 2] {
        let probe = |name: &str, reference: Value| {
            let mut line = self.line(image, &reference, &Expected::default());
            line["id"] = Value::from(name);
            line.to_string()
        };
        [probe(AFTER, json!({ "patch": self.patch })), probe("before", json!({ "script": "true" }))]
    }

    /// The task's line.
    pub fn task(&self, image: &str, expected: &Expected) -> Result<String, Refusal> {
        if expected.pass_to_pass.is_empty() {
            return Err(Refusal::NothingKept(expected.fail_to_pass.len()));
        }
        let mut line = self.line(image, &json!({ "patch": self.patch }), expected);
        line["private"]["marks"] = json!(self.marks);
        checked(&line).map_err(Refusal::Form)
    }

    fn line(&self, image: &str, reference: &Value, expected: &Expected) -> Value {
        let mut tests = self.tests.clone();
        tests.insert("fail_to_pass".to_owned(), json!(expected.fail_to_pass));
        tests.insert("pass_to_pass".to_owned(), json!(expected.pass_to_pass));
        let mut sandbox = json!({ "image": image, "workdir": WORKDIR });
        if self.loopback {
            sandbox["network"] = Value::from("loopback");
        }
        json!({
            "id": self.id,
            "instruction": self.instruction,
            "environment": self.library,
            "tags": ["python", "from-sdist"],
            "sandbox": sandbox,
            "private": { "reference": reference, "tests": tests },
        })
    }
}

/// The files of one part.
fn of(tree: &Tree, wanted: Part) -> BTreeMap<&str, &SourceFile> {
    tree.iter().filter(|(path, _)| part(path) == wanted).map(|(path, file)| (path.as_str(), file)).collect()
}

/// The new version is named: tests may ask for it.
fn instruction(library: &str, old: &Version, new: &Version, words: &str) -> String {
    format!(
        "The folder {WORKDIR} holds the Python library {library} as of version {old}. Change it so that what its changelog says of \
         version {new} holds:\n\n{words}\n\nThe result is checked by tests that are not in the folder; `python3 -m pytest` runs \
         those that are."
    )
}

/// The modules of the new release, with dots: those that it adds are the library's own as well.
fn named(new: &Tree, options: &DraftOptions, library: &str) -> Vec<String> {
    let root = options.root.clone().unwrap_or_else(|| parts::root(new));
    let modules = parts::modules(new, &root, library).into_iter();
    let names = modules.map(|path| path.strip_suffix(".py").unwrap_or(&path).replace('/', "."));
    let is_name = |name: &String| {
        name.split('.').all(|part| {
            !part.starts_with(|first: char| first.is_ascii_digit())
                && !part.is_empty()
                && part.chars().all(|letter| letter.is_alphanumeric() || letter == '_')
        })
    };
    names.filter(is_name).collect()
}

/// The private part's `tests`, less what they expect.
fn tests(
    before: &BTreeMap<&str, &SourceFile>,
    after: &BTreeMap<&str, &SourceFile>,
    modules: &[String],
    options: &DraftOptions,
) -> Map<String, Value> {
    let files: Map<String, Value> = after
        .iter()
        .map(|(path, file)| {
            let content = match std::str::from_utf8(&file.bytes) {
                Ok(text) => Value::from(text),
                Err(_) => json!({ "base64": STANDARD.encode(&file.bytes) }),
            };
            ((*path).to_owned(), content)
        })
        .collect();
    let places = |files: &BTreeMap<&str, &SourceFile>| -> BTreeSet<String> {
        files.keys().map(|path| parts::place(path).to_owned()).collect()
    };
    let runnable = after.keys().filter(|path| path.ends_with(".py") && !path.ends_with("conftest.py"));
    let run: BTreeSet<&str> = runnable.map(|path| parts::place(path)).collect();
    let quoted = |names: &mut dyn Iterator<Item = &str>| names.map(quoted).collect::<Vec<_>>().join(" ");
    let command = options.command.clone().unwrap_or_else(|| {
        // One broken file shall not keep the others from running; what the project adds for its own runs (coverage) is not there.
        format!(
            "{PYTHON} -m pytest -q -o addopts= -p no:cacheprovider --continue-on-collection-errors {}",
            quoted(&mut run.iter().copied())
        )
    });
    let old = places(before);
    let mut tests = Map::from_iter([
        ("files".to_owned(), Value::Object(files)),
        ("command".to_owned(), Value::from(command)),
        ("parser".to_owned(), Value::from("pytest")),
        ("timeout".to_owned(), Value::from(format!("{}s", options.timeout_s.unwrap_or(TIMEOUT_S)))),
    ]);
    if !old.is_empty() {
        // The old tests go, so that those that were removed since are not run.
        let old: Vec<&str> = old.iter().map(String::as_str).collect();
        let gone = quoted(&mut old.iter().copied());
        tests.insert("prepare".to_owned(), Value::from(format!("rm -rf -- {gone}")));
    }
    if !modules.is_empty() {
        tests.insert("modules".to_owned(), json!(modules));
    }
    let folders = places(before).into_iter().chain(places(after)).filter(|place| !place.ends_with(".py"));
    let reset: BTreeSet<String> = folders.map(|folder| format!("{folder}/")).collect();
    if !reset.is_empty() {
        tests.insert("reset".to_owned(), json!(reset));
    }
    tests
}

/// For a shell.
fn quoted(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    if name.chars().all(plain) { name.to_owned() } else { format!("'{}'", name.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests;
