"""The records of `group/v1` as typed objects. Keys that are not known here are kept in `Group.raw` and else ignored."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

import numpy as np
import numpy.typing as npt

from .decode import FormatError, Raw, read_raw, unpacked


class VersionSpan(NamedTuple):
    """Tokens `[offset, offset + len)` of a call were sampled by these weights."""

    offset: int
    len: int
    label: str
    train_step: Optional[int]


class VersionRun(NamedTuple):
    """Tokens `[start, start + len)` of a row were sampled by these weights."""

    start: int
    len: int
    label: str


class Span(NamedTuple):
    """Tokens `[start, start + len)` of a row are tokens `[offset, offset + len)` of a call."""

    call_id: str
    offset: int
    start: int
    len: int
    use: str


class ImageSpan(NamedTuple):
    """Tokens `[start, start + len)` of a row stand for the image with this digest (blake3, hex)."""

    digest: str
    start: int
    len: int


class Excluded(NamedTuple):
    """Sampled tokens that do not train."""

    call_id: str
    offset: int
    len: int
    how: str
    reason: str


class ErrorNote(NamedTuple):
    """One thing that went wrong."""

    code: str
    text: str


class RewardPart(NamedTuple):
    """One score, with the weight it had in the reward."""

    score: float
    weight: float


class Parent(NamedTuple):
    """The turn that a judge's group judges."""

    traj_id: str
    turn: int


class TokenSums(NamedTuple):
    """sampled = trained + masked + dropped."""

    sampled: int
    trained: int
    masked: int
    dropped: int


@dataclass(frozen=True)
class Call:
    """One request to a model, and what it sampled."""

    call_id: str
    model: str
    turn: int
    n_prompt: int
    n_sampled: int
    finish: str
    versions: List[VersionSpan]
    sampling: Dict[str, Any]
    logprob_kind: str


@dataclass(frozen=True, eq=False)
class Segment:
    """One training row. All arrays have one length."""

    tokens: npt.NDArray[np.uint32]
    prompt_len: int
    mask: npt.NDArray[np.uint8]
    origin: npt.NDArray[np.uint8]
    logprobs: npt.NDArray[np.float32]
    version_runs: List[VersionRun]
    spans: List[Span]
    images: List[ImageSpan]
    parent_segment: Optional[int]
    fork_at: Optional[int]
    drift_kind: Optional[str]
    advantages: Optional[npt.NDArray[np.float32]]
    token_rewards: Optional[npt.NDArray[np.float32]]

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, eq=False)
class Trajectory:
    """What one rollout left."""

    traj_id: str
    rollout_id: int
    rollout_index: int
    attempt: int
    session_id: str
    status: str
    stop_reason: str
    reward: Optional[float]
    reward_parts: Dict[str, RewardPart]
    turn_rewards: Optional[List[Optional[float]]]
    trainable: bool
    timing_ms: Dict[str, int]
    plugins: Dict[str, str]
    errors: List[ErrorNote]
    calls: List[Call]
    other_calls: List[Call]
    segments: List[Segment]
    excluded: List[Excluded]
    #: Why its sample was removed, by a reward or judge: it has no reward, trains nothing, and takes no part in what is computed from
    #: the rewards of its group.
    removed: Optional[str] = None

    def token_sums(self) -> TokenSums:
        """Over the calls to the group's model."""
        how = {"masked": 0, "dropped": 0}
        for excluded in self.excluded:
            how[excluded.how] += excluded.len
        return TokenSums(
            sampled=sum(call.n_sampled for call in self.calls),
            trained=sum(int(np.count_nonzero(segment.mask == 1)) for segment in self.segments),
            masked=how["masked"],
            dropped=how["dropped"],
        )


@dataclass(frozen=True, eq=False)
class Group:
    """The rollouts of one task that are compared with each other."""

    run_id: str
    group_id: str
    group_index: int
    kind: str
    model: str
    parent: Optional[Parent]
    task_id: str
    task_hash: str
    environment: str
    n_requested: int
    n_ready: int
    dispatch_version: str
    deadline_ms: Optional[int]
    status: str
    drop_reason: Optional[str]
    trajectories: List[Trajectory]
    replaced: List[Trajectory]
    #: Images in its rows, replaced rollouts included. Rows with images train on tokens that stand for them.
    images: int
    raw: Raw
    #: Rollouts with a reward, or removed, that do not count because others were chosen (`[groups.bar]`). Nothing of them trains.
    not_chosen: List[Trajectory] = field(default_factory=list)
    #: `train`; `eval`: a trainer asked for it as evaluation, and it is never leased.
    purpose: str = "train"


