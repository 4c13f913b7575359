//! What can be done with a sandbox: each method of [`Sandbox`] over the agent's client.

use super::machine::{Machine, Running, excerpts, keep};
use super::process::Started;
use super::shell::OpenShell;
use crate::error::SandboxError;
use async_trait::async_trait;
use bytes::Bytes;
use espalier_agent_client::AgentError;
use espalier_agent_client::files::Source;
use espalier_agent_client::wire::{
    self, ApplyPatchRequest, ChangesRequest, CommandSpec, MakeFolderRequest, OpenShellRequest, WriteHeader,
    patched_file,
};
use espalier_core::failure::Failure;
use espalier_core::host::sandbox::{
    ChangeSet, Command, Entry, FileKind, FileStat, Outcome, PatchAction, PatchOptions, PatchedFile, Process,
    Sandbox, Shell, ShellOptions, WriteOptions,
};
use std::io::Write as _;
use std::sync::Arc;

/// Bytes of a blob read at a time.
const SLICE_BYTES: u32 = 1 << 20;
/// Changes take more room than their content: names, modes, lengths. Most that a blob of them may have.
const CHANGES_OVERHEAD: u64 = 64 << 20;

/// A handle of a sandbox.
pub(super) struct Handle(pub(super) Arc<Machine>);

fn bound(text: String) -> Failure {
    Failure::Other { code: "bound".to_owned(), text }
}

fn local(error: std::io::Error) -> AgentError {
    AgentError::Local { what: "a temporary file".to_owned(), source: error }
}

impl Handle {
    /// A blob's bytes, one slice after the other.
    async fn blob(
        &self,
        blob: &str,
        bytes_max: u64,
        mut take: impl FnMut(&[u8]) -> std::io::Result<()>,
    ) -> Result<(), Failure> {
        let length = self.0.blobs.stat(blob).await?.length;
        if length > bytes_max {
            return Err(bound(format!("blob of {length} bytes, at most {bytes_max} are taken")));
        }
        let mut offset = 0;
        while offset < length {
            let bytes = self.0.blobs.read(blob, offset, SLICE_BYTES).await?;
            if bytes.is_empty() {
                return Err(Failure::Unavailable(format!("blob {blob} ends at {offset} of {length} bytes")));
            }
            offset += bytes.len() as u64;
            self.0.said(take(&bytes).map_err(local))?;
        }
        Ok(())
    }

    async fn write(&self, path: &[u8], bytes: Vec<u8>, options: WriteOptions) -> Result<(), Failure> {
        let machine = &self.0;
        let header = WriteHeader {
            path: machine.place(path),
            mode: options.mode,
            owner: machine.user(options.owner),
            parents: options.parents,
            create_new: options.create_new,
            ..WriteHeader::default()
        };
        let change = machine.change();
        machine.said(machine.agent.write(&change, header, Source::Bytes(bytes.into())).await).map(drop)
    }

    /// All of a file.
    async fn read(&self, path: &[u8], offset: u64, length: u64, bytes_max: u64) -> Result<Vec<u8>, Failure> {
        let machine = &self.0;
        let reader = machine.said(machine.agent.read(machine.place(path), offset, length).await)?;
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        machine.said(reader.collect(bytes_max).await)
    }
}

#[async_trait]
impl Sandbox for Handle {
    fn begin(&self, call: u64) {
        self.0.begin(call);
    }

    async fn exec(&self, command: Command) -> Result<Outcome, Failure> {
        let machine = &self.0;
        let show = command.show;
        let spec = machine.spec(command, keep(show));
        let (running, id) = Running::new(machine);
        let answer = machine.agent.run(&id, spec, excerpts(show)).await;
        running.ended();
        let outcome = machine.outcome(&id, answer, show).await?;
        machine.forget(id, outcome.stdout.total + outcome.stderr.total).await;
        Ok(outcome)
    }

    async fn start(&self, command: Command) -> Result<Arc<dyn Process>, Failure> {
        let machine = &self.0;
        let show = command.show;
        let spec = CommandSpec { stdin_open: true, ..machine.spec(command, 0) };
        let (running, id) = Running::new(machine);
        let answer = machine.agent.start(&id, spec.clone()).await;
        running.ended();
        let pid = machine.said(answer)?.pid;
        Ok(Arc::new(Started::new(Arc::clone(machine), id, pid, spec, show)))
    }

