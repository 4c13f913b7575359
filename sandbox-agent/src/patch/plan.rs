//! What every file named by a patch becomes. Reads the disk and changes nothing.

use super::apply::apply;
use super::commit::Root;
use super::parse::FilePatch;
use crate::files::fault;
use crate::{Reason, refusal};
use espalier_agent_protocol::v1::{PatchedFile, patched_file::Action};
use rustix::io::Errno;
use std::collections::BTreeMap;
use tonic::Status;

/// Most bytes of one file, and of all files after the patch.
const BYTES_MAX: (usize, usize) = (16 << 20, 64 << 20);
/// So many bytes are looked at to tell text from binary.
const LOOKED_AT: usize = 8000;

/// A file or a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Content {
    /// Content of a file; for a link, where it points.
    pub(super) bytes: Vec<u8>,
    /// Permission bits.
    pub(super) mode: u32,
    /// A symbolic link.
    pub(super) link: bool,
}

/// The state of each file after the patch; `None`: it is gone.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) files: BTreeMap<Vec<u8>, Option<Content>>,
    pub(super) report: Vec<PatchedFile>,
}

fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

fn refused(message: String) -> Status {
    refusal(Reason::Patch, message)
}

impl Plan {
    /// Works through the patches in order; a later one sees what an earlier one did.
    pub(super) fn make(root: &Root, patches: &[FilePatch], fuzz: usize) -> Result<Plan, Status> {
        let mut plan = Plan::default();
        for patch in patches {
            plan.add(root, patch, fuzz)?;
        }
        for (name, _) in plan.files.iter().filter(|(_, content)| content.is_some()) {
            if let Some(above) = plan.above(name).find(|(_, content)| content.is_some()) {
                let (name, above) = (shown(name), shown(above.0));
                return Err(refused(format!("`{name}`: `{above}` is a file after the patch")));
            }
        }
        let bytes: usize = plan.files.values().flatten().map(|content| content.bytes.len()).sum();
        if bytes > BYTES_MAX.1 {
            return Err(refusal(
                Reason::Bound,
                format!("the patched files have {bytes} bytes, at most {}", BYTES_MAX.1),
            ));
        }
        Ok(plan)
    }

    /// What is planned for the folders of a name, as if they were files.
    fn above<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = (&'a [u8], &'a Option<Content>)> {
        let ends = name.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
        ends.filter_map(|end| Some((&name[..end], self.files.get(&name[..end])?)))
    }

    /// Whether a name is that of a folder after the patch.
    pub(super) fn makes_folder(&self, name: &[u8]) -> bool {
        let first = [name, b"/"].concat();
        let mut inner = self.files.range(first.clone()..).take_while(|(name, _)| name.starts_with(&first));
        inner.any(|(_, content)| content.is_some())
    }

    /// Whether something has a name. A folder has none: it may go with all its files, which is seen when that is done.
    fn is_taken(&self, root: &Root, name: &[u8]) -> Result<bool, Status> {
        let is_folder = || matches!(root.read(name, 0), Err(Errno::ISDIR));
        // What the patch has already put there is known without the disk.
        Ok((self.files.contains_key(name) || !is_folder()) && self.current(root, name)?.is_some())
    }

    fn current(&self, root: &Root, name: &[u8]) -> Result<Option<Content>, Status> {
        match self.files.get(name) {
            Some(planned) => Ok(planned.clone()),
            // Its folder was a file, or a link.
            None if self.above(name).any(|(_, content)| content.is_none()) => Ok(None),
            None => match root.read(name, BYTES_MAX.0) {
                Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
                Err(Errno::FBIG) => Err(refusal(
                    Reason::Bound,
                    format!("`{}`: larger than {} bytes", shown(name), BYTES_MAX.0),
                )),
                Err(error) => Err(fault(name, error)),
                Ok(content) => Ok(Some(content)),
            },
        }
    }

    fn add(&mut self, root: &Root, patch: &FilePatch, fuzz: usize) -> Result<(), Status> {
        for mode in [patch.old_mode, patch.new_mode].into_iter().flatten() {
            if !matches!(mode & 0o170_000, 0o100_000 | 0o120_000) {
                let name =
                    patch.new.as_ref().or(patch.old.as_ref()).map(|name| shown(name)).unwrap_or_default();
                return Err(refused(format!("`{name}`: mode {mode:o} is neither a file nor a link")));
            }
        }
        let before = match &patch.old {
            Some(old) => match self.current(root, old)? {
                Some(before) => before,
                None => return Err(refused(format!("`{}`: no such file", shown(old)))),
            },
            None => Content { bytes: Vec::new(), mode: 0o644, link: false },
        };
        let named = patch.new.as_ref().or(patch.old.as_ref()).cloned().unwrap_or_default();
        if !patch.hunks.is_empty() && before.bytes[..before.bytes.len().min(LOOKED_AT)].contains(&0) {
            return Err(refused(format!("`{}` is binary: send it as a file", shown(&named))));
        }
        let applied = apply(&before.bytes, &patch.hunks, fuzz).map_err(|number| {
            let line = patch.hunks.get(number - 1).map_or(0, |hunk| hunk.old_start);
            refused(format!("`{}`: hunk {number} (line {line}) does not apply", shown(&named)))
        })?;
        let action = self.put(root, patch, &before, applied.content)?;
        self.report.push(PatchedFile {
            path: named.into(),
            from: match action {
                Action::Renamed | Action::Copied => patch.old.clone().unwrap_or_default().into(),
                _ => Default::default(),
            },
            action: action.into(),
            hunks: u32::try_from(patch.hunks.len()).unwrap_or(u32::MAX),
            shifted: applied.shifted,
            fuzzy: applied.fuzzy,
        });
        Ok(())
    }

    fn put(
        &mut self,
        root: &Root,
        patch: &FilePatch,
        before: &Content,
        bytes: Vec<u8>,
    ) -> Result<Action, Status> {
        let Some(new) = &patch.new else {
            let old = patch.old.clone().unwrap_or_default();
            if !patch.hunks.is_empty() && !bytes.is_empty() {
                return Err(refused(format!(
                    "`{}`: cannot be deleted, it has lines that are not in the patch",
                    shown(&old)
                )));
            }
            self.files.insert(old, None);
            return Ok(Action::Deleted);
        };
        let same = patch.old.as_ref() == Some(new);
        if !same && self.is_taken(root, new)? {
            return Err(refused(format!("`{}`: already exists", shown(new))));
        }
        let mode = match patch.new_mode {
            // git knows whether a file is executable, and nothing else.
            Some(mode) if patch.old.is_none() || patch.old_mode != Some(mode) => {
                if mode & 0o100 != 0 {
                    before.mode | 0o111
                } else {
                    before.mode & !0o111
                }
            }
            _ => before.mode,
        };
        let link = patch.new_mode.map_or(before.link, |mode| mode & 0o170_000 == 0o120_000);
        self.files.insert(new.clone(), Some(Content { bytes, mode, link }));
        Ok(match &patch.old {
            None => Action::Created,
            Some(_) if same => Action::Modified,
            Some(_) if patch.copy => Action::Copied,
            Some(old) => {
                self.files.insert(old.clone(), None);
                Action::Renamed
            }
        })
    }
}
