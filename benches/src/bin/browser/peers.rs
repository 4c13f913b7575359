//! Peers as child processes: a command a line, an answer a line.

use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// Longer than the longest command takes beside busy programs.
const ANSWER_MAX: Duration = Duration::from_secs(600);

/// A peer that runs.
pub(crate) struct Peer {
    name: &'static str,
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    /// A script of `benches/peers` for Node.js, with the packages below the folder that `ESPALIER_BROWSER_PEERS` names.
    pub(crate) fn node(name: &'static str, script: &str) -> Result<Peer, String> {
        let mut command = Command::new("node");
        command.arg(script_at(script)?);
        Peer::start(name, command)
    }

    /// A script of `benches/peers` for the Python that `ESPALIER_BROWSER_PEERS_PYTHON` names.
    pub(crate) fn python(name: &'static str, script: &str) -> Result<Peer, String> {
        let mut command = Command::new(variable("ESPALIER_BROWSER_PEERS_PYTHON")?);
        command.arg(script_at(script)?);
        Peer::start(name, command)
    }

    fn start(name: &'static str, mut command: Command) -> Result<Peer, String> {
        let chromium = chromium().ok_or("no chromium-headless-shell in PATH")?;
        command.env("CHROMIUM", chromium).current_dir(variable("ESPALIER_BROWSER_PEERS")?);
        command.env("SCRATCH", std::env::temp_dir());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped")).lines();
        Ok(Peer { name, _child: child, input, output })
    }

    /// What it answers.
    pub(crate) async fn ask<T: DeserializeOwned>(&mut self, command: Value) -> Result<T, String> {
        let name = self.name;
        let line = format!("{command}\n");
        self.input.write_all(line.as_bytes()).await.map_err(|error| format!("{name}: {error}"))?;
        let answer = tokio::time::timeout(ANSWER_MAX, self.output.next_line()).await;
        let answer = answer.map_err(|_| format!("{name} does not answer"))?;
        let answer = answer.map_err(|error| format!("{name}: {error}"))?.ok_or(format!("{name} ended"))?;
        let value: Value =
            serde_json::from_str(&answer).map_err(|error| format!("{name} said {answer}: {error}"))?;
        match value["error"].as_str() {
            Some(error) => Err(format!("{name}: {error}")),
            None => serde_json::from_value(value).map_err(|error| format!("{name} said {answer}: {error}")),
        }
    }
}

fn variable(name: &str) -> Result<PathBuf, String> {
    std::env::var_os(name).map(PathBuf::from).ok_or(format!("{name} is not set (`make bench` does)"))
}

fn script_at(name: &str) -> Result<PathBuf, String> {
    let path = Path::new("benches/peers").join(name);
    path.canonicalize().map_err(|error| format!("{}: {error}", path.display()))
}

/// The Chromium of every driver.
pub(crate) fn chromium() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join("chromium-headless-shell"))
        .find(|file| file.exists())
}
