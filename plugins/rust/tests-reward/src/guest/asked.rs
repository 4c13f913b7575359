//! What the tests are before the agent: asked of a fresh sandbox in which nothing of its work lies.

use super::bindings::espalier::base::log;
use super::bindings::espalier::sandbox::sandboxes::{
    Command, Ending, FileKind, Program, Sandbox, WriteOptions,
};
use super::bindings::espalier::sandbox::scoring::open_fresh;
use super::commands::{bare, carried_out, output, read_text, shell, text, write_options};
use super::ground::{put_hidden, read_changes};
use super::{Failure, Stop, invalid};
use crate::Settings;
use crate::guard::quoted;
use crate::hidden::{FOLDER, HiddenSide, PROBE, Report, upwards};
use crate::python::PythonRules;
use crate::task::Job;
use crate::verdict::end_of;
use std::collections::BTreeMap;

/// Longest time for the tests to come up.
const TIMEOUT_MS: u64 = 600_000;
/// Most bytes of a report.
const REPORT_BYTES_MAX: u64 = 64 << 20;

/// A sandbox with the hidden tests and without the agent's work, and what follows from it.
pub(super) struct Asked {
    /// It stays as it is.
    pub(super) sandbox: Sandbox,
    pub(super) rules: PythonRules,
    /// What `prepare` changed in it, by absolute path: whether it is gone.
    prepared: BTreeMap<Vec<u8>, bool>,
}

impl Asked {
    /// Asks. What fails here is the task's fault, or the machine's.
    pub(super) fn ask(job: &Job, settings: &Settings) -> Result<Asked, Stop> {
        let sandbox = open_fresh(&settings.sandbox)?;
        let workdir = workdir(&sandbox, settings)?;
        let mut prepared = BTreeMap::new();
        if let Some(prepare) = &job.tests.prepare {
            let outcome = carried_out(&sandbox, &shell(prepare.clone(), job, settings))?;
            if !matches!(outcome.ending, Ending::ExitCode(0)) {
                let told = format!("without the agent's work `prepare` fails: {}", end_of(&output(&outcome)));
                log::write(log::Level::Warn, &told, None);
            }
            // Where it is more than can be taken, files are put back one by one.
            if let Ok(changes) = sandbox.changes(None) {
                read_changes(&changes.blob, &mut |change| {
                    prepared.insert(change.path.to_vec(), change.removed);
                    false
                })?;
            }
        }
        put_hidden(&sandbox, job).map_err(|stop| match stop {
            Stop::Scored(verdict) => Stop::Failed(invalid(verdict.reason)),
            failed => failed,
        })?;
        let (reports, said) = reports(&sandbox, &workdir, job, settings)?;
        let side = HiddenSide::new(&workdir, reports);
        if job.guard && side.pytest.is_none() {
            return Err(Stop::Failed(invalid(format!(
                "without the agent's work `private.tests.command` does not start pytest once, as the guard needs: {}",
                end_of(&said)
            ))));
        }
        let rules = PythonRules::new(job, side);
        if let Some(name) = rules.runner_needs() {
            return Err(Stop::Failed(invalid(format!(
                "the library under test is `{name}`, which pytest itself needs: it would decide about its own tests"
            ))));
        }
        Ok(Asked { sandbox, rules, prepared })
    }

    /// Whether this path is there behind `prepare`; `None` where it is as it was before.
    pub(super) fn prepared(&self, path: &[u8]) -> Option<bool> {
        let gone = |path: &str| self.prepared.get(path.as_bytes()) == Some(&true);
        if let Some(removed) = self.prepared.get(path) {
            return Some(!removed);
        }
        upwards(&String::from_utf8_lossy(path)).any(gone).then_some(false)
    }

    /// Whether a path is a plain file here.
    pub(super) fn has_file(&self, path: &str) -> Result<bool, Stop> {
        match self.sandbox.stat(&text(path), false) {
            Ok(stat) => Ok(matches!(stat.kind, FileKind::File)),
            Err(Failure::Other(_)) => Ok(false),
            Err(failure) => Err(Stop::Failed(failure)),
        }
    }
}

/// The working folder, without links.
pub(super) fn workdir(sandbox: &Sandbox, settings: &Settings) -> Result<String, Stop> {
    // As who runs the tests: that there is no such user is not the agent's fault.
    let outcome = sandbox.exec(&Command {
        program: Program::Argv(vec!["pwd".to_owned(), "-P".to_owned()]),
        user: settings.user.clone(),
        ..bare()
    })?;
    let workdir = output(&outcome).trim_end_matches('\n').to_owned();
    if workdir.starts_with('/') {
        return Ok(workdir);
    }
    Err(Stop::Failed(invalid(format!("the sandbox's working folder cannot be told: `pwd` says {workdir:?}"))))
}

/// What the processes of the tests' command report, and what it printed; where none does, an interpreter alone.
fn reports(
    sandbox: &Sandbox,
    workdir: &str,
    job: &Job,
    settings: &Settings,
) -> Result<(Vec<Report>, String), Stop> {
    // Whoever runs the tests writes its report there.
    let open = WriteOptions { mode: Some(0o777), ..write_options() };
    sandbox.make_folder(&text(FOLDER), &open)?;
    for name in ["espalier_probe.py", "sitecustomize.py"] {
        sandbox.write_file(&text(&format!("{FOLDER}/{name}")), PROBE.as_bytes(), &write_options())?;
    }
    let pytest = job.kind.is_pytest();
    let (plugin, runner) = if pytest { (" -p espalier_probe", "pytest") } else { ("", "unittest") };
    let command = format!(
        "export PYTHONPATH={FOLDER}\"${{PYTHONPATH:+:$PYTHONPATH}}\" PYTHONNOUSERSITE=1\n\
         export ESPALIER_WORKDIR={} ESPALIER_PROBE={runner}\n\
         export PYTEST_ADDOPTS=\"${{PYTEST_ADDOPTS:-}}{plugin}\"\n{}",
        quoted(workdir),
        job.command
    );
    let mut started = shell(command, job, settings);
    started.timeout_ms = Some(job.timeout_ms.min(TIMEOUT_MS));
    let outcome = carried_out(sandbox, &started)?;
    let said = output(&outcome);
    let found = written(sandbox, "report-")?;
    if !found.is_empty() {
        return Ok((found, said));
    }
    let alone = format!(
        "export ESPALIER_WORKDIR={}\nfor python in python3 python; do $python -I -B {FOLDER}/espalier_probe.py && exit; done",
        quoted(workdir)
    );
    carried_out(sandbox, &shell(alone, job, settings))?;
    Ok((written(sandbox, "report-")?, said))
}

/// What plugins wrote as JSON into the probe's folder.
fn written(sandbox: &Sandbox, start: &str) -> Result<Vec<Report>, Stop> {
    let mut found = Vec::new();
    for path in super::commands::files_of(sandbox, FOLDER, start)? {
        if let Some(report) = read_text(sandbox, &path, REPORT_BYTES_MAX)? {
            found.extend(serde_json::from_str::<Report>(&report).ok());
        }
    }
    Ok(found)
}
