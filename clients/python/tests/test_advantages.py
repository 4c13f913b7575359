"""Advantages of exported groups: tables worked by hand, and NumPy over random groups."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Dict, List, Optional

import making
import numpy as np
import numpy.typing as npt
import pytest
from espalier import samples

ROOT = float(np.sqrt(5))


def group_of(path: Path, rewards: List[Optional[float]]) -> samples.Group:
    """A group of trajectories that train 7 tokens each, in several calls."""
    (group,) = samples.read(making.write(path / "groups.msgpack", [making.group()]))
    one = group.trajectories[0]
    return replace(group, trajectories=[replace(one, reward=reward, turn_rewards=None) for reward in rewards])


# Mean 2, squares 1 + 1 + 9 + 9 = 20, population deviation sqrt(5); one without a reward takes no part.
@pytest.mark.parametrize(
    "kind, expected",
    [
        ("grpo", [-1 / ROOT, 1 / ROOT, None, -3 / ROOT, 3 / ROOT]),
        ("dr-grpo", [-1, 1, None, -3, 3]),
        # Others of the first: 3, -1, 5, mean 7/3. Others of the third: 1, 3, 5, mean 3.
        ("rloo", [-4 / 3, 4 / 3, None, -4, 4]),
    ],
)
def test_each_definition_by_hand(tmp_path: Path, kind: str, expected: List[Optional[float]]) -> None:
    group = group_of(tmp_path, [1, 3, None, -1, 5])
    assert samples.advantages(group, kind) == pytest.approx(expected)
    for given, value in zip(samples.with_advantages(group, kind).trajectories, expected):
        for row in given.segments:
            assert (row.advantages is None) == (value is None)
            if row.advantages is not None and value is not None:
                assert row.advantages.tolist() == pytest.approx((row.mask * np.float32(value)).tolist())
    for rewards in ([2.0, 2.0], [2.0]):
        assert samples.advantages(group_of(tmp_path, list(rewards)), kind) == [0.0] * len(rewards)
    assert samples.advantages(group_of(tmp_path, [None]), kind) == [None]


def reference(kind: str, rewards: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    if kind == "rloo":
        others = [np.delete(rewards, place).mean() for place in range(len(rewards))]
        return np.asarray(rewards - others)
    centred = rewards - rewards.mean()
    if kind == "dr-grpo":
        return np.asarray(centred)
    if kind == "grpo-ddof1":
        return np.asarray(centred / (rewards.std(ddof=1) + 1e-6))
    return np.asarray(np.zeros_like(rewards) if rewards.std() <= 1e-8 else centred / rewards.std())


def test_random_groups_against_numpy(tmp_path: Path) -> None:
    seed = 0x5EED
    print(f"seed {seed}")
    generator = np.random.default_rng(seed)
    group = group_of(tmp_path, [0.0])
    one = group.trajectories[0]
    for _ in range(500):
        rewards = generator.integers(-4, 5, generator.integers(2, 12)) / 4
        group = replace(group, trajectories=[replace(one, reward=float(reward)) for reward in rewards])
        for kind in ("grpo", "grpo-ddof1", "dr-grpo", "rloo"):
            assert samples.advantages(group, kind) == pytest.approx(reference(kind, rewards).tolist(), abs=1e-9), rewards


def test_a_batch_is_whitened_over_its_tokens_that_train(tmp_path: Path) -> None:
    groups = [group_of(tmp_path, [1, 0, None]), group_of(tmp_path, [0, 0])]
    # One trajectory that trains fewer tokens than the others.
    first = groups[1].trajectories[0]
    row = replace(first.segments[0], mask=np.zeros_like(first.segments[0].mask))
    groups[1] = replace(groups[1], trajectories=[replace(first, segments=[row]), groups[1].trajectories[1]])
    tokens = [one.token_sums().trained for group in groups for one in group.trajectories if one.reward is not None]
    assert tokens == [7, 7, 0, 7]
    for kind, values in (("reinforce++", [1, 0, 0, 0]), ("reinforce++-baseline", [0.5, -0.5, 0, 0])):
        by_token = np.repeat(values, tokens)
        expected = (np.asarray(values) - by_token.mean()) / by_token.std()
        given = samples.batch_advantages(groups, kind)
        assert given[0][2] is None
        assert [value for of in given for value in of if value is not None] == pytest.approx(expected.tolist())
        whitened = list(samples.with_batch_advantages(groups, kind))
        every = np.concatenate(
            [
                row.advantages[row.mask == 1]
                for group in whitened
                for one in group.trajectories
                for row in one.segments
                if row.advantages is not None
            ]
        )
        assert (every.mean(), every.std()) == pytest.approx((0, 1), abs=1e-6)


def test_turns_are_compared_with_the_same_turn_of_others(tmp_path: Path) -> None:
    group = group_of(tmp_path, [1, -1, None])
    long, short, unscored = (
        replace(one, calls=[replace(call, turn=turn) for turn, call in enumerate(one.calls)]) for one in group.trajectories
    )
    last = len(long.calls) - 1
    by_turn: List[Optional[float]] = [1.0, *[None] * (last - 1), 0.5]
    long = replace(long, turn_rewards=by_turn)
    short = replace(short, calls=short.calls[:1], segments=[])
    group = replace(group, trajectories=[long, short, unscored])
    first, second, third = samples.turn_advantages(group)
    # The first turn: 2 and -1, mean 0.5, deviation 1.5. The last one is reached by one, which keeps 1 + 0.5.
    assert first is not None and second is not None and third is None
    assert (first[0], second[0], first[last]) == (1.0, -1.0, 1.5)
    of_call: Dict[str, float] = {call.call_id: first[call.turn] for call in long.calls}
    for row in samples.with_advantages(group, "step-z-score").trajectories[0].segments:
        assert row.advantages is not None
        for span in row.spans:
            inside = slice(span.start, span.start + span.len)
            value = of_call[span.call_id] if span.use == "sampled" else 0
            assert row.advantages[inside].tolist() == (row.mask[inside] * np.float32(value)).tolist()


def test_a_kind_that_one_group_does_not_give_says_what_does(tmp_path: Path) -> None:
    group = group_of(tmp_path, [1, 0])
    with pytest.raises(ValueError, match="`batch_advantages` computes it"):
        samples.advantages(group, "reinforce++")
    with pytest.raises(ValueError, match="`turn_advantages` computes it"):
        samples.advantages(group, "step-z-score")
    with pytest.raises(ValueError, match="expected one of grpo-ddof1, grpo"):
        samples.with_advantages(group, "gae")
    with pytest.raises(ValueError, match=r"expected one of reinforce\+\+, reinforce\+\+-baseline"):
        samples.batch_advantages([group], "grpo")
