//! What of an agent's work is left out by its path: hidden files everywhere; in languages other than Python also what belongs to
//! the runner's set-up, or would take the place of a module that it loads. Python's rules: `python.rs`.

use crate::changes::Change;
use crate::task::Job;
use espalier_test_logs::Kind;
use std::collections::BTreeSet;

/// Files that steer runners, at any depth.
const FILES: [&str; 7] = [
    "conftest.py",
    "pytest.ini",
    ".pytest.ini",
    "pytest.toml",
    ".pytest.toml",
    "sitecustomize.py",
    "usercustomize.py",
];
/// Folders that hold what was installed, compiled or remembered, at any depth.
const FOLDERS: [&str; 6] = ["__pycache__", ".pytest_cache", ".git", ".hg", ".cargo", "node_modules"];
/// Starts of names of files that steer runners of JavaScript.
const SCRIPTED: [&str; 6] =
    ["jest.config.", "jest.setup.", "vitest.config.", "vitest.workspace.", ".mocharc", "karma.conf."];
/// Words after which the next one is a program's file.
const INTERPRETERS: [&str; 9] = ["python", "python3", "bash", "sh", "node", "source", ".", "perl", "ruby"];
/// Files that a program of the command reads.
const READ_BY: [(&str, &[&str]); 4] = [
    ("make", &["Makefile", "makefile", "GNUmakefile"]),
    ("tox", &["tox.ini"]),
    ("nox", &["noxfile.py"]),
    ("npx", &[".npmrc"]),
];
/// Modules that a runner in Python loads: a new file or folder of such a name, where modules are looked for first, takes its
/// place.
const MODULES: &str = "__future__ _pytest abc argparse array ast asyncio atexit base64 bdb bisect builtins calendar cmath cmd code \
    codecs codeop collections configparser contextlib contextvars copy copyreg csv ctypes dataclasses datetime decimal difflib dis \
    distutils django doctest email encodings enum errno exceptiongroup execnet faulthandler fnmatch fractions functools gc genericpath \
    getopt getpass gettext glob hashlib heapq html http imp importlib inspect io iniconfig itertools json keyword linecache locale \
    logging math mimetypes multiprocessing nose numbers opcode operator os packaging pathlib pdb pickle pkgutil pkg_resources platform \
    pluggy posixpath pprint py pydoc pytest pytest_asyncio pytest_cov queue random re reprlib runpy selectors setuptools shlex shutil \
    signal site six socket sre_compile ssl stat statistics string struct subprocess sys sysconfig tempfile textwrap threading time \
    timeit token tokenize tomllib tomli traceback trace types typing unittest unicodedata urllib uuid warnings weakref xdist xml xunit \
    zipfile zipimport zlib";

/// What comes of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeAction {
    /// It is applied.
    Kept,
    /// It is left out.
    LeftOut,
    /// It is left out if this path, from the working folder, does not exist before the agent, nor is in a package.
    LeftOutIfNew(String),
    /// It is applied, and the runner's tables in this file are put back.
    Repaired(String),
    /// It is applied where `prepare` runs over the agent's work, and is as before where the tests run.
    KeptForPrepare,
    /// It is left out, but for the removal of these files, from the working folder.
    OnlyRemoved(Vec<String>),
}

/// The files of the hidden side, and programs that the command runs.
#[derive(Clone, Debug)]
pub struct Hidden {
    /// From the working folder; folders without `/` at their end.
    paths: BTreeSet<String>,
    programs: BTreeSet<String>,
    /// Of `paths`, files that the task brings.
    brought: BTreeSet<String>,
}

impl Hidden {
    /// Of this job.
    pub fn new(job: &Job, workdir: &str) -> Hidden {
        let patched = job.tests.patch.as_deref().map(patched_files).unwrap_or_default();
        let given = job.tests.files.keys().cloned().chain(patched);
        let brought: BTreeSet<String> = given.filter_map(|path| relative(&path, workdir)).collect();
        let more = job.tests.reset.iter().chain(job.report.iter().map(|(path, _)| path));
        let more = more.filter_map(|path| relative(path, workdir));
        let paths = brought.iter().cloned().chain(more).collect();
        Hidden { paths, programs: programs(&job.command), brought }
    }

