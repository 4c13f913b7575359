//! Files between this machine and a sandbox.

use super::{CopyArgs, attach};
use crate::cli::exit::Exit;
use crate::output::problem::Problem;
use espalier_agent_client::files::Source;
use espalier_agent_client::{AgentError, wire};
use espalier_sandbox::service::{Sandbox, Sandboxes};
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Folders in folders.
const DEPTH_MAX: u32 = 64;

/// `ID:PATH`, or a path of this machine.
enum End {
    Here(PathBuf),
    There(String, String),
}

impl End {
    fn of(text: &str) -> End {
        match text.split_once(':') {
            // A path with a slash before its first colon is a path.
            Some((id, path)) if !id.is_empty() && !id.contains('/') && !id.starts_with('.') => {
                End::There(id.to_owned(), path.to_owned())
            }
            _ => End::Here(text.into()),
        }
    }
}

pub(super) async fn copy(service: &Sandboxes, args: &CopyArgs) -> Result<Exit, Problem> {
    match (End::of(&args.from), End::of(&args.to)) {
        (End::Here(from), End::There(id, to)) => {
            let sandbox = attach(service, &id).await?;
            let to = absolute(&sandbox, &to);
            let name = from.canonicalize().ok().and_then(|path| path.file_name().map(OsStr::to_owned));
            let to = if is_folder(&sandbox, &to).await {
                join(&to, name.as_deref().unwrap_or(OsStr::new("")))
            } else {
                to
            };
            put(&sandbox, &from, to).await?;
        }
        (End::There(id, from), End::Here(to)) => {
            let sandbox = attach(service, &id).await?;
            let from = absolute(&sandbox, &from);
            let name = from.rsplit(|byte| *byte == b'/').find(|part| !part.is_empty()).unwrap_or(b"root");
            let to = if to.is_dir() { to.join(OsStr::from_bytes(name)) } else { to };
            get(&sandbox, &from, &to).await?;
        }
        (End::Here(_), End::Here(_)) => {
            return Err(Problem::new(Exit::Input, "neither end is in a sandbox").hint("write one as ID:PATH"));
        }
        (End::There(..), End::There(..)) => {
            return Err(
                Problem::new(Exit::Input, "both ends are in a sandbox").hint("copy through a folder here")
            );
        }
    }
    Ok(Exit::Done)
}

fn absolute(sandbox: &Sandbox, path: &str) -> Vec<u8> {
    if path.starts_with('/') {
        path.as_bytes().to_vec()
    } else {
        join(sandbox.workdir.as_bytes(), OsStr::new(path))
    }
}

fn join(folder: &[u8], name: &OsStr) -> Vec<u8> {
    let slash: &[u8] = if folder.ends_with(b"/") { b"" } else { b"/" };
    [folder, slash, name.as_bytes()].concat()
}

async fn is_folder(sandbox: &Sandbox, path: &[u8]) -> bool {
    let stat = sandbox.agent.stat(path.to_vec(), true).await;
    stat.is_ok_and(|stat| stat.kind() == wire::FileKind::Folder)
}

fn there(path: &[u8], error: &AgentError) -> Problem {
    let exit = match error {
        AgentError::Refused { .. } => Exit::Input,
        _ => Exit::Unavailable,
    };
    let path = String::from_utf8_lossy(path);
    let text = error.to_string();
    Problem::new(exit, if text.contains(&*path) { text } else { format!("{path}: {text}") })
}

fn here(path: &Path, error: &std::io::Error) -> Problem {
    Problem::new(Exit::Input, format!("{}: {error}", path.display()))
}

