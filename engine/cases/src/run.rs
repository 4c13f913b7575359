//! A case and a plugin together.

use crate::case::{Case, CaseError, CaseFile, Expect, Pictures};
use crate::compare::{compare, unknown_key};
use crate::recorded::{Recording, Tape};
use crate::report::{CallTrace, CaseReport, Problem, Report};
use crate::script::{
    MemoryBlobs, Notes, ScriptedBrowsers, ScriptedModels, ScriptedSandboxes, ScriptedServices, ScriptedWorld,
};
use crate::view;
use espalier_core::ending::HarnessEnd;
use espalier_core::failure::Failure;
use espalier_core::generator::Request;
use espalier_core::host::{Capabilities, Environments};
use espalier_core::judge::Judgement;
use espalier_core::limits::{DurationText, Limits, LimitsFile};
use espalier_core::meter::Meter;
use espalier_core::plugin_failure::{PluginFailure, PluginFailureClass};
use espalier_core::signal::{self, RewardConfig};
use espalier_core::trajectory::{HostCall, LogLine, Score};
use espalier_plugin::{
    CancelToken, EnvironmentHost, EnvironmentRun, Job, JobClock, Plugin, PluginHost, ScoreError,
    ScoreOutcome, World,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the clock of a case says: 2026-01-01, without moving.
const NOW_MS: u64 = 1_767_225_600_000;
/// `limits.guest_cpu` of a case that does not say otherwise: a test does not wait long for an endless loop.
const GUEST_CPU: Duration = Duration::from_secs(5);

/// Runs cases one after another, each in an instance of its own, under the alias `name`.
pub async fn run_cases(host: &PluginHost, plugin: &Arc<Plugin>, name: &str, cases: &[Case]) -> Report {
    let mut report = Report::default();
    for case in cases {
        let started = Instant::now();
        let mut one = CaseReport {
            name: case.name.clone(),
            path: case.path.clone(),
            refused: None,
            problems: Vec::new(),
            logs: Vec::new(),
            calls: Vec::new(),
            result: Value::Null,
            took: Duration::ZERO,
        };
        match Prepared::of(host, plugin, name, case) {
            Ok(Start::Refused(problem)) => one.refused_settings(problem),
            Ok(Start::Ready(prepared)) => Box::pin(prepared.run(&mut one)).await,
            Err(error) => one.refused = Some(error.0),
        }
        one.took = started.elapsed();
        report.cases.push(one);
    }
    report
}

/// How the message of a failure begins that a script has made ([`Notes::unexpected`]).
const UNPROVIDED: &str = "case: ";

/// Whether the settings let the plugin be started.
enum Start<'a> {
    Ready(Box<Prepared<'a>>),
    /// They do not; a problem, unless the case expects it.
    Refused(Option<Problem>),
}

/// A case whose capabilities are set up.
struct Prepared<'a> {
    host: &'a PluginHost,
    file: &'a CaseFile,
    job: Job,
    scripts: Scripts,
    recording: Option<Arc<Recording>>,
}

/// The scripted capabilities of a case.
struct Scripts {
    notes: Notes,
    models: Arc<ScriptedModels>,
    world: Arc<ScriptedWorld>,
    sandboxes: Arc<ScriptedSandboxes>,
    browsers: Arc<ScriptedBrowsers>,
    services: Arc<ScriptedServices>,
    blobs: Arc<MemoryBlobs>,
}

/// What a plugin left, whatever its world.
struct Left {
    /// What it returned by key of `[expect]`; `None`: it failed.
    returned: Option<Value>,
    failure: Option<PluginFailure>,
    calls: Vec<HostCall>,
    logs: Vec<LogLine>,
    /// What was found wrong on the way.
    problems: Vec<Problem>,
}

impl CaseReport {
    fn refused_settings(&mut self, problem: Option<Problem>) {
        self.problems.extend(problem);
        self.result = json!({ "refused": true });
    }
}

