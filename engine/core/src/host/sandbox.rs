//! What a plugin can do with the sandboxes of its rollout (`espalier:sandbox`), as traits and plain types.
//!
//! `engine/sandbox` implements them over the agent's client. Every method is cancel-safe: a command that was being run when
//! its future was dropped is killed, a wait is given up, and later calls are as good as if the cut one had not been made.
//! Failures that a plugin may tell apart are `Failure::Other` with the codes of `wit/deps/sandbox/sandbox.wit`.

use crate::failure::Failure;
use crate::journal::{octets, octets_option};
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// The sandboxes of one rollout.
#[async_trait]
pub trait Sandboxes: Send + Sync {
    /// The sandbox of this name; the first call starts it. Errors: `Invalid` for a name that the task does not have.
    async fn open(&self, name: &str) -> Result<Arc<dyn Sandbox>, Failure>;
    /// Another one made the same way, that nobody has touched. It ends when what is returned is dropped.
    async fn open_fresh(&self, name: &str) -> Result<Arc<dyn Sandbox>, Failure>;
    /// One made as this text says: what a task says of a sandbox, as JSON. It ends when what is returned is dropped. Errors:
    /// `Denied` where nobody may create one.
    async fn create(&self, spec: &str) -> Result<Arc<dyn Sandbox>, Failure> {
        let _ = spec;
        Err(Failure::Denied("espalier:sandbox/creation".to_owned()))
    }
}

/// One machine. Paths are bytes; relative ones start at its working folder.
#[async_trait]
pub trait Sandbox: Send + Sync {
    /// The next method is called for the guest's call of this number, from 0: ids of what it changes follow from it.
    fn begin(&self, call: u64);
    /// Runs a command to its end. Dropped before, the command is killed.
    async fn exec(&self, command: Command) -> Result<Outcome, Failure>;
    /// Starts a command, its input open.
    async fn start(&self, command: Command) -> Result<Arc<dyn Process>, Failure>;
    /// Opens a stateful shell.
    async fn open_shell(&self, options: ShellOptions) -> Result<Arc<dyn Shell>, Failure>;
    /// Up to `length` bytes of a file from `offset`; empty past its end.
    async fn read_file(&self, path: &[u8], offset: u64, length: u32) -> Result<Vec<u8>, Failure>;
    /// A whole file as a blob of the rollout, of `bytes_max` bytes at most.
    async fn file_to_blob(&self, path: &[u8], bytes_max: u64) -> Result<String, Failure>;
    /// Writes a file as a whole.
    async fn write_file(&self, path: &[u8], bytes: Vec<u8>, options: WriteOptions) -> Result<(), Failure>;
    /// The same with the bytes of a blob of the rollout, of `bytes_max` bytes at most.
    async fn blob_to_file(
        &self,
        blob: &str,
        path: &[u8],
        options: WriteOptions,
        bytes_max: u64,
    ) -> Result<(), Failure>;
    /// What stands in a folder, `depth` folders down, of `entries_max` entries at most.
    async fn list_folder(&self, path: &[u8], depth: u32, entries_max: u32) -> Result<Vec<Entry>, Failure>;
    /// What stands at a path; with `follow`, what a link there points to.
    async fn stat(&self, path: &[u8], follow: bool) -> Result<FileStat, Failure>;
    /// Makes a folder.
    async fn make_folder(&self, path: &[u8], options: WriteOptions) -> Result<(), Failure>;
    /// Removes a file or, recursively, a folder; says how many entries went.
    async fn remove(&self, path: &[u8], recursive: bool, missing_ok: bool) -> Result<u64, Failure>;
    /// Moves a file or folder.
    async fn move_to(&self, from: &[u8], to: &[u8], replace: bool) -> Result<(), Failure>;
    /// Applies a unified or git diff: all of it or nothing.
    async fn apply_patch(&self, patch: String, options: PatchOptions) -> Result<Vec<PatchedFile>, Failure>;
    /// What changed since the set-up below a folder, or wherever account is kept, as a blob of the rollout; content of
    /// `bytes_max` bytes at most.
    async fn changes(&self, root: Option<&[u8]>, bytes_max: u64) -> Result<ChangeSet, Failure>;
    /// Puts changes of another sandbox into this one.
    async fn apply_changes(&self, changes: &str) -> Result<(), Failure>;
    /// Keeps the file system under a name.
    async fn checkpoint(&self) -> Result<String, Failure>;
    /// `127.0.0.1:PORT` of the host, behind which the sandbox's own port is reached.
    async fn port(&self, number: u16) -> Result<String, Failure>;
}

