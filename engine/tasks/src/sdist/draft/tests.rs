use super::*;

fn release(version: &str, files: &[(&str, &str)]) -> Release {
    let file = |text: &str| SourceFile { bytes: text.into(), executable: false };
    let tree = files.iter().map(|(path, text)| ((*path).to_owned(), file(text))).collect();
    Release { version: Version::parse(version).unwrap(), tree }
}

const OLD: &[(&str, &str)] = &[
    ("calc/__init__.py", "def add(a, b):\n    return a - b\n"),
    ("tests/test_calc.py", "import calc\n"),
    ("tests/old/test_gone.py", ""),
    ("PKG-INFO", "Name: calc\nVersion: 1.0\n"),
    ("calc.egg-info/entry_points.txt", "[x]\n"),
    ("README.md", "calc"),
];
const NEW: &[(&str, &str)] = &[
    ("calc/__init__.py", "def add(a, b):\n    return a + b\n"),
    ("tests/test_calc.py", "import calc\n\ndef test_add(): assert calc.add(1, 2) == 3\n"),
    ("CHANGES.md", "## 1.1\n\n- `add` adds\n\n## 1.0\n"),
    ("README.md", "calc, better"),
];

#[test]
fn a_draft_keeps_apart_what_belongs_to_whom() {
    let draft =
        Draft::new("calc", &release("1.0", OLD), &release("1.1", NEW), &DraftOptions::default()).unwrap();
    assert_eq!(draft.id, "calc-1.1");
    assert!(draft.instruction.contains("as of version 1.0. Change it so"), "{}", draft.instruction);
    assert!(draft.instruction.contains("of version 1.1 holds:\n\n- `add` adds\n\n"), "{}", draft.instruction);
    let start: Vec<&str> = draft.start.keys().map(String::as_str).collect();
    assert_eq!(start, ["README.md", "calc/__init__.py", "tests/old/test_gone.py", "tests/test_calc.py"]);
    assert_eq!(draft.installed.keys().collect::<Vec<_>>(), ["METADATA", "entry_points.txt"]);
    assert_eq!(
        draft.patch,
        "diff --git a/calc/__init__.py b/calc/__init__.py\n--- a/calc/__init__.py\n+++ b/calc/__init__.py\n@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a - b\n+    return a + b\n"
    );
    let mut expected = Expected { fail_to_pass: vec!["t::a".to_owned()], ..Expected::default() };
    let refused = draft.task("host", &expected).unwrap_err().to_string();
    assert_eq!(refused, "no test passes before the change (1 pass after it)");
    expected.pass_to_pass = vec!["t::b".to_owned()];
    let line = draft.task("oci:/images/calc:latest", &expected).unwrap();
    let task: Value = serde_json::from_str(&line).unwrap();
    let tests = &task["private"]["tests"];
    assert_eq!(tests["files"].as_object().unwrap().keys().collect::<Vec<_>>(), ["tests/test_calc.py"]);
    assert_eq!((&tests["prepare"], &tests["reset"]), (&json!("rm -rf -- tests"), &json!(["tests/"])));
    assert_eq!(tests["modules"], json!(["calc"]));
    assert!(tests["command"].as_str().unwrap().ends_with("--continue-on-collection-errors tests"));
    assert_eq!((&tests["fail_to_pass"], &tests["pass_to_pass"]), (&json!(["t::a"]), &json!(["t::b"])));
    let mut public = task.clone();
    public.as_object_mut().unwrap().remove("private");
    assert!(!public.to_string().contains("test_add") && !public.to_string().contains("a + b"));
    let probes = draft.probes("host");
    assert!(probes[0].contains(r#""id":"after""#) && probes[0].contains("a + b"));
    assert!(probes[1].contains(r#""id":"before""#) && !probes[1].contains("a + b"));
}

#[test]
fn options_override_what_is_found() {
    let options = DraftOptions {
        instruction: Some(" Mend `add`.\n".to_owned()),
        command: Some("run them".to_owned()),
        root: Some("lib".to_owned()),
        loopback: true,
        timeout_s: Some(7),
    };
    let draft = Draft::new("calc", &release("1.0", OLD), &release("1.1", NEW), &options).unwrap();
    assert!(draft.instruction.contains("\n\nMend `add`.\n\n") && draft.root == "lib");
    let expected = Expected { pass_to_pass: vec!["t".to_owned()], ..Expected::default() };
    let task: Value = serde_json::from_str(&draft.task("host", &expected).unwrap()).unwrap();
    assert_eq!(task["sandbox"]["network"], json!("loopback"));
    assert_eq!(task["private"]["tests"]["command"], json!("run them"));
    assert_eq!(task["private"]["tests"]["timeout"], json!("7s"));
}

#[test]
fn pairs_that_make_no_task_say_why() {
    let check = |old: &Release, new: &Release, words: Option<&str>, expect: &str| {
        let options = DraftOptions { instruction: words.map(str::to_owned), ..DraftOptions::default() };
        assert_eq!(Draft::new("calc", old, new, &options).unwrap_err().to_string(), expect);
    };
    let (old, new) = (release("1.0", OLD), release("1.1", NEW));
    check(&new, &old, None, "1.1 is not older than 1.0");
    let mut silent = NEW.to_vec();
    silent[2].1 = "## 1.0\n\n- first\n";
    check(
        &old,
        &release("1.1", &silent),
        None,
        "nothing in the changelog between 1.0 and 1.1 (looked at: CHANGES.md)",
    );
    check(&old, &release("1.1", &[("a.py", "")]), None, "1.1 has no tests in its archive");
    let same = release("1.1", OLD);
    check(&old, &same, None, "no test file differs between the two");
    let mut tests = OLD.to_vec();
    tests[1].1 = "changed";
    check(&old, &release("1.1", &tests), None, "no source file differs between the two");
    let mut solved = NEW.to_vec();
    solved[0].1 = "def add(a, b):\n    return _really_add(a, b)\n";
    check(
        &old,
        &release("1.1", &solved),
        Some("Make it call _really_add."),
        "the instruction reveals names that occur only in the patch: _really_add",
    );
}

#[test]
fn names_that_a_shell_would_read_are_quoted() {
    assert_eq!((quoted("a/b_c-1.py").as_str(), quoted("it's $x").as_str()), ("a/b_c-1.py", r"'it'\''s $x'"));
}
