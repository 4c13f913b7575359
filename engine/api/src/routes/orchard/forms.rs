//! What Orchard's clients send and read.

use super::super::commands::{CommandState, CommandView, Ending};
use super::super::files::{Kind, StatView};
use crate::problem::{Code, Problem};
use crate::registry::{Reaches, SandboxState, SandboxView};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use utoipa::{IntoParams, ToSchema};

/// An amount as Kubernetes writes it: `4`, `500m`, `16Gi`, `1e9`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Quantity {
    /// As a number.
    Number(f64),
    /// With a unit.
    Text(String),
}

impl Quantity {
    fn parse(&self, what: &str, units: &[(&str, f64)]) -> Result<f64, Problem> {
        let text = match self {
            Quantity::Number(number) => return Ok(*number),
            Quantity::Text(text) => text.trim(),
        };
        // The longest unit first: `Mi` ends in no shorter one, but `m` alone is a thousandth.
        let found = units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)));
        let (digits, factor) = found.unwrap_or((text, 1.0));
        let number: Option<f64> = digits.trim().parse().ok().filter(|number: &f64| number.is_finite());
        number.map(|number| number * factor).ok_or_else(|| {
            let names: Vec<_> = units.iter().map(|(unit, _)| format!("`{unit}`")).collect();
            Problem::invalid(
                what,
                crate::http::shown(text),
                &format!("a number, or one with {}", names.join(", ")),
            )
        })
    }

    pub(super) fn cores(&self) -> Result<f64, Problem> {
        self.parse("cpu", &[("m", 0.001)])
    }

    pub(super) fn bytes(&self, what: &str) -> Result<u64, Problem> {
        let units = [
            ("Ki", 1024.0),
            ("Mi", 1024.0 * 1024.0),
            ("Gi", 1024.0 * 1024.0 * 1024.0),
            ("Ti", 1024.0 * 1024.0 * 1024.0 * 1024.0),
            ("k", 1e3),
            ("M", 1e6),
            ("G", 1e9),
            ("T", 1e12),
        ];
        let bytes = self.parse(what, &units)?;
        if !(0.0..=9e15).contains(&bytes) {
            return Err(Problem::invalid(what, bytes, "0 to 8Pi"));
        }
        Ok(bytes as u64)
    }
}

fn four() -> Quantity {
    Quantity::Text("4".to_owned())
}

fn sixteen_gibibytes() -> Quantity {
    Quantity::Text("16Gi".to_owned())
}

fn yes() -> bool {
    true
}

/// A sandbox to make.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = OrchardCreateSandbox)]
pub(crate) struct CreateSandbox {
    /// Name of an image.
    pub(super) image: String,
    /// Whether it reaches nothing but itself; default true.
    #[serde(default = "yes")]
    pub(super) block_network: bool,
    /// The client's own id for it.
    #[serde(default)]
    #[schema(pattern = "^[A-Za-z0-9._-]{1,64}$")]
    pub(super) sandbox_id: Option<String>,
    /// Cores; default `4`.
    #[serde(default = "four")]
    pub(super) cpu: Quantity,
    /// Memory; default `16Gi`.
    #[serde(default = "sixteen_gibibytes")]
    pub(super) memory: Quantity,
    /// Its life, in seconds; default 7200.
    #[serde(default)]
    #[schema(exclusive_minimum = 0, maximum = 604_800)]
    pub(super) timeout: Option<f64>,
    /// To find it by.
    #[serde(default)]
    pub(super) labels: BTreeMap<String, String>,
}