/// A command that was started. Dropping it leaves it running.
#[async_trait]
pub trait Process: Send + Sync {
    /// As [`Sandbox::begin`].
    fn begin(&self, call: u64);
    /// As the sandbox sees it.
    fn pid(&self) -> u32;
    /// What came of it; `None` while it runs.
    async fn poll(&self) -> Result<Option<Outcome>, Failure>;
    /// A piece of an output from `offset`, waiting up to `wait` where there is nothing yet.
    async fn read(
        &self,
        channel: Channel,
        offset: u64,
        length: u32,
        wait: Duration,
    ) -> Result<Piece, Failure>;
    /// Bytes for its input; returns how many it read. Dropped before, the rest is still written as it reads on.
    async fn write_stdin(&self, bytes: Vec<u8>) -> Result<u64, Failure>;
    /// No more input.
    async fn close_stdin(&self) -> Result<(), Failure>;
    /// Size of its terminal.
    async fn resize(&self, size: TerminalSize) -> Result<(), Failure>;
    /// A signal to it, or to its whole tree; says how many processes got it.
    async fn signal(&self, number: u8, tree: bool) -> Result<u32, Failure>;
    /// Waits for its end; `false` when it still runs after that time.
    async fn ended(&self, within: Duration) -> Result<bool, Failure>;
}

/// A stateful shell. Dropping it leaves it open.
#[async_trait]
pub trait Shell: Send + Sync {
    /// As [`Sandbox::begin`].
    fn begin(&self, call: u64);
    /// Runs a text to its end; one after the other. Dropped before, what it started is killed.
    async fn run(&self, text: String, options: RunOptions) -> Result<Outcome, Failure>;
    /// Ends the shell and all that was started in it.
    async fn close(&self) -> Result<(), Failure>;
}

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Program {
    /// Shell text.
    Shell(String),
    /// A program and its arguments.
    Argv(Vec<String>),
}

/// A size of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Lines.
    pub rows: u16,
    /// Characters of a line.
    pub columns: u16,
}

/// A command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// What to run.
    pub program: Program,
    /// Where; `None`: the working folder.
    #[serde(with = "octets_option")]
    pub cwd: Option<Vec<u8>>,
    /// Added to the sandbox's.
    pub env: Vec<(String, String)>,
    /// Its input, or the first bytes of it.
    #[serde(with = "octets")]
    pub stdin: Vec<u8>,
    /// Who; `None`: the sandbox's user.
    pub user: Option<String>,
    /// When its tree is killed; `None`: never.
    pub timeout: Option<Duration>,
    /// How outputs come back.
    pub show: Show,
    /// Standard error into standard output.
    pub merge_stderr: bool,
    /// On a terminal of this size.
    pub terminal: Option<TerminalSize>,
}

/// How outputs of a command come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Show {
    /// Bytes of each in the outcome.
    pub output_max: u32,
    /// Whether what the outcome does not hold is kept as a blob.
    pub keep_whole: bool,
}

impl Default for Show {
    fn default() -> Show {
        Show { output_max: 64 << 10, keep_whole: false }
    }
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ended {
    /// By itself.
    ExitCode(i32),
    /// By a signal.
    Signal(i32),
    /// By its timeout.
    TimedOut,
    /// Killed for memory.
    OutOfMemory,
    /// Its machine was lost under it, and why: how far it came is not known. Guests are told that the sandbox is unavailable.
    Unknown(String),
    /// Newer than this list.
    Other(String),
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ended::ExitCode(code) => write!(f, "exit {code}"),
            Ended::Signal(number) => write!(f, "signal {number}"),
            Ended::TimedOut => f.write_str("timed out"),
            Ended::OutOfMemory => f.write_str("out of memory"),
            Ended::Unknown(why) => write!(f, "unknown: {why}"),
            Ended::Other(word) => f.write_str(word),
        }
    }
}

/// What was printed on one output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// All of it, or its start.
    pub head: String,
    /// Bytes between.
    pub left_out: u64,
    /// Its end; empty where nothing is left out.
    pub tail: String,
    /// Bytes printed.
    pub total: u64,
    /// Blob of every byte that was kept.
    pub whole: Option<String>,
}

/// What came of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// How it ended.
    pub ended: Ended,
    /// Standard output.
    pub stdout: Output,
    /// Standard error.
    pub stderr: Output,
    /// How long it ran.
    pub duration: Duration,
    /// Processes that it left running.
    pub left_running: u32,
    /// JSON text of an object.
    pub extra: Option<String>,
}

