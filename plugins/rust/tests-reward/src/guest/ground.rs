//! A fresh sandbox with what counts of the agent's work, and the hidden tests. Where something is built before them: `built.rs`.

use super::asked::{Asked, workdir};
use super::bindings::espalier::base::{blobs, log};
use super::bindings::espalier::sandbox::sandboxes::{PatchOptions, Sandbox};
use super::bindings::espalier::sandbox::scoring::open_fresh;
use super::commands::{SLICE_BYTES, read_text, text, write_options};
use super::{Failure, Stop, TABLES_BYTES_MAX, blame, invalid, wrecked};
use crate::Settings;
use crate::changes::{Change, Filter};
use crate::protected::{ChangeAction, Rules};
use crate::tables::repaired;
use crate::task::{Job, Place};
use crate::verdict::Verdict;
use std::collections::{BTreeMap, BTreeSet};

/// Most bytes that can be put into a blob.
const BLOB_BYTES_MAX: usize = 64 << 20;
/// Most paths that a log tells of.
const TOLD_MAX: usize = 100;

/// A new sandbox with the agent's work, less what does not count.
pub(super) fn fresh(
    left: &Sandbox,
    job: &Job,
    settings: &Settings,
    asked: Option<&Asked>,
) -> Result<Sandbox, Stop> {
    const WRECKED: &str = "cannot take the changes from the sandbox that the agent left";
    let work = left.changes(None).map_err(|failure| blame(failure, "wrecked", WRECKED))?;
    if work.content_bytes > settings.changes_bytes_max {
        let reason = format!(
            "the agent's work has {} bytes, at most {} are accepted",
            work.content_bytes, settings.changes_bytes_max
        );
        return Err(Stop::Scored(Verdict::zero("too-large", reason)));
    }
    let ground = open_fresh(&settings.sandbox)?;
    let mut kept = match asked {
        Some(asked) => kept(&work.blob, &ground, true, &mut |change| asked.rules.action(change))?,
        None => {
            let rules = Rules::new(job, &workdir(&ground, settings)?);
            kept(&work.blob, &ground, true, &mut |change| rules.action(change))?
        }
    };
    let mut before = BTreeMap::new();
    for path in std::mem::take(&mut kept.tables) {
        let was = read_text(&ground, &path, TABLES_BYTES_MAX)?;
        before.insert(path, was);
    }
    apply(&ground, &kept)?;
    for (path, was) in before {
        let Some(is) = read_text(&ground, &path, TABLES_BYTES_MAX)? else { continue };
        let put_back = match repaired(&path, was.as_deref(), &is) {
            Some(empty) if empty.is_empty() => ground.remove(&text(&path), false, true).map(drop),
            Some(repaired) => ground.write_file(&text(&path), repaired.as_bytes(), &write_options()),
            None => Ok(()),
        };
        put_back.map_err(wrecked)?;
    }
    Ok(ground)
}

/// Applies what is kept.
pub(super) fn apply(ground: &Sandbox, kept: &Kept) -> Result<(), Stop> {
    for folder in &kept.folders {
        ground.make_folder(&text(folder), &write_options()).map_err(wrecked)?;
    }
    let applied = ground.apply_changes(&kept.blob);
    applied.map_err(|failure| {
        blame(failure, "not-applied", "the agent's work does not apply to a fresh sandbox")
    })?;
    for path in &kept.removed {
        ground.remove(&text(path), true, true).map_err(wrecked)?;
    }
    Ok(())
}

/// What is applied of an agent's work.
#[derive(Default)]
pub(super) struct Kept {
    blob: String,
    /// Files whose tables are put back.
    tables: BTreeSet<String>,
    /// Files that go with folders that stay.
    removed: Vec<String>,
    /// Folders that are left out themselves, in which something is kept.
    folders: BTreeSet<String>,
}

