//! Small samples for the tests of this crate: a test changes what it is about.

use super::{
    Call, Group, GroupKind, GroupPurpose, GroupStatus, LogprobKind, SCHEMA, Sampling, Timing, Trajectory,
};
use crate::ending::StopReason;
use crate::ledger::Finished;
use std::collections::BTreeMap;

/// A call to `model` that stopped by itself, all of it under the version `base`.
pub(crate) fn call(call_id: &str, model: &str, n_sampled: u32) -> Call {
    Call {
        call_id: call_id.into(),
        model: model.into(),
        turn: 0,
        n_prompt: 3,
        n_sampled,
        finish: "stop".into(),
        versions: vec![(0, n_sampled, "base".into(), None)],
        sampling: Sampling {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            seed: 1,
            max_tokens: 64,
        },
        logprob_kind: LogprobKind::Raw,
    }
}

/// The first attempt of a rollout of this number: trainable, with reward 1, where it was submitted; else without.
pub(crate) fn trajectory(number: u32, stop_reason: StopReason, finished: Finished) -> Trajectory {
    let trainable = stop_reason == StopReason::Submitted;
    Trajectory {
        traj_id: format!("t{number}"),
        rollout_id: i64::from(number),
        rollout_index: number,
        attempt: 0,
        session_id: "s".into(),
        status: stop_reason.row().status,
        stop_reason,
        reward: trainable.then_some(1.0),
        reward_parts: BTreeMap::new(),
        turn_rewards: None,
        removed: None,
        trainable,
        timing_ms: Timing::default(),
        plugins: BTreeMap::new(),
        errors: vec![],
        calls: finished.calls,
        other_calls: vec![],
        segments: finished.segments,
        excluded: finished.excluded,
    }
}

/// A group of as many as are given and asked for: ready where all have a reward, else failed.
pub(crate) fn group(trajectories: Vec<Trajectory>) -> Group {
    let scored = trajectories.iter().filter(|trajectory| trajectory.reward.is_some()).count();
    let status = if scored == trajectories.len() { GroupStatus::Ready } else { GroupStatus::Failed };
    let mut group = Group {
        schema: SCHEMA.into(),
        images: 0,
        run_id: "r".into(),
        group_id: "g".into(),
        group_index: 0,
        kind: GroupKind::Task,
        purpose: GroupPurpose::Train,
        model: "policy".into(),
        parent: None,
        task_id: "t".into(),
        task_hash: String::new(),
        environment: "e".into(),
        n_requested: trajectories.len() as u32,
        n_ready: scored as u32,
        dispatch_version: "base".into(),
        deadline_ms: None,
        status,
        drop_reason: None,
        trajectories,
        replaced: vec![],
        not_chosen: vec![],
    };
    group.images = group.images_in_rows();
    group
}
