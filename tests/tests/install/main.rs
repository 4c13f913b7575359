//! What people install, from the programs that were built beside this test: the wheel in a fresh environment, without cargo and with
//! another home; the OCI image as a sandbox, which holds nothing but it.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod image;
mod wheel;

use espalier_tests::place::binary;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;
use tokio::process::Command;
use xtask::dist::{self, Dist, Form};

/// Longest time of one command; the longest compiles plugins in a debug build.
const PATIENCE: Duration = Duration::from_secs(300);

/// One form of the installation; returns the one file whose name ends so.
async fn made(form: Form, out: &Path, ending: &str) -> PathBuf {
    let asked = Dist::of_built(binary().parent().unwrap(), form, out);
    tokio::task::spawn_blocking(move || dist::make(&asked)).await.unwrap().unwrap();
    let files = std::fs::read_dir(out).unwrap().flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> = files.filter(|path| path.to_string_lossy().ends_with(ending)).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files.remove(0)
}

/// A folder whose sandboxes are ended with it. Not in memory, as sandboxes' disks are in it.
fn folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("espalier-install-").tempdir_in("/var/tmp").unwrap()
}

async fn run(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    tokio::time::timeout(PATIENCE, command.output()).await.expect("it ends").unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// What it printed, where it ended well.
async fn good(command: &mut Command) -> String {
    let output = run(command).await;
    assert!(output.status.success(), "{:?}: {}", command.as_std(), text(&output));
    text(&output)
}
