//! Running rewards: one instance for each call, under `limits.scoring_wall`, on a frozen clock.

use crate::bindings::group_reward::GroupRewardPluginPre;
use crate::bindings::reward::RewardPluginPre;
use crate::bindings::reward::espalier::plugin::scores;
use crate::convert::score_in;
use crate::gate::AbortOnDrop;
use crate::guest::Guest;
use crate::harness::check_json;
use crate::host::Inner;
use crate::job::{CallEnd, Export, Job, Returned};
use crate::plugin::Pre;
use crate::{World, view};
use espalier_core::failure::Failure;
use espalier_core::limits::DurationText;
use espalier_core::plugin_failure::{PluginFailure, PluginFailureClass};
use espalier_core::trajectory::{HostCall, LogLine, RolloutView, Score};
use std::time::{Duration, Instant};
use wasmtime::Store;

/// The export that is called for one rollout.
pub const EXPORT: &str = "reward.score-rollout";
/// The export that is called for the rollouts of a group.
pub const GROUP_EXPORT: &str = "group-reward.score-group";

/// What a scoring left: `Vec<Score>` for one rollout, a list of these for a group.
#[derive(Debug)]
pub struct ScoreOutcome<T = Vec<Score>> {
    /// The scores, each finite; for a group one list a rollout, in their order.
    pub result: Result<T, ScoreError>,
    /// How it failed, where it did.
    pub failure: Option<Box<PluginFailure>>,
    /// Its imports.
    pub host_calls: Vec<HostCall>,
    /// What it logged.
    pub logs: Vec<LogLine>,
    /// Bytes of logs beyond `limits.log_bytes`.
    pub log_bytes_dropped: u64,
}

/// Why there is no score; which is not a score of 0.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ScoreError {
    /// The plugin trapped, or went on after its budget error; it would again.
    #[error("{0}")]
    Trapped(String),
    /// The plugin returned a failure.
    #[error("{plugin} failed: {failure}")]
    Failed {
        /// `reward` or `judge` with its alias.
        plugin: String,
        /// As returned; `Unavailable` may be worth a retry.
        failure: Failure,
    },
    /// The plugin returned scores that are none.
    #[error("{plugin}: {reason}")]
    Invalid {
        /// As above.
        plugin: String,
        /// Which score, and what is wrong.
        reason: String,
    },
    /// `limits.scoring_wall` was met.
    #[error("{plugin} did not end within limits.scoring_wall = {}", DurationText(*wall))]
    TimedOut {
        /// As above.
        plugin: String,
        /// The limit.
        wall: Duration,
    },
    /// The run was cancelled.
    #[error("scoring cancelled")]
    Cancelled,
}

impl ScoreError {
    /// Whether another try may bring a score: infrastructure failed, not the plugin.
    pub fn is_worth_a_retry(&self) -> bool {
        matches!(self, ScoreError::Failed { failure: Failure::Unavailable(_), .. } | ScoreError::Cancelled)
    }
}

struct ScoreRollout {
    pre: RewardPluginPre<Guest>,
    view: scores::RolloutView,
}

impl Export for ScoreRollout {
    type Value = Vec<scores::Score>;
    const NAME: &'static str = EXPORT;

    async fn call(self, store: &mut Store<Guest>) -> Returned<Self::Value> {
        let plugin = self.pre.instantiate_async(&mut *store).await?;
        plugin.espalier_plugin_reward().call_score_rollout(store, &self.view).await
    }
}

struct ScoreGroup {
    pre: GroupRewardPluginPre<Guest>,
    views: Vec<scores::RolloutView>,
}

impl Export for ScoreGroup {
    type Value = Vec<Vec<scores::Score>>;
    const NAME: &'static str = GROUP_EXPORT;

    async fn call(self, store: &mut Store<Guest>) -> Returned<Self::Value> {
        let plugin = self.pre.instantiate_async(&mut *store).await?;
        plugin.espalier_plugin_group_reward().call_score_group(store, &self.views).await
    }
}

/// What a plugin is called in errors.
fn title(job: &Job) -> String {
    let kind = if job.plugin.world() == World::Judge { "judge" } else { "reward" };
    format!("{kind} {}", job.alias)
}

pub(crate) async fn score(host: &Inner, job: Job, view: RolloutView) -> ScoreOutcome {
    let (alias, turns) = (title(&job), view.turns.len());
    let Pre::Reward(pre) = &job.plugin.loaded.pre else {
        return ScoreOutcome::failed(ScoreError::Trapped(job.plugin.not_a(World::Reward)));
    };
    let export = |mut views: Vec<scores::RolloutView>| {
        let view = views.pop().expect("one view was given");
        ScoreRollout { pre: pre.clone(), view }
    };
    let outcome = run(host, &job, vec![view], export).await;
    outcome.checked(|list| check_scores(&alias, list, turns))
}

pub(crate) async fn score_group(
    host: &Inner,
    job: Job,
    views: Vec<RolloutView>,
) -> ScoreOutcome<Vec<Vec<Score>>> {
    let turns: Vec<usize> = views.iter().map(|view| view.turns.len()).collect();
    let alias = title(&job);
    let Pre::GroupReward(pre) = &job.plugin.loaded.pre else {
        return ScoreOutcome::failed(ScoreError::Trapped(job.plugin.not_a(World::GroupReward)));
    };
    let outcome = run(host, &job, views, |views| ScoreGroup { pre: pre.clone(), views }).await;
    outcome.checked(|lists| {
        if lists.len() != turns.len() {
            let reason = format!("scored {} rollouts, the group has {}", lists.len(), turns.len());
            return Err(ScoreError::Invalid { plugin: alias.clone(), reason });
        }
        let lists = lists.into_iter().zip(&turns);
        lists.map(|(list, turns)| check_scores(&alias, list, *turns)).collect()
    })
}

