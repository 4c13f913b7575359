//! The component's exports: what is done in the sandboxes, in order.

espalier_sdk::bindings!("reward-plugin");

use crate::Settings;
use crate::changes::Filter;
use crate::guard::{Guard, PLUGIN};
use crate::protected::{Fate, Rules};
use crate::tables::mended;
use crate::task::{Job, Place};
use crate::verdict::{Ended, Run, Verdict, end_of, own_verdict, verdict};
use bindings::espalier::base::{blobs, log, random};
use bindings::espalier::sandbox::sandboxes::{
    self, Command, Ending, Outcome, PatchOptions, Path, Program, Sandbox, WriteOptions,
};
use bindings::espalier::sandbox::scoring::open_fresh;
use bindings::exports::espalier::plugin::reward::{RolloutView, Score};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a blob or file that are read at once.
const SLICE_BYTES: u32 = 1 << 20;
/// One wait for the end of a command.
const WAIT_MS: u64 = 30_000;
/// Most bytes of a report.
const REPORT_BYTES_MAX: u64 = 32 << 20;
/// Most bytes of a file whose tables are looked at.
const TABLES_BYTES_MAX: u64 = 1 << 20;
/// Most bytes that can be put into a blob.
const BLOB_BYTES_MAX: usize = 64 << 20;

espalier_sdk::reward!(Settings, score_rollout);

fn score_rollout(rollout: RolloutView, settings: Settings) -> Result<Vec<Score>, Failure> {
    let job = Job::read(rollout.task.private_data.as_deref(), &settings).map_err(invalid)?;
    let verdict = match scored(&job, &settings) {
        Ok(verdict) | Err(Stop::Scored(verdict)) => verdict,
        Err(Stop::Failed(failure)) => return Err(failure),
    };
    let extra = Some(verdict.extra.to_string());
    Ok(vec![Score {
        name: "reward".to_owned(),
        value: verdict.value,
        turn: None,
        reason: verdict.reason,
        extra,
    }])
}

/// Why scoring goes no further.
enum Stop {
    /// The agent's work has its score already.
    Scored(Verdict),
    /// It cannot be scored.
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        Stop::Failed(failure)
    }
}

/// What the agent did to its sandbox, or to the tests' start, is its score; a lost sandbox or a broken task is not.
fn blame(failure: Failure, cause: &str, what: &str) -> Stop {
    match failure {
        Failure::Other(other) => Stop::Scored(Verdict::zero(cause, format!("{what}: {}", other.text))),
        Failure::Budget(_) => {
            Stop::Scored(Verdict::zero(cause, format!("{what}: it is larger than the budget of blobs")))
        }
        failure => Stop::Failed(failure),
    }
}

/// The same, of whatever is done where the agent's work lies.
fn wrecked(failure: Failure) -> Stop {
    blame(failure, "wrecked", "the tests cannot be run over what the agent left")
}

fn scored(job: &Job, settings: &Settings) -> Result<Verdict, Stop> {
    let left = sandboxes::open(&settings.sandbox)?;
    let ground = match job.tests.place {
        Place::Place => left,
        Place::Fresh => fresh(&left, job, settings)?,
    };
    if let Some(text) = &job.tests.prepare {
        let outcome = carried_out(&ground, &shell(text.clone(), job, settings)).map_err(wrecked)?;
        if let Ended::Otherwise(how) = ended(&outcome) {
            return Ok(Verdict::zero(
                "prepare",
                format!("preparing the tests: {how}: {}", end_of(&output(&outcome))),
            ));
        }
        if !matches!(outcome.ending, Ending::ExitCode(0)) {
            let reason = format!("preparing the tests failed: {}", end_of(&output(&outcome)));
            return Ok(Verdict::zero("prepare", reason));
        }
    }
    // Behind the preparation, which may run the library's own set-up.
    put_hidden(&ground, job)?;
    let guard = job.guard.then(|| random::bytes(16).map(|bytes| Guard::new(&bytes))).transpose()?;
    let mut command = job.command.clone();
    if let Some(guard) = &guard {
        // Whoever runs the tests writes the report there.
        let open = WriteOptions { mode: Some(0o777), ..write_options() };
        ground.make_folder(&text(&guard.folder()), &open).map_err(wrecked)?;
        ground
            .write_file(&text(&guard.plugin_path()), PLUGIN.as_bytes(), &write_options())
            .map_err(wrecked)?;
        command = guard.prelude() + &command;
    }
    let written = job.report.iter().map(|(path, _)| path).chain(&job.tests.score_files);
    for path in written {
        // What is there already, nobody's tests have written.
        ground.remove(&text(path), true, true).map_err(wrecked)?;
    }
    let outcome = carried_out(&ground, &shell(command, job, settings)).map_err(wrecked)?;
    if !job.tests.score_files.is_empty() {
        let run = Run { ended: ended(&outcome), output: output(&outcome), report: None };
        for path in &job.tests.score_files {
            if let Some(written) = read_text(&ground, path, TABLES_BYTES_MAX)? {
                return Ok(own_verdict(&run, Some(&written)));
            }
        }
        return Ok(own_verdict(&run, None));
    }
    let path =
        guard.as_ref().map(Guard::report_path).or_else(|| job.report.as_ref().map(|(path, _)| path.clone()));
    let report = path.map(|path| read_text(&ground, &path, REPORT_BYTES_MAX)).transpose()?.flatten();
    let run = Run { ended: ended(&outcome), output: output(&outcome), report };
    Ok(verdict(job, &run, guard.as_ref(), settings))
}

