//! Tasks that a generator makes, in batches, and adapts to how earlier ones went.
//!
//! A task that is accepted is part of the run's record before a group can take it: the group at a place takes the task accepted at
//! that place, in this session and in any later one.

use super::EngineError;
use super::tasks::{Provided, RejectedTask, Slot, line_text, read_task};
use crate::progress::ProgressSender;
use crate::runner::{self, Loaded, RunGenerator, now_ms};
use crate::scheduler::{Next, SourceFailed, TaskSource};
use async_trait::async_trait;
use espalier_core::generator::{AdaptConfig, EMPTY_BATCHES_MAX, Request, Statistics};
use espalier_core::limits::LimitsFile;
use espalier_core::seed::batch_seed;
use espalier_core::task::Task;
use espalier_core::trajectory::LogLine;
use espalier_plugin::GeneratorOutcome;
use espalier_store::{GeneratedTask, GeneratorCall, RunWriter, StoreError};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// First and longest delay behind a batch without a task.
const DELAY: Duration = Duration::from_millis(100);
const DELAY_MAX: Duration = Duration::from_secs(1);

/// Variants of one task that count.
const ADAPTED_MAX: usize = 64;
/// After as many of one call that are not tasks, the rest of it is left.
const REJECTED_MAX: usize = 1000;
/// Rejected tasks of one call that are told in the log; all are in the record of the call.
const TOLD_MAX: usize = 3;
/// Tells seeds of adapted tasks apart from those of batches, which are counted from 0.
const ADAPTED: u64 = u64::MAX;

/// What the record of a run keeps of one call of its generator, as JSON in a blob.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CallRecord {
    pub(crate) logs: Vec<LogLine>,
    /// What was asked of models.
    pub(crate) models: serde_json::Value,
    /// Why what it made is no task, one by one.
    pub(crate) rejected: Vec<String>,
}

/// A generator as `[tasks]` names it, and what its tasks have to keep to.
#[derive(Debug)]
pub(super) struct Generator {
    /// As written in `tasks.plugin`.
    pub(super) plugin: String,
    /// `tasks.limit`.
    pub(super) limit: u64,
    /// `tasks.batch`.
    pub(super) batch: u32,
    /// `tasks.adapt`.
    pub(super) adapt: Option<AdaptConfig>,
    /// `[limits]`.
    pub(super) limits: LimitsFile,
    /// What the experiment has for its tasks.
    pub(super) provided: Provided,
    /// What came until now.
    pub(super) tally: super::stream::Tally,
    /// Groups that closed, with how their task went, until the source sees to them.
    closed: Mutex<VecDeque<(u64, Statistics)>>,
}

impl Generator {
    pub(super) fn new(
        (plugin, limit, batch): (String, u64, u32),
        adapt: Option<AdaptConfig>,
        limits: LimitsFile,
        provided: Provided,
    ) -> Generator {
        let (tally, closed) = (super::stream::Tally::default(), Mutex::default());
        Generator { plugin, limit, batch, adapt, limits, provided, tally, closed }
    }

    /// Whether this group's task is to be adapted; it is, before the next task is given.
    pub(super) fn closed(&self, group_index: u64, statistics: Statistics) {
        if self.adapt.is_some_and(|adapt| adapt.wants(&statistics)) {
            self.closed.lock().push_back((group_index, statistics));
        }
    }
}

/// Everything that a call of the generator needs; shared with the call under way.
struct Maker {
    generator: Arc<Generator>,
    loaded: Loaded,
    asker: RunGenerator,
    run: RunWriter,
    seed: u64,
    state: tokio::sync::Mutex<State>,
}

/// What is accepted.
struct State {
    /// By place.
    tasks: BTreeMap<u64, Accepted>,
    ids: BTreeSet<String>,
    /// Groups whose task was adapted.
    adapted: BTreeSet<u64>,
    calls: u64,
    batches: u64,
    empty: u32,
    /// Why the last batches came to nothing.
    why: String,
}

#[derive(Clone)]
struct Accepted {
    task: Arc<Task>,
    text: String,
}

/// A call of the generator under way.
type Making = JoinHandle<Result<Option<Slot>, SourceFailed>>;

/// The tasks of a run, made as they are asked for. Owner of the call under way; a call that nobody waits for any more goes on, and
/// the next one finds what came of it.
pub(super) struct GeneratedTasks {
    maker: Arc<Maker>,
    under_way: Option<(u64, Making)>,
    progress: ProgressSender,
}

