"""What trainers are given and refused, without a trainer: their own loops are tried by `make test-adapters`."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict

import pytest
from espalier import TaskClient
from espalier.adapters import ImagesLost, NoReward, SeveralRows, only_row, scored
from espalier.adapters.trl import EspalierRollouts, espalier_reward
from espalier.samples import Group, ImageSpan
from fake_tasks import FakeTasks

TASKS = [{"id": f"t{n}", "instruction": f"do {n}"} for n in range(2)]


def group(fake: FakeTasks, **more: Any) -> Group:
    # An adapter looks at rows itself: its reader may have been told to embed or omit images.
    with TaskClient("run", base_url="http://fake", transport=fake.transport(), images="omit") as client:
        return client.rollout(TASKS[0], **more)


def test_what_one_row_cannot_hold_is_refused_by_name() -> None:
    trajectory = group(FakeTasks()).trajectories[0]
    assert only_row(trajectory, "x").prompt_len == 3
    row = trajectory.segments[0]
    with pytest.raises(SeveralRows, match="has 2 rows, and verl takes one"):
        only_row(dataclasses.replace(trajectory, segments=[row, row]), "verl")
    with pytest.raises(SeveralRows, match="has 0 rows"):
        only_row(dataclasses.replace(trajectory, segments=[]), "verl")
    imaged = dataclasses.replace(row, images=[ImageSpan("cd" * 32, 0, 2)])
    with pytest.raises(ImagesLost, match="1 images, which verl would lose"):
        only_row(dataclasses.replace(trajectory, segments=[imaged]), "verl")


def test_a_missing_reward_is_never_a_zero() -> None:
    fake = FakeTasks()
    whole = group(fake, group_size=3)
    assert [one.reward for one in scored(whole, 3, "x")] == [0.0, 1.0, 2.0]
    with pytest.raises(ValueError, match="3 of 4 rollouts"):
        scored(whole, 4, "x")
    unscored = dataclasses.replace(whole.trajectories[1], reward=None, removed="captcha")
    with pytest.raises(NoReward, match=r"no reward \(captcha\)"):
        scored(dataclasses.replace(whole, trajectories=[unscored]), 1, "x")


def test_trl_is_given_a_completion_for_each_prompt_in_order() -> None:
    fake = FakeTasks()
    rollouts = EspalierRollouts("run", TASKS, base_url="http://fake", transport=fake.transport())
    chat = [{"role": "user", "content": "do 1"}]

    class Trainer:
        class model:
            training = True

    out = rollouts(["do 0", "do 0", chat, chat, chat], Trainer)
    assert [len(value) for value in out.values()] == [5] * len(out)
    assert out["espalier_reward"] == espalier_reward([], out["espalier_reward"]) == [0.0, 1.0, 0.0, 1.0, 2.0]
    assert out["prompt_ids"][0] == [1, 2, 3] and out["completion_ids"][1] == [11, 11, 12, 13, 4, 5]
    assert out["env_mask"][0] == [1, 1, 0, 1, 0, 0] and out["logprobs"][0][:2] == [-0.5, -0.25]
    sizes: Dict[str, Any] = {body["task"]["id"]: (body["group_size"], body["purpose"]) for body in fake.posted.values()}
    assert sizes == {"t0": (2, "train"), "t1": (3, "train")}
    Trainer.model.training = False
    rollouts(["do 0"], Trainer)
    assert [body["purpose"] for body in fake.posted.values()].count("eval") == 1
    with pytest.raises(KeyError, match="no task has the instruction 'else'"):
        rollouts(["else"], Trainer)
    with pytest.raises(ValueError, match="the same instruction"):
        EspalierRollouts("run", [TASKS[0], {"id": "x", "instruction": "do 0"}])
