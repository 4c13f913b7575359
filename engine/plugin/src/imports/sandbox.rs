//! The imports of `espalier:sandbox`. Bounds are checked in [`crate::convert::sandbox`]; waits are shortened so that they
//! answer before `limits.import_wall`; each call leaves a note of what was asked and what came of it.

use super::Answer;
use crate::bindings::harness::espalier::sandbox::sandboxes as wit;
use crate::bindings::reward::espalier::sandbox::scoring;
use crate::convert::failure_out;
use crate::convert::sandbox::{
    bounded, changes_out, channel_in, command_in, entry_out, outcome_out, patch_in, patched_out, path_in,
    piece_out, run_in, shell_in, size_in, stat_out, write_in,
};
use crate::guest::{Guest, OpenProcess, OpenSandbox, OpenShell};
use espalier_core::failure::Failure;
use espalier_core::host::sandbox::{Command, Outcome, Output, Process, Sandbox, Sandboxes, Shell};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use wasmtime::component::Resource;

/// Most bytes of one read, of a file or an output, and of one write to a command's input.
const SLICE_BYTES_MAX: u32 = 1 << 20;
/// Most bytes of a file that a guest writes itself, and of a patch.
const WRITE_BYTES_MAX: usize = 16 << 20;
/// Most bytes of a file that becomes a blob, or the other way round, and of the content of changes.
const BLOB_BYTES_MAX: u64 = 64 << 20;
/// Most entries of a listed folder.
const ENTRIES_MAX: u32 = 10_000;
/// Deepest listing.
const DEPTH_MAX: u32 = 64;
/// Fresh sandboxes of one scoring.
const FRESH_MAX: u32 = 8;
/// Bytes of a command, and of an output's end, in a note.
const NOTE_BYTES_MAX: usize = 160;

/// One line of it, not longer than a note may be.
fn short(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.len() {
        0..=NOTE_BYTES_MAX => line,
        _ => format!("{}...", &line[..line.floor_char_boundary(NOTE_BYTES_MAX)]),
    }
}

fn path_text(path: &wit::Path) -> String {
    match path {
        wit::Path::Text(text) => short(text),
        wit::Path::Bytes(bytes) => short(&String::from_utf8_lossy(bytes)),
    }
}

fn program_text(program: &wit::Program) -> String {
    match program {
        wit::Program::Shell(text) | wit::Program::Other(text) => short(text),
        wit::Program::Argv(words) => short(&words.join(" ")),
    }
}

/// `make test -> exit 2, 512 bytes`.
fn outcome_text(asked: &str, outcome: &Outcome) -> String {
    let bytes = outcome.stdout.total + outcome.stderr.total;
    let left = match outcome.left_running {
        0 => String::new(),
        count => format!(", {count} left running"),
    };
    format!("{asked} -> {}, {bytes} bytes{left}", outcome.ended)
}

fn outcome_bytes(outcome: &Outcome) -> u64 {
    let bytes = |output: &Output| output.head.len() + output.tail.len();
    (bytes(&outcome.stdout) + bytes(&outcome.stderr)) as u64
}

fn no_room<T>(_: T) -> wit::Failure {
    wit::Failure::Invalid("too many open handles; drop some".to_owned())
}

impl Guest {
    fn sandbox(&self, this: &Resource<OpenSandbox>) -> wasmtime::Result<Arc<dyn Sandbox>> {
        Ok(Arc::clone(&self.table.get(this)?.0))
    }

    fn process(&self, this: &Resource<OpenProcess>) -> wasmtime::Result<Arc<dyn Process>> {
        Ok(Arc::clone(&self.table.get(this)?.0))
    }

    fn shell(&self, this: &Resource<OpenShell>) -> wasmtime::Result<Arc<dyn Shell>> {
        Ok(Arc::clone(&self.table.get(this)?.0))
    }

    fn the_sandboxes(&self, name: &str) -> Result<Arc<dyn Sandboxes>, Failure> {
        self.sandboxes.clone().ok_or_else(|| {
            Failure::Invalid(format!(
                "sandbox `{name}`: this rollout has none; a task names its sandboxes in `sandbox` or `sandboxes`, and the \
                 experiment gives them in [sandbox]"
            ))
        })
    }

