//! The imports of one sandbox: commands, shells, files, patches, changes, ports.

use super::super::{Answer, handle};
use super::{
    BLOB_BYTES_MAX, DEPTH_MAX, ENTRIES_MAX, WRITE_BYTES_MAX, path_text, program_text, slice, within,
};
use crate::bindings::harness::espalier::sandbox::sandboxes as wit;
use crate::convert::failure_out;
use crate::convert::sandbox::{
    bounded, changes_out, command_in, entry_out, patch_in, patched_out, path_in, shell_in, stat_out, write_in,
};
use crate::guest::{Guest, OpenProcess, OpenSandbox, OpenShell};
use espalier_core::failure::Failure;
use espalier_core::host::sandbox::{ChangeSet, Command};
use espalier_core::journal::{Bytes, Call, Reply};
use std::borrow::Cow;
use wasmtime::component::Resource;

impl wit::HostSandbox for Guest {
    async fn exec(&mut self, this: Resource<OpenSandbox>, command: wit::Command) -> Answer<wit::Outcome> {
        let sandbox = self.sandbox(&this)?;
        let note = program_text(&command.program);
        let longest = self.longest_command();
        self.outcome_of(
            "sandbox.exec",
            command_in(command),
            |command| Call::Exec { sandbox: handle(&this), command: Cow::Borrowed(command) },
            note,
            |command| async move {
                let timeout = within(command.timeout, Some(longest));
                sandbox.exec(Command { timeout, ..command }).await
            },
        )
        .await
    }

    async fn start(
        &mut self,
        this: Resource<OpenSandbox>,
        command: wit::Command,
    ) -> Answer<Resource<OpenProcess>> {
        let sandbox = self.sandbox(&this)?;
        let own = self.table.get(&this)?.1.clone();
        let note = program_text(&command.program);
        let longest = self.gate.command_wall();
        self.opened_in_sandbox(
            "sandbox.start",
            command_in(command),
            |command| Call::Start { sandbox: handle(&this), command: Cow::Borrowed(command) },
            note,
            |command| async move {
                let timeout = within(command.timeout, longest);
                sandbox.start(Command { timeout, ..command }).await
            },
            |process| OpenProcess(process, own),
        )
        .await
    }

    async fn open_shell(
        &mut self,
        this: Resource<OpenSandbox>,
        options: wit::ShellOptions,
    ) -> Answer<Resource<OpenShell>> {
        let sandbox = self.sandbox(&this)?;
        let own = self.table.get(&this)?.1.clone();
        let note = options.program.clone().unwrap_or_default();
        self.opened_in_sandbox(
            "sandbox.open-shell",
            shell_in(options),
            |options| Call::OpenShell { sandbox: handle(&this), options: Cow::Borrowed(options) },
            note,
            |options| async move { sandbox.open_shell(options).await },
            |shell| OpenShell(shell, own),
        )
        .await
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
        let read = self
            .in_sandbox(
                "sandbox.read-file",
                asked,
                |path| Call::ReadFile { sandbox: handle(&this), path: Bytes::from(path), offset, length },
                note,
                |path| async move { sandbox.read_file(&path, offset, length).await },
                |bytes| Reply::Bytes(Bytes::from(bytes)),
            )
            .await?;
        Ok(read.map_err(failure_out))
    }

