//! From a file of rows in SWE-bench's form to scored rollouts, and on to predictions that SWE-bench takes. The image of the one
//! instance is made here.

use crate::whole::{Store, json, run, text};
use espalier_scripted::{Options, Scripted, by_text};
use serde_json::{Value, json as value};
use std::path::Path;
use std::process::Output;

const REPOSITORY: &str = r#"mkdir -p /testbed/calc /testbed/tests && cd /testbed && touch calc/__init__.py
printf 'def add(a, b):\n    return a - b\n\n\ndef multiply(a, b):\n    return a * b\n' > calc/core.py
printf 'from calc.core import multiply\n\n\ndef test_multiply():\n    assert multiply(2, 3) == 6\n' > tests/test_core.py
echo old > calc/old.txt; echo echo hi > run.sh; printf 'last line' > NOTES; echo 1 > '.hidden file'; ln -s NOTES latest
mkdir -p calc/gone/deep calc/gone/__pycache__; echo 1 > calc/gone/a.py; echo 2 > calc/gone/deep/b.py; ln -s a.py calc/gone/link
echo 3 > calc/gone/__pycache__/a.pyc; echo was > calc/kind"#;

const TEST_PATCH: &str = "diff --git a/tests/test_core.py b/tests/test_core.py
--- a/tests/test_core.py
+++ b/tests/test_core.py
@@ -1,5 +1,9 @@
-from calc.core import multiply
+from calc.core import add, multiply
 
 
 def test_multiply():
     assert multiply(2, 3) == 6
+
+
+def test_add():
+    assert add(2, 3) == 5
";

/// Every kind of change; binary files, and what tools leave behind.
const WORK: &str = r"sed -i 's/a - b/a + b/' calc/core.py; rm calc/old.txt latest; ln -s run.sh latest; chmod +x run.sh; \
printf 'first\nlast line\n' > NOTES; printf 'x' > 'new file.txt'; printf '\0' > data.bin; mkdir -p .pytest_cache; touch .pytest_cache/v; \
sed -i s/6/7/ tests/test_core.py; rm -r calc/gone calc/kind; mkdir calc/kind; echo is > calc/kind/new.txt";

fn row(patch: &str) -> String {
    let row = value!({
        "repo": "example/calc",
        "instance_id": "example__calc-1",
        "base_commit": "110048f9837f8441ea536804115e80b69f400277",
        "patch": patch,
        "test_patch": TEST_PATCH,
        "problem_statement": "Adding subtracts.",
        "hints_text": "",
        "created_at": "2026-01-01T00:00:00Z",
        "version": "1.0",
        "FAIL_TO_PASS": "[\"tests/test_core.py::test_add\"]",
        "PASS_TO_PASS": "[\"tests/test_core.py::test_multiply\"]",
    });
    row.to_string() + "\n"
}

fn done(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(output));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Writes `tasks.jsonl` of a row.
async fn import(store: &Path, image: &str, patch: &str) -> String {
    let (rows, tasks) = (store.join("rows.jsonl"), store.join("tasks.jsonl"));
    std::fs::write(&rows, row(patch)).unwrap();
    let (rows, tasks) = (rows.display().to_string(), tasks.display().to_string());
    let command = "python3 -m pytest -rA {files}";
    let fixed =
        ["task", "import", "swe-bench", &rows, "--out", &tasks, "--image", image, "--command", command];
    done(&run(store, &[&fixed[..], &["--parser", "swebench-pytest"]].concat()).await);
    tasks
}