/// A file or a folder with all in it; links are followed at the top alone.
async fn put(sandbox: &Sandbox, from: &Path, to: Vec<u8>) -> Result<(), Problem> {
    let agent = &sandbox.agent;
    let owner = sandbox.user.clone().unwrap_or_default();
    let mut left = vec![(from.to_owned(), to)];
    let mut links = Vec::new();
    while let Some((from_path, to)) = left.pop() {
        let at_top = from_path == *from;
        let found =
            if at_top { std::fs::metadata(&from_path) } else { std::fs::symlink_metadata(&from_path) };
        let found = found.map_err(|error| here(&from_path, &error))?;
        let mode = Some(found.permissions().mode() & 0o7777);
        if found.is_dir() {
            let request = wire::MakeFolderRequest {
                path: to.clone().into(),
                mode,
                owner: owner.clone(),
                parents: true,
                ..wire::MakeFolderRequest::default()
            };
            match agent.make_folder(&agent.allot(), request).await {
                Err(AgentError::Refused { reason: wire::Reason::Kind, .. })
                    if is_folder(sandbox, &to).await => {}
                other => other.map_err(|error| there(&to, &error))?,
            }
            let entries = std::fs::read_dir(&from_path).map_err(|error| here(&from_path, &error))?;
            for entry in entries {
                let entry = entry.map_err(|error| here(&from_path, &error))?;
                left.push((entry.path(), join(&to, &entry.file_name())));
            }
        } else if found.is_file() {
            let header = wire::WriteHeader {
                path: to.clone().into(),
                mode,
                owner: owner.clone(),
                parents: true,
                ..wire::WriteHeader::default()
            };
            let written = agent.write(&agent.allot(), header, Source::File(from_path)).await;
            written.map_err(|error| there(&to, &error))?;
        } else if found.is_symlink() {
            links.push((std::fs::read_link(&from_path).map_err(|error| here(&from_path, &error))?, to));
        }
    }
    // The protocol writes files; links are the shell's work, with nothing of theirs read as shell.
    for (target, to) in links {
        let words = [
            b"ln".to_vec(),
            b"-sfn".to_vec(),
            b"--".to_vec(),
            target.into_os_string().into_vec(),
            to.clone(),
        ];
        let spec = espalier_agent_client::command::arguments(&words);
        let answer = agent.run(&agent.allot(), spec, espalier_agent_client::Excerpts::default()).await;
        answer.map_err(|error| there(&to, &error))?;
    }
    Ok(())
}

/// The other way.
async fn get(sandbox: &Sandbox, from: &[u8], to: &Path) -> Result<(), Problem> {
    let stat = sandbox.agent.stat(from.to_vec(), true).await.map_err(|error| there(from, &error))?;
    if stat.kind() != wire::FileKind::Folder {
        return get_file(sandbox, from, to).await;
    }
    make_folder(to, stat.mode)?;
    let entries =
        sandbox.agent.list_folder(from.to_vec(), DEPTH_MAX).await.map_err(|error| there(from, &error))?;
    for entry in entries {
        let path = PathBuf::from(OsStr::from_bytes(&entry.path));
        // Names come from a sandbox that may be hostile.
        if path.components().any(|part| !matches!(part, std::path::Component::Normal(_))) {
            return Err(Problem::new(Exit::Negative, format!("{}: no plain name", path.display())));
        }
        let target = to.join(&path);
        let below = target.parent().unwrap_or(to);
        // Nothing is written through a link that a file of the same name has become.
        if std::fs::symlink_metadata(below).is_ok_and(|found| found.is_symlink()) {
            return Err(Problem::new(Exit::Negative, format!("{}: a link is in the way", below.display())));
        }
        let Some(stat) = entry.stat else { continue };
        match stat.kind() {
            wire::FileKind::Folder => make_folder(&target, stat.mode)?,
            wire::FileKind::File => get_file(sandbox, &join(from, path.as_os_str()), &target).await?,
            wire::FileKind::Link => {
                let _ = std::fs::remove_file(&target);
                std::os::unix::fs::symlink(OsStr::from_bytes(&stat.target), &target)
                    .map_err(|error| here(&target, &error))?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn make_folder(path: &Path, mode: u32) -> Result<(), Problem> {
    match std::fs::create_dir(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(here(path, &error)),
        _ => {}
    }
    let mode = std::fs::Permissions::from_mode(mode & 0o777 | 0o700);
    std::fs::set_permissions(path, mode).map_err(|error| here(path, &error))
}

/// Beside its place first, so that a cut leaves no half of it there.
async fn get_file(sandbox: &Sandbox, from: &[u8], to: &Path) -> Result<(), Problem> {
    let failed = |error: std::io::Error| here(to, &error);
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    let reader = sandbox.agent.read(from.to_vec(), 0, 0).await;
    let mut reader = reader.map_err(|error| there(from, &error))?;
    let (size, mode) = (reader.stat().size, reader.stat().mode);
    while let Some(chunk) = reader.next().await.map_err(|error| there(from, &error))? {
        file.as_file().write_all_at(&chunk.bytes, chunk.offset).map_err(failed)?;
    }
    // Holes at the end.
    file.as_file().set_len(size).map_err(failed)?;
    file.flush().map_err(failed)?;
    file.as_file().set_permissions(std::fs::Permissions::from_mode(mode & 0o777)).map_err(failed)?;
    file.persist(to).map_err(|error| failed(error.error))?;
    Ok(())
}
