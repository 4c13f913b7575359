//! Scoring a finished attempt: each reward, with its own retries; a reward that fails makes null, never 0.

use super::again::Scores;
use super::attempt::ScoringResources;
use super::judge::Judged;
use super::record::Shown;
use super::{GroupContext, Loaded, Names, Runner, judge};
use crate::scheduler::AttemptStart;
use espalier_core::attempt::Draft;
use espalier_core::breaker::PluginReport;
use espalier_core::ending::{Ending, StopReason};
use espalier_core::failure::Failure;
use espalier_core::meter::Meter;
use espalier_core::plugin_failure::{self, PluginFailure, PluginFailureClass};
use espalier_core::rollout::RetryPolicy;
use espalier_core::samples::ErrorNote;
use espalier_core::seed::Purpose;
use espalier_core::signal::{RewardConfig, Scored, Signal, Unscored, UnscoredCause, combine, defect};
use espalier_core::trajectory::{LogLine, PluginScore, RolloutView, Score};
use espalier_plugin::{CancelToken, Job, JobClock, REWARD_EXPORT, ScoreError, ScoreOutcome, World};
use futures::future::BoxFuture;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// First and longest delay between two tries at one reward.
const RETRY_DELAY: Duration = Duration::from_millis(200);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(5);
/// The code of the error that a trajectory has of a judge that failed after its rewards.
const JUDGE_FAILURE: &str = "judge-failure";

/// What the calls of rewards left besides scores.
#[derive(Default)]
pub(super) struct Noted {
    pub(super) logs: Vec<LogLine>,
    pub(super) log_bytes_dropped: u64,
    pub(super) plugins: PluginReport,
}

impl Runner {
    /// The rewards of a group that are of this world, each with what the experiment says of it.
    pub(super) fn rewards_of<'a>(
        &'a self,
        group: &'a GroupContext,
        world: World,
    ) -> impl Iterator<Item = (&'a Loaded, &'a RewardConfig)> {
        let rewards = group.rewards.iter().zip(&self.rewards);
        rewards.filter(move |(loaded, _)| loaded.plugin.world() == world)
    }

    /// Runs the rollout's own rewards and puts signal, scores and logs into the draft. Cut by a cancel, the attempt ends as
    /// `cancelled`: a rollout that was never scored to its end runs again when the run is resumed. Where all rewards are of its
    /// group, its own are worth 0 until these are added.
    ///
    /// `given` are scores that stand already.
    pub(super) async fn score(
        &self,
        group: &GroupContext,
        start: &AttemptStart,
        names: &Names,
        draft: &mut Draft,
        resources: &ScoringResources,
        given: &Scores,
    ) {
        let rewards: Vec<(&Loaded, &RewardConfig)> = self.rewards_of(group, World::Reward).collect();
        let turns = turns(draft.transcript().turns_of(&self.policy).count());
        let view = Shown::of_draft(&names.traj_id, draft);
        let view = view.view(group, &self.policy, resources.blobs.as_ref()).await;
        let view = view.map_err(|failure| not_shown(&failure));
        let seed = self.scope(group, start).seed(Purpose::Reward, 0);
        let mut noted = Noted::default();
        let judged = (given, &view, &mut noted, false);
        let judged = Box::pin(self.ask_judges(group, start, names, draft, resources, judged)).await;
        let view = view.map(|view| match judged.is_empty() {
            true => view,
            false => {
                let judges = judge::shown(&judged, &draft.judges);
                RolloutView { extra: Some(json!({ "judges": judges }).to_string()), ..view }
            }
        });
        let mut results: Vec<Result<Vec<Score>, Unscored>> = Vec::with_capacity(rewards.len());
        // What a judge has removed is worth nothing to anybody: no reward is asked.
        let is_removed = judged.iter().any(Judged::removes);
        for (loaded, config) in &rewards {
            if start.cancel.is_cancelled() || is_removed {
                break;
            }
            let result = match (&view, given.by(&loaded.alias)) {
                (Ok(_), Some(given)) => Ok(given.to_vec()),
                (Ok(view), None) => {
                    let call = |again| -> BoxFuture<'_, ScoreOutcome> {
                        resources.now_scored(again);
                        let job = self.scoring_job(group, loaded, seed, draft.ended_ms, &start.cancel);
                        let job = Job { capabilities: resources.capabilities(), ..job };
                        Box::pin(self.host.score(job, view.clone()))
                    };
                    let result = tries(config, &start.cancel, call, &mut noted).await.map_err(Unscored::from);
                    if let Ok(scores) = &result {
                        let problem = defect(config, scores, turns);
                        note_scores(loaded, (plugin_failure::REWARD, REWARD_EXPORT), problem, &mut noted);
                    }
                    result
                }
                (Err(unscored), _) => Err(unscored.clone()),
            };
            results.push(result);
        }
        note(draft, &mut noted);
        if start.cancel.is_cancelled() {
            draft.ending = Ending { stop_reason: StopReason::Cancelled, error: None };
            draft.signal = Signal::default();
            return;
        }
        let judges = judged.iter().map(|judged| Scored {
            config: &judged.config,
            alias: &judged.loaded.alias,
            result: judged.result.as_deref().map_err(Clone::clone),
        });
        let own: Vec<Scored<'_>> = judges.chain(scored(&rewards, &results)).collect();
        draft.signal = combine(&own, turns);
        if own.is_empty() {
            draft.signal.reward = Some(0.0);
        }
        draft.scores = plugin_scores(&own);
        let (judged_before, scores) =
            (judge::shown(&judged, &draft.judges), judge::shown_scores(&draft.scores));
        let Some(reward) = draft.signal.reward else { return };
        let extra = json!({ "judges": judged_before, "reward": reward, "scores": scores }).to_string();
        let view = view.map(|view| RolloutView { extra: Some(extra), ..view });
        Box::pin(self.ask_after(group, start, names, draft, resources, (given, &view))).await;
    }

    /// Asks the judges that are shown what the rewards gave. A reward stands whatever becomes of them.
    async fn ask_after(
        &self,
        group: &GroupContext,
        start: &AttemptStart,
        names: &Names,
        draft: &mut Draft,
        resources: &ScoringResources,
        (given, view): (&Scores, &Result<RolloutView, Unscored>),
    ) {
        let mut noted = Noted::default();
        let told = (given, view, &mut noted, true);
        let judged = Box::pin(self.ask_judges(group, start, names, draft, resources, told)).await;
        for failed in &judged {
            if let Err(unscored) = &failed.result {
                let text = format!("{}: {}", failed.loaded.alias, unscored.text);
                draft.signal.errors.push(ErrorNote { code: JUDGE_FAILURE.to_owned(), text });
            }
        }
        note(draft, &mut noted);
    }

    /// A call of a reward, without capabilities yet.
    pub(super) fn scoring_job(
        &self,
        group: &GroupContext,
        loaded: &Loaded,
        seed: u64,
        now_ms: u64,
        cancel: &CancelToken,
    ) -> Job {
        Job {
            plugin: Arc::clone(&loaded.plugin),
            alias: loaded.alias.clone(),
            settings: loaded.settings.clone(),
            capabilities: espalier_core::host::Capabilities::default(),
            meter: Arc::new(Meter::new(group.limits.clone())),
            wall: group.limits.scoring_wall,
            clock: JobClock::Frozen { now_ms },
            seed,
            record_calls: false,
            cancel: cancel.clone(),
        }
    }
}

