//! The component's exports.

espalier_sdk::bindings!("harness-plugin");

use crate::{Mark, Settings, anchor, blind, found, marks, patterns};
use bindings::espalier::base::blobs;
use bindings::espalier::base::types::TaskView;
use bindings::espalier::plugin::reports::{Outcome, Report};
use bindings::espalier::sandbox::sandboxes::{self, Command, Ending, Output, Program, Sandbox};
use bindings::exports::espalier::base::configurable;
use bindings::exports::espalier::plugin::harness::Guest;
use espalier_sdk::serde_json::json;

/// Files that are looked at line by line; more that hold a single line of a mark are not.
const FILES_MAX: usize = 5_000;
/// Bytes of a blob that are read at once.
const SLICE_BYTES: u32 = 1 << 20;
/// One wait for the end of a command.
const WAIT_MS: u64 = 30_000;

struct Plugin;

impl configurable::Guest for Plugin {
    fn settings_schema() -> String {
        espalier_sdk::schema_of::<Settings>()
    }
}

impl Guest for Plugin {
    fn run(task: TaskView) -> Result<Report, Failure> {
        report_panics();
        let settings: Settings = settings()?;
        let private = task.private_data.ok_or_else(|| Failure::Denied("private-task".to_owned()))?;
        let marks = marks(&private).map_err(invalid)?;
        let shown = [task.instruction.as_str(), task.data.as_str()];
        if let Some(mark) = marks.iter().find(|mark| shown.iter().any(|text| text.contains(anchor(mark)))) {
            return Err(leaked("what a harness is shown of the task", mark));
        }
        let sandbox = sandboxes::open(&settings.sandbox)?;
        in_processes(&sandbox, &settings, &marks)?;
        let (looked_at, suspects) = in_files(&sandbox, &settings, &marks)?;
        let data = json!({ "marks": marks.len(), "files": looked_at, "files_with_a_line": suspects });
        Ok(Report { outcome: Outcome::Submitted, answer: None, data: data.to_string(), extra: None })
    }
}

fn leaked(place: &str, mark: &Mark) -> Failure {
    invalid(format_args!("private text of the task is in {place}: {:?}", anchor(mark)))
}

/// Environments and arguments of all processes, and what is mounted.
fn in_processes(sandbox: &Sandbox, settings: &Settings, marks: &[Mark]) -> Result<(), Failure> {
    let script = "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/self/mountinfo 2>/dev/null; env; true";
    let text = carried_out(sandbox, settings, script, None)?.stdout;
    match marks.iter().find(|mark| text.contains(anchor(mark))) {
        Some(mark) => Err(leaked("the environment of its processes", mark)),
        None => Ok(()),
    }
}

/// How many files there are, and how many hold a line of a mark (but no mark).
fn in_files(sandbox: &Sandbox, settings: &Settings, marks: &[Mark]) -> Result<(u64, usize), Failure> {
    let folders: Vec<String> =
        settings.folders.iter().map(|folder| format!("'{}'", folder.replace('\'', r"'\''"))).collect();
    let folders = folders.join(" ");
    let pruned = "\\( -path /proc -o -path /sys -o -path /dev \\) -prune -o -type f";
    let counted =
        carried_out(sandbox, settings, &format!("find {folders} {pruned} -print | wc -l"), None)?.stdout;
    let looked_at = counted.trim().parse().map_err(|_| invalid(format_args!("`find` says {counted:?}")))?;
    let anchors = patterns(marks.iter().map(|mark| anchor(mark)));
    // The marks go in by a pipe: on a disk they would find themselves.
    let grep = format!(
        "LC_ALL=C grep -raFl --devices=skip --exclude-dir=proc --exclude-dir=sys --exclude-dir=dev -f - -- {folders}"
    );
    let list = looked(sandbox, settings, &grep, anchors)?;
    let suspects: Vec<&str> = list.lines().filter(|line| line.starts_with('/')).collect();
    let lines = patterns(marks.iter().flatten().map(String::as_str));
    for path in suspects.iter().take(FILES_MAX) {
        let one = format!("LC_ALL=C grep -anF -f - -- '{}'", path.replace('\'', r"'\''"));
        let printed = looked(sandbox, settings, &one, lines.clone())?;
        if let Some((line, mark)) = found(&printed, marks) {
            return Err(leaked(&format!("{path}, line {line}"), mark));
        }
    }
    if suspects.len() > FILES_MAX {
        return Err(invalid(format_args!(
            "{} files contain a line of a mark, too many to check",
            suspects.len()
        )));
    }
    Ok((looked_at, suspects.len()))
}

/// What a grep printed that could look wherever it was told to.
fn looked(sandbox: &Sandbox, settings: &Settings, grep: &str, lines: String) -> Result<String, Failure> {
    let Ran { code, stdout, stderr } = carried_out(sandbox, settings, grep, Some(lines))?;
    // 2: some could not be read, as by root there are none but what vanished meanwhile.
    if !(0..=2).contains(&code) {
        return Err(invalid(format_args!("grep ended with {code}: {stderr}")));
    }
    match blind(&stderr) {
        Some(line) => Err(invalid(format_args!("the search could not read everything: {line}"))),
        None => Ok(stdout),
    }
}

/// What came of shell text.
struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

/// Runs shell text to its end.
fn carried_out(
    sandbox: &Sandbox,
    settings: &Settings,
    script: &str,
    stdin: Option<String>,
) -> Result<Ran, Failure> {
    let process = sandbox.start(&Command {
        program: Program::Shell(script.to_owned()),
        cwd: None,
        env: Vec::new(),
        stdin: stdin.map(String::into_bytes),
        user: None,
        timeout_ms: Some(u64::from(settings.timeout_s) * 1_000),
        output_max: Some(SLICE_BYTES),
        keep_whole: true,
        merge_stderr: false,
        terminal: None,
        extra: None,
    })?;
    process.close_stdin()?;
    let outcome = loop {
        if let Some(outcome) = process.wait(WAIT_MS)? {
            break outcome;
        }
    };
    let Ending::ExitCode(code) = outcome.ending else {
        return Err(invalid(format_args!("the search ended with {:?}", outcome.ending)));
    };
    Ok(Ran { code, stdout: all_of(&outcome.stdout)?, stderr: all_of(&outcome.stderr)? })
}

fn all_of(output: &Output) -> Result<String, Failure> {
    let Some(whole) = &output.whole else { return Ok(format!("{}{}", output.head, output.tail)) };
    let mut bytes = Vec::new();
    loop {
        let piece = blobs::read(whole, bytes.len() as u64, SLICE_BYTES)?;
        if piece.is_empty() {
            return Ok(String::from_utf8_lossy(&bytes).into_owned());
        }
        bytes.extend(piece);
    }
}

bindings::export!(Plugin with_types_in bindings);