impl Outcome {
    /// The outcome of a command whose machine was lost under it.
    pub fn unknown(why: String) -> Outcome {
        Outcome {
            ended: Ended::Unknown(why),
            stdout: Output::default(),
            stderr: Output::default(),
            duration: Duration::ZERO,
            left_running: 0,
            extra: None,
        }
    }

    /// As guests are told: an outcome that is not known is a failure of the infrastructure.
    pub fn known(self) -> Result<Outcome, Failure> {
        match self.ended {
            Ended::Unknown(why) => Err(Failure::Unavailable(why)),
            _ => Ok(self),
        }
    }
}

/// Which output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Channel {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A piece of an output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Offset of its first byte.
    pub offset: u64,
    /// The bytes.
    #[serde(with = "octets")]
    pub bytes: Vec<u8>,
    /// Bytes printed so far.
    pub total: u64,
    /// Whether the command has ended.
    pub ended: bool,
}

/// How to open a shell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShellOptions {
    /// `bash` or `sh`; `None`: bash where there is one.
    pub program: Option<String>,
    /// As in [`Command`].
    #[serde(with = "octets_option")]
    pub cwd: Option<Vec<u8>>,
    /// As in [`Command`].
    pub env: Vec<(String, String)>,
    /// As in [`Command`].
    pub user: Option<String>,
}

/// How to run a text in a shell; each as in [`Command`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunOptions {
    /// When what it started is killed.
    pub timeout: Option<Duration>,
    /// Its input.
    #[serde(with = "octets")]
    pub stdin: Vec<u8>,
    /// How outputs come back.
    pub show: Show,
    /// Standard error into standard output.
    pub merge_stderr: bool,
}

/// What stands at a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileKind {
    /// A file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link.
    Link,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
    /// Newer than this list.
    Other(String),
}

/// What is known of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStat {
    /// What it is.
    pub kind: FileKind,
    /// Permission bits, with setuid, setgid and sticky.
    pub mode: u32,
    /// Owner.
    pub user_id: u32,
    /// Group.
    pub group_id: u32,
    /// Bytes.
    pub size: u64,
    /// Last change of its content, ms since 1970; 0 before.
    pub modified_ms: u64,
    /// Where a link points.
    #[serde(with = "octets_option")]
    pub target: Option<Vec<u8>>,
}

/// One entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// From the folder that was listed.
    #[serde(with = "octets")]
    pub path: Vec<u8>,
    /// What it is.
    pub stat: FileStat,
    /// Why it, or what is in it, could not be looked at.
    pub error: Option<String>,
}

/// How to write a file or make a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteOptions {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub owner: Option<String>,
    /// Makes missing folders above.
    pub parents: bool,
    /// Refuses a file that is there already.
    pub create_new: bool,
}

/// How to apply a patch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatchOptions {
    /// Folder that its paths start from; `None`: the working folder.
    #[serde(with = "octets_option")]
    pub root: Option<Vec<u8>>,
    /// Leading parts of each path to drop.
    pub strip: Option<u32>,
    /// Lines of context that may differ at each end of a hunk.
    pub fuzz: Option<u32>,
    /// Takes it back.
    pub reverse: bool,
    /// Says what would happen.
    pub dry_run: bool,
}

/// What a patch does to a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PatchAction {
    /// Changed.
    Modified,
    /// New.
    Created,
    /// Gone.
    Deleted,
    /// From another path.
    Renamed,
    /// From another path, which stays.
    Copied,
    /// Newer than this list.
    Other(String),
}

/// A file that a patch is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatchedFile {
    /// Its path, from the patch's root.
    #[serde(with = "octets")]
    pub path: Vec<u8>,
    /// Where it came from.
    #[serde(with = "octets_option")]
    pub from: Option<Vec<u8>>,
    /// What was done.
    pub action: PatchAction,
    /// Hunks.
    pub hunks: u32,
    /// Those that applied at another line.
    pub shifted: u32,
    /// Those that applied with less context.
    pub fuzzy: u32,
}

/// Work taken out of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeSet {
    /// The work itself.
    pub blob: String,
    /// Entries that were added.
    pub added: u64,
    /// Entries that were changed.
    pub changed: u64,
    /// Entries that were removed.
    pub removed: u64,
    /// Bytes of content.
    pub content_bytes: u64,
}