/// A new sandbox with the agent's work, less what belongs to the tests.
fn fresh(left: &Sandbox, job: &Job, settings: &Settings) -> Result<Sandbox, Stop> {
    const WRECKED: &str = "no changes can be taken from the sandbox that the agent left";
    let work = left.changes(None).map_err(|failure| blame(failure, "wrecked", WRECKED))?;
    if work.content_bytes > settings.changes_bytes_max {
        let reason = format!(
            "the agent's work is {} bytes, at most {} count",
            work.content_bytes, settings.changes_bytes_max
        );
        return Err(Stop::Scored(Verdict::zero("too-large", reason)));
    }
    let ground = open_fresh(&settings.sandbox)?;
    // As who runs the tests: that there is no such user is not the agent's fault.
    let outcome = ground.exec(&Command {
        program: Program::Argv(vec!["pwd".to_owned(), "-P".to_owned()]),
        user: settings.user.clone(),
        ..bare()
    })?;
    let workdir = output(&outcome).trim_end_matches('\n').to_owned();
    if !workdir.starts_with('/') {
        return Err(Stop::Failed(invalid(format!(
            "the sandbox's working folder cannot be told: `pwd` says {workdir:?}"
        ))));
    }
    let rules = Rules::new(job, &workdir);
    let (blob, tables) = left_out(&work.blob, &ground, &rules)?;
    let mut before = BTreeMap::new();
    for path in tables {
        let was = read_text(&ground, &path, TABLES_BYTES_MAX)?;
        before.insert(path, was);
    }
    let applied = ground.apply_changes(&blob);
    applied.map_err(|failure| {
        blame(failure, "not-applied", "the agent's work does not apply to a fresh sandbox")
    })?;
    for (path, was) in before {
        let Some(is) = read_text(&ground, &path, TABLES_BYTES_MAX)? else { continue };
        let put_back = match mended(&path, was.as_deref(), &is) {
            Some(empty) if empty.is_empty() => ground.remove(&text(&path), false, true).map(drop),
            Some(mended) => ground.write_file(&text(&path), mended.as_bytes(), &write_options()),
            None => Ok(()),
        };
        put_back.map_err(wrecked)?;
    }
    Ok(ground)
}

