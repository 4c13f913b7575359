"""TRL 1.16: a `rollout_func` of `GRPOTrainer` that lets Espalier play its prompts.

```python
from espalier.adapters.trl import EspalierRollouts, espalier_reward

tasks = [json.loads(line) for line in open("tasks.jsonl")]
rollouts = EspalierRollouts("RUN", tasks)          # base_url and api_key: ESPALIER_URL and ESPALIER_API_KEY
trainer = GRPOTrainer(
    model, reward_funcs=espalier_reward, rollout_func=rollouts,
    train_dataset=Dataset.from_list([{"prompt": task["instruction"]} for task in tasks]), args=args,
)
```

A prompt stands for the task with this instruction; of a conversation its last message does. Equal prompts that follow one another are one group.
While the trainer evaluates, groups are posted as evaluation.

Refused by name: a prompt without a task, a trajectory of several rows, rows with images, a trajectory without a reward.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence

from ..samples import Group
from ..tasks import AsyncTaskClient
from .rows import only_row, scored

TRAINER = "TRL's rollout_func"


class EspalierRollouts:
    """`run`: the id of a run, or its name. `tasks`: lines of a task file. Other arguments: those of `TaskClient`."""

    # TRL names functions by it.
    __name__ = "espalier_rollouts"

    def __init__(self, run: str, tasks: Iterable[Mapping[str, Any]], *, endpoint: Optional[str] = None, **client: Any) -> None:
        self._run, self._client, self._endpoint = run, client, endpoint
        self._tasks: Dict[str, Mapping[str, Any]] = {}
        for task in tasks:
            if self._tasks.setdefault(str(task["instruction"]), task) is not task:
                raise ValueError(f"tasks {self._tasks[task['instruction']]['id']!r} and {task['id']!r} have the same instruction")

    def task(self, prompt: Any) -> Mapping[str, Any]:
        """The task of a prompt. Raises `KeyError`."""
        text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
        if not isinstance(text, str):
            text = "".join(part.get("text", "") for part in text)
        try:
            return self._tasks[text]
        except KeyError:
            raise KeyError(f"no task has the instruction {text[:80]!r}; the prompts of the dataset are the instructions of the tasks") from None

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> Dict[str, List[Any]]:
        """One completion for each prompt, in their order."""
        model = getattr(trainer, "model", None)
        purpose = "train" if model is None or model.training else "eval"
        runs = [(prompt, len(list(same))) for prompt, same in itertools.groupby(prompts)]
        out: Dict[str, List[Any]] = {"prompt_ids": [], "completion_ids": [], "logprobs": [], "env_mask": []}
        out.update({"espalier_reward": [], "espalier_traj_id": []})
        for (_, count), group in zip(runs, asyncio.run(self._rollouts(runs, purpose))):
            for trajectory in scored(group, count, TRAINER):
                row = only_row(trajectory, TRAINER)
                start = row.prompt_len
                out["prompt_ids"].append(row.tokens[:start].tolist())
                out["completion_ids"].append(row.tokens[start:].tolist())
                out["logprobs"].append(row.logprobs[start:].tolist())
                out["env_mask"].append(row.mask[start:].tolist())
                out["espalier_reward"].append(trajectory.reward)
                out["espalier_traj_id"].append(trajectory.traj_id)
        return out

    async def _rollouts(self, runs: Sequence[Any], purpose: str) -> List[Group]:
        # A loop of its own for each call: the trainer has none.
        async with AsyncTaskClient(self._run, **self._client) as tasks:
            return await asyncio.gather(
                *(
                    tasks.rollout(self.task(prompt), group_size=count, purpose=purpose, endpoint=self._endpoint)
                    for prompt, count in runs
                )
            )


def espalier_reward(completions: Sequence[Any], espalier_reward: Sequence[float], **_: Any) -> List[float]:
    """A reward function of `GRPOTrainer`: what Espalier's rewards said."""
    return list(espalier_reward)
