//! Rewards of a group: each sees the rollouts that count together, from their records, before the group closes.

use super::asking::{Asked, Asker, Sampled};
use super::changes::CHANGES;
use super::record::Shown;
use super::score::{Noted, not_shown, note_scores, plugin_scores, tries, turns};
use super::{GroupContext, Loaded, Runner, now_ms};
use crate::scheduler::{GroupScored, Written};
use async_trait::async_trait;
use espalier_core::failure::Failure;
use espalier_core::group::GroupReward;
use espalier_core::host::sandbox::{Sandbox, Sandboxes};
use espalier_core::host::{Blobs, Capabilities, Models};
use espalier_core::judge::JudgeRecord;
use espalier_core::ledger::{self, Trainability};
use espalier_core::meter::Meter;
use espalier_core::plugin_failure;
use espalier_core::samples::Trajectory;
use espalier_core::seed::{Purpose, SeedScope};
use espalier_core::signal::{RewardConfig, Scored, Signal, Unscored, add, defect};
use espalier_core::trajectory::{AttemptRecord, PluginScore, RolloutView, Score};
use espalier_plugin::{CancelToken, GROUP_REWARD_EXPORT, Job, ScoreOutcome, World};
use espalier_store::{AttemptEnd, AttemptRow, AttemptState, Finality, IssuedBlob, StoreError, ids};
use futures::future::BoxFuture;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// What one reward of the group gave: a list of scores for each rollout, or why there are none.
type RewardResult<'a> = (&'a Loaded, &'a RewardConfig, Result<Vec<Vec<Score>>, Unscored>);

/// A rollout of the group, from the store.
struct Stored {
    row: AttemptRow,
    record: AttemptRecord,
    issued: Vec<IssuedBlob>,
}

impl Runner {
    /// Whether a reward of this group sees its rollouts together.
    pub(crate) fn scores_together(&self, group: &GroupContext) -> bool {
        self.rewards_of(group, World::GroupReward).next().is_some()
    }

