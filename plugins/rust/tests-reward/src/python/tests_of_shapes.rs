use super::*;
use crate::Settings;
use crate::hidden::{Names, Pytest};

/// One task: what lies in its working folder before the agent, and where modules are imported from.
struct Shape {
    name: &'static str,
    files: &'static [&'static str],
    roots: &'static [&'static str],
    /// More of `private`.
    private: &'static str,
    kept: &'static [&'static str],
    left_out: &'static [&'static str],
}

const SHAPES: [Shape; 10] = [
    Shape {
        name: "flat",
        files: &[
            "calc/__init__.py",
            "calc/core.py",
            "calc/rates.json",
            "pyproject.toml",
            "setup.py",
            "tests/test_calc.py",
            "tests/data.json",
        ],
        roots: &[""],
        private: r#""tests":{"files":{"tests/test_calc.py":""}}"#,
        kept: &[
            "calc/core.py",
            "calc/new/__init__.py",
            "calc/new.json",
            "calc/rates.json",
            "calc/json.py",
            "calc.py",
            "calc/setup.cfg",
        ],
        left_out: &[
            "tests/__init__.py",
            "tests/helper.py",
            "tests/data.json",
            "tests/sub/x",
            "tests",
            "conftest.py",
            "calc/conftest.py",
            "setup.cfg",
            "tox.ini",
            "tests/tox.ini",
            "pyproject.toml",
            "pytest.ini",
            "setup.py",
            "ipaddress.py",
            "bz2.py",
            "lzma.py",
            "pygments/__init__.py",
            "pygments.so",
            "anything.py",
            "README.md",
            "calc/test_more.py",
            "calc/more_test.py",
            "calc/__pycache__/core.cpython-311.pyc",
            "calc/core.pyc",
            "calc.egg-info/entry_points.txt",
            "calc-1.dist-info/METADATA",
            "sitecustomize.py",
            "x.pth",
            ".git/config",
            "calc/testing/x.py",
        ],
    },
    Shape {
        name: "src layout",
        files: &["src/calc/__init__.py", "src/calc/core.py", "setup.cfg", "tests/test_calc.py"],
        roots: &["src"],
        private: r#""tests":{"files":{"tests/test_calc.py":""}}"#,
        kept: &["src/calc/core.py", "src/calc/a/b.py", "src/calc/x.txt"],
        left_out: &[
            "calc/__init__.py",
            "src/bz2.py",
            "src/__init__.py",
            "src/lzma/__init__.py",
            "src/x.txt",
            "setup.cfg",
            "core.py",
        ],
    },
    Shape {
        name: "tests inside of the package",
        files: &[
            "calc/__init__.py",
            "calc/core.py",
            "calc/tests/__init__.py",
            "calc/tests/test_calc.py",
            "calc/tests/data/a.txt",
        ],
        roots: &[""],
        private: r#""tests":{"files":{"calc/tests/test_calc.py":""}}"#,
        kept: &["calc/core.py", "calc/new.py", "calc/__init__.py", "calc/new.json"],
        left_out: &[
            "calc/tests/__init__.py",
            "calc/tests/data/a.txt",
            "calc/tests/json.py",
            "calc/pytest.ini",
            "calc/setup.cfg",
            "calc/tests",
        ],
    },
    Shape {
        name: "unittest",
        files: &["calc/__init__.py", "calc/core.py", "testcalc.py"],
        roots: &[""],
        private: r#""tests":{"files":{"testcalc.py":""},"parser":"unittest","command":"python3 -m unittest -v"}"#,
        kept: &["calc/core.py", "calc/new.py"],
        left_out: &[
            "testcalc.py",
            "testmore.py",
            "calc/test.py",
            "unittest/__init__.py",
            "argparse.py",
            "load_tests.py",
        ],
    },
    Shape {
        name: "editable install of another folder",
        files: &["source/__init__.py", "source/core.py", "tests/test_calc.py"],
        roots: &["tests"],
        private: r#""tests":{"files":{"tests/test_calc.py":""},"modules":["extra"]}"#,
        kept: &["source/core.py", "source/new.py", "extra.py"],
        left_out: &["calc/__init__.py", "tests/extra.py", "other.py"],
    },
    Shape {
        name: "module beside its test",
        files: &["calc.py", "test_calc.py", "cases.json", "data/more.json"],
        roots: &[""],
        private: r#""tests":{"files":{"test_calc.py":""},"modules":["rates"]}"#,
        kept: &["calc.py", "calc/__init__.py", "calc/x.json", "rates.py", "rates/__init__.py"],
        left_out: &[
            "test_calc.py",
            "other.py",
            "cases.json",
            "data/more.json",
            "json.py",
            "conftest.py",
            "rates.json",
        ],
    },
    Shape {
        name: "modules beside tests in a package",
        files: &[
            "calc/__init__.py",
            "calc/core.py",
            "calc/test_core.py",
            "calc/cases/one.json",
            "calc/two.json",
            "calc/data/__init__.py",
            "calc/data/a.txt",
        ],
        roots: &[""],
        private: r#""tests":{"files":{"calc/test_core.py":""}}"#,
        kept: &[
            "calc/core.py",
            "calc/new.py",
            "calc/new.json",
            "calc/__init__.py",
            "calc/data/a.txt",
            "calc/cases/new.json",
        ],
        left_out: &[
            "calc/test_core.py",
            "calc/test_core.py/x",
            "calc/cases/one.json",
            "calc/two.json",
            "calc/test_new.py",
        ],
    },
    Shape {
        name: "tests in a package's folder that is not itself a package",
        files: &["calc/__init__.py", "calc/plug/one.py", "calc/plug/test_one.py"],
        roots: &[""],
        private: r#""tests":{"files":{"calc/plug/test_one.py":""}}"#,
        kept: &["calc/plug/one.py", "calc/plug/new.json", "calc/new/x.py"],
        left_out: &["calc/plug/__init__.py", "calc/plug/ipaddress.py", "calc/plug/bz2/__init__.py"],
    },
    Shape {
        name: "where `prepare` builds",
        files: &["src/calc/__init__.py", "setup.py", "ext/fast.c", "tests/test_calc.py"],
        roots: &["src"],
        private: r#""tests":{"files":{"tests/test_calc.py":""},"prepare":"pip install ."}"#,
        kept: &["src/calc/core.py", "src/calc/_fast.cpython-311-x86_64-linux-gnu.so", "src/calc/version.py"],
        left_out: &["tox.ini", "conftest.py", "tests/setup.cfg/x", "ipaddress.py"],
    },
    Shape {
        name: "a reference that touches what is not a module",
        files: &["calc/__init__.py", "calc/testing/api.py", "tests/test_calc.py"],
        roots: &[""],
        private: r#""reference":{"patch":"--- a/calc/testing/api.py\n+++ b/calc/testing/api.py\n--- /dev/null\n+++ b/extra/new.py\n--- a/tox.ini\n+++ b/tox.ini\n--- a/tests/test_calc.py\n+++ b/tests/test_calc.py\n"},"tests":{"files":{"tests/test_calc.py":""}}"#,
        kept: &["calc/testing/api.py", "extra/new.py"],
        left_out: &["extra/other.py", "tox.ini", "tests/test_calc.py", "calc/testing/other.py"],
    },
];