    /// Whether it is a file of `files` or `patch`.
    pub fn brings(&self, path: &str) -> bool {
        self.brought.contains(path)
    }

    /// Whether it is such a file, or lies in such a folder.
    pub fn covers(&self, path: &str) -> bool {
        let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
        self.paths.contains("")
            || self.programs.contains(path)
            || ends.into_iter().any(|end| self.paths.contains(&path[..end]))
    }

    /// Whether a change there would take such a file away.
    pub fn takes(&self, path: &str, folder: bool) -> bool {
        self.covers(path) || (!folder && self.has_below(path))
    }

    /// Whether a hidden file lies below: a link or a file in the place of a folder would lead it astray.
    fn has_below(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        self.paths.range(folder.clone()..).next().is_some_and(|next| next.starts_with(&folder))
    }
}

/// The rules of one task.
#[derive(Clone, Debug)]
pub struct Rules {
    workdir: Vec<u8>,
    hidden: Hidden,
    kind: Kind,
}

impl Rules {
    /// Of this job, in a working folder without `/` at its end.
    pub fn new(job: &Job, workdir: &str) -> Rules {
        Rules {
            workdir: format!("{}/", workdir.trim_end_matches('/')).into_bytes(),
            hidden: Hidden::new(job, workdir),
            kind: job.kind,
        }
    }

    /// What comes of it. A path outside of the working folder is never applied.
    pub fn action(&self, change: Change<'_>) -> ChangeAction {
        let Some(inner) = change.path.strip_prefix(&self.workdir[..]) else {
            // The working folder itself, as something that changed.
            let is_workdir = change.folder && self.workdir.strip_suffix(b"/") == Some(change.path);
            return if is_workdir { ChangeAction::Kept } else { ChangeAction::LeftOut };
        };
        // Names that are not text are none that a rule knows.
        let path = String::from_utf8_lossy(inner);
        let parts: Vec<&str> = path.split('/').collect();
        let name = *parts.last().unwrap_or(&"");
        if self.hidden.takes(&path, change.folder) || self.steers(&parts, name) {
            return ChangeAction::LeftOut;
        }
        if let Some(place) = self.takes_a_place(&parts) {
            return ChangeAction::LeftOutIfNew(place);
        }
        let tables = match self.kind {
            Kind::CargoTest | Kind::SwebenchCargoTest => &["Cargo.toml"][..],
            Kind::Jest | Kind::SwebenchJest | Kind::SwebenchVitest | Kind::Tap | Kind::SwebenchTap => {
                &["package.json"]
            }
            _ => &["pyproject.toml", "setup.cfg", "tox.ini"],
        };
        match (tables.contains(&name), change.removed) {
            (true, true) => ChangeAction::LeftOut,
            (true, false) => ChangeAction::Repaired(path.into_owned()),
            (false, _) => ChangeAction::Kept,
        }
    }

    fn steers(&self, parts: &[&str], name: &str) -> bool {
        let folder = |part: &&str| {
            FOLDERS.contains(part)
                || part.ends_with(".egg-info")
                || part.ends_with(".dist-info")
                || part.ends_with(".egg")
        };
        let go = matches!(self.kind, Kind::GoTest | Kind::SwebenchGoTest);
        FILES.contains(&name)
            || parts.iter().any(folder)
            || [".pth", ".pyc", ".pyo"].iter().any(|end| name.ends_with(end))
            || SCRIPTED.iter().any(|start| name.starts_with(start))
            || (go && (name.ends_with("_test.go") || name == "go.work"))
            || name.starts_with("rust-toolchain")
    }

    /// The path of what would stand for a module, in a folder in which modules are looked for.
    fn takes_a_place(&self, parts: &[&str]) -> Option<String> {
        let searched = |folder: &[&str]| {
            let path = folder.join("/");
            matches!(&*path, "" | "src" | "lib" | "test" | "tests") || self.hidden.has_below(&path)
        };
        (0..parts.len()).filter(|depth| searched(&parts[..*depth])).find_map(|depth| {
            let entry = parts[depth];
            let module = entry.split('.').next().unwrap_or(entry);
            let python = depth + 1 < parts.len()
                || entry == module
                || [".py", ".so"].iter().any(|end| entry.ends_with(end));
            let known = python && MODULES.split_whitespace().any(|known| known == module);
            known.then(|| parts[..=depth].join("/"))
        })
    }
}

