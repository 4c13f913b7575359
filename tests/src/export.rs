//! What leaves the store of a run, by the commands that a user would type.

use crate::place::{espalier, repository};
use espalier_core::samples::Group;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// No command but `run` takes longer.
const BOUND: Duration = Duration::from_secs(120);
const EVERY_STATUS: &str = "ready,short,stale,failed,filtered";

/// Carries a command of the engine out; what it prints.
pub async fn printed(store: &Path, arguments: &[&str]) -> String {
    let output = tokio::time::timeout(BOUND, espalier(store).args(arguments).output());
    let output = output.await.expect("the command ends").expect("the binary starts");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {}: {told}", output.status);
    String::from_utf8(output.stdout).expect("it prints text")
}

/// `espalier show RUN --json`.
pub async fn shown(store: &Path, run: &str) -> Value {
    serde_json::from_str(&printed(store, &["show", run, "--json"]).await).expect("it prints JSON")
}

/// Exports a run's groups of every status in both forms; the files, JSON Lines first.
pub async fn files(store: &Path, run: &str, folder: &Path) -> [PathBuf; 2] {
    let forms = [("group-jsonl", "jsonl"), ("group-msgpack", "msgpack")];
    let files = forms.map(|(_, ending)| folder.join(format!("{run}.{ending}")));
    for ((form, _), file) in forms.iter().zip(&files) {
        let out = file.to_str().expect("temporary folders have plain names");
        let arguments = ["export", run, "--format", form, "--status", EVERY_STATUS, "--out", out];
        printed(store, &arguments).await;
    }
    files
}

/// The groups of a JSON Lines export.
pub fn groups(file: &Path) -> Vec<Group> {
    let text = std::fs::read_to_string(file).expect("the export was written");
    text.lines().map(|line| serde_json::from_str(line).expect("a line is a group")).collect()
}

/// What the Python package says of these files, which it must find whole; a line each, without the file's name. `None`:
/// there is no Python with numpy and msgpack (the set-up of `make test` makes one).
pub fn checked_by_python(files: &[PathBuf]) -> Option<Vec<String>> {
    let text = python(&["-m", "espalier.samples", "check"], files)?;
    Some(text.lines().filter_map(|line| Some(line.split_once(": ")?.1.to_owned())).collect())
}

/// What a Python with the package and these arguments prints, files last; it must succeed. `None`: as [`checked_by_python`].
pub fn python(arguments: &[&str], files: &[PathBuf]) -> Option<String> {
    let python = match std::env::var_os("ESPALIER_CLIENT_PYTHON") {
        Some(python) => PathBuf::from(python),
        None => {
            let found = Command::new("python3").args(["-c", "import msgpack, numpy"]).output();
            let fits = found.is_ok_and(|output| output.status.success());
            assert!(
                fits || std::env::var_os("CI").is_none(),
                "no Python with numpy and msgpack: `make test` sets one up"
            );
            fits.then(|| PathBuf::from("python3"))?
        }
    };
    let output = Command::new(python)
        .args(arguments)
        .args(files)
        .env("PYTHONPATH", repository().join("clients/python/src"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("Python starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    Some(text.into_owned())
}
