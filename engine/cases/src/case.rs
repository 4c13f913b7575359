//! The file of a case: `cases/NAME.toml`. docs/authoring-cases.md has every key with an example.

pub mod browser;

use crate::picture;
use crate::recorded::Recording;
use espalier_core::failure::{BudgetKind, Failure};
use espalier_core::generator::Statistics;
use espalier_core::limits::LimitsFile;
use espalier_plugin::World;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A case as its file says it.
#[derive(Clone, Debug)]
pub struct Case {
    /// The file's name without its ending.
    pub name: String,
    /// Its file.
    pub path: PathBuf,
    /// What it says, or why it cannot be read.
    pub file: Result<CaseFile, CaseError>,
    /// The calls of `recorded`, read along with it.
    pub(crate) recording: Option<Arc<Recording>>,
    /// The pictures that it names, read along with it, by their paths as it writes them.
    pub(crate) pictures: Arc<Pictures>,
}

/// Bytes of pictures by path.
pub(crate) type Pictures = BTreeMap<PathBuf, Vec<u8>>;

/// A case that cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CaseError(pub String);

/// The keys of a case.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaseFile {
    /// Settings of the plugin.
    #[serde(default)]
    pub settings: Map<String, Value>,
    /// As `[limits]` of an experiment.
    #[serde(default)]
    pub limits: LimitsFile,
    /// Seed of the plugin's random numbers.
    #[serde(default)]
    pub seed: u64,
    /// A line of a task file.
    #[serde(default)]
    pub task: Option<Value>,
    /// Answers of models by name, in order.
    #[serde(default)]
    pub models: BTreeMap<String, Vec<Answer>>,
    /// The environment of a harness.
    #[serde(default)]
    pub environment: Option<Environment>,
    /// Sandboxes by name.
    #[serde(default)]
    pub sandboxes: BTreeMap<String, Machine>,
    /// Browsers by name.
    #[serde(default)]
    pub browsers: BTreeMap<String, browser::Browser>,
    /// What services answer, by name and by request: `GET /go`.
    #[serde(default)]
    pub services: BTreeMap<String, BTreeMap<String, ServiceReply>>,
    /// The finished rollout that is scored.
    #[serde(default)]
    pub rollout: Option<Rollout>,
    /// The finished rollouts that are scored together.
    #[serde(default)]
    pub rollouts: Vec<Rollout>,
    /// What is done to an environment.
    #[serde(default)]
    pub steps: Vec<Action>,
    /// What a task generator is asked for.
    #[serde(default)]
    pub request: Option<Request>,
    /// The task that a generator adapts.
    #[serde(default)]
    pub adapt: Option<Adapt>,
    /// Calls of a rollout that are played in the place of scripts; relative to the case.
    #[serde(default)]
    pub recorded: Option<PathBuf>,
    /// What must come of it.
    #[serde(default)]
    pub expect: Expect,
}

/// What a service answers to one request.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceReply {
    /// Of HTTP.
    #[serde(default = "ok")]
    pub status: u16,
    /// The body.
    pub json: Value,
}

fn ok() -> u16 {
    200
}

/// One answer of a model.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// What it says.
    #[serde(default)]
    pub text: String,
    /// The tools that it calls.
    #[serde(default)]
    pub tool_calls: Vec<ToolCall>,
    /// Why a call in it could not be parsed.
    #[serde(default)]
    pub malformed: Option<String>,
    /// Why it ended: `stop`, `length`, `tool-calls`, `filtered`. Default: `tool-calls` where it calls tools, else `stop`.
    #[serde(default)]
    pub finish: Option<String>,
    /// A failure in its place: `unavailable: text`.
    #[serde(default)]
    pub fail: Option<FailureText>,
    /// Texts that the messages since the last answer must contain.
    #[serde(default)]
    pub said: Vec<String>,
}

/// A call of a tool.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolCall {
    /// Name of the tool.
    pub name: String,
    /// Its arguments.
    #[serde(default)]
    pub arguments: Map<String, Value>,
}

impl fmt::Display for ToolCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.arguments.is_empty() {
            true => f.write_str(&self.name),
            false => write!(f, "{} {}", self.name, Value::Object(self.arguments.clone())),
        }
    }
}

/// The environment that a harness steps.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    /// What is seen first.
    pub reset: String,
    /// What `actions` lists.
    #[serde(default)]
    pub actions: Vec<String>,
    /// What the actions lead to, in order.
    #[serde(default)]
    pub steps: Vec<Step>,
}