fn rules(shape: &Shape) -> PythonRules {
    let mut private: serde_json::Value = serde_json::from_str(&format!("{{{}}}", shape.private)).unwrap();
    for (key, value) in [("command", "python3 -m pytest"), ("parser", "pytest")] {
        private["tests"].as_object_mut().unwrap().entry(key).or_insert(value.into());
    }
    private["tests"]["fail_to_pass"] = serde_json::json!(["a"]);
    let job = Job::read(Some(&private.to_string()), &Settings::default()).unwrap();
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let mut side = HiddenSide {
        workdir: "/w".to_owned(),
        files: words(shape.files).into_iter().collect(),
        roots: words(shape.roots),
        imported: words(&["calc", "json", "pytest"]).into_iter().collect(),
        ..HiddenSide::default()
    };
    side.mapped.insert("calc".to_owned(), vec!["source".to_owned()]);
    side.mapped.retain(|_, places| side.files.iter().any(|file| file.starts_with(&places[0])));
    PythonRules::new(&job, side)
}

fn action(rules: &PythonRules, path: &str, change: Change<'_>) -> ChangeAction {
    rules.action(Change { path: format!("/w/{path}").as_bytes(), ..change })
}

#[test]
fn in_every_shape_of_task_the_librarys_own_modules_count_and_nothing_else() {
    for shape in &SHAPES {
        let rules = rules(shape);
        for path in shape.kept {
            assert_eq!(action(&rules, path, Change::default()), ChangeAction::Kept, "{}: {path}", shape.name);
        }
        for path in shape.left_out {
            assert_eq!(
                action(&rules, path, Change::default()),
                ChangeAction::LeftOut,
                "{}: {path}",
                shape.name
            );
        }
        let folder = Change { folder: true, ..Change::default() };
        assert_eq!(rules.action(Change { path: b"/w", ..folder }), ChangeAction::Kept);
        assert_eq!(rules.action(Change { path: b"/etc/x", ..folder }), ChangeAction::LeftOut);
        assert_eq!(rules.action(Change { path: b"/w2/calc/core.py", ..folder }), ChangeAction::LeftOut);
    }
}

