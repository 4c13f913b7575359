use super::*;
use crate::hidden::Names;

/// One tree: its files with the modules that each speaks of, texts in quotes behind a bar.
struct Tree {
    name: &'static str,
    files: &'static [(&'static str, &'static str)],
    roots: &'static [&'static str],
    named: &'static [&'static str],
    modules: &'static [&'static str],
    whole: &'static [&'static str],
    packages: &'static [&'static str],
}

const PLAIN: Tree =
    Tree { name: "", files: &[], roots: &[""], named: &[], modules: &[], whole: &[], packages: &[] };
const CALC: (&str, &str) = ("calc/__init__.py", "calc.core");
const CORE: (&str, &str) = ("calc/core.py", "");

const TREES: &[Tree] = &[
    Tree {
        name: "tests beside a library",
        files: &[CALC, CORE, ("unit_tests/test_a.py", "calc util"), ("unit_tests/util.py", "")],
        whole: &["unit_tests"],
        ..PLAIN
    },
    Tree {
        name: "a package of tests with more helpers than tests",
        files: &[
            CALC,
            CORE,
            ("checks/__init__.py", ""),
            ("checks/test_a.py", "checks.a"),
            ("checks/a.py", ".b"),
            ("checks/b.py", "calc.core.add"),
        ],
        whole: &["checks"],
        ..PLAIN
    },
    Tree {
        name: "tests below, helpers above",
        files: &[
            CALC,
            CORE,
            ("t/__init__.py", ""),
            ("t/unit/__init__.py", ""),
            ("t/unit/test_a.py", "..util calc"),
            ("t/util.py", ""),
        ],
        whole: &["t"],
        ..PLAIN
    },
    Tree {
        name: "a library that is started as a program",
        files: &[CALC, CORE, ("spec/test_a.py", "subprocess|calc")],
        whole: &["spec"],
        ..PLAIN
    },
    Tree {
        name: "another name, where each test uses the library",
        files: &[
            CALC,
            CORE,
            ("verify/test_a.py", "calc"),
            ("verify/test_b.py", "calc tool"),
            ("verify/tool.py", ""),
        ],
        whole: &["verify"],
        ..PLAIN
    },
    Tree {
        name: "folders of tests that use one another's helpers",
        files: &[
            CALC,
            CORE,
            ("a_test/test_a.py", "calc"),
            ("a_test/util.py", ""),
            ("b_test/test_b.py", "calc b_util"),
            ("b_test/b_util.py", "a_test.util"),
        ],
        whole: &["a_test", "b_test"],
        ..PLAIN
    },
    Tree {
        name: "a program at the top that runs them",
        files: &[
            CALC,
            CORE,
            ("run.py", "unit_tests.util"),
            ("unit_tests/test_a.py", "calc"),
            ("unit_tests/util.py", ""),
        ],
        whole: &["unit_tests"],
        ..PLAIN
    },
    Tree {
        name: "a runner that is started in the folder",
        files: &[("src/calc/__init__.py", ""), ("unit_tests/test_a.py", "calc")],
        roots: &["unit_tests"],
        whole: &["unit_tests"],
        ..PLAIN
    },
    Tree {
        name: "a name of the task's, elsewhere",
        files: &[CALC, CORE, ("unit_tests/test_a.py", "calc")],
        roots: &["", "unit_tests"],
        modules: &["calc"],
        whole: &["unit_tests"],
        ..PLAIN
    },
    Tree {
        name: "a library that is yet to be written",
        files: &[("unit_tests/test_a.py", "calc.new util"), ("unit_tests/util.py", "")],
        modules: &["calc"],
        whole: &["unit_tests"],
        ..PLAIN
    },
    // What is none.
    Tree { name: "tests at the top", files: &[("calc.py", ""), ("test_a.py", "calc")], ..PLAIN },
    Tree {
        name: "a library with its tests",
        files: &[CALC, CORE, ("calc/test_core.py", ".core calc")],
        ..PLAIN
    },
    Tree {
        name: "a library whose name speaks of tests",
        files: &[("spec/__init__.py", ""), ("spec/core.py", ""), ("spec/test_core.py", "spec.core")],
        ..PLAIN
    },
    Tree {
        name: "part of the library, which others use",
        files: &[
            CALC,
            ("check/__init__.py", ""),
            ("check/a.py", ""),
            ("check/test_a.py", "check.a calc"),
            ("calc/core.py", "check.a"),
        ],
        ..PLAIN
    },
    Tree {
        name: "part of the library, which others name in a text",
        files: &[
            ("site/urls.py", "|suite.urls"),
            ("suite/urls.py", ""),
            ("suite/test_a.py", "suite.urls calc"),
            CALC,
            CORE,
        ],
        ..PLAIN
    },
    Tree {
        name: "an application that nobody imports",
        files: &[
            CALC,
            CORE,
            ("app/__init__.py", ""),
            ("app/main.py", "calc"),
            ("app/test_main.py", "app.main calc"),
        ],
        ..PLAIN
    },
    Tree {
        name: "tests beside what they test",
        files: &[
            CALC,
            CORE,
            ("app/a.py", ""),
            ("app/test_a.py", "a"),
            ("app/test_b.py", "calc"),
            ("app/test_c.py", "calc"),
        ],
        ..PLAIN
    },
    Tree {
        name: "many tests in a folder of the library",
        files: &[
            CALC,
            CORE,
            ("more/__init__.py", ""),
            ("calc/unit_tests/test_a.py", "calc more"),
            ("calc/unit_tests/test_b.py", "calc more"),
            ("calc/unit_tests/test_c.py", "more"),
        ],
        ..PLAIN
    },
    Tree {
        name: "what the reference touches",
        files: &[
            CALC,
            CORE,
            ("unit_tests/test_a.py", "calc"),
            ("unit_tests/tool/x.py", ""),
            ("unit_tests/deep/test_b.py", "calc"),
        ],
        named: &["unit_tests/tool/x.py"],
        whole: &["unit_tests/deep"],
        ..PLAIN
    },
    Tree {
        name: "what the task names",
        files: &[CALC, CORE, ("unit_tests/__init__.py", ""), ("unit_tests/test_a.py", "calc")],
        modules: &["unit_tests.plugin"],
        ..PLAIN
    },
    Tree {
        name: "where modules are imported from",
        files: &[("source/calc.py", ""), ("source/test_calc.py", "calc other"), ("other/__init__.py", "")],
        roots: &["source", ""],
        ..PLAIN
    },
    Tree {
        name: "packages inside of the library",
        files: &[
            CALC,
            CORE,
            ("calc/checks/__init__.py", ""),
            ("calc/checks/test_a.py", "calc.core .util"),
            ("calc/checks/util.py", ""),
            ("calc/plug/__init__.py", ""),
            ("calc/plug/one.py", ""),
            ("calc/plug/test_one.py", "calc.plug.one calc.core"),
        ],
        packages: &["calc/checks"],
        ..PLAIN
    },
];