/// What one action leads to.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The action it is for, compared where it is given.
    #[serde(default)]
    pub action: Option<String>,
    /// What is seen.
    #[serde(default)]
    pub observation: String,
    /// Reward of the step.
    #[serde(default, deserialize_with = "finite")]
    pub reward: Option<f64>,
    /// Whether the episode is over.
    #[serde(default)]
    pub done: bool,
    /// Facts for rewards and people.
    #[serde(default)]
    pub info: Value,
    /// A failure in its place.
    #[serde(default)]
    pub fail: Option<FailureText>,
}

/// A sandbox: files, and the outcomes of commands in order.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Texts of files by path.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// Outcomes of commands, in order.
    #[serde(default)]
    pub commands: Vec<Command>,
}

/// What a command comes to.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// The command it is for, compared where it is given: shell text, or program and arguments with spaces between.
    #[serde(default)]
    pub command: Option<String>,
    /// How it ends.
    #[serde(default)]
    pub exit_code: i32,
    /// Whether its timeout ends it.
    #[serde(default)]
    pub timed_out: bool,
    /// What it prints.
    #[serde(default)]
    pub stdout: String,
    /// What it prints on standard error.
    #[serde(default)]
    pub stderr: String,
    /// Files that it writes.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// A failure in its place.
    #[serde(default)]
    pub fail: Option<FailureText>,
}

/// A finished rollout.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rollout {
    /// `completed`, `truncated`, `time-exceeded`. Default: `completed`.
    #[serde(default)]
    pub status: Option<String>,
    /// `submitted`, `gave-up`, `limit-turns` ... Default: `submitted`.
    #[serde(default)]
    pub stop_reason: Option<String>,
    /// What the harness returned.
    #[serde(default)]
    pub report: Option<Report>,
    /// The answers of the policy.
    #[serde(default)]
    pub turns: Vec<Turn>,
    /// The steps in the environment.
    #[serde(default)]
    pub steps: Vec<TakenStep>,
    /// Texts of blobs by name.
    #[serde(default)]
    pub blobs: BTreeMap<String, String>,
    /// Scores that it has already, and whatever else rewards are told.
    #[serde(default)]
    pub extra: Map<String, Value>,
}

/// What a harness returned.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// `submitted`, `gave-up`, `limit-turns` ...
    pub outcome: String,
    /// The final answer.
    #[serde(default)]
    pub answer: Option<String>,
    /// Facts for rewards and people.
    #[serde(default)]
    pub data: Value,
}

/// One answer of the policy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Turn {
    /// What it said.
    #[serde(default)]
    pub text: String,
    /// The tools that it called.
    #[serde(default)]
    pub tool_calls: Vec<ToolCall>,
    /// Messages behind it.
    #[serde(default)]
    pub answers: Vec<String>,
}

/// One step in the environment of a finished rollout.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TakenStep {
    /// The policy's last turn when it was taken.
    #[serde(default)]
    pub turn: u32,
    /// The action.
    #[serde(default)]
    pub action: String,
    /// What was seen.
    #[serde(default)]
    pub observation: String,
    /// Reward of the step.
    #[serde(default, deserialize_with = "finite")]
    pub reward: Option<f64>,
    /// Whether the episode was over.
    #[serde(default)]
    pub done: bool,
    /// Facts for rewards and people.
    #[serde(default)]
    pub info: Value,
}

/// One action that is taken in an environment under test.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Action {
    /// The action.
    pub action: String,
    /// What it must lead to: `observation`, `reward`, `done`, `info`, `actions`.
    #[serde(default)]
    pub expect: Map<String, Value>,
}

/// What a task generator is asked for.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// How many tasks.
    pub count: u32,
    /// Seed of the batch.
    #[serde(default)]
    pub seed: u64,
    /// Number of the batch, from 0.
    #[serde(default)]
    pub batch: u64,
    /// Tasks that the run has already.
    #[serde(default)]
    pub accepted: u64,
}

/// A task that is adapted.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adapt {
    /// A line of a task file.
    pub task: Value,
    /// How it went.
    #[serde(default)]
    pub statistics: StatisticsFile,
}

/// How a task went; what is left out is 0 or empty.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StatisticsFile {
    attempts: u32,
    accuracy: f64,
    turns: f64,
    endings: BTreeMap<String, u32>,
    failures: Vec<String>,
}