impl<'a> Prepared<'a> {
    fn of(
        host: &'a PluginHost,
        plugin: &Arc<Plugin>,
        name: &str,
        case: &'a Case,
    ) -> Result<Start<'a>, CaseError> {
        let file = case.file.as_ref().map_err(Clone::clone)?;
        file.check(plugin.world())?;
        let recording = case.recording.clone();
        let mut given = Value::Object(file.settings.clone());
        if file.settings.is_empty()
            && let Some(recorded) = recording.as_deref().and_then(Recording::settings)
        {
            given = recorded;
        }
        let settings = match (plugin.check_settings(&given), &file.expect.refused) {
            (Ok(settings), None) => settings,
            (Ok(_), Some(_)) => {
                let problem = Problem::new("expect.refused", "the settings are not refused");
                return Ok(Start::Refused(Some(problem)));
            }
            (Err(error), None) => {
                return Ok(Start::Refused(Some(Problem::new("settings", error.to_string()))));
            }
            (Err(error), Some(part)) => {
                let text = error.to_string();
                let text = (!text.contains(part.as_str())).then(|| format!("{part:?} is not in: {text}"));
                return Ok(Start::Refused(text.map(|text| Problem::new("expect.refused", text))));
            }
        };
        let limits = LimitsFile {
            guest_cpu: file.limits.guest_cpu.or(Some(DurationText(GUEST_CPU))),
            ..file.limits.clone()
        };
        let limits = Limits::resolve(&limits, &LimitsFile::default())
            .map_err(|error| CaseError(format!("limits: {error}")))?;
        let wall = limits.scoring_wall.min(limits.rollout_wall);
        let meter = Arc::new(Meter::new(limits));
        let scripts = Scripts::of(file, &case.pictures, &meter);
        let job = Job {
            plugin: Arc::clone(plugin),
            alias: name.to_owned(),
            settings,
            capabilities: match &recording {
                Some(recording) => played(recording, &scripts.notes),
                None => scripts.capabilities(),
            },
            meter,
            wall,
            clock: recording.as_deref().map_or(JobClock::Frozen { now_ms: NOW_MS }, Recording::clock),
            seed: recording.as_deref().map_or(file.seed, |recording| recording.seed),
            record_calls: recording.is_some(),
            cancel: CancelToken::new(),
        };
        Ok(Start::Ready(Box::new(Prepared { host, file, job, scripts, recording })))
    }

    async fn run(self, report: &mut CaseReport) {
        let Prepared { host, file, job, scripts, recording } = self;
        let left = match job.plugin.world() {
            World::Harness => harness(host, file, job).await,
            World::Environment => environment(host, file, job).await,
            World::Reward => reward(host, file, job, &scripts).await,
            World::GroupReward => group_reward(host, file, job, &scripts).await,
            World::Judge => judge(host, file, job, &scripts).await,
            World::TaskGenerator => generator(host, file, job).await,
        };
        let left = match left {
            Ok(left) => left,
            Err(error) => {
                report.refused = Some(error.0);
                return;
            }
        };
        let missed = scripts.notes.take();
        match recording.and_then(|recording| recording.first_difference(&left.calls)) {
            Some(difference) => report.problems.push(difference),
            None => report.problems.extend(missed),
        }
        report.problems.extend(left.problems.iter().cloned());
        judge_result(&file.expect, &left, &mut report.problems);
        // What it was not asked for says little where the plugin did not come that far.
        if left.failure.is_none() || file.expect.failure.is_some() || file.expect.trap.is_some() {
            scripts.note_rest();
            report.problems.extend(scripts.notes.take());
        }
        report.logs = view::log_lines(&left.logs);
        let logged = in_order("expect.log", &file.expect.log, &report.logs, |line, part| line.contains(part));
        let names: Vec<String> = left.calls.iter().map(|call| call.name.as_ref().to_owned()).collect();
        let called = in_order("expect.calls", &file.expect.calls, &names, |name, wanted| name == wanted);
        report.problems.extend(logged.into_iter().chain(called));
        report.calls = left.calls.iter().map(trace).collect();
        report.result = match (left.returned, &left.failure) {
            (Some(returned), None) => returned,
            (_, Some(failure)) => json!({ "failure": failure.to_string() }),
            (None, None) => Value::Null,
        };
    }
}

