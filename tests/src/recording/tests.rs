//! The comparison itself: what agrees passes, and each thing that does not is found.

use super::{Compared, compare};
use espalier_core::samples::Group;
use espalier_scripted::Exchange;
use serde_json::{Value, json};

/// Two calls in one row: the first asked for in two pieces and cut behind its third token, the second of one token.
fn groups() -> Vec<Group> {
    let call = |id: &str, n_prompt: u32, n_sampled: u32| {
        json!({
            "call_id": id, "model": "policy", "turn": 0, "n_prompt": n_prompt, "n_sampled": n_sampled,
            "finish": "stop", "versions": [[0, n_sampled, "base", null]], "logprob_kind": "raw",
            "sampling": {
                "temperature": 0.5, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0, "seed": 1,
                "max_tokens": 24,
            },
        })
    };
    let row = json!({
        "tokens": [1, 2, 10, 11, 12, 3, 20], "prompt_len": 2, "mask": [0, 0, 1, 1, 1, 0, 1],
        "origin": [0, 0, 1, 1, 1, 2, 1], "logprobs": [0.0, 0.0, -0.5, -0.25, -1.5, 0.0, -2.0],
        "version_runs": [[2, 3, "base"], [6, 1, "base"]], "images": [],
        "spans": [
            {"call_id": "a", "offset": 0, "start": 2, "len": 3, "use": "sampled"},
            {"call_id": "b", "offset": 0, "start": 6, "len": 1, "use": "sampled"},
        ],
    });
    let trajectory = json!({
        "traj_id": "run.g0.r0.a0", "rollout_id": 0, "rollout_index": 0, "attempt": 0, "session_id": "run.g0.r0",
        "status": "completed", "stop_reason": "submitted", "reward": 1.0, "reward_parts": {}, "trainable": true,
        "timing_ms": {"queue": 0, "boot": 0, "model": 0, "env": 0, "score": 0}, "plugins": {}, "errors": [],
        "calls": [call("a", 2, 4), call("b", 6, 1)], "segments": [row],
        "excluded": [{"call_id": "a", "offset": 3, "len": 1, "how": "dropped", "reason": "after-stop"}],
    });
    let group = json!({
        "schema": "group/v1", "run_id": "run", "group_id": "run.g0", "group_index": 0, "kind": "task",
        "model": "policy", "task_id": "t", "task_hash": "", "environment": "textcraft", "n_requested": 1,
        "n_ready": 1, "dispatch_version": "base", "status": "ready", "trajectories": [trajectory], "replaced": [],
    });
    vec![serde_json::from_value(group).expect("it has the form of a group")]
}

fn exchange(prompt: &[u32], sampled: &[(u32, f64)]) -> Exchange {
    let ids: Vec<u32> = sampled.iter().map(|(id, _)| *id).collect();
    let entries: Vec<Value> =
        sampled.iter().map(|(id, logprob)| json!({ "id": id, "logprob": logprob })).collect();
    Exchange {
        route: "/completion".into(),
        session_id: "run.g0.r0".into(),
        request: json!({ "prompt": prompt, "temperature": 0.5 }),
        answer: Some((200, json!({ "tokens": ids, "completion_probabilities": entries }))),
    }
}

fn exchanges() -> Vec<Exchange> {
    vec![
        exchange(&[1, 2], &[(10, -0.5), (11, -0.25)]),
        exchange(&[1, 2, 10, 11], &[(12, -1.5), (13, -3.0)]),
        exchange(&[1, 2, 10, 11, 12, 3], &[(20, -2.0)]),
    ]
}

#[test]
fn what_agrees_passes() {
    let expected =
        Compared { rollouts: 1, calls: 2, requests: 3, sampled: 5, in_rows: 4, filled: 0, over_versions: 0 };
    assert_eq!(compare(&groups(), &exchanges(), "base"), expected);
}

#[test]
fn each_disagreement_is_found() {
    type Change = (&'static str, fn(&mut Vec<Exchange>));
    let changes: [Change; 8] = [
        ("another prompt", |all| all[2].request["prompt"][5] = json!(4)),
        ("a longer prompt", |all| all[0].request["prompt"] = json!([0, 1, 2])),
        ("a piece behind other tokens", |all| all[1].request["prompt"][3] = json!(9)),
        ("another id", |all| {
            let (_, answer) = all[2].answer.as_mut().unwrap();
            answer["tokens"][0] = json!(21);
            answer["completion_probabilities"][0]["id"] = json!(21);
        }),
        ("another logprob", |all| {
            all[1].answer.as_mut().unwrap().1["completion_probabilities"][0]["logprob"] = json!(-1.25);
        }),
        ("a request too many", |all| all.push(exchange(&[1, 2], &[(5, -1.0)]))),
        ("a request too few", |all| drop(all.pop())),
        ("a refusal", |all| all[1].answer = Some((500, Value::Null))),
    ];
    for (what, change) in changes {
        let mut all = exchanges();
        change(&mut all);
        let found = std::panic::catch_unwind(|| compare(&groups(), &all, "base"));
        assert!(found.is_err(), "{what} was not found");
    }
    // Other weights than the call says.
    assert!(std::panic::catch_unwind(|| compare(&groups(), &exchanges(), "step-1")).is_err());
}
