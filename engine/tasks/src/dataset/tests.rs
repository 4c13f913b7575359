use super::*;
use espalier_core::task::{Reference, Task};
use serde_json::json;
use std::collections::BTreeMap;

const PATCH: &str = "diff --git a/lib/a.py b/lib/a.py\n--- a/lib/a.py\n+++ b/lib/a.py\n@@ -1 +1 @@\n-a\n+b\n";
const TEST_PATCH: &str = "diff --git a/tests/x/test_a.py b/tests/x/test_a.py\n--- a/tests/x/test_a.py\n+++ b/tests/x/test_a.py\n@@ -1 +1,2 @@\n a\n+b\ndiff --git a/tests/data.json b/tests/data.json\n--- /dev/null\n+++ b/tests/data.json\n@@ -0,0 +1 @@\n+{}\n";

/// A row in SWE-bench's published form: lists as JSON texts.
fn row() -> Value {
    json!({
        "repo": "psf/requests",
        "instance_id": "psf__requests-1963",
        "base_commit": "110048f9837f8441ea536804115e80b69f400277",
        "patch": PATCH,
        "test_patch": TEST_PATCH,
        "problem_statement": "It fails.\n\nAlways.",
        "hints_text": "",
        "created_at": "2014-03-15T13:40:03Z",
        "version": "2.3",
        "FAIL_TO_PASS": "[\"tests/x/test_a.py::test_a\"]",
        "PASS_TO_PASS": "[]",
        "environment_setup_commit": "110048f9837f8441ea536804115e80b69f400277",
    })
}

fn with(changes: &[(&str, Value)]) -> Value {
    let mut row = row();
    for (key, value) in changes {
        row[*key] = value.clone();
    }
    row
}

fn one(format: Format, row: &Value) -> Result<Value, String> {
    let text = row.to_string();
    let mut read: Vec<_> = read(format, &text, &RowOptions::default()).collect();
    assert_eq!(read.len(), 1);
    read.remove(0).map(|line| serde_json::from_str(&line).unwrap()).map_err(|error| error.to_string())
}

#[test]
fn a_row_of_swe_bench_is_a_task() {
    let task = one(Format::SweBench, &row()).unwrap();
    assert_eq!(task["sandbox"]["image"], "swebench/sweb.eval.x86_64.psf_1776_requests-1963:latest");
    assert_eq!(task["sandbox"]["workdir"], "/testbed");
    assert_eq!(task["instruction"], "It fails.\n\nAlways.");
    assert_eq!(task["tags"], json!(["swe-bench", "psf/requests"]));
    let tests = &task["private"]["tests"];
    assert_eq!(
        tests["command"],
        "source /opt/miniconda3/bin/activate && conda activate testbed\npytest -rA tests/x/test_a.py"
    );
    assert_eq!(tests["parser"], "swebench-pytest-options");
    assert_eq!(tests["patch"], TEST_PATCH);
    assert_eq!(tests["reset"], json!(["tests/data.json", "tests/x/test_a.py"]));
    assert_eq!(tests["fail_to_pass"], json!(["tests/x/test_a.py::test_a"]));
    let parsed = Task::parse(&task.to_string()).unwrap();
    assert_eq!(parsed.reference().unwrap(), Some(Reference::Patch(PATCH.to_owned())));
    let shown = serde_json::to_string(&parsed.view(false)).unwrap();
    assert!(!shown.contains("test_a") && !shown.contains("lib/a.py"), "{shown}");
}

