//! Projects of plugins: names, folders, manifests, missing programs, sources that do not compile.

use super::{Fixture, regex_escape};
use std::fs;
use std::path::Path;
use std::process::Command;

const NEW: [&str; 7] = ["plugin", "new", "mine", "--kind", "reward", "--lang", "rust"];

/// What the arguments are told, with those that are given in the place of the last ones.
fn told(fixture: &Fixture, arguments: &[&str]) -> String {
    format!("$ espalier {}\n{}", arguments.join(" "), fixture.refused(arguments))
}

#[test]
fn a_project_that_cannot_be_written() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.folder.path().join("mine")).unwrap();
    fixture.write("mine/notes", "");
    let told = [
        told(&fixture, &NEW[..3]),
        told(&fixture, &NEW[..5]),
        told(&fixture, &["plugin", "new", "mine", "--kind", "rewards", "--lang", "rust"]),
        told(&fixture, &["plugin", "new", "Mine", "--kind", "reward", "--lang", "rust"]),
        told(&fixture, &["plugin", "new", "core", "--kind", "reward", "--lang", "rust"]),
        told(&fixture, &NEW),
        told(&fixture, &["plugin", "sdk", "--out", "sdk"]),
        told(&fixture, &["plugin", "sdk", "--lang", "rust", "--out", "mine"]),
    ];
    assert_message!(fixture, told.join("\n\n"));
}

#[test]
fn a_project_that_cannot_be_built() {
    let fixture = Fixture::new();
    let project = fixture.folder.path().join("mine");
    let mut all = vec![told(&fixture, &["plugin", "build"]), told(&fixture, &["plugin", "check", "./mine"])];
    assert_eq!(fixture.run(&NEW).code, 0);
    all.push(told(&fixture, &["plugin", "check", "mine"]));
    // Without any program.
    let mut build = fixture.command(&["plugin", "build", "mine"]);
    let ran = super::ran(&build.env("PATH", fixture.folder.path()).output().unwrap());
    all.push(format!("$ PATH= espalier plugin build mine\n{}exit {}", ran.stderr, ran.code));
    let manifest = fs::read_to_string(project.join("plugin.toml")).unwrap();
    for (from, to) in [
        ("kind = \"reward\"", "kind = \"rewards\""),
        ("language = \"rust\"", "lang = \"rust\""),
        ("name = \"mine\"", "name = \"My plugin\""),
    ] {
        assert!(manifest.contains(from), "{manifest}");
        fs::write(project.join("plugin.toml"), manifest.replace(from, to)).unwrap();
        all.push(told(&fixture, &["plugin", "build", "mine"]));
    }
    assert_message!(fixture, all.join("\n\n"));
}

#[test]
fn a_project_with_files_that_are_none() {
    let fixture = Fixture::new();
    assert_eq!(fixture.run(&NEW).code, 0);
    let project = fixture.folder.path().join("mine");
    let mut all = vec![told(&fixture, &["run", "mine/experiment.toml"])];
    fs::create_dir_all(project.join("build/mine.wasm")).unwrap();
    for command in ["build", "test", "check"] {
        all.push(told(&fixture, &["plugin", command, "mine"]));
    }
    let (manifest, pipe) = (project.join("plugin.toml"), project.join("sdk/wit/own.wit"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    all.push(told(&fixture, &["plugin", "build", "mine"]));
    fs::remove_file(&pipe).unwrap();
    let text = fs::read_to_string(&manifest).unwrap();
    for entry in ["/etc/passwd", "../other/plugin.rs"] {
        fs::write(&manifest, format!("{text}entry = \"{entry}\"\n")).unwrap();
        all.push(told(&fixture, &["plugin", "build", "mine"]));
    }
    fs::File::create(&manifest).unwrap().set_len((1 << 20) + 1).unwrap();
    all.push(told(&fixture, &["plugin", "build", "mine"]));
    fs::remove_file(&manifest).unwrap();
    assert!(Command::new("mkfifo").arg(&manifest).status().unwrap().success());
    all.push(told(&fixture, &["plugin", "build", "mine"]));
    assert_message!(fixture, all.join("\n\n"));
}

#[test]
fn an_sdk_that_is_old_or_has_files_of_the_author() {
    let fixture = Fixture::new();
    assert_eq!(fixture.run(&NEW).code, 0);
    let mark = fixture.folder.path().join("mine/sdk/.espalier-sdk");
    let written = fs::read_to_string(&mark).unwrap();
    assert!(written.lines().any(|line| line == "Cargo.toml"), "{written}");
    let version = env!("CARGO_PKG_VERSION");
    fs::write(&mark, written.replacen(version, "0.0.9", 1).replace("Cargo.toml\n", "")).unwrap();
    let mut build = fixture.command(&["plugin", "build", "mine"]);
    let ran = super::ran(&build.env("PATH", fixture.folder.path()).output().unwrap());
    let built = ran.stderr.replace(version, "VERSION");
    let refused = told(&fixture, &["plugin", "sdk", "--lang", "rust", "--out", "mine/sdk"]);
    assert_message!(fixture, format!("$ PATH= espalier plugin build mine\n{built}\n{refused}"));
}

#[test]
fn a_component_of_another_kind_than_its_manifest_says() {
    let fixture = Fixture::new();
    assert_eq!(fixture.run(&NEW).code, 0);
    let project = fixture.folder.path().join("mine");
    let idle = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/dist/idle.wasm");
    fs::create_dir(project.join("build")).unwrap();
    fs::copy(idle, project.join("build/mine.wasm")).unwrap();
    assert_message!(fixture, told(&fixture, &["plugin", "test", "mine"]));
}
