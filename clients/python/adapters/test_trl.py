"""A step of TRL's own GRPO trainer."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")
import tiny
from datasets import Dataset
from espalier.adapters.trl import EspalierRollouts, espalier_reward
from fake_tasks import FakeTasks
from trl import GRPOConfig, GRPOTrainer

TASKS = [{"id": f"t{n}", "instruction": f"w{n + 20} w{n + 30}"} for n in range(4)]


def test_the_versions_are_those_that_are_promised() -> None:
    assert version("trl") == "1.16.0"


def test_a_step_of_grpo_trains_on_what_espalier_sampled(tmp_path: Path) -> None:
    fake = FakeTasks()
    rollouts = EspalierRollouts("run", TASKS, base_url="http://fake", transport=fake.transport())
    given = []

    def counted(prompts: Any, trainer: Any) -> Any:
        out = rollouts(prompts, trainer)
        assert all(len(value) == len(prompts) for value in out.values())
        given.append(out)
        return out

    args = GRPOConfig(
        output_dir=str(tmp_path / "out"), per_device_train_batch_size=4, num_generations=4, max_steps=2, learning_rate=1e-2, use_cpu=True,
        report_to=[], save_strategy="no", logging_steps=1, max_completion_length=16, disable_tqdm=True, gradient_checkpointing=False,
        bf16=False,
    )  # fmt: skip
    trainer = GRPOTrainer(
        str(tiny.model(tmp_path / "model")), reward_funcs=espalier_reward, rollout_func=counted, args=args,
        train_dataset=Dataset.from_list([{"prompt": task["instruction"]} for task in TASKS]),
    )  # fmt: skip
    before = {name: value.detach().clone() for name, value in trainer.model.named_parameters()}
    trainer.train()
    sizes = [body["group_size"] for body in fake.posted.values()]
    assert sizes and set(sizes) == {4}, "equal prompts are one group"
    log = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert log[0]["reward"] == 1.5 and log[0]["rewards/espalier_reward/mean"] == 1.5
    changed = sum(not value.equal(before[name]) for name, value in trainer.model.named_parameters())
    assert changed > 0 and given[0]["completion_ids"][0] == [10, 11, 12, 13, 4, 5]
