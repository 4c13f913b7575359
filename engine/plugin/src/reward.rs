//! Running rewards: one instance for each call, under `limits.scoring_wall`, on a frozen clock.

use crate::bindings::harness::espalier::base::types as base;
use crate::bindings::reward::espalier::plugin::scores;
use crate::convert::{failure_in, score_in};
use crate::gate::{AbortOnDrop, Gate, GateSetup};
use crate::guest::{self, Guest, GuestSetup};
use crate::harness::check_json;
use crate::host::Inner;
use crate::logs::Logs;
use crate::plugin::Pre;
use crate::{CancelToken, Plugin, World, trap, view};
use espalier_core::failure::Failure;
use espalier_core::host::Capabilities;
use espalier_core::limits::{DurationText, Limits};
use espalier_core::meter::Meter;
use espalier_core::plugin_failure::{PluginFailure, PluginFailureClass};
use espalier_core::trajectory::{HostCall, LogLine, RolloutView, Score};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wasmtime::Store;

/// The export that is called for one rollout.
pub const EXPORT: &str = "reward.score-rollout";

/// One scoring of one rollout.
pub struct RewardRun {
    /// A plugin of the world reward.
    pub plugin: Arc<Plugin>,
    /// The name by which the experiment calls it.
    pub alias: String,
    /// What it scores.
    pub view: RolloutView,
    /// What [`Plugin::check_settings`] gave back.
    pub settings: String,
    /// Seed of `random`, below 2^53.
    pub seed: u64,
    /// What `clock` says, from first to last: the rollout's end, ms since 1970.
    pub now_ms: u64,
    /// `scoring_wall`, `guest_cpu`, `guest_memory`, `host_calls`, `log_bytes`, `import_wall` count here.
    pub limits: Limits,
    /// Blobs and sandboxes of the rollout, as the harness left them. Without blobs, long texts cannot be shown.
    pub capabilities: Capabilities,
    /// Stops it.
    pub cancel: CancelToken,
}

/// One scoring of the rollouts of one group.
pub struct GroupRewardRun {
    /// A plugin of the world group-reward.
    pub plugin: Arc<Plugin>,
    /// The name by which the experiment calls it.
    pub alias: String,
    /// What it scores.
    pub views: Vec<RolloutView>,
    /// As in [`RewardRun`].
    pub settings: String,
    /// As in [`RewardRun`].
    pub seed: u64,
    /// As in [`RewardRun`].
    pub now_ms: u64,
    /// As in [`RewardRun`].
    pub limits: Limits,
    /// Blobs of all the rollouts.
    pub capabilities: Capabilities,
    /// Stops it.
    pub cancel: CancelToken,
}

/// What a reward left.
#[derive(Debug)]
pub struct ScoreOutcome {
    /// The scores, each finite.
    pub result: Result<Vec<Score>, ScoreError>,
    /// How it failed, where it did.
    pub failure: Option<Box<PluginFailure>>,
    /// Its imports.
    pub host_calls: Vec<HostCall>,
    /// What it logged.
    pub logs: Vec<LogLine>,
    /// Bytes of logs beyond `limits.log_bytes`.
    pub log_bytes_dropped: u64,
}

