//! What a file of a release is, by its path alone.

use super::Tree;
use super::changelog::same_name;
use std::collections::BTreeSet;

/// Part of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Part {
    /// Tests, and data that lies with them.
    Test,
    /// For people: not part of the reference patch, whatever it says is not tested.
    Documentation,
    /// What building an archive added, and settings of tools that nobody runs.
    Packaging,
    /// All else: the library, its data and how it is built.
    Source,
}

/// Folders that hold tests, wherever they lie.
const TESTS: [&str; 2] = ["tests", "test"];

/// What a path is.
pub(super) fn part(path: &str) -> Part {
    let (folders, name) = path.rsplit_once('/').unwrap_or(("", path));
    let mut above = folders.split('/').filter(|folder| !folder.is_empty());
    let top = above.clone().next();
    if above.clone().any(|folder| TESTS.contains(&folder)) || top == Some("testing") {
        return Part::Test;
    }
    let module = name.strip_suffix(".py");
    // `test.py` in a package may well be its own.
    let alone = top.is_none() && matches!(module, Some("test" | "tests"));
    if alone
        || name == "conftest.py"
        || module.is_some_and(|module| module.starts_with("test_") || module.ends_with("_test"))
    {
        return Part::Test;
    }
    let built = |folder: &str| folder.ends_with(".egg-info") || folder.starts_with('.');
    if name == "PKG-INFO" || name.starts_with('.') || above.any(built) {
        return Part::Packaging;
    }
    let ends = [".md", ".rst", ".txt", ".html"].iter().any(|end| name.ends_with(end));
    let written = top.is_none() && (ends || !name.contains('.'));
    if written || matches!(top, Some("docs" | "doc" | "documentation")) || is_changelog(path) {
        return Part::Documentation;
    }
    Part::Source
}

/// Whether it is part of the starting tree. What an archive was built with says nothing that the tree does not, and would be taken
/// for an installed package.
pub(super) fn stays(path: &str) -> bool {
    !path.split('/').any(|part| part.ends_with(".egg-info") || part == "PKG-INFO" || part == "__pycache__")
}

/// Whether it may hold the changelog.
pub(super) fn is_changelog(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
    let stem = name.split('.').next().unwrap_or_default();
    let known = ["changelog", "changes", "history", "news", "release", "releases", "versions", "whatsnew"];
    let plain = stem.replace(['-', '_'], "");
    (known.contains(&plain.as_str())
        || matches!(plain.as_str(), "releasenotes" | "whatsnew" | "changehistory"))
        && ["", "md", "rst", "txt"].contains(&name.split_once('.').map_or("", |(_, end)| end))
}

/// What a test file is named by: the topmost folder of tests above it, else itself.
pub(super) fn place(path: &str) -> &str {
    let mut end = 0;
    for (index, folder) in path.split('/').enumerate() {
        end += folder.len();
        if end < path.len() && (TESTS.contains(&folder) || (index == 0 && folder == "testing")) {
            return &path[..end];
        }
        end += 1;
    }
    path
}

/// The files of an installed package's `dist-info`, as far as an archive has them: what `importlib.metadata` answers with.
pub(super) fn installed(tree: &Tree) -> Tree {
    let built = |name: &str| {
        let inside = |path: &&String| {
            path.strip_suffix(name).is_some_and(|folder| folder.ends_with(".egg-info/"))
                && part(path) == Part::Packaging
        };
        tree.keys().find(inside).and_then(|path| tree.get(path))
    };
    let metadata = tree.get("PKG-INFO").or_else(|| built("PKG-INFO"));
    let files = [("METADATA", metadata), ("entry_points.txt", built("entry_points.txt"))];
    files.into_iter().filter_map(|(name, file)| Some((name.to_owned(), file?.clone()))).collect()
}

/// Where the library is imported from: `src`, where that holds modules, else the tree itself.
pub(super) fn root(tree: &Tree) -> String {
    let modules = |folder: &str| {
        tree.keys().filter_map(|path| path.strip_prefix(folder)?.strip_prefix('/')).any(|path| {
            path.ends_with(".py") && (path.matches('/').count() == 0 || path.ends_with("/__init__.py"))
        })
    };
    ["src", "lib"].into_iter().find(|folder| modules(folder)).unwrap_or_default().to_owned()
}

/// Files beside a library that are not modules of it.
const NO_MODULES: [&str; 7] =
    ["setup.py", "__init__.py", "__main__.py", "conftest.py", "tasks.py", "noxfile.py", "build.py"];
/// Folders beside a library that are not packages of it, unless it is called so.
const NO_PACKAGES: [&str; 6] = ["tools", "utils", "examples", "scripts", "docs", "benchmarks"];

