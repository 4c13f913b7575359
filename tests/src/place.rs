//! Where things are: the repository, its guests, the binary of this build.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::process::Command;

/// The repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the tests lie in the repository")
}

/// The guests, which must have been built.
pub fn plugin_folder() -> PathBuf {
    let folder = repository().join("plugins/dist");
    assert!(
        folder.join("fault-harness.wasm").is_file(),
        "no guests in {}: run `make build`",
        folder.display()
    );
    folder
}

/// The demo's experiment, whose tasks must have been made.
pub fn demo() -> PathBuf {
    let tasks = repository().join("tasks/textcraft.jsonl");
    assert!(tasks.is_file(), "no {}: run `make build`", tasks.display());
    repository().join("experiments/textcraft.toml")
}

/// `target/PROFILE`, where this test was built.
fn profile() -> PathBuf {
    let test = std::env::current_exe().expect("this test is a file");
    let profile = test.parent().and_then(Path::parent).expect("target/PROFILE/deps/TEST");
    profile.to_owned()
}

/// Compiled plugins, shared by all tests.
pub fn plugin_cache() -> PathBuf {
    profile().parent().expect("target/PROFILE").join("tmp/plugin-cache")
}

/// The engine's binary. Cargo builds it beside the test when the whole workspace is tested.
pub fn binary() -> PathBuf {
    let binary = profile().join("espalier");
    assert!(binary.is_file(), "no {}: build it with `cargo build -p espalier-daemon`", binary.display());
    binary
}

/// The engine's command line on a store of its own. The process is killed when its handle is dropped.
pub fn espalier(store: &Path) -> Command {
    let mut command = Command::new(binary());
    command
        .env("ESPALIER_STORE", store)
        .env("ESPALIER_PLUGINS", plugin_folder())
        .env("ESPALIER_CACHE", plugin_cache())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}