#[test]
fn each_project_is_tested_its_own_way() {
    let command = |repository: &str| {
        let task = one(Format::SweBench, &with(&[("repo", json!(repository))])).unwrap();
        let tests = &task["private"]["tests"];
        let command = tests["command"].as_str().unwrap().lines().last().unwrap().to_owned();
        (command, tests["parser"].as_str().unwrap().to_owned())
    };
    let check = |repository: &str, line: &str, parser: &str| {
        assert_eq!(command(repository), (line.to_owned(), parser.to_owned()));
    };
    check(
        "django/django",
        "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1 x.test_a",
        "django",
    );
    check("sphinx-doc/sphinx", "tox --current-env -epy39 -v -- tests/x/test_a.py", "swebench-pytest-v2");
    check("Project-Monai/MONAI", "pytest -rA tests/x/test_a.py", "swebench-pytest");
    let mypy = format!("{TEST_PATCH}+[case testOne]\n [case testTwo-xfail]\n");
    let row = with(&[("repo", json!("python/mypy")), ("test_patch", json!(mypy))]);
    let task = one(Format::SweGym, &row).unwrap();
    let line = task["private"]["tests"]["command"].as_str().unwrap().lines().last().unwrap();
    assert_eq!(line, "pytest -n0 -rA -k \"testOne or testTwo-xfail\"");
    assert_eq!(task["sandbox"]["image"], "xingyaoww/sweb.eval.x86_64.psf_s_requests-1963:latest");
}

#[test]
fn rows_that_bring_their_script_are_run_by_it() {
    let script = "#!/bin/bash\ncd /testbed\n: '>>>>> Start Test Output'\ngo test -v ./...\n: '>>>>> End Test Output'\n";
    let row = with(&[
        ("repo", json!("caddyserver/caddy")),
        ("eval_script", json!(script)),
        ("log_parser", json!("parse_log_gotest")),
        ("eval_type", json!("pass_and_fail")),
        ("image", json!("example.org/caddy:1")),
    ]);
    let task = one(Format::SweBench, &row).unwrap();
    let tests = &task["private"]["tests"];
    assert!(tests["command"].as_str().unwrap().starts_with("set -uxo pipefail\ncd /testbed\n"));
    assert_eq!((&tests["parser"], tests.get("patch")), (&json!("swebench-go-test"), None));
    assert_eq!(task["sandbox"]["image"], "example.org/caddy:1");
}

#[test]
fn both_versions_of_swe_rebench() {
    let config = json!({ "test_cmd": "pytest -rA --tb=line", "log_parser": "parse_log_pytest", "install": "pip install -e ." });
    let first =
        with(&[("install_config", config), ("docker_image", json!("swerebench/sweb.eval.x86_64.a:latest"))]);
    let task = one(Format::SweRebench, &first).unwrap();
    assert_eq!(task["sandbox"]["image"], "swerebench/sweb.eval.x86_64.a:latest");
    assert!(
        task["private"]["tests"]["command"]
            .as_str()
            .unwrap()
            .ends_with("\npytest -rA --tb=line tests/x/test_a.py")
    );
    let second = with(&[
        ("FAIL_TO_PASS", json!(["TestA"])),
        ("PASS_TO_PASS", json!(["TestB", "TestC"])),
        ("language", json!("go")),
        ("image_name", json!("docker.io/swerebenchv2/requests:1")),
        ("interface", Value::Null),
        (
            "install_config",
            json!({ "test_cmd": ["go build ./...", "go test -v ./..."], "log_parser": "parse_log_gotest" }),
        ),
    ]);
    let task = one(Format::SweRebenchV2, &second).unwrap();
    assert_eq!(
        task["sandbox"],
        json!({ "image": "docker.io/swerebenchv2/requests:1", "workdir": "/requests" })
    );
    assert_eq!(task["private"]["tests"]["command"], "go build ./...\ngo test -v ./...");
    assert_eq!(task["data"]["language"], "go");
}