    /// One import of a sandbox: refused where what it was asked makes no sense, noted by what was asked.
    async fn in_sandbox<A, T, F>(
        &mut self,
        name: &'static str,
        asked: Result<A, Failure>,
        bytes_in: u64,
        note: String,
        work: impl FnOnce(A) -> F,
    ) -> wasmtime::Result<Result<T, Failure>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        self.in_sandbox_noted(name, asked, bytes_in, work, |_| 0, move |_| Some(note.into())).await
    }

    async fn in_sandbox_noted<A, T, F>(
        &mut self,
        name: &'static str,
        asked: Result<A, Failure>,
        bytes_in: u64,
        work: impl FnOnce(A) -> F,
        bytes_out: impl FnOnce(&T) -> u64,
        note: impl FnOnce(Option<&T>) -> Option<Box<str>>,
    ) -> wasmtime::Result<Result<T, Failure>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let work = asked.map(work);
        let work = async move { work?.await };
        self.gate.pass_noted(name, bytes_in, work, bytes_out, note).await
    }

    /// An import that ends with a command's outcome.
    async fn outcome_of<A, F>(
        &mut self,
        name: &'static str,
        asked: Result<A, Failure>,
        bytes_in: u64,
        note: String,
        work: impl FnOnce(A) -> F,
    ) -> Answer<wit::Outcome>
    where
        F: Future<Output = Result<Outcome, Failure>> + Send + 'static,
    {
        let noted = move |outcome: Option<&Outcome>| match outcome {
            Some(outcome) => Some(outcome_text(&note, outcome).into()),
            None => Some(note.into()),
        };
        let outcome = self.in_sandbox_noted(name, asked, bytes_in, work, outcome_bytes, noted).await?;
        Ok(outcome.map(outcome_out).map_err(failure_out))
    }

    /// An import that may find a command still running.
    async fn outcome_if_ended<F>(&mut self, name: &'static str, work: F) -> Answer<Option<wit::Outcome>>
    where
        F: Future<Output = Result<Option<Outcome>, Failure>> + Send + 'static,
    {
        let bytes = |outcome: &Option<Outcome>| outcome.as_ref().map_or(0, outcome_bytes);
        let noted = |outcome: Option<&Option<Outcome>>| {
            Some(match outcome? {
                Some(outcome) => outcome_text("", outcome).trim_start().into(),
                None => "still runs".into(),
            })
        };
        let outcome = self.gate.pass_noted(name, 0, work, bytes, noted).await?;
        Ok(outcome.map(|outcome| outcome.map(outcome_out)).map_err(failure_out))
    }

    /// What a guest asks to wait, bounded so that the import still answers.
    fn wait_within(&self, wait_ms: u64) -> Duration {
        Duration::from_millis(wait_ms).min(self.gate.longest_wait())
    }
}

impl wit::Host for Guest {
    async fn open(&mut self, name: String) -> Answer<Resource<OpenSandbox>> {
        let sandboxes = self.the_sandboxes(&name);
        let (bytes_in, note) = (name.len() as u64, name.clone());
        let work = |sandboxes: Arc<dyn Sandboxes>| async move { sandboxes.open(&name).await };
        match self.in_sandbox("sandboxes.open", sandboxes, bytes_in, note, work).await? {
            Ok(sandbox) => Ok(self.table.push(OpenSandbox(sandbox)).map_err(no_room)),
            Err(failure) => Ok(Err(failure_out(failure))),
        }
    }

    async fn wait_any(
        &mut self,
        processes: Vec<Resource<OpenProcess>>,
        timeout_ms: u64,
    ) -> Answer<Option<u32>> {
        let within = self.wait_within(timeout_ms);
        let waited: Vec<Arc<dyn Process>> =
            processes.iter().map(|process| self.process(process)).collect::<wasmtime::Result<_>>()?;
        let asked = match waited.len() {
            0 => Err(Failure::Invalid("no process to wait for".to_owned())),
            _ => Ok(waited),
        };
        let note = format!("{} processes, up to {} ms", processes.len(), within.as_millis());
        let work = |waited| wait_any(waited, within);
        let first = self.in_sandbox("sandboxes.wait-any", asked, 0, note, work).await?;
        Ok(first.map_err(failure_out))
    }
}

