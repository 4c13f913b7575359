//! Processes of Chromium in sandboxes.

use bytes::Bytes;
use espalier_agent_client::{Agent, command, wire};
use espalier_browser::{Browser, BrowserError, CommandLine, LaunchOptions, Launcher, Proxy, RemoteOptions};
use espalier_core::browser::ProcessSpec;
use espalier_core::sandbox::{Network, SandboxSpec};
use espalier_sandbox::PROXY_PORT;
use espalier_sandbox::service::{Purpose, Sandboxes, describe};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Programs that are looked for, the first that is there is taken.
const PROGRAMS: [&str; 4] = ["chromium-headless-shell", "chrome-headless-shell", "chromium", "chrome"];
/// Who runs it: `nobody`, by number, since no image has to name it.
const USER: &str = "65534:65534";
/// Where it keeps its files in the sandbox.
const HOME: &str = "/tmp/espalier-browser";
/// From the start of the program to its first answer.
const ANSWER_MAX: Duration = Duration::from_secs(30);
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

    /// Program and arguments of the command in the sandbox.
    fn command(&self, home: &str) -> Result<Vec<OsString>, BrowserError> {
        let programs = self.process.executable.clone().unwrap_or_else(|| PROGRAMS.join(" "));
        let options = LaunchOptions {
            // Not looked for on this machine; new ones with a window know `--headless` as well.
            executable: Some(PathBuf::from(PROGRAMS[0])),
            no_sandbox: self.process.no_sandbox,
            // Nothing is reached but through the proxy, the sandbox's own loopback neither.
            proxy: Some(Proxy {
                server: format!("http://127.0.0.1:{PROXY_PORT}"),
                bypass: Some("<-loopback>".to_owned()),
            }),
            args: vec!["--force-webrtc-ip-handling-policy=disable_non_proxied_udp".to_owned()],
            ..LaunchOptions::default()
        };
        let line = options.command_line(&Path::new(home).join("profile"))?;
        let start = ["-c", START, "sh"].map(str::to_owned).into_iter().chain([programs]);
        let line = CommandLine { program: PathBuf::from("/bin/sh"), args: start.chain(line.args).collect() };
        Ok(line.over_standard_streams())
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
        let variables = [("HOME", home.as_str()), ("LANG", "C.UTF-8"), ("TZ", "UTC")];
        let spec = wire::CommandSpec {
            user: USER.to_owned(),
            folder: bytes_of("/tmp"),
            environment: variables.into_iter().map(|(name, value)| variable(name, value)).collect(),
            label: "browser".to_owned(),
            ..command::arguments(self.command(&home)?.iter().map(|word| word.as_encoded_bytes()))
        };
        let pipe = agent.pipe(&agent.allot(), spec).await;
        let pipe = pipe.map_err(|error| launch(format!("its sandbox {id}: {error}")))?;
        self.agents.lock().insert(id.clone(), agent);
        let ended = pipe.ended;
        let agents = Arc::clone(&self.agents);
        let options = RemoteOptions {
            timeout: ANSWER_MAX,
            ended: Some(Box::pin(async move {
                match ended.await {
                    Ok(ended) => how(&ended.ended, &ended.stderr),
                    Err(error) => format!("its sandbox is lost: {error}"),
                }
            })),
            end: Some(Box::new(move || {
                agents.lock().remove(&id);
                drop(hold);
            })),
            downloads: Some(PathBuf::from(format!("{home}/downloads"))),
        };
        Browser::over(pipe.reader, pipe.writer, options).await
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
