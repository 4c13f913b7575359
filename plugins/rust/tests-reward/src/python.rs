//! What of an agent's work counts in a Python task: the library's own modules and their data, and what the task names. All that
//! decides about tests, whatever it is called, is as it was before.

use crate::changes::Change;
use crate::folders::{Known, TestFolders};
use crate::hidden::{HiddenSide, folder_of, joined, name_of, upwards};
use crate::modules::{Modules, is_module};
use crate::protected::{ChangeAction, Hidden, patched_files};
use crate::task::Job;
use espalier_test_logs::Kind;
use std::collections::{BTreeMap, BTreeSet};

/// What a tool compiled or remembered, or what says what is installed.
const FOLDERS: [&str; 5] = ["__pycache__", ".pytest_cache", ".git", ".hg", "node_modules"];
const FOLDER_ENDS: [&str; 3] = [".egg-info", ".dist-info", ".egg"];
const FILE_ENDS: [&str; 3] = [".pyc", ".pyo", ".pth"];
/// Files that a package is built by; they count where `prepare` runs over the agent's work, and nowhere else.
const BUILD_FILES: [&str; 12] = [
    "setup.py",
    "setup.cfg",
    "pyproject.toml",
    "MANIFEST.in",
    "CMakeLists.txt",
    "meson.build",
    "meson_options.txt",
    "meson.options",
    "hatch_build.py",
    "build.py",
    "Cargo.toml",
    "Cargo.lock",
];
const BUILD_ENDS: [&str; 11] =
    [".c", ".cc", ".cpp", ".cxx", ".h", ".hpp", ".pyx", ".pxd", ".pxi", ".cmake", ".rs"];