#[tokio::test]
async fn a_row_becomes_a_rollout_and_a_rollout_a_prediction() {
    let answer = |prompt: &str| match prompt.matches("<returncode>").count() {
        0 => format!("I repair it.\n```sh\n{WORK}\n```"),
        _ => "```sh\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```".to_owned(),
    };
    let scripted = Scripted::start(Options::new(by_text(answer))).await.unwrap();
    let store = Store::new();
    let id = done(&run(store.path(), &["sandbox", "create"]).await);
    done(&run(store.path(), &["sandbox", "exec", &id, "--", "bash", "-c", REPOSITORY]).await);
    let kept = done(&run(store.path(), &["sandbox", "checkpoint", &id]).await);
    done(&run(store.path(), &["sandbox", "delete", &id]).await);
    let image = format!("checkpoint:{kept}");
    let tasks = import(store.path(), &image, "--- a/NOTES\n+++ b/NOTES\n").await;

    let sets = [
        format!("tasks.source={tasks}"),
        "groups.size=2".to_owned(),
        "models.policy.kind=llama-cpp".to_owned(),
        format!("models.policy.url={}", scripted.url()),
        "harness.settings.mode=fenced".to_owned(),
        "harness.settings.fence=sh".to_owned(),
    ];
    let mut arguments = vec!["run", "experiments/swe-bench.toml"];
    sets.iter().for_each(|set| arguments.extend(["--set", set]));
    done(&run(store.path(), &arguments).await);
    let runs = json(store.path(), &["list"]).await;
    assert_eq!((runs[0]["scored"].as_u64(), runs[0]["solved"].as_u64()), (Some(2), Some(2)), "{runs:#}");

    // What SWE-bench takes.
    let out = store.path().join("predictions");
    let export = ["export", "swe-bench", "--format", "swebench-predictions", "--out"];
    done(&run(store.path(), &[&export[..], &[&out.display().to_string()]].concat()).await);
    let read = |name: &str| -> Value {
        let lines = std::fs::read_to_string(out.join(name)).unwrap();
        assert_eq!(lines.lines().count(), 1, "{lines}");
        serde_json::from_str(&lines).unwrap()
    };
    let (first, second) = (read("swe-bench.jsonl"), read("swe-bench-r1.jsonl"));
    assert_eq!(first["instance_id"], "example__calc-1");
    assert_eq!(first["model_name_or_path"], "swe-bench");
    assert_eq!(second["model_name_or_path"], "swe-bench-r1");
    let patch = first["model_patch"].as_str().unwrap();
    assert_eq!(first["model_patch"], second["model_patch"]);
    let named: Vec<&str> = patch.lines().filter_map(|line| line.strip_prefix("diff --git ")).collect();
    let expect = [
        "a/NOTES b/NOTES",
        "a/calc/core.py b/calc/core.py",
        "a/calc/gone/a.py b/calc/gone/a.py",
        "a/calc/gone/deep/b.py b/calc/gone/deep/b.py",
        "a/calc/gone/link b/calc/gone/link",
        "a/calc/kind b/calc/kind",
        "a/calc/kind/new.txt b/calc/kind/new.txt",
        "a/calc/old.txt b/calc/old.txt",
        "a/latest b/latest",
        "a/new file.txt b/new file.txt",
        "a/run.sh b/run.sh",
        "a/tests/test_core.py b/tests/test_core.py",
    ];
    assert_eq!(named, expect, "{patch}");
    assert_eq!(patch.matches("\ndeleted file mode ").count(), 5, "{patch}");
    let loaded = std::process::Command::new(xtask::graders::referee_python())
        .args(["tests/graders/predictions.py"])
        .arg(out.join("swe-bench.jsonl"))
        .current_dir(espalier_tests::place::repository())
        .output()
        .unwrap();
    assert_eq!(done(&loaded), "example__calc-1 swe-bench", "{}", text(&loaded));
    let shown =
        done(&run(store.path(), &["show", &format!("{}.g0.r0", runs[0]["run_id"].as_str().unwrap())]).await);
    assert!(shown.contains("not in the patch: data.bin is binary"), "{shown}");

    // The prediction is a solution: carried out as a reference it scores full.
    import(store.path(), &image, patch).await;
    let experiment = "name = \"again\"\n[tasks]\nsource = \"tasks.jsonl\"\n[groups]\nsize = 1\n[harness]\nplugin = \"reference\"\n\
                      grants = [\"private-task\"]\n[[rewards]]\nplugin = \"tests-reward\"\n";
    std::fs::write(store.path().join("again.toml"), experiment).unwrap();
    done(&run(store.path(), &["run", &store.path().join("again.toml").display().to_string()]).await);
    let again = json(store.path(), &["show", "again"]).await;
    assert_eq!(again["solved"], 1, "{again:#}");
    let missing =
        run(store.path(), &["export", "again", "--format", "swebench-predictions", "--out", "-"]).await;
    assert!(text(&missing).contains("1 rollout left out because it has no patch"), "{}", text(&missing));
    assert!(store.sandboxes().await.is_empty());
}
