//! What Orchard's clients send and read.

use super::super::commands::{CommandState, CommandView, Ending, TIMEOUT_S};
use super::super::files::{Kind, StatView};
use super::values::{self, Flag, Number};
use crate::problem::{Code, Problem};
use crate::registry::{Reaches, SandboxState, SandboxView};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;
use utoipa::{IntoParams, ToSchema};

/// Cores where the request names none.
const CPU: f64 = 4.0;
/// Bytes of memory where the request names none.
const MEMORY: u64 = 16 << 30;
/// Exit code of a command whose time was over.
const TIMED_OUT: i32 = 124;
/// Exit code of a command whose program is not there. One that did not start for another reason has none: that is not an outcome.
const NOT_FOUND: i32 = 127;
/// The signal of a command that was killed for its memory.
const KILLED: i32 = 9;

/// A quantity in the notation of Kubernetes: `4`, `500m`, `16Gi`, `1e9`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a number, or a string such as `512Mi`")]
pub(crate) enum Quantity {
    /// A number.
    Number(f64),
    /// A number with a unit.
    Text(String),
}

impl Quantity {
    /// An empty text is nothing.
    fn text(given: Option<&Quantity>) -> Option<String> {
        let text = match given? {
            Quantity::Number(number) => number.to_string(),
            Quantity::Text(text) => text.trim().to_owned(),
        };
        Some(text).filter(|text| !text.is_empty())
    }
}

/// The sandbox to create.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = OrchardCreateSandbox)]
pub(crate) struct CreateSandbox {
    /// The name of the image.
    pub(super) image: String,
    /// Whether the sandbox has no network; default true.
    #[schema(value_type = Option<bool>)]
    block_network: Option<Flag>,
    /// An id chosen by the client. If a sandbox with this id exists, it is returned.
    #[schema(pattern = "^[A-Za-z0-9._-]{0,64}$")]
    sandbox_id: Option<String>,
    /// CPU cores; default `4`.
    cpu: Option<Quantity>,
    /// Memory; default `16Gi`.
    memory: Option<Quantity>,
    /// How long the sandbox may take to become ready, in seconds; default 3600. It does not limit the lifetime of the sandbox.
    #[schema(value_type = Option<f64>)]
    timeout: Option<Number>,
    /// Labels to find the sandbox by.
    labels: Option<BTreeMap<String, String>>,
}

impl CreateSandbox {
    pub(super) fn is_closed(&self) -> bool {
        self.block_network.is_none_or(|blocked| blocked.0)
    }

    pub(super) fn id(&self) -> Option<String> {
        self.sandbox_id.clone().filter(|id| !id.is_empty())
    }

    pub(super) fn cores(&self) -> Result<f64, Problem> {
        Quantity::text(self.cpu.as_ref()).map_or(Ok(CPU), |text| values::cores("cpu", &text))
    }

    pub(super) fn memory(&self) -> Result<u64, Problem> {
        Quantity::text(self.memory.as_ref()).map_or(Ok(MEMORY), |text| values::bytes("memory", &text))
    }

    pub(super) fn ready_within(&self) -> Duration {
        values::bound(self.timeout, values::REQUEST_MAX)
    }

    pub(super) fn labels(&self) -> BTreeMap<String, String> {
        self.labels.clone().unwrap_or_default()
    }
}

/// A sandbox.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OrchardSandbox)]
pub(crate) struct Sandbox {
    sandbox_id: String,
    /// The state: `pending`, `ready` or `failed`.
    status: &'static str,
    /// Whether the sandbox accepts calls.
    ready: bool,
    image: String,
    /// Whether the sandbox has no network.
    block_network: bool,
    cpu: String,
    memory: String,
    /// How long it may take to become ready, in whole seconds; only in the response that creates it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    timeout: Option<u64>,
    /// When it was created, in seconds since 1970.
    created_at: f64,
    /// When its lifetime ends, in seconds since 1970.
    expires_at: f64,
    labels: BTreeMap<String, String>,
    /// Why it failed, or which part of the request was not granted; otherwise empty.
    status_message: String,
}

impl Sandbox {
    pub(super) fn of(view: SandboxView) -> Sandbox {
        let memory = match view.memory {
            bytes if bytes.is_multiple_of(1 << 30) => format!("{}Gi", bytes >> 30),
            bytes if bytes.is_multiple_of(1 << 20) => format!("{}Mi", bytes >> 20),
            bytes => bytes.to_string(),
        };
        Sandbox {
            sandbox_id: view.id,
            status: match view.state {
                SandboxState::Creating => "pending",
                SandboxState::Running => "ready",
                SandboxState::Failed => "failed",
                SandboxState::Ended => "terminated",
            },
            ready: view.state == SandboxState::Running,
            image: view.image,
            block_network: matches!(view.network, Reaches::Word(_)),
            cpu: view.cpu.to_string(),
            memory,
            timeout: None,
            created_at: seconds(view.created_ms),
            expires_at: seconds(view.expires_ms),
            labels: view.labels,
            status_message: view.error.map(|error| error.detail).or(view.ended).unwrap_or_default(),
        }
    }

