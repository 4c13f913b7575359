//! The commands of every day, as `make` names them.

use crate::place::{self, root};
use crate::setup::{self, Part};
use crate::shell::{openly, quietly, say};
use crate::stamp::Stamp;
use crate::tasks::{TextCraft, book::Book, shell};
use crate::{plugins, tidy};
use std::path::PathBuf;
use std::process::Command;

/// Goals of the worked examples in `experiments/textcraft.toml`.
const EXAMPLES: [&str; 8] = [
    "glowstone",
    "diamond boots",
    "oak planks",
    "stone slab",
    "bone meal",
    "sandstone",
    "paper",
    "smooth sandstone stairs",
];

/// Easy goals, for a small model: one craft from one kind of raw material.
fn easy() -> TextCraft {
    let without = EXAMPLES.map(String::from).into();
    TextCraft { seed: 7, depths: 1..=1, inputs_max: 1, distractors: 0, without, count: 32 }
}

/// Every goal of the book, as hard as in the original.
fn all() -> TextCraft {
    TextCraft {
        seed: 7,
        depths: 1..=4,
        inputs_max: usize::MAX,
        distractors: 10,
        without: Vec::new(),
        count: usize::MAX,
    }
}

/// cargo in the repository, its output where the user wants it.
fn cargo() -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(root()).env("CARGO_TARGET_DIR", place::target());
    command
}

/// The task files that experiments name.
pub fn tasks() -> Result<(), String> {
    setup::run(&[Part::Data])?;
    let (easy_file, all_file) =
        (root().join("tasks/textcraft.jsonl"), root().join("tasks/textcraft-all.jsonl"));
    let recipes = place::recipes()?;
    Stamp::here("tasks")
        .path(&recipes)
        .path(&root().join("xtask/src"))
        .path(&root().join("plugins/rust/textcraft/src"))
        .unless_done(&[easy_file.clone(), all_file.clone()], || {
            say("making tasks");
            let book = Book::read(&recipes)?;
            easy().write(&book, &easy_file)?;
            all().write(&book, &all_file).map(drop)
        })?;
    let (source, file) = (root().join("experiments/tasks/shell.toml"), root().join("tasks/shell.jsonl"));
    Stamp::here("tasks-shell")
        .path(&source)
        .path(&root().join("xtask/src"))
        .unless_done(std::slice::from_ref(&file), || shell::write(&source, &file).map(drop))?;
    Ok(())
}

/// All that experiments need.
pub fn build() -> Result<(), String> {
    say("building the engine");
    // Of the whole workspace, so that cargo settles on the features that the tests use: dependencies are built once.
    openly(cargo().args(["build", "--release", "--workspace", "--bin", "espalier"]))?;
    agent()?;
    plugins::build(&[])?;
    tasks()?;
    setup::run(&[Part::Model, Part::Sandboxes])?;
    say(&format!("built {}", place::binary().display()));
    Ok(())
}

/// The agent inside sandboxes: one static binary, in a profile of its own.
pub fn agent() -> Result<(), String> {
    say("building the sandbox agent");
    let mut command = cargo();
    command.args([
        "build",
        "--profile",
        "agent",
        "--package",
        "espalier-agent",
        "--target",
        place::AGENT_TARGET,
    ]);
    openly(command.env("RUSTFLAGS", "-C target-feature=+crt-static"))
}

/// Text games with a small model; then shell tasks in sandboxes: by their own solutions, by doing nothing, by the model.
pub fn demo(arguments: &[String]) -> Result<(), String> {
    build()?;
    let run = |experiment: &str| {
        let mut command = Command::new(place::binary());
        command.current_dir(root()).args(["run", &format!("experiments/{experiment}.toml")]);
        command
    };
    openly(run("textcraft").args(arguments))?;
    for experiment in ["shell-reference", "shell-idle", "shell"] {
        openly(&mut run(experiment))?;
    }
    Ok(())
}

/// Everything that can be tested without a network or a large model; ends with what cargo says.
pub fn test(arguments: &[String]) -> Result<(), String> {
    setup::run(&setup::ALL)?;
    agent()?;
    plugins::build(&[])?;
    tasks()?;
    say("building the engine and its tests");
    // The Python package's tests start the engine, which is built with the tests: by itself it would be built once more, with
    // other features.
    openly(cargo().args(["test", "--release", "--workspace", "--no-run", "--quiet"]))?;
    let python = python_tests()?;
    guest_tests()?;
    say("running the tests");
    let mut command = cargo();
    command.args(["test", "--release", "--workspace", "--no-fail-fast"]).args(arguments);
    command.env("ESPALIER_CHAT_TEMPLATES", setup::chat_templates());
    command.env("ESPALIER_PYTHON", setup::data_python());
    command.env("ESPALIER_CLIENT_PYTHON", python);
    openly(&mut command)
}