#[test]
fn broken_rows_name_record_key_and_value() {
    let check = |key: &str, value: Value, expect: &str| {
        let error = one(Format::SweBench, &with(&[(key, value)])).unwrap_err();
        assert_eq!(error, format!("record 1 (psf__requests-1963): {expect}"));
    };
    check(
        "FAIL_TO_PASS",
        json!("tests/a"),
        "invalid `FAIL_TO_PASS` \"tests/a\": expected a list of test names, or the JSON text of one",
    );
    check(
        "FAIL_TO_PASS",
        json!([1]),
        "invalid `FAIL_TO_PASS` [1]: expected a list of test names, or the JSON text of one",
    );
    check("FAIL_TO_PASS", json!("[]"), "`FAIL_TO_PASS` and `PASS_TO_PASS` are both empty");
    check("PASS_TO_PASS", Value::Null, "`PASS_TO_PASS` is missing");
    check("patch", json!("no diff"), "invalid `patch` \"no diff\": expected a diff");
    check("patch", json!(""), "`patch` is missing");
    check("base_commit", json!("main"), "invalid `base_commit` \"main\": expected the hash of a commit");
    check("repo", json!("requests"), "invalid `repo` \"requests\": expected OWNER/NAME");
    check("problem_statement", json!(7), "invalid `problem_statement` 7: expected a text");
    check("eval_script", json!("pytest"), "`eval_script` does not mark the start of the test output");
    let unknown = one(Format::SweBench, &with(&[("repo", json!("a/b"))])).unwrap_err();
    assert!(unknown.contains("no known test command for `repo` \"a/b\""), "{unknown}");
    let config = with(&[("install_config", json!({ "test_cmd": 3, "log_parser": "x" }))]);
    let error = one(Format::SweRebench, &config).unwrap_err();
    assert!(
        error.ends_with("`install_config`: invalid `test_cmd` 3: expected a command or a list of them"),
        "{error}"
    );
    let config = with(&[("install_config", json!({ "test_cmd": "x", "log_parser": "parse_log_new" }))]);
    let error = one(Format::SweRebench, &config).unwrap_err();
    assert!(
        error.contains("invalid `log_parser` \"parse_log_new\": expected one of parse_log_pytest, "),
        "{error}"
    );
    let error = one(Format::SweRebenchV2, &row()).unwrap_err();
    assert!(error.ends_with("`image_name` is missing"), "{error}");
    let control = with(&[("instance_id", json!("a\u{7}"))]);
    assert!(one(Format::SweBench, &control).unwrap_err().contains("it is not a valid task: id"));
}

#[test]
fn lines_and_arrays_reject_single_records() {
    let (good, options) = (row().to_string(), RowOptions::default());
    let read = |text: &str| -> Vec<Option<String>> {
        read(Format::SweBench, text, &options).map(|read| read.err().map(|error| error.to_string())).collect()
    };
    let lines = read(&format!("\u{feff}{good}\n\n{{\"instance_id\": \"x\"\n3\n{good}\n"));
    assert_eq!(lines.len(), 4);
    assert_eq!((&lines[0], &lines[3]), (&None, &None));
    assert!(lines[1].as_ref().unwrap().starts_with("record 3: not valid JSON: "), "{lines:?}");
    assert_eq!(lines[2].as_deref(), Some("record 4: expected an object, found 3"));
    let array = read(&format!(" [{good}, {{\"instance_id\": \"x\"}}, {good}]"));
    assert_eq!(array, [None, Some("record 2 (x): `repo` is missing".to_owned()), None]);
    assert!(read("[{").remove(0).unwrap().starts_with("record 1: not a JSON array: "));
}

#[test]
fn what_the_user_says_goes_over_what_the_row_says() {
    let options = RowOptions {
        image: Some("mirror.example.org/{id}:v2".to_owned()),
        command: Some("nox -s tests -- {files}".to_owned()),
        parser: Some("pytest".to_owned()),
        guard: true,
    };
    let text = with(&[("repo", json!("a/b"))]).to_string();
    let line = read(Format::SweBench, &text, &options).next().unwrap().unwrap();
    let task: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(task["sandbox"]["image"], "mirror.example.org/psf_1776_requests-1963:v2");
    let tests = &task["private"]["tests"];
    assert_eq!(
        (&tests["command"], &tests["parser"], &tests["guard"]),
        (&json!("nox -s tests -- tests/x/test_a.py"), &json!("pytest"), &json!(true))
    );
}

