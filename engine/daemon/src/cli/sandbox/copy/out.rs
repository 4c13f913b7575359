//! Out of a sandbox that may be hostile: names, kinds and modes are its own, and change between two looks at them.

use super::place::Target;
use super::{LeftOut, here, join, there};
use crate::cli::exit::Exit;
use crate::output::problem::Problem;
use espalier_agent_client::{AgentError, wire};
use espalier_sandbox::service::Sandbox;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};

/// Folders in folders that one listing goes down; what is deeper has listings of its own.
const DEPTH: u32 = 64;

/// Longest file that is copied, holes included: more than a sandbox's disk has, and less than a file system of this machine takes.
const FILE_BYTES_MAX: u64 = 1 << 40;

/// A file or a folder with all in it; links are followed at the top alone.
pub(super) async fn get(sandbox: &Sandbox, from: &[u8], to: &Path) -> Result<LeftOut, Problem> {
    let stat = sandbox.agent.stat(from.to_vec(), true).await.map_err(|error| there(from, &error))?;
    let mut left_out = LeftOut::default();
    match stat.kind() {
        wire::FileKind::Folder => {
            let target = Target::folder(to, stat.mode).map_err(|error| here(to, &error))?;
            get_folder(sandbox, from, to, target, &mut left_out).await?;
        }
        wire::FileKind::File => {
            let (mut target, name) = Target::beside(to).map_err(|error| here(to, &error))?;
            // What cannot be read is the whole of what was asked for.
            get_file(sandbox, from, to, &mut target, &name).await?.map_err(|error| there(from, &error))?;
        }
        kind => left_out.note(from, words(kind)),
    }
    Ok(left_out)
}

async fn get_folder(
    sandbox: &Sandbox,
    from: &[u8],
    to: &Path,
    mut target: Target,
    left_out: &mut LeftOut,
) -> Result<(), Problem> {
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let listed = join_path(from, &folder);
        let entries = match sandbox.agent.list_folder(listed.clone(), DEPTH).await {
            Ok(entries) => entries,
            Err(AgentError::Refused { message, .. }) => {
                left_out.note(listed, message);
                continue;
            }
            Err(error) => return Err(there(&listed, &error)),
        };
        for entry in entries {
            let below = PathBuf::from(OsStr::from_bytes(&entry.path));
            if below.components().any(|part| !matches!(part, Component::Normal(_))) {
                return Err(Problem::new(
                    Exit::Negative,
                    format!("{}: not a plain file name", below.display()),
                ));
            }
            let path = folder.join(&below);
            let source = join_path(from, &path);
            if !entry.error.is_empty() {
                left_out.note(source.clone(), entry.error);
            }
            let Some(stat) = entry.stat else { continue };
            let failed = |error: std::io::Error| here(&to.join(&path), &error);
            match stat.kind() {
                wire::FileKind::Folder => {
                    target.make_folder(&path, stat.mode).map_err(failed)?;
                    if below.components().count() >= DEPTH as usize {
                        folders.push(path);
                    }
                }
                wire::FileKind::File => {
                    let got = get_file(sandbox, &source, &to.join(&path), &mut target, &path).await?;
                    if let Err(error) = got {
                        left_out.note(source, error.to_string());
                    }
                }
                wire::FileKind::Link => target.link(&path, &stat.target).map_err(failed)?,
                kind => left_out.note(source, words(kind)),
            }
        }
    }
    Ok(())
}

fn join_path(from: &[u8], path: &Path) -> Vec<u8> {
    if path.as_os_str().is_empty() { from.to_vec() } else { join(from, path.as_os_str()) }
}

fn words(kind: wire::FileKind) -> &'static str {
    match kind {
        wire::FileKind::Fifo => "it is a fifo",
        wire::FileKind::Socket => "it is a socket",
        wire::FileKind::CharacterDevice | wire::FileKind::BlockDevice => "it is a device",
        _ => "it is not a file, folder or link",
    }
}

/// Beside its place first, so that a cut leaves no half of it there. The inner error: the sandbox does not give it.
async fn get_file(
    sandbox: &Sandbox,
    from: &[u8],
    shown: &Path,
    target: &mut Target,
    path: &Path,
) -> Result<Result<(), AgentError>, Problem> {
    let failed = |error: std::io::Error| here(shown, &error);
    let refused = |error: AgentError| match error {
        error @ AgentError::Refused { .. } => Ok(Err(error)),
        error => Err(there(from, &error)),
    };
    let mut reader = match sandbox.agent.read(from.to_vec(), 0, 0).await {
        Ok(reader) => reader,
        Err(error) => return refused(error),
    };
    let (mut size, mode) = (reader.stat().size, reader.stat().mode);
    let too_long = |size: u64| {
        let message = format!("it has {size} bytes, at most {FILE_BYTES_MAX} are copied");
        Ok(Err(AgentError::refused(wire::Reason::Bound, message)))
    };
    if size > FILE_BYTES_MAX {
        return too_long(size);
    }
    let new = target.new_file(path).map_err(failed)?;
    loop {
        let chunk = match reader.next().await {
            Ok(Some(chunk)) => chunk,
            Ok(None) => break,
            Err(error) => return refused(error),
        };
        // Files of /proc say that they are empty, and others grow.
        size = size.max(chunk.offset.saturating_add(chunk.bytes.len() as u64));
        if size > FILE_BYTES_MAX {
            return too_long(size);
        }
        new.file().write_all_at(&chunk.bytes, chunk.offset).map_err(failed)?;
    }
    // Holes at the end.
    new.file().set_len(size).map_err(failed)?;
    new.keep(mode).map_err(failed)?;
    Ok(Ok(()))
}