/// Prepares what is shown, and calls; both within the job's wall.
pub(crate) async fn run<E: Export>(
    host: &Inner,
    job: &Job,
    views: Vec<RolloutView>,
    export: impl FnOnce(Vec<scores::RolloutView>) -> E,
) -> ScoreOutcome<E::Value> {
    let started = Instant::now();
    let views = match prepare_views(host, job, views).await {
        Ok(views) => views,
        Err(error) => return ScoreOutcome::failed(error),
    };
    let (plugin, wall, cancel) = (title(job), job.wall, job.cancel.clone());
    let job = Job { wall: wall.saturating_sub(started.elapsed()), ..job.clone() };
    let called = host.call(job, export(views)).await;
    let mut failure = called.failure;
    let mut ended_by = |class, error| {
        if let Some(failure) = &mut failure {
            failure.class = class;
        }
        Err(error)
    };
    let result = match called.end {
        CallEnd::Returned(value) => Ok(value),
        _ if cancel.is_cancelled() => ended_by(PluginFailureClass::Stopped, ScoreError::Cancelled),
        _ if called.wall => ended_by(PluginFailureClass::Wall, ScoreError::TimedOut { plugin, wall }),
        CallEnd::Failed(failure) => Err(ScoreError::Failed { plugin, failure }),
        CallEnd::Trapped(text) | CallEnd::BudgetIgnored(text) => Err(ScoreError::Trapped(text)),
    };
    ScoreOutcome {
        result,
        failure,
        host_calls: called.host_calls,
        logs: called.logs,
        log_bytes_dropped: called.log_bytes_dropped,
    }
}

/// Cuts long texts out of the views, on the `io` runtime and within the job's wall.
async fn prepare_views(
    host: &Inner,
    job: &Job,
    views: Vec<RolloutView>,
) -> Result<Vec<scores::RolloutView>, ScoreError> {
    let (plugin, wall) = (title(job), job.wall);
    let blobs = job.capabilities.blobs.clone();
    let cancel = job.cancel.clone();
    // Owned by this call and aborted with it.
    let task = AbortOnDrop(host.io.spawn(async move {
        let prepared = async {
            let mut out = Vec::with_capacity(views.len());
            for view in views {
                out.push(view::prepare(view, blobs.as_deref()).await?);
            }
            Ok(out)
        };
        tokio::select! {
            prepared = prepared => prepared.map_err(|failure| ScoreError::Failed { plugin, failure }),
            () = cancel.cancelled() => Err(ScoreError::Cancelled),
            () = tokio::time::sleep(wall) => Err(ScoreError::TimedOut { plugin: plugin.clone(), wall }),
        }
    }));
    task.await.unwrap_or_else(|error| Err(ScoreError::Trapped(format!("the plugin host failed: {error}"))))
}

impl<T> ScoreOutcome<T> {
    pub(crate) fn failed(error: ScoreError) -> ScoreOutcome<T> {
        let (failure, logs) = (None, Vec::new());
        ScoreOutcome { result: Err(error), failure, host_calls: Vec::new(), logs, log_bytes_dropped: 0 }
    }

    /// With the value checked; one that stands leaves no failure.
    pub fn checked<U>(self, check: impl FnOnce(T) -> Result<U, ScoreError>) -> ScoreOutcome<U> {
        let ScoreOutcome { result, mut failure, host_calls, logs, log_bytes_dropped } = self;
        let result = result.and_then(check);
        match (&result, &mut failure) {
            (Ok(_), failure) => *failure = None,
            (Err(ScoreError::Invalid { reason, .. }), Some(failure)) => {
                failure.class = PluginFailureClass::InvalidData;
                failure.message.clone_from(reason);
            }
            (Err(_), _) => {}
        }
        ScoreOutcome { result, failure, host_calls, logs, log_bytes_dropped }
    }
}

/// Scores of one rollout, and votes: one for each turn and more.
pub(crate) const SCORES_MAX: usize = 100_000;

pub(crate) fn check_scores(
    plugin: &str,
    list: Vec<scores::Score>,
    turns: usize,
) -> Result<Vec<Score>, ScoreError> {
    let invalid = |reason| ScoreError::Invalid { plugin: plugin.to_owned(), reason };
    if list.len() > SCORES_MAX {
        return Err(invalid(format!("invalid data: {} scores are over {SCORES_MAX}", list.len())));
    }
    for score in &list {
        if score.name.is_empty() {
            return Err(invalid("invalid data: a score without a name".to_owned()));
        }
        if !score.value.is_finite() {
            return Err(invalid(format!(
                "invalid data: score `{}` is {}; a score is finite",
                score.name, score.value
            )));
        }
        if let Some(turn) = score.turn.filter(|turn| *turn as usize >= turns) {
            return Err(invalid(format!(
                "invalid data: score `{}` is about turn {turn}, the rollout has {turns}",
                score.name
            )));
        }
        if let Some(extra) = &score.extra {
            check_json(&format!("extra of score `{}`", score.name), extra)
                .map_err(|stop| invalid(format!("invalid data: {stop}")))?;
        }
    }
    Ok(list.into_iter().map(score_in).collect())
}