/// Files that a runner looks for in the folders above its tests, where it is not told which one to take.
const CONFIGURATIONS: [&str; 7] =
    ["pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "pyproject.toml", "tox.ini", "setup.cfg"];
/// Files of a package that are not its data.
const SOURCES: [&str; 8] = [".py", ".pyi", ".pyx", ".pxd", ".pxi", ".so", ".pyd", ".c"];

/// The rules of one task.
#[derive(Clone, Debug)]
pub struct PythonRules {
    side: HiddenSide,
    modules: Modules,
    hidden: Hidden,
    /// Patterns of names of files that hold tests.
    patterns: Vec<String>,
    /// Folders that are the tests' own.
    folders: TestFolders,
    /// Folders that hold such files, other than those of `conftest.py`.
    with_tests: BTreeSet<String>,
    /// Folders that hold modules.
    with_modules: BTreeSet<String>,
    /// Folders above files of tests.
    above: BTreeSet<String>,
    /// Files that count whatever they are called: the reference is about them.
    named: BTreeSet<String>,
    /// Modules that the task names.
    named_modules: Modules,
    /// Of the hidden side, what no change touches.
    protected: BTreeSet<String>,
    builds: bool,
}

impl PythonRules {
    /// Of this job over this hidden side.
    pub fn new(job: &Job, side: HiddenSide) -> PythonRules {
        let patterns = match &side.pytest {
            Some(pytest) if !pytest.python_files.is_empty() => pytest.python_files.clone(),
            _ if job.kind.is_pytest() => vec!["test_*.py".to_owned(), "*_test.py".to_owned()],
            _ => vec!["test*.py".to_owned()],
        };
        let is_test = |file: &&String| name_of(file) == "conftest.py" || matches(&patterns, file);
        let tests: BTreeSet<String> = side.files.iter().filter(is_test).cloned().collect();
        let holding = tests.iter().filter(|test| name_of(test) != "conftest.py");
        let with_tests = holding.map(|test| folder_of(test).to_owned()).collect();
        let above = tests.iter().flat_map(|test| upwards(folder_of(test))).map(str::to_owned).collect();
        let sources = side.files.iter().filter(|file| is_module(file) && !tests.contains(*file));
        let with_modules = sources.map(|file| folder_of(file).to_owned()).collect();
        let hidden = Hidden::new(job, &side.workdir);
        let reference = job.reference_patch.as_deref().map(patched_files).unwrap_or_default();
        let named: BTreeSet<String> = reference.into_iter().collect();
        let is_own = |path: &&String| !hidden.covers(path) && !is_test(path);
        let of_task = side.files.iter().filter(|file| file.ends_with(".py") && hidden.brings(file));
        let known = Known {
            tests: of_task.chain(&tests).filter(|test| name_of(test) != "conftest.py").cloned().collect(),
            named: named.iter().filter(is_own).cloned().collect(),
            modules: job.tests.modules.clone(),
        };
        let folders = TestFolders::new(&side, &known);
        let builds = job.tests.prepare.is_some();
        let modules = Modules::new(&side, &tests, &folders, &job.tests.modules, builds);
        let mut rules = PythonRules {
            named_modules: modules.only(&job.tests.modules),
            hidden,
            named,
            folders,
            builds,
            protected: BTreeSet::new(),
            side,
            modules,
            patterns,
            with_tests,
            with_modules,
            above,
        };
        let kept = |file: &&String| rules.hidden.covers(file) || rules.is_of_tests(file, false);
        rules.protected = rules.side.files.iter().filter(kept).cloned().collect();
        rules
    }

    /// What comes of it.
    pub fn action(&self, change: Change<'_>) -> ChangeAction {
        let path = String::from_utf8_lossy(change.path);
        let Some(path) = self.side.inner(&path) else { return ChangeAction::LeftOut };
        if path.is_empty() {
            return if change.folder { ChangeAction::Kept } else { ChangeAction::LeftOut };
        }
        if !change.folder && has_below(&self.protected, &path) {
            // What else lay in the folder goes as each file would.
            return if change.removed { self.without(&path) } else { ChangeAction::LeftOut };
        }
        let action = self.action_of(&path, change);
        if change.removed && action == ChangeAction::LeftOut { self.without(&path) } else { action }
    }

    /// The hidden side.
    pub fn side(&self) -> &HiddenSide {
        &self.side
    }

    /// Folders that are the tests' own.
    pub fn folders(&self) -> &TestFolders {
        &self.folders
    }

    /// The library's modules.
    pub fn modules(&self) -> &Modules {
        &self.modules
    }

    /// The first of the library's modules without which the runner cannot be.
    pub fn runner_needs(&self) -> Option<&str> {
        let is_test = |base: &str| self.is_of_tests(&format!("{base}.py"), false);
        let own =
            self.modules.own.iter().filter(|module| !module.name.contains('.') && !is_test(&module.base));
        own.map(|module| &*module.name).find(|name| self.side.needed.contains(*name))
    }

    /// The first of the library's modules that was loaded from somewhere else, with where that is: `origins` says of modules by
    /// name which file they came from. Tests, and what lies with them, may have modules of the same names.
    pub fn stray<'a>(&self, origins: &'a BTreeMap<String, String>) -> Option<(&'a str, &'a str)> {
        let strays = |name: &str, origin: &str| {
            let known = self.modules.installed.iter().any(|module| {
                name.strip_prefix(&**module).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            });
            let counts = |path: &String| self.modules.has(path) || self.is_of_tests(path, false);
            known && !self.side.inner(origin).as_ref().is_some_and(counts)
        };
        origins.iter().map(|(name, origin)| (&**name, &**origin)).find(|(name, origin)| strays(name, origin))
    }

    fn action_of(&self, path: &str, change: Change<'_>) -> ChangeAction {
        let name = name_of(path);
        let tool = |part: &str| FOLDERS.contains(&part) || FOLDER_ENDS.iter().any(|end| part.ends_with(end));
        let left_behind = path.split('/').any(tool) || FILE_ENDS.iter().any(|end| name.ends_with(end));
        if left_behind || self.hidden.takes(path, change.folder) || name == "conftest.py" {
            return ChangeAction::LeftOut;
        }
        let folder = folder_of(path);
        if CONFIGURATIONS.contains(&name) && (self.above.contains(folder) || folder.is_empty()) {
            return self.build(name);
        }
        if upwards(path).any(|above| self.protected.contains(above)) {
            return ChangeAction::LeftOut;
        }
        if self.named.contains(path) {
            return ChangeAction::Kept;
        }
        if change.folder && (has_below(&self.named, path) || self.named_modules.has_below(path)) {
            return ChangeAction::Kept;
        }
        if self.is_of_tests(path, change.folder) {
            return ChangeAction::LeftOut;
        }
        // A folder is a package, or none, as before: it decides what a test is called and what is imported from where.
        if name == "__init__.py" && self.above.contains(folder) {
            let plain = !change.removed && !change.folder && !change.link;
            let own = plain && !self.folders.packages.contains(folder);
            return if own && self.side.has(path) { ChangeAction::Kept } else { ChangeAction::LeftOut };
        }
        if self.modules.has(path) {
            let fine = change.removed || change.folder || self.keeps_names(path, change);
            return if fine { ChangeAction::Kept } else { ChangeAction::LeftOut };
        }
        if change.folder && self.modules.has_below(path) {
            return ChangeAction::Kept;
        }
        self.build(name)
    }

    /// A link may lead to a folder, and then is a package.
    fn keeps_names(&self, path: &str, change: Change<'_>) -> bool {
        let as_package = || self.modules.keeps_names(&joined(path, "__init__.py"));
        self.modules.keeps_names(path) && (!change.link || as_package())
    }

    fn build(&self, name: &str) -> ChangeAction {
        let builds = BUILD_FILES.contains(&name) || BUILD_ENDS.iter().any(|end| name.ends_with(end));
        if self.builds && builds { ChangeAction::KeptForPrepare } else { ChangeAction::LeftOut }
    }

    /// The removal of a folder that is left out, as those of the files in it that may go.
    fn without(&self, folder: &str) -> ChangeAction {
        let may_go = |file: &&str| {
            let change = Change { removed: true, ..Change::default() };
            self.action_of(file, change) == ChangeAction::Kept && !self.protected.contains(*file)
        };
        let gone: Vec<String> = self.side.below(folder).filter(may_go).map(str::to_owned).collect();
        if gone.is_empty() { ChangeAction::LeftOut } else { ChangeAction::OnlyRemoved(gone) }
    }

    /// Whether it belongs to the tests: lies in a folder of tests, is a file of tests, or data beside such.
    fn is_of_tests(&self, path: &str, folder: bool) -> bool {
        if self.named.contains(path) {
            return false;
        }
        let of = if folder { path } else { folder_of(path) };
        // Above a module that the task names, and in its own name, folders may be called as they like.
        let named = self.named_modules.base_of(path);
        let from = named.map_or(0, |base| base.len().min(of.len()));
        let itself = named.is_some_and(|base| !path[base.len()..].starts_with('/'));
        let is_file = || matches(&self.patterns, path) || self.is_data_beside(path);
        self.folders.has_inside(of, from) || (!folder && !itself && is_file())
    }

    /// Whether it is data that was there before, in a folder with tests, or in one below it without any module.
    fn is_data_beside(&self, path: &str) -> bool {
        if SOURCES.iter().any(|end| path.ends_with(end)) || !self.side.has(path) {
            return false;
        }
        let mut above = upwards(folder_of(path));
        above
            .find(|folder| self.with_tests.contains(*folder) || self.with_modules.contains(*folder))
            .is_some_and(|folder| self.with_tests.contains(folder))
    }
}