/// The first that has ended, by its place.
async fn wait_any(processes: Vec<Arc<dyn Process>>, within: Duration) -> Result<Option<u32>, Failure> {
    // What has ended already is found in order; the others are waited for together. The set aborts what is left when dropped.
    let mut waits = JoinSet::new();
    for (place, process) in (0u32..).zip(&processes) {
        if process.ended(Duration::ZERO).await? {
            return Ok(Some(place));
        }
    }
    for (place, process) in (0u32..).zip(processes) {
        waits.spawn(async move { process.ended(within).await.map(|ended| ended.then_some(place)) });
    }
    while let Some(waited) = waits.join_next().await {
        let waited =
            waited.map_err(|error| Failure::Unavailable(format!("waiting for a process: {error}")))?;
        if let Some(place) = waited? {
            return Ok(Some(place));
        }
    }
    Ok(None)
}

impl scoring::Host for Guest {
    async fn open_fresh(&mut self, name: String) -> Answer<Resource<OpenSandbox>> {
        let sandboxes = match self.fresh {
            FRESH_MAX.. => Err(Failure::Other {
                code: "bound".to_owned(),
                text: format!("{FRESH_MAX} fresh sandboxes were opened in this scoring"),
            }),
            _ => self.the_sandboxes(&name),
        };
        self.fresh += u32::from(sandboxes.is_ok());
        let (bytes_in, note) = (name.len() as u64, name.clone());
        let work = |sandboxes: Arc<dyn Sandboxes>| async move { sandboxes.open_fresh(&name).await };
        match self.in_sandbox("scoring.open-fresh", sandboxes, bytes_in, note, work).await? {
            Ok(sandbox) => Ok(self.table.push(OpenSandbox(sandbox)).map_err(no_room)),
            Err(failure) => Ok(Err(failure_out(failure))),
        }
    }
}

fn command_bytes(command: &wit::Command) -> u64 {
    let program = match &command.program {
        wit::Program::Shell(text) | wit::Program::Other(text) => text.len(),
        wit::Program::Argv(words) => words.iter().map(String::len).sum(),
    };
    (program + command.stdin.as_ref().map_or(0, Vec::len)) as u64
}

impl wit::HostSandbox for Guest {
    async fn exec(&mut self, this: Resource<OpenSandbox>, command: wit::Command) -> Answer<wit::Outcome> {
        let sandbox = self.sandbox(&this)?;
        let (bytes_in, note) = (command_bytes(&command), program_text(&command.program));
        let longest = self.gate.longest_wait();
        let command = command_in(command).map(|command| {
            let timeout = Some(command.timeout.map_or(longest, |timeout| timeout.min(longest)));
            Command { timeout, ..command }
        });
        let work = |command| async move { sandbox.exec(command).await };
        self.outcome_of("sandbox.exec", command, bytes_in, note, work).await
    }

    async fn start(
        &mut self,
        this: Resource<OpenSandbox>,
        command: wit::Command,
    ) -> Answer<Resource<OpenProcess>> {
        let sandbox = self.sandbox(&this)?;
        let (bytes_in, note) = (command_bytes(&command), program_text(&command.program));
        let work = |command| async move { sandbox.start(command).await };
        match self.in_sandbox("sandbox.start", command_in(command), bytes_in, note, work).await? {
            Ok(process) => Ok(self.table.push(OpenProcess(process)).map_err(no_room)),
            Err(failure) => Ok(Err(failure_out(failure))),
        }
    }

    async fn open_shell(
        &mut self,
        this: Resource<OpenSandbox>,
        options: wit::ShellOptions,
    ) -> Answer<Resource<OpenShell>> {
        let sandbox = self.sandbox(&this)?;
        let note = options.program.clone().unwrap_or_default();
        let work = |options| async move { sandbox.open_shell(options).await };
        match self.in_sandbox("sandbox.open-shell", shell_in(options), 0, note, work).await? {
            Ok(shell) => Ok(self.table.push(OpenShell(shell)).map_err(no_room)),
            Err(failure) => Ok(Err(failure_out(failure))),
        }
    }

    async fn read_file(
        &mut self,
        this: Resource<OpenSandbox>,
        path: wit::Path,
        offset: u64,
        length: u32,
    ) -> Answer<Vec<u8>> {
        let sandbox = self.sandbox(&this)?;
        let note = path_text(&path);
        let asked = slice(length).and_then(|()| path_in(path));
        let work = |path: Vec<u8>| async move { sandbox.read_file(&path, offset, length).await };
        let bytes_out = |bytes: &Vec<u8>| bytes.len() as u64;
        let noted = |_: Option<&Vec<u8>>| Some(note.into());
        let read = self.in_sandbox_noted("sandbox.read-file", asked, 0, work, bytes_out, noted).await?;
        Ok(read.map_err(failure_out))
    }