/// A Python with what the Python package and its tests need.
fn client_python() -> Result<PathBuf, String> {
    let folder = setup::venv(
        "clients-env",
        "what the Python package needs",
        &[
            "numpy==2.4.6",
            "msgpack==1.2.4",
            "httpx==0.28.1",
            "websockets==17.4",
            "pytest==9.2.0",
            "mypy==2.4.1",
            "schemathesis==4.32.5",
            "trustme==1.2.1",
            "h2==4.4.1",
        ],
    )?;
    Ok(folder.join("bin/python"))
}

/// The Python package's own tests, in an environment of their own; returns its Python.
fn python_tests() -> Result<PathBuf, String> {
    let client = root().join("clients/python");
    let python = client_python()?;
    say("testing clients/python");
    let mut pytest = Command::new(&python);
    pytest.current_dir(&client).env("PYTHONPATH", client.join("src")).env("PYTHONDONTWRITEBYTECODE", "1");
    pytest.env("ESPALIER_BIN", place::binary());
    openly(pytest.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]))?;
    Ok(python)
}

/// The pure parts of the Rust guests, by the host's compiler.
fn guest_tests() -> Result<(), String> {
    say("testing the plugins' own logic");
    let mut command = cargo();
    command.current_dir(root().join("plugins/rust")).args([
        "test",
        "--locked",
        "--workspace",
        "--lib",
        "--quiet",
    ]);
    openly(&mut command)
}

/// Every bench, or those named; results go to `benches/runs`.
pub fn bench(names: &[String]) -> Result<(), String> {
    build()?;
    let peers = setup::venv("peers-env", "mini-swe-agent, the peer", &["mini-swe-agent==2.4.6"])?;
    let servers = ["swe-rex==1.4.0", "rl-rock[rocklet]==1.11.0"];
    let sandbox_peers = setup::venv("sandbox-peers-env", "SWE-ReX and rocklet, the peers", &servers)?;
    say("building the benches");
    openly(cargo().args(["build", "--release", "--workspace", "--bins"]))?;
    let mut command = Command::new(place::target().join("release/bench"));
    command.current_dir(root()).env("ESPALIER_PEERS_PYTHON", peers.join("bin/python"));
    command.env("ESPALIER_SANDBOX_PEERS_PYTHON", sandbox_peers.join("bin/python"));
    openly(command.args(names))
}

/// What a change must satisfy before it is read.
pub fn lint() -> Result<(), String> {
    say("rustfmt");
    openly(cargo().args(["fmt", "--all", "--check"]))?;
    openly(cargo().current_dir(root().join("plugins/rust")).args(["fmt", "--all", "--check"]))?;
    say("clippy");
    let clippy = ["clippy", "--release", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"];
    openly(cargo().args(clippy))?;
    let guests = ["clippy", "--locked", "--workspace", "--lib", "--tests", "--quiet", "--", "-D", "warnings"];
    openly(cargo().current_dir(root().join("plugins/rust")).args(guests))?;
    say("tidy");
    tidy::check(&root())?;
    setup::cargo_deny()?;
    say("cargo-deny");
    let deny = place::cache().join("tools/bin/cargo-deny");
    openly(Command::new(deny).current_dir(root()).args([
        "check",
        "--hide-inclusion-graph",
        "licenses",
        "bans",
        "sources",
    ]))
}

/// The tests that need a live vLLM.
pub fn test_live() -> Result<(), String> {
    build()?;
    openly(Command::new(root().join("tests/live/vllm-setup")).current_dir(root()))?;
    // It starts the server, runs what follows, and stops the server however that ends.
    let mut command = Command::new(root().join("tests/live/with-vllm"));
    command.current_dir(root()).env("CARGO_TARGET_DIR", place::target());
    command.env("ESPALIER_CLIENT_PYTHON", client_python()?);
    command.args(["cargo", "test", "--release", "--workspace", "--", "--ignored", "--nocapture", "live"]);
    openly(&mut command)
}

/// Removes what was built of this checkout.
pub fn clean() -> Result<(), String> {
    quietly(cargo().arg("clean"))?;
    for folder in [place::guest_target(), place::dist(), root().join("tasks"), root().join(".setup")] {
        if folder.exists() {
            std::fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
    }
    Ok(())
}