    /// Lets the rewards of the group see these rollouts, and puts their scores into the records. Bounded by `limits.scoring_wall`
    /// for each try of each reward. `None`: it was cancelled.
    pub(crate) async fn score_group(
        &self,
        group: &GroupContext,
        rollouts: &[u32],
        cancel: &CancelToken,
    ) -> Result<Option<GroupScored<Vec<AttemptEnd>>>, StoreError> {
        let began = Instant::now();
        let mut stored = self.stored(group, rollouts).await?;
        let issued = stored.iter().flat_map(|one| one.issued.clone()).collect();
        let blobs = self.run.rollout_blobs_of(Arc::new(Meter::new(group.limits.clone())), issued);
        let sandboxes = self.group_sandboxes(group, Arc::clone(&blobs));
        let sandboxes = sandboxes.map(|sandboxes| Arc::new(FreshOnly(sandboxes)) as Arc<dyn Sandboxes>);
        let mut views = Ok(Vec::with_capacity(stored.len()));
        for one in &stored {
            let view = Shown::of_record(&one.record).view(group, &self.policy, blobs.as_ref()).await;
            views = views.and_then(|mut views: Vec<RolloutView>| {
                views.push(RolloutView { extra: Some(own_scores(&one.record)), ..view? });
                Ok(views)
            });
        }
        let turns: Vec<u32> = stored.iter().map(|one| self.turns_of(&one.record)).collect();
        let now_ms = stored.iter().filter_map(|one| one.row.ended_ms).max().unwrap_or_else(now_ms);
        // Seeds of rewards are the same for all rollouts of a group.
        let scope = SeedScope {
            run_seed: self.seed,
            task: &group.task.id,
            task_seed: group.task.seed,
            repeat: group.repeat,
            rollout_index: 0,
        };
        let seed = scope.seed(Purpose::Reward, 0);
        let mut noted = Noted::default();
        let mut results: Vec<RewardResult<'_>> = Vec::new();
        for (place, (loaded, config)) in self.rewards_of(group, World::GroupReward).enumerate() {
            let asker = config.asks.as_ref().map(|asks| Asker {
                model: &asks.model,
                limits: asks.limits,
                rollout_index: 0,
                place: u32::try_from(self.judges.len() + place).unwrap_or(u32::MAX),
                owner: format!("{}.reward{place}", ids::group_id(self.run.run_id(), group.group_index)),
                blobs: Arc::clone(&blobs) as Arc<dyn Blobs>,
            });
            let calls = stored.iter().flat_map(|one| &one.record.trajectory.other_calls);
            let call_ids = calls.map(|call| call.call_id.as_str());
            let tried = AtomicU32::new(asker.as_ref().map_or(0, |asker| asker.next_try(call_ids)));
            let asked = Asked::default();
            let result = match &views {
                Ok(views) => {
                    let call = |_| -> BoxFuture<'_, ScoreOutcome<Vec<Vec<Score>>>> {
                        let tried = tried.fetch_add(1, Ordering::Relaxed);
                        let models = asker.as_ref().map(|asker| self.asked_models(group, asker, tried));
                        let job = self.scoring_job(group, loaded, seed, now_ms, cancel);
                        let job = asker.as_ref().map_or(job.clone(), |asker| asker.bound(group, job));
                        let capabilities = Capabilities {
                            blobs: Some(Arc::clone(&blobs) as Arc<dyn Blobs>),
                            sandboxes: sandboxes.clone().filter(|_| config.sees_changes),
                            models: models.clone().map(|models| models as Arc<dyn Models>),
                            ..Capabilities::default()
                        };
                        let job = Job { capabilities, ..job };
                        let (views, asked) = (granted(views, config), &asked);
                        Box::pin(async move {
                            let outcome = self.host.score_group(job, views).await;
                            if let Some(models) = models {
                                asked.note(models.output(Trainability::NotTrainable));
                            }
                            outcome
                        })
                    };
                    tries(config, cancel, call, &mut noted).await.map_err(Unscored::from)
                }
                Err(failure) => Err(not_shown(failure)),
            };
            if let (Some(asks), Some(first)) = (&config.asks, stored.first_mut()) {
                keep_asked(&mut first.record, &loaded.alias, &asks.model, asked.into_inner());
            }
            if cancel.is_cancelled() {
                return Ok(None);
            }
            if let Ok(lists) = &result {
                let mut problems = lists.iter().zip(&turns).map(|(list, turns)| defect(config, list, *turns));
                note_scores(
                    loaded,
                    (plugin_failure::REWARD, GROUP_REWARD_EXPORT),
                    problems.find_map(|problem| problem),
                    &mut noted,
                );
            }
            results.push((loaded, config, result));
        }
        let score_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let (mut rewards, mut written) = (BTreeMap::new(), Written::default());
        for (place, (one, turns)) in stored.iter_mut().zip(turns).enumerate() {
            let record = &mut one.record;
            written.before += record.trajectory.token_sums();
            add_scores(record, &of_rollout(&results, place), turns);
            written.tokens += record.trajectory.token_sums();
            record.trajectory.timing_ms.score += score_ms;
            // With each of them, so that it is scored again when the plugin is repaired.
            record.failures.extend(noted.plugins.failures.iter().cloned());
            let Trajectory { rollout_index, reward, removed, .. } = &record.trajectory;
            rewards.insert(*rollout_index, GroupReward { reward: *reward, removed: removed.is_some() });
        }
        // A log of the group is told once, with the first of its rollouts.
        if let Some(first) = stored.first_mut() {
            first.record.logs.append(&mut noted.logs);
            first.record.log_bytes_dropped += noted.log_bytes_dropped;
        }
        let scores = stored.into_iter().map(|one| AttemptEnd {
            ended_ms: one.row.ended_ms.unwrap_or(now_ms),
            record: one.record,
            finality: Finality::Final,
            blobs: one.issued,
        });
        Ok(Some(GroupScored { rewards, written, plugins: noted.plugins, scores: scores.collect() }))
    }

    /// The results of these rollouts, ascending.
    async fn stored(&self, group: &GroupContext, rollouts: &[u32]) -> Result<Vec<Stored>, StoreError> {
        let store = self.run.store();
        let mut stored = Vec::with_capacity(rollouts.len());
        for row in store.attempts(self.run.run_id(), group.group_index).await? {
            let is_result = matches!(row.state, AttemptState::Final(_));
            if !is_result || !rollouts.contains(&row.rollout_index) {
                continue;
            }
            let record = store.record(&row).await?.ok_or_else(|| {
                StoreError::Invalid(format!("{} is a result without a record", row.traj_id))
            })?;
            let issued = store.issued_blobs(&row.traj_id).await?;
            stored.push(Stored { row, record, issued });
        }
        stored.sort_by_key(|one| one.row.rollout_index);
        Ok(stored)
    }

    fn turns_of(&self, record: &AttemptRecord) -> u32 {
        turns(record.transcript.turns_of(&self.policy).count())
    }
}