    async fn file_to_blob(&mut self, this: Resource<OpenSandbox>, path: wit::Path) -> Answer<String> {
        let sandbox = self.sandbox(&this)?;
        let note = path_text(&path);
        let work = |path: Vec<u8>| async move { sandbox.file_to_blob(&path, BLOB_BYTES_MAX).await };
        let blob = self.in_sandbox("sandbox.file-to-blob", path_in(path), 0, note, work).await?;
        Ok(blob.map_err(failure_out))
    }

    async fn write_file(
        &mut self,
        this: Resource<OpenSandbox>,
        path: wit::Path,
        bytes: Vec<u8>,
        options: wit::WriteOptions,
    ) -> Answer<()> {
        let sandbox = self.sandbox(&this)?;
        let (bytes_in, note) = (bytes.len() as u64, path_text(&path));
        let asked = bounded("the file", bytes.len(), WRITE_BYTES_MAX)
            .and_then(|()| Ok((path_in(path)?, write_in(options)?)));
        let work =
            |(path, options): (Vec<u8>, _)| async move { sandbox.write_file(&path, bytes, options).await };
        let done = self.in_sandbox("sandbox.write-file", asked, bytes_in, note, work).await?;
        Ok(done.map_err(failure_out))
    }

    async fn blob_to_file(
        &mut self,
        this: Resource<OpenSandbox>,
        blob: String,
        path: wit::Path,
        options: wit::WriteOptions,
    ) -> Answer<()> {
        let sandbox = self.sandbox(&this)?;
        let note = path_text(&path);
        let asked = path_in(path).and_then(|path| Ok((path, write_in(options)?)));
        let work = |(path, options): (Vec<u8>, _)| async move {
            sandbox.blob_to_file(&blob, &path, options, BLOB_BYTES_MAX).await
        };
        let done = self.in_sandbox("sandbox.blob-to-file", asked, 0, note, work).await?;
        Ok(done.map_err(failure_out))
    }

    async fn list_folder(
        &mut self,
        this: Resource<OpenSandbox>,
        path: wit::Path,
        depth: u32,
    ) -> Answer<Vec<wit::Entry>> {
        let sandbox = self.sandbox(&this)?;
        let note = path_text(&path);
        let asked = match depth {
            1..=DEPTH_MAX => path_in(path),
            _ => Err(Failure::Invalid(format!("depth {depth} is not within 1 and {DEPTH_MAX}"))),
        };
        let work = |path: Vec<u8>| async move { sandbox.list_folder(&path, depth, ENTRIES_MAX).await };
        let entries = self.in_sandbox("sandbox.list-folder", asked, 0, note, work).await?;
        Ok(entries.map(|entries| entries.into_iter().map(entry_out).collect()).map_err(failure_out))
    }

    async fn stat(
        &mut self,
        this: Resource<OpenSandbox>,
        path: wit::Path,
        follow: bool,
    ) -> Answer<wit::FileStat> {
        let sandbox = self.sandbox(&this)?;
        let note = path_text(&path);
        let work = |path: Vec<u8>| async move { sandbox.stat(&path, follow).await };
        let stat = self.in_sandbox("sandbox.stat", path_in(path), 0, note, work).await?;
        Ok(stat.map(stat_out).map_err(failure_out))
    }

    async fn make_folder(
        &mut self,
        this: Resource<OpenSandbox>,
        path: wit::Path,
        options: wit::WriteOptions,
    ) -> Answer<()> {
        let sandbox = self.sandbox(&this)?;
        let note = path_text(&path);
        let asked = path_in(path).and_then(|path| Ok((path, write_in(options)?)));
        let work = |(path, options): (Vec<u8>, _)| async move { sandbox.make_folder(&path, options).await };
        let done = self.in_sandbox("sandbox.make-folder", asked, 0, note, work).await?;
        Ok(done.map_err(failure_out))
    }

    async fn remove(
        &mut self,
        this: Resource<OpenSandbox>,
        path: wit::Path,
        recursive: bool,
        missing_ok: bool,
    ) -> Answer<u64> {
        let sandbox = self.sandbox(&this)?;
        let note = path_text(&path);
        let work = |path: Vec<u8>| async move { sandbox.remove(&path, recursive, missing_ok).await };
        let gone = self.in_sandbox("sandbox.remove", path_in(path), 0, note, work).await?;
        Ok(gone.map_err(failure_out))
    }