impl Scripts {
    fn of(file: &CaseFile, pictures: &Arc<Pictures>, meter: &Arc<Meter>) -> Scripts {
        let notes = Notes::default();
        let blobs = Arc::new(MemoryBlobs::new(Arc::clone(meter)));
        let models = ScriptedModels::new(file.models.clone(), notes.clone(), Arc::clone(meter));
        let world = ScriptedWorld::new(file.environment.clone(), notes.clone());
        let sandboxes = ScriptedSandboxes::new(file.sandboxes.clone(), Arc::clone(&blobs), notes.clone());
        let browsers = ScriptedBrowsers::new(file.browsers.clone(), pictures, &blobs, notes.clone());
        let services = ScriptedServices::new(file.services.clone(), notes.clone());
        Scripts {
            services: Arc::new(services),
            models: Arc::new(models),
            world: Arc::new(world),
            sandboxes: Arc::new(sandboxes),
            browsers: Arc::new(browsers),
            blobs,
            notes,
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            models: Some(self.models.clone()),
            environments: Some(self.world.clone()),
            blobs: Some(self.blobs.clone()),
            sandboxes: Some(self.sandboxes.clone()),
            browsers: Some(self.browsers.clone()),
            services: Some(self.services.clone()),
        }
    }

    /// Notes what the case provides in vain.
    fn note_rest(&self) {
        self.models.note_rest();
        self.world.note_rest();
        self.sandboxes.note_rest();
        self.browsers.note_rest();
        self.services.note_rest();
    }
}

fn played(recording: &Recording, notes: &Notes) -> Capabilities {
    let tape = Arc::new(Tape::new(&recording.calls, notes.clone()));
    Capabilities {
        models: Some(tape.clone()),
        environments: Some(tape.clone()),
        blobs: Some(tape.clone()),
        sandboxes: Some(tape.clone()),
        browsers: Some(tape.clone()),
        services: Some(tape),
    }
}

fn trace(call: &HostCall) -> CallTrace {
    let text =
        |digest: Option<espalier_core::journal::Digest>| digest.map_or(String::new(), |one| one.to_string());
    CallTrace { name: call.name.as_ref().to_owned(), asked: text(call.asked), told: text(call.told) }
}

async fn harness(host: &PluginHost, file: &CaseFile, job: Job) -> Result<Left, CaseError> {
    let task = view::task(file)?;
    let outcome = host.run_harness(job, task).await;
    let returned = match &outcome.end {
        HarnessEnd::Returned(Ok(report)) => Some(json!({ "report": view::report_json(report) })),
        _ => None,
    };
    Ok(Left {
        returned,
        failure: outcome.failure.map(|failure| *failure),
        calls: outcome.host_calls,
        logs: outcome.logs,
        problems: Vec::new(),
    })
}

async fn environment(host: &PluginHost, file: &CaseFile, job: Job) -> Result<Left, CaseError> {
    let world = host.environment(EnvironmentRun {
        task: Arc::new(view::task(file)?),
        plugin: job.plugin,
        alias: job.alias,
        settings: job.settings,
        seed: job.seed,
        start_ms: NOW_MS,
        meter: job.meter,
    });
    let mut problems = Vec::new();
    let played = play(&world, file, &mut problems).await;
    world.end_episode().await;
    let failed = world.failure().is_some();
    let returned = match played {
        Ok(returned) => Some(returned),
        // What is not the plugin's own failure is misuse by the case.
        Err(problem) if !failed => {
            problems.push(problem);
            None
        }
        Err(_) => None,
    };
    Ok(Left { failure: world.plugin_failure(), returned, calls: Vec::new(), logs: world.logs(), problems })
}

/// Resets it and takes the steps of the case, each held against what it must lead to.
async fn play(
    world: &EnvironmentHost,
    file: &CaseFile,
    problems: &mut Vec<Problem>,
) -> Result<Value, Problem> {
    let failed = |key: &str| {
        let key = key.to_owned();
        move |failure: Failure| Problem::new(key, failure.to_string())
    };
    let mut open = world.open().await.map_err(failed("task"))?;
    let seen = open.reset().await.map_err(failed("task"))?;
    let actions = match &file.expect.actions {
        Some(_) => Some(open.actions().await.map_err(failed("expect.actions"))?),
        None => None,
    };
    let mut steps = Vec::with_capacity(file.steps.len());
    for (place, step) in file.steps.iter().enumerate() {
        let key = format!("steps[{place}]");
        let result = open.step(step.action.clone()).await.map_err(failed(&key))?;
        let actions = match step.expect.contains_key("actions") && !result.done {
            true => Some(open.actions().await.map_err(failed(&key))?),
            false => None,
        };
        let seen = view::step_json(&result, actions);
        problems.extend(compare(&format!("{key}.expect"), &Value::Object(step.expect.clone()), &seen));
        steps.push(seen);
    }
    Ok(json!({ "observation": seen.text, "actions": actions, "steps": steps }))
}

