//! Scoring a finished attempt: each reward, with its own retries; a reward that fails makes null, never 0.

use super::again::Scores;
use super::record::Draft;
use super::sandboxes::Stage;
use super::{GroupContext, Loaded, Names, Runner, ScoringResources};
use crate::scheduler::AttemptStart;
use espalier_core::ending::{Ending, StopReason};
use espalier_core::failure::Failure;
use espalier_core::host::sandbox::Sandboxes;
use espalier_core::host::{Blobs, Capabilities};
use espalier_core::plugin_failure::{self, PluginFailure, PluginFailureClass};
use espalier_core::rollout::RetryPolicy;
use espalier_core::seed::Purpose;
use espalier_core::signal::{RewardConfig, Scored, Signal, Unscored, UnscoredCause, combine, defect};
use espalier_core::trajectory::{PluginScore, RolloutView, Score, Transcript};
use espalier_plugin::{REWARD_EXPORT, RewardRun, ScoreError};
use std::sync::Arc;
use std::time::Duration;

/// First and longest delay between two tries at one reward.
const RETRY_DELAY: Duration = Duration::from_millis(200);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(5);

impl Runner {
    /// Runs the rewards and puts signal, scores and logs into the draft. Cut by a cancel, the attempt ends as
    /// `cancelled`: a rollout that was never scored to its end runs again when the run is resumed.
    ///
    /// `given` are scores that stand already.
    #[expect(clippy::too_many_arguments, reason = "the rewards see all of the attempt")]
    pub(super) async fn score(
        &self,
        group: &GroupContext,
        start: &AttemptStart,
        names: &Names,
        draft: &mut Draft,
        (transcript, turns): (Transcript, u32),
        resources: &ScoringResources<'_>,
        given: &Scores,
    ) {
        let view = draft.view(group, names, transcript, &self.group_model, resources.blobs.as_ref()).await;
        let mut results: Vec<Result<Vec<Score>, Unscored>> = Vec::with_capacity(group.rewards.len());
        for (loaded, config) in group.rewards.iter().zip(&self.rewards) {
            let result = match &view {
                Ok(_) if given.by(&loaded.alias).is_some() => {
                    Ok(given.by(&loaded.alias).unwrap_or_default().to_vec())
                }
                Ok(view) => self.score_one(group, start, loaded, config, view, draft, resources).await,
                Err(failure) => Err(Unscored {
                    cause: UnscoredCause::Infrastructure,
                    text: format!("what it is shown cannot be kept: {failure}"),
                }),
            };
            results.push(result);
            if start.cancel.is_cancelled() {
                draft.ending = Ending { stop_reason: StopReason::Cancelled, error: None };
                draft.signal = Signal::default();
                return;
            }
        }
        let rewards: Vec<Scored<'_>> = group
            .rewards
            .iter()
            .zip(&self.rewards)
            .zip(&results)
            .map(|((loaded, config), result)| Scored {
                config,
                alias: &loaded.alias,
                result: result.as_deref().map_err(Clone::clone),
            })
            .collect();
        draft.signal = combine(&rewards, turns);
        draft.scores = rewards
            .iter()
            .flat_map(|reward| {
                let scores = reward.result.as_ref().map_or(&[][..], |scores| *scores);
                scores
                    .iter()
                    .map(|score| PluginScore { plugin: reward.alias.to_owned(), score: score.clone() })
            })
            .collect();
    }

    #[expect(clippy::too_many_arguments, reason = "one call of one reward needs all of the attempt")]
    async fn score_one(
        &self,
        group: &GroupContext,
        start: &AttemptStart,
        loaded: &Loaded,
        config: &RewardConfig,
        view: &RolloutView,
        draft: &mut Draft,
        resources: &ScoringResources<'_>,
    ) -> Result<Vec<Score>, Unscored> {
        let policy =
            RetryPolicy { attempts: config.attempts, delay: RETRY_DELAY, delay_max: RETRY_DELAY_MAX };
        let mut failures = 0;
        loop {
            if let Some(provider) = resources.provider {
                provider.now(Stage::Reward { again: failures + 1 < policy.attempts });
            }
            let run = RewardRun {
                plugin: Arc::clone(&loaded.plugin),
                alias: loaded.alias.clone(),
                view: view.clone(),
                settings: loaded.settings.clone(),
                seed: self.scope(group, start).seed(Purpose::Reward, 0),
                now_ms: draft.ended_ms,
                limits: group.limits.clone(),
                capabilities: Capabilities {
                    blobs: Some(Arc::clone(resources.blobs) as Arc<dyn Blobs>),
                    sandboxes: resources.sandboxes.cloned().map(|sandboxes| sandboxes as Arc<dyn Sandboxes>),
                    ..Capabilities::default()
                },
                cancel: start.cancel.clone(),
            };
            let outcome = Box::pin(self.host.score(run)).await;
            draft.logs.extend(outcome.logs);
            draft.log_bytes_dropped += outcome.log_bytes_dropped;
            let error = match outcome.result {
                Ok(scores) => {
                    let digest = loaded.plugin.digest();
                    match defect(config, &scores, turns_of(view)) {
                        None => draft.report_of_plugins.serve(digest, REWARD_EXPORT),
                        Some(message) => draft.report_of_plugins.failures.push(PluginFailure {
                            world: plugin_failure::REWARD.to_owned(),
                            plugin: loaded.alias.clone(),
                            digest: digest.to_owned(),
                            export: REWARD_EXPORT.to_owned(),
                            class: PluginFailureClass::InvalidData,
                            place: None,
                            message,
                            excused: false,
                        }),
                    }
                    return Ok(scores);
                }
                Err(error) => error,
            };
            failures += 1;
            let again = is_worth_a_retry(&error) && failures < policy.attempts;
            if !again || start.cancel.is_cancelled() {
                draft.report_of_plugins.failures.extend(outcome.failure.map(|failure| *failure));
                let text = format!("{error} (try {failures} of {})", policy.attempts);
                return Err(Unscored { cause: cause(&error), text });
            }
            tokio::select! {
                () = tokio::time::sleep(policy.backoff(failures, rand::random())) => {}
                () = start.cancel.cancelled() => {
                    return Err(Unscored { cause: cause(&error), text: "cancelled".to_owned() });
                }
            }
        }
    }
}

fn turns_of(view: &RolloutView) -> u32 {
    u32::try_from(view.turns.len()).unwrap_or(u32::MAX)
}

fn cause(error: &ScoreError) -> UnscoredCause {
    match error {
        ScoreError::TimedOut { .. } => UnscoredCause::Wall,
        ScoreError::Failed { failure: Failure::Unavailable(_), .. } => UnscoredCause::Infrastructure,
        _ => UnscoredCause::Failure,
    }
}

/// A plugin that trapped would trap again; what it could not reach, or had no time for, it may reach next time.
fn is_worth_a_retry(error: &ScoreError) -> bool {
    error.is_worth_a_retry() || matches!(error, ScoreError::TimedOut { .. } | ScoreError::Failed { .. })
}
