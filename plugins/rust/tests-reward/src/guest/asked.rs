//! What the tests are before the agent: asked of a fresh sandbox in which nothing of its work lies.

use super::bindings::espalier::base::log;
use super::bindings::espalier::sandbox::sandboxes::{
    Command, Entry, FileKind, Path, Program, Sandbox, WriteOptions,
};
use super::bindings::espalier::sandbox::scoring::open_fresh;
use super::built::{entries, failed};
use super::commands::{bare, carried_out, output, read_text, shell, text, write_options};
use super::ground::{put_hidden, read_changes};
use super::{Failure, Stop, invalid};
use crate::Settings;
use crate::changes::Change;
use crate::guard::quoted;
use crate::hidden::{FOLDER, HiddenSide, PROBE, Report, folder_of, name_of, upwards};
use crate::modules::{is_module, stem};
use crate::protected::ChangeAction;
use crate::python::PythonRules;
use crate::task::Job;
use crate::verdict::end_of;
use std::collections::{BTreeMap, BTreeSet};

/// Longest time for the tests to come up.
const TIMEOUT_MS: u64 = 600_000;
/// Most bytes of a report.
const REPORT_BYTES_MAX: u64 = 64 << 20;

/// What follows from a sandbox with the hidden tests and without the agent's work. It ends when it was asked.
pub(super) struct Asked {
    pub(super) rules: PythonRules,
    /// Whether `prepare` ended with 0 there.
    pub(super) prepares: bool,
    /// What it changed, by absolute path, and whether that is gone; `None`: more than can be looked through.
    pub(super) prepared: Option<BTreeMap<Vec<u8>, bool>>,
    /// Folders of bytecode in which it left some, absolute.
    pub(super) compiled: BTreeSet<String>,
    /// The library's modules outside of the working folder.
    pub(super) installed: Vec<Installed>,
}

/// A module of the library in a folder of installed ones.
pub(super) struct Installed {
    /// Absolute, without the ends of names of files.
    pub(super) path: String,
    /// The same, as it lies in the working folder.
    pub(super) base: String,
}

impl Asked {
    /// Asks. What fails here is the task's fault, or the machine's.
    pub(super) fn ask(job: &Job, settings: &Settings) -> Result<Asked, Stop> {
        let sandbox = open_fresh(&settings.sandbox)?;
        let workdir = workdir(&sandbox, settings)?;
        let (mut prepares, mut prepared) = (true, Some(BTreeMap::new()));
        if let Some(prepare) = &job.tests.prepare {
            let outcome = carried_out(&sandbox, &shell(prepare.clone(), job, settings))?;
            if let Some(how) = failed(&outcome) {
                prepares = false;
                log::write(log::Level::Warn, &format!("without the agent's work: {how}"), None);
            }
            prepared = changed_in(&sandbox)?;
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
                "the library under test is `{name}`, which pytest itself needs: it would decide the results of its own tests"
            ))));
        }
        let whole: Vec<&str> = rules.folders().whole.iter().map(String::as_str).collect();
        if !whole.is_empty() {
            let told = format!("belongs to the tests with all below it: {}", whole.join(", "));
            log::write(log::Level::Info, &told, None);
        }
        let installed = if job.tests.prepare.is_some() { installed(&sandbox, &rules)? } else { Vec::new() };
        let compiled = prepared.iter().flatten().filter_map(|(path, _)| bytecode_above(path)).collect();
        Ok(Asked { rules, prepares, prepared, compiled, installed })
    }

    /// Of what `prepare` changes, what is the library's own.
    pub(super) fn own_of(&self, prepared: &BTreeMap<Vec<u8>, bool>) -> BTreeSet<String> {
        let workdir = &self.rules.side().workdir;
        let mut own = BTreeSet::new();
        for (path, removed) in prepared {
            let Ok(text) = String::from_utf8(path.clone()) else { continue };
            match self.rules.action(Change { path, removed: *removed, ..Change::default() }) {
                ChangeAction::Kept if text != *workdir => drop(own.insert(text)),
                ChangeAction::OnlyRemoved(files) => {
                    own.extend(files.iter().map(|file| format!("{workdir}/{file}")))
                }
                _ => {}
            }
        }
        own
    }

    /// Whether a file in the working folder is the library's own.
    pub(super) fn is_own(&self, path: &str) -> bool {
        self.rules.action(Change { path: path.as_bytes(), ..Change::default() }) == ChangeAction::Kept
    }

    /// Whether a module came from where `prepare` installs the library.
    pub(super) fn installs(&self, origin: &str) -> bool {
        let behind = |place: &Installed| {
            origin.strip_prefix(&*place.path).is_some_and(|rest| rest.starts_with(['/', '.']))
        };
        self.installed.iter().any(behind)
    }
}