/// A sandbox.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OrchardSandbox)]
pub(crate) struct Sandbox {
    sandbox_id: String,
    /// `pending`, `ready`, `failed` or `terminated`.
    status: &'static str,
    /// It takes calls.
    ready: bool,
    image: String,
    /// It reaches nothing but itself.
    block_network: bool,
    cpu: String,
    memory: String,
    /// Its life, in seconds.
    timeout: f64,
    /// Seconds since 1970.
    created_at: f64,
    /// Seconds since 1970.
    expires_at: f64,
    labels: BTreeMap<String, String>,
    /// Why it failed, how it ended, or what it was not given.
    status_message: Option<String>,
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
            timeout: seconds(view.expires_ms) - seconds(view.created_ms),
            created_at: seconds(view.created_ms),
            expires_at: seconds(view.expires_ms),
            labels: view.labels,
            status_message: view.error.map(|error| error.detail).or(view.ended),
        }
    }

    /// Whether it is being made or runs.
    pub(super) fn is_there(&self) -> bool {
        matches!(self.status, "pending" | "ready")
    }

    /// With what it was not given.
    pub(super) fn without(mut self, what: &str) -> Sandbox {
        self.status_message.get_or_insert_with(|| what.to_owned());
        self
    }
}

/// Sandboxes.
#[derive(Serialize, ToSchema)]
#[schema(as = OrchardSandboxes)]
pub(crate) struct Sandboxes {
    pub(super) sandboxes: Vec<Sandbox>,
}

/// What became of a sandbox.
#[derive(Serialize, ToSchema)]
#[schema(as = OrchardDeleted)]
pub(crate) struct Deleted {
    pub(super) sandbox_id: String,
    pub(super) status: &'static str,
}

/// How long to wait.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct TimeoutQuery {
    /// In seconds.
    #[param(minimum = 0, maximum = 3600)]
    pub(super) timeout: Option<f64>,
}

/// Shell text, or a program with its arguments.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(as = OrchardCommandLine)]
pub(crate) enum CommandLine {
    /// For a shell.
    Text(String),
    /// Without one.
    Words(Vec<String>),
}

/// A command to run.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = OrchardExec)]
pub(crate) struct Exec {
    /// What to run.
    pub(super) command: CommandLine,
    /// When it is killed, in seconds; default 300.
    #[schema(minimum = 0, maximum = 3600)]
    pub(super) timeout_seconds: Option<f64>,
    /// Where it starts.
    #[serde(default)]
    pub(super) cwd: Option<String>,
    /// Added to the environment.
    #[serde(default)]
    pub(super) env: Option<BTreeMap<String, String>>,
    /// Whether a login shell runs the text; default false.
    #[serde(default)]
    pub(super) login_shell: bool,
    /// Whether to answer only when it has ended; default false.
    #[serde(default)]
    pub(super) wait: bool,
}

impl Exec {
    pub(super) fn text(&self) -> String {
        match &self.command {
            CommandLine::Text(text) => text.clone(),
            CommandLine::Words(words) => words.join(" "),
        }
    }
}

/// A command that was run, or runs.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OrchardJob)]
pub(crate) struct Job {
    job_id: String,
    sandbox_id: String,
    command: String,
    /// `queued`, `running`, `succeeded` or `failed`.
    status: &'static str,
    stdout: String,
    stderr: String,
    /// Where a signal ended it, that with a minus.
    exit_code: Option<i32>,
    /// Seconds since 1970.
    created_at: f64,
    /// Seconds since 1970.
    started_at: Option<f64>,
    /// Seconds since 1970.
    completed_at: Option<f64>,
    /// Why it failed, where it did not exit by itself.
    error: Option<String>,
}

