//! Small records that satisfy every rule of `group/v1`.

use espalier_core::chat::{Message, Role, Usage};
use espalier_core::ending::StopReason;
use espalier_core::samples::{
    Call, Excluded, ExcludedHow, GroupPurpose, GroupStatus, LogprobKind, RewardPart, Sampling, Segment, Span,
    SpanUse, Timing, Trajectory,
};
use espalier_core::trajectory::{AttemptRecord, ConversationLog, Step, Transcript, Turn};
use espalier_store::{
    AttemptEnd, AttemptStarted, Finality, GroupClosed, GroupOpened, Holder, RunSpec, RunWriter, StoreError,
    ids,
};
use std::collections::BTreeMap;

pub(crate) const NOW: u64 = 1_700_000_000_000;

pub(crate) fn spec(name: &str, seed: u64) -> RunSpec {
    RunSpec {
        owner: None,
        name: name.into(),
        meaning: serde_json::json!({"seed": seed, "tasks": {"hash": "a".repeat(8)}}),
        experiment: format!("name = \"{name}\"\nseed = {seed}\n"),
        engine: "0.1.0".into(),
        groups_planned: Some(3),
    }
}

pub(crate) fn opened(group_index: u64) -> GroupOpened {
    GroupOpened {
        group_index,
        model: "policy".into(),
        task_id: format!("task-{group_index}"),
        task_hash: "ab".repeat(32),
        task_text: None,
        repeat: 0,
        environment: "textcraft".into(),
        n_requested: 2,
        purpose: GroupPurpose::Train,
        endpoint: None,
        dispatch_version: "base".into(),
        deadline_ms: None,
        step_budget: None,
        plugins: BTreeMap::from([("harness".to_owned(), "cd".repeat(32))]),
        opened_ms: NOW,
    }
}

pub(crate) fn started(group_index: u64, rollout_index: u32, attempt: u32) -> AttemptStarted {
    AttemptStarted { group_index, rollout_index, attempt, session_id: "s".into(), started_ms: NOW + 1 }
}

pub(crate) fn closed(group_index: u64, status: GroupStatus, n_ready: u32, replaced: &[u32]) -> GroupClosed {
    let drop_reason = (status == GroupStatus::Failed).then(|| "none has a reward".to_owned());
    GroupClosed { group_index, status, drop_reason, n_ready, replaced: replaced.to_vec(), closed_ms: NOW + 9 }
}

/// `reward` `None` is a trap. One answer of three tokens, the last masked by the harness.
pub(crate) fn record(
    run_id: &str,
    group: u64,
    rollout: u32,
    attempt: u32,
    reward: Option<f64>,
) -> AttemptRecord {
    let stop_reason = if reward.is_some() { StopReason::Submitted } else { StopReason::GuestTrap };
    record_of(run_id, group, rollout, attempt, reward, stop_reason)
}