    async fn move_to(
        &mut self,
        this: Resource<OpenSandbox>,
        old_path: wit::Path,
        new_path: wit::Path,
        replace: bool,
    ) -> Answer<()> {
        let sandbox = self.sandbox(&this)?;
        let note = format!("{} to {}", path_text(&old_path), path_text(&new_path));
        let asked = path_in(old_path).and_then(|old| Ok((old, path_in(new_path)?)));
        let work = |(old, new): (Vec<u8>, Vec<u8>)| async move { sandbox.move_to(&old, &new, replace).await };
        let done = self.in_sandbox("sandbox.move-to", asked, 0, note, work).await?;
        Ok(done.map_err(failure_out))
    }

    async fn apply_patch(
        &mut self,
        this: Resource<OpenSandbox>,
        patch: String,
        options: wit::PatchOptions,
    ) -> Answer<Vec<wit::PatchedFile>> {
        let sandbox = self.sandbox(&this)?;
        let bytes_in = patch.len() as u64;
        let asked = bounded("the patch", patch.len(), WRITE_BYTES_MAX).and_then(|()| patch_in(options));
        let work = |options| async move { sandbox.apply_patch(patch, options).await };
        let note = String::new();
        let files = self.in_sandbox("sandbox.apply-patch", asked, bytes_in, note, work).await?;
        Ok(files.map(|files| files.into_iter().map(patched_out).collect()).map_err(failure_out))
    }

    async fn changes(
        &mut self,
        this: Resource<OpenSandbox>,
        root: Option<wit::Path>,
    ) -> Answer<wit::ChangeSet> {
        let sandbox = self.sandbox(&this)?;
        let asked = root.map(path_in).transpose();
        let work =
            |root: Option<Vec<u8>>| async move { sandbox.changes(root.as_deref(), BLOB_BYTES_MAX).await };
        let noted = |changes: Option<&espalier_core::host::sandbox::ChangeSet>| {
            let changes = changes?;
            let (added, changed, removed) = (changes.added, changes.changed, changes.removed);
            Some(format!("{added} added, {changed} changed, {removed} removed").into())
        };
        let changes = self.in_sandbox_noted("sandbox.changes", asked, 0, work, |_| 0, noted).await?;
        Ok(changes.map(changes_out).map_err(failure_out))
    }

    async fn apply_changes(&mut self, this: Resource<OpenSandbox>, changes: String) -> Answer<()> {
        let sandbox = self.sandbox(&this)?;
        let work = |changes: String| async move { sandbox.apply_changes(&changes).await };
        let note = String::new();
        let done = self.in_sandbox("sandbox.apply-changes", Ok(changes), 0, note, work).await?;
        Ok(done.map_err(failure_out))
    }

    async fn checkpoint(&mut self, this: Resource<OpenSandbox>) -> Answer<String> {
        let sandbox = self.sandbox(&this)?;
        let work = async move { sandbox.checkpoint().await };
        let noted = |name: Option<&String>| name.map(|name| name.as_str().into());
        let name = self.gate.pass_noted("sandbox.checkpoint", 0, work, |_| 0, noted).await?;
        Ok(name.map_err(failure_out))
    }

    async fn port(&mut self, this: Resource<OpenSandbox>, number: u16) -> Answer<String> {
        let sandbox = self.sandbox(&this)?;
        let asked = match number {
            0 => Err(Failure::Invalid("port 0".to_owned())),
            number => Ok(number),
        };
        let work = |number| async move { sandbox.port(number).await };
        let address = self.in_sandbox("sandbox.port", asked, 2, number.to_string(), work).await?;
        Ok(address.map_err(failure_out))
    }

    fn drop(&mut self, this: Resource<OpenSandbox>) -> wasmtime::Result<()> {
        self.table.delete(this)?;
        Ok(())
    }
}

fn slice(length: u32) -> Result<(), Failure> {
    if length > SLICE_BYTES_MAX {
        return Err(Failure::Invalid(format!("length {length} is over {SLICE_BYTES_MAX}")));
    }
    Ok(())
}

impl wit::HostProcess for Guest {
    fn pid(&mut self, this: Resource<OpenProcess>) -> wasmtime::Result<u32> {
        let pid = self.table.get(&this)?.0.pid();
        self.gate.pass_always("process.pid", |_| pid, |_| 4)
    }

