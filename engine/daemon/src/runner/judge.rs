//! Asking the judges of a rollout, before its rewards, which see what they gave. A judge that fails makes null, never 0.

use super::again::Scores;
use super::attempt::ScoringResources;
use super::score::{Noted, note_scores, tries};
use super::{GroupContext, Loaded, Names, Runner};
use crate::scheduler::AttemptStart;
use espalier_core::attempt::{Draft, Owner};
use espalier_core::host::{Capabilities, Models};
use espalier_core::judge::{JudgeConfig, JudgeGrant, JudgeRecord, JudgeSamples, Judgement, MODEL};
use espalier_core::ledger::Trainability;
use espalier_core::limits::Limits;
use espalier_core::meter::Meter;
use espalier_core::plugin_failure;
use espalier_core::samples::Call;
use espalier_core::seed::Purpose;
use espalier_core::signal::{RewardConfig, Unscored, defect};
use espalier_core::task::TaskId;
use espalier_core::trajectory::{ModelOutput, RolloutView, Score};
use espalier_inference::models::{RolloutContext, RolloutModels};
use espalier_plugin::{JUDGE_EXPORT, Job, ScoreOutcome};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What one judge came to, as a reward.
pub(super) struct Judged<'a> {
    pub(super) loaded: &'a Loaded,
    pub(super) config: RewardConfig,
    pub(super) result: Result<Vec<Score>, Unscored>,
}

impl Runner {
    /// Asks each judge, with its own retries, under its own limits. What they sampled stands in the draft. Cut by a cancel, those
    /// that were not asked are left out.
    pub(super) async fn ask_judges<'a>(
        &'a self,
        group: &'a GroupContext,
        start: &AttemptStart,
        names: &Names,
        draft: &mut Draft,
        resources: &ScoringResources,
        (given, view, noted): (&Scores, &Result<RolloutView, Unscored>, &mut Noted),
    ) -> Vec<Judged<'a>> {
        let mut judged = Vec::with_capacity(group.judges.len());
        for (place, (loaded, config)) in group.judges.iter().zip(&self.judges).enumerate() {
            if start.cancel.is_cancelled() {
                break;
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
            let tried = Mutex::new(0u32);
            let call = |again| -> BoxFuture<'_, ScoreOutcome<Judgement>> {
                resources.now_scored(again);
                let attempt = std::mem::replace(&mut *tried.lock(), 0);
                *tried.lock() = attempt + 1;
                let models = self.judge_models(group, start, names, (place, attempt), config);
                let job = self.judge_job(group, start, loaded, config, draft.ended_ms);
                let sandboxes = resources.capabilities().sandboxes;
                let granted = sandboxes.filter(|_| config.grants.contains(&JudgeGrant::Sandbox));
                let capabilities = Capabilities {
                    models: Some(Arc::clone(&models) as Arc<dyn Models>),
                    sandboxes: granted,
                    ..Capabilities { blobs: resources.capabilities().blobs, ..Capabilities::default() }
                };
                let job = Job { capabilities, ..job };
                let view = config.narrow(view.clone());
                let asked = &asked;
                Box::pin(async move {
                    let outcome = self.host.judge(job, view, turns).await;
                    asked.note(models.output(Trainability::Trainable));
                    outcome
                })
            };
            let policy = self.reward_policy(config);
            let result = tries(&policy, &start.cancel, call, noted).await;
            let asked = asked.0.into_inner();
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
        config: &JudgeConfig,
        ended_ms: u64,
    ) -> Job {
        let seed = self.scope(group, start).seed(Purpose::Reward, 0);
        let job = self.scoring_job(group, loaded, seed, ended_ms, &start.cancel);
        let wall = config.limits.wall.map_or(job.wall, |wall| wall.0.min(job.wall));
        Job { meter: Arc::new(Meter::new(limits(&group.limits, config))), wall, ..job }
    }

    /// The one model of a judge, under the name by which every judge opens it and under its own.
    fn judge_models(
        &self,
        group: &GroupContext,
        start: &AttemptStart,
        names: &Names,
        (place, tried): (usize, u32),
        config: &JudgeConfig,
    ) -> Arc<RolloutModels> {
        let model = self.models.get(&config.model);
        let named = [MODEL, &config.model].map(str::to_owned);
        let models: BTreeMap<_, _> =
            named.into_iter().filter_map(|name| Some((name, Arc::clone(model?)))).collect();
        let (run_seed, repeat) = (self.seed, group.repeat);
        let (task, rollout_index) = (Arc::clone(&group.task), start.rollout.rollout_index);
        let judge = u32::try_from(place).unwrap_or(u32::MAX);
        let seed = move |n| {
            let (task, task_seed): (&TaskId, _) = (&task.id, task.seed);
            let scope = espalier_core::seed::SeedScope { run_seed, task, task_seed, repeat, rollout_index };
            scope.seed(Purpose::Judge { judge, tried }, n)
        };
        let owner = format!("{}.judge{place}.{tried}", names.traj_id);
        let context = RolloutContext {
            policy: config.model.clone(),
            owner: Owner::Attempt(owner.clone()),
            session_id: owner.into(),
            meter: Arc::new(Meter::new(limits(&group.limits, config))),
            seed: Box::new(seed),
            sent: None,
            edges: None,
        };
        Arc::new(RolloutModels::new(Arc::new(models), context))
    }
}

/// What the tries of one judge sampled.
#[derive(Default)]
struct Asked(Mutex<Sampled>);

#[derive(Default)]
struct Sampled {
    /// Of all tries.
    calls: Vec<Call>,
    /// Of the last one.
    last: ModelOutput,
}

impl Asked {
    fn note(&self, output: ModelOutput) {
        let mut sampled = self.0.lock();
        sampled.calls.extend(output.calls.iter().cloned());
        sampled.last = output;
    }
}

/// Limits of one call of a judge: those of a rollout, but for what is counted of its model.
fn limits(rollout: &Limits, config: &JudgeConfig) -> Limits {
    Limits {
        turns: config.limits.calls,
        tokens: None,
        sampled_tokens: config.limits.sampled_tokens,
        turn_wall: None,
        ..rollout.clone()
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
        let scores = judged.result.as_deref().unwrap_or_default().iter().map(|score| {
            let Score { name, value, turn, reason, extra } = score;
            json!({ "name": name, "value": value, "turn": turn, "reason": reason, "extra": parsed(extra.as_deref()) })
        });
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

fn parsed(json: Option<&str>) -> Value {
    json.and_then(|json| serde_json::from_str(json).ok()).unwrap_or(Value::Null)
}
