//! Which modules of a working folder are the library's own: those that can be imported from it before any agent came.

use crate::folders::TestFolders;
use crate::hidden::{HiddenSide, folder_of, joined, name_of, upwards};
use std::collections::{BTreeMap, BTreeSet};

/// Endings of files that are modules.
const MODULES: [&str; 4] = [".py", ".so", ".pyd", ".pyc"];
/// Deepest namespace that is looked into.
const DEPTH_MAX: usize = 8;

/// A module of the library.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Module {
    /// With dots.
    pub name: String,
    /// Its folder, or its file less what stands from the first dot of its name on; from the working folder.
    pub base: String,
}

/// The library's modules, and the names that each folder of the import path has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Modules {
    /// In order, each once.
    pub own: BTreeSet<Module>,
    /// Folders from which modules are imported, with the names that there are.
    pub roots: BTreeMap<String, BTreeSet<String>>,
    /// Names of those that the import path leads to, other than the standard library's.
    pub installed: BTreeSet<String>,
    /// Of `own`.
    bases: BTreeSet<String>,
}

/// Whether a file can be imported, by its name.
pub fn is_module(path: &str) -> bool {
    MODULES.iter().any(|end| path.ends_with(end))
}

/// A file's name up to its first dot.
pub fn stem(path: &str) -> &str {
    let name = name_of(path);
    name.split('.').next().unwrap_or(name)
}

impl Modules {
    /// Of this hidden side, whose tests' files and folders are those; `wanted`: modules that the task names besides, with dots;
    /// `builds`: whether something is built before the tests.
    pub fn new(
        side: &HiddenSide,
        tests: &BTreeSet<String>,
        folders: &TestFolders,
        wanted: &[String],
        builds: bool,
    ) -> Modules {
        let mut modules = Modules::default();
        let mut searched: BTreeSet<String> = side.roots.iter().cloned().collect();
        if builds {
            // What is built from there is imported from elsewhere.
            searched.extend(side.sources());
        }
        for root in searched.iter().filter(|root| !folders.has(root)) {
            modules.search(side, root);
        }
        if modules.own.is_empty() && side.mapped.is_empty() {
            // Nobody says: where a tree keeps its modules, and the current folder.
            for root in side.sources().chain([String::new()]) {
                modules.search(side, &root);
            }
        }
        let found = modules.own.iter().map(|module| module.name.clone()).chain(side.mapped.keys().cloned());
        modules.installed = found.filter(|name| !side.standard.contains(name)).collect();
        // Runners put the folder above a test's package there.
        let around = tests.iter().filter_map(|test| {
            upwards(folder_of(test)).find(|folder| !side.has(&joined(folder, "__init__.py")))
        });
        searched.extend(around.map(str::to_owned));
        for root in searched {
            modules.search(side, &root);
        }
        for (name, places) in &side.mapped {
            for place in places {
                let package = side.has(&joined(place, "__init__.py"));
                if package || side.has(place) {
                    let base = if package { place.clone() } else { joined(folder_of(place), stem(place)) };
                    modules.own.insert(Module { name: name.clone(), base });
                } else {
                    modules.namespace(side, place, name, 0);
                }
            }
        }
        // What the task names lies where modules of a library do: not with the tests.
        let mut roots: BTreeSet<String> = modules.roots.keys().cloned().collect();
        roots.retain(|root| !folders.has(root));
        roots.extend(side.mapped.values().flatten().map(|place| folder_of(place).to_owned()));
        for (name, root) in wanted.iter().flat_map(|name| roots.iter().map(move |root| (name, root))) {
            let first = name.split('.').next().unwrap_or(name).to_owned();
            if let Some(names) = modules.roots.get_mut(root) {
                names.insert(first);
            }
            modules.own.insert(Module { name: name.clone(), base: joined(root, &name.replace('.', "/")) });
        }
        modules.bases = modules.own.iter().map(|module| module.base.clone()).collect();
        modules
    }

    /// Those of these names alone, with what they hold.
    pub fn only(&self, names: &[String]) -> Modules {
        let own: BTreeSet<Module> =
            self.own.iter().filter(|module| names.contains(&module.name)).cloned().collect();
        let bases = own.iter().map(|module| module.base.clone()).collect();
        Modules { own, bases, ..self.clone() }
    }

