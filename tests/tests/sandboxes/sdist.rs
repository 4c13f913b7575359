//! Tasks out of source archives, made by the real program, and looked through for what they keep private.

use super::whole::{Store, run, text};
use espalier_tests::place::{espalier, repository};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

const OLD: &[(&str, &str)] = &[
    ("PKG-INFO", "Metadata-Version: 2.1\nName: calc\nVersion: 1.0\n"),
    ("calc/__init__.py", "def add(a, b):\n    return a - b\n\n\ndef multiply(a, b):\n    return a * b\n"),
    (
        "tests/test_calc.py",
        "from calc import multiply\n\n\ndef test_multiplies():\n    assert multiply(2, 3) == 6\n",
    ),
    ("tests/test_gone.py", "def test_that_was_removed():\n    assert False\n"),
];

const NEW: &[(&str, &str)] = &[
    ("PKG-INFO", "Metadata-Version: 2.1\nName: calc\nVersion: 1.1\n"),
    (
        "CHANGES.md",
        "# Changes\n\n## 1.1\n\n- `add` adds again, and takes three numbers.\n\n## 1.0\n\n- first\n",
    ),
    (
        "calc/__init__.py",
        "def add(a, b, third_number_of_the_sum=0):\n    return a + b + third_number_of_the_sum\n\n\ndef multiply(a, b):\n    return a * b\n",
    ),
    (
        "tests/test_calc.py",
        "import importlib.metadata\n\nfrom calc import add, multiply\n\n\ndef test_multiplies():\n    assert multiply(2, 3) == 6\n\n\n\
         def test_adds_three_numbers_in_a_row():\n    assert add(100, 20, 3) == 123\n\n\ndef test_subtraction_is_gone():\n    assert add(2, 2) == 4\n\n\n\
         def test_is_installed():\n    assert importlib.metadata.version('calc') == '1.0'\n",
    ),
];

