use super::*;
use std::fs;

/// An installation with one kind in one language.
fn sources(root: &Path) -> Sources {
    let put = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    put("templates/README.md", "# {{name}}\n{{language_notes}}\n");
    put("templates/go/README.md", "A {{kind}} in {{entry}}.\n");
    put("templates/kinds/reward/experiment.toml", "plugin = \"build/{{name}}.wasm\"\n");
    put("templates/kinds/reward/cases/right.toml", "");
    put("templates/go/all/go.mod.tmpl", "module {{snake}}\n");
    put("templates/go/reward/{{snake}}_test.go", "// {{pascal}}\n");
    put("sdk/go/sdk.go", "package sdk\n");
    put("sdk/go/tests/big.txt", "");
    put("sdk/go/wit/old.wit", "");
    put("wit/plugin.wit", "package a:b;\n");
    put("wit/deps/base/base.wit", "package a:c;\n");
    Sources { templates: root.join("templates"), sdks: root.join("sdk"), wit: root.join("wit") }
}

fn new(name: &str) -> New<'_> {
    New { name, kind: Kind::Reward, language: Language::Go }
}

fn below(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for path in entries(folder).unwrap() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            found.extend(below(&path).into_iter().map(|inner| format!("{name}/{inner}")));
        } else {
            found.push(name);
        }
    }
    found
}

#[test]
fn a_project_is_what_its_kind_and_its_language_say_under_its_name() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("out/right-answer");
    let files = new("right-answer").write(&sources(root.path()), &folder).unwrap();
    let own =
        ["README.md", "cases/right.toml", "experiment.toml", "go.mod", "plugin.toml", "right_answer_test.go"];
    assert_eq!(files, own.map(PathBuf::from));
    let sdk = ["sdk/.espalier-sdk", "sdk/sdk.go", "sdk/wit/deps/base/base.wit", "sdk/wit/plugin.wit"];
    let mut all = [own.as_slice(), &sdk].concat();
    all.sort_unstable();
    let mut found = below(&folder);
    found.sort_unstable();
    assert_eq!(found, all);
    let text = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    assert_eq!(text("README.md"), "# right-answer\nA reward in plugin.go.\n");
    assert_eq!(text("go.mod"), "module right_answer\n");
    assert_eq!(text("right_answer_test.go"), "// RightAnswer\n");
    let project = crate::Project::read(&folder).unwrap();
    assert_eq!((project.manifest.kind, project.manifest.language), (Kind::Reward, Language::Go));
}

#[test]
fn what_is_there_is_kept_and_what_cannot_be_finished_is_removed() {
    let root = tempfile::tempdir().unwrap();
    let mut sources = sources(root.path());
    let folder = root.path().join("full");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("mine"), "").unwrap();
    let refused = |sources: &Sources, name: &str| new(name).write(sources, &folder).unwrap_err().to_string();
    assert!(refused(&sources, "right").ends_with("full already exists and is not an empty folder"));
    fs::remove_file(folder.join("mine")).unwrap();

    for name in ["Right", "1st", "a b", "", "a--b", "sdk"] {
        assert!(refused(&sources, name).starts_with(&format!("invalid name {name:?}")), "{name}");
    }
    fs::remove_dir_all(sources.wit.join("deps")).unwrap();
    assert!(refused(&sources, "right").ends_with("wit/deps is missing"));
    assert_eq!(below(&folder), Vec::<String>::new());
    assert!(folder.is_dir(), "it was there before");
    sources.sdks = root.path().join("nowhere");
    assert!(refused(&sources, "right").ends_with("nowhere/go is missing"));
}

#[test]
fn a_refreshed_sdk_takes_the_place_of_the_old_one() {
    let root = tempfile::tempdir().unwrap();
    let sources = sources(root.path());
    let folder = root.path().join("sdk-copy");
    fs::create_dir(&folder).unwrap();
    refresh_sdk(&sources, Language::Go, &folder).unwrap();
    let mark = folder.join(".espalier-sdk");
    let written = fs::read_to_string(&mark).unwrap();
    assert_eq!(written, format!("go {VERSION}\nsdk.go\nwit/deps/base/base.wit\nwit/plugin.wit\n"));
    // A file of an older SDK goes, with its folder; the author's own stays.
    fs::create_dir(folder.join("old")).unwrap();
    fs::write(folder.join("old/gone.go"), "").unwrap();
    fs::write(folder.join("mine.go"), "").unwrap();
    fs::write(&mark, written.replace("wit/plugin.wit", "old/gone.go\nwit/plugin.wit")).unwrap();
    refresh_sdk(&sources, Language::Go, &folder).unwrap();
    assert_eq!(
        below(&folder),
        [".espalier-sdk", "mine.go", "sdk.go", "wit/deps/base/base.wit", "wit/plugin.wit"]
    );
    assert!(!folder.join("old").exists());
    assert_eq!(fs::read_to_string(&mark).unwrap(), written);
    // One that stands where the SDK has another is named.
    fs::write(sources.sdks.join("go/mine.go"), "of the SDK").unwrap();
    let error = refresh_sdk(&sources, Language::Go, &folder).unwrap_err().to_string();
    assert!(error.ends_with("has files where the SDK has others: mine.go; nothing was written"), "{error}");
    assert_eq!(fs::read_to_string(folder.join("mine.go")).unwrap(), "");
    fs::remove_file(sources.sdks.join("go/mine.go")).unwrap();

    // Nothing else is replaced: no other SDK, no folder of the author.
    fs::create_dir(root.path().join("sdk/rust")).unwrap();
    for (language, folder) in [(Language::Rust, &folder), (Language::Go, &root.path().to_owned())] {
        let error = refresh_sdk(&sources, language, folder).unwrap_err();
        assert!(matches!(error, NewError::NotAnSdk { .. }), "{error}");
    }
    assert!(folder.join("sdk.go").is_file() && root.path().join("wit/plugin.wit").is_file());
}
