//! The sandbox in which the tests run, where something is built before them: `prepare` runs over the agent's work in a sandbox of its
//! own, out of which the library's files alone are taken. They come into a fresh one that was prepared without the agent.

use super::asked::{Asked, Installed};
use super::bindings::espalier::sandbox::sandboxes::{Ending, FileKind, Outcome, Path, Sandbox, WriteOptions};
use super::bindings::espalier::sandbox::scoring::open_fresh;
use super::commands::{ended, output, shell, started, text, to_its_end, write_options};
use super::ground::{apply, fresh, kept, read_changes};
use super::{Failure, Stop, blame, invalid, wrecked};
use crate::Settings;
use crate::changes::Change;
use crate::hidden::joined;
use crate::protected::ChangeAction;
use crate::task::Job;
use crate::verdict::{Ended, Verdict, end_of};
use std::collections::BTreeSet;

/// Most files that are copied one by one.
const FILES_MAX: usize = 20_000;
/// SIGKILL.
const KILL: u8 = 9;
/// Deepest folder of an installed package.
const DEPTH_MAX: u32 = 64;

/// What `prepare` made of the agent's work, as far as it is the library's own.
struct Built {
    /// Changes in the working folder, whole.
    changes: String,
    /// Files to write, by absolute path.
    files: Vec<(String, Content)>,
    /// What the library's own preparation made and this one did not.
    gone: BTreeSet<String>,
}

/// A file's bytes and permission bits.
struct Content {
    blob: String,
    mode: u32,
}

/// A sandbox prepared without the agent, with the agent's library in it.
pub(super) fn built(
    left: &Sandbox,
    job: &Job,
    settings: &Settings,
    asked: &mut Asked,
) -> Result<Sandbox, Stop> {
    let built = build(left, job, settings, asked)?;
    let ground = open_fresh(&settings.sandbox)?;
    if let Some(how) = prepare(&ground, job, settings, false)?
        && asked.prepares
    {
        let told = format!("without the agent's work `prepare` succeeds once and fails once: {how}");
        return Err(Stop::Failed(invalid(told)));
    }
    // Compiled from files of before, which may be as old and as long as those that come now.
    for path in asked.compiled.iter().chain(&built.gone) {
        ground.remove(&text(path), true, true)?;
    }
    let written: BTreeSet<&str> = built.files.iter().map(|(path, _)| &**path).collect();
    for place in &asked.installed {
        for entry in entries(&ground, place)? {
            let mine = counts(asked, place, &entry.inner, Change { removed: true, ..Change::default() });
            let stale = !entry.folder && mine && !written.contains(&*entry.path);
            if stale || (entry.folder && entry.path.ends_with("/__pycache__")) {
                ground.remove(&text(&entry.path), true, true)?;
            }
        }
    }
    for (path, content) in &built.files {
        let options = WriteOptions { mode: Some(content.mode & 0o7777), ..write_options() };
        ground.blob_to_file(&content.blob, &text(path), &options).map_err(wrecked)?;
    }
    let kept = kept(&built.changes, &ground, false, &mut |change| match asked.rules.action(change) {
        ChangeAction::KeptForPrepare => ChangeAction::LeftOut,
        action => action,
    })?;
    apply(&ground, &kept)?;
    Ok(ground)
}

/// Runs `prepare` over the agent's work. The sandbox ends with it.
fn build(left: &Sandbox, job: &Job, settings: &Settings, asked: &mut Asked) -> Result<Built, Stop> {
    let sandbox = fresh(left, job, settings, Some(asked))?;
    // What was there before, `prepare` has not installed.
    let mut installed = Vec::new();
    for place in std::mem::take(&mut asked.installed) {
        if entries(&sandbox, &place)?.is_empty() {
            installed.push(place);
        }
    }
    asked.installed = installed;
    if let Some(how) = prepare(&sandbox, job, settings, true).map_err(wrecked)? {
        return Err(Stop::Scored(Verdict::zero("prepare", how)));
    }
    const TOO_MUCH: &str = "`prepare` made too many files of the agent's work";
    let Some(prepared) = &asked.prepared else {
        return Err(Stop::Failed(invalid("`prepare` makes too many files without the agent's work")));
    };
    let changes = sandbox.changes(None).map_err(|failure| blame(failure, "prepare", TOO_MUCH))?.blob;
    let mut changed: BTreeSet<Vec<u8>> = BTreeSet::new();
    read_changes(&changes, &mut |change| {
        changed.insert(change.path.to_vec());
        false
    })?;
    let mut built = Built { changes, files: Vec::new(), gone: BTreeSet::new() };
    for path in asked.own_of(prepared).into_iter().filter(|path| !changed.contains(path.as_bytes())) {
        take(&sandbox, &path, asked, &mut built)?;
    }
    for place in &asked.installed {
        for entry in entries(&sandbox, place).map_err(wrecked)? {
            if entry.file && counts(asked, place, &entry.inner, Change::default()) {
                take(&sandbox, &entry.path, asked, &mut built)?;
            }
        }
    }
    Ok(built)
}

