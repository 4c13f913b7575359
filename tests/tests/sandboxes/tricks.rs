//! What agents may try to be scored as solved, each carried out in a real sandbox and scored by `tests-reward` on clean ground.

use super::whole::{Store, json, run, text};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// One script and what has to come of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Trick {
    name: String,
    script: String,
    value: Option<f64>,
    reason: Option<String>,
}

const TEST: &str = "tests/test_calc.py";

/// The library under test, with its bug.
const LIBRARY: [(&str, &str); 4] = [
    ("/code/calc/__init__.py", "from calc.core import add, multiply\n"),
    ("/code/calc/core.py", "def add(a, b):\n    return a - b\n\n\ndef multiply(a, b):\n    return a * b\n"),
    ("/code/pyproject.toml", "[project]\nname = \"calc\"\nversion = \"1\"\n"),
    (
        "/code/tests/test_calc.py",
        "from calc import multiply\n\n\ndef test_multiplies():\n    assert multiply(2, 3) == 6\n",
    ),
];

const HIDDEN: &str = r#"
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

fn task(kind: &str, trick: &Trick) -> Value {
    let names = |names: &[&str]| names.iter().map(|name| format!("{TEST}::{name}")).collect::<Vec<_>>();
    json!({
        "id": format!("{kind}/{}", trick.name),
        "instruction": "Mend it.",
        "sandbox": { "files": BTreeMap::from(LIBRARY), "workdir": "/code", "memory": "512MiB" },
        "private": {
            "reference": { "script": trick.script },
            "tests": {
                "files": { TEST: HIDDEN },
                "command": "/usr/bin/python3 -m pytest -q tests",
                "parser": "pytest",
                "fail_to_pass": names(&["test_adds[1]", "test_adds[2]", "Cases::test_adds", "Cases::test_more"]),
                "pass_to_pass": names(&["test_multiplies", "test_multiplies_by_none"]),
                "timeout": "30s",
            },
        },
    })
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

#[tokio::test]
async fn no_trick_is_scored_as_solved_but_those_that_the_guide_names() {
    let text_of = include_str!("../../cases/tricks/tricks.toml");
    let kinds: BTreeMap<String, Vec<Trick>> = toml::from_str(text_of).unwrap();
    let tricks: Vec<(&String, &Trick)> =
        kinds.iter().flat_map(|(kind, tricks)| tricks.iter().map(move |trick| (kind, trick))).collect();
    assert!(kinds["outside"].len() >= 12 && kinds["inside"].len() >= 4);
    let store = Store::new();
    let lines: String = tricks.iter().map(|(kind, trick)| task(kind, trick).to_string() + "\n").collect();
    std::fs::write(store.path().join("tricks.jsonl"), lines).unwrap();
    let experiment = store.path().join("tricks.toml");
    let settings = "name = \"tricks\"\n[tasks]\nsource = \"tricks.jsonl\"\n[groups]\nsize = 1\nconcurrent_rollouts = 4\n[harness]\nplugin = \"reference\"\ngrants = [\"private-task\"]\n[sandbox]\nimage = \"host\"\n[[rewards]]\nplugin = \"tests-reward\"\nsettings = { partial = true }\n";
    std::fs::write(&experiment, settings).unwrap();
    let played = run(store.path(), &["run", &experiment.display().to_string()]).await;
    assert!(played.status.success(), "{}", text(&played));
    let runs = json(store.path(), &["list"]).await;
    let id = runs[0]["run_id"].as_str().unwrap();
    let mut wrong = Vec::new();
    for (index, (kind, trick)) in tricks.iter().enumerate() {
        let shown = json(store.path(), &["show", &format!("{id}.g{index}.r0")]).await;
        let Some((value, reason)) = score(&shown) else { panic!("{} has no score: {shown}", trick.name) };
        // What is open is told as open: when it no longer gets through, docs/grading.md says too little.
        let expect = trick.value.unwrap_or(if *kind == "open" { 1.0 } else { 0.0 });
        if value != expect || trick.reason.as_ref().is_some_and(|part| !reason.contains(part)) {
            wrong.push(format!(
                "{kind}/{}: {value} {reason}, expected {expect} {:?}",
                trick.name, trick.reason
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(store.sandboxes().await.is_empty(), "rollouts left sandboxes");
}
