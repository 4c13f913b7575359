//! Commands and files of a sandbox.

use super::Failure;
use super::Stop;
use super::bindings::espalier::base::blobs;
use super::bindings::espalier::sandbox::sandboxes::{
    Command, Ending, Outcome, Path, Process, Program, Sandbox, WriteOptions,
};
use crate::Settings;
use crate::task::Job;
use crate::verdict::Ended;

/// Bytes of a blob or file that are read at once.
pub(super) const SLICE_BYTES: u32 = 1 << 20;
/// One wait for the end of a command.
const WAIT_MS: u64 = 30_000;

/// A file's text, lossily; `None` where none can be read, whatever stands there: a link to itself is the agent's doing.
pub(super) fn read_text(ground: &Sandbox, path: &str, bytes_max: u64) -> Result<Option<String>, Stop> {
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

/// Files in a folder whose names begin so and end with `.json`, with their paths.
pub(super) fn files_of(sandbox: &Sandbox, folder: &str, start: &str) -> Result<Vec<String>, Stop> {
    let entries = match sandbox.list_folder(&text(folder), 1) {
        Ok(entries) => entries,
        Err(Failure::Other(_)) => Vec::new(),
        Err(failure) => return Err(Stop::Failed(failure)),
    };
    let named = |path: Path| match path {
        Path::Text(name) if name.starts_with(start) && name.ends_with(".json") => {
            Some(format!("{folder}/{name}"))
        }
        _ => None,
    };
    Ok(entries.into_iter().filter_map(|entry| named(entry.path)).collect())
}

pub(super) fn text(path: &str) -> Path {
    Path::Text(path.to_owned())
}

pub(super) fn write_options() -> WriteOptions {
    WriteOptions { mode: None, owner: None, parents: true, create_new: false, extra: None }
}

pub(super) fn bare() -> Command {
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

pub(super) fn shell(command: String, job: &Job, settings: &Settings) -> Command {
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
pub(super) fn carried_out(ground: &Sandbox, command: &Command) -> Result<Outcome, Failure> {
    to_its_end(&started(ground, command)?)
}

/// Starts a command without input.
pub(super) fn started(ground: &Sandbox, command: &Command) -> Result<Process, Failure> {
    let process = ground.start(command)?;
    process.close_stdin()?;
    Ok(process)
}

/// Waits for a command that has a timeout.
pub(super) fn to_its_end(process: &Process) -> Result<Outcome, Failure> {
    loop {
        if let Some(outcome) = process.wait(WAIT_MS)? {
            return Ok(outcome);
        }
    }
}

pub(super) fn ended(outcome: &Outcome) -> Ended {
    match &outcome.ending {
        Ending::ExitCode(code) => Ended::ExitCode(*code),
        Ending::Signal(number) => Ended::Otherwise(format!("ended by signal {number}")),
        Ending::TimedOut => Ended::Otherwise(format!("not done after {} ms", outcome.duration_ms)),
        Ending::OutOfMemory => Ended::Otherwise("killed for memory".to_owned()),
        Ending::Other(how) => Ended::Otherwise(how.clone()),
    }
}

/// All that was kept of what a command printed.
pub(super) fn output(outcome: &Outcome) -> String {
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