fn archive(folder: &Path, version: &str, files: &[(&str, &str)]) -> PathBuf {
    let top = format!("calc-{version}");
    for (path, content) in files {
        let path = folder.join(&top).join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    let file = folder.join(format!("{top}.tar.gz"));
    let packed = Command::new("tar").arg("-C").arg(folder).arg("-czf").arg(&file).arg(&top).status().unwrap();
    assert!(packed.success());
    file
}

/// The command, with a cache of its own: what was measured before does not count.
async fn from_sdist(store: &Store, arguments: &[&str]) -> std::process::Output {
    let mut command = espalier(store.path());
    command.current_dir(repository()).env("ESPALIER_CACHE", store.path().join("cache"));
    command.args(["task", "from-sdist"]).args(arguments).arg("--system-packages");
    command.output().await.unwrap()
}

fn experiment(store: &Store, name: &str, tasks: &[Value], more: &str) -> String {
    let lines: String = tasks.iter().map(|task| format!("{task}\n")).collect();
    std::fs::write(store.path().join(format!("{name}.jsonl")), lines).unwrap();
    let file = store.path().join(format!("{name}.toml"));
    let text = format!(
        "name = \"{name}\"\n[tasks]\nsource = \"{name}.jsonl\"\n[groups]\nsize = 1\nmin_size = 1\nreplacements = 0\nattempts = 1\n\
         [sandbox]\nmemory = \"512MiB\"\n[[rewards]]\nplugin = \"tests-reward\"\n[harness]\n{more}"
    );
    std::fs::write(&file, text).unwrap();
    file.display().to_string()
}

#[tokio::test]
async fn two_archives_make_a_task_that_gives_nothing_away() {
    let store = Store::new();
    let (old, new) = (archive(store.path(), "1.0", OLD), archive(store.path(), "1.1", NEW));
    let (old, new) = (old.display().to_string(), new.display().to_string());
    let out = store.path().join("tasks.jsonl").display().to_string();
    let made = from_sdist(&store, &["calc", &old, &new, "--out", &out]).await;
    assert!(made.status.success(), "{}", text(&made));
    let task: Value = serde_json::from_str(&std::fs::read_to_string(&out).unwrap()).unwrap();
    assert!(task["instruction"].as_str().unwrap().contains("of version 1.1 holds:"), "{task:#}");
    let tests = &task["private"]["tests"];
    let named = |names: &[&str]| {
        json!(names.iter().map(|name| format!("tests/test_calc.py::{name}")).collect::<Vec<_>>())
    };
    assert_eq!(
        tests["fail_to_pass"],
        named(&["test_adds_three_numbers_in_a_row", "test_subtraction_is_gone"])
    );
    // Of the package, `importlib.metadata` knows what the archive said of it.
    assert_eq!(tests["pass_to_pass"], named(&["test_is_installed", "test_multiplies"]));
    // Found before: nothing runs again.
    let again = from_sdist(&store, &["calc", &old, &new]).await;
    assert_eq!(serde_json::from_slice::<Value>(&again.stdout).unwrap(), task, "{}", text(&again));
    let refused = from_sdist(&store, &["calc", &new, &old]).await;
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused));
    assert!(text(&refused).contains("makes no task: 1.1 is not older than 1.0"), "{}", text(&refused));
    // Without a changelog a person has to say what is wanted.
    let silent: Vec<(&str, &str)> = NEW.iter().filter(|(path, _)| *path != "CHANGES.md").copied().collect();
    let silent = archive(&store.path().join("silent"), "1.1", &silent).display().to_string();
    let nameless = archive(&store.path().join("nameless"), "1.0", &OLD[1..]).display().to_string();
    for (arguments, code, expect) in [
        (["calc", &old, &silent], 1, "hint: use --instruction FILE to write the instruction yourself"),
        (["calc", &nameless, &new], 1, "it has no PKG-INFO, which would give its version"),
        (["calc", &old, "latest"], 2, "\"latest\" is neither a version nor a source archive (.tar.gz)"),
        (["../calc", &old, &new], 2, "invalid package name \"../calc\""),
    ] {
        let said = from_sdist(&store, &arguments).await;
        assert_eq!(said.status.code(), Some(code), "{}", text(&said));
        assert!(text(&said).contains(expect), "{}", text(&said));
    }
    let manifest = store.path().join("set.toml").display().to_string();
    let set = "requires = []\n[[library]]\nname = \"calc\"\npairs = [[\"1.0\", \"1.1\"]]\n";
    std::fs::write(&manifest, set).unwrap();
    let unknown =
        run(store.path(), &["task", "from-manifest", &manifest, "--out", &out, "--only", "calc-1.0"]).await;
    assert_eq!(unknown.status.code(), Some(2), "{}", text(&unknown));
    assert!(text(&unknown).contains("hint: it has calc-1.1"), "{}", text(&unknown));

    let reference = "plugin = \"reference\"\ngrants = [\"private-task\"]\n";
    let checked = run(
        store.path(),
        &["task", "check", &experiment(&store, "calc", std::slice::from_ref(&task), reference)],
    )
    .await;
    assert!(checked.status.success(), "{}", text(&checked));

    // The machine's own folders are looked through in experiments/swe-leaks.toml.
    let search = "plugin = \"leak-search\"\ngrants = [\"private-task\"]\n\
                  settings = { folders = [\"/code\", \"/opt\", \"/etc\", \"/var\", \"/tmp\", \"/root\", \"/run\", \"/home\", \"/usr/lib/python3\"] }\n";
    let clean =
        run(store.path(), &["run", &experiment(&store, "clean", std::slice::from_ref(&task), search)]).await;
    assert!(clean.status.success(), "{}", text(&clean));

    // What a search would miss, it would miss here: each of these lies where the last one looked.
    let hidden = tests["files"]["tests/test_calc.py"].as_str().unwrap();
    let patch = task["private"]["reference"]["patch"].as_str().unwrap();
    let with = |id: &str, key: &str, value: Value| {
        let mut leaky = task.clone();
        leaky["id"] = Value::from(id);
        leaky["sandbox"][key] = value;
        leaky
    };
    let mut told = task.clone();
    told["id"] = Value::from("told");
    told["instruction"] = Value::from(format!("Do this: {hidden}"));
    let leaky = [
        with("hidden tests", "files", json!({ "/var/cache/pip/x": hidden })),
        with(
            "patch",
            "files",
            json!({ "/root/.hidden/solution": format!("echo\n{}", patch.replace("\n+", "\n")) }),
        ),
        with("environment", "env", json!({ "SOLUTION": patch })),
        told,
    ];
    let found = run(store.path(), &["run", &experiment(&store, "leaky", &leaky, search)]).await;
    assert!(!found.status.success(), "{}", text(&found));
    for (index, place) in [
        "/var/cache/pip/x, line",
        "/root/.hidden/solution, line",
        "the environment of its processes",
        "what a harness is shown",
    ]
    .iter()
    .enumerate()
    {
        let shown = text(&run(store.path(), &["show", &format!("leaky.g{index}.r0")]).await);
        // Long lines are broken.
        let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(shown.contains(&format!("private text of the task is in {place}")), "{place}: {shown}");
    }
    assert!(store.sandboxes().await.is_empty(), "rollouts left sandboxes");
}