    async fn poll(&mut self, this: Resource<OpenProcess>) -> Answer<Option<wit::Outcome>> {
        let process = self.process(&this)?;
        self.outcome_if_ended("process.poll", async move { process.poll().await }).await
    }

    async fn read(
        &mut self,
        this: Resource<OpenProcess>,
        channel: wit::Channel,
        offset: u64,
        length: u32,
        wait_ms: u64,
    ) -> Answer<wit::Piece> {
        let process = self.process(&this)?;
        let wait = self.wait_within(wait_ms);
        let channel = channel_in(channel);
        let work = |()| async move { process.read(channel, offset, length, wait).await };
        let bytes_out = |piece: &espalier_core::host::sandbox::Piece| piece.bytes.len() as u64;
        let read = self.in_sandbox_noted("process.read", slice(length), 0, work, bytes_out, |_| None).await?;
        Ok(read.map(piece_out).map_err(failure_out))
    }

    async fn write_stdin(&mut self, this: Resource<OpenProcess>, bytes: Vec<u8>) -> Answer<u64> {
        let process = self.process(&this)?;
        let bytes_in = bytes.len() as u64;
        let asked = bounded("the input", bytes.len(), SLICE_BYTES_MAX as usize);
        let work = |()| async move { process.write_stdin(bytes).await };
        let taken =
            self.in_sandbox_noted("process.write-stdin", asked, bytes_in, work, |_| 8, |_| None).await?;
        Ok(taken.map_err(failure_out))
    }

    async fn close_stdin(&mut self, this: Resource<OpenProcess>) -> Answer<()> {
        let process = self.process(&this)?;
        let work = async move { process.close_stdin().await };
        Ok(self.gate.pass("process.close-stdin", 0, work, |()| 0).await?.map_err(failure_out))
    }

    async fn resize(&mut self, this: Resource<OpenProcess>, size: wit::TerminalSize) -> Answer<()> {
        let process = self.process(&this)?;
        let note = format!("{} x {}", size.rows, size.columns);
        let work = |size| async move { process.resize(size).await };
        let done = self.in_sandbox("process.resize", size_in(size), 4, note, work).await?;
        Ok(done.map_err(failure_out))
    }

    async fn signal(&mut self, this: Resource<OpenProcess>, number: u8, tree: bool) -> Answer<u32> {
        let process = self.process(&this)?;
        let asked = match number {
            1..=64 => Ok(number),
            _ => Err(Failure::Invalid(format!("signal {number} is not within 1 and 64"))),
        };
        let work = |number| async move { process.signal(number, tree).await };
        let reached = self.in_sandbox("process.signal", asked, 1, number.to_string(), work).await?;
        Ok(reached.map_err(failure_out))
    }

    async fn wait(&mut self, this: Resource<OpenProcess>, timeout_ms: u64) -> Answer<Option<wit::Outcome>> {
        let process = self.process(&this)?;
        let within = self.wait_within(timeout_ms);
        let work = async move {
            match process.ended(within).await? {
                true => process.poll().await,
                false => Ok(None),
            }
        };
        self.outcome_if_ended("process.wait", work).await
    }

    fn drop(&mut self, this: Resource<OpenProcess>) -> wasmtime::Result<()> {
        self.table.delete(this)?;
        Ok(())
    }
}

impl wit::HostShell for Guest {
    async fn run(
        &mut self,
        this: Resource<OpenShell>,
        text: String,
        options: wit::RunOptions,
    ) -> Answer<wit::Outcome> {
        let shell = self.shell(&this)?;
        let longest = self.gate.longest_wait();
        let (bytes_in, note) = (text.len() as u64, short(&text));
        let options = run_in(&text, options).map(|mut options| {
            options.timeout = Some(options.timeout.map_or(longest, |timeout| timeout.min(longest)));
            options
        });
        let work = |options| async move { shell.run(text, options).await };
        self.outcome_of("shell.run", options, bytes_in, note, work).await
    }

    async fn close(&mut self, this: Resource<OpenShell>) -> Answer<()> {
        let shell = self.shell(&this)?;
        let work = async move { shell.close().await };
        Ok(self.gate.pass("shell.close", 0, work, |()| 0).await?.map_err(failure_out))
    }

    fn drop(&mut self, this: Resource<OpenShell>) -> wasmtime::Result<()> {
        self.table.delete(this)?;
        Ok(())
    }
}
