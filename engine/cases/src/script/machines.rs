//! The sandboxes of a case: files in memory, and outcomes of commands in order. What a case cannot say (patches, changes,
//! checkpoints, ports) is refused: a recorded case plays it.

use super::{MemoryBlobs, Notes};
use crate::case::{self, Machine};
use crate::report::Problem;
use async_trait::async_trait;
use espalier_core::failure::Failure;
use espalier_core::host::sandbox::{
    ChangeSet, Channel, Command, Ended, Entry, FileKind, FileStat, Outcome, Output, PatchOptions,
    PatchedFile, Piece, Process, Program, RunOptions, Sandbox, Sandboxes, Shell, ShellOptions, TerminalSize,
    WriteOptions,
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The name by which a case has the sandboxes that a task generator makes.
const CREATED: &str = "created";

/// The sandboxes of one case.
pub(crate) struct ScriptedSandboxes {
    scripts: BTreeMap<String, Arc<Script>>,
    opened: Mutex<BTreeMap<String, Arc<ScriptedSandbox>>>,
    blobs: Arc<MemoryBlobs>,
    notes: Notes,
}

/// One sandbox as the case has it. Commands are taken in order by it and by its fresh ones.
struct Script {
    name: String,
    machine: Machine,
    commands: Mutex<usize>,
}

struct ScriptedSandbox {
    script: Arc<Script>,
    files: Arc<Mutex<Files>>,
    blobs: Arc<MemoryBlobs>,
    notes: Notes,
}

type Files = BTreeMap<Vec<u8>, Vec<u8>>;

impl ScriptedSandboxes {
    pub(crate) fn new(
        machines: BTreeMap<String, Machine>,
        blobs: Arc<MemoryBlobs>,
        notes: Notes,
    ) -> ScriptedSandboxes {
        let script = |(name, machine): (String, Machine)| {
            (name.clone(), Arc::new(Script { name, machine, commands: Mutex::default() }))
        };
        let scripts = machines.into_iter().map(script).collect();
        ScriptedSandboxes { scripts, opened: Mutex::default(), blobs, notes }
    }

    /// Notes commands that were not run.
    pub(crate) fn note_rest(&self) {
        for (name, script) in &self.scripts {
            let (run, all) = (*script.commands.lock(), script.machine.commands.len());
            if run < all {
                let text = format!("was not run: the plugin ran {run} of {all} commands");
                self.notes.add(Problem::new(format!("sandboxes.{name}.commands[{run}]"), text));
            }
        }
    }

    fn make(&self, name: &str) -> Result<Arc<ScriptedSandbox>, Failure> {
        let Some(script) = self.scripts.get(name) else {
            let text = format!("is not there, but the plugin opened the sandbox {name:?}");
            return Err(self.notes.unexpected(format!("sandboxes.{name}"), text));
        };
        let files = &script.machine.files;
        let bytes = |(path, text): (&String, &String)| (path.clone().into_bytes(), text.clone().into_bytes());
        Ok(Arc::new(ScriptedSandbox {
            script: Arc::clone(script),
            files: Arc::new(Mutex::new(files.iter().map(bytes).collect())),
            blobs: Arc::clone(&self.blobs),
            notes: self.notes.clone(),
        }))
    }
}

#[async_trait]
impl Sandboxes for ScriptedSandboxes {
    async fn open(&self, name: &str) -> Result<Arc<dyn Sandbox>, Failure> {
        let known = self.opened.lock().get(name).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let made = self.make(name)?;
        self.opened.lock().insert(name.to_owned(), Arc::clone(&made));
        Ok(made)
    }

    async fn open_fresh(&self, name: &str) -> Result<Arc<dyn Sandbox>, Failure> {
        Ok(self.make(name)?)
    }

    async fn create(&self, _: &str) -> Result<Arc<dyn Sandbox>, Failure> {
        Ok(self.make(CREATED)?)
    }
}

impl ScriptedSandbox {
    /// The next outcome.
    fn run(&self, command: &str) -> Result<Outcome, Failure> {
        let mut run = self.script.commands.lock();
        let place = *run;
        let key = format!("sandboxes.{}.commands[{place}]", self.script.name);
        let Some(next) = self.script.machine.commands.get(place) else {
            return Err(self.notes.unexpected(key, format!("is not there, but the plugin ran {command:?}")));
        };
        *run += 1;
        if let Some(expected) = next.command.as_deref().filter(|expected| *expected != command) {
            self.notes.add(Problem {
                key: format!("{key}.command"),
                text: "is another command than the plugin's".to_owned(),
                diff: crate::compare::lines(expected, command),
            });
        }
        if let Some(failure) = &next.fail {
            return Err(failure.0.clone());
        }
        let mut files = self.files.lock();
        for (path, text) in &next.files {
            files.insert(path.clone().into_bytes(), text.clone().into_bytes());
        }
        Ok(outcome(next))
    }

    fn file(&self, path: &[u8]) -> Result<Vec<u8>, Failure> {
        self.files.lock().get(path).cloned().ok_or_else(|| not_found(path))
    }

    fn unscripted(&self, call: &str) -> Failure {
        let text = format!("has no answer to {call}; use a case with `recorded`");
        self.notes.unexpected(format!("sandboxes.{}", self.script.name), text)
    }
}

fn outcome(command: &case::Command) -> Outcome {
    let output = |text: &str| Output { head: text.to_owned(), total: text.len() as u64, ..Output::default() };
    Outcome {
        ended: if command.timed_out { Ended::TimedOut } else { Ended::ExitCode(command.exit_code) },
        stdout: output(&command.stdout),
        stderr: output(&command.stderr),
        duration: Duration::ZERO,
        left_running: 0,
        extra: None,
    }
}

fn not_found(path: &[u8]) -> Failure {
    Failure::Other {
        code: "not-found".to_owned(),
        text: format!("{}: no such file", String::from_utf8_lossy(path)),
    }
}

/// The command as a case writes it.
fn words(program: &Program) -> String {
    match program {
        Program::Shell(text) => text.clone(),
        Program::Argv(words) => words.join(" "),
    }
}

fn stat(bytes: &[u8]) -> FileStat {
    FileStat {
        kind: FileKind::File,
        mode: 0o644,
        user_id: 0,
        group_id: 0,
        size: bytes.len() as u64,
        modified_ms: 0,
        target: None,
    }
}

fn folder() -> FileStat {
    FileStat { kind: FileKind::Folder, mode: 0o755, ..stat(&[]) }
}

fn piece(bytes: &[u8], offset: u64, length: u32) -> Vec<u8> {
    let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
    bytes[from..from.saturating_add(length as usize).min(bytes.len())].to_vec()
}

/// What a path begins with where it is in this folder.
fn inside(folder: &[u8]) -> Vec<u8> {
    if folder.ends_with(b"/") { folder.to_vec() } else { [folder, b"/"].concat() }
}

#[async_trait]
impl Sandbox for ScriptedSandbox {
    fn begin(&self, _: u64) {}

    async fn exec(&self, command: Command) -> Result<Outcome, Failure> {
        self.run(&words(&command.program))
    }

    async fn start(&self, command: Command) -> Result<Arc<dyn Process>, Failure> {
        let outcome = self.run(&words(&command.program))?;
        Ok(Arc::new(EndedProcess(outcome)))
    }

    async fn open_shell(&self, _: ShellOptions) -> Result<Arc<dyn Shell>, Failure> {
        let ScriptedSandbox { script, files, blobs, notes } = self;
        Ok(Arc::new(ScriptedShell(ScriptedSandbox {
            script: Arc::clone(script),
            files: Arc::clone(files),
            blobs: Arc::clone(blobs),
            notes: notes.clone(),
        })))
    }

    async fn read_file(&self, path: &[u8], offset: u64, length: u32) -> Result<Vec<u8>, Failure> {
        Ok(piece(&self.file(path)?, offset, length))
    }

    async fn file_to_blob(&self, path: &[u8], _: u64) -> Result<String, Failure> {
        Ok(self.blobs.keep(self.file(path)?, "application/octet-stream"))
    }

    async fn write_file(&self, path: &[u8], bytes: Vec<u8>, options: WriteOptions) -> Result<(), Failure> {
        let mut files = self.files.lock();
        if options.create_new && files.contains_key(path) {
            let text = format!("{}: is there already", String::from_utf8_lossy(path));
            return Err(Failure::Other { code: "wrong-kind".to_owned(), text });
        }
        files.insert(path.to_vec(), bytes);
        Ok(())
    }

    async fn blob_to_file(
        &self,
        blob: &str,
        path: &[u8],
        options: WriteOptions,
        _: u64,
    ) -> Result<(), Failure> {
        self.write_file(path, self.blobs.whole(blob)?, options).await
    }

    async fn list_folder(&self, path: &[u8], depth: u32, most: u32) -> Result<Vec<Entry>, Failure> {
        let (files, begin) = (self.files.lock(), inside(path));
        let mut entries: BTreeMap<Vec<u8>, FileStat> = BTreeMap::new();
        for (file, bytes) in files.iter() {
            let Some(rest) = file.strip_prefix(begin.as_slice()) else { continue };
            let parts: Vec<&[u8]> = rest.split(|byte| *byte == b'/').collect();
            for level in 1..=parts.len().min(depth.max(1) as usize) {
                let what = if level == parts.len() { stat(bytes) } else { folder() };
                entries.insert(parts[..level].join(&b'/'), what);
            }
        }
        let entry = |(path, stat)| Entry { path, stat, error: None };
        Ok(entries.into_iter().take(most as usize).map(entry).collect())
    }

    async fn stat(&self, path: &[u8], _: bool) -> Result<FileStat, Failure> {
        let files = self.files.lock();
        let begin = inside(path);
        match files.get(path) {
            Some(bytes) => Ok(stat(bytes)),
            None if files.keys().any(|file| file.starts_with(&begin)) => Ok(folder()),
            None => Err(not_found(path)),
        }
    }

    async fn make_folder(&self, _: &[u8], _: WriteOptions) -> Result<(), Failure> {
        Ok(())
    }

    async fn remove(&self, path: &[u8], recursive: bool, missing_ok: bool) -> Result<u64, Failure> {
        let mut files = self.files.lock();
        let (before, begin) = (files.len(), inside(path));
        files.retain(|file, _| file != path && !(recursive && file.starts_with(&begin)));
        match (before - files.len()) as u64 {
            0 if !missing_ok => Err(not_found(path)),
            gone => Ok(gone),
        }
    }

    async fn move_to(&self, from: &[u8], to: &[u8], _: bool) -> Result<(), Failure> {
        let mut files = self.files.lock();
        let bytes = files.remove(from).ok_or_else(|| not_found(from))?;
        files.insert(to.to_vec(), bytes);
        Ok(())
    }

    async fn apply_patch(&self, _: String, _: PatchOptions) -> Result<Vec<PatchedFile>, Failure> {
        Err(self.unscripted("sandbox.apply-patch"))
    }

    async fn changes(&self, _: Option<&[u8]>, _: u64) -> Result<ChangeSet, Failure> {
        Err(self.unscripted("sandbox.changes"))
    }

    async fn apply_changes(&self, _: &str) -> Result<(), Failure> {
        Err(self.unscripted("sandbox.apply-changes"))
    }

    async fn checkpoint(&self) -> Result<String, Failure> {
        Err(self.unscripted("sandbox.checkpoint"))
    }

    async fn port(&self, _: u16) -> Result<String, Failure> {
        Err(self.unscripted("sandbox.port"))
    }
}

/// A shell whose texts are commands of its sandbox.
struct ScriptedShell(ScriptedSandbox);

#[async_trait]
impl Shell for ScriptedShell {
    fn begin(&self, _: u64) {}

    async fn run(&self, text: String, _: RunOptions) -> Result<Outcome, Failure> {
        self.0.run(&text)
    }

    async fn close(&self) -> Result<(), Failure> {
        Ok(())
    }
}

/// A command that has ended when it was started.
struct EndedProcess(Outcome);

#[async_trait]
impl Process for EndedProcess {
    fn begin(&self, _: u64) {}

    fn pid(&self) -> u32 {
        1
    }

    async fn poll(&self) -> Result<Option<Outcome>, Failure> {
        Ok(Some(self.0.clone()))
    }

    async fn read(&self, channel: Channel, offset: u64, length: u32, _: Duration) -> Result<Piece, Failure> {
        let output = match channel {
            Channel::Stdout => &self.0.stdout,
            Channel::Stderr => &self.0.stderr,
        };
        let bytes = piece(output.head.as_bytes(), offset, length);
        Ok(Piece { offset, bytes, total: output.total, ended: true })
    }

    async fn write_stdin(&self, bytes: Vec<u8>) -> Result<u64, Failure> {
        Ok(bytes.len() as u64)
    }

    async fn close_stdin(&self) -> Result<(), Failure> {
        Ok(())
    }

    async fn resize(&self, _: TerminalSize) -> Result<(), Failure> {
        Ok(())
    }

    async fn signal(&self, _: u8, _: bool) -> Result<u32, Failure> {
        Ok(0)
    }

    async fn ended(&self, _: Duration) -> Result<bool, Failure> {
        Ok(true)
    }
}
