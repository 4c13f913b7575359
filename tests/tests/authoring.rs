//! Projects of plugins as their authors make them, by the real program: `plugin new`, `plugin build`, `plugin check`, `plugin test`, outside of
//! the repository. One kind for each language; `make test-templates` sets `ESPALIER_TEMPLATES=all`, for every kind in every language, and
//! then a missing compiler fails too.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use espalier_tests::place::{binary, plugin_cache, repository};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use xtask::{place, setup};

const KINDS: [&str; 6] = ["harness", "environment", "reward", "group-reward", "judge", "task-generator"];

/// What a command left behind.
struct Ran {
    code: i32,
    out: String,
    err: String,
}

fn espalier(folder: &Path, arguments: &[&str]) -> Ran {
    let mut command = Command::new(binary());
    command.args(arguments).current_dir(folder).env_remove("ESPALIER_PLUGINS");
    command.env("ESPALIER_CACHE", plugin_cache()).env("ESPALIER_STORE", folder.join(".espalier"));
    // What a language compiles of others is compiled once for all of its kinds.
    command.env("CARGO_TARGET_DIR", place::target().join("authoring"));
    if !all() {
        command.env("PATH", setup::authoring_path());
    }
    let output = command.output().unwrap();
    Ran {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

impl Ran {
    #[track_caller]
    fn done(self) -> Ran {
        assert_eq!(self.code, 0, "{}{}", self.out, self.err);
        self
    }
}

/// Whether all kinds are tried.
fn all() -> bool {
    std::env::var("ESPALIER_TEMPLATES").is_ok_and(|value| value == "all")
}

/// The line that installs what a build has not found.
fn install_line(built: &Ran) -> String {
    let error: Value = serde_json::from_str(&built.err).unwrap();
    let hint = error["error"]["hint"].as_str().unwrap();
    hint.strip_prefix("run: ").unwrap_or_else(|| panic!("{hint}")).to_owned()
}

/// Writes a project, builds it, checks it and runs its cases.
fn try_language(language: &str, kind: &str) {
    let kinds = if all() { KINDS.as_slice() } else { &[kind] };
    for kind in kinds {
        let folder = tempfile::tempdir().unwrap();
        let name = format!("my-{kind}");
        espalier(folder.path(), &["plugin", "new", &name, "--kind", kind, "--lang", language]).done();
        let project = folder.path().join(&name);
        let mut built = espalier(&project, &["plugin", "build", "--json"]);
        // Something is not on this machine: what the hint says must be enough.
        if built.code == 4 {
            let line = install_line(&built);
            if !all() {
                eprintln!("{language}: not built on this machine, which needs: {line}");
                return;
            }
            let installed = Command::new("sh").args(["-c", &line]).current_dir(&project).output().unwrap();
            assert!(installed.status.success(), "{line}: {}", String::from_utf8_lossy(&installed.stderr));
            built = espalier(&project, &["plugin", "build", "--json"]);
        }
        let built: Value = serde_json::from_str(&built.done().out).unwrap();
        assert_eq!(built["component"], format!("build/{name}.wasm"));
        let checked = espalier(&project, &["plugin", "check", "--json"]).done();
        let checked: Value = serde_json::from_str(&checked.out).unwrap();
        assert_eq!(checked["world"], format!("{kind}-plugin"), "{language}");
        assert_eq!(checked["warnings"], serde_json::json!([]), "{language} {kind}");
        assert_eq!(checked["digest"], built["digest"]);
        espalier(&project, &["plugin", "test"]).done();
        // By its digest and by its name, from a folder of the project.
        let digest = checked["digest"].as_str().unwrap();
        for reference in [&digest[..12], &name] {
            espalier(&project.join("cases"), &["plugin", "check", reference]).done();
        }
    }
}

#[test]
fn rust() {
    try_language("rust", "task-generator");
}

#[test]
fn javascript() {
    try_language("javascript", "group-reward");
}

#[test]
fn typescript() {
    try_language("typescript", "harness");
}

#[test]
fn python() {
    try_language("python", "judge");
}

#[test]
fn go() {
    try_language("go", "environment");
}

#[test]
fn c() {
    try_language("c", "reward");
}

/// The projects that test the C SDK: their cases are what they check.
#[test]
fn the_sdk_for_c_holds_its_own_cases() {
    for name in ["values", "fault"] {
        let folder = tempfile::tempdir().unwrap();
        let project = folder.path().join(name);
        let source = repository().join("plugins/c/tests").join(name);
        fs::create_dir_all(project.join("cases")).unwrap();
        for file in ["plugin.c", "plugin.toml"] {
            fs::copy(source.join(file), project.join(file)).unwrap();
        }
        for case in fs::read_dir(source.join("cases")).unwrap().map(Result::unwrap) {
            fs::copy(case.path(), project.join("cases").join(case.file_name())).unwrap();
        }
        espalier(&project, &["plugin", "sdk", "--lang", "c", "--out", "sdk"]).done();
        espalier(&project, &["plugin", "build"]).done();
        espalier(&project, &["plugin", "test"]).done();
    }
}

/// A harness and a reward in each language that act in the browser of their cases, all the same.
fn acts_in_a_browser(language: &str, file: &str) {
    let source = repository().join("tests/browsers");
    for (kind, cases) in [("harness", &["harness.toml", "lost.toml"][..]), ("reward", &["reward.toml"])] {
        let folder = tempfile::tempdir().unwrap();
        espalier(folder.path(), &["plugin", "new", "mine", "--kind", kind, "--lang", language]).done();
        let project = folder.path().join("mine");
        let extension = file.rsplit_once('.').unwrap().1;
        fs::copy(source.join(language).join(format!("{kind}.{extension}")), project.join(file)).unwrap();
        fs::remove_dir_all(project.join("cases")).unwrap();
        fs::create_dir(project.join("cases")).unwrap();
        for case in cases {
            fs::copy(source.join(case), project.join("cases").join(case)).unwrap();
        }
        let built = espalier(&project, &["plugin", "build", "--json"]);
        if built.code == 4 && !all() {
            eprintln!("{language}: not built on this machine, which needs: {}", install_line(&built));
            return;
        }
        built.done();
        espalier(&project, &["plugin", "test"]).done();
    }
}

#[test]
fn javascript_acts_in_a_browser() {
    acts_in_a_browser("javascript", "plugin.js");
}

#[test]
fn python_acts_in_a_browser() {
    acts_in_a_browser("python", "plugin.py");
}

#[test]
fn go_acts_in_a_browser() {
    acts_in_a_browser("go", "plugin.go");
}

#[test]
fn c_acts_in_a_browser() {
    acts_in_a_browser("c", "plugin.c");
}

#[test]
fn what_a_compiler_refuses_is_told_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    espalier(folder.path(), &["plugin", "new", "mine", "--kind", "reward", "--lang", "rust"]).done();
    let project = folder.path().join("mine");
    fs::write(project.join("src/lib.rs"), "fn broken( {}\n").unwrap();
    let refused = espalier(&project.join("src"), &["plugin", "build"]);
    assert_eq!((refused.code, &*refused.out), (1, ""));
    assert!(refused.err.contains("src/lib.rs:1"), "{}", refused.err);
    assert!(refused.err.ends_with("error: cargo failed; nothing was built\n"), "{}", refused.err);
    let unbuilt = espalier(&project, &["plugin", "check"]);
    assert_eq!(unbuilt.code, 2);
    assert!(
        unbuilt.err.contains("there is no build/mine.wasm\nhint: run `espalier plugin build`"),
        "{}",
        unbuilt.err
    );
}

#[test]
fn interfaces_and_sdks_are_written_as_the_repository_has_them() {
    let folder = tempfile::tempdir().unwrap();
    espalier(folder.path(), &["wit", "--out", "wit"]).done();
    let text = |path: &Path| fs::read_to_string(path).unwrap();
    for file in ["plugin.wit", "deps/base/base.wit", "deps/sandbox/sandbox.wit"] {
        let ours = repository().join("wit").join(file);
        assert_eq!(text(&folder.path().join("wit").join(file)), text(&ours), "{file}");
    }
    for language in ["rust", "javascript", "typescript", "python", "go", "c"] {
        espalier(folder.path(), &["plugin", "sdk", "--lang", language, "--out", language]).done();
        assert!(folder.path().join(language).join("wit/plugin.wit").is_file(), "{language}");
    }
    // A folder of something else is left alone.
    let refused = espalier(folder.path(), &["plugin", "sdk", "--lang", "go", "--out", "."]);
    assert_eq!(refused.code, 2, "{}", refused.err);
}
