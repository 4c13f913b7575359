//! `espalier:sandbox`: what guests ask, checked against the bounds of its WIT, and what they are told.

use crate::bindings::harness::espalier::sandbox::sandboxes as wit;
use espalier_core::failure::Failure;
use espalier_core::host::sandbox as host;
use std::time::Duration;

/// Longest path.
const PATH_BYTES_MAX: usize = 4095;
/// Longest shell text.
const TEXT_BYTES_MAX: usize = 1 << 20;
/// Most bytes of input of a command that is run to its end.
const STDIN_BYTES_MAX: usize = 16 << 20;
/// Most bytes of an output in an outcome.
const OUTPUT_BYTES_MAX: u32 = 1 << 20;

fn invalid<T>(text: String) -> Result<T, Failure> {
    Err(Failure::Invalid(text))
}

/// Refuses what is larger than its bound.
pub(crate) fn bounded(what: &str, bytes: usize, bytes_max: usize) -> Result<(), Failure> {
    if bytes > bytes_max {
        return invalid(format!("{what} has {bytes} bytes, at most {bytes_max} are accepted"));
    }
    Ok(())
}

pub(crate) fn path_in(path: wit::Path) -> Result<Vec<u8>, Failure> {
    let bytes = match path {
        wit::Path::Text(text) => text.into_bytes(),
        wit::Path::Bytes(bytes) => bytes,
    };
    if bytes.is_empty() || bytes.contains(&0) {
        return invalid(format!("path {:?} is empty or has a NUL byte", String::from_utf8_lossy(&bytes)));
    }
    bounded("a path", bytes.len(), PATH_BYTES_MAX)?;
    Ok(bytes)
}

fn optional_path_in(path: Option<wit::Path>) -> Result<Option<Vec<u8>>, Failure> {
    path.map(path_in).transpose()
}

pub(crate) fn path_out(path: Vec<u8>) -> wit::Path {
    match String::from_utf8(path) {
        Ok(text) => wit::Path::Text(text),
        Err(bytes) => wit::Path::Bytes(bytes.into_bytes()),
    }
}

/// A timeout in milliseconds, from 1; none stays none.
fn timeout_in(timeout_ms: Option<u64>) -> Result<Option<Duration>, Failure> {
    match timeout_ms {
        Some(0) => invalid("timeout-ms is 0, expected at least 1".to_owned()),
        Some(ms) => Ok(Some(Duration::from_millis(ms))),
        None => Ok(None),
    }
}

fn show_in(output_max: Option<u32>, keep_whole: bool) -> Result<host::Show, Failure> {
    let default = host::Show::default();
    let output_max = output_max.unwrap_or(default.output_max);
    if output_max > OUTPUT_BYTES_MAX {
        return invalid(format!("output-max is {output_max}, expected at most {OUTPUT_BYTES_MAX}"));
    }
    Ok(host::Show { output_max, keep_whole })
}

fn env_in(env: &[(String, String)]) -> Result<(), Failure> {
    match env
        .iter()
        .find(|(name, value)| name.is_empty() || name.contains(['=', '\0']) || value.contains('\0'))
    {
        Some((name, _)) => {
            invalid(format!("environment variable {name:?}: an empty name, `=` or a NUL byte"))
        }
        None => Ok(()),
    }
}

pub(crate) fn command_in(command: wit::Command) -> Result<host::Command, Failure> {
    let program = match command.program {
        wit::Program::Shell(text) => {
            bounded("the shell text", text.len(), TEXT_BYTES_MAX)?;
            host::Program::Shell(text)
        }
        wit::Program::Argv(words) => {
            if words.first().is_none_or(String::is_empty) {
                return invalid("argv is empty".to_owned());
            }
            bounded("argv", words.iter().map(String::len).sum(), TEXT_BYTES_MAX)?;
            host::Program::Argv(words)
        }
        wit::Program::Other(json) => {
            let start: String = json.chars().take(60).collect();
            return invalid(format!("program {start:?} is of a kind unknown to this engine"));
        }
    };
    env_in(&command.env)?;
    let stdin = command.stdin.unwrap_or_default();
    bounded("stdin", stdin.len(), STDIN_BYTES_MAX)?;
    Ok(host::Command {
        program,
        cwd: optional_path_in(command.cwd)?,
        env: command.env,
        stdin,
        user: command.user,
        timeout: timeout_in(command.timeout_ms)?,
        show: show_in(command.output_max, command.keep_whole)?,
        merge_stderr: command.merge_stderr,
        terminal: command.terminal.map(size_in).transpose()?,
    })
}

pub(crate) fn size_in(size: wit::TerminalSize) -> Result<host::TerminalSize, Failure> {
    if size.rows == 0 || size.columns == 0 {
        return invalid(format!("a terminal of {} rows and {} columns", size.rows, size.columns));
    }
    Ok(host::TerminalSize { rows: size.rows, columns: size.columns })
}

pub(crate) fn shell_in(options: wit::ShellOptions) -> Result<host::ShellOptions, Failure> {
    if let Some(program) = options.program.as_deref().filter(|program| !matches!(*program, "bash" | "sh")) {
        return invalid(format!("shell program {program:?}: expected `bash` or `sh`"));
    }
    env_in(&options.env)?;
    Ok(host::ShellOptions {
        program: options.program,
        cwd: optional_path_in(options.cwd)?,
        env: options.env,
        user: options.user,
    })
}