#[track_caller]
fn of(name: &str) -> PythonRules {
    rules(SHAPES.iter().find(|shape| shape.name == name).unwrap())
}

#[test]
fn folders_of_tests_under_any_name_are_left_out_with_all_below_them() {
    let files = [
        "calc/__init__.py",
        "calc/core.py",
        "calc/suite/__init__.py",
        "calc/suite/test_b.py",
        "calc/suite/util.py",
        "unit_tests/__init__.py",
        "unit_tests/deep/util.py",
        "unit_tests/test_a.py",
        "verify/given.py",
    ];
    let uses = [
        ("unit_tests/test_a.py", "calc"),
        ("calc/suite/test_b.py", "calc.core"),
        ("verify/given.py", "calc"),
    ];
    let names = |name: &str| Names { imported: vec![name.to_owned()], quoted: Vec::new() };
    let side = HiddenSide {
        files: files.iter().map(|file| (*file).to_owned()).collect(),
        workdir: "/w".to_owned(),
        roots: vec![String::new()],
        uses: uses.iter().map(|(path, name)| ((*path).to_owned(), names(name))).collect(),
        ..HiddenSide::default()
    };
    let private = |more: &str| {
        format!(
            r#"{{"tests":{{"command":"x","parser":"pytest","fail_to_pass":["a"],"files":{{"verify/given.py":""}}}}{more}}}"#
        )
    };
    let rules = |more: &str| {
        PythonRules::new(&Job::read(Some(&private(more)), &Settings::default()).unwrap(), side.clone())
    };
    let check = |rules: &PythonRules, kept: &[&str], left_out: &[&str]| {
        for path in kept {
            assert_eq!(action(rules, path, Change::default()), ChangeAction::Kept, "{path}");
        }
        for path in left_out {
            assert_eq!(action(rules, path, Change::default()), ChangeAction::LeftOut, "{path}");
        }
    };
    check(
        &rules(""),
        // What lies in the library's package goes by its files.
        &["calc/core.py", "calc/__init__.py", "calc/suite/util.py", "calc/suite/new.py"],
        &[
            "unit_tests/__init__.py",
            "unit_tests/deep/util.py",
            "unit_tests/deep/util/__init__.py",
            "unit_tests/new.py",
            "unit_tests/data.json",
            "unit_tests",
            "verify/new.py",
            "calc/suite/__init__.py",
        ],
    );
    let folder = Change { folder: true, ..Change::default() };
    assert_eq!(action(&rules(""), "unit_tests/new", folder), ChangeAction::LeftOut);
    let removed = Change { removed: true, ..Change::default() };
    assert_eq!(action(&rules(""), "unit_tests", removed), ChangeAction::LeftOut);
    // The reference is about part of it.
    let touched =
        r#","reference":{"patch":"--- a/unit_tests/deep/util.py\n+++ b/unit_tests/deep/util.py\n"}"#;
    check(&rules(touched), &["unit_tests/deep/util.py", "unit_tests/deep/new.py"], &["unit_tests/test_a.py"]);
}

#[test]
fn what_is_removed_goes_without_what_belongs_to_the_tests() {
    let removed = Change { removed: true, ..Change::default() };
    let only =
        |files: &[&str]| ChangeAction::OnlyRemoved(files.iter().map(|file| (*file).to_owned()).collect());
    let inside = of("tests inside of the package");
    // The package stays one: otherwise its folder would be searched for modules.
    assert_eq!(action(&inside, "calc", removed), only(&["calc/core.py"]));
    for path in ["calc/__init__.py", "calc/tests", "calc/tests/data", "calc/tests/__init__.py"] {
        assert_eq!(action(&inside, path, removed), ChangeAction::LeftOut, "{path}");
    }
    assert_eq!(action(&inside, "calc/core.py", removed), ChangeAction::Kept);
    let src = of("src layout");
    assert_eq!(action(&src, "src", removed), only(&["src/calc/__init__.py", "src/calc/core.py"]));
    assert_eq!(action(&src, "src/calc", removed), ChangeAction::Kept);
    for path in ["tests", "setup.cfg"] {
        assert_eq!(action(&src, path, removed), ChangeAction::LeftOut, "{path}");
    }
    assert_eq!(
        action(&of("modules beside tests in a package"), "calc/cases", removed),
        ChangeAction::LeftOut
    );
}

