//! Scoring a result again that only a reward has left without one: no sampling, no second count of its tokens.

use super::{Finished, GroupContext, Loaded, Runner, now_ms};
use crate::scheduler::AttemptStart;
use espalier_core::attempt::Draft;
use espalier_core::ending::{Ending, StopReason};
use espalier_core::judge::Judgement;
use espalier_core::ledger;
use espalier_core::rollout::AttemptOutcome;
use espalier_core::signal::UnscoredCause;
use espalier_core::trajectory::{AttemptRecord, LogLine, LogSource, PluginScore, Score};
use espalier_sandbox::rollout::Provider;
use espalier_store::StoreError;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// What rewards and judges gave before.
#[derive(Debug, Default)]
pub(super) struct Scores {
    /// By alias.
    scores: BTreeMap<String, Vec<Score>>,
    /// Calls of judges.
    call_ids: Vec<String>,
}

impl Scores {
    pub(super) fn by(&self, alias: &str) -> Option<&[Score]> {
        self.scores.get(alias).map(Vec::as_slice)
    }

    pub(super) fn call_ids(&self) -> impl Iterator<Item = &str> {
        self.call_ids.iter().map(String::as_str)
    }

    /// What a judge gave: its votes stand among its scores already.
    pub(super) fn judgement(&self, alias: &str) -> Option<Judgement> {
        self.by(alias).map(|scores| Judgement { scores: scores.to_vec(), votes: Vec::new() })
    }

    /// Those that stand: of a component that has not changed, that did not fail, and that has its alias for itself.
    fn of(record: &AttemptRecord, group: &GroupContext) -> Scores {
        let stands = |alias: &str, digest: &str| {
            let same = record.trajectory.plugins.get(alias).is_some_and(|before| before == digest);
            let failed = record.failures.iter().any(|failure| failure.plugin == alias);
            let own = scorers(group).filter(|scorer| scorer.alias == alias).count() == 1;
            same && own && !failed
        };
        let mut scores: BTreeMap<String, Vec<Score>> = BTreeMap::new();
        for PluginScore { plugin, score } in &record.scores {
            let loaded = scorers(group).find(|scorer| scorer.alias == *plugin);
            if loaded.is_some_and(|loaded| stands(plugin, loaded.plugin.digest())) {
                scores.entry(plugin.clone()).or_default().push(score.clone());
            }
        }
        let calls = record.trajectory.other_calls.iter();
        Scores { scores, call_ids: calls.map(|call| call.call_id.clone()).collect() }
    }
}

/// Whoever scores its rollouts.
fn scorers(group: &GroupContext) -> impl Iterator<Item = &Loaded> {
    group.judges.iter().chain(&group.rewards)
}

/// What scoring a result again came to.
pub(crate) enum ScoredAgain {
    /// Its record is to take the place of the one before.
    Done(Box<Finished>),
    /// A reward needs a sandbox that is gone: the rollout is sampled again.
    NeedsSampling,
    /// It was cut, or the record cannot be read: it stays as it was.
    AsItWas(StopReason),
}

