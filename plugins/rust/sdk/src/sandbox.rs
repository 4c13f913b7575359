//! Sandboxes with the usual defaults; everything else is in [`crate::wit::espalier::sandbox`].

use crate::Failure;
use crate::wit::espalier::sandbox::sandboxes::{
    self, Command, Ending, Outcome, Output, Path, Program, WriteOptions,
};
use crate::wit::espalier::sandbox::{creation, scoring};
use std::time::Duration;

/// A machine of the rollout.
#[derive(Debug)]
pub struct Sandbox(pub sandboxes::Sandbox);

impl Sandbox {
    /// The sandbox of this name: `main`, or as the task names it.
    pub fn open(name: &str) -> Result<Sandbox, Failure> {
        sandboxes::open(name).map(Sandbox)
    }

    /// In rewards and judges: a new one of this name, that no agent has touched.
    pub fn fresh(name: &str) -> Result<Sandbox, Failure> {
        scoring::open_fresh(name).map(Sandbox)
    }

    /// In task generators: a new one as `spec` says, with the keys that a task has of a sandbox.
    pub fn create(spec: &serde_json::Value) -> Result<Sandbox, Failure> {
        creation::create(&spec.to_string()).map(Sandbox)
    }

    /// Runs shell text to its end, within the longest time that a call may take.
    pub fn exec(&self, text: &str) -> Result<Outcome, Failure> {
        self.0.exec(&shell(text))
    }

    /// The same within a time of its own.
    pub fn exec_within(&self, text: &str, timeout: Duration) -> Result<Outcome, Failure> {
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1);
        self.0.exec(&Command { timeout_ms: Some(timeout_ms), ..shell(text) })
    }

    /// A file of up to 1 MiB as text, with replacement characters.
    pub fn read_text(&self, path: &str) -> Result<String, Failure> {
        let bytes = self.0.read_file(&Path::Text(path.to_owned()), 0, 1 << 20)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Writes a file as a whole, with the folders above it.
    pub fn write(&self, path: &str, content: &[u8]) -> Result<(), Failure> {
        let options = WriteOptions { mode: None, owner: None, parents: true, create_new: false, extra: None };
        self.0.write_file(&Path::Text(path.to_owned()), content, &options)
    }
}

/// Shell text as a command without anything else.
pub fn shell(text: &str) -> Command {
    Command {
        program: Program::Shell(text.to_owned()),
        cwd: None,
        env: Vec::new(),
        stdin: None,
        user: None,
        timeout_ms: None,
        output_max: None,
        keep_whole: false,
        merge_stderr: false,
        terminal: None,
        extra: None,
    }
}

impl Outcome {
    /// Whether it ended by itself with 0.
    pub fn succeeded(&self) -> bool {
        matches!(self.ending, Ending::ExitCode(0))
    }

    /// How it ended, in words.
    pub fn ended(&self) -> String {
        match &self.ending {
            Ending::ExitCode(code) => format!("exit code {code}"),
            Ending::Signal(signal) => format!("signal {signal}"),
            Ending::TimedOut => "timed out".to_owned(),
            Ending::OutOfMemory => "out of memory".to_owned(),
            Ending::Other(word) => word.clone(),
        }
    }
}

impl Output {
    /// What is shown of it, with what is left out between.
    pub fn text(&self) -> String {
        match self.left_out {
            0 => self.head.clone(),
            left_out => format!("{}\n[{left_out} bytes left out]\n{}", self.head, self.tail),
        }
    }
}