pub(crate) fn run_in(text: &str, options: wit::RunOptions) -> Result<host::RunOptions, Failure> {
    bounded("the shell text", text.len(), TEXT_BYTES_MAX)?;
    let stdin = options.stdin.unwrap_or_default();
    bounded("stdin", stdin.len(), STDIN_BYTES_MAX)?;
    Ok(host::RunOptions {
        timeout: timeout_in(options.timeout_ms)?,
        stdin,
        show: show_in(options.output_max, options.keep_whole)?,
        merge_stderr: options.merge_stderr,
    })
}

pub(crate) fn write_in(options: wit::WriteOptions) -> Result<host::WriteOptions, Failure> {
    if let Some(mode) = options.mode.filter(|mode| *mode > 0o7777) {
        return invalid(format!("mode {mode:o} is above 7777"));
    }
    Ok(host::WriteOptions {
        mode: options.mode,
        owner: options.owner,
        parents: options.parents,
        create_new: options.create_new,
    })
}

pub(crate) fn patch_in(options: wit::PatchOptions) -> Result<host::PatchOptions, Failure> {
    Ok(host::PatchOptions {
        root: optional_path_in(options.root)?,
        strip: options.strip,
        fuzz: options.fuzz,
        reverse: options.reverse,
        dry_run: options.dry_run,
    })
}

pub(crate) fn channel_in(channel: wit::Channel) -> host::Channel {
    match channel {
        wit::Channel::Stdout => host::Channel::Stdout,
        wit::Channel::Stderr => host::Channel::Stderr,
    }
}

fn output_out(output: host::Output) -> wit::Output {
    wit::Output {
        head: output.head,
        left_out: output.left_out,
        tail: output.tail,
        total: output.total,
        whole: output.whole,
    }
}

pub(crate) fn outcome_out(outcome: host::Outcome) -> wit::Outcome {
    wit::Outcome {
        ending: match outcome.ended {
            host::Ended::ExitCode(code) => wit::Ending::ExitCode(code),
            host::Ended::Signal(number) => wit::Ending::Signal(number),
            host::Ended::TimedOut => wit::Ending::TimedOut,
            host::Ended::OutOfMemory => wit::Ending::OutOfMemory,
            // Told as a failure before it comes here, see `Outcome::known`.
            host::Ended::Unknown(why) => wit::Ending::Other(why),
            host::Ended::Other(word) => wit::Ending::Other(word),
        },
        stdout: output_out(outcome.stdout),
        stderr: output_out(outcome.stderr),
        duration_ms: u64::try_from(outcome.duration.as_millis()).unwrap_or(u64::MAX),
        left_running: outcome.left_running,
        extra: outcome.extra,
    }
}

pub(crate) fn piece_out(piece: host::Piece) -> wit::Piece {
    wit::Piece { offset: piece.offset, bytes: piece.bytes, total: piece.total, ended: piece.ended }
}

pub(crate) fn stat_out(stat: host::FileStat) -> wit::FileStat {
    wit::FileStat {
        kind: match stat.kind {
            host::FileKind::File => wit::FileKind::File,
            host::FileKind::Folder => wit::FileKind::Folder,
            host::FileKind::Link => wit::FileKind::Link,
            host::FileKind::Fifo => wit::FileKind::Fifo,
            host::FileKind::Socket => wit::FileKind::Socket,
            host::FileKind::CharacterDevice => wit::FileKind::CharacterDevice,
            host::FileKind::BlockDevice => wit::FileKind::BlockDevice,
            host::FileKind::Other(word) => wit::FileKind::Other(word),
        },
        mode: stat.mode,
        user_id: stat.user_id,
        group_id: stat.group_id,
        size: stat.size,
        modified_ms: stat.modified_ms,
        target: stat.target.map(path_out),
        extra: None,
    }
}

pub(crate) fn entry_out(entry: host::Entry) -> wit::Entry {
    wit::Entry { path: path_out(entry.path), stat: stat_out(entry.stat), error: entry.error }
}

pub(crate) fn patched_out(file: host::PatchedFile) -> wit::PatchedFile {
    wit::PatchedFile {
        path: path_out(file.path),
        old_path: file.from.map(path_out),
        action: match file.action {
            host::PatchAction::Modified => wit::PatchAction::Modified,
            host::PatchAction::Created => wit::PatchAction::Created,
            host::PatchAction::Deleted => wit::PatchAction::Deleted,
            host::PatchAction::Renamed => wit::PatchAction::Renamed,
            host::PatchAction::Copied => wit::PatchAction::Copied,
            host::PatchAction::Other(word) => wit::PatchAction::Other(word),
        },
        hunks: file.hunks,
        shifted: file.shifted,
        fuzzy: file.fuzzy,
        extra: None,
    }
}

pub(crate) fn changes_out(changes: host::ChangeSet) -> wit::ChangeSet {
    wit::ChangeSet {
        blob: changes.blob,
        added: changes.added,
        changed: changes.changed,
        removed: changes.removed,
        content_bytes: changes.content_bytes,
        extra: None,
    }
}
