//! Which folders belong to the tests, whatever they are called: those in which the hidden side's tests lie, where its code says that
//! the library lies elsewhere. A folder in doubt is none of them: what a solution needs is never held back for its name alone.

use crate::hidden::{HiddenSide, folder_of, joined, name_of, upwards};
use crate::modules::is_module;
use std::collections::{BTreeMap, BTreeSet};

/// Folders that hold tests, at any depth.
const TESTS: [&str; 3] = ["tests", "test", "testing"];
/// Words in the names of folders of tests.
const WORDS: [&str; 19] = [
    "test",
    "tests",
    "testing",
    "testcase",
    "testcases",
    "testsuite",
    "unittest",
    "unittests",
    "spec",
    "specs",
    "check",
    "checks",
    "suite",
    "suites",
    "t",
    "qa",
    "e2e",
    "acceptance",
    "functional",
];

/// Whether a folder is called as one of tests, or lies in one.
pub fn in_tests(folder: &str) -> bool {
    folder.split('/').any(|part| TESTS.contains(&part))
}

/// The folders of one hidden side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TestFolders {
    /// They belong to the tests with all below them, beside those of the known names.
    pub whole: BTreeSet<String>,
    /// Packages inside of the library that hold nothing but tests and their helpers: their `__init__.py` is the tests'.
    pub packages: BTreeSet<String>,
}

/// What is known of tests and library before any folder is looked at. Paths are from the working folder.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Files that hold tests, by their names or by the task; without `conftest.py`.
    pub tests: BTreeSet<String>,
    /// Paths that the reference touches and that are not tests.
    pub named: BTreeSet<String>,
    /// Modules that the task names, with dots.
    pub modules: Vec<String>,
}

impl TestFolders {
    /// Of this hidden side.
    pub fn new(side: &HiddenSide, known: &Known) -> TestFolders {
        let graph = Graph::new(side, known);
        let mut candidates: Vec<&str> = known
            .tests
            .iter()
            .flat_map(|test| upwards(folder_of(test)))
            .filter(|folder| !folder.is_empty() && !in_tests(folder))
            .collect();
        candidates.sort_unstable();
        candidates.dedup();
        candidates.retain(|folder| !graph.holds_library(folder));
        let mut folders = TestFolders::default();
        // What is found makes others certain: helpers of one folder may use those of another.
        loop {
            let before = folders.whole.len();
            for folder in &candidates {
                if !folders.has(folder) && !graph.in_package(folder) && graph.only_tests(folder, &folders) {
                    folders.whole.insert((*folder).to_owned());
                }
            }
            if folders.whole.len() == before {
                break;
            }
        }
        let inner = candidates.iter().filter(|folder| {
            !folders.has(folder)
                && graph.in_package(folder)
                && side.has(&joined(folder, "__init__.py"))
                && graph.only_tests(folder, &folders)
        });
        folders.packages = inner.map(|folder| (*folder).to_owned()).collect();
        folders
    }

    /// Whether a folder is one of tests, or lies in one.
    pub fn has(&self, folder: &str) -> bool {
        self.has_inside(folder, 0)
    }

    /// The same, but that the path's start up to there may be called as it likes.
    pub fn has_inside(&self, folder: &str, start: usize) -> bool {
        in_tests(&folder[start..]) || upwards(folder).any(|above| self.whole.contains(above))
    }
}

/// Which code uses which.
struct Graph<'a> {
    side: &'a HiddenSide,
    known: &'a Known,
    /// Files by the code that uses them. Of tests and what lies with them also by modules beside them.
    uses: BTreeMap<&'a str, BTreeSet<&'a str>>,
    /// Code that uses a module which the task names, whether it is there or not.
    users: BTreeSet<&'a str>,
    /// Code that is not a test nor lies in a folder with tests, and files that it uses.
    used: Vec<(&'a str, BTreeSet<&'a str>)>,
}

impl<'a> Graph<'a> {
    fn new(side: &'a HiddenSide, known: &'a Known) -> Graph<'a> {
        let mut graph =
            Graph { side, known, uses: BTreeMap::new(), users: BTreeSet::new(), used: Vec::new() };
        let holds_tests: BTreeSet<&str> = known
            .tests
            .iter()
            .flat_map(|test| upwards(folder_of(test)))
            .filter(|folder| !folder.is_empty())
            .collect();
        let mut roots: Vec<String> = side.roots.iter().cloned().chain(side.sources()).collect();
        roots.push(String::new());
        let apart: Vec<String> =
            roots.iter().filter(|root| !holds_tests.contains(&***root)).cloned().collect();
        for (from, names) in &side.uses {
            let above: Vec<String> = upwards(folder_of(from)).map(str::to_owned).collect();
            let beside: Vec<String> = above.into_iter().chain(roots.iter().cloned()).collect();
            let all = || names.imported.iter().chain(&names.quoted);
            graph.uses.insert(from, all().flat_map(|name| graph.files_of(from, name, &beside)).collect());
            let is_of = |name: &str, module: &str| {
                name.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            if all().any(|name| known.modules.iter().any(|module| is_of(name, module))) {
                graph.users.insert(from);
            }
            // A program at the top that nobody imports is none of the library.
            let program = folder_of(from).is_empty() && !side.imported.contains(crate::modules::stem(from));
            if !graph.is_test_code(from) && !in_tests(folder_of(from)) && !program {
                let dotted = names.quoted.iter().filter(|name| name.contains('.'));
                let names = names.imported.iter().chain(dotted);
                let used = names.flat_map(|name| graph.files_of(from, name, &apart)).collect();
                graph.used.push((from, used));
            }
        }
        graph
    }