/// Whether a kind of output is made by a runner of Python.
pub fn is_python(kind: Kind) -> bool {
    kind.is_pytest() || matches!(kind, Kind::Unittest | Kind::Django | Kind::SwebenchSympy)
}

fn has_below(paths: &BTreeSet<String>, folder: &str) -> bool {
    let start = format!("{folder}/");
    paths.range(start.clone()..).next().is_some_and(|path| path.starts_with(&start))
}

/// Whether a file's name is of one of these patterns, as pytest compares them: by name, and by the end of the path where they
/// hold a `/`.
fn matches(patterns: &[String], path: &str) -> bool {
    patterns.iter().any(|pattern| {
        if pattern.contains('/') {
            let anywhere = format!("*/{}", pattern.trim_start_matches('/'));
            is_like(anywhere.as_bytes(), format!("/{path}").as_bytes())
        } else {
            is_like(pattern.as_bytes(), name_of(path).as_bytes())
        }
    })
}

/// As `fnmatch` does: `*`, `?` and `[...]`.
fn is_like(pattern: &[u8], name: &[u8]) -> bool {
    match pattern.split_first() {
        None => name.is_empty(),
        Some((b'*', rest)) => (0..=name.len()).any(|at| is_like(rest, &name[at..])),
        Some((b'?', rest)) => !name.is_empty() && is_like(rest, &name[1..]),
        Some((b'[', rest)) => {
            match (rest.iter().skip(1).position(|byte| *byte == b']'), name.split_first()) {
                (Some(end), Some((letter, left))) => {
                    is_in(&rest[..=end], *letter) && is_like(&rest[end + 2..], left)
                }
                _ => name.first() == Some(&b'[') && is_like(rest, &name[1..]),
            }
        }
        Some((letter, rest)) => name.first() == Some(letter) && is_like(rest, &name[1..]),
    }
}

fn is_in(set: &[u8], letter: u8) -> bool {
    let (not, mut set) = if set.first() == Some(&b'!') { (true, &set[1..]) } else { (false, set) };
    let mut found = false;
    while let Some((first, rest)) = set.split_first() {
        let (last, rest) = match rest {
            [b'-', last, rest @ ..] => (last, rest),
            _ => (first, rest),
        };
        found |= (*first..=*last).contains(&letter);
        set = rest;
    }
    found != not
}

#[cfg(test)]
mod tests_of_shapes;