impl From<StatisticsFile> for Statistics {
    fn from(file: StatisticsFile) -> Statistics {
        let StatisticsFile { attempts, accuracy, turns, endings, failures } = file;
        Statistics { attempts, accuracy, turns, endings, failures }
    }
}

/// What must come of a case; only what is named is compared, and `false` stands for nothing.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// The report of a harness.
    #[serde(default)]
    pub report: Option<Value>,
    /// What an environment shows first.
    #[serde(default)]
    pub observation: Option<Value>,
    /// What an environment lists after the reset.
    #[serde(default)]
    pub actions: Option<Value>,
    /// Scores; of a group a list for each rollout.
    #[serde(default)]
    pub scores: Option<Value>,
    /// Votes of a judge.
    #[serde(default)]
    pub votes: Option<Value>,
    /// Tasks of a generator.
    #[serde(default)]
    pub tasks: Option<Value>,
    /// The failure that the plugin returns: its kind, then a part of its text.
    #[serde(default)]
    pub failure: Option<String>,
    /// How the plugin traps: `panic`, `invalid-data`, `cpu`, `memory`, `stack`, `budget-ignored`, then a part of the message.
    #[serde(default)]
    pub trap: Option<String>,
    /// A part of the message that refuses the settings.
    #[serde(default)]
    pub refused: Option<String>,
    /// Parts of log lines, in order.
    #[serde(default)]
    pub log: Vec<String>,
    /// Calls to the host that must occur in this order, others between them or not.
    #[serde(default)]
    pub calls: Vec<String>,
}

/// A failure as `kind: text`; any other kind than those of WIT is the code of an `other`.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct FailureText(pub Failure);

impl TryFrom<String> for FailureText {
    type Error = String;

    fn try_from(written: String) -> Result<FailureText, String> {
        let (kind, text) = written.split_once(':').unwrap_or((&written, ""));
        let text = text.trim().to_owned();
        let budget = |word: &str| match word {
            "turns" => BudgetKind::Turns,
            "tokens" => BudgetKind::Tokens,
            "sampled-tokens" => BudgetKind::SampledTokens,
            "wall" => BudgetKind::Wall,
            "host-calls" => BudgetKind::HostCalls,
            "blob-bytes" => BudgetKind::BlobBytes,
            other => BudgetKind::Other(other.to_owned()),
        };
        Ok(FailureText(match kind.trim() {
            "budget" => Failure::Budget(budget(&text)),
            "cancelled" => Failure::Cancelled,
            "denied" => Failure::Denied(text),
            "unavailable" => Failure::Unavailable(text),
            "invalid" => Failure::Invalid(text),
            "" => return Err("a failure is `kind: text`, like \"unavailable: no server\"".to_owned()),
            code => Failure::Other { code: code.to_owned(), text },
        }))
    }
}

/// Bytes of a case: what is larger does not belong into one.
const CASE_BYTES_MAX: u64 = 4 << 20;
/// Bytes of a picture beside it.
const PICTURE_BYTES_MAX: u64 = 8 << 20;

/// A reward, which is a number: TOML knows others.
fn finite<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    let reward = f64::deserialize(deserializer)?;
    if reward.is_finite() {
        return Ok(Some(reward));
    }
    Err(serde::de::Error::custom(format!("invalid reward {reward}: expected a finite number")))
}

/// The cases of a folder, by name; those that cannot be read among them.
pub fn cases_in(folder: &Path) -> std::io::Result<Vec<Case>> {
    let mut cases = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "toml") {
            cases.push(Case::read(&path));
        }
    }
    cases.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(cases)
}

impl Case {
    /// The case of this file.
    pub fn read(path: &Path) -> Case {
        let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("?").to_owned();
        let bytes = crate::file::read(path, CASE_BYTES_MAX);
        let text = bytes.and_then(|bytes| String::from_utf8(bytes).map_err(|error| error.to_string()));
        let text = text.map_err(CaseError);
        let mut file = text.and_then(|text| CaseFile::parse(&text));
        let mut recording = None;
        let beside = path.parent().unwrap_or(Path::new("."));
        let pictures = match file.as_ref().map(|file| file.pictures(beside)) {
            Ok(Ok(pictures)) => pictures,
            Ok(Err(error)) => {
                file = Err(error);
                Pictures::default()
            }
            Err(_) => Pictures::default(),
        };
        if let Ok(CaseFile { recorded: Some(recorded), .. }) = &file {
            match Recording::read(&beside.join(recorded)) {
                Ok(read) => recording = Some(Arc::new(read)),
                Err(error) => file = Err(CaseError(error)),
            }
        }
        Case { name, path: path.to_owned(), file, recording, pictures: Arc::new(pictures) }
    }
}