pub(crate) fn record_of(
    run_id: &str,
    group: u64,
    rollout: u32,
    attempt: u32,
    reward: Option<f64>,
    stop_reason: StopReason,
) -> AttemptRecord {
    let traj_id = ids::traj_id(run_id, group, rollout, attempt);
    let call_id = format!("{traj_id}.c0");
    let trains = reward.is_some();
    let excluded = |offset, len, reason: &str| Excluded {
        call_id: call_id.clone(),
        offset,
        len,
        how: ExcludedHow::Masked,
        reason: reason.into(),
    };
    let segment = Segment {
        tokens: vec![1, 2, 10 + rollout, 11, 12, 3],
        prompt_len: 2,
        mask: if trains { vec![0, 0, 1, 1, 0, 0] } else { vec![0; 6] },
        origin: vec![0, 0, 1, 1, 1, 2],
        logprobs: vec![0.0, 0.0, -0.1, -1e-7, -3.25, 0.0],
        version_runs: vec![(2, 3, "base".into())],
        spans: vec![Span { call_id: call_id.clone(), offset: 0, start: 2, len: 3, usage: SpanUse::Sampled }],
        ..Segment::default()
    };
    let sampling = Sampling {
        temperature: 1.0,
        top_p: 1.0,
        top_k: 0,
        min_p: 0.0,
        repeat_penalty: 1.0,
        seed: 7,
        max_tokens: 64,
    };
    let call = Call {
        call_id: call_id.clone(),
        model: "policy".into(),
        turn: 0,
        n_prompt: 2,
        n_sampled: 3,
        finish: "stop".into(),
        versions: vec![(0, 3, "base".into(), None)],
        sampling,
        logprob_kind: LogprobKind::Raw,
    };
    let parts = reward.map(|score| ("reward".to_owned(), RewardPart { score, weight: 1.0 }));
    let trajectory = Trajectory {
        traj_id,
        rollout_id: ids::rollout_id(group, rollout),
        rollout_index: rollout,
        attempt,
        session_id: "s".into(),
        status: stop_reason.row().status,
        stop_reason,
        reward,
        reward_parts: parts.into_iter().collect(),
        turn_rewards: None,
        removed: None,
        trainable: trains,
        timing_ms: Timing { queue: 1, boot: 2, model: 3, env: 4, score: 5 },
        plugins: BTreeMap::from([("harness".to_owned(), "cd".repeat(32))]),
        errors: Vec::new(),
        calls: vec![call],
        other_calls: Vec::new(),
        segments: vec![segment],
        excluded: if trains {
            vec![excluded(2, 1, "harness")]
        } else {
            vec![excluded(0, 3, "not-trainable")]
        },
    };
    let text = |role, text: &str| Message::text(role, text);
    let transcript = Transcript {
        conversations: vec![ConversationLog {
            model: "policy".into(),
            opening: vec![text(Role::System, "play"), text(Role::User, "craft a stick")],
            tools: Vec::new(),
            forked_from: None,
            inherited: 0,
            discarded: false,
        }],
        turns: vec![Turn {
            index: 0,
            conversation: 0,
            call_id,
            message: text(Role::Assistant, "get 1 log"),
            tool_calls: Vec::new(),
            malformed: None,
            finish: "stop".into(),
            usage: Usage::default(),
            results: vec![text(Role::User, "got 1 log")],
            images_elided: 0,
            calls_at: Vec::new(),
        }],
    };
    let step = Step {
        turn: 0,
        action: "get 1 log".into(),
        observation: "got 1 log".into(),
        reward,
        done: true,
        info: "{}".into(),
    };
    AttemptRecord {
        instruction: None,
        trajectory,
        transcript,
        steps: vec![step],
        host_calls: Vec::new(),
        logs: Vec::new(),
        log_bytes_dropped: 0,
        report: None,
        scores: Vec::new(),
        sandboxes: Vec::new(),
        failures: Vec::new(),
        withheld: false,
        seed: None,
        edges: Vec::new(),
        edges_missing: 0,
        judges: vec![],
        blobs: Vec::new(),
    }
}

pub(crate) fn ended(record: AttemptRecord, finality: Finality) -> AttemptEnd {
    AttemptEnd { record, finality, blobs: Vec::new(), ended_ms: NOW + 2 }
}

/// Starts and ends one attempt.
pub(crate) async fn play(
    run: &RunWriter,
    group: u64,
    rollout: u32,
    attempt: u32,
    reward: Option<f64>,
    finality: Finality,
) -> Result<(), StoreError> {
    run.attempt_started(started(group, rollout, attempt)).await?;
    run.attempt_ended(ended(record(run.run_id(), group, rollout, attempt, reward), finality)).await
}

/// A process on a host of its own: never provably dead.
pub(crate) fn stranger(pid: u32) -> Holder {
    Holder {
        host: format!("host-{pid}/0"),
        boot_id: "other".into(),
        pid_namespace: "pid:[1]".into(),
        pid,
        pid_start: 1,
    }
}
