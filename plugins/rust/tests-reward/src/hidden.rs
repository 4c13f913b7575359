//! What the tests of a task are before any agent came, as `python/probe.py` reports it out of a fresh sandbox that holds the hidden
//! files: which files there are, where modules are imported from, how pytest is set up.

use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// The program that reports, a plugin of pytest and a `sitecustomize` at once.
pub const PROBE: &str = include_str!("python/probe.py");
/// Where it lies and writes its reports.
pub const FOLDER: &str = "/tmp/espalier-probe";

/// One process's report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Report {
    /// `sys.path`, absolute and without links.
    pub path: Vec<String>,
    /// Files and links below the working folder, from there.
    pub files: Vec<String>,
    /// First parts of the names that code in the working folder imports.
    pub imported: Vec<String>,
    /// What code in the working folder speaks of, by its path.
    pub uses: BTreeMap<String, Names>,
    /// Names of the standard library.
    pub standard: Vec<String>,
    /// Modules that editable installations map, with where they lie.
    pub mapped: BTreeMap<String, Vec<String>>,
    /// Modules that pytest has loaded when it is up.
    pub needed: Vec<String>,
    /// Where it is pytest that reports.
    pub pytest: Option<Pytest>,
}

/// Names of modules, with dots, in one file of code.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Names {
    /// In its imports; relative ones begin with dots.
    pub imported: Vec<String>,
    /// In its texts.
    pub quoted: Vec<String>,
}

/// How pytest is set up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Pytest {
    /// Node ids start there.
    pub rootdir: String,
    /// The file that it is configured by.
    pub inifile: Option<String>,
    /// Above it no `conftest.py` is looked for.
    pub confcutdir: Option<String>,
    /// Patterns of names of files that hold tests.
    pub python_files: Vec<String>,
}

/// What all reports come to. Paths are from the working folder; that itself is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HiddenSide {
    /// Absolute, without `/` at its end.
    pub workdir: String,
    /// Files and links.
    pub files: BTreeSet<String>,
    /// Folders of `sys.path` in the working folder, in order.
    pub roots: Vec<String>,
    /// Folders of `sys.path` elsewhere, absolute, in order.
    pub elsewhere: Vec<String>,
    /// Those before the standard library, absolute, which the runner or the current folder put there.
    pub front: Vec<String>,
    /// First parts of imported names.
    pub imported: BTreeSet<String>,
    /// What code speaks of, by its path.
    pub uses: BTreeMap<String, Names>,
    /// Names of the standard library.
    pub standard: BTreeSet<String>,
    /// Modules with where they lie.
    pub mapped: BTreeMap<String, Vec<String>>,
    /// Modules that the runner needs.
    pub needed: BTreeSet<String>,
    /// How pytest is set up, where all of its processes agree.
    pub pytest: Option<Pytest>,
}

impl HiddenSide {
    /// Puts reports together.
    pub fn new(workdir: &str, reports: Vec<Report>) -> HiddenSide {
        let workdir = if workdir == "/" { "" } else { workdir };
        let mut side = HiddenSide { workdir: workdir.to_owned(), ..HiddenSide::default() };
        let mut setups: Vec<Pytest> = Vec::new();
        for report in reports {
            let inner: Vec<Option<String>> = report.path.iter().map(|path| side.inner(path)).collect();
            for (path, _) in report.path.iter().zip(&inner).filter(|(_, inner)| inner.is_none()) {
                if !side.elsewhere.contains(path) {
                    side.elsewhere.push(path.clone());
                }
            }
            let before = inner.iter().take_while(|inner| inner.is_some()).count();
            for (at, root) in inner.into_iter().enumerate().filter_map(|(at, inner)| Some((at, inner?))) {
                let whole = report.path[at].clone();
                if at < before && !side.front.contains(&whole) {
                    side.front.push(whole);
                }
                if !side.roots.contains(&root) {
                    side.roots.push(root);
                }
            }
            for (name, places) in report.mapped {
                let places = places.iter().filter_map(|place| side.inner(place));
                let places: Vec<String> = places.filter(|place| !place.is_empty()).collect();
                side.mapped.entry(name).or_default().extend(places);
            }
            side.files.extend(report.files);
            side.imported.extend(report.imported);
            side.uses.extend(report.uses);
            side.standard.extend(report.standard);
            side.needed.extend(report.needed);
            setups.extend(report.pytest);
        }
        side.mapped.retain(|_, places| !places.is_empty());
        setups.dedup();
        side.pytest = if setups.len() == 1 { setups.pop() } else { None };
        side
    }