    fn is_test_code(&self, file: &str) -> bool {
        self.known.tests.contains(file) || name_of(file) == "conftest.py"
    }

    /// The files that a module's name stands for in this code, packages above it included.
    fn files_of(&self, from: &str, name: &str, roots: &[String]) -> Vec<&'a str> {
        let rest = name.trim_start_matches('.');
        let dots = name.len() - rest.len();
        let parts: Vec<&str> = rest.split('.').filter(|part| !part.is_empty()).collect();
        if dots > 0 {
            let Some(base) = upwards(folder_of(from)).nth(dots - 1) else { return Vec::new() };
            return self.at(base).into_iter().chain(self.along(base, &parts)).collect();
        }
        let Some((first, more)) = parts.split_first() else { return Vec::new() };
        if let Some(places) = self.side.mapped.get(*first) {
            let found = |place: &String| self.at(place).into_iter().chain(self.along(place, more));
            return places.iter().flat_map(found).collect();
        }
        roots.iter().map(|root| self.along(root, &parts)).find(|found| !found.is_empty()).unwrap_or_default()
    }

    fn along(&self, base: &str, parts: &[&str]) -> Vec<&'a str> {
        let mut at = base.to_owned();
        let step = |part: &&str| {
            at = joined(&at, part);
            self.at(&at)
        };
        parts.iter().flat_map(step).collect()
    }

    /// The module of this place: `calc.py`, `calc/__init__.py`, `calc.abi3.so`, or the file itself.
    fn at(&self, place: &str) -> Vec<&'a str> {
        let compiled = self.side.starting_with(format!("{place}.")).find(|file| file.ends_with(".so"));
        let plain = [place.to_owned(), format!("{place}.py"), joined(place, "__init__.py")];
        let file = |path: &String| self.side.files.get(path).map(String::as_str);
        plain.iter().filter_map(file).chain(compiled).collect()
    }

    /// Whether it is certain that the library, or part of it, lies there.
    fn holds_library(&self, folder: &str) -> bool {
        let in_or_above = |path: &str| is_in(path, folder) || is_in(folder, path);
        let wanted = self.known.modules.iter().any(|name| {
            let path = name.replace('.', "/");
            let mut roots = self.side.roots.iter().cloned().chain(self.side.sources()).chain([String::new()]);
            roots.any(|root| {
                let base = joined(&root, &path);
                let there = self.side.has(&format!("{base}.py")) || self.side.below(&base).next().is_some();
                in_or_above(&base) && (there || !is_in(&root, folder))
            })
        });
        // A runner may be started in the folder of its tests; else modules are imported from there.
        let root = |root: &String| is_in(root, folder) && !is_called_after_tests(root);
        wanted
            || self.known.named.iter().any(|path| is_in(path, folder))
            || self.side.mapped.values().flatten().any(|place| in_or_above(place))
            || self.side.roots.iter().any(root)
            || self.side.sources().any(|source| source == folder)
    }

    /// Whether the folder lies in a package.
    fn in_package(&self, folder: &str) -> bool {
        upwards(folder_of(folder)).any(|above| self.side.has(&joined(above, "__init__.py")))
    }

    /// Whether it is one of tests: its tests use code of the library elsewhere, nobody's code but that of tests uses its own, and its
    /// name speaks of tests; or else it holds more tests than other modules, and each test uses the library itself.
    fn only_tests(&self, folder: &str, found: &TestFolders) -> bool {
        let named = is_called_after_tests(folder);
        let code = || self.side.below(folder).filter(|file| is_module(file));
        // Those in a folder that is called after tests say nothing of what lies around it.
        let inner = |file: &str| is_called_after_tests(&folder_of(file)[folder.len()..]);
        let tests: Vec<&str> =
            code().filter(|file| self.known.tests.contains(*file) && (named || !inner(file))).collect();
        let others = code().filter(|file| !self.is_test_code(file)).count();
        let uses = |file: &str| self.uses.get(file).into_iter().flatten().copied();
        let is_library =
            |file: &str| !is_in(file, folder) && !self.is_test_code(file) && !found.has(folder_of(file));
        let reaches = |file: &str| self.users.contains(file) || uses(file).any(is_library);
        let uses_none = |file: &str| uses(file).next().is_none();
        let each = || tests.iter().all(|test| uses_none(test) || reaches(test));
        if !named && (tests.len() <= others || !each()) {
            return false;
        }
        let reached = self.used.iter().any(|(from, used)| {
            !is_in(from, folder) && !found.has(folder_of(from)) && used.iter().any(|file| is_in(file, folder))
        });
        if reached {
            return false;
        }
        let mut ahead: Vec<&str> = code().filter(|file| self.is_test_code(file)).collect();
        let mut seen: BTreeSet<&str> = ahead.iter().copied().collect();
        while let Some(file) = ahead.pop() {
            if reaches(file) {
                return true;
            }
            ahead.extend(uses(file).filter(|used| is_in(used, folder) && seen.insert(used)));
        }
        false
    }
}

/// Whether a path is this folder, or lies in it.
fn is_in(path: &str, folder: &str) -> bool {
    folder.is_empty()
        || path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether a word in one of the names of this path speaks of tests.
fn is_called_after_tests(folder: &str) -> bool {
    let mut words = folder.split(|letter: char| !letter.is_ascii_alphanumeric());
    words.any(|word| WORDS.contains(&&*word.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests_of_folders;