/// Runs it, and says how it failed; `alone`: what it leaves running ends.
fn prepare(
    sandbox: &Sandbox,
    job: &Job,
    settings: &Settings,
    alone: bool,
) -> Result<Option<String>, Failure> {
    let Some(text) = &job.tests.prepare else { return Ok(None) };
    let process = started(sandbox, &shell(text.clone(), job, settings))?;
    let outcome = to_its_end(&process)?;
    if alone && outcome.left_running > 0 {
        process.signal(KILL, true)?;
    }
    Ok(failed(&outcome))
}

/// How the preparation failed, where it did.
pub(super) fn failed(outcome: &Outcome) -> Option<String> {
    let said = output(outcome);
    match (ended(outcome), &outcome.ending) {
        (Ended::Otherwise(how), _) => Some(format!("preparing the tests: {how}: {}", end_of(&said))),
        (_, Ending::ExitCode(0)) => None,
        _ => Some(format!("preparing the tests failed: {}", end_of(&said))),
    }
}

/// Takes what stands at a path, with what is the library's own in it.
fn take(sandbox: &Sandbox, path: &str, asked: &Asked, built: &mut Built) -> Result<(), Stop> {
    if built.files.len() >= FILES_MAX {
        let reason = format!("`prepare` made more than {FILES_MAX} files of the library");
        return Err(Stop::Scored(Verdict::zero("prepare", reason)));
    }
    let stat = match sandbox.stat(&text(path), false) {
        Ok(stat) => stat,
        Err(Failure::Other(_)) => {
            built.gone.insert(path.to_owned());
            return Ok(());
        }
        Err(failure) => return Err(Stop::Failed(failure)),
    };
    match stat.kind {
        FileKind::File => {
            let blob = sandbox.file_to_blob(&text(path)).map_err(wrecked)?;
            built.files.push((path.to_owned(), Content { blob, mode: stat.mode }));
        }
        FileKind::Folder => {
            for entry in listed(sandbox, path).map_err(wrecked)? {
                if entry.file && asked.is_own(&entry.path) {
                    take(sandbox, &entry.path, asked, built)?;
                }
            }
        }
        _ => {}
    }
    Ok(())
}

/// Whether a file of an installed module counts: as the one in the working folder would of which it was made.
fn counts(asked: &Asked, place: &Installed, inner: &str, change: Change<'_>) -> bool {
    let whole = format!("{}/{}{inner}", asked.rules.side().workdir, place.base);
    matches!(asked.rules.action(Change { path: whole.as_bytes(), ..change }), ChangeAction::Kept)
}

pub(super) struct Entry {
    path: String,
    /// Behind the module's own name: `/core.py`, `.py`.
    inner: String,
    file: bool,
    folder: bool,
}

/// What an installed module consists of; nothing where it is not there.
pub(super) fn entries(sandbox: &Sandbox, place: &Installed) -> Result<Vec<Entry>, Failure> {
    let stem = crate::hidden::name_of(&place.path);
    let beside = match sandbox.list_folder(&text(crate::hidden::folder_of(&place.path)), 1) {
        Ok(beside) => beside,
        Err(Failure::Other(other)) if other.code == "not-found" => return Ok(Vec::new()),
        Err(failure) => return Err(failure),
    };
    let mut found = Vec::new();
    for entry in beside {
        let Path::Text(name) = &entry.path else { continue };
        let folder = matches!(entry.stat.kind, FileKind::Folder);
        if folder && name == stem {
            found.extend(listed(sandbox, &place.path)?);
        } else if crate::modules::is_module(name) && crate::modules::stem(name) == stem {
            let path = joined(crate::hidden::folder_of(&place.path), name);
            let file = matches!(entry.stat.kind, FileKind::File);
            found.push(Entry { path, inner: name[stem.len()..].to_owned(), file, folder });
        }
    }
    Ok(found)
}

/// All below a folder.
fn listed(sandbox: &Sandbox, folder: &str) -> Result<Vec<Entry>, Failure> {
    let entry = |entry: super::bindings::espalier::sandbox::sandboxes::Entry| {
        let Path::Text(name) = entry.path else { return None };
        Some(Entry {
            path: joined(folder, &name),
            inner: format!("/{name}"),
            file: matches!(entry.stat.kind, FileKind::File),
            folder: matches!(entry.stat.kind, FileKind::Folder),
        })
    };
    Ok(sandbox.list_folder(&text(folder), DEPTH_MAX)?.into_iter().filter_map(entry).collect())
}