impl GeneratedTasks {
    /// With what earlier sessions accepted.
    pub(super) async fn open(
        generator: Arc<Generator>,
        (loaded, asker, run, seed): (Loaded, RunGenerator, RunWriter, u64),
        progress: ProgressSender,
        closed: &BTreeSet<u64>,
    ) -> Result<GeneratedTasks, EngineError> {
        let (store, run_id) = (run.store().clone(), run.run_id().to_owned());
        let mut state = State {
            tasks: BTreeMap::new(),
            ids: BTreeSet::new(),
            adapted: BTreeSet::new(),
            calls: 0,
            batches: 0,
            empty: 0,
            why: String::new(),
        };
        for kept in store.generated_tasks(&run_id).await? {
            let lost =
                |why: String| EngineError::Engine(format!("the generated task {}: {why}", kept.task_id));
            let bytes = store.blobs().read_whole(&kept.task_text).await?;
            let text = line_text(&bytes).map_err(lost)?;
            let task = read_task(text, &generator.limits).map_err(|(why, _)| lost(why))?;
            state.ids.insert(kept.task_id.clone());
            state.tasks.insert(kept.place, Accepted { task: Arc::new(task), text: text.to_owned() });
        }
        for call in store.generator_calls(&run_id).await? {
            state.calls = state.calls.max(call.call + 1);
            state.batches += u64::from(call.of_group.is_none());
            state.adapted.extend(call.of_group);
        }
        generator.tally.set_tasks(state.tasks.len() as u64);
        if generator.adapt.is_some() {
            // A session that ended between the end of a group and the adapting of its task has left that undone.
            for group in closed.iter().filter(|group| !state.adapted.contains(group)) {
                generator.closed(*group, runner::statistics(&run, *group).await?);
            }
        }
        let state = tokio::sync::Mutex::new(state);
        let maker = Arc::new(Maker { generator, loaded, asker, run, seed, state });
        let tasks = GeneratedTasks { maker, under_way: None, progress };
        tasks.publish();
        Ok(tasks)
    }

    fn publish(&self) {
        let tally = &self.maker.generator.tally;
        let (tasks, (rejected, _)) = (tally.tasks(), tally.rejected());
        self.progress.send_modify(|progress| {
            progress.tasks = tasks;
            progress.tasks_rejected = rejected;
        });
    }
}

impl Drop for GeneratedTasks {
    fn drop(&mut self) {
        if let Some((_, task)) = &self.under_way {
            task.abort();
        }
    }
}

#[async_trait]
impl TaskSource for GeneratedTasks {
    type Task = Slot;

    async fn next(&mut self, group_index: u64) -> Result<Next<Slot>, SourceFailed> {
        // A group that no longer waits has left its call; what it accepted stands.
        if self.under_way.as_ref().is_some_and(|(of, task)| *of != group_index && !task.is_finished()) {
            if let Some((_, task)) = &mut self.under_way {
                let _ = task.await;
            }
            self.under_way = None;
        }
        let (_, task) = self.under_way.get_or_insert_with(|| {
            let maker = Arc::clone(&self.maker);
            (group_index, tokio::spawn(async move { maker.task_of(group_index).await }))
        });
        let made = task.await;
        let stale = self.under_way.take().is_some_and(|(of, _)| of != group_index);
        self.publish();
        let made = made.unwrap_or_else(|error| Err(SourceFailed::Generator(format!("the engine: {error}"))));
        match made {
            Ok(_) if stale => self.next(group_index).await,
            made => made.map(Next::from),
        }
    }

    fn groups(&self) -> Option<u64> {
        None
    }
}

impl Maker {
    /// The task at this place: accepted already, or made now.
    async fn task_of(&self, place: u64) -> Result<Option<Slot>, SourceFailed> {
        let mut state = self.state.lock().await;
        self.adapt(&mut state).await?;
        loop {
            if let Some(accepted) = state.tasks.get(&place) {
                let (task, text) = (Arc::clone(&accepted.task), Some(accepted.text.clone()));
                return Ok(Some(Slot { text, ..Slot::new(task, 0) }));
            }
            self.batch(&mut state).await?;
            if state.empty >= EMPTY_BATCHES_MAX {
                return Err(SourceFailed::Generator(format!(
                    "`{}` made no valid task in {EMPTY_BATCHES_MAX} batches, one after another; the last: {}",
                    self.generator.plugin, state.why
                )));
            }
            if state.empty > 0 {
                tokio::time::sleep((DELAY * 2u32.pow(state.empty - 1)).min(DELAY_MAX)).await;
            }
        }
    }

