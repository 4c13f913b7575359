"""Advantages of the trajectories of a group: what `espalier export --advantages KIND` does, for groups that were read.

| kind | advantage of a trajectory with reward `R` |
|---|---|
| `grpo-ddof1` | `(R - mean) / (s + 1e-6)`, `s` the sample deviation (ddof = 1) of the group |
| `grpo` | `(R - mean) / s`, `s` the population deviation |
| `dr-grpo` | `R - mean` |
| `rloo` | `R` less the mean of the other rewards |
| `reinforce++` | `R`, whitened over the batch |
| `reinforce++-baseline` | `R - mean`, whitened over the batch |
| `step-z-score` | by turn: `R` and the turn's reward, as z-score over the trajectories that reach the turn |

A trajectory without a reward takes no part and has none; nor have groups of judges. A deviation of at most 1e-8 gives 0.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import numpy.typing as npt

from .records import Group, Segment, Trajectory

GROUP_KINDS = ("grpo-ddof1", "grpo", "dr-grpo", "rloo")
BATCH_KINDS = ("reinforce++", "reinforce++-baseline")
TURN_KINDS = ("step-z-score",)
KINDS = GROUP_KINDS + BATCH_KINDS + TURN_KINDS

#: A deviation up to this says that all values are equal.
EQUAL = 1e-8


def advantages(group: Group, kind: str = "grpo-ddof1") -> List[Optional[float]]:
    """By trajectory the advantage of all its tokens that train, whatever its length; `None` for one without a reward and in groups of judges.

    Takes the kinds that compare a group alone; see `batch_advantages` for `reinforce++`, `turn_advantages` for `step-z-score`.
    """
    if kind not in GROUP_KINDS:
        hint = {"reinforce++": "batch_advantages", "reinforce++-baseline": "batch_advantages", "step-z-score": "turn_advantages"}
        known = f"`{hint[kind]}` computes it" if kind in hint else f"expected one of {', '.join(KINDS)}"
        raise ValueError(f"advantages {kind!r} are not computed by trajectory from one group: {known}")
    return _placed(group, _of(kind, _rewards(group)))


def batch_advantages(groups: Sequence[Group], kind: str = "reinforce++") -> List[List[Optional[float]]]:
    """By group and trajectory, whitened over all tokens of these groups that train, each counted once; population deviation."""
    if kind not in BATCH_KINDS:
        raise ValueError(f"advantages {kind!r} are not whitened over a batch: expected one of {', '.join(BATCH_KINDS)}")
    values = [_of(kind, _rewards(group)) for group in groups]
    counts = [[one.token_sums().trained for one in group.trajectories if one.reward is not None] for group in groups]
    pairs = [(value, count) for of, tokens in zip(values, counts) for value, count in zip(of, tokens)]
    tokens = sum(count for _, count in pairs)
    mean = _sum(value * count for value, count in pairs) / tokens if tokens else 0.0
    deviation = math.sqrt(_sum((value - mean) * (value - mean) * count for value, count in pairs) / tokens) if tokens else 0.0
    return [
        _placed(group, [0.0 if deviation <= EQUAL else (value - mean) / deviation for value in of])
        for group, of in zip(groups, values)
    ]


def turn_advantages(group: Group) -> List[Optional[Dict[int, float]]]:
    """By trajectory and turn: `R + r`, `r` the turn's reward (0: none), as z-score over the trajectories that reach the turn.

    RLAnything, equation 1 with its policy advantage: population deviation, no epsilon. A value that is alone at its turn stays as it is.
    """
    if group.kind == "judge-turn":
        return [None] * len(group.trajectories)
    by_turn: Dict[int, List[Tuple[int, float]]] = {}
    for place, one in enumerate(group.trajectories):
        if one.reward is None:
            continue
        of_turns = one.turn_rewards or []
        for turn in sorted({call.turn for call in one.calls}):
            of_turn = of_turns[turn] if turn < len(of_turns) else None
            by_turn.setdefault(turn, []).append((place, one.reward + (of_turn or 0.0)))
    found: List[Optional[Dict[int, float]]] = [None if one.reward is None else {} for one in group.trajectories]
    for turn, values in by_turn.items():
        for (place, _), value in zip(values, _of("step-z-score", [value for _, value in values])):
            of_trajectory = found[place]
            assert of_trajectory is not None
            of_trajectory[turn] = value
    return found


def with_advantages(group: Group, kind: str = "grpo-ddof1") -> Group:
    """The same group whose rows carry `advantages`: at each token that trains, 0 elsewhere. Of trajectories without a reward: `None`.

    Groups of judges stay as they are. See `with_batch_advantages` for `reinforce++`.
    """
    if group.kind == "judge-turn":
        return group
    if kind in TURN_KINDS:
        of_turns = turn_advantages(group)
        return _with(group, lambda place, one, row: _spread_by_turn(row, one, of_turns[place]))
    values = advantages(group, kind)
    return _with(group, lambda place, one, row: _spread(row, values[place]))


def with_batch_advantages(groups: Sequence[Group], kind: str = "reinforce++") -> Iterator[Group]:
    """The same groups whose rows carry `advantages` that are whitened over all of them."""
    for group, values in zip(groups, batch_advantages(groups, kind)):
        yield group if group.kind == "judge-turn" else _with_values(group, values)


def _with_values(group: Group, values: List[Optional[float]]) -> Group:
    return _with(group, lambda place, one, row: _spread(row, values[place]))


Spread = Callable[[int, Trajectory, Segment], Optional[npt.NDArray[np.float32]]]


def _with(group: Group, spread: Spread) -> Group:
    trajectories = [
        replace(one, segments=[replace(row, advantages=spread(place, one, row)) for row in one.segments])
        for place, one in enumerate(group.trajectories)
    ]
    return replace(group, trajectories=trajectories)


def _rewards(group: Group) -> List[float]:
    if group.kind == "judge-turn":
        return []
    return [one.reward for one in group.trajectories if one.reward is not None]


def _placed(group: Group, values: List[float]) -> List[Optional[float]]:
    """At each trajectory with a reward the next of the values."""
    if not values:
        return [None] * len(group.trajectories)
    rest = iter(values)
    return [None if one.reward is None else next(rest) for one in group.trajectories]


def _of(kind: str, rewards: List[float]) -> List[float]:
    if not rewards:
        return []
    count = len(rewards)
    mean = _sum(rewards) / count
    centred = [reward - mean for reward in rewards]
    squares = _sum(value * value for value in centred)
    if kind == "grpo-ddof1":
        deviation = math.sqrt(squares / (count - 1)) if count > 1 else 0.0
        return [value / (deviation + 1e-6) for value in centred]
    if kind == "step-z-score" and count == 1:
        return rewards
    if kind in ("grpo", "step-z-score"):
        deviation = math.sqrt(squares / count)
        return [0.0 if deviation <= EQUAL else value / deviation for value in centred]
    if kind == "rloo":
        return [value * count / (count - 1) if count > 1 else 0.0 for value in centred]
    return rewards if kind == "reinforce++" else centred


def _sum(values: Iterable[float]) -> float:
    """In order, each sum rounded, as the engine adds: `sum` compensates since Python 3.12, and the last bits would differ."""
    total = 0.0
    for value in values:
        total += value
    return total


def _spread(row: Segment, value: Optional[float]) -> Optional[npt.NDArray[np.float32]]:
    return None if value is None else np.where(row.mask == 1, np.float32(value), np.float32(0)).astype(np.float32)


def _spread_by_turn(
    row: Segment, trajectory: Trajectory, values: Optional[Dict[int, float]]
) -> Optional[npt.NDArray[np.float32]]:
    if values is None:
        return None
    turns = {call.call_id: call.turn for call in trajectory.calls}
    spread = np.zeros(len(row), dtype=np.float32)
    for span in row.spans:
        if span.use == "sampled":
            spread[span.start : span.start + span.len] = values[turns[span.call_id]]
    return np.where(row.mask == 1, spread, np.float32(0)).astype(np.float32)