/// A folder in Harbor's published form.
fn folder(changes: &[(&str, Option<&[u8]>)]) -> BTreeMap<String, Vec<u8>> {
    let config = "version = \"1.0\"\n[metadata]\nauthor_name = \"A\"\ndifficulty = \"easy\"\ncategory = \"programming\"\ntags = [\"files\"]\n[verifier]\ntimeout_sec = 120.0\nenv = { KEY = \"it's\" }\n[agent]\ntimeout_sec = 300.0\n[environment]\nbuild_timeout_sec = 600.0\ndocker_image = \"example.org/hello:1\"\ncpus = 2\nmemory_mb = 2048\nstorage = \"10G\"\n";
    let mut files: BTreeMap<String, Vec<u8>> = [
        ("task.toml", config),
        ("instruction.md", "Make `hello.txt`.\n"),
        ("environment/Dockerfile", "FROM debian:12\nWORKDIR /app\n"),
        ("tests/test.sh", "echo 1 > /logs/verifier/reward.txt\n"),
        ("solution/solve.sh", "echo hello > hello.txt\n"),
    ]
    .map(|(path, text)| (path.to_owned(), text.as_bytes().to_vec()))
    .into();
    files.insert("tests/data/x.bin".to_owned(), vec![0, 255]);
    for (path, content) in changes {
        match content {
            Some(content) => drop(files.insert((*path).to_owned(), content.to_vec())),
            None => drop(files.remove(*path)),
        }
    }
    files
}

#[test]
fn a_folder_of_harbor_is_a_task() {
    let line = harbor_task("hello", &folder(&[]), &HarborOptions::default()).unwrap();
    let task: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(
        task["sandbox"],
        json!({ "image": "example.org/hello:1", "workdir": "/app", "cpu": 2.0, "memory": "2048MiB", "disk": "10GiB" })
    );
    assert_eq!(task["tags"], json!(["harbor", "files", "easy", "programming"]));
    assert_eq!(task["limits"], json!({ "rollout_wall": "300s" }));
    let tests = &task["private"]["tests"];
    assert_eq!(
        *tests,
        json!({
            "files": { "/tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n", "/tests/data/x.bin": { "base64": "AP8=" } },
            "command": "export KEY='it'\\''s'\nmkdir -p /logs/verifier\nbash /tests/test.sh",
            "score_files": ["/logs/verifier/reward.json", "/logs/verifier/reward.txt"],
            "timeout": "120s",
            "in": "place",
        })
    );
    let script = task["private"]["reference"]["script"].as_str().unwrap();
    assert!(
        script.contains("base64 -d > '/solution/solve.sh'") && script.ends_with("bash /solution/solve.sh\n"),
        "{script}"
    );
}

#[test]
fn broken_folders_name_file_key_and_value() {
    let check = |changes: &[(&str, Option<&[u8]>)], expect: &str| {
        let error =
            harbor_task("hello", &folder(changes), &HarborOptions::default()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("record 1 (hello): {expect}")), "{error}");
    };
    check(&[("task.toml", None)], "`task.toml` is missing");
    check(&[("task.toml", Some(b"a = "))], "`task.toml`: ");
    check(&[("instruction.md", Some(b" \n"))], "`instruction.md` is empty");
    check(&[("instruction.md", Some(b"\xff"))], "`instruction.md` is not UTF-8");
    check(&[("tests/test.sh", None)], "`tests/test.sh` is missing");
    check(&[("task.toml", Some(b"[environment]\n"))], "`task.toml`: `environment.docker_image` is missing");
    let image = "[environment]\ndocker_image = \"a\"\n";
    let config =
        |more: &str, expect: &str| check(&[("task.toml", Some(format!("{image}{more}").as_bytes()))], expect);
    config("cpus = -1\n", "`task.toml`: invalid `environment.cpus` -1: expected a number above 0");
    config(
        "memory = \"much\"\n",
        "`task.toml`: invalid `environment.memory` \"much\": expected a size such as \"4G\"",
    );
    config(
        "[verifier]\ntimeout_sec = \"2m\"\n",
        "`task.toml`: invalid `verifier.timeout_sec` \"2m\": expected a number above 0",
    );
    config(
        "[metadata]\ntags = \"a\"\n",
        "`task.toml`: invalid `metadata.tags` \"a\": expected a list of texts",
    );
    check(
        &[("task.toml", Some(b"environment = 3"))],
        "`task.toml`: invalid `environment` 3: expected a table",
    );
    let options = HarborOptions { image: Some("built-{id}".to_owned()) };
    let made =
        harbor_task("hello", &folder(&[("task.toml", Some(b"")), ("solution/solve.sh", None)]), &options)
            .unwrap();
    assert!(made.contains("\"built-hello\"") && !made.contains("reference"), "{made}");
}
