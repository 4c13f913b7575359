//! The imports of one sandbox: commands, shells, files, patches, changes, ports.

use super::super::Answer;
use super::{
    BLOB_BYTES_MAX, DEPTH_MAX, ENTRIES_MAX, WRITE_BYTES_MAX, no_room, path_text, program_text, slice, within,
};
use crate::bindings::harness::espalier::sandbox::sandboxes as wit;
use crate::convert::failure_out;
use crate::convert::sandbox::{
    bounded, changes_out, command_in, entry_out, patch_in, patched_out, path_in, shell_in, stat_out, write_in,
};
use crate::guest::{Guest, OpenProcess, OpenSandbox, OpenShell};
use espalier_core::failure::Failure;
use espalier_core::host::sandbox::{ChangeSet, Command};
use wasmtime::component::Resource;

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
        let longest = self.longest_command();
        let command = command_in(command)
            .map(|command| Command { timeout: within(command.timeout, Some(longest)), ..command });
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
        let longest = self.gate.command_wall();
        let command = command_in(command)
            .map(|command| Command { timeout: within(command.timeout, longest), ..command });
        let work = |command| async move { sandbox.start(command).await };
        match self.in_sandbox("sandbox.start", command, bytes_in, note, work).await? {
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
        let noted = |changes: Option<&ChangeSet>| {
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