/// Goes through work for this sandbox; `told`: the log says what is left out.
pub(super) fn kept(
    blob: &str,
    ground: &Sandbox,
    told: bool,
    action: &mut dyn FnMut(Change<'_>) -> ChangeAction,
) -> Result<Kept, Stop> {
    let (mut kept, mut bytes) = (Kept::default(), Vec::new());
    let (mut new, mut names, mut failed) = (BTreeMap::new(), Vec::new(), None);
    let mut without: BTreeSet<String> = BTreeSet::new();
    let mut keep = |change: Change<'_>| {
        let path = String::from_utf8_lossy(change.path);
        let fine = match action(change) {
            ChangeAction::Kept | ChangeAction::KeptForPrepare => true,
            ChangeAction::LeftOut => false,
            ChangeAction::OnlyRemoved(files) => {
                kept.removed.extend(files);
                false
            }
            ChangeAction::Repaired(path) => {
                kept.tables.insert(path);
                true
            }
            ChangeAction::LeftOutIfNew(path) => *new.entry(path).or_insert_with_key(|path| {
                // Modules are not looked for in a package: its own may be called as they like.
                let package = path.rsplit_once('/').map(|(folder, _)| format!("{folder}/__init__.py"));
                [Some(path.clone()), package].into_iter().flatten().any(|path| {
                    match ground.stat(&text(&path), false) {
                        Ok(_) => true,
                        Err(Failure::Other(_)) => false,
                        Err(failure) => {
                            failed = Some(failure);
                            false
                        }
                    }
                })
            }),
        };
        if fine && !change.removed && !without.is_empty() {
            let above = crate::hidden::upwards(crate::hidden::folder_of(&path));
            kept.folders.extend(above.filter(|folder| without.contains(*folder)).map(str::to_owned));
        }
        if !fine {
            names.push(path.clone().into_owned());
            if change.folder {
                without.insert(path.into_owned());
            }
        }
        fine
    };
    let length = blobs::stat(blob)?.length;
    bytes.reserve(usize::try_from(length).unwrap_or(0).min(BLOB_BYTES_MAX));
    filtered(blob, length, &mut keep, &mut |event| bytes.extend_from_slice(event))?;
    if let Some(failure) = failed {
        return Err(Stop::Failed(failure));
    }
    if names.is_empty() {
        kept.blob = blob.to_owned();
        return Ok(kept);
    }
    let count = names.len();
    names.truncate(TOLD_MAX);
    let more = if count > TOLD_MAX { format!(" and {} more", count - TOLD_MAX) } else { String::new() };
    if told {
        let told = format!("left out of the agent's work: {}{more}", names.join(", "));
        log::write(log::Level::Info, &told, None);
    }
    kept.blob = blobs::put(&bytes, "application/x-espalier-changes")?;
    Ok(kept)
}

/// Goes through changes.
pub(super) fn read_changes(blob: &str, seen: &mut dyn FnMut(Change<'_>) -> bool) -> Result<(), Stop> {
    filtered(blob, blobs::stat(blob)?.length, seen, &mut |_| {})
}

fn filtered(
    blob: &str,
    length: u64,
    keep: &mut dyn FnMut(Change<'_>) -> bool,
    kept: &mut dyn FnMut(&[u8]),
) -> Result<(), Stop> {
    let malformed =
        |_| Stop::Failed(invalid("the changes of the sandbox are in a form unknown to this plugin"));
    let mut filter = Filter::default();
    let mut offset = 0;
    while offset < length {
        let slice = blobs::read(blob, offset, SLICE_BYTES)?;
        if slice.is_empty() {
            break;
        }
        offset += slice.len() as u64;
        filter.push(&slice, keep, kept).map_err(malformed)?;
    }
    filter.finish().map_err(malformed)
}

/// The hidden tests. A patch that does not apply is the task's fault: what it is about was reset.
pub(super) fn put_hidden(ground: &Sandbox, job: &Job) -> Result<(), Stop> {
    for (path, content) in &job.tests.files {
        let put = ground.write_file(&text(path), content.bytes(), &write_options());
        put.map_err(|failure| {
            blame(failure, "not-applied", &format!("no space left for hidden file {path}"))
        })?;
    }
    let Some(patch) = job.tests.patch.as_ref().filter(|patch| !patch.trim().is_empty()) else {
        return Ok(());
    };
    let options =
        PatchOptions { root: None, strip: None, fuzz: Some(0), reverse: false, dry_run: false, extra: None };
    match ground.apply_patch(patch, &options) {
        Err(Failure::Other(other)) if other.code == "patch" && job.tests.place == Place::Fresh => {
            Err(Stop::Failed(invalid(format!("`private.tests.patch` does not apply: {}", other.text))))
        }
        other => other
            .map(drop)
            .map_err(|failure| blame(failure, "not-applied", "no space left for the hidden tests")),
    }
}
