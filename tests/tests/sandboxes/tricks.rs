//! What agents may try to be scored as solved, each carried out in a real sandbox and scored by `tests-reward` on clean ground.

use super::whole::{Store, json, run_for, text};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// One script and what has to come of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Trick {
    name: String,
    script: String,
    value: Option<f64>,
    reason: Option<String>,
    /// Tasks in which it runs. None: all of them, or some in turn.
    shapes: Option<Vec<String>>,
}

/// One task.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Shape {
    library: String,
    tests: String,
    files: BTreeMap<String, String>,
    #[serde(default)]
    imports: String,
    #[serde(default)]
    hidden: String,
    #[serde(default = "test_calc")]
    hidden_name: String,
    #[serde(default = "pytest")]
    command: String,
    #[serde(default = "kind")]
    parser: String,
    /// What the tests' `check` comes from, and how it is imported.
    helper: Option<String>,
    #[serde(default)]
    checked_by: String,
    prepare: Option<String>,
    setup: Option<String>,
}

fn test_calc() -> String {
    "test_calc.py".to_owned()
}

fn pytest() -> String {
    "/usr/bin/python3 -m pytest -q tests".to_owned()
}

fn kind() -> String {
    "pytest".to_owned()
}

const CORE: &str = "def add(a, b):\n    return a - b\n\n\ndef multiply(a, b):\n    return a * b\n";
const OLD_TEST: &str =
    "from calc import multiply\n\n\ndef test_multiplies():\n    assert multiply(2, 3) == 6\n";

const PYTEST: &str = r#"
import unittest
import pytest
from calc import add, multiply

@pytest.mark.parametrize("a", [1, 2])
def test_adds(a):
    assert add(a, 2) == a + 2

class Cases(unittest.TestCase):
    def test_adds(self):
        self.assertEqual(add(1, 4), 5)

    def test_more(self):
        self.assertEqual(add(5, 4), 9)

def test_multiplies():
    assert multiply(2, 3) == 6

def test_multiplies_by_none():
    assert multiply(2, 0) == 0
"#;

const UNITTEST: &str = r#"
import unittest
from calc import add, multiply

class Cases(unittest.TestCase):
    def test_adds_1(self):
        self.assertEqual(add(1, 4), 5)

    def test_adds_2(self):
        self.assertEqual(add(2, 4), 6)

    def test_adds_3(self):
        self.assertEqual(add(3, 4), 7)

    def test_more(self):
        self.assertEqual(add(5, 4), 9)

    def test_multiplies(self):
        self.assertEqual(multiply(2, 3), 6)

    def test_multiplies_by_none(self):
        self.assertEqual(multiply(2, 0), 0)
"#;

const DATA: &str = r#"
import json, os
from calc import add, multiply

with open(os.path.join(os.path.dirname(__file__), "cases.json")) as file:
    CASES = json.load(file)

def check(number):
    a, b, sum = CASES[number]
    assert add(a, b) == sum

def test_first(): check(0)
def test_second(): check(1)
def test_both(): check(0); check(1)
def test_none(): check(0); assert len(CASES) == 2

def test_multiplies():
    assert multiply(2, 3) == 6

def test_multiplies_by_none():
    assert multiply(2, 0) == 0
"#;

const HELPED: &str = r#"
import pytest
from calc import add, multiply

@pytest.mark.parametrize("a", [1, 2])
def test_adds(a):
    check(add, a, 2)

def test_first(): check(add, 1, 4)
def test_more(): check(add, 5, 4)

def test_multiplies():
    assert multiply(2, 3) == 6

def test_multiplies_by_none():
    assert multiply(2, 0) == 0
"#;

const HELPER: &str = "def check(add, a, b):\n    assert add(a, b) == a + b\n";

impl Shape {
    /// The library's main file, the folder in which its modules lie, and the one that they are imported from.
    fn places(&self) -> (String, String, String) {
        let root = self.library.rsplit_once('/').map_or(".", |(root, _)| root).to_owned();
        match self.library.strip_suffix(".py") {
            Some(folder) => (self.library.clone(), folder.to_owned(), root),
            None => (format!("{}/core.py", self.library), self.library.clone(), root),
        }
    }