async fn reward(host: &PluginHost, file: &CaseFile, job: Job, scripts: &Scripts) -> Result<Left, CaseError> {
    let task = view::task(file)?;
    let rollout = file.rollout.clone().unwrap_or_default();
    let view = view::rollout(0, &rollout, &task, &scripts.blobs);
    let turns = view.turns.len() as u32;
    let outcome = host.score(job, view).await;
    let unusable = |scores: &Vec<Score>| defect(scores, turns);
    Ok(Left::scored(outcome, unusable, |scores| json!({ "scores": view::scores_json(&scores) })))
}

async fn group_reward(
    host: &PluginHost,
    file: &CaseFile,
    job: Job,
    scripts: &Scripts,
) -> Result<Left, CaseError> {
    let task = view::task(file)?;
    let views = file.rollouts.iter().enumerate();
    let views: Vec<_> = views.map(|(place, one)| view::rollout(place, one, &task, &scripts.blobs)).collect();
    let turns: Vec<u32> = views.iter().map(|view| view.turns.len() as u32).collect();
    let outcome = host.score_group(job, views).await;
    let unusable =
        |lists: &Vec<Vec<Score>>| lists.iter().zip(turns).find_map(|(one, turns)| defect(one, turns));
    Ok(Left::scored(outcome, unusable, |lists| {
        let lists: Value = lists.iter().map(|scores| view::scores_json(scores)).collect();
        json!({ "scores": lists })
    }))
}

async fn judge(host: &PluginHost, file: &CaseFile, job: Job, scripts: &Scripts) -> Result<Left, CaseError> {
    let task = view::task(file)?;
    let rollout = file.rollout.clone().unwrap_or_default();
    let view = view::rollout(0, &rollout, &task, &scripts.blobs);
    let turns = view.turns.len() as u32;
    let outcome = host.judge(job, view, turns).await;
    Ok(Left::scored(
        outcome,
        |judgement: &Judgement| defect(&judgement.scores, turns),
        |judgement| json!({ "scores": view::scores_json(&judgement.scores), "votes": view::votes_json(&judgement.votes) }),
    ))
}

async fn generator(host: &PluginHost, file: &CaseFile, job: Job) -> Result<Left, CaseError> {
    let outcome = match (&file.adapt, &file.request) {
        (Some(adapt), _) => host.adapt(job, adapt.task.to_string(), adapt.statistics.clone().into()).await,
        (None, request) => {
            let request = request.as_ref().ok_or_else(|| CaseError("`request` is missing".to_owned()))?;
            let crate::case::Request { count, seed, batch, accepted } = *request;
            host.generate(job, Request { count, seed, batch, accepted }).await
        }
    };
    Ok(Left {
        returned: outcome.result.ok().map(|tasks| json!({ "tasks": view::tasks_json(&tasks) })),
        failure: outcome.failure.map(|failure| *failure),
        calls: outcome.host_calls,
        logs: outcome.logs,
        problems: Vec::new(),
    })
}

impl Left {
    /// `unusable` says why a run could not use what was returned.
    fn scored<T>(
        outcome: ScoreOutcome<T>,
        unusable: impl FnOnce(&T) -> Option<String>,
        json: impl FnOnce(T) -> Value,
    ) -> Left {
        let mut problems = Vec::new();
        let (returned, problem) = match outcome.result {
            Ok(value) => {
                problems.extend(unusable(&value).map(|text| Problem::new("scores", text)));
                (Some(json(value)), None)
            }
            Err(error @ ScoreError::Invalid { .. }) => (None, Some(error.to_string())),
            Err(_) => (None, None),
        };
        let mut failure = outcome.failure.map(|failure| *failure);
        if let (Some(failure), Some(text)) = (&mut failure, problem) {
            (failure.class, failure.message) = (PluginFailureClass::InvalidData, text);
        }
        Left { returned, failure, calls: outcome.host_calls, logs: outcome.logs, problems }
    }
}