/// What a rollout's own rewards and judges said, for those of its group: `{"reward": 0.5, "scores": [{"plugin", "name", "value",
/// "turn"}], "judges": [{"name", "votes": [{"turn", "value", "text"}]}]}`.
fn own_scores(record: &AttemptRecord) -> String {
    let scores = record.scores.iter().map(|PluginScore { plugin, score }| {
        json!({ "plugin": plugin, "name": score.name, "value": score.value, "turn": score.turn })
    });
    let judges = record.judges.iter().map(|judge| {
        let votes = judge
            .votes
            .iter()
            .map(|vote| json!({ "turn": vote.turn, "value": vote.value, "text": vote.text }));
        json!({ "name": judge.judge, "votes": votes.collect::<Vec<_>>() })
    });
    let judges: Vec<_> = judges.collect();
    let mut own = json!({ "reward": record.trajectory.reward, "scores": scores.collect::<Vec<_>>() });
    if !judges.is_empty() {
        own["judges"] = judges.into();
    }
    own.to_string()
}

/// What was asked about the whole group, kept with the first of its rollouts.
fn keep_asked(record: &mut AttemptRecord, alias: &str, model: &str, asked: Sampled) {
    record.trajectory.other_calls.extend(asked.calls);
    record.judges.retain(|before| before.judge != alias);
    record.judges.push(JudgeRecord {
        judge: alias.to_owned(),
        model: model.to_owned(),
        votes: Vec::new(),
        transcript: asked.last.transcript,
        sampled: None,
    });
}

/// The views without what only a grant shows.
fn granted(views: &[RolloutView], config: &RewardConfig) -> Vec<RolloutView> {
    let mut views = views.to_vec();
    if !config.sees_changes {
        for view in &mut views {
            view.blobs.retain(|(name, _)| !name.starts_with(CHANGES));
        }
    }
    views
}

/// The sandboxes of a group's reward: those of its rollouts are gone.
struct FreshOnly(Arc<dyn Sandboxes>);

#[async_trait]
impl Sandboxes for FreshOnly {
    async fn open(&self, name: &str) -> Result<Arc<dyn Sandbox>, Failure> {
        Err(Failure::Invalid(format!(
            "sandbox `{name}`: the sandboxes of the rollouts are gone when their group is scored; open a fresh one and \
             apply the blob `changes:{name}` of a rollout to it"
        )))
    }

    async fn open_fresh(&self, name: &str) -> Result<Arc<dyn Sandbox>, Failure> {
        self.0.open_fresh(name).await
    }
}

/// The part of each result that is about one rollout.
fn of_rollout<'a>(results: &'a [RewardResult<'_>], place: usize) -> Vec<Scored<'a>> {
    let part = |(loaded, config, result): &'a RewardResult<'_>| Scored {
        config,
        alias: &loaded.alias,
        result: match result {
            Ok(lists) => Ok(&lists[place]),
            Err(unscored) => Err(unscored.clone()),
        },
    };
    results.iter().map(part).collect()
}

/// Adds the scores of the group's rewards behind those of the rollout's own.
fn add_scores(record: &mut AttemptRecord, rewards: &[Scored<'_>], turns: u32) {
    let trajectory = &mut record.trajectory;
    let mut signal = Signal {
        reward: trajectory.reward,
        reward_parts: std::mem::take(&mut trajectory.reward_parts),
        turn_rewards: trajectory.turn_rewards.take(),
        removed: trajectory.removed.take(),
        errors: std::mem::take(&mut trajectory.errors),
    };
    add(&mut signal, rewards, turns);
    let Signal { reward, reward_parts, turn_rewards, removed, errors } = signal;
    trajectory.reward = reward;
    trajectory.reward_parts = reward_parts;
    trajectory.turn_rewards = turn_rewards;
    trajectory.errors = errors;
    if let Some(why) = removed {
        ledger::remove(trajectory, &why);
        record.withheld = false;
    } else if reward.is_none() && trajectory.trainable && !record.withheld {
        ledger::withhold(trajectory, ledger::reason::NOT_TRAINABLE);
        record.withheld = true;
    }
    record.scores.extend(plugin_scores(rewards));
}