    fn hidden(&self) -> (String, String, [&'static str; 6]) {
        let path = if self.tests == "." {
            self.hidden_name.clone()
        } else {
            format!("{}/{}", self.tests, self.hidden_name)
        };
        let (text, names) = match &*self.hidden {
            "unittest" => (
                UNITTEST,
                [
                    "test_adds_1",
                    "test_adds_2",
                    "test_adds_3",
                    "test_more",
                    "test_multiplies",
                    "test_multiplies_by_none",
                ],
            ),
            "helped" => (
                HELPED,
                [
                    "test_adds[1]",
                    "test_adds[2]",
                    "test_first",
                    "test_more",
                    "test_multiplies",
                    "test_multiplies_by_none",
                ],
            ),
            "data" => (
                DATA,
                [
                    "test_first",
                    "test_second",
                    "test_both",
                    "test_none",
                    "test_multiplies",
                    "test_multiplies_by_none",
                ],
            ),
            _ => (
                PYTEST,
                [
                    "test_adds[1]",
                    "test_adds[2]",
                    "Cases::test_adds",
                    "Cases::test_more",
                    "test_multiplies",
                    "test_multiplies_by_none",
                ],
            ),
        };
        (path, format!("{}\n{text}", self.checked_by), names)
    }

    fn task(&self, id: &str, trick: &Trick) -> Value {
        let (core, folder, root) = self.places();
        let (path, hidden, names) = self.hidden();
        let inner =
            |path: &str| if path.starts_with('/') { path.to_owned() } else { format!("/code/{path}") };
        let mut files: BTreeMap<String, String> =
            self.files.iter().map(|(path, text)| (inner(path), text.clone())).collect();
        files.insert(inner(&core), self.imports.clone() + CORE);
        if self.library == folder {
            files.insert(
                inner(&format!("{folder}/__init__.py")),
                "from calc.core import add, multiply\n".to_owned(),
            );
        }
        files.insert(inner(&path), OLD_TEST.to_owned());
        let helper = self.helper.as_deref().unwrap_or_default();
        if !helper.is_empty() {
            files.entry(inner(helper)).or_insert_with(|| HELPER.to_owned());
        }
        let names = names.map(|name| match &*self.hidden {
            "unittest" => format!("tests.test_calc.Cases.{name}"),
            _ => format!("{path}::{name}"),
        });
        let mut sandbox = json!({ "files": files, "workdir": "/code", "memory": "512MiB" });
        if let Some(setup) = &self.setup {
            sandbox["setup"] = Value::from(setup.as_str());
        }
        let mut tests = json!({
            "files": { path: hidden },
            "command": self.command,
            "parser": self.parser,
            "fail_to_pass": names[..4],
            "pass_to_pass": names[4..],
            "timeout": "30s",
        });
        if let Some(prepare) = &self.prepare {
            tests["prepare"] = Value::from(prepare.as_str());
        }
        let variables =
            format!("CORE={core} LIB={folder} ROOT={root} TESTS={} HELPER={helper}\n", self.tests);
        json!({
            "id": id,
            "instruction": "Mend it.",
            "sandbox": sandbox,
            "private": { "reference": { "script": variables + &trick.script }, "tests": tests },
        })
    }
}

/// The score of a rollout and its reason.
fn score(shown: &Value) -> Option<(f64, String)> {
    match shown {
        Value::Object(map) => {
            let here = || Some((map.get("value")?.as_f64()?, map.get("reason")?.as_str()?.to_owned()));
            here().or_else(|| map.values().find_map(score))
        }
        Value::Array(items) => items.iter().find_map(score),
        _ => None,
    }
}

/// The whole run.
const PATIENCE: Duration = Duration::from_secs(3600);
/// How many of the tasks a script tries that could be tried in all.
const TRIED: usize = 2;

#[tokio::test]
async fn no_trick_is_scored_as_solved_but_those_that_the_guide_names() {
    let kinds: BTreeMap<String, Vec<Trick>> =
        toml::from_str(include_str!("../../cases/tricks/tricks.toml")).unwrap();
    let shapes: BTreeMap<String, Shape> =
        toml::from_str(include_str!("../../cases/tricks/shapes.toml")).unwrap();
    assert!(kinds["outside"].len() >= 60 && kinds["inside"].len() >= 4 && shapes.len() >= 16);
    // All of them take a quarter of an hour and more: `ESPALIER_TRICKS=all`, or a part of their names.
    let selected = std::env::var("ESPALIER_TRICKS").unwrap_or_default();
    let mut tasks = Vec::new();
    for (kind, tricks) in &kinds {
        for (number, trick) in tricks.iter().enumerate() {
            let in_turn = |place: usize| (number + place) % shapes.len() < TRIED || selected == "all";
            let wanted = |(place, shape): &(usize, &String)| match &trick.shapes {
                Some(names) => names.contains(shape),
                None => match &**kind {
                    "honest" => true,
                    "outside" => in_turn(*place) || !selected.is_empty(),
                    _ => *shape == "flat",
                },
            };
            for (_, name) in shapes.keys().enumerate().filter(wanted) {
                let id = format!("{kind}/{}/{name}", trick.name);
                if selected.is_empty() || selected == "all" || id.contains(&selected) {
                    tasks.push((id, kind, trick, &shapes[name]));
                }
            }
        }
    }
    let store = Store::new();
    let lines: String =
        tasks.iter().map(|(id, _, trick, shape)| shape.task(id, trick).to_string() + "\n").collect();
    std::fs::write(store.path().join("tricks.jsonl"), lines).unwrap();
    let experiment = store.path().join("tricks.toml");
    let settings = "name = \"tricks\"\n[tasks]\nsource = \"tricks.jsonl\"\n[groups]\nsize = 1\nconcurrent_rollouts = 4\n[harness]\nplugin = \"reference\"\ngrants = [\"private-task\"]\n[sandbox]\nimage = \"host\"\n[[rewards]]\nplugin = \"tests-reward\"\nsettings = { partial = true }\n";
    std::fs::write(&experiment, settings).unwrap();
    let played = run_for(store.path(), &["run", &experiment.display().to_string()], PATIENCE).await;
    let runs = json(store.path(), &["list"]).await;
    let id = runs[0]["run_id"].as_str().unwrap_or_else(|| panic!("{}", text(&played)));
    let mut wrong = Vec::new();
    for (index, (name, kind, trick, _)) in tasks.iter().enumerate() {
        let shown = json(store.path(), &["show", &format!("{id}.g{index}.r0")]).await;
        let Some((value, reason)) = score(&shown) else {
            wrong.push(format!("{name} has no score: {shown}"));
            continue;
        };
        // What is open is told as open: when it no longer gets through, docs/grading.md says too little.
        let expect = trick.value.unwrap_or(if *kind == "open" { 1.0 } else { 0.0 });
        if value != expect || trick.reason.as_ref().is_some_and(|part| !reason.contains(part)) {
            wrong.push(format!("{name}: {value} {reason}, expected {expect} {:?}", trick.reason));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), tasks.len(), wrong.join("\n"));
    assert!(played.status.success(), "{}", text(&played));
    assert!(store.sandboxes().await.is_empty(), "rollouts left sandboxes");
}

#[tokio::test]
async fn tasks_in_which_no_work_could_decide_are_broken_and_not_scored() {
    let shapes: BTreeMap<String, Shape> = toml::from_str(
        r#"
        [runner]
        library = "calc"
        tests = "tests"
        files = { "calc/plugin.py" = "", "setup.cfg" = "[tool:pytest]\naddopts = -p calc.plugin\n" }

        [elsewhere]
        library = "src/calc"
        tests = "tests"
        files = { "/usr/lib/python3/dist-packages/calc.py" = "def add(a, b): return 0\ndef multiply(a, b): return a * b\n" }

        [silent]
        library = "calc"
        tests = "tests"
        command = "echo nothing to run"
        files = {}
        "#,
    )
    .unwrap();
    let idle =
        Trick { name: String::new(), script: "true".to_owned(), value: None, reason: None, shapes: None };
    let store = Store::new();
    let lines: String =
        shapes.iter().map(|(name, shape)| shape.task(name, &idle).to_string() + "\n").collect();
    std::fs::write(store.path().join("broken.jsonl"), lines).unwrap();
    let experiment = store.path().join("broken.toml");
    let settings = "name = \"broken\"\n[tasks]\nsource = \"broken.jsonl\"\n[groups]\nsize = 1\nmin_size = 1\nreplacements = 0\nattempts = 1\n[harness]\nplugin = \"reference\"\ngrants = [\"private-task\"]\n[sandbox]\nimage = \"host\"\n[[rewards]]\nplugin = \"tests-reward\"\n";
    std::fs::write(&experiment, settings).unwrap();
    run_for(store.path(), &["run", &experiment.display().to_string()], PATIENCE).await;
    let runs = json(store.path(), &["list"]).await;
    let id = runs[0]["run_id"].as_str().unwrap();
    for (index, (name, expect)) in [
        ("elsewhere", "the tests import `calc` from /usr/lib/python3/dist-packages/calc.py, which changes in /code do not affect"),
        ("runner", "the library under test is `calc`, which pytest itself needs"),
        ("silent", "does not start pytest once, as the guard needs: nothing to run"),
    ]
    .into_iter()
    .enumerate()
    {
        let shown = json(store.path(), &["show", &format!("{id}.g{index}.r0")]).await;
        assert!(score(&shown).is_none(), "{name}: {shown}");
        assert!(shown.to_string().contains(expect), "{name}: {shown}");
    }
}