    async fn file_to_blob(&mut self, this: Resource<OpenSandbox>, path: wit::Path) -> Answer<String> {
        let sandbox = self.sandbox(&this)?;
        let note = path_text(&path);
        let blob = self
            .in_sandbox(
                "sandbox.file-to-blob",
                path_in(path),
                |path| Call::FileToBlob { sandbox: handle(&this), path: Bytes::from(path) },
                note,
                |path| async move { sandbox.file_to_blob(&path, BLOB_BYTES_MAX).await },
                |blob| Reply::Text(Cow::Borrowed(blob)),
            )
            .await?;
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
        let note = path_text(&path);
        let asked = bounded("the file", bytes.len(), WRITE_BYTES_MAX)
            .and_then(|()| Ok((path_in(path)?, bytes, write_in(options)?)));
        let done = self
            .in_sandbox(
                "sandbox.write-file",
                asked,
                |(path, bytes, options)| Call::WriteFile {
                    sandbox: handle(&this),
                    path: Bytes::from(path),
                    bytes: Bytes::from(bytes),
                    options: Cow::Borrowed(options),
                },
                note,
                |(path, bytes, options)| async move { sandbox.write_file(&path, bytes, options).await },
                |()| Reply::Done,
            )
            .await?;
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
        let asked = path_in(path).and_then(|path| Ok((blob, path, write_in(options)?)));
        let done = self
            .in_sandbox(
                "sandbox.blob-to-file",
                asked,
                |(blob, path, options)| Call::BlobToFile {
                    sandbox: handle(&this),
                    blob: Cow::Borrowed(blob),
                    path: Bytes::from(path),
                    options: Cow::Borrowed(options),
                },
                note,
                |(blob, path, options)| async move {
                    sandbox.blob_to_file(&blob, &path, options, BLOB_BYTES_MAX).await
                },
                |()| Reply::Done,
            )
            .await?;
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
            _ => Err(Failure::Invalid(format!("depth {depth} is not between 1 and {DEPTH_MAX}"))),
        };
        let entries = self
            .in_sandbox(
                "sandbox.list-folder",
                asked,
                |path| Call::ListFolder { sandbox: handle(&this), path: Bytes::from(path), depth },
                note,
                |path| async move { sandbox.list_folder(&path, depth, ENTRIES_MAX).await },
                |entries| Reply::Entries(Cow::Borrowed(entries)),
            )
            .await?;
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
        let stat = self
            .in_sandbox(
                "sandbox.stat",
                path_in(path),
                |path| Call::Stat { sandbox: handle(&this), path: Bytes::from(path), follow },
                note,
                |path| async move { sandbox.stat(&path, follow).await },
                |stat| Reply::Stat(Cow::Borrowed(stat)),
            )
            .await?;
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
        let done = self
            .in_sandbox(
                "sandbox.make-folder",
                asked,
                |(path, options)| Call::MakeFolder {
                    sandbox: handle(&this),
                    path: Bytes::from(path),
                    options: Cow::Borrowed(options),
                },
                note,
                |(path, options)| async move { sandbox.make_folder(&path, options).await },
                |()| Reply::Done,
            )
            .await?;
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
        let gone = self
            .in_sandbox(
                "sandbox.remove",
                path_in(path),
                |path| Call::Remove {
                    sandbox: handle(&this),
                    path: Bytes::from(path),
                    recursive,
                    missing_ok,
                },
                note,
                |path| async move { sandbox.remove(&path, recursive, missing_ok).await },
                |gone| Reply::Number(*gone),
            )
            .await?;
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
        let done = self
            .in_sandbox(
                "sandbox.move-to",
                asked,
                |(old, new)| Call::MoveTo {
                    sandbox: handle(&this),
                    old_path: Bytes::from(old),
                    new_path: Bytes::from(new),
                    replace,
                },
                note,
                |(old, new)| async move { sandbox.move_to(&old, &new, replace).await },
                |()| Reply::Done,
            )
            .await?;
        Ok(done.map_err(failure_out))
    }

    async fn apply_patch(
        &mut self,
        this: Resource<OpenSandbox>,
        patch: String,
        options: wit::PatchOptions,
    ) -> Answer<Vec<wit::PatchedFile>> {
        let sandbox = self.sandbox(&this)?;
        let asked =
            bounded("the patch", patch.len(), WRITE_BYTES_MAX).and_then(|()| Ok((patch, patch_in(options)?)));
        let files = self
            .in_sandbox(
                "sandbox.apply-patch",
                asked,
                |(patch, options)| Call::ApplyPatch {
                    sandbox: handle(&this),
                    patch: Cow::Borrowed(patch),
                    options: Cow::Borrowed(options),
                },
                String::new(),
                |(patch, options)| async move { sandbox.apply_patch(patch, options).await },
                |files| Reply::Patched(Cow::Borrowed(files)),
            )
            .await?;
        Ok(files.map(|files| files.into_iter().map(patched_out).collect()).map_err(failure_out))
    }

    async fn changes(
        &mut self,
        this: Resource<OpenSandbox>,
        root: Option<wit::Path>,
    ) -> Answer<wit::ChangeSet> {
        let sandbox = self.sandbox(&this)?;
        let asked = root.map(path_in).transpose();
        let noted = |changes: Option<&ChangeSet>| {
            let changes = changes?;
            let (added, changed, removed) = (changes.added, changes.changed, changes.removed);
            Some(format!("{added} added, {changed} changed, {removed} removed").into())
        };
        let changes = self
            .in_sandbox_noted(
                "sandbox.changes",
                asked,
                |root| Call::Changes { sandbox: handle(&this), root: root.as_ref().map(Bytes::from) },
                |root| async move { sandbox.changes(root.as_deref(), BLOB_BYTES_MAX).await },
                |changes| Reply::Changes(Cow::Borrowed(changes)),
                noted,
            )
            .await?;
        Ok(changes.map(changes_out).map_err(failure_out))
    }

    async fn apply_changes(&mut self, this: Resource<OpenSandbox>, changes: String) -> Answer<()> {
        let sandbox = self.sandbox(&this)?;
        let done = self
            .in_sandbox(
                "sandbox.apply-changes",
                Ok(changes),
                |changes| Call::ApplyChanges { sandbox: handle(&this), changes: Cow::Borrowed(changes) },
                String::new(),
                |changes: String| async move { sandbox.apply_changes(&changes).await },
                |()| Reply::Done,
            )
            .await?;
        Ok(done.map_err(failure_out))
    }

    async fn checkpoint(&mut self, this: Resource<OpenSandbox>) -> Answer<String> {
        let sandbox = self.sandbox(&this)?;
        let work = Box::pin(async move { sandbox.checkpoint().await });
        let asked = self.gate.asked(Call::Checkpoint { sandbox: handle(&this) });
        let noted = |name: Option<&String>| name.map(|name| name.as_str().into());
        let name =
            self.gate.pass_noted(asked, work, Ok, |name: &String| Reply::Text(Cow::Borrowed(name)), noted);
        let name = name.await?;
        Ok(name.map_err(failure_out))
    }

    async fn port(&mut self, this: Resource<OpenSandbox>, number: u16) -> Answer<String> {
        let sandbox = self.sandbox(&this)?;
        let asked = match number {
            0 => Err(Failure::Invalid("port 0".to_owned())),
            number => Ok(number),
        };
        let address = self
            .in_sandbox(
                "sandbox.port",
                asked,
                |number| Call::Port { sandbox: handle(&this), number: *number },
                number.to_string(),
                |number| async move { sandbox.port(number).await },
                |address| Reply::Text(Cow::Borrowed(address)),
            )
            .await?;
        Ok(address.map_err(failure_out))
    }

    fn drop(&mut self, this: Resource<OpenSandbox>) -> wasmtime::Result<()> {
        self.table.delete(this)?;
        Ok(())
    }
}
