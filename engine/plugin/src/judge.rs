//! Asking judges: as rewards are called, with a model.

use crate::bindings::judge::JudgePluginPre;
use crate::bindings::judge::exports::espalier::plugin::judge as wit;
use crate::bindings::reward::espalier::plugin::scores;
use crate::guest::Guest;
use crate::harness::check_json;
use crate::host::Inner;
use crate::job::{Export, Job, Returned};
use crate::plugin::Pre;
use crate::reward::{SCORES_MAX, check_scores, run};
use crate::{ScoreError, ScoreOutcome, World};
use espalier_core::judge::{Judgement, Vote};
use espalier_core::trajectory::RolloutView;
use wasmtime::Store;

/// The export that is called.
pub const EXPORT: &str = "judge.judge";

struct Judge {
    pre: JudgePluginPre<Guest>,
    view: scores::RolloutView,
}

impl Export for Judge {
    type Value = wit::Judgement;
    const NAME: &'static str = EXPORT;

    async fn call(self, store: &mut Store<Guest>) -> Returned<Self::Value> {
        let plugin = self.pre.instantiate_async(&mut *store).await?;
        plugin.espalier_plugin_judge().call_judge(store, &self.view).await
    }
}

/// Asks it about a rollout of `turns` turns. `view` may show fewer of them.
pub(crate) async fn judge(host: &Inner, job: Job, view: RolloutView, turns: u32) -> ScoreOutcome<Judgement> {
    let title = format!("judge {}", job.alias);
    let Pre::Judge(pre) = &job.plugin.loaded.pre else {
        return ScoreOutcome::failed(ScoreError::Trapped(job.plugin.not_a(World::Judge)));
    };
    let export = |mut views: Vec<scores::RolloutView>| {
        let view = views.pop().expect("one view was given");
        Judge { pre: pre.clone(), view }
    };
    run(host, &job, vec![view], export).await.checked(|judgement| checked(&title, judgement, turns))
}

fn checked(title: &str, judgement: wit::Judgement, turns: u32) -> Result<Judgement, ScoreError> {
    let invalid = |reason: String| ScoreError::Invalid {
        plugin: title.to_owned(),
        reason: format!("invalid data: {reason}"),
    };
    let scores = check_scores(title, judgement.scores, turns as usize)?;
    if judgement.votes.len() > SCORES_MAX {
        return Err(invalid(format!("{} votes are over {SCORES_MAX}", judgement.votes.len())));
    }
    let mut votes = Vec::with_capacity(judgement.votes.len());
    for (place, vote) in judgement.votes.into_iter().enumerate() {
        if let Some(value) = vote.value.filter(|value| !value.is_finite()) {
            return Err(invalid(format!("vote {place} is {value}; a vote is finite, or none")));
        }
        if let Some(turn) = vote.turn.filter(|turn| *turn >= turns) {
            return Err(invalid(format!("vote {place} is about turn {turn}, the rollout has {turns}")));
        }
        let call = vote.call.map(|call| {
            call.parse().map_err(|_| {
                invalid(format!(
                    "vote {place} names the call {call:?}; expected what `call` in `completion.extra` says"
                ))
            })
        });
        if let Some(extra) = &vote.extra {
            check_json(&format!("extra of vote {place}"), extra).map_err(|stop| invalid(stop.to_string()))?;
        }
        let (turn, value, text, extra) = (vote.turn, vote.value, vote.text, vote.extra);
        votes.push(Vote { turn, value, text, call: call.transpose()?, extra });
    }
    Ok(Judgement { scores, votes })
}
