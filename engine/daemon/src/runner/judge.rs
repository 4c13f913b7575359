//! Asking the judges of a rollout: before its rewards, which see what they gave, or after them. A judge that fails makes null, never 0; one
//! that is asked after the rewards changes none.

use super::again::Scores;
use super::asking::{Asked, Asker};
use super::attempt::ScoringResources;
use super::score::{GivenUp, Noted, note_scores, tries};
use super::{GroupContext, Loaded, Names, Runner};
use crate::scheduler::AttemptStart;
use espalier_core::attempt::Draft;
use espalier_core::host::{Blobs, Capabilities, Models};
use espalier_core::judge::{JudgeConfig, JudgeGrant, JudgeRecord, JudgeSamples, Judgement, OnFailure, Vote};
use espalier_core::ledger::Trainability;
use espalier_core::plugin_failure;
use espalier_core::seed::Purpose;
use espalier_core::signal::{RewardConfig, Unscored, UnscoredCause, defect, removal};
use espalier_core::trajectory::{PluginScore, RolloutView, Score};
use espalier_plugin::{JUDGE_EXPORT, Job, ScoreError, ScoreOutcome};
use futures::future::BoxFuture;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// What one judge came to, as a reward.
pub(super) struct Judged<'a> {
    pub(super) loaded: &'a Loaded,
    pub(super) config: RewardConfig,
    pub(super) result: Result<Vec<Score>, Unscored>,
}

impl Judged<'_> {
    /// Whether it takes the sample out: by its own word, or because it failed and the experiment says so.
    pub(super) fn removes(&self) -> bool {
        match &self.result {
            Ok(scores) => matches!(removal(scores), Ok(Some(_))),
            Err(unscored) => unscored.cause == UnscoredCause::Removed,
        }
    }
}

impl Runner {
    /// Asks each judge that is asked after the rewards, or each that is not, with its own retries, under its own limits. What they sampled
    /// stands in the draft. Cut by a cancel, those that were not asked are left out.
    pub(super) async fn ask_judges<'a>(
        &'a self,
        group: &'a GroupContext,
        start: &AttemptStart,
        names: &Names,
        draft: &mut Draft,
        resources: &ScoringResources,
        (given, view, noted, after_rewards): (&Scores, &Result<RolloutView, Unscored>, &mut Noted, bool),
    ) -> Vec<Judged<'a>> {
        let mut judged = Vec::with_capacity(group.judges.len());
        for (place, (loaded, config)) in group.judges.iter().zip(&self.judges).enumerate() {
            if start.cancel.is_cancelled() {
                break;
            }
            if config.after_rewards != after_rewards {
                continue;
            }
            let view = match (view, given.judgement(&loaded.alias)) {
                (Ok(_), Some(judgement)) => {
                    let (config, scores) = config.as_reward(&judgement);
                    judged.push(Judged { loaded, config, result: Ok(scores) });
                    continue;
                }
                (Ok(view), None) => view,
                (Err(unscored), _) => {
                    let (config, _) = config.as_reward(&Judgement::default());
                    judged.push(Judged { loaded, config, result: Err(unscored.clone()) });
                    continue;
                }
            };
            let turns = view.turns.len() as u32;
            let asked = Asked::default();
            let blobs = Arc::clone(&resources.blobs) as Arc<dyn Blobs>;
            let asker = Asker {
                model: &config.model,
                limits: config.limits,
                rollout_index: start.rollout.rollout_index,
                place: u32::try_from(place).unwrap_or(u32::MAX),
                owner: format!("{}.judge{place}", names.traj_id),
                blobs: Arc::clone(&blobs),
            };
            let tried = AtomicU32::new(asker.next_try(given.call_ids()));
            let call = |again| -> BoxFuture<'_, ScoreOutcome<Judgement>> {
                resources.now_scored(again);
                let models = self.asked_models(group, &asker, tried.fetch_add(1, Ordering::Relaxed));
                let job = self.judge_job(group, start, loaded, &asker, draft.ended_ms);
                let sandboxes = resources.capabilities().sandboxes;
                let capabilities = Capabilities {
                    models: Some(Arc::clone(&models) as Arc<dyn Models>),
                    sandboxes: sandboxes.filter(|_| config.grants.contains(&JudgeGrant::Sandbox)),
                    blobs: Some(Arc::clone(&blobs)),
                    ..Capabilities::default()
                };
                let job = Job { capabilities, ..job };
                let view = config.narrow(view.clone());
                let asked = &asked;
                Box::pin(async move {
                    let title = format!("judge {}", job.alias);
                    let outcome = self.host.judge(job, view, turns).await;
                    let output = models.output(Trainability::Trainable);
                    let answers = output.transcript.turns.len();
                    asked.note(output);
                    outcome.checked(|judgement| own_calls(&title, judgement, answers))
                })
            };
            let policy = self.reward_policy(config);
            let result = tries(&policy, &start.cancel, call, noted).await;
            let result = result.map_err(|GivenUp { mut unscored, out_of_tries }| {
                if out_of_tries && config.on_failure == OnFailure::Remove {
                    unscored.cause = UnscoredCause::Removed;
                }
                unscored
            });
            let asked = asked.into_inner();
            draft.judge_calls.extend(asked.calls);
            let transcript = asked.last.transcript.clone();
            let sampled = Some(JudgeSamples {
                lambda: config.votes,
                calls: asked.last.calls,
                segments: asked.last.segments,
                excluded: asked.last.excluded,
            });
            let votes = result.as_ref().map(|judgement| judgement.votes.clone()).unwrap_or_default();
            let sampled = sampled.filter(|_| config.trained && result.is_ok());
            let (judge, model) = (loaded.alias.clone(), config.model.clone());
            draft.judges.push(JudgeRecord { judge, model, votes, transcript, sampled });
            let (config, result) = match result {
                Ok(judgement) => {
                    let (config, scores) = config.as_reward(&judgement);
                    let problem = defect(&config, &scores, turns);
                    note_scores(loaded, (plugin_failure::JUDGE, JUDGE_EXPORT), problem, noted);
                    (config, Ok(scores))
                }
                Err(unscored) => (policy, Err(unscored)),
            };
            judged.push(Judged { loaded, config, result });
        }
        judged
    }

    /// How a judge is tried, as a reward is.
    fn reward_policy(&self, config: &JudgeConfig) -> RewardConfig {
        let (reward, _) = config.as_reward(&Judgement::default());
        reward
    }

    fn judge_job(
        &self,
        group: &GroupContext,
        start: &AttemptStart,
        loaded: &Loaded,
        asker: &Asker<'_>,
        ended_ms: u64,
    ) -> Job {
        let seed = self.scope(group, start).seed(Purpose::Reward, 0);
        asker.bound(group, self.scoring_job(group, loaded, seed, ended_ms, &start.cancel))
    }
}