impl CaseFile {
    /// Reads the text of a file.
    pub fn parse(text: &str) -> Result<CaseFile, CaseError> {
        toml::from_str(text).map_err(|error| CaseError(error.to_string().trim_end().to_owned()))
    }

    /// The pictures that it names, relative to the folder `beside`.
    fn pictures(&self, beside: &Path) -> Result<Pictures, CaseError> {
        let named = self.browsers.iter().flat_map(|(name, browser)| browser.pictures(name));
        let mut read = Pictures::new();
        for (key, path) in named {
            let bytes = crate::file::read(&beside.join(&path), PICTURE_BYTES_MAX).and_then(|bytes| {
                picture::size(&bytes)
                    .map(|_| bytes)
                    .ok_or_else(|| "it is no PNG, JPEG or WebP picture".to_owned())
            });
            let bytes = bytes.map_err(|error| CaseError(format!("{key} = {path:?}: {error}")))?;
            read.insert(path, bytes);
        }
        Ok(read)
    }

    /// Refuses what is of no use to a plugin of this world: it would be passed over in silence.
    pub fn check(&self, world: World) -> Result<(), CaseError> {
        use World::{Environment, GroupReward, Harness, Judge, Reward, TaskGenerator};
        let expect = &self.expect;
        let given: [(&str, bool, &[World]); 18] = [
            ("models", !self.models.is_empty(), &[Harness, GroupReward, Judge, TaskGenerator]),
            ("environment", self.environment.is_some(), &[Harness]),
            ("sandboxes", !self.sandboxes.is_empty(), &[Harness, Reward, GroupReward, Judge, TaskGenerator]),
            ("browsers", !self.browsers.is_empty(), &[Harness, Reward, Judge]),
            ("services", !self.services.is_empty(), &[Reward, Judge]),
            ("recorded", self.recorded.is_some(), &[Harness]),
            ("rollout", self.rollout.is_some(), &[Reward, Judge]),
            ("rollouts", !self.rollouts.is_empty(), &[GroupReward]),
            ("steps", !self.steps.is_empty(), &[Environment]),
            ("request", self.request.is_some(), &[TaskGenerator]),
            ("adapt", self.adapt.is_some(), &[TaskGenerator]),
            ("expect.report", expect.report.is_some(), &[Harness]),
            ("expect.observation", expect.observation.is_some(), &[Environment]),
            ("expect.actions", expect.actions.is_some(), &[Environment]),
            ("expect.scores", expect.scores.is_some(), &[Reward, GroupReward, Judge]),
            ("expect.votes", expect.votes.is_some(), &[Judge]),
            ("expect.tasks", expect.tasks.is_some(), &[TaskGenerator]),
            ("expect.calls", !expect.calls.is_empty(), &[Harness, Reward, GroupReward, Judge, TaskGenerator]),
        ];
        if let Some((key, _, _)) =
            given.iter().find(|(_, is_given, worlds)| *is_given && !worlds.contains(&world))
        {
            return Err(CaseError(format!("`{key}` is not for a {world}")));
        }
        self.browsers.iter().try_for_each(|(name, browser)| browser.check(name))?;
        let needs = |key: &str| Err(CaseError(format!("`{key}` is missing: a case of a {world} needs it")));
        match world {
            Harness | Environment if self.task.is_none() => needs("task"),
            GroupReward if self.rollouts.is_empty() => needs("rollouts"),
            TaskGenerator if self.request.is_none() && self.adapt.is_none() => needs("request"),
            TaskGenerator if self.request.is_some() && self.adapt.is_some() => Err(CaseError(
                "`request` and `adapt` are both given: a case calls the plugin once".to_owned(),
            )),
            Harness if self.recorded.is_some() => {
                let scripts = [
                    ("models", !self.models.is_empty()),
                    ("environment", self.environment.is_some()),
                    ("sandboxes", !self.sandboxes.is_empty()),
                    ("browsers", !self.browsers.is_empty()),
                ];
                match scripts.iter().find(|(_, is_given)| *is_given) {
                    Some((key, _)) => {
                        Err(CaseError(format!("`{key}` is given, but `recorded` is played in its place")))
                    }
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}