    /// A path from the working folder; `None` for one elsewhere.
    pub fn inner(&self, path: &str) -> Option<String> {
        let rest = path.strip_prefix(&self.workdir)?;
        if rest.is_empty() { Some(String::new()) } else { Some(rest.strip_prefix('/')?.to_owned()) }
    }

    /// Whether a file or link is there.
    pub fn has(&self, path: &str) -> bool {
        self.files.contains(path)
    }

    /// Folders in which a tree keeps its modules, where it does not keep them at the top.
    pub fn sources(&self) -> impl Iterator<Item = String> {
        let holds = |folder: &&str| self.below(folder).any(|file| file.ends_with(".py"));
        ["src", "lib"].into_iter().filter(holds).map(str::to_owned)
    }

    /// Files and links in a folder, at any depth.
    pub fn below<'a>(&'a self, folder: &str) -> impl Iterator<Item = &'a str> {
        self.starting_with(if folder.is_empty() { String::new() } else { format!("{folder}/") })
    }

    /// Files and links whose paths start so.
    pub fn starting_with(&self, start: String) -> impl Iterator<Item = &str> {
        let files = self.files.range(start.clone()..);
        files.map(String::as_str).take_while(move |file| file.starts_with(&start))
    }
}

/// The folder of a path; empty for one at the top.
pub fn folder_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// The last part of a path.
pub fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// A folder and all above it, up to the working folder.
pub fn upwards(folder: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(
        Some(folder),
        |folder| {
            if folder.is_empty() { None } else { Some(folder_of(folder)) }
        },
    )
}

/// A path in a folder.
pub fn joined(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_put_together() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let pytest = Pytest { rootdir: "/w".to_owned(), ..Pytest::default() };
        let one = Report {
            path: words(&["/w/tests", "/w", "/usr/lib/python3", "/w/src", "/w2"]),
            files: words(&["a.py", "src/b/c.py", "src/b.py"]),
            mapped: BTreeMap::from([
                ("b".to_owned(), words(&["/w/src/b"])),
                ("x".to_owned(), words(&["/w2/x"])),
            ]),
            pytest: Some(pytest.clone()),
            ..Report::default()
        };
        let side = HiddenSide::new("/w", vec![one.clone(), Report::default(), one.clone()]);
        assert_eq!((&side.roots, &side.front), (&words(&["tests", "", "src"]), &words(&["/w/tests", "/w"])));
        assert_eq!(side.mapped, BTreeMap::from([("b".to_owned(), words(&["src/b", "src/b"]))]));
        assert_eq!(side.pytest, Some(pytest));
        assert_eq!(side.below("src/b").collect::<Vec<_>>(), ["src/b/c.py"]);
        assert_eq!(side.below("").count(), 3);
        // Two set-ups: none can be named for both.
        let other = Report { pytest: Some(Pytest::default()), ..Report::default() };
        assert_eq!(HiddenSide::new("/w", vec![one, other]).pytest, None);
        assert_eq!(upwards("a/b").collect::<Vec<_>>(), ["a/b", "a", ""]);
        let root = HiddenSide::new("/", Vec::new());
        assert_eq!(root.inner("/code/a").as_deref(), Some("code/a"));
    }
}
