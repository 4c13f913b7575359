//! Processes of Chromium in sandboxes.

use bytes::Bytes;
use espalier_agent_client::{Agent, Id, wire};
use espalier_browser::{Browser, BrowserError, CommandLine, LaunchOptions, Launcher, Proxy, RemoteOptions};
use espalier_core::browser::ProcessSpec;
use espalier_core::sandbox::{Network, SandboxSpec};
use espalier_sandbox::PROXY_PORT;
use espalier_sandbox::service::{Purpose, Sandbox, Sandboxes, describe, random_id};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Programs that are looked for, the first that is there is taken.
const PROGRAMS: [&str; 4] = ["chromium-headless-shell", "chrome-headless-shell", "chromium", "chrome"];
/// Who runs it: `nobody`, by number, since no image has to name it.
const USER: &str = "65534:65534";
/// Where it keeps its files in the sandbox.
const HOME: &str = "/tmp/espalier-browser";
/// From the start of the program to its first answer.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// From its kill until it is known how it ended.
const END_MAX: Duration = Duration::from_secs(10);
/// For removing the downloads of a context.
const REMOVE_MAX: Duration = Duration::from_secs(30);
const SIGKILL: i32 = 9;
/// Processes and threads of one sandbox: Chromium has about 25 threads for each page, and 100 of its own.
const PROCESSES_MAX: u32 = 4_096;
/// What it may write: profile, cache, downloads.
const DISK: u64 = 2 << 30;
/// Starts the first program that is there.
const START: &str = "mkdir -p \"$HOME/downloads\" || exit 126
programs=$1; shift
for program in $programs; do
  if command -v \"$program\" >/dev/null; then exec \"$program\" \"$@\"; fi
done
echo \"no Chromium: none of $programs\" >&2
exit 127";

/// Agents of the sandboxes that processes run in, by the id of the sandbox.
pub(crate) type Agents = Arc<Mutex<BTreeMap<String, Agent>>>;

/// Starts processes of Chromium, each in a sandbox of its own.
pub(crate) struct SandboxLauncher {
    pub(crate) service: Sandboxes,
    pub(crate) process: ProcessSpec,
    pub(crate) network: Network,
    pub(crate) purpose: Purpose,
    pub(crate) agents: Agents,
}

impl SandboxLauncher {
    fn sandbox(&self) -> SandboxSpec {
        SandboxSpec {
            image: self.process.image.clone(),
            cpu: self.process.cpu,
            memory: self.process.memory,
            disk: DISK,
            processes_max: PROCESSES_MAX,
            network: self.network.clone(),
            user_namespaces: !self.process.no_sandbox,
            ..SandboxSpec::default()
        }
    }

    async fn start(&self) -> Result<Browser, BrowserError> {
        let sandbox = self
            .service
            .create(&self.sandbox(), &self.purpose)
            .await
            .map_err(|error| launch(format!("its sandbox: {}", error.with_causes())))?;
        let hold = self.service.hold(&sandbox);
        let id = sandbox.placed.id.clone();
        let home = format!("{HOME}/{id}");
        let agent = sandbox.agent;
        self.agents.lock().insert(id.clone(), agent.clone());
        let agents = Arc::clone(&self.agents);
        let end = move || {
            agents.lock().remove(&id);
            drop(hold);
        };
        // Nothing is reached but through the proxy, the sandbox's own loopback neither.
        let line = command(&self.process, &home, Some("<-loopback>"))?;
        let started = start(&agent, USER, &home, line, (None, Box::new(end))).await?;
        Ok(started.browser)
    }
}

impl Launcher for SandboxLauncher {
    fn launch(&self) -> BoxFuture<'_, Result<Browser, BrowserError>> {
        Box::pin(self.start())
    }

    fn is_sandboxed(&self) -> bool {
        !self.process.no_sandbox
    }
}

/// Starts Chromium in a sandbox of a rollout, where its pages reach what runs there without the proxy. `on_memory` is called when it has ended
/// and the kernel had killed a process of it for memory.
pub(crate) async fn start_beside(
    sandbox: Sandbox,
    process: &ProcessSpec,
    on_memory: Call,
) -> Result<OwnBrowser, BrowserError> {
    // One that a rollout opens after another one ended in the same sandbox begins with nothing of it.
    let home = format!("{HOME}/{}", random_id());
    let Sandbox { agent, user, .. } = sandbox;
    // An image whose commands are root's has nobody else that could be known.
    let user = user.filter(|user| !is_root(user)).unwrap_or_else(|| USER.to_owned());
    let line = command(process, &home, None)?;
    start(&agent, &user, &home, line, (Some(on_memory), Box::new(|| ()))).await
}

/// Called once.
pub(crate) type Call = Box<dyn FnOnce() + Send>;

/// A browser that is of one rollout alone, in one of its sandboxes.
pub(crate) struct OwnBrowser {
    pub(crate) browser: Browser,
    /// Reaches its files.
    pub(crate) agent: Agent,
    command: Id,
    /// How the command ended, once it has.
    ended: watch::Receiver<Option<String>>,
}

impl OwnBrowser {
    /// Kills it, and waits until it is known how it ended.
    pub(crate) async fn end(&self) {
        end(&self.agent, &self.command, self.ended.clone()).await;
    }
}

async fn end(agent: &Agent, command: &Id, mut ended: watch::Receiver<Option<String>>) {
    let ending = async {
        let id = agent.allot();
        // One that has ended already, or whose sandbox is gone, is fine.
        let _ = agent.signal(&id, command, SIGKILL, true).await;
        agent.settle(&id);
        let _ = ended.wait_for(Option::is_some).await;
    };
    if tokio::time::timeout(END_MAX, ending).await.is_err() {
        tracing::debug!("a browser in a sandbox of its task did not end in time");
    }
}