/// The changes that are applied, and the files among them whose tables are put back.
fn left_out(blob: &str, ground: &Sandbox, rules: &Rules) -> Result<(String, BTreeSet<String>), Stop> {
    let length = blobs::stat(blob)?.length;
    let mut kept: Vec<u8> = Vec::with_capacity(usize::try_from(length).unwrap_or(0).min(BLOB_BYTES_MAX));
    let (mut filter, mut tables) = (Filter::default(), BTreeSet::new());
    let (mut new, mut names, mut failed) = (BTreeMap::new(), Vec::new(), None);
    let mut keep = |change: crate::changes::Change<'_>| {
        let fine = match rules.fate(change) {
            Fate::Kept => true,
            Fate::LeftOut => false,
            Fate::Mended(path) => {
                tables.insert(path);
                true
            }
            Fate::LeftOutIfNew(path) => *new.entry(path).or_insert_with_key(|path| {
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
        if !fine {
            names.push(String::from_utf8_lossy(change.path).into_owned());
        }
        fine
    };
    let malformed =
        |_| Stop::Failed(invalid("the sandbox's changes are not in the form that this plugin knows"));
    let mut offset = 0;
    while offset < length {
        let slice = blobs::read(blob, offset, SLICE_BYTES)?;
        if slice.is_empty() {
            break;
        }
        offset += slice.len() as u64;
        filter.push(&slice, &mut keep, &mut |bytes| kept.extend_from_slice(bytes)).map_err(malformed)?;
    }
    filter.finish().map_err(malformed)?;
    if let Some(failure) = failed {
        return Err(Stop::Failed(failure));
    }
    if names.is_empty() {
        return Ok((blob.to_owned(), tables));
    }
    names.truncate(20);
    log::write(log::Level::Info, &format!("left out of the agent's work: {}", names.join(", ")), None);
    Ok((blobs::put(&kept, "application/x-espalier-changes")?, tables))
}

/// The hidden tests. A patch that does not apply is the task's fault: what it is about was reset.
fn put_hidden(ground: &Sandbox, job: &Job) -> Result<(), Stop> {
    for (path, content) in &job.tests.files {
        let put = ground.write_file(&text(path), content.bytes(), &write_options());
        put.map_err(|failure| {
            blame(failure, "not-applied", &format!("hidden file {path} has no place left"))
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
            .map_err(|failure| blame(failure, "not-applied", "the hidden tests have no place left")),
    }
}

/// A file's text, lossily; `None` where none can be read, whatever stands there: a link to itself is the agent's doing.
fn read_text(ground: &Sandbox, path: &str, bytes_max: u64) -> Result<Option<String>, Stop> {
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < bytes_max {
        match ground.read_file(&text(path), bytes.len() as u64, SLICE_BYTES) {
            Ok(slice) if slice.is_empty() => break,
            Ok(slice) => bytes.extend(slice),
            Err(Failure::Other(_)) => return Ok(None),
            Err(failure) => return Err(Stop::Failed(failure)),
        }
    }
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

fn text(path: &str) -> Path {
    Path::Text(path.to_owned())
}

fn write_options() -> WriteOptions {
    WriteOptions { mode: None, owner: None, parents: true, create_new: false, extra: None }
}

fn bare() -> Command {
    Command {
        program: Program::Shell(String::new()),
        cwd: None,
        env: Vec::new(),
        stdin: None,
        user: None,
        timeout_ms: Some(60_000),
        output_max: None,
        keep_whole: false,
        merge_stderr: false,
        terminal: None,
        extra: None,
    }
}

fn shell(command: String, job: &Job, settings: &Settings) -> Command {
    Command {
        program: Program::Shell(command),
        user: settings.user.clone(),
        timeout_ms: Some(job.timeout_ms),
        output_max: Some(SLICE_BYTES),
        keep_whole: true,
        merge_stderr: true,
        ..bare()
    }
}

/// Runs a command to its end, for longer than one import may wait.
fn carried_out(ground: &Sandbox, command: &Command) -> Result<Outcome, Failure> {
    let process = ground.start(command)?;
    process.close_stdin()?;
    loop {
        if let Some(outcome) = process.wait(WAIT_MS)? {
            return Ok(outcome);
        }
    }
}

fn ended(outcome: &Outcome) -> Ended {
    match &outcome.ending {
        Ending::ExitCode(code) => Ended::ExitCode(*code),
        Ending::Signal(number) => Ended::Otherwise(format!("ended by signal {number}")),
        Ending::TimedOut => Ended::Otherwise(format!("not done after {} ms", outcome.duration_ms)),
        Ending::OutOfMemory => Ended::Otherwise("killed for memory".to_owned()),
        Ending::Other(how) => Ended::Otherwise(how.clone()),
    }
}

/// All that was kept of what a command printed.
fn output(outcome: &Outcome) -> String {
    let shown = || format!("{}\n{}", outcome.stdout.head, outcome.stdout.tail);
    let Some(whole) = &outcome.stdout.whole else { return shown() };
    let mut bytes = Vec::new();
    while let Ok(piece) = blobs::read(whole, bytes.len() as u64, SLICE_BYTES) {
        if piece.is_empty() {
            return String::from_utf8_lossy(&bytes).into_owned();
        }
        bytes.extend(piece);
    }
    shown()
}