/// A path from the working folder; `None` for one elsewhere, whose changes are not applied anyway.
fn relative(path: &str, workdir: &str) -> Option<String> {
    let inner = match path.strip_prefix('/') {
        Some(_) => path.strip_prefix(workdir.trim_end_matches('/'))?.strip_prefix('/')?,
        None => path,
    };
    let parts: Vec<&str> = inner.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    Some(parts.join("/"))
}

/// The files that a diff is about, old names and new.
pub fn patched_files(patch: &str) -> Vec<String> {
    let mut files = Vec::new();
    for line in patch.lines() {
        let path =
            ["--- ", "+++ ", "rename from ", "rename to "].iter().find_map(|mark| line.strip_prefix(mark));
        let both = line.strip_prefix("diff --git ").map(|rest| rest.split(' ').collect::<Vec<_>>());
        let pair = both.filter(|names| names.len() == 2).unwrap_or_default();
        for path in path.into_iter().chain(pair) {
            let path = path.split('\t').next().unwrap_or(path).trim_matches('"');
            let bare = path.strip_prefix("a/").or_else(|| path.strip_prefix("b/")).unwrap_or(path);
            if bare != "/dev/null" && !bare.is_empty() {
                files.push(bare.to_owned());
            }
        }
    }
    files.sort();
    files.dedup();
    files
}