    /// Whether it is being made or runs.
    pub(super) fn is_there(&self) -> bool {
        matches!(self.status, "pending" | "ready")
    }

    /// As the answer to the request that makes it.
    pub(super) fn asked(self, ready_within: Duration) -> Sandbox {
        Sandbox { timeout: Some(ready_within.as_secs_f64().ceil() as u64), ..self }
    }

    /// With what it was not given.
    pub(super) fn without(mut self, what: &str) -> Sandbox {
        if self.status_message.is_empty() {
            what.clone_into(&mut self.status_message);
        }
        self
    }
}

/// A list of sandboxes.
#[derive(Serialize, ToSchema)]
#[schema(as = OrchardSandboxes)]
pub(crate) struct Sandboxes {
    pub(super) sandboxes: Vec<Sandbox>,
}

/// The result of deleting a sandbox.
#[derive(Serialize, ToSchema)]
#[schema(as = OrchardDeleted)]
pub(crate) struct Deleted {
    pub(super) sandbox_id: String,
    pub(super) status: &'static str,
}

/// The response to a heartbeat.
#[derive(Serialize, ToSchema)]
#[schema(as = OrchardHeartbeat)]
pub(crate) struct Heartbeat {
    /// Always `ok`.
    pub(super) status: &'static str,
    pub(super) sandbox_id: String,
}

/// How long to wait.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct TimeoutQuery {
    /// How long to wait, in seconds; at most 3600.
    #[serde(default)]
    #[param(value_type = Option<f64>)]
    timeout: Vec<Number>,
}

impl TimeoutQuery {
    /// Where it is said several times, the last one counts.
    pub(super) fn timeout(&self) -> Option<Number> {
        self.timeout.last().copied()
    }
}

/// Shell text, or a program with its arguments.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected shell text, or a list of strings")]
#[schema(as = OrchardCommandLine)]
pub(crate) enum CommandLine {
    /// Shell text.
    Text(String),
    /// A program with its arguments, run without a shell.
    Words(Vec<String>),
}

/// The command to run.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = OrchardExec)]
pub(crate) struct Exec {
    /// Shell text, or a program with its arguments.
    pub(super) command: CommandLine,
    /// Time limit in seconds, after which the command is killed; at most 7 days; default 300, also for 0.
    #[schema(value_type = Option<f64>)]
    timeout_seconds: Option<Number>,
    /// The folder to start in; default the folder of the sandbox.
    cwd: Option<String>,
    /// Variables added to the environment.
    pub(super) env: Option<BTreeMap<String, String>>,
    /// Whether to run it in a login shell that reads `~/.bashrc`; default false.
    #[schema(value_type = Option<bool>)]
    login_shell: Option<Flag>,
    /// Whether to wait until the command has ended, at most 3600 s; default false.
    #[schema(value_type = Option<bool>)]
    wait: Option<Flag>,
}

impl Exec {
    pub(super) fn text(&self) -> String {
        match &self.command {
            CommandLine::Text(text) => text.clone(),
            CommandLine::Words(words) => words.join(" "),
        }
    }

    /// When it is killed.
    pub(super) fn bound(&self) -> Duration {
        values::bound(self.timeout_seconds, Duration::from_secs_f64(TIMEOUT_S))
    }

    pub(super) fn cwd(&self) -> Option<&str> {
        self.cwd.as_deref().filter(|cwd| !cwd.is_empty())
    }

    pub(super) fn in_login_shell(&self) -> bool {
        self.login_shell.is_some_and(|login| login.0)
    }

    pub(super) fn is_waited_for(&self) -> bool {
        self.wait.is_some_and(|wait| wait.0)
    }
}

/// A command that is running or has ended.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OrchardJob)]
pub(crate) struct Job {
    job_id: String,
    sandbox_id: String,
    command: String,
    /// The state: `queued`, `running`, `succeeded` or `failed`.
    status: &'static str,
    stdout: String,
    stderr: String,
    /// The exit code; the negative number of the signal that killed it; 124 if it exceeded its time limit, 127 if the program
    /// does not exist.
    exit_code: Option<i32>,
    /// When it was created, in seconds since 1970.
    created_at: f64,
    /// When it started, in seconds since 1970.
    started_at: Option<f64>,
    /// When it ended, in seconds since 1970.
    completed_at: Option<f64>,
    /// Why the command failed, if it did not exit.
    error: Option<String>,
}