/// What is imported from there: packages by their topmost folder with an `__init__.py` (`google/auth`, where `google` has none), and
/// modules by their file, where there are no packages or the library is called so.
pub(super) fn modules(tree: &Tree, root: &str, library: &str) -> Vec<String> {
    let below = if root.is_empty() { String::new() } else { format!("{root}/") };
    let inside = tree.keys().filter(|path| part(path) == Part::Source);
    let inside: BTreeSet<&str> = inside.filter_map(|path| path.strip_prefix(&below)).collect();
    let is_top = |folder: &str| {
        let mut above = folder.match_indices('/').map(|(end, _)| &folder[..end]);
        !above.any(|above| inside.contains(format!("{above}/__init__.py").as_str()))
    };
    let is_own = |folder: &str| {
        let first = folder.split('/').next().unwrap_or(folder);
        !NO_PACKAGES.contains(&first) || same_name(first, library)
    };
    let folders = inside.iter().filter_map(|path| path.strip_suffix("/__init__.py"));
    let packages: Vec<&str> = folders.filter(|folder| is_top(folder) && is_own(folder)).collect();
    let files = inside.iter().filter(|path| {
        let stem = path.strip_suffix(".py").filter(|stem| !stem.contains('/') && !NO_MODULES.contains(*path));
        stem.is_some_and(|stem| packages.is_empty() || same_name(stem, library))
    });
    packages.iter().chain(files).map(|name| (*name).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_say_what_files_are() {
        let check = |expect: Part, paths: &[&str]| {
            for path in paths {
                assert_eq!(part(path), expect, "{path}");
            }
        };
        check(
            Part::Test,
            &[
                "tests/a.py",
                "tests/data/x.bin",
                "src/pkg/tests/__init__.py",
                "testing/a.py",
                "test.py",
                "conftest.py",
            ],
        );
        check(Part::Test, &["src/test_pkg.py", "pkg/some_test.py", "test/README.md", "pkg/conftest.py"]);
        check(
            Part::Source,
            &[
                "pkg/testing.py",
                "pkg/tests.py",
                "pkg/testing/a.py",
                "setup.py",
                "pyproject.toml",
                "pkg/a.txt",
                "testify/a.py",
            ],
        );
        check(
            Part::Documentation,
            &["docs/conf.py", "README.md", "LICENSE", "CHANGES.txt", "pkg/changelog.md"],
        );
        check(Part::Packaging, &["PKG-INFO", "pkg.egg-info/SOURCES.txt", ".github/x.yml", "a/.hidden"]);
        assert!(is_changelog("docs/src/markdown/about/changelog.md") && is_changelog("RELEASE-NOTES.rst"));
        assert!(!is_changelog("pkg/history.py") && !is_changelog("changelog.d/1.md"));
    }

    #[test]
    fn tests_are_named_by_their_folder() {
        for (path, expect) in [
            ("tests/data/x.bin", "tests"),
            ("src/pkg/tests/sub/test_a.py", "src/pkg/tests"),
            ("src/test_a.py", "src/test_a.py"),
            ("tests", "tests"),
            ("testing/a/b.py", "testing"),
        ] {
            assert_eq!(place(path), expect);
        }
    }

    #[test]
    fn the_library_is_imported_from_where_its_modules_lie() {
        let tree = |paths: &[&str]| {
            paths.iter().map(|path| ((*path).to_owned(), Default::default())).collect::<Tree>()
        };
        assert_eq!(root(&tree(&["src/a/__init__.py"])), "src");
        assert_eq!(root(&tree(&["src/a.py"])), "src");
        assert_eq!(root(&tree(&["src/a.c", "a/__init__.py"])), "");
        assert_eq!(root(&tree(&["a.py"])), "");
    }

    #[test]
    fn modules_are_what_can_be_imported() {
        let tree = |paths: &[&str]| {
            paths.iter().map(|path| ((*path).to_owned(), Default::default())).collect::<Tree>()
        };
        let check = |library: &str, root: &str, paths: &[&str], expect: &[&str]| {
            assert_eq!(modules(&tree(paths), root, library), expect, "{library}");
        };
        let plain = ["a/__init__.py", "a/b/__init__.py", "setup.py", "tests/__init__.py", "docs/conf.py"];
        check("a", "", &plain, &["a"]);
        let several =
            ["src/a/__init__.py", "src/one_more.py", "src/two.py", "src/test_one.py", "tools/__init__.py"];
        check("One.More", "src", &several, &["a", "one_more.py"]);
        check("a", "src", &several, &["a"]);
        check(
            "single",
            "",
            &["one.py", "two.py", "__init__.py", "__main__.py", "noxfile.py"],
            &["one.py", "two.py"],
        );
        check("a", "", &["a/__init__.py", "utils/__init__.py", "benchmarks/x/__init__.py"], &["a"]);
        check("utils", "", &["utils/__init__.py", "scripts/__init__.py"], &["utils"]);
        // A namespace that others share.
        let shared = ["google/auth/__init__.py", "google/auth/sub/__init__.py", "google/oauth2/__init__.py"];
        check("google-auth", "", &shared, &["google/auth", "google/oauth2"]);
    }
}
