"""A valid export, made by hand: every feature of the format once, small enough to read."""

from __future__ import annotations

import copy
import json
import struct
from pathlib import Path
from typing import Any, Dict, List

import msgpack
import numpy as np

Raw = Dict[str, Any]

DTYPES = {"tokens": "<u4", "mask": "u1", "origin": "u1", "logprobs": "<f4", "advantages": "<f4", "token_rewards": "<f4"}


def call(call_id: str, n_sampled: int, versions: List[Any], model: str = "policy") -> Raw:
    return {
        "call_id": call_id, "model": model, "turn": 0, "n_prompt": 3, "n_sampled": n_sampled, "finish": "stop",
        "versions": versions,
        "sampling": {
            "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0, "seed": 7,
            "max_tokens": 64,
        },
        "logprob_kind": "raw",
    }  # fmt: skip


def span(call_id: str, offset: int, start: int, length: int, use: str = "sampled") -> Raw:
    return {"call_id": call_id, "offset": offset, "start": start, "len": length, "use": use}


def excluded(call_id: str, offset: int, length: int, how: str, reason: str) -> Raw:
    return {"call_id": call_id, "offset": offset, "len": length, "how": how, "reason": reason}


def trajectory(name: str, index: int, **changes: Any) -> Raw:
    return {
        "traj_id": name, "rollout_id": index, "rollout_index": index, "attempt": 0, "session_id": name,
        "status": "completed", "stop_reason": "submitted", "reward": 1.0,
        "reward_parts": {"reward": {"score": 1.0, "weight": 1.0}}, "trainable": True,
        "timing_ms": {"queue": 0, "boot": 1, "model": 2, "env": 3, "score": 4},
        "plugins": {"harness": "ab" * 32}, "errors": [], "calls": [], "segments": [], "excluded": [], **changes,
    }  # fmt: skip


def two_turns(name: str, index: int) -> Raw:
    """Two answers in one row, weights changed within the first; a rewritten history with a third answer, whose row
    carries the first as context; a fourth answer that was not selected. One token masked, one cut off after the stop."""
    a, b, c, d = (f"{name}.c{i}" for i in range(4))
    main = {
        "tokens": np.array([10, 11, 12, 20, 21, 22, 23, 13, 14, 30, 31], dtype=np.uint32),
        "prompt_len": 3,
        "mask": np.array([0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1], dtype=np.uint8),
        "origin": np.array([0, 0, 0, 1, 1, 1, 1, 3, 2, 1, 1], dtype=np.uint8),
        "logprobs": np.array([0, 0, 0, -0.1, -2.5, 0, -7, 0, 0, -0.25, -1e-7], dtype=np.float32),
        "version_runs": [[3, 2, "v1"], [5, 2, "v2"], [9, 2, "v2"]],
        "spans": [span(a, 0, 3, 4), span(b, 0, 9, 2)],
        "images": [],
        "advantages": np.array([0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1], dtype=np.float32),
    }
    rewritten = {
        "tokens": np.array([10, 11, 12, 20, 21, 40, 41, 15], dtype=np.uint32),
        "prompt_len": 5,
        "mask": np.array([0, 0, 0, 0, 0, 1, 1, 0], dtype=np.uint8),
        "origin": np.array([0, 0, 0, 0, 0, 1, 1, 4], dtype=np.uint8),
        "logprobs": np.array([0, 0, 0, 0, 0, -0.5, -0.5, 0], dtype=np.float32),
        "version_runs": [[5, 2, "v2"]],
        "spans": [span(a, 0, 3, 2, "reused"), span(c, 0, 5, 2)],
        "images": [{"digest": "cd" * 32, "start": 0, "len": 2}],
        "parent_segment": 0,
        "fork_at": 5,
        "drift_kind": "rewrite",
    }
    return trajectory(
        name,
        index,
        calls=[
            call(a, 5, [[0, 2, "v1", 1], [2, 3, "v2", 2]]),
            call(b, 2, [[0, 2, "v2", 2]]),
            call(c, 2, [[0, 2, "v2", None]]),
            call(d, 3, [[0, 3, "v2", None]]),
        ],
        other_calls=[call(f"{name}.j0", 9, [[0, 9, "judge-1", None]], model="judge")],
        segments=[main, rewritten],
        excluded=[
            excluded(a, 3, 1, "masked", "harness"),
            excluded(a, 4, 1, "dropped", "after-stop"),
            excluded(d, 0, 3, "dropped", "branch-not-selected"),
        ],
        turn_rewards=[0.5, None],
    )


def failed(name: str, index: int) -> Raw:
    """A trap: no reward, nothing trains, all masked or dropped."""
    row = {
        "tokens": np.array([10, 20], dtype=np.uint32),
        "prompt_len": 1,
        "mask": np.array([0, 0], dtype=np.uint8),
        "origin": np.array([0, 1], dtype=np.uint8),
        "logprobs": np.array([0, -1], dtype=np.float32),
        "version_runs": [],
        "spans": [span(f"{name}.c0", 0, 1, 1)],
        "images": [],
    }
    return trajectory(
        name, index, status="failed", stop_reason="guest-trap", reward=None, reward_parts={}, trainable=False,
        errors=[{"code": "guest-trap", "text": "unreachable"}],
        calls=[call(f"{name}.c0", 1, [[0, 1, "v1", 1]])], segments=[row],
        excluded=[excluded(f"{name}.c0", 0, 1, "masked", "not-trainable")],
    )  # fmt: skip


def empty(name: str, index: int) -> Raw:
    """Truncated before anything was sampled: a row that is all prompt."""
    row = {
        "tokens": np.array([10, 11], dtype=np.uint32), "prompt_len": 2, "mask": np.zeros(2, dtype=np.uint8),
        "origin": np.zeros(2, dtype=np.uint8), "logprobs": np.zeros(2, dtype=np.float32), "version_runs": [],
        "spans": [], "images": [],
    }  # fmt: skip
    return trajectory(name, index, status="truncated", stop_reason="limit-turns", reward=0.0, segments=[row])


def group(index: int = 0) -> Raw:
    name = f"run.g{index}"
    base = 16 * index
    group = {
        "schema": "group/v1", "images": 1, "run_id": "run", "group_id": name, "group_index": index, "kind": "task",
        "model": "policy", "task_id": "t1", "task_hash": "ef" * 32, "environment": "textcraft", "n_requested": 3,
        "n_ready": 2, "dispatch_version": "v1", "status": "short",
        "trajectories": [two_turns(f"{name}.r0.a0", 0), empty(f"{name}.r1.a0", 1), failed(f"{name}.r3.a0", 3)],
        "replaced": [failed(f"{name}.r2.a0", 2)],
    }  # fmt: skip
    for one in group["trajectories"] + group["replaced"]:
        one["rollout_id"] += base
    return group


def plain(value: Any, binary: bool, key: str = "") -> Any:
    """As it stands in a file."""
    if isinstance(value, np.ndarray):
        if binary:
            return value.astype(DTYPES[key]).tobytes()
        # The shortest decimal that reads back as the same f32.
        return [float(str(item)) for item in value] if value.dtype.kind == "f" else value.tolist()
    if isinstance(value, dict):
        return {name: plain(item, binary, name) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item, binary) for item in value]
    return value


def write(path: Path, groups: List[Raw]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(plain(copy.deepcopy(one), False)) + "\n" for one in groups))
        return path
    with open(path, "wb") as file:
        for one in groups:
            body = msgpack.packb(plain(copy.deepcopy(one), True))
            file.write(struct.pack("<I", len(body)) + body)
    return path