    async fn open_shell(&self, options: ShellOptions) -> Result<Arc<dyn Shell>, Failure> {
        let machine = &self.0;
        let request = OpenShellRequest {
            shell: options.program.unwrap_or_default(),
            folder: machine.folder(options.cwd.as_deref()),
            environment: machine.environment(&options.env),
            user: machine.user(options.user),
            ..OpenShellRequest::default()
        };
        let change = machine.change();
        machine.said(machine.agent.open_shell(&change, request).await)?;
        Ok(Arc::new(OpenShell { machine: Arc::clone(machine), id: (*change).clone() }))
    }

    async fn read_file(&self, path: &[u8], offset: u64, length: u32) -> Result<Vec<u8>, Failure> {
        match length {
            // The agent reads to the end for 0.
            0 => self.stat(path, true).await.map(|_| Vec::new()),
            length => self.read(path, offset, length.into(), length.into()).await,
        }
    }

    async fn file_to_blob(&self, path: &[u8], bytes_max: u64) -> Result<String, Failure> {
        let bytes = self.read(path, 0, 0, bytes_max).await?;
        let media_type = match std::str::from_utf8(&bytes) {
            Ok(_) => "text/plain; charset=utf-8",
            Err(_) => "application/octet-stream",
        };
        self.0.blobs.put(bytes, media_type).await
    }

    async fn write_file(&self, path: &[u8], bytes: Vec<u8>, options: WriteOptions) -> Result<(), Failure> {
        self.write(path, bytes, options).await
    }

    async fn blob_to_file(
        &self,
        blob: &str,
        path: &[u8],
        options: WriteOptions,
        bytes_max: u64,
    ) -> Result<(), Failure> {
        let mut bytes = Vec::new();
        self.blob(blob, bytes_max, |slice| {
            bytes.extend_from_slice(slice);
            Ok(())
        })
        .await?;
        self.write(path, bytes, options).await
    }

    async fn list_folder(&self, path: &[u8], depth: u32, entries_max: u32) -> Result<Vec<Entry>, Failure> {
        let machine = &self.0;
        let path = machine.place(path);
        let listed = machine.agent.list_folder_up_to(path, depth, entries_max as usize).await;
        Ok(machine.said(listed)?.into_iter().map(entry).collect())
    }

    async fn stat(&self, path: &[u8], follow: bool) -> Result<FileStat, Failure> {
        let machine = &self.0;
        Ok(stat(&machine.said(machine.agent.stat(machine.place(path), follow).await)?))
    }

    async fn make_folder(&self, path: &[u8], options: WriteOptions) -> Result<(), Failure> {
        let machine = &self.0;
        let request = MakeFolderRequest {
            path: machine.place(path),
            mode: options.mode,
            owner: machine.user(options.owner),
            parents: options.parents,
            ..MakeFolderRequest::default()
        };
        let change = machine.change();
        machine.said(machine.agent.make_folder(&change, request).await)
    }

    async fn remove(&self, path: &[u8], recursive: bool, missing_ok: bool) -> Result<u64, Failure> {
        let machine = &self.0;
        let change = machine.change();
        machine.said(machine.agent.remove(&change, machine.place(path), recursive, missing_ok).await)
    }

    async fn move_to(&self, from: &[u8], to: &[u8], replace: bool) -> Result<(), Failure> {
        let machine = &self.0;
        let change = machine.change();
        machine.said(machine.agent.move_to(&change, machine.place(from), machine.place(to), replace).await)
    }

    async fn apply_patch(&self, patch: String, options: PatchOptions) -> Result<Vec<PatchedFile>, Failure> {
        let machine = &self.0;
        let request = ApplyPatchRequest {
            root: machine.folder(options.root.as_deref()),
            patch: patch.into(),
            strip: options.strip,
            fuzz: options.fuzz,
            reverse: options.reverse,
            dry_run: options.dry_run,
            ..ApplyPatchRequest::default()
        };
        let change = machine.change();
        let answer = machine.said(machine.agent.apply_patch(&change, request).await)?;
        Ok(answer.files.iter().map(patched).collect())
    }