/// Why a run could not use these scores, whatever their weights.
fn defect(scores: &[Score], turns: u32) -> Option<String> {
    let unweighted = RewardConfig {
        plugin: String::new(),
        weight: 0.0,
        scores: BTreeMap::new(),
        settings: serde_json::Map::new(),
        attempts: 1,
        sees_changes: false,
        asks: None,
    };
    signal::defect(&unweighted, scores, turns)
}

/// Holds what the plugin gave, or how it failed, against what the case expects.
fn judge_result(expect: &Expect, left: &Left, problems: &mut Vec<Problem>) {
    let wanted = expect.failure.as_ref().map(|text| ("expect.failure", text));
    let wanted = wanted.or(expect.trap.as_ref().map(|text| ("expect.trap", text)));
    match (&left.failure, wanted) {
        (Some(failure), Some((key, text))) => {
            let told = told(failure, key);
            if !told.as_ref().is_some_and(|told| fits(told, text)) {
                problems.push(Problem::new(key, format!("{text:?}, but: {failure}")));
            }
        }
        // What the case did not provide is told already.
        (Some(failure), None) if !problems.is_empty() && failure.message.starts_with(UNPROVIDED) => {}
        (Some(failure), None) => problems.push(Problem::new("expect", failure.to_string())),
        (None, Some((key, text))) => {
            problems.push(Problem::new(key, format!("{text:?} did not come: the plugin returned")));
        }
        (None, None) => {}
    }
    let Some(returned) = left.returned.as_ref().filter(|_| left.failure.is_none()) else { return };
    let named = [
        ("report", &expect.report),
        ("observation", &expect.observation),
        ("actions", &expect.actions),
        ("scores", &expect.scores),
        ("votes", &expect.votes),
        ("tasks", &expect.tasks),
    ];
    for (key, expected) in named {
        let Some(expected) = expected else { continue };
        if matches!(key, "report" | "scores" | "votes")
            && let Some(problem) = unknown_key(expected, &returned[key])
        {
            problems.push(Problem { key: format!("expect.{key}.{}", problem.key), ..problem });
            continue;
        }
        problems.extend(compare(&format!("expect.{key}"), expected, &returned[key]));
    }
}

/// A failure as `expect.failure` or `expect.trap` write it; `None`: it is none of that sort.
fn told(failure: &PluginFailure, key: &str) -> Option<String> {
    let returned = failure.class == PluginFailureClass::Returned;
    match (key, returned) {
        ("expect.failure", true) => Some(returned_failure(&failure.message)),
        ("expect.trap", false) => Some(format!("{}: {}", failure.class.as_str(), failure.message)),
        _ => None,
    }
}

/// The message of a failure that was returned, with the kinds as cases write them.
fn returned_failure(message: &str) -> String {
    let kinds = [("budget used up: ", "budget: "), ("not granted: ", "denied: ")];
    let kind =
        kinds.iter().find_map(|(shown, written)| Some(format!("{written}{}", message.strip_prefix(shown)?)));
    kind.unwrap_or_else(|| message.to_owned())
}

/// `kind: part`: the same kind, and a text with the part in it.
fn fits(told: &str, wanted: &str) -> bool {
    let parts = |text: &str| {
        let (kind, text) = text.split_once(':').unwrap_or((text, ""));
        (kind.trim().to_owned(), text.trim().to_owned())
    };
    let ((kind, text), (wanted_kind, part)) = (parts(told), parts(wanted));
    kind == wanted_kind && text.contains(&part)
}

/// Each of `wanted` has to be found in `lines`, in its order.
fn in_order(
    key: &str,
    wanted: &[String],
    lines: &[String],
    is: impl Fn(&str, &str) -> bool,
) -> Option<Problem> {
    let mut rest = lines.iter();
    for (place, part) in wanted.iter().enumerate() {
        if !rest.any(|line| is(line, part)) {
            let text = format!("{part:?} did not come");
            let diff = crate::compare::lines(&wanted.join("\n"), &lines.join("\n"));
            return Some(Problem { key: format!("{key}[{place}]"), text, diff });
        }
    }
    None
}