    /// Asks for variants of the tasks of groups that closed outside of the bounds.
    async fn adapt(&self, state: &mut State) -> Result<(), SourceFailed> {
        loop {
            let Some((group, statistics)) = self.generator.closed.lock().pop_front() else { return Ok(()) };
            let Some(of) = state.tasks.get(&group).cloned().filter(|_| !state.adapted.contains(&group))
            else {
                continue;
            };
            let seed = batch_seed(batch_seed(self.seed, ADAPTED), group);
            let outcome = self.asker.adapt(&self.loaded, of.text, statistics, seed).await;
            state.adapted.insert(group);
            self.accept(state, Some(group), ADAPTED_MAX, outcome).await.map_err(|error| lost(&error))?;
        }
    }

    async fn batch(&self, state: &mut State) -> Result<(), SourceFailed> {
        let accepted = state.tasks.len() as u64;
        let left = self.generator.limit.saturating_sub(accepted).max(1);
        let count = u32::try_from(left).unwrap_or(u32::MAX).min(self.generator.batch);
        let batch = state.batches;
        let seed = batch_seed(self.seed, batch);
        let outcome = self.asker.generate(&self.loaded, Request { count, seed, batch, accepted }).await;
        state.batches += 1;
        let taken = self.accept(state, None, count as usize, outcome).await.map_err(|error| lost(&error))?;
        state.empty = if taken == 0 { state.empty + 1 } else { 0 };
        Ok(())
    }

    /// Takes what is a task and new into the run's record, at most `most` of them. Returns how many.
    async fn accept(
        &self,
        state: &mut State,
        of_group: Option<u64>,
        most: usize,
        outcome: (GeneratorOutcome, serde_json::Value),
    ) -> Result<u64, StoreError> {
        let (outcome, asked) = outcome;
        let (lines, failed) = match outcome.result {
            Ok(lines) => (lines, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        let (mut rejected, mut accepted, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        let first = state.tasks.keys().next_back().map_or(0, |last| last + 1);
        let made = lines.len();
        for (at, text) in lines.into_iter().enumerate() {
            if accepted.len() == most || rejected.len() == REJECTED_MAX {
                tracing::warn!(
                    "of the {made} tasks that a generator made at once, the first {at} were looked at"
                );
                break;
            }
            let number = self.generator.tally.number();
            match self.check(state, &text) {
                Ok(task) => {
                    let hash = self.run.store().blobs().put(text.clone().into_bytes()).await?;
                    state.ids.insert(task.id.as_str().to_owned());
                    let place = first + accepted.len() as u64;
                    let task_id = task.id.as_str().to_owned();
                    kept.push(GeneratedTask { place, task_id, task_text: hash });
                    accepted.push(Accepted { task: Arc::new(task), text });
                }
                Err((reason, column)) => {
                    if rejected.len() < TOLD_MAX {
                        tracing::warn!(number, "a generated task is rejected: {reason}");
                    }
                    rejected.push(reason.clone());
                    self.generator.tally.reject(RejectedTask { line: number, column, reason });
                }
            }
        }
        state.why = match (&failed, rejected.first()) {
            (Some(why), _) => why.clone(),
            (None, Some(reason)) => format!("{} tasks, the first: {reason}", rejected.len()),
            (None, None) => "no task".to_owned(),
        };
        if let Some(why) = &failed {
            tracing::warn!("{why}");
        }
        let rejected_count = rejected.len() as u64;
        let record = CallRecord { logs: outcome.logs, models: asked, rejected };
        let record = serde_json::to_vec(&record).expect("logs and texts are JSON");
        let call = GeneratorCall {
            call: state.calls,
            of_group,
            plugin: self.loaded.plugin.digest().to_owned(),
            accepted: accepted.len() as u64,
            rejected: rejected_count,
            failed,
            record: self.run.store().blobs().put(record).await?,
            ended_ms: now_ms(),
        };
        self.run.generated(call, kept).await?;
        state.calls += 1;
        let count = accepted.len() as u64;
        state.tasks.extend((first..).zip(accepted));
        self.generator.tally.set_tasks(state.tasks.len() as u64);
        Ok(count)
    }

    fn check(&self, state: &State, text: &str) -> Result<Task, (String, Option<usize>)> {
        let task = read_task(text, &self.generator.limits)?;
        self.generator.provided.check(&task).map_err(|why| (why, None))?;
        if state.ids.contains(task.id.as_str()) {
            return Err((format!("the run has a task with the id {:?} already", task.id.as_str()), None));
        }
        Ok(task)
    }
}

fn lost(error: &StoreError) -> SourceFailed {
    SourceFailed::Lost(error.to_string())
}
