"""Rows cut anew, and advantages: what `espalier export --rows per-call --advantages grpo-ddof1` does, for a group that was read."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Iterable, List, Optional

import numpy as np
import numpy.typing as npt

from .records import Group, Segment, Trajectory, VersionRun

PROMPT, SAMPLED = 0, 1


def per_call(group: Group) -> Group:
    """The same group with a row for each call: its answer is sampled in it, what stands before it is context.

    Every sampled token still trains exactly once. `Group.raw` stays that of the file.
    """
    trajectories = [_trajectory(one) for one in group.trajectories]
    replaced = [_trajectory(one) for one in group.replaced]
    images = sum(len(row.images) for one in trajectories + replaced for row in one.segments)
    return replace(group, trajectories=trajectories, replaced=replaced, images=images)


def advantages(group: Group) -> List[Optional[float]]:
    """By trajectory `(reward - mean) / (s + 1e-6)`, `s` the sample deviation (ddof = 1) over the group's rewards; one for all tokens of a
    trajectory, whatever its length. `None` for one without a reward, which takes no part, and in groups of judges; 0 for a reward that is alone.
    """
    if group.kind == "judge-turn":
        return [None] * len(group.trajectories)
    rewards = [one.reward for one in group.trajectories if one.reward is not None]
    mean = _sum(rewards) / len(rewards) if rewards else 0.0
    deviation = 0.0
    if len(rewards) > 1:
        deviation = math.sqrt(_sum((reward - mean) * (reward - mean) for reward in rewards) / (len(rewards) - 1))
    return [None if one.reward is None else (one.reward - mean) / (deviation + 1e-6) for one in group.trajectories]


def _sum(values: Iterable[float]) -> float:
    """In order, each sum rounded, as the engine adds: `sum` compensates since Python 3.12, and the last bits would differ."""
    total = 0.0
    for value in values:
        total += value
    return total


def with_advantages(group: Group) -> Group:
    """The same group whose rows carry `advantages`: at each token that trains, 0 elsewhere. Of trajectories without a reward: `None`.

    Groups of judges stay as they are.
    """
    if group.kind == "judge-turn":
        return group
    trajectories = [
        replace(one, segments=[replace(row, advantages=_spread(row, value)) for row in one.segments])
        for one, value in zip(group.trajectories, advantages(group))
    ]
    return replace(group, trajectories=trajectories)


def _spread(row: Segment, value: Optional[float]) -> Optional[npt.NDArray[np.float32]]:
    return None if value is None else np.where(row.mask == 1, np.float32(value), np.float32(0)).astype(np.float32)


def _trajectory(trajectory: Trajectory) -> Trajectory:
    rows: List[Segment] = []
    last_of: List[int] = []
    for segment in trajectory.segments:
        parent = None if segment.parent_segment is None else last_of[segment.parent_segment]
        calls = list(dict.fromkeys(span.call_id for span in segment.spans if span.use == "sampled"))
        if len(calls) < 2:
            rows.append(replace(segment, parent_segment=parent))
        for place, call_id in enumerate(calls if len(calls) > 1 else []):
            row = _row(segment, call_id)
            if place == 0:
                shared = None if segment.fork_at is None else min(segment.fork_at, len(row))
                rows.append(replace(row, parent_segment=parent, fork_at=shared))
            else:
                rows.append(replace(row, parent_segment=len(rows) - 1, fork_at=len(rows[-1])))
        last_of.append(len(rows) - 1)
    return replace(trajectory, segments=rows)


def _row(segment: Segment, call_id: str) -> Segment:
    own = np.zeros(len(segment), dtype=bool)
    spans = []
    for span in segment.spans:
        is_own = span.use == "sampled" and span.call_id == call_id
        own[span.start : span.start + span.len] = is_own
        spans.append(span if is_own else span._replace(use="reused"))
    end = int(np.flatnonzero(own)[-1]) + 1
    kept = own[:end]
    origin = np.where(~kept & (segment.origin[:end] == SAMPLED), PROMPT, segment.origin[:end])

    def cut(values: Optional[npt.NDArray[np.float32]]) -> Optional[npt.NDArray[np.float32]]:
        return None if values is None else np.where(kept, values[:end], 0).astype(np.float32)

    runs = []
    for run in segment.version_runs:
        inside = np.flatnonzero(own[run.start : run.start + run.len])
        if len(inside):
            runs.append(VersionRun(run.start + int(inside[0]), int(inside[-1] - inside[0]) + 1, run.label))
    return replace(
        segment,
        tokens=segment.tokens[:end],
        prompt_len=int(np.flatnonzero(own)[0]),
        mask=np.where(kept, segment.mask[:end], 0).astype(np.uint8),
        origin=origin.astype(np.uint8),
        logprobs=np.where(kept, segment.logprobs[:end], 0).astype(np.float32),
        version_runs=runs,
        spans=[span for span in spans if span.start < end],
        images=[image for image in segment.images if image.start < end],
        advantages=cut(segment.advantages),
        token_rewards=cut(segment.token_rewards),
    )