#[test]
fn links_and_folders_in_the_place_of_files_are_told_apart() {
    let link = Change { link: true, ..Change::default() };
    let folder = Change { folder: true, ..Change::default() };
    let inside = of("tests inside of the package");
    for (change, path, expect) in [
        (link, "calc/core.py", ChangeAction::Kept),
        (link, "calc/__init__.py", ChangeAction::LeftOut),
        (link, "calc", ChangeAction::LeftOut),
        (link, "calc/tests", ChangeAction::LeftOut),
        (folder, "calc/__init__.py", ChangeAction::LeftOut),
        (folder, "calc/new", ChangeAction::Kept),
        (folder, "calc/tests", ChangeAction::LeftOut),
        (folder, "other", ChangeAction::LeftOut),
    ] {
        assert_eq!(action(&inside, path, change), expect, "{path}");
    }
    let beside = of("modules beside tests in a package");
    assert_eq!(action(&beside, "calc/test_core.py", folder), ChangeAction::LeftOut);
    assert_eq!(action(&of("src layout"), "src", folder), ChangeAction::Kept);
    // A link to a folder is a package of the name.
    let plug = of("tests in a package's folder that is not itself a package");
    assert_eq!(action(&plug, "calc/plug/bz2", link), ChangeAction::LeftOut);
    assert_eq!(action(&plug, "calc/bz2", link), ChangeAction::Kept);
    let named = of("a reference that touches what is not a module");
    assert_eq!(action(&named, "extra", folder), ChangeAction::Kept);
}

#[test]
fn files_to_build_by_count_for_prepare_alone() {
    for path in ["setup.py", "pyproject.toml", "setup.cfg", "ext/fast.c", "ext/new.pyx", "MANIFEST.in"] {
        assert_eq!(
            action(&of("where `prepare` builds"), path, Change::default()),
            ChangeAction::KeptForPrepare,
            "{path}"
        );
        assert_eq!(action(&of("src layout"), path, Change::default()), ChangeAction::LeftOut, "{path}");
    }
}

#[test]
fn a_library_that_the_runner_needs_is_told() {
    let mut rules = of("flat");
    assert_eq!(rules.runner_needs(), None);
    rules.side.needed = ["pluggy", "calc"].map(str::to_owned).into();
    assert_eq!(rules.runner_needs(), Some("calc"));
}

#[test]
fn patterns_of_test_files_are_pytests() {
    for (pattern, path, expect) in [
        ("test_*.py", "a/test_b.py", true),
        ("test_*.py", "a/xtest_b.py", false),
        ("check_?.py", "check_1.py", true),
        ("[tc]*_it.py", "c_it.py", true),
        ("[!tc]*_it.py", "c_it.py", false),
        ("[a-c]x.py", "bx.py", true),
        ("[x", "[x", true),
        ("unit/*.py", "a/unit/b.py", true),
        ("unit/*.py", "b.py", false),
        ("*.py", "b.txt", false),
    ] {
        assert_eq!(matches(&[pattern.to_owned()], path), expect, "{pattern} {path}");
    }
    let side = HiddenSide {
        files: BTreeSet::from(["calc/__init__.py".to_owned(), "calc/check_a.py".to_owned()]),
        workdir: "/w".to_owned(),
        roots: vec![String::new()],
        pytest: Some(Pytest { python_files: vec!["check_*.py".to_owned()], ..Pytest::default() }),
        ..HiddenSide::default()
    };
    let private = r#"{"tests":{"command":"x","parser":"pytest","fail_to_pass":["a"]}}"#;
    let rules = PythonRules::new(&Job::read(Some(private), &Settings::default()).unwrap(), side);
    assert_eq!(action(&rules, "calc/check_b.py", Change::default()), ChangeAction::LeftOut);
    assert_eq!(action(&rules, "calc/test_b.py", Change::default()), ChangeAction::Kept);
}