    async fn changes(&self, root: Option<&[u8]>, bytes_max: u64) -> Result<ChangeSet, Failure> {
        let machine = &self.0;
        let root = root.map_or_else(Bytes::new, |root| machine.place(root));
        let file = machine.said(tempfile::NamedTempFile::new().map_err(local))?;
        let request = ChangesRequest { root, bytes_max, names_only: false };
        let end = machine.said(machine.agent.changes_into(request, file.path()).await)?;
        let bytes = machine.said(tokio::fs::read(file.path()).await.map_err(local))?;
        let blob = machine.blobs.put(bytes, "application/x-espalier-changes").await?;
        Ok(ChangeSet {
            blob,
            added: end.added,
            changed: end.changed,
            removed: end.removed,
            content_bytes: end.content_bytes,
        })
    }

    async fn apply_changes(&self, changes: &str) -> Result<(), Failure> {
        let machine = &self.0;
        let mut file = machine.said(tempfile::NamedTempFile::new().map_err(local))?;
        self.blob(changes, 2 * CHANGES_OVERHEAD, |slice| file.write_all(slice)).await?;
        let change = machine.change();
        machine.said(machine.agent.apply_changes(&change, Bytes::new(), file.path()).await).map(drop)
    }

    async fn checkpoint(&self) -> Result<String, Failure> {
        let machine = &self.0;
        if machine.fresh {
            let text = "no checkpoint is made of a fresh sandbox".to_owned();
            return Err(Failure::Other { code: "unsupported".to_owned(), text });
        }
        let failed = |error: SandboxError| match &error {
            SandboxError::Invalid { .. } | SandboxError::Rejected(_) | SandboxError::OutOfMemory { .. } => {
                Failure::Invalid(error.with_causes())
            }
            SandboxError::Refused { .. } => {
                Failure::Other { code: "unsupported".to_owned(), text: error.with_causes() }
            }
            SandboxError::Unavailable(_)
            | SandboxError::NoAgent { .. }
            | SandboxError::NoKeeper { .. }
            | SandboxError::Lost(_) => {
                Failure::Unavailable(format!("sandbox {}: {}", machine.name, error.with_causes()))
            }
        };
        machine.provider.checkpoint(&machine.name).await.map_err(failed)
    }

    async fn port(&self, number: u16) -> Result<String, Failure> {
        Ok(self.0.ports.open(number).await?.to_string())
    }
}

fn stat(stat: &wire::FileStat) -> FileStat {
    let kind = match stat.kind() {
        wire::FileKind::File => FileKind::File,
        wire::FileKind::Folder => FileKind::Folder,
        wire::FileKind::Link => FileKind::Link,
        wire::FileKind::Fifo => FileKind::Fifo,
        wire::FileKind::Socket => FileKind::Socket,
        wire::FileKind::CharacterDevice => FileKind::CharacterDevice,
        wire::FileKind::BlockDevice => FileKind::BlockDevice,
        wire::FileKind::Other => FileKind::Other("other".to_owned()),
    };
    let modified_ms = u64::try_from(stat.modified_s).unwrap_or(0).saturating_mul(1_000)
        + u64::from(stat.modified_ns / 1_000_000);
    FileStat {
        target: (kind == FileKind::Link).then(|| stat.target.to_vec()),
        kind,
        mode: stat.mode,
        user_id: stat.user_id,
        group_id: stat.group_id,
        size: stat.size,
        modified_ms,
    }
}

fn entry(entry: wire::Entry) -> Entry {
    let error = (!entry.error.is_empty()).then_some(entry.error);
    Entry { path: entry.path.to_vec(), stat: stat(&entry.stat.unwrap_or_default()), error }
}

fn patched(file: &wire::PatchedFile) -> PatchedFile {
    let action = match file.action() {
        patched_file::Action::Modified => PatchAction::Modified,
        patched_file::Action::Created => PatchAction::Created,
        patched_file::Action::Deleted => PatchAction::Deleted,
        patched_file::Action::Renamed => PatchAction::Renamed,
        patched_file::Action::Copied => PatchAction::Copied,
    };
    PatchedFile {
        path: file.path.to_vec(),
        from: (!file.from.is_empty()).then(|| file.from.to_vec()),
        action,
        hunks: file.hunks,
        shifted: file.shifted,
        fuzzy: file.fuzzy,
    }
}