fn is_root(user: &str) -> bool {
    let name = user.split(':').next().unwrap_or_default();
    ["", "0", "root"].contains(&name)
}

/// Program and arguments of the command in a sandbox. `bypass`: what is reached without the proxy; `None`: the loopback.
fn command(process: &ProcessSpec, home: &str, bypass: Option<&str>) -> Result<Vec<OsString>, BrowserError> {
    let programs = process.executable.clone().unwrap_or_else(|| PROGRAMS.join(" "));
    let options = LaunchOptions {
        // Not looked for on this machine; new ones with a window know `--headless` as well.
        executable: Some(PathBuf::from(PROGRAMS[0])),
        no_sandbox: process.no_sandbox,
        proxy: Some(Proxy {
            server: format!("http://127.0.0.1:{PROXY_PORT}"),
            bypass: bypass.map(str::to_owned),
        }),
        args: vec!["--force-webrtc-ip-handling-policy=disable_non_proxied_udp".to_owned()],
        ..LaunchOptions::default()
    };
    let line = options.command_line(&Path::new(home).join("profile"))?;
    let start = ["-c", START, "sh"].map(str::to_owned).into_iter().chain([programs]);
    let line = CommandLine { program: PathBuf::from("/bin/sh"), args: start.chain(line.args).collect() };
    Ok(line.over_standard_streams())
}

/// Starts the command and waits for its first answer. `on_memory`: see [`start_beside`]; `on_end` is called when nobody needs it any more.
async fn start(
    agent: &Agent,
    user: &str,
    home: &str,
    line: Vec<OsString>,
    (on_memory, on_end): (Option<Call>, Call),
) -> Result<OwnBrowser, BrowserError> {
    let variables = [("HOME", home), ("LANG", "C.UTF-8"), ("TZ", "UTC")];
    let spec = wire::CommandSpec {
        user: user.to_owned(),
        folder: bytes_of("/tmp"),
        environment: variables.into_iter().map(|(name, value)| variable(name, value)).collect(),
        label: "browser".to_owned(),
        ..espalier_agent_client::command::arguments(line.iter().map(|word| word.as_encoded_bytes()))
    };
    let command = agent.allot();
    let pipe = agent.pipe(&command, spec).await;
    let pipe = pipe.map_err(|error| launch(format!("its sandbox: {error}")))?;
    let (tell, ended) = watch::channel(None);
    let is_own = on_memory.is_some();
    let end_of_pipe = pipe.ended;
    // Owned by nobody: it ends with the command, or with the sandbox.
    tokio::spawn(async move {
        let how = match end_of_pipe.await {
            Ok(ended) => {
                if let Some(tell) = on_memory.filter(|_| ended.ended.memory_kills > 0) {
                    tell();
                }
                how(&ended.ended, &ended.stderr)
            }
            Err(error) => format!("its sandbox is lost: {error}"),
        };
        tell.send_replace(Some(how));
    });
    let mut told = ended.clone();
    let options = RemoteOptions {
        timeout: ANSWER_MAX,
        ended: Some(Box::pin(async move {
            let how = told.wait_for(Option::is_some).await;
            how.ok().and_then(|how| how.clone()).unwrap_or_else(|| "its sandbox is lost".to_owned())
        })),
        end: Some(on_end),
        downloads: Some(PathBuf::from(format!("{home}/downloads"))),
        remove: Some(Box::new(remover(agent.clone()))),
    };
    match Browser::over(pipe.reader, pipe.writer, options).await {
        Ok(browser) => Ok(OwnBrowser { browser, agent: agent.clone(), command, ended }),
        Err(error) => {
            if is_own {
                end(agent, &command, ended).await;
            }
            Err(error)
        }
    }
}

/// Removes folders of a sandbox. What is left where that fails goes with the sandbox.
fn remover(agent: Agent) -> impl Fn(PathBuf) + Send + Sync + 'static {
    move |folder| {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let agent = agent.clone();
        // Owned by nobody: it ends by itself within its bound.
        runtime.spawn(async move {
            let path = folder.as_os_str().as_encoded_bytes().to_vec();
            let id = agent.allot();
            let removed = agent.remove(&id, path, true, true);
            if let Ok(Err(error)) = tokio::time::timeout(REMOVE_MAX, removed).await {
                tracing::debug!(folder = %folder.display(), %error, "downloads could not be removed");
            }
        });
    }
}

/// The sandbox whose agent reaches a file of a browser.
pub(crate) fn sandbox_of(path: &Path) -> Option<&str> {
    path.strip_prefix(HOME).ok()?.iter().next()?.to_str()
}

fn launch(reason: String) -> BrowserError {
    BrowserError::Launch { reason }
}

/// How the command ended, with the last line that it wrote about it.
fn how(ended: &wire::Ended, stderr: &[u8]) -> String {
    let outcome = describe(ended.outcome.as_ref().and_then(|outcome| outcome.outcome.as_ref()));
    let text = String::from_utf8_lossy(stderr);
    match text.lines().rev().find(|line| !line.trim().is_empty()) {
        Some(line) => format!("{outcome}: {}", line.trim().chars().take(400).collect::<String>()),
        None => outcome,
    }
}

fn bytes_of(text: &str) -> Bytes {
    text.as_bytes().to_vec().into()
}

fn variable(name: &str, value: &str) -> wire::Variable {
    wire::Variable { name: bytes_of(name), value: bytes_of(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_a_browser_names_its_sandbox() {
        let of = |path: &str| sandbox_of(Path::new(path)).map(str::to_owned);
        assert_eq!(of("/tmp/espalier-browser/abc/downloads/x"), Some("abc".to_owned()));
        assert_eq!(of("/tmp/other/abc"), None);
    }
}