impl Runner {
    /// Scores the result of `start` again, with the group's rewards as they are now. Bounded by `limits.scoring_wall` for each
    /// try of each reward.
    pub(crate) async fn score_again(
        &self,
        group: &GroupContext,
        start: &AttemptStart,
    ) -> Result<ScoredAgain, StoreError> {
        let began = Instant::now();
        let names = self.names(group, start);
        let row = self.run.store().attempt(&names.traj_id).await?;
        let Some(mut record) = self.run.store().record(&row).await? else {
            return Ok(ScoredAgain::NeedsSampling);
        };
        let before = record.trajectory.token_sums();
        let issued = self.run.store().issued_blobs(&names.traj_id).await?;
        let gone: BTreeSet<String> =
            record.sandboxes.iter().filter(|one| !one.fresh).map(|one| one.name.clone()).collect();
        let level = record.sandboxes.iter().map(|one| one.level).max().unwrap_or(0);
        let resources = self.link_again(group, &names, issued, (level, gone));
        let stop_reason = record.trajectory.stop_reason;
        let ended_ms = row.ended_ms.unwrap_or_else(now_ms);
        let mut draft = Draft::empty(Ending { stop_reason, error: None }, ended_ms);
        draft.report.clone_from(&record.report);
        draft.steps.clone_from(&record.steps);
        draft.blobs.clone_from(&record.blobs);
        draft.output.transcript.clone_from(&record.transcript);
        let given = Scores::of(&record, group);
        self.score(group, start, &names, &mut draft, &resources, &given).await;
        if start.cancel.is_cancelled() {
            return Ok(ScoredAgain::AsItWas(StopReason::Cancelled));
        }
        let provider = resources.sandboxes.as_ref().map(|sandboxes| &sandboxes.provider);
        let missed = resources.browsers.as_ref().is_some_and(|browsers| browsers.was_missed())
            || resources.services.as_ref().is_some_and(|services| services.was_missed());
        if missed || provider.is_some_and(|provider| provider.was_missed()) {
            return Ok(ScoredAgain::NeedsSampling);
        }
        let by_reward = |code: &str| UnscoredCause::ALL.iter().any(|cause| cause.as_str() == code);
        let trajectory = &mut record.trajectory;
        trajectory.reward = draft.signal.reward;
        trajectory.reward_parts = draft.signal.reward_parts;
        trajectory.turn_rewards = draft.signal.turn_rewards;
        trajectory.errors.retain(|note| !by_reward(&note.code));
        trajectory.errors.extend(draft.signal.errors);
        trajectory.timing_ms.score += u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        record.logs.push(told(group, &trajectory.plugins));
        for reward in scorers(group) {
            trajectory.plugins.insert(reward.alias.clone(), reward.plugin.digest().to_owned());
        }
        if let Some(why) = &draft.signal.removed {
            ledger::remove(trajectory, why);
            record.withheld = false;
        } else if trajectory.reward.is_some() && record.withheld {
            ledger::restore(trajectory, ledger::reason::NOT_TRAINABLE);
            record.withheld = false;
        }
        record.scores = draft.scores;
        for judged in draft.judges {
            record.judges.retain(|before| before.judge != judged.judge);
            record.judges.push(judged);
        }
        trajectory.other_calls.extend(draft.judge_calls);
        record.logs.extend(draft.logs);
        record.log_bytes_dropped += draft.log_bytes_dropped;
        record.failures.clone_from(&draft.plugins.failures);
        record.sandboxes.extend(provider.map(|provider| provider.made()).unwrap_or_default());
        let (reward, removed) = (record.trajectory.reward, record.trajectory.removed.is_some());
        let outcome = AttemptOutcome { stop_reason, reward, removed };
        Ok(ScoredAgain::Done(Box::new(Finished {
            record,
            blobs: resources.blobs.issued(),
            outcome,
            ended_ms,
            missing: None,
            plugins: draft.plugins,
            scored_again: Some(before),
        })))
    }
}

/// The line of its log that says which rewards are others now.
fn told(group: &GroupContext, before: &BTreeMap<String, String>) -> LogLine {
    let short = |digest: &str| digest.get(..6).unwrap_or(digest).to_owned();
    let changes: Vec<String> = scorers(group)
        .filter_map(|reward| {
            let (was, is) = (before.get(&reward.alias)?, reward.plugin.digest());
            (was != is).then(|| format!("{} {} to {}", reward.alias, short(was), short(is)))
        })
        .collect();
    LogLine {
        at_us: 0,
        plugin: "espalier".to_owned(),
        source: LogSource::Info,
        text: format!("scored again, without sampling: {}", changes.join(", ")),
        fields: None,
        turn: None,
        call: None,
    }
}