/// What a group reward left.
#[derive(Debug)]
pub struct GroupScoreOutcome {
    /// One list of scores for each rollout, in their order.
    pub result: Result<Vec<Vec<Score>>, ScoreError>,
    /// As in [`ScoreOutcome`].
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
    #[error("reward {plugin} failed: {failure}")]
    Failed {
        /// Alias.
        plugin: String,
        /// As returned; `Unavailable` may be worth a retry.
        failure: Failure,
    },
    /// The plugin returned scores that are none.
    #[error("reward {plugin}: {reason}")]
    Invalid {
        /// Alias.
        plugin: String,
        /// Which score, and what is wrong.
        reason: String,
    },
    /// `limits.scoring_wall` was met.
    #[error("reward {plugin} did not end within limits.scoring_wall = {}", DurationText(*wall))]
    TimedOut {
        /// Alias.
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

/// What every scoring is given.
struct Scoring {
    plugin: Arc<Plugin>,
    alias: String,
    settings: String,
    seed: u64,
    now_ms: u64,
    limits: Limits,
    capabilities: Capabilities,
    cancel: CancelToken,
}

/// What every scoring leaves.
struct Scored<T> {
    result: Result<T, ScoreError>,
    /// Whose it is and how it failed, to be completed where its scores are checked.
    failure: Option<Box<PluginFailure>>,
    host_calls: Vec<HostCall>,
    logs: Vec<LogLine>,
    log_bytes_dropped: u64,
}

impl<T> Scored<T> {
    fn failed(error: ScoreError) -> Scored<T> {
        let (failure, logs) = (None, Vec::new());
        Scored { result: Err(error), failure, host_calls: Vec::new(), logs, log_bytes_dropped: 0 }
    }
}

pub(crate) async fn score(host: &Inner, run: RewardRun) -> ScoreOutcome {
    let RewardRun { plugin, alias, view, settings, seed, now_ms, limits, capabilities, cancel } = run;
    let turns = view.turns.len();
    let scoring = Scoring { plugin, alias, settings, seed, now_ms, limits, capabilities, cancel };
    let scored = match &scoring.plugin.loaded.pre {
        Pre::Reward(pre) => {
            let pre = pre.clone();
            let call = async move |mut store: Store<Guest>, mut views: Vec<scores::RolloutView>| {
                let view = views.pop().expect("one view was given");
                let returned = async {
                    let plugin = pre.instantiate_async(&mut store).await?;
                    plugin.espalier_plugin_reward().call_score_rollout(&mut store, &view).await
                }
                .await;
                (store, returned)
            };
            let scored = run_guest(host, &scoring, vec![view], EXPORT, call).await;
            checked(scored, |list| check_scores(&scoring.alias, list, turns))
        }
        _ => Scored::failed(ScoreError::Trapped(scoring.plugin.not_a(World::Reward))),
    };
    ScoreOutcome {
        result: scored.result,
        failure: scored.failure,
        host_calls: scored.host_calls,
        logs: scored.logs,
        log_bytes_dropped: scored.log_bytes_dropped,
    }
}

pub(crate) async fn score_group(host: &Inner, run: GroupRewardRun) -> GroupScoreOutcome {
    let GroupRewardRun { plugin, alias, views, settings, seed, now_ms, limits, capabilities, cancel } = run;
    let turns: Vec<usize> = views.iter().map(|view| view.turns.len()).collect();
    let scoring = Scoring { plugin, alias, settings, seed, now_ms, limits, capabilities, cancel };
    let scored = match &scoring.plugin.loaded.pre {
        Pre::GroupReward(pre) => {
            let pre = pre.clone();
            let call = async move |mut store: Store<Guest>, views: Vec<scores::RolloutView>| {
                let returned = async {
                    let plugin = pre.instantiate_async(&mut store).await?;
                    plugin.espalier_plugin_group_reward().call_score_group(&mut store, &views).await
                }
                .await;
                (store, returned)
            };
            let scored = run_guest(host, &scoring, views, "group-reward.score-group", call).await;
            checked(scored, |lists| {
                if lists.len() != turns.len() {
                    let reason = format!("scored {} rollouts, the group has {}", lists.len(), turns.len());
                    return Err(ScoreError::Invalid { plugin: scoring.alias.clone(), reason });
                }
                lists
                    .into_iter()
                    .zip(&turns)
                    .map(|(list, turns)| check_scores(&scoring.alias, list, *turns))
                    .collect()
            })
        }
        _ => Scored::failed(ScoreError::Trapped(scoring.plugin.not_a(World::GroupReward))),
    };
    GroupScoreOutcome {
        result: scored.result,
        failure: scored.failure,
        host_calls: scored.host_calls,
        logs: scored.logs,
        log_bytes_dropped: scored.log_bytes_dropped,
    }
}

/// What a scoring export gives back: a trap, or the WIT result.
type Returned<T> = wasmtime::Result<Result<T, base::Failure>>;

async fn run_guest<T, C, F>(
    host: &Inner,
    scoring: &Scoring,
    views: Vec<RolloutView>,
    function: &'static str,
    call: C,
) -> Scored<T>
where
    T: Send + 'static,
    C: FnOnce(Store<Guest>, Vec<scores::RolloutView>) -> F + Send + 'static,
    F: Future<Output = (Store<Guest>, Returned<T>)> + Send + 'static,
{
    let plugin = scoring.alias.clone();
    let wall = scoring.limits.scoring_wall;
    let started = Instant::now();
    let views = match prepare_views(host, scoring, views).await {
        Ok(views) => views,
        Err(error) => return Scored::failed(error),
    };
    let gate = Gate::new(GateSetup {
        io: host.io.clone(),
        meter: Arc::new(Meter::new(scoring.limits.clone())),
        logs: Logs::new(&plugin, scoring.limits.log_bytes),
        cancel: scoring.cancel.clone(),
        wall: Some(wall.saturating_sub(started.elapsed())),
        start_ms: scoring.now_ms,
        frozen: true,
        closed: None,
        record_calls: false,
    });
    let cpu = Arc::clone(&gate.cpu);
    let store = guest::store(
        &host.engine,
        GuestSetup {
            alias: plugin.clone(),
            digest: scoring.plugin.digest().to_owned(),
            gate,
            memory_max: scoring.limits.guest_memory,
            settings: scoring.settings.clone(),
            seed: scoring.seed,
            capabilities: scoring.capabilities.clone(),
        },
    );
    let cancel = scoring.cancel.clone();
    let (places, needed) = (Arc::clone(&host.places), scoring.plugin.loaded.places);
    let task = async move {
        let _place = places.take(needed).await;
        let (mut store, returned) = call(store, views).await;
        let wall_met = store.data().gate.wall_met();
        let mut failure = Box::new(trap::failure(store.data(), function));
        let result = match returned {
            Ok(Ok(value)) => Ok(value),
            _ if cancel.is_cancelled() => {
                failure.class = PluginFailureClass::Stopped;
                Err(ScoreError::Cancelled)
            }
            _ if wall_met => {
                failure.class = PluginFailureClass::Wall;
                Err(ScoreError::TimedOut { plugin, wall })
            }
            Ok(Err(returned)) => {
                let returned = failure_in(returned);
                *failure = trap::returned(store.data(), function, &returned);
                Err(ScoreError::Failed { plugin, failure: returned })
            }
            Err(error) => {
                let report = trap::report(&error, store.data(), function);
                failure = report.failure;
                Err(ScoreError::Trapped(report.text))
            }
        };
        let gate = &mut store.data_mut().gate;
        let (logs, log_bytes_dropped) = gate.logs().take();
        Scored { result, failure: Some(failure), host_calls: gate.take_calls(), logs, log_bytes_dropped }
    };
    host.spawn(cpu, task).await.unwrap_or_else(|error| {
        Scored::failed(ScoreError::Trapped(format!("the plugin host failed: {error}")))
    })
}

/// Cuts long texts out of the views, on the `io` runtime and within `scoring_wall`.
async fn prepare_views(
    host: &Inner,
    scoring: &Scoring,
    views: Vec<RolloutView>,
) -> Result<Vec<scores::RolloutView>, ScoreError> {
    let plugin = scoring.alias.clone();
    let wall = scoring.limits.scoring_wall;
    let blobs = scoring.capabilities.blobs.clone();
    let cancel = scoring.cancel.clone();
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

fn checked<T, U>(scored: Scored<T>, check: impl FnOnce(T) -> Result<U, ScoreError>) -> Scored<U> {
    let result = scored.result.and_then(check);
    let mut failure = scored.failure;
    match (&result, &mut failure) {
        (Ok(_), failure) => *failure = None,
        (Err(ScoreError::Invalid { reason, .. }), Some(failure)) => {
            failure.class = PluginFailureClass::InvalidData;
            failure.message.clone_from(reason);
        }
        (Err(_), _) => {}
    }
    Scored {
        result,
        failure,
        host_calls: scored.host_calls,
        logs: scored.logs,
        log_bytes_dropped: scored.log_bytes_dropped,
    }
}

fn check_scores(plugin: &str, list: Vec<scores::Score>, turns: usize) -> Result<Vec<Score>, ScoreError> {
    let invalid = |reason| ScoreError::Invalid { plugin: plugin.to_owned(), reason };
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