def read(path: Union[str, "os.PathLike[str]"]) -> Iterator[Group]:
    """Yields the groups of an export, from either form, one at a time.

    Raises `FormatError` at a group that cannot be read; it does not look for broken invariants (see `check_file`).
    """
    for place, raw in read_raw(path):
        yield _read(place, raw)


def loads(data: bytes, place: str = "group") -> Group:
    """One group of the msgpack form without the length in front, as the service delivers it. `place` is named in `FormatError`."""
    return _read(place, unpacked(place, data))


def _read(place: str, raw: Raw) -> Group:
    try:
        return _group(raw)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, FormatError):
            raise
        text = f"key {error} is missing" if isinstance(error, KeyError) else str(error)
        raise FormatError(place, text) from error


def _group(raw: Raw) -> Group:
    if raw["schema"] != "group/v1":
        raise ValueError(f"schema is {raw['schema']!r}, this reader knows 'group/v1'")
    parent = raw.get("parent")
    return Group(
        run_id=raw["run_id"],
        group_id=raw["group_id"],
        group_index=raw["group_index"],
        kind=raw["kind"],
        model=raw["model"],
        parent=None if parent is None else Parent(parent["traj_id"], parent["turn"]),
        task_id=raw["task_id"],
        task_hash=raw["task_hash"],
        environment=raw["environment"],
        n_requested=raw["n_requested"],
        n_ready=raw["n_ready"],
        dispatch_version=raw["dispatch_version"],
        deadline_ms=raw.get("deadline_ms"),
        status=raw["status"],
        drop_reason=raw.get("drop_reason"),
        trajectories=[_trajectory(item) for item in raw["trajectories"]],
        replaced=[_trajectory(item) for item in raw["replaced"]],
        images=raw.get("images", 0),
        raw=raw,
        not_chosen=[_trajectory(item) for item in raw.get("not_chosen", [])],
        purpose=raw.get("purpose", "train"),
    )


def _trajectory(raw: Raw) -> Trajectory:
    parts = {name: RewardPart(part["score"], part["weight"]) for name, part in raw["reward_parts"].items()}
    return Trajectory(
        traj_id=raw["traj_id"],
        rollout_id=raw["rollout_id"],
        rollout_index=raw["rollout_index"],
        attempt=raw["attempt"],
        session_id=raw["session_id"],
        status=raw["status"],
        stop_reason=raw["stop_reason"],
        reward=raw["reward"],
        reward_parts=parts,
        turn_rewards=raw.get("turn_rewards"),
        trainable=raw["trainable"],
        timing_ms=raw["timing_ms"],
        plugins=raw["plugins"],
        errors=[ErrorNote(note["code"], note["text"]) for note in raw["errors"]],
        calls=[_call(item) for item in raw["calls"]],
        other_calls=[_call(item) for item in raw.get("other_calls", [])],
        segments=[_segment(item) for item in raw["segments"]],
        excluded=[
            Excluded(item["call_id"], item["offset"], item["len"], item["how"], item["reason"])
            for item in raw["excluded"]
        ],
        removed=raw.get("removed"),
    )


def _call(raw: Raw) -> Call:
    return Call(
        call_id=raw["call_id"],
        model=raw["model"],
        turn=raw["turn"],
        n_prompt=raw["n_prompt"],
        n_sampled=raw["n_sampled"],
        finish=raw["finish"],
        versions=[VersionSpan(*_first(item, 4)) for item in raw["versions"]],
        sampling=raw["sampling"],
        logprob_kind=raw["logprob_kind"],
    )


def _segment(raw: Raw) -> Segment:
    return Segment(
        tokens=raw["tokens"],
        prompt_len=raw["prompt_len"],
        mask=raw["mask"],
        origin=raw["origin"],
        logprobs=raw["logprobs"],
        version_runs=[VersionRun(*_first(item, 3)) for item in raw["version_runs"]],
        spans=[
            Span(item["call_id"], item["offset"], item["start"], item["len"], item["use"]) for item in raw["spans"]
        ],
        images=[ImageSpan(item["digest"], item["start"], item["len"]) for item in raw.get("images", [])],
        parent_segment=raw.get("parent_segment"),
        fork_at=raw.get("fork_at"),
        drift_kind=raw.get("drift_kind"),
        advantages=raw.get("advantages"),
        token_rewards=raw.get("token_rewards"),
    )


def _first(item: Any, n: int) -> Tuple[Any, ...]:
    if len(item) < n:
        raise ValueError(f"{item!r} has fewer than {n} values")
    return tuple(item[:n])