impl Job {
    pub(super) fn of(view: CommandView, command: String, created_ms: u64) -> Job {
        let error = match view.outcome {
            None | Some(Ending::Exit) => None,
            Some(Ending::Signal) => Some(format!("killed by signal {}", view.signal.unwrap_or_default())),
            Some(Ending::TimedOut) => Some("timed out".to_owned()),
            Some(Ending::OutOfMemory) => Some("out of memory".to_owned()),
            Some(Ending::NotStarted | Ending::Unknown) => view.message.clone(),
        };
        let exit_code = view.exit_code.or(view.signal.map(|signal| -signal)).or(match view.outcome {
            Some(Ending::TimedOut) => Some(TIMED_OUT),
            Some(Ending::OutOfMemory) => Some(-KILLED),
            Some(Ending::NotStarted) if view.not_found => Some(NOT_FOUND),
            _ => None,
        });
        let status = match (view.state, view.exit_code) {
            (CommandState::Running, _) => "running",
            (CommandState::Ended, Some(0)) => "succeeded",
            (CommandState::Ended, _) => "failed",
        };
        Job {
            job_id: format!("{}@{}", view.id, view.sandbox_id),
            sandbox_id: view.sandbox_id,
            command,
            status,
            stdout: view.stdout,
            stderr: view.stderr,
            exit_code,
            created_at: seconds(created_ms),
            started_at: Some(seconds(created_ms)),
            completed_at: view.duration_ms.map(|duration_ms| seconds(created_ms + duration_ms)),
            error,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.status != "running"
    }
}

/// The result of applying a patch.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OrchardPatched)]
pub(crate) struct Patched {
    /// Whether the patch was applied; otherwise nothing has changed.
    pub(super) success: bool,
    pub(super) stdout: String,
    pub(super) stderr: String,
    pub(super) exit_code: i32,
    /// Why the patch was not applied.
    pub(super) error: Option<String>,
}

/// The patch to apply.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = OrchardPatch)]
pub(crate) struct Patch {
    /// The patch, a unified or git diff.
    pub(super) patch: String,
    /// Time limit in seconds, at most 3600; default 30, also for 0.
    #[schema(value_type = Option<f64>)]
    timeout_seconds: Option<Number>,
}

impl Patch {
    /// How long the request waits for it.
    pub(super) fn within(&self) -> Duration {
        values::bound(self.timeout_seconds, Duration::from_secs(30)).min(values::REQUEST_MAX)
    }
}

/// Permission bits.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a number, or octal digits as a string")]
pub(crate) enum Mode {
    /// A number.
    Number(f64),
    /// Octal digits, as a string.
    Text(String),
}

impl Mode {
    pub(super) fn bits(&self) -> Result<u32, Problem> {
        let bits = match self {
            Mode::Number(number) => Some(*number as u32).filter(|bits| f64::from(*bits) == *number),
            Mode::Text(text) => u32::from_str_radix(text.trim_start_matches("0o"), 8).ok(),
        };
        bits.filter(|bits| *bits <= 0o7777).ok_or_else(|| {
            Problem::new(Code::Invalid, "invalid mode: expected permission bits such as \"0644\" or 420")
        })
    }
}

/// The file to write.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = OrchardUpload)]
pub(crate) struct Upload {
    /// The path of the file.
    #[schema(min_length = 1)]
    pub(super) path: String,
    /// The content as base64, with or without padding, on one or several lines.
    pub(super) content: String,
    /// Permission bits; default 0644.
    pub(super) mode: Option<Mode>,
}

/// The result of writing a file.
#[derive(Serialize, ToSchema)]
#[schema(as = OrchardUploaded)]
pub(crate) struct Uploaded {
    pub(super) path: String,
    pub(super) size: u64,
    pub(super) success: bool,
}

/// The file to read.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct PathQuery {
    /// A path, absolute or relative to the folder in which commands start.
    #[param(min_length = 1)]
    pub(super) path: String,
}

/// The folder to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct FolderQuery {
    /// A path, absolute or relative to the folder in which commands start; default that folder.
    pub(super) path: Option<String>,
}

/// A file with its content.
#[derive(Serialize, ToSchema)]
#[schema(as = OrchardFile)]
pub(crate) struct File {
    pub(super) path: String,
    /// The content, as base64.
    pub(super) content: String,
    pub(super) encoding: &'static str,
    pub(super) size: u64,
}

/// One entry of a folder. Symbolic links are followed.
#[derive(Serialize, ToSchema)]
#[schema(as = OrchardFileEntry)]
struct FileEntry {
    name: String,
    path: String,
    /// The type: `directory`, or `file` for everything else.
    #[serde(rename = "type")]
    kind: &'static str,
    size: u64,
    /// When it was last modified, such as `2026-01-31T10:00:00`, in UTC.
    modified: String,
}

/// The content of a folder.
#[derive(Serialize, ToSchema)]
#[schema(as = OrchardFileList)]
pub(crate) struct FileList {
    path: String,
    files: Vec<FileEntry>,
}

impl FileList {
    pub(super) fn of(path: String, entries: Vec<StatView>) -> FileList {
        let files = entries.into_iter().map(|entry| FileEntry {
            path: format!("{}/{}", path.trim_end_matches('/'), entry.path),
            name: entry.path,
            kind: if entry.kind == Kind::Folder { "directory" } else { "file" },
            size: entry.size,
            modified: iso(entry.modified_ms),
        });
        FileList { files: files.collect(), path }
    }
}

/// Seconds since 1970.
fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

fn iso(ms: i64) -> String {
    const FORM: &[BorrowedFormatItem<'_>] =
        format_description!("[year]-[month]-[day]T[hour]:[minute]:[second]");
    let nanos = i128::from(ms) * 1_000_000;
    let time = OffsetDateTime::from_unix_timestamp_nanos(nanos).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    time.format(FORM).unwrap_or_default()
}