    fn search(&mut self, side: &HiddenSide, root: &str) {
        let at_top = root.is_empty();
        let mut names = BTreeSet::new();
        for (name, kind) in children(side, root) {
            // Beside a library at the top lie scripts, examples and documents: its own are what is imported.
            let used = !at_top || side.imported.contains(&name);
            let base = joined(root, &name);
            match kind {
                Child::Package => drop(self.own.insert(Module { name: name.clone(), base })),
                Child::File if used && name != "setup" => {
                    self.own.insert(Module { name: name.clone(), base });
                }
                // A namespace of a known name is imported from elsewhere.
                Child::Folder if used && !side.standard.contains(&name) => {
                    self.namespace(side, &base, &name, 0);
                }
                _ => {}
            }
            names.insert(name);
        }
        self.roots.insert(root.to_owned(), names);
    }

    fn namespace(&mut self, side: &HiddenSide, folder: &str, name: &str, depth: usize) {
        for (child, kind) in children(side, folder) {
            let module = Module { name: format!("{name}.{child}"), base: joined(folder, &child) };
            match kind {
                Child::Package | Child::File => drop(self.own.insert(module)),
                Child::Folder if depth < DEPTH_MAX => {
                    self.namespace(side, &module.base, &module.name, depth + 1);
                }
                Child::Folder => {}
            }
        }
    }

    /// Whether this path is a module's, or lies in its folder: `calc`, `calc/x`, `calc.py`, `calc.cpython-311-x86_64-linux-gnu.so`.
    pub fn has(&self, path: &str) -> bool {
        self.base_of(path).is_some()
    }

    /// The innermost module's base of such a path.
    pub fn base_of<'a>(&self, path: &'a str) -> Option<&'a str> {
        let end = path.len() - name_of(path).len() + stem(path).len();
        let file = Some(&path[..end]).filter(|_| is_module(path));
        file.into_iter().chain(upwards(path)).find(|base| self.bases.contains(*base))
    }

    /// Whether the folder leads to a module.
    pub fn has_below(&self, folder: &str) -> bool {
        let start = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        self.bases.range(start.clone()..).next().is_some_and(|base| base.starts_with(&start))
    }

    /// Whether importing it cannot take the place of what another name stands for: in every folder from which modules are
    /// imported, the name was there before, or what is new is not a module.
    pub fn keeps_names(&self, path: &str) -> bool {
        let known = |folder: &str| {
            let Some(names) = self.roots.get(folder) else { return true };
            let rest = if folder.is_empty() { path } else { &path[folder.len() + 1..] };
            !is_module(path) || names.contains(stem(rest.split('/').next().unwrap_or(rest)))
        };
        upwards(folder_of(path)).all(known)
    }
}

enum Child {
    Package,
    File,
    Folder,
}