/// What calls of plugins left, into the draft.
fn note(draft: &mut Draft, noted: &mut Noted) {
    draft.logs.append(&mut noted.logs);
    draft.log_bytes_dropped += noted.log_bytes_dropped;
    draft.plugins.failures.append(&mut noted.plugins.failures);
    draft.plugins.served.append(&mut noted.plugins.served);
}

/// A reward that was given up.
pub(super) struct GivenUp {
    pub(super) unscored: Unscored,
    /// Whether all its tries were used, each ended by what another might not have met: not by a defect of its own.
    pub(super) out_of_tries: bool,
}

impl From<GivenUp> for Unscored {
    fn from(given_up: GivenUp) -> Unscored {
        given_up.unscored
    }
}

/// Calls a reward until it scores, fails for good, or has no try left. `call` is told whether another try may follow.
pub(super) async fn tries<'a, T>(
    config: &RewardConfig,
    cancel: &CancelToken,
    call: impl Fn(bool) -> BoxFuture<'a, ScoreOutcome<T>> + Send,
    noted: &mut Noted,
) -> Result<T, GivenUp> {
    let policy = RetryPolicy { attempts: config.attempts, delay: RETRY_DELAY, delay_max: RETRY_DELAY_MAX };
    let mut failures = 0;
    loop {
        let outcome = call(failures + 1 < policy.attempts).await;
        noted.logs.extend(outcome.logs);
        noted.log_bytes_dropped += outcome.log_bytes_dropped;
        let error = match outcome.result {
            Ok(scores) => return Ok(scores),
            Err(error) => error,
        };
        failures += 1;
        let is_passing = is_worth_a_retry(&error, outcome.failure.as_deref());
        if !is_passing || failures >= policy.attempts || cancel.is_cancelled() {
            noted.plugins.failures.extend(outcome.failure.map(|failure| *failure));
            let text = format!("{error} (try {failures} of {})", policy.attempts);
            let unscored = Unscored { cause: cause(&error), text };
            return Err(GivenUp { unscored, out_of_tries: is_passing && failures >= policy.attempts });
        }
        tokio::select! {
            () = tokio::time::sleep(policy.backoff(failures, rand::random())) => {}
            () = cancel.cancelled() => {
                let unscored = Unscored { cause: cause(&error), text: "cancelled".to_owned() };
                return Err(GivenUp { unscored, out_of_tries: false });
            }
        }
    }
}

/// Scores of a call that returned: the plugin did its work, or what it gave cannot be used, which is its failure.
pub(super) fn note_scores(
    loaded: &Loaded,
    (world, export): (&str, &str),
    problem: Option<String>,
    noted: &mut Noted,
) {
    let digest = loaded.plugin.digest();
    match problem {
        None => noted.plugins.serve(digest, export),
        Some(message) => noted.plugins.failures.push(PluginFailure {
            world: world.to_owned(),
            plugin: loaded.alias.clone(),
            digest: digest.to_owned(),
            export: export.to_owned(),
            class: PluginFailureClass::InvalidData,
            place: None,
            message,
            excused: false,
        }),
    }
}

