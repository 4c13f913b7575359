//! One browser process with its children: a process group that never outlives its owner, or one that somebody else
//! starts and ends.
//!
//! A task owns the process and its profile folder. The group is killed when the task is told to, when the browser's
//! first process ends by itself, and when the task is dropped; then its standard error ends, since no process holds it
//! any more, and the folder is removed.

use super::{CommandLine, LaunchOptions};
use crate::error::{BrowserError, Result};
use crate::folder::OwnFolder;
use crate::remote::RemoteOptions;
use crate::transport::BrowserEnds;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::VecDeque;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::watch;

/// What is kept of the end of its standard error.
const STDERR_BYTES: usize = 8 << 10;
/// After SIGKILL every process of a group is gone within milliseconds; a longer wait would hide a fault.
const DEATH_BOUND: Duration = Duration::from_secs(5);
pub(crate) struct Process {
    kill: watch::Sender<bool>,
    how: watch::Receiver<Option<Arc<str>>>,
    /// True once the profile folder is removed too.
    gone: watch::Receiver<bool>,
    group: Option<u32>,
}

impl Process {
    /// Starts the browser with a fresh profile folder, or the one of the options.
    pub(crate) fn start(options: &LaunchOptions, ends: BrowserEnds) -> Result<Process> {
        let failed =
            |what: &str, error: std::io::Error| BrowserError::Launch { reason: format!("{what}: {error}") };
        let (profile, folder): (PathBuf, Option<OwnFolder>) = match &options.user_data_dir {
            Some(given) => (given.clone(), None),
            None => {
                let folder =
                    OwnFolder::new("profile").map_err(|error| failed("no folder for the profile", error))?;
                (folder.path().to_owned(), Some(folder))
            }
        };
        let line = options.command_line(&profile)?;
        let mut child = spawn(&line, options, ends)
            .map_err(|error| failed(&format!("cannot execute {}", line.program.display()), error))?;
        let group = child.id().ok_or_else(|| BrowserError::Launch { reason: "it ended at once".into() })?;
        let stderr = child.stderr.take();
        let (kill, killed) = watch::channel(false);
        let (tell_how, how) = watch::channel(None);
        let (tell_gone, gone) = watch::channel(false);
        // Owner: the browser. Cancelled with the runtime, it drops the group, then the folder.
        tokio::spawn(async move {
            let how = end(child, Group(group), stderr, killed).await;
            tell_how.send_replace(Some(how));
            remove(folder).await;
            tell_gone.send_replace(true);
        });
        Ok(Process { kill, how, gone, group: Some(group) })
    }

    /// A process of somebody else's: told to end, and told of when it has.
    pub(crate) fn remote(options: RemoteOptions) -> Process {
        let (kill, mut killed) = watch::channel(false);
        let (tell_how, how) = watch::channel(None);
        let (tell_gone, gone) = watch::channel(false);
        let RemoteOptions { ended, end, .. } = options;
        // Owner: the browser. Cancelled with the runtime, it drops what its starter gave it.
        tokio::spawn(async move {
            let told = ended.is_some();
            let mut ended = ended.unwrap_or_else(|| Box::pin(std::future::pending()));
            // The sender is dropped after it has sent `true`, so an error means the same.
            let mut how = tokio::select! {
                how = &mut ended => Some(how),
                _ = killed.wait_for(|killed| *killed) => None,
            };
            if let Some(end) = end {
                end();
            }
            if told && how.is_none() {
                how = tokio::time::timeout(DEATH_BOUND, ended).await.ok();
                if how.is_none() {
                    tracing::warn!("the end of a remote browser process is not told");
                }
            }
            tell_how.send_replace(Some(Arc::from(how.unwrap_or_else(|| "its streams ended".to_owned()))));
            tell_gone.send_replace(true);
        });
        Process { kill, how, gone, group: None }
    }

    /// The id of the process group; `None`: somebody else's process.
    pub(crate) fn group(&self) -> Option<u32> {
        self.group
    }

    pub(crate) fn kill(&self) {
        self.kill.send_replace(true);
    }

    /// How it ended, with the end of its standard error, once every process of it is gone.
    pub(crate) async fn how_it_ended(&self) -> Arc<str> {
        let mut how = self.how.clone();
        match how.wait_for(Option::is_some).await {
            Ok(how) => how.clone().unwrap_or_default(),
            Err(_) => Arc::from(""),
        }
    }

    /// Waits until its profile folder is removed, too.
    pub(crate) async fn gone(&self) {
        let mut gone = self.gone.clone();
        // An error: the task is gone, and what it owned with it.
        let _ = gone.wait_for(|gone| *gone).await;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A process group; dropping it kills what is left.
struct Group(u32);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = i32::try_from(self.0).ok().and_then(Pid::from_raw) {
            // Fails only where the group is already empty.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

fn spawn(line: &CommandLine, options: &LaunchOptions, ends: BrowserEnds) -> std::io::Result<Child> {
    let argv = line.over_standard_streams();
    Command::new(&argv[0])
        .args(&argv[1..])
        .envs(options.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::from(ends.commands))
        .stdout(Stdio::from(ends.answers))
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
}

/// Waits for the first process, or kills the group when told to.
async fn end(
    mut child: Child,
    group: Group,
    stderr: Option<ChildStderr>,
    mut killed: watch::Receiver<bool>,
) -> Arc<str> {
    let tail = Arc::new(Mutex::new(VecDeque::new()));
    let reader = tokio::spawn(read_tail(stderr, Arc::clone(&tail)));
    // The sender is dropped after it has sent `true`, so an error means the same.
    let status = tokio::select! {
        status = child.wait() => status.ok(),
        _ = killed.wait_for(|killed| *killed) => None,
    };
    drop(group);
    let status = match status {
        Some(status) => Some(status),
        None => tokio::time::timeout(DEATH_BOUND, child.wait()).await.ok().and_then(std::io::Result::ok),
    };
    if tokio::time::timeout(DEATH_BOUND, reader).await.is_err() {
        tracing::warn!("a process of the browser outlives its group");
    }
    describe(status, &tail.lock())
}

async fn remove(folder: Option<OwnFolder>) {
    let Some(folder) = folder else { return };
    let path = folder.path().to_owned();
    let removed = tokio::task::spawn_blocking(move || folder.close()).await;
    if let Err(error) = removed.map_err(std::io::Error::other).flatten() {
        tracing::warn!(%error, folder = %path.display(), "profile not removed");
    }
}

async fn read_tail(stderr: Option<ChildStderr>, tail: Arc<Mutex<VecDeque<u8>>>) {
    let Some(mut stderr) = stderr else { return };
    let mut buffer = [0; 4096];
    loop {
        let read = match stderr.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(read) => read,
        };
        let mut tail = tail.lock();
        tail.extend(&buffer[..read]);
        let excess = tail.len().saturating_sub(STDERR_BYTES);
        tail.drain(..excess);
    }
}

fn describe(status: Option<ExitStatus>, tail: &VecDeque<u8>) -> Arc<str> {
    let how = match status {
        None => "killed".to_owned(),
        Some(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit status {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "ended".to_owned(),
        },
    };
    let bytes: Vec<u8> = tail.iter().copied().collect();
    let text = String::from_utf8_lossy(&bytes);
    let text = text.trim();
    if text.contains("Running as root without --no-sandbox") {
        return Arc::from(format!(
            "{how}: as root Chromium starts without its own sandbox only (hint: run it as another user, or set `no_sandbox: true`)"
        ));
    }
    if text.is_empty() { Arc::from(how) } else { Arc::from(format!("{how}; its last words: {text}")) }
}