/// A vote is read from an answer that this try of the judge was given, if it names one.
fn own_calls(title: &str, judgement: Judgement, answers: usize) -> Result<Judgement, ScoreError> {
    let foreign = |vote: &&Vote| vote.call.is_some_and(|call| call as usize >= answers);
    match judgement.votes.iter().enumerate().find(|(_, vote)| foreign(vote)) {
        None => Ok(judgement),
        Some((place, vote)) => Err(ScoreError::Invalid {
            plugin: title.to_owned(),
            reason: format!(
                "invalid data: vote {place} names call {} of the judge, which made {answers}; expected `call` of a completion",
                vote.call.unwrap_or_default()
            ),
        }),
    }
}

/// What the judges gave, for the rewards behind them: `judges` of [`RolloutView::extra`].
pub(super) fn shown(judged: &[Judged<'_>], records: &[JudgeRecord]) -> Value {
    let one = |judged: &Judged<'_>| {
        let alias = &judged.loaded.alias;
        let record = records.iter().find(|record| record.judge == *alias);
        let votes = record.map(|record| record.votes.as_slice()).unwrap_or_default();
        let votes = votes.iter().map(|vote| {
            json!({ "turn": vote.turn, "value": vote.value, "text": vote.text, "extra": parsed(vote.extra.as_deref()) })
        });
        let scores = judged.result.as_deref().unwrap_or_default().iter().map(score_json);
        let failed = judged.result.as_ref().err().map(|unscored| &unscored.text);
        json!({
            "name": alias,
            "scores": scores.collect::<Vec<_>>(),
            "votes": votes.collect::<Vec<_>>(),
            "failed": failed,
        })
    };
    judged.iter().map(one).collect()
}

/// What the rewards gave, for the judges behind them: `scores` of [`RolloutView::extra`].
pub(super) fn shown_scores(scores: &[PluginScore]) -> Value {
    let one = |given: &PluginScore| {
        let mut shown = score_json(&given.score);
        shown["plugin"] = given.plugin.as_str().into();
        shown
    };
    scores.iter().map(one).collect()
}

fn score_json(score: &Score) -> Value {
    let Score { name, value, turn, reason, extra } = score;
    json!({ "name": name, "value": value, "turn": turn, "reason": reason, "extra": parsed(extra.as_deref()) })
}

fn parsed(json: Option<&str>) -> Value {
    json.and_then(|json| serde_json::from_str(json).ok()).unwrap_or(Value::Null)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vote_names_no_answer_but_those_of_its_try() {
        let vote = |call| Vote { turn: None, value: Some(1.0), text: String::new(), call, extra: None };
        let of = |call| Judgement { scores: Vec::new(), votes: vec![vote(None), vote(call)] };
        for (call, answers, fits) in
            [(None, 0, true), (Some(0), 1, true), (Some(1), 1, false), (Some(0), 0, false)]
        {
            let checked = own_calls("judge j", of(call), answers);
            assert_eq!(checked.is_ok(), fits, "{call:?} of {answers}");
        }
        let error = own_calls("judge j", of(Some(7)), 2).unwrap_err().to_string();
        assert!(error.contains("vote 1 names call 7 of the judge, which made 2"), "{error}");
    }
}
