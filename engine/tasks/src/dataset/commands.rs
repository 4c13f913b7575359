//! How the projects of published sets run their tests, where a row does not say it: by project, as the sets document it.

/// A project's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TestCommand {
    /// Before the test files.
    pub(super) command: &'static str,
    /// The reader of its output, by its name in `test-logs`.
    pub(super) parser: &'static str,
    /// What stands behind the command.
    pub(super) files: Files,
}

/// How test files are named to the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Files {
    /// By their paths.
    Paths,
    /// By the names of their modules below `tests/`.
    Modules,
    /// By the names of the cases that the test patch holds, behind `-k`.
    Cases,
}

const PYTEST: TestCommand =
    TestCommand { command: "pytest -rA", parser: "swebench-pytest", files: Files::Paths };
const NO_WORKERS: TestCommand = TestCommand { command: "pytest -n0 -rA", ..PYTEST };
const V2: TestCommand = TestCommand { parser: "swebench-pytest-v2", ..PYTEST };
const OPTIONS: TestCommand = TestCommand { parser: "swebench-pytest-options", ..PYTEST };

const TEST_COMMANDS: [(&str, TestCommand); 29] = [
    (
        "astropy/astropy",
        TestCommand { command: "pytest -rA -vv -o console_output_style=classic --tb=no", ..V2 },
    ),
    (
        "django/django",
        TestCommand {
            command: "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1",
            parser: "django",
            files: Files::Modules,
        },
    ),
    ("marshmallow-code/marshmallow", PYTEST),
    ("matplotlib/matplotlib", TestCommand { parser: "swebench-matplotlib", ..PYTEST }),
    (
        "mwaskom/seaborn",
        TestCommand { command: "pytest --no-header -rA", parser: "swebench-seaborn", files: Files::Paths },
    ),
    ("pallets/flask", PYTEST),
    ("psf/requests", OPTIONS),
    ("pvlib/pvlib-python", PYTEST),
    ("pydata/xarray", PYTEST),
    ("pydicom/pydicom", OPTIONS),
    ("pylint-dev/astroid", PYTEST),
    ("pylint-dev/pylint", OPTIONS),
    ("pytest-dev/pytest", PYTEST),
    ("pyvista/pyvista", PYTEST),
    ("scikit-learn/scikit-learn", V2),
    ("sphinx-doc/sphinx", TestCommand { command: "tox --current-env -epy39 -v --", ..V2 }),
    ("sqlfluff/sqlfluff", PYTEST),
    (
        "sympy/sympy",
        TestCommand {
            command: "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose",
            parser: "swebench-sympy",
            files: Files::Paths,
        },
    ),
    // SWE-Gym's.
    ("Project-MONAI/MONAI", PYTEST),
    ("bokeh/bokeh", NO_WORKERS),
    ("conan-io/conan", NO_WORKERS),
    ("dask/dask", TestCommand { command: "pytest -n0 -rA --color=no", ..PYTEST }),
    ("facebookresearch/hydra", PYTEST),
    ("getmoto/moto", NO_WORKERS),
    ("iterative/dvc", PYTEST),
    ("modin-project/modin", NO_WORKERS),
    ("pandas-dev/pandas", PYTEST),
    (
        "pydantic/pydantic",
        TestCommand {
            command: "pytest -rA --tb=short -vv -o console_output_style=classic --no-header",
            ..PYTEST
        },
    ),
    ("python/mypy", TestCommand { command: "pytest -n0 -rA -k", files: Files::Cases, ..PYTEST }),
];

/// The way of a project.
pub(super) fn way(repository: &str) -> Option<TestCommand> {
    let same = |(name, _): &&(&str, TestCommand)| name.eq_ignore_ascii_case(repository);
    TEST_COMMANDS.iter().find(same).map(|(_, way)| *way)
}

/// Names that data sets give readers, and ours.
const PARSERS: [(&str, &str); 31] = [
    ("parse_log_pytest", "swebench-pytest"),
    ("parse_log_pytest_options", "swebench-pytest-options"),
    ("parse_log_pytest_v2", "swebench-pytest-v2"),
    ("parse_log_matplotlib", "swebench-matplotlib"),
    ("parse_log_seaborn", "swebench-seaborn"),
    ("parse_log_sympy", "swebench-sympy"),
    ("parse_log_django", "django"),
    ("parse_log_astroid", "swebench-pytest"),
    ("parse_log_flask", "swebench-pytest"),
    ("parse_log_marshmallow", "swebench-pytest"),
    ("parse_log_pvlib", "swebench-pytest"),
    ("parse_log_pyvista", "swebench-pytest"),
    ("parse_log_sqlfluff", "swebench-pytest"),
    ("parse_log_xarray", "swebench-pytest"),
    ("parse_log_pydicom", "swebench-pytest-options"),
    ("parse_log_requests", "swebench-pytest-options"),
    ("parse_log_pylint", "swebench-pytest-options"),
    ("parse_log_astropy", "swebench-pytest-v2"),
    ("parse_log_scikit", "swebench-pytest-v2"),
    ("parse_log_sphinx", "swebench-pytest-v2"),
    ("parse_log_gotest", "swebench-go-test"),
    ("parse_log_cargo", "swebench-cargo-test"),
    ("parse_log_jest", "swebench-jest"),
    ("parse_log_vitest", "swebench-vitest"),
    ("parse_log_tap", "swebench-tap"),
    ("pytest", "pytest"),
    ("unittest", "unittest"),
    ("go-test", "go-test"),
    ("cargo-test", "cargo-test"),
    ("jest", "jest"),
    ("junit-xml", "junit-xml"),
];

/// Our reader of the name that a row gives, or what is known.
pub(super) fn parser(key: &str, name: &str) -> Result<&'static str, String> {
    let found = PARSERS.iter().find(|(known, _)| *known == name).map(|(_, ours)| *ours);
    found.ok_or_else(|| {
        let known: Vec<&str> = PARSERS.iter().map(|(known, _)| *known).collect();
        format!("invalid `{key}` {name:?}: expected one of {}", known.join(", "))
    })
}
