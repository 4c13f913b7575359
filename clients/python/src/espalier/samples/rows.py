"""Rows cut anew: what `espalier export --rows per-call` does, for a group that was read."""

from __future__ import annotations

from dataclasses import replace
from typing import List, Optional

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
    not_chosen = [_trajectory(one) for one in group.not_chosen]
    images = sum(len(row.images) for one in trajectories + replaced + not_chosen for row in one.segments)
    return replace(group, trajectories=trajectories, replaced=replaced, not_chosen=not_chosen, images=images)


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
