"""verl's own worker and manager of agent loops."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from pathlib import Path
from typing import Any, List

import numpy as np
import pytest

pytest.importorskip("verl")
import driven as services
import tiny
from fake_tasks import FakeTasks
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopManager, AgentLoopWorker


def config(folder: Path, n: int, **loop: Any) -> Any:
    """verl's own defaults, with the loop in the file that it names."""
    model = tiny.model(folder / "model", weights=False)
    file = folder / "agent.yaml"
    OmegaConf.save(OmegaConf.create([{"name": "espalier", "_target_": "espalier.adapters.verl.EspalierAgentLoop", **loop}]), file)
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose(
            "ppo_trainer",
            [
                f"actor_rollout_ref.model.path={model}",
                f"actor_rollout_ref.rollout.n={n}",
                "actor_rollout_ref.rollout.name=vllm",
                "actor_rollout_ref.rollout.prompt_length=64",
                "actor_rollout_ref.rollout.response_length=64",
                "actor_rollout_ref.rollout.calculate_log_probs=True",
                f"actor_rollout_ref.rollout.agent.agent_loop_config_path={file}",
                "actor_rollout_ref.rollout.agent.num_workers=2",
            ],
        )


def batch(tasks: List[Any], n: int, **more: Any) -> DataProto:
    """Samples as verl's trainer repeats them."""
    count = len(tasks) * n
    column = lambda values: np.array(values, dtype=object)  # noqa: E731
    columns = {
        "raw_prompt": column([[{"role": "user", "content": task["instruction"]}] for task in tasks for _ in range(n)]),
        "agent_name": column(["espalier"] * count),
        "espalier_task": column([dict(task) for task in tasks for _ in range(n)]),
        "uid": column([f"uid-{task['id']}" for task in tasks for _ in range(n)]),
        "index": column([place for place in range(len(tasks)) for _ in range(n)]),
        **{name: column([value] * count) for name, value in more.items()},
    }
    return DataProto.from_dict(non_tensors=columns)


def test_the_versions_are_those_that_are_promised() -> None:
    assert version("verl") == "0.9.1"


def test_a_worker_of_verl_gets_the_tokens_that_were_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from espalier.adapters import verl as adapter

    fake = FakeTasks()
    made = adapter.AsyncTaskClient
    monkeypatch.setattr(adapter, "AsyncTaskClient", lambda run, **more: made(run, **{**more, "transport": fake.transport()}))
    worker = AgentLoopWorker(config(tmp_path, 3, run="run", base_url="http://fake"), None)
    samples = batch([{"id": f"t{n}", "instruction": "go"} for n in range(2)], 3, espalier_purpose="train")
    samples.non_tensor_batch["priority"] = np.arange(6)
    out = asyncio.run(worker.generate_sequences(samples))
    assert len(fake.places) == 2, "samples of one uid are one group"
    responses, mask = out.batch["responses"], out.batch["response_mask"]
    assert responses[:, 0].tolist() == [10, 11, 12, 10, 11, 12] and responses[0, :6].tolist() == [10, 11, 12, 13, 4, 5]
    assert mask[0, :7].tolist() == [1, 1, 0, 1, 0, 0, 0]
    assert out.batch["prompts"][0, -3:].tolist() == [1, 2, 3] and out.batch["prompts"].shape[1] == 64
    assert out.batch["rollout_log_probs"][0, :4].tolist() == [-0.5, -0.25, -0.125, -1.0]
    assert out.batch["rm_scores"].sum(dim=1).tolist() == [0, 1, 2, 0, 1, 2]
    assert out.non_tensor_batch["group_id"].tolist() == ["run.g0"] * 3 + ["run.g1"] * 3
    assert set(out.non_tensor_batch["min_version"]) == {"v1"}

    def longer(raw: Any) -> None:
        for one in raw["trajectories"]:
            one["segments"] = one["segments"] * 2

    fake.change = longer
    with pytest.raises(Exception, match="has 2 rows, and verl's AgentLoopOutput takes one"):
        asyncio.run(worker.generate_sequences(samples))


@services.needed
def test_the_manager_of_verl_drives_a_run(tmp_path: Path, driven: services.Driven) -> None:
    import ray

    ray.init(num_cpus=2, include_dashboard=False, ignore_reinit_error=True, log_to_driver=False)
    try:
        before = driven.groups()
        settings = config(tmp_path, 4, run=driven.run, base_url=driven.daemon.url, api_key=driven.key)
        manager = AgentLoopManager.create(settings, None)
        # Seven samples of three uids over two workers: a group is split between them.
        samples = batch([driven.task(f"v{n}") for n in range(3)], 4, espalier_purpose="train")
        out = manager.generate_sequences(samples)
        assert len(out) == 12 and driven.groups() - before == 3
        assert len(set(out.non_tensor_batch["traj_id"])) == 12, "no trajectory came twice"
        scores = out.batch["rm_scores"].sum(dim=1)
        assert set(scores.tolist()) == {0.0, 1.0}
        trained = out.batch["response_mask"].sum(dim=1)
        assert (trained > 0).all() and (out.batch["rollout_log_probs"][out.batch["response_mask"] == 1] < 0).all()
    finally:
        ray.shutdown()