/// What rewards would be shown could not be kept.
pub(super) fn not_shown(failure: &Failure) -> Unscored {
    let text = format!("what it is shown cannot be kept: {failure}");
    Unscored { cause: UnscoredCause::Infrastructure, text }
}

pub(super) fn scored<'a>(
    rewards: &[(&'a Loaded, &'a RewardConfig)],
    results: &'a [Result<Vec<Score>, Unscored>],
) -> Vec<Scored<'a>> {
    let all = rewards.iter().zip(results);
    all.map(|((loaded, config), result)| Scored {
        config,
        alias: &loaded.alias,
        result: result.as_deref().map_err(Clone::clone),
    })
    .collect()
}

pub(super) fn plugin_scores(rewards: &[Scored<'_>]) -> Vec<PluginScore> {
    let scores = rewards.iter().flat_map(|reward| {
        let scores = reward.result.as_ref().map_or(&[][..], |scores| *scores);
        scores.iter().map(|score| PluginScore { plugin: reward.alias.to_owned(), score: score.clone() })
    });
    scores.collect()
}

pub(super) fn turns(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn cause(error: &ScoreError) -> UnscoredCause {
    match error {
        ScoreError::TimedOut { .. } => UnscoredCause::Wall,
        ScoreError::Failed { failure: Failure::Unavailable(_), .. } => UnscoredCause::Infrastructure,
        _ => UnscoredCause::Failure,
    }
}

/// A plugin that trapped would trap again, unless something was refused to it before, or the machine could not run it; what it could
/// not reach, or had no time for, it may reach next time.
fn is_worth_a_retry(error: &ScoreError, failure: Option<&PluginFailure>) -> bool {
    let is_passing = |failure: &PluginFailure| {
        failure.class == PluginFailureClass::Host
            || (failure.excused && failure.class == PluginFailureClass::Panic)
    };
    error.is_worth_a_retry()
        || matches!(error, ScoreError::TimedOut { .. } | ScoreError::Failed { .. })
        || (matches!(error, ScoreError::Trapped(_)) && failure.is_some_and(is_passing))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn failure(class: PluginFailureClass, excused: bool) -> Box<PluginFailure> {
        Box::new(PluginFailure {
            world: "judge".to_owned(),
            plugin: "j".to_owned(),
            digest: "d".to_owned(),
            export: "judge.judge-rollout".to_owned(),
            class,
            place: None,
            message: String::new(),
            excused,
        })
    }

    /// How often one that always ends like this is called of three times, and whether it was out of tries.
    async fn given_up(error: ScoreError, failure: Option<Box<PluginFailure>>) -> (u32, bool) {
        let calls = AtomicU32::new(0);
        let config: RewardConfig = serde_json::from_value(json!({ "plugin": "j" })).unwrap();
        assert_eq!(config.attempts, 3);
        let call = |_| -> BoxFuture<'_, ScoreOutcome> {
            calls.fetch_add(1, Ordering::Relaxed);
            let (result, failure) = (Err(error.clone()), failure.clone());
            let (host_calls, logs) = (Vec::new(), Vec::new());
            Box::pin(async move { ScoreOutcome { result, failure, host_calls, logs, log_bytes_dropped: 0 } })
        };
        let result = tries(&config, &CancelToken::new(), call, &mut Noted::default()).await;
        let out_of_tries = result.err().is_some_and(|given_up| given_up.out_of_tries);
        (calls.into_inner(), out_of_tries)
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_pass_is_tried_again_and_a_defect_is_not() {
        use PluginFailureClass::{Cpu, Host, InvalidData, Panic, Returned, Wall};
        let plugin = || "judge j".to_owned();
        let trapped = || ScoreError::Trapped("it trapped".to_owned());
        let away = Failure::Unavailable("no answer".to_owned());
        let failed = |failure| ScoreError::Failed { plugin: plugin(), failure };
        let wall = ScoreError::TimedOut { plugin: plugin(), wall: Duration::from_secs(1) };
        let invalid = ScoreError::Invalid { plugin: plugin(), reason: "NaN".to_owned() };
        for (error, class, excused, expect) in [
            (trapped(), Panic, false, (1, false)),
            (trapped(), Panic, true, (3, true)),
            (trapped(), Host, false, (3, true)),
            (trapped(), Cpu, true, (1, false)),
            (invalid, InvalidData, false, (1, false)),
            (failed(away), Returned, true, (3, true)),
            (failed(Failure::Invalid("no verdict".to_owned())), Returned, false, (3, true)),
            (wall, Wall, false, (3, true)),
        ] {
            let found = given_up(error.clone(), Some(failure(class, excused))).await;
            assert_eq!(found, expect, "{error} as {class:?}, excused: {excused}");
        }
        assert_eq!(given_up(trapped(), None).await, (1, false), "the host itself failed");
    }
}
