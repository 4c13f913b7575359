"""verifiers' own loops: planned slots in a serving environment, and its evaluation from a configuration to its records."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from pathlib import Path
from typing import Any, List

import pytest

pytest.importorskip("verifiers.v1")
import driven as services
import verifiers.v1 as vf
from espalier.adapters.verifiers import EspalierEnv
from fake_tasks import FakeTasks
from verifiers.v1.cli.eval.runner import run_eval
from verifiers.v1.configs.cli.eval import EvalConfig
from verifiers.v1.utils.loaders import load_environment

TASKS = [{"id": f"t{n}", "instruction": "go"} for n in range(2)]


def config(folder: Path, tasks: Any, **env: Any) -> EvalConfig:
    taskset = {"id": "espalier-verifiers", "file": str(services.tasks_file(folder, tasks))}
    return EvalConfig.model_validate(
        {
            "env": {"id": "espalier-verifiers", "taskset": taskset, "run": "run", "base_url": "http://fake", **env},
            "model": "policy", "num_rollouts": 4, "push": False, "rich": None, "output_dir": str(folder / "out"),
        }
    )  # fmt: skip


async def episodes(env: vf.Env, n: int) -> List[vf.Episode]:
    """As verifiers' runners do it."""
    ctx = vf.ModelContext(client=vf.EvalClientConfig(), model="policy", sampling=vf.SamplingConfig())
    async with env.serving():
        slots = [slot for task in env.taskset for slot in env.slots(task, n)]
        return list(await asyncio.gather(*(env.run_slot(slot, ctx) for slot in slots)))


def test_the_versions_are_those_that_are_promised() -> None:
    assert version("verifiers") == "0.4.0"


def test_slots_of_a_task_are_one_group_and_traces_hold_its_tokens(tmp_path: Path) -> None:
    fake = FakeTasks()
    env = load_environment(config(tmp_path, TASKS, purpose="eval").env)
    assert isinstance(env, EspalierEnv)
    env.transport = fake.transport()
    done = asyncio.run(episodes(env, 3))
    assert [episode.ok for episode in done] == [True] * 6 and len(fake.places) == 2
    assert [body["purpose"] for body in fake.posted.values()] == ["eval"] * 2
    traces = [episode.traces[0] for episode in done]
    assert [trace.reward for trace in traces] == [0, 1, 2, 0, 1, 2]
    (branch,) = traces[1].branches
    assert branch.token_ids == [1, 2, 3, 11, 11, 12, 13, 4, 5]
    assert branch.sampled_mask == [False, False, False, True, True, False, True, False, False]
    assert branch.logprobs == [0, 0, 0, -0.5, -0.25, 0, -1, 0, 0]
    assert branch.usage.completion_tokens == 4 and branch.trainable
    record = done[1].to_record()
    assert record["traces"][0]["rewards"]["espalier"]["score"] == 1 and record["task"]["data"]["espalier_task"] == TASKS[0]


def test_several_rows_are_branches_and_what_would_be_lost_is_an_error_of_the_episode(tmp_path: Path) -> None:
    fake = FakeTasks()
    env = load_environment(config(tmp_path, TASKS[:1]).env)
    env.transport = fake.transport()

    def twice(raw: Any) -> None:
        for one in raw["trajectories"]:
            one["segments"] = one["segments"] * 2

    fake.change = twice
    (episode,) = asyncio.run(episodes(env, 1))
    assert episode.ok and len(episode.traces[0].branches) == 2

    def unscored(raw: Any) -> None:
        raw["trajectories"][0].update(reward=None, removed="captcha")

    fake.change = unscored
    (episode,) = asyncio.run(episodes(env, 1))
    assert not episode.ok and not episode.traces and "captcha" in episode.errors[0].message
    fake.change = lambda raw: raw.update(images=1)
    (episode,) = asyncio.run(episodes(env, 1))
    assert not episode.ok and episode.errors[0].type == "ImagesRefused"


@services.needed
def test_the_evaluation_of_verifiers_drives_a_run(tmp_path: Path, driven: services.Driven) -> None:
    before = driven.groups()
    tasks = [driven.task(f"e{n}") for n in range(3)]
    done = asyncio.run(run_eval(config(tmp_path, tasks, run=driven.run, base_url=driven.daemon.url, api_key=driven.key)))
    assert len(done) == 12 and all(episode.ok for episode in done), [episode.errors for episode in done]
    assert driven.groups() - before == 3, "the four rollouts of a task are one group"
    assert len({episode.traces[0].info["traj_id"] for episode in done}) == 12
    assert {episode.traces[0].reward for episode in done} == {0.0, 1.0}
    assert all(any(branch.sampled_mask) for episode in done for branch in episode.traces[0].branches)
    assert list((tmp_path / "out").rglob("traces.jsonl"))
