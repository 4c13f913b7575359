//! Agents of the real binary behind a provider, and blobs in memory.

use async_trait::async_trait;
use espalier_agent_client::{Agent, Config, Endpoint, Secret};
use espalier_core::cause::Failed;
use espalier_core::failure::Failure;
use espalier_core::host::sandbox::{Command, Outcome, Program, Sandbox, Sandboxes, Show};
use espalier_core::host::{BlobInfo, Blobs};
use espalier_core::journal::EdgeLog;
use espalier_sandbox::error::SandboxError;
use espalier_sandbox::rollout::{Opened, Provider, RolloutSandboxes};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Spawn, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// The agent as cargo built it beside this test.
pub(crate) fn binary() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.ancestors().nth(2).unwrap().join("espalier-agent");
    assert!(built.is_file(), "{} is missing: run `cargo build -p espalier-agent`", built.display());
    built
}

/// One agent and its folder; both go with it.
pub(crate) struct Running {
    pub(crate) folder: tempfile::TempDir,
    child: Mutex<Child>,
}

impl Running {
    fn start() -> Running {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("secret"), SECRET).unwrap();
        std::fs::create_dir(folder.path().join("work")).unwrap();
        std::fs::write(folder.path().join("work/given"), "as it was\n").unwrap();
        let mut command = Spawn::new(binary());
        command.arg("--listen-unix").arg(folder.path().join("socket"));
        command.arg("--secret-file").arg(folder.path().join("secret"));
        command.arg("--spill-dir").arg(folder.path()).stdin(Stdio::null()).current_dir("/");
        Running { child: Mutex::new(command.spawn().unwrap()), folder }
    }

    /// As if the machine had died.
    pub(crate) fn kill(&self) {
        let mut child = self.child.lock().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut child = self.child.lock().unwrap();
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Makes agents; `main` and `other` are known.
#[derive(Default)]
pub(crate) struct Local {
    pub(crate) started: Mutex<Vec<Arc<Running>>>,
    /// Openings that fail before one does not.
    pub(crate) failures: Mutex<u32>,
}

impl Local {
    fn fails(&self) -> bool {
        let mut failures = self.failures.lock().unwrap();
        let fails = *failures > 0;
        *failures = failures.saturating_sub(1);
        fails
    }

    async fn make(&self, name: &str) -> Result<Opened, SandboxError> {
        if !["main", "other"].contains(&name) {
            return Err(SandboxError::Invalid {
                what: "sandbox".to_owned(),
                value: name.to_owned(),
                wanted: "main or other".to_owned(),
            });
        }
        if self.fails() {
            return Err(SandboxError::Unavailable("registry down".into()));
        }
        let running = Arc::new(Running::start());
        self.started.lock().unwrap().push(Arc::clone(&running));
        let endpoint = Endpoint::Unix(running.folder.path().join("socket"));
        let mut config = Config::new(endpoint, Secret::new(SECRET), "rollout-1");
        config.reconnect_within = Duration::from_secs(3);
        let agent =
            Agent::connect(config).await.map_err(|error| SandboxError::Lost(Failed::by("main", error)))?;
        let mut opened = Opened::new(agent);
        opened.workdir = Some(running.folder.path().join("work").display().to_string());
        opened.env = vec![("GIVEN".to_owned(), "by the experiment".to_owned())];
        opened.keep = Some(Box::new(running));
        Ok(opened)
    }
}

#[async_trait]
impl Provider for Local {
    async fn open(&self, name: &str) -> Result<Opened, SandboxError> {
        self.make(name).await
    }

    async fn open_fresh(&self, name: &str) -> Result<Opened, SandboxError> {
        self.make(name).await
    }

    async fn checkpoint(&self, name: &str) -> Result<String, SandboxError> {
        Err(SandboxError::Refused { requirement: format!("keep the files of {name}") })
    }
}

/// Blobs in memory, with a bound.
pub(crate) struct MemoryBlobs {
    kept: Mutex<Vec<Vec<u8>>>,
    left: Mutex<usize>,
}

impl MemoryBlobs {
    pub(crate) fn get(&self, blob: &str) -> Vec<u8> {
        self.kept.lock().unwrap()[blob.parse::<usize>().unwrap()].clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.kept.lock().unwrap().len()
    }
}

#[async_trait]
impl Blobs for MemoryBlobs {
    async fn put(&self, bytes: Vec<u8>, _: &str) -> Result<String, Failure> {
        let mut left = self.left.lock().unwrap();
        *left = left
            .checked_sub(bytes.len())
            .ok_or(Failure::Budget(espalier_core::failure::BudgetKind::BlobBytes))?;
        let mut kept = self.kept.lock().unwrap();
        kept.push(bytes);
        Ok((kept.len() - 1).to_string())
    }

    async fn stat(&self, blob: &str) -> Result<BlobInfo, Failure> {
        let kept = self.kept.lock().unwrap();
        let found = blob.parse::<usize>().ok().and_then(|number| kept.get(number));
        let found = found.ok_or_else(|| Failure::Invalid(format!("no blob {blob}")))?;
        Ok(BlobInfo { length: found.len() as u64, media_type: "text/plain".to_owned() })
    }

    async fn read(&self, blob: &str, offset: u64, length: u32) -> Result<Vec<u8>, Failure> {
        self.stat(blob).await?;
        Ok(self.get(blob).into_iter().skip(offset as usize).take(length as usize).collect())
    }
}

/// A rollout with its sandbox `main`.
pub(crate) struct Rollout {
    pub(crate) provider: Arc<Local>,
    pub(crate) blobs: Arc<MemoryBlobs>,
    pub(crate) sandboxes: RolloutSandboxes,
}

impl Rollout {
    pub(crate) fn new() -> Rollout {
        Rollout::with_blob_bytes(100 << 20)
    }

    pub(crate) fn with_blob_bytes(left: usize) -> Rollout {
        let provider = Arc::new(Local::default());
        let blobs = Arc::new(MemoryBlobs { kept: Mutex::default(), left: Mutex::new(left) });
        let sandboxes = RolloutSandboxes::new(
            Arc::clone(&provider) as Arc<dyn Provider>,
            Arc::clone(&blobs) as Arc<dyn Blobs>,
        );
        Rollout { provider, blobs, sandboxes }
    }

    /// With how each command ends kept.
    pub(crate) fn recorded(edges: Arc<EdgeLog>) -> Rollout {
        let Rollout { provider, blobs, sandboxes } = Rollout::new();
        Rollout { provider, blobs, sandboxes: sandboxes.recorded(Some(edges)) }
    }

    pub(crate) async fn main(&self) -> Arc<dyn Sandbox> {
        self.sandboxes.open("main").await.unwrap()
    }

    /// The folder of the sandbox that was started so manieth.
    pub(crate) fn work(&self, number: usize) -> PathBuf {
        self.provider.started.lock().unwrap()[number].folder.path().join("work")
    }
}

/// Shell text with nothing else said.
pub(crate) fn shell(text: &str) -> Command {
    Command {
        program: Program::Shell(text.to_owned()),
        cwd: None,
        env: Vec::new(),
        stdin: Vec::new(),
        user: None,
        timeout: Some(Duration::from_secs(60)),
        show: Show::default(),
        merge_stderr: false,
        terminal: None,
    }
}

pub(crate) async fn sh(sandbox: &Arc<dyn Sandbox>, text: &str) -> Outcome {
    sandbox.exec(shell(text)).await.unwrap()
}

/// The stable word of a failure.
pub(crate) fn code(failure: &Failure) -> &str {
    match failure {
        Failure::Other { code, .. } => code,
        Failure::Invalid(_) => "invalid",
        Failure::Unavailable(_) => "unavailable",
        Failure::Budget(_) => "budget",
        Failure::Cancelled | Failure::Denied(_) => "another",
    }
}

pub(crate) fn lives(pid: &Path) -> bool {
    std::fs::read_to_string(pid).ok().is_some_and(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        stat.is_ok_and(|stat| !stat.rsplit(") ").next().unwrap_or_default().starts_with(['Z', 'X']))
    })
}

/// Waits for something to become true.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("not within 10 s: {what}");
}
