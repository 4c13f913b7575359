//! The work done in a sandbox as a git diff: what was changed since the set-up, held against a fresh sandbox. No program of either
//! sandbox takes part.

mod git;

use super::RolloutSandboxes;
use super::machine::Machine;
use bytes::Bytes;
use espalier_agent_client::wire::{FileKind, FileStat, change};
use espalier_agent_client::{AgentError, Reason};
use espalier_core::failure::Failure;
use git::Entry;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Longest file that stands in a patch.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Longest patch.
const PATCH_BYTES_MAX: usize = 32 << 20;
/// Most changed paths that are looked at.
const PATHS_MAX: usize = 10_000;
/// Folders below each other that are looked into; the agent's own bound.
const DEPTH_MAX: u32 = 64;
/// Folders of tools and caches, which are no work: anywhere in a path.
const NO_WORK: [&str; 7] =
    [".git", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".tox", "node_modules"];

/// Work as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patch {
    /// A git diff, from the sandbox's folder; empty where nothing was done.
    pub text: String,
    /// Files that are not in it, with the reason.
    pub left_out: Vec<String>,
}

impl RolloutSandboxes {
    /// The work done in the sandbox of this name, which another one is made to compare with; none where it was never opened.
    ///
    /// Left out are binary files, files over 4 MiB, and what tools leave behind (`.git`, `__pycache__` and the like). Errors: as
    /// `changes`; `bound` for more than 10,000 paths, or a text over 32 MiB.
    pub async fn patch(&self, name: &str) -> Result<Option<Patch>, Failure> {
        let Some(left) = self.state().machines.get(name).and_then(|cell| cell.get().cloned()) else {
            return Ok(None);
        };
        let root = left.folder(None);
        let local = |source| AgentError::Local { what: "a temporary file".to_owned(), source };
        let file = left.said(tempfile::NamedTempFile::new().map_err(local))?;
        let changes = left.said(left.agent.changed(root.clone(), file.path()).await)?;
        // From the folder; whether it was removed.
        let mut paths: BTreeMap<Vec<u8>, bool> = BTreeMap::new();
        for change in changes {
            let below = change.path.strip_prefix(&root[..]).and_then(|path| path.strip_prefix(b"/"));
            if let Some(path) = below.filter(|path| is_work(path)) {
                paths.insert(path.to_vec(), change.action() == change::Action::Removed);
            }
        }
        let mut patch = Patch::default();
        if paths.is_empty() {
            return Ok(Some(patch));
        }
        not_too_many(paths.len())?;
        let fresh = self.fresh(name).await?;
        // Of a folder that was removed, the folder alone is told.
        let removed: Vec<Vec<u8>> =
            paths.iter().filter(|(_, removed)| **removed).map(|(path, _)| path.clone()).collect();
        for folder in removed {
            for path in inside(&fresh, &root, &folder).await? {
                paths.insert(path, true);
            }
            not_too_many(paths.len())?;
        }
        for (path, removed) in paths {
            let place = absolute(&root, &path);
            let before = entry(&fresh, &place).await?;
            let after = if removed { Ok(Entry::Absent) } else { entry(&left, &place).await? };
            let shown = String::from_utf8_lossy(&path).into_owned();
            let said = match (before, after) {
                (Ok(before), Ok(after)) => section(path, before, after).await?,
                (Err(why), _) | (_, Err(why)) => Err(why),
            };
            match said {
                Ok(text) => patch.text.push_str(&text),
                Err(why) => patch.left_out.push(format!("{shown} {why}")),
            }
            if patch.text.len() > PATCH_BYTES_MAX {
                return Err(bound(format!("a patch over {PATCH_BYTES_MAX} bytes")));
            }
        }
        Ok(Some(patch))
    }
}

fn not_too_many(paths: usize) -> Result<(), Failure> {
    if paths > PATHS_MAX {
        return Err(bound(format!("{paths} paths were changed, at most {PATHS_MAX} make a patch")));
    }
    Ok(())
}

fn bound(text: String) -> Failure {
    Failure::Other { code: "bound".to_owned(), text }
}

fn is_work(path: &[u8]) -> bool {
    let tool = |part: &[u8]| NO_WORK.iter().any(|tool| part == tool.as_bytes());
    !path.split(|byte| *byte == b'/').any(|part| tool(part) || part.ends_with(b".pyc"))
}

fn absolute(root: &[u8], path: &[u8]) -> Bytes {
    [root, b"/", path].concat().into()
}

/// Files and links below a folder, from the root; none where no folder is. Folders below the 64th are not looked into.
async fn inside(machine: &Arc<Machine>, root: &[u8], folder: &[u8]) -> Result<Vec<Vec<u8>>, Failure> {
    let place = absolute(root, folder);
    let stat = match machine.agent.stat(place.clone(), false).await {
        Err(AgentError::Refused { reason: Reason::NotFound | Reason::Kind, .. }) => return Ok(Vec::new()),
        stat => machine.said(stat)?,
    };
    if stat.kind() != FileKind::Folder {
        return Ok(Vec::new());
    }
    let entries = machine.said(machine.agent.list_folder_up_to(place, DEPTH_MAX, PATHS_MAX).await)?;
    let files = entries.into_iter().filter(|entry| {
        let kind = entry.stat.as_ref().map(FileStat::kind);
        matches!(kind, Some(FileKind::File | FileKind::Link))
    });
    let paths = files.map(|entry| [folder, b"/", &entry.path[..]].concat());
    Ok(paths.filter(|path| is_work(path)).collect())
}

/// What a patch says of a path. The difference of long texts takes seconds, and is found beside the runtime; if the caller goes
/// away, it is dropped.
async fn section(
    path: Vec<u8>,
    before: Entry,
    after: Entry,
) -> Result<Result<String, &'static str>, Failure> {
    let diff = move || {
        let mut text = String::new();
        git::section(&path, &before, &after, &mut text).map(|()| text)
    };
    match tokio::task::spawn_blocking(diff).await {
        Ok(said) => Ok(said),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is going away, and the caller with it.
            Err(error) => Err(Failure::Unavailable(format!("making a patch: {error}"))),
        },
    }
}

/// What stands at a path now; the inner error says why it is not part of a patch.
async fn entry(machine: &Arc<Machine>, path: &Bytes) -> Result<Result<Entry, &'static str>, Failure> {
    let stat: FileStat = match machine.agent.stat(path.clone(), false).await {
        // A file may stand where there was a folder above it.
        Err(AgentError::Refused { reason: Reason::NotFound | Reason::Kind, .. }) => {
            return Ok(Ok(Entry::Absent));
        }
        stat => machine.said(stat)?,
    };
    Ok(match stat.kind() {
        FileKind::Link => Ok(Entry::Link(stat.target.to_vec())),
        FileKind::File if stat.size > FILE_BYTES_MAX => Err("is too long"),
        FileKind::File => {
            let reader = machine.said(machine.agent.read(path.clone(), 0, 0).await)?;
            let content = machine.said(reader.collect(FILE_BYTES_MAX as usize).await)?;
            Ok(Entry::File { content, executable: stat.mode & 0o100 != 0 })
        }
        // git keeps no folders; what else there is, no patch can make.
        _ => Ok(Entry::Absent),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tools_leave_behind_is_no_work() {
        for (path, expect) in [
            ("src/a.py", true),
            (".gitignore", true),
            (".git/index", false),
            ("src/__pycache__/a.cpython-311.pyc", false),
            ("a.pyc", false),
            ("git/.github/x", true),
        ] {
            assert_eq!(is_work(path.as_bytes()), expect, "{path}");
        }
    }
}