impl Job {
    pub(super) fn of(view: CommandView, command: String, created_ms: u64) -> Job {
        let error = match view.outcome {
            None | Some(Ending::Exit) => None,
            Some(Ending::Signal) => Some(format!("killed by signal {}", view.signal.unwrap_or_default())),
            Some(Ending::TimedOut) => Some("timed out".to_owned()),
            Some(Ending::OutOfMemory) => Some("out of memory".to_owned()),
            Some(Ending::NotStarted) => view.message.clone(),
        };
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
            exit_code: view.exit_code.or(view.signal.map(|signal| -signal)),
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

/// What became of a patch.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OrchardPatched)]
pub(crate) struct Patched {
    /// All of it was applied; else nothing.
    pub(super) success: bool,
    pub(super) stdout: String,
    pub(super) stderr: String,
    pub(super) exit_code: i32,
}

/// A patch to apply.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = OrchardPatch)]
pub(crate) struct Patch {
    /// Unified or git diff.
    pub(super) patch: String,
    /// In seconds; default 30.
    #[schema(minimum = 0, maximum = 3600)]
    pub(super) timeout_seconds: Option<f64>,
}

/// Permission bits.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Mode {
    /// As a number.
    Number(u32),
    /// Octal, as a text.
    Text(String),
}

impl Mode {
    pub(super) fn bits(&self) -> Result<u32, Problem> {
        let bits = match self {
            Mode::Number(number) => Some(*number),
            Mode::Text(text) => u32::from_str_radix(text.trim_start_matches("0o"), 8).ok(),
        };
        bits.filter(|bits| *bits <= 0o7777).ok_or_else(|| {
            Problem::new(Code::Invalid, "mode: wanted are permission bits, as \"0644\" or 420")
        })
    }
}

/// A file to write.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = OrchardUpload)]
pub(crate) struct Upload {
    /// Where.
    #[schema(min_length = 1)]
    pub(super) path: String,
    /// Base64.
    pub(super) content: String,
    /// Permission bits; default 0644.
    #[serde(default)]
    pub(super) mode: Option<Mode>,
}

/// What was written.
#[derive(Serialize, ToSchema)]
#[schema(as = OrchardUploaded)]
pub(crate) struct Uploaded {
    pub(super) path: String,
    pub(super) size: u64,
    pub(super) success: bool,
}

/// Which file or folder.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct PathQuery {
    /// Absolute, or from the folder in which commands start.
    #[param(min_length = 1)]
    pub(super) path: String,
}

/// A file.
#[derive(Serialize, ToSchema)]
#[schema(as = OrchardFile)]
pub(crate) struct File {
    pub(super) path: String,
    /// Base64.
    pub(super) content: String,
    pub(super) encoding: &'static str,
    pub(super) size: u64,
}

/// One entry of a folder.
#[derive(Serialize, ToSchema)]
#[schema(as = OrchardFileEntry)]
struct FileEntry {
    name: String,
    path: String,
    /// `file`, `directory`, `symlink` or `other`.
    #[serde(rename = "type")]
    kind: &'static str,
    size: u64,
    /// ISO 8601.
    modified: String,
}

/// What stands in a folder.
#[derive(Serialize, ToSchema)]
#[schema(as = OrchardFileList)]
pub(crate) struct FileList {
    path: String,
    files: Vec<FileEntry>,
}

impl FileList {
    pub(super) fn of(path: String, entries: &[StatView]) -> FileList {
        let files = entries.iter().map(|entry| FileEntry {
            name: entry.path.clone(),
            path: format!("{}/{}", path.trim_end_matches('/'), entry.path),
            kind: match entry.kind {
                Kind::File => "file",
                Kind::Folder => "directory",
                Kind::Link => "symlink",
                _ => "other",
            },
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
    let nanos = i128::from(ms) * 1_000_000;
    let time = OffsetDateTime::from_unix_timestamp_nanos(nanos).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    time.format(&Rfc3339).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_as_kubernetes_writes_them() {
        let text = |text: &str| Quantity::Text(text.to_owned());
        assert_eq!(text("4").cores().unwrap(), 4.0);
        assert_eq!(text("500m").cores().unwrap(), 0.5);
        assert_eq!(Quantity::Number(2.0).cores().unwrap(), 2.0);
        assert_eq!(text("16Gi").bytes("memory").unwrap(), 16 << 30);
        assert_eq!(text("512Mi").bytes("memory").unwrap(), 512 << 20);
        assert_eq!(text("1.5G").bytes("memory").unwrap(), 1_500_000_000);
        assert_eq!(text("1073741824").bytes("memory").unwrap(), 1 << 30);
        for wrong in ["", "x", "16GiB", "-1", "nan", "1e99"] {
            assert!(text(wrong).bytes("memory").is_err(), "{wrong}");
        }
    }
}