/// What can be imported from a folder, by name.
fn children(side: &HiddenSide, folder: &str) -> BTreeMap<String, Child> {
    let skip = if folder.is_empty() { 0 } else { folder.len() + 1 };
    let mut found = BTreeMap::new();
    for file in side.below(folder).filter(|file| is_module(file)) {
        let rest = &file[skip..];
        let child = match rest.split_once('/') {
            Some((name, "__init__.py")) => (name, Child::Package),
            Some((name, _)) => (name, Child::Folder),
            None => (stem(rest), Child::File),
        };
        if matches!(child.0, "__init__" | "__main__" | "conftest") || child.0.contains('.') {
            continue;
        }
        let is_package = matches!(child.1, Child::Package);
        let known = found.entry(child.0.to_owned()).or_insert(child.1);
        if is_package {
            *known = Child::Package;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(roots: &[&str], files: &[&str], imported: &[&str]) -> HiddenSide {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        HiddenSide {
            workdir: "/w".to_owned(),
            files: words(files).into_iter().collect(),
            roots: words(roots),
            imported: words(imported).into_iter().collect(),
            standard: words(&["json"]).into_iter().collect(),
            ..HiddenSide::default()
        }
    }

    #[test]
    fn modules_are_what_can_be_imported_before_the_agent() {
        #[track_caller]
        fn check(side: &HiddenSide, tests: &[&str], wanted: &[&str], expect: &[(&str, &str)]) {
            check_of(side, tests, wanted, false, expect);
        }
        #[track_caller]
        fn check_of(
            side: &HiddenSide,
            tests: &[&str],
            wanted: &[&str],
            builds: bool,
            expect: &[(&str, &str)],
        ) {
            let tests = tests.iter().map(|test| (*test).to_owned()).collect();
            let wanted: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
            let modules = Modules::new(side, &tests, &TestFolders::default(), &wanted, builds);
            let own: Vec<(&str, &str)> =
                modules.own.iter().map(|module| (&*module.name, &*module.base)).collect();
            assert_eq!(own, expect);
        }
        let flat =
            ["calc/__init__.py", "calc/core.py", "setup.py", "noxfile.py", "docs/conf.py", "tests/test_a.py"];
        check(
            &side(&[""], &flat, &["calc", "pytest"]),
            &["tests/test_a.py"],
            &[],
            &[("calc", "calc"), ("test_a", "tests/test_a")],
        );
        check(
            &side(&["src"], &["src/calc/__init__.py", "src/one.py", "tools/x/__init__.py"], &[]),
            &[],
            &["new.part"],
            &[("calc", "src/calc"), ("new.part", "src/new/part"), ("one", "src/one")],
        );
        // Namespaces by their dotted name; what nobody imports, or what is the standard library's, is none.
        let shared =
            ["google/auth/__init__.py", "google/auth/a/b.py", "google/one.py", "tools/x.py", "json/x.py"];
        check(
            &side(&[""], &shared, &["google", "json"]),
            &[],
            &[],
            &[("google.auth", "google/auth"), ("google.one", "google/one")],
        );
        // A module beside its test.
        check(
            &side(&[""], &["calc.py", "test_calc.py", "other.py"], &["calc"]),
            &["test_calc.py"],
            &[],
            &[("calc", "calc")],
        );
        // Nobody says where from.
        check(&side(&[], &["src/calc/__init__.py"], &[]), &[], &[], &[("calc", "src/calc")]);
        let nowhere = side(&["tests", ""], &["src/calc/__init__.py", "tools/__init__.py"], &[]);
        check(&nowhere, &[], &[], &[("tools", "tools")]);
        // Built from there, and imported from elsewhere.
        check_of(&nowhere, &[], &[], true, &[("calc", "src/calc"), ("tools", "tools")]);
        let mut mapped = side(&["tests"], &["source/__init__.py", "py/ns/a.py", "one.py"], &[]);
        for (name, place) in [("calc", "source"), ("ns", "py/ns"), ("one", "one.py")] {
            mapped.mapped.insert(name.to_owned(), vec![place.to_owned()]);
        }
        check(&mapped, &[], &[], &[("calc", "source"), ("ns.a", "py/ns/a"), ("one", "one")]);
    }

    #[test]
    fn paths_are_a_modules_own_by_its_name() {
        let side = side(&["src"], &["src/calc/__init__.py"], &[]);
        let modules = Modules::new(&side, &BTreeSet::new(), &TestFolders::default(), &[], false);
        for path in
            ["src/calc", "src/calc.py", "src/calc/a/b.txt", "src/calc.cpython-311-x86_64-linux-gnu.so"]
        {
            assert!(modules.has(path), "{path}");
        }
        for path in ["src/calc2.py", "src/calc.md", "src", "calc.py", "src/calc.d/x.py"] {
            assert!(!modules.has(path), "{path}");
        }
        assert!(modules.has_below("src") && modules.has_below("") && !modules.has_below("src/calc"));
    }

    #[test]
    fn no_new_name_comes_into_the_import_path() {
        let files = ["calc/__init__.py", "calc/plug/test_x.py", "calc/plug/one.py", "calc/sub/__init__.py"];
        let tests = BTreeSet::from(["calc/plug/test_x.py".to_owned()]);
        let modules = Modules::new(&side(&[""], &files, &[]), &tests, &TestFolders::default(), &[], false);
        for path in
            ["calc/new.py", "calc/plug/one.py", "calc/plug/one/a.py", "calc/plug/data.json", "calc/json.py"]
        {
            assert!(modules.keeps_names(path), "{path}");
        }
        for path in [
            "calc/plug/json.py",
            "calc/plug/json/__init__.py",
            "json.py",
            "bz2/a.so",
            "calc/plug/__init__.py",
        ] {
            assert!(!modules.keeps_names(path), "{path}");
        }
    }
}