#[test]
fn folders_of_tests_are_told_by_what_their_code_uses() {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let split = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    for tree in TREES {
        let mut side =
            HiddenSide { workdir: "/w".to_owned(), roots: words(tree.roots), ..HiddenSide::default() };
        for (path, names) in tree.files {
            let (imported, quoted) = names.split_once('|').unwrap_or((names, ""));
            side.files.insert((*path).to_owned());
            side.uses.insert((*path).to_owned(), Names { imported: split(imported), quoted: split(quoted) });
        }
        let tests = tree.files.iter().filter(|(path, _)| name_of(path).starts_with("test_"));
        let known = Known {
            tests: tests.map(|(path, _)| (*path).to_owned()).collect(),
            named: words(tree.named).into_iter().collect(),
            modules: words(tree.modules),
        };
        let found = TestFolders::new(&side, &known);
        let expect = |paths: &[&str]| words(paths).into_iter().collect::<BTreeSet<_>>();
        assert_eq!(found.whole, expect(tree.whole), "{}", tree.name);
        assert_eq!(found.packages, expect(tree.packages), "{}", tree.name);
    }
}

#[test]
fn folders_of_known_names_are_always_of_tests() {
    let folders = TestFolders { whole: BTreeSet::from(["unit".to_owned()]), ..TestFolders::default() };
    for (folder, expect) in
        [("tests", true), ("a/testing/b", true), ("unit/x", true), ("units", false), ("", false)]
    {
        assert_eq!(folders.has(folder), expect, "{folder}");
    }
}