/// Files that the command runs or that its programs read, from the working folder.
fn programs(command: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for simple in command.split(['\n', ';', '&', '|', '(', ')']) {
        let mut words = simple.split_whitespace().map(|word| word.trim_matches(['"', '\'']));
        let mut words =
            words.by_ref().skip_while(|word| word.contains('=') || matches!(*word, "env" | "exec" | "time"));
        let Some(program) = words.next() else { continue };
        let interprets = |word: &str| {
            let name = word.rsplit('/').next().unwrap_or(word);
            INTERPRETERS.contains(&name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.'))
                || INTERPRETERS.contains(&name)
        };
        let mut add = |word: &str| {
            found.insert(word.trim_start_matches("./").to_owned());
        };
        add(program);
        if interprets(program)
            && let Some(file) = words.next().filter(|word| !word.starts_with('-'))
        {
            add(file);
        }
        for (reader, files) in READ_BY {
            if simple.split_whitespace().any(|word| word == reader) {
                files.iter().for_each(|file| add(file));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Settings;

    fn rules(tests: &str) -> Rules {
        let private = format!(r#"{{"tests":{{"fail_to_pass":["a"],{tests}}}}}"#);
        Rules::new(&Job::read(Some(&private), &Settings::default()).unwrap(), "/w")
    }

    #[track_caller]
    fn check(rules: &Rules, kept: &[&str], left_out: &[&str]) {
        let action =
            |path: &str| rules.action(Change { path: format!("/w/{path}").as_bytes(), ..Change::default() });
        for path in kept {
            assert_eq!(action(path), ChangeAction::Kept, "{path}");
        }
        for path in left_out {
            assert_eq!(action(path), ChangeAction::LeftOut, "{path}");
        }
    }

    #[test]
    fn what_belongs_to_the_tests_is_left_out() {
        let patch = "diff --git a/t/old.py b/t/new.py\\nrename from t/old.py\\nrename to t/new.py\\n--- a/p/x.py\\n+++ b/p/x.py\\n@@ -0,0 +1 @@\\n+x\\n";
        let rules = rules(&format!(
            r#""command":"cd . && python3 tests/run.py; ./check.sh","parser":"pytest","files":{{"tests/test_a.py":"","/w/deep/er/b.py":""}},"reset":["data/"],"patch":"{patch}""#
        ));
        check(
            &rules,
            &[
                "lib/a.py",
                "tests/helper.py",
                "tests/test_b.py",
                "database/x",
                "setup.py",
                "a.pyx",
                "my_conftest.py",
                "src/a/re.py",
                "lib.json",
            ],
            &[
                "tests/test_a.py",
                "tests",
                "deep/er/b.py",
                "deep",
                "data/x/y",
                "data",
                "t/old.py",
                "t/new.py",
                "p/x.py",
                "conftest.py",
                "a/conftest.py",
                "pytest.ini",
                "a/.pytest.ini",
                "sitecustomize.py",
                "x.pth",
                "a/__pycache__/b.cpython-311.pyc",
                "a.pyc",
                "x.egg-info/entry_points.txt",
                "a-1.dist-info/METADATA",
                ".git/config",
                "tests/run.py",
                "check.sh",
            ],
        );
        let folder = |path: &[u8]| rules.action(Change { path, folder: true, ..Change::default() });
        assert_eq!(folder(b"/w/tests"), ChangeAction::Kept);
        assert_eq!(folder(b"/w"), ChangeAction::Kept);
        assert_eq!(folder(b"/etc/x"), ChangeAction::LeftOut);
        assert_eq!(
            rules.action(Change { path: b"/w/tests", removed: true, ..Change::default() }),
            ChangeAction::LeftOut
        );
        assert_eq!(rules.action(Change { path: b"/w2/a", ..Change::default() }), ChangeAction::LeftOut);
    }

    #[test]
    fn modules_of_the_runner_cannot_be_replaced() {
        let rules = rules(r#""command":"pytest","parser":"pytest","files":{"t/unit/test_a.py":""}"#);
        let action =
            |path: &str| rules.action(Change { path: format!("/w/{path}").as_bytes(), ..Change::default() });
        for (path, place) in [
            ("pytest.py", "pytest.py"),
            ("_pytest/runner.py", "_pytest"),
            ("src/json/__init__.py", "src/json"),
            ("t/unit/unittest.py", "t/unit/unittest.py"),
            ("t/re.py", "t/re.py"),
            ("re", "re"),
            ("zlib.cpython-311-x86_64-linux-gnu.so", "zlib.cpython-311-x86_64-linux-gnu.so"),
        ] {
            assert_eq!(action(path), ChangeAction::LeftOutIfNew(place.to_owned()), "{path}");
        }
        for path in ["mine/json.py", "types.md", "logging.cfg", "json_tools.py"] {
            assert_eq!(action(path), ChangeAction::Kept, "{path}");
        }
    }

    #[test]
    fn files_with_tables_are_repaired_by_the_kind_of_runner() {
        let action = |parser: &str, path: &str| {
            let rules = rules(&format!(r#""command":"x","parser":"{parser}""#));
            rules.action(Change { path: format!("/w/{path}").as_bytes(), ..Change::default() })
        };
        let repaired = |path: &str| ChangeAction::Repaired(path.to_owned());
        assert_eq!(action("pytest", "pyproject.toml"), repaired("pyproject.toml"));
        assert_eq!(action("unittest", "a/setup.cfg"), repaired("a/setup.cfg"));
        assert_eq!(action("cargo-test", "Cargo.toml"), repaired("Cargo.toml"));
        assert_eq!(action("jest", "package.json"), repaired("package.json"));
        let gone = Change { path: b"/w/setup.cfg", removed: true, ..Change::default() };
        assert_eq!(rules(r#""command":"x","parser":"pytest""#).action(gone), ChangeAction::LeftOut);
        assert_eq!(action("jest", "jest.config.mjs"), ChangeAction::LeftOut);
        assert_eq!(action("go-test", "a/b_test.go"), ChangeAction::LeftOut);
        assert_eq!(action("pytest", "a/b_test.go"), ChangeAction::Kept);
    }

    #[test]
    fn programs_of_a_command() {
        let check = |command: &str, expect: &[&str]| {
            assert_eq!(programs(command).iter().map(String::as_str).collect::<Vec<_>>(), expect, "{command}")
        };
        check("X=1 ./run.sh a.py && python3.11 tests/go.py -v", &["python3.11", "run.sh", "tests/go.py"]);
        check("python -m pytest lib/a.py", &["python"]);
        check("make test", &["GNUmakefile", "Makefile", "make", "makefile"]);
        check("bash -c 'x'; tox -e py", &["bash", "tox", "tox.ini"]);
    }
}