/// What changed in the working folder so far.
fn changed_in(sandbox: &Sandbox) -> Result<Option<BTreeMap<Vec<u8>, bool>>, Stop> {
    let changes = match sandbox.changes(None) {
        Ok(changes) => changes,
        Err(Failure::Other(_)) => return Ok(None),
        Err(failure) => return Err(Stop::Failed(failure)),
    };
    let mut changed = BTreeMap::new();
    read_changes(&changes.blob, &mut |change| {
        changed.insert(change.path.to_vec(), change.removed);
        false
    })?;
    Ok(Some(changed))
}

/// The folder of bytecode that a path is, or lies in.
fn bytecode_above(path: &[u8]) -> Option<String> {
    let path = std::str::from_utf8(path).ok()?;
    upwards(path).find(|above| name_of(above) == "__pycache__").map(str::to_owned)
}

/// Where the library's modules lie in folders of installed ones.
fn installed(sandbox: &Sandbox, rules: &PythonRules) -> Result<Vec<Installed>, Stop> {
    let mut found = Vec::new();
    let mut listed: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let own = rules.modules().own.iter().filter(|module| rules.modules().installed.contains(&module.name));
    let own: Vec<(String, &str)> = own.map(|module| (module.name.replace('.', "/"), &*module.base)).collect();
    for folder in &rules.side().elsewhere {
        for (name, base) in own.iter().filter(|(_, base)| !rules.folders().has(base)) {
            let path = format!("{}/{name}", folder.trim_end_matches('/'));
            let beside = folder_of(&path).to_owned();
            if !listed.contains_key(&beside) {
                let names = match sandbox.list_folder(&text(&beside), 1) {
                    Ok(entries) => entries.into_iter().filter_map(|entry| as_module(&entry)).collect(),
                    Err(Failure::Other(_)) => Vec::new(),
                    Err(failure) => return Err(Stop::Failed(failure)),
                };
                listed.insert(beside.clone(), names);
            }
            let there = listed.get(&beside).is_some_and(|names| names.iter().any(|one| one == name_of(name)));
            if there && !found.iter().any(|one: &Installed| one.path == path) {
                let place = Installed { path, base: (*base).to_owned() };
                entries(sandbox, &place).map_err(|failure| match failure {
                    Failure::Other(other) => Stop::Failed(invalid(format!(
                        "cannot read what `prepare` installs at {}: {}",
                        place.path, other.text
                    ))),
                    failure => Stop::Failed(failure),
                })?;
                found.push(place);
            }
        }
    }
    Ok(found)
}

/// The name by which an entry of a folder is imported.
fn as_module(entry: &Entry) -> Option<String> {
    let Path::Text(name) = &entry.path else { return None };
    match entry.stat.kind {
        FileKind::Folder => Some(name.clone()),
        FileKind::File if is_module(name) => Some(stem(name).to_owned()),
        _ => None,
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
    Err(Stop::Failed(invalid(format!(
        "cannot determine the working folder of the sandbox: `pwd` prints {workdir:?}"
    ))))
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
