"""verl 0.9.1: an agent loop that lets Espalier play each sample.

```yaml
# agent.yaml, named by actor_rollout_ref.rollout.agent.agent_loop_config_path
- name: espalier
  _target_: espalier.adapters.verl.EspalierAgentLoop
  run: RUN                       # base_url and api_key: ESPALIER_URL and ESPALIER_API_KEY
```

A sample of the dataset has `agent_name` = "espalier" and the task under `espalier_task` (an object, or its JSON text). The samples of one
`uid` are one group of `rollout.n` rollouts: whichever worker comes first posts the task, and each sample takes one trajectory. Samples of
the validation set have `espalier_purpose` = "eval" and are groups of `val_kwargs.n`. A sample without `uid` is a group of its own.

Refused by name: a trajectory of several rows, rows with images, a trajectory without a reward, and a row that is longer than `prompt_length` or
`response_length`, which verl would cut.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Mapping, Optional, Tuple
from weakref import WeakKeyDictionary

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput
from verl.utils.rollout_trace import rollout_trace_op

from ..tasks import AsyncTaskClient
from .rows import only_row, scored

TRAINER = "verl's AgentLoopOutput"
#: By event loop: connections belong to one.
_clients: "WeakKeyDictionary[Any, Dict[Tuple[Any, ...], AsyncTaskClient]]" = WeakKeyDictionary()


class EspalierAgentLoop(AgentLoopBase):
    """Plays a sample by a run of Espalier. `run`: its id or name; `within`: seconds for a group.

    It registers itself under no name: that would take the place of the file's entry, and with it of `run`.
    """

    def __init__(
        self,
        *args: Any,
        run: str = "",
        base_url: Optional[str] = None,
        api_key: Optional[str] = None,
        endpoint: Optional[str] = None,
        within: float = 3600.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if not run:
            raise ValueError("run is not set: name the run of Espalier in the file of agent_loop_config_path")
        self._endpoint = endpoint
        # An agent loop is made for each sample; the connection is kept.
        clients, key = _clients.setdefault(self.loop, {}), (run, base_url, api_key, within)
        if key not in clients:
            clients[key] = AsyncTaskClient(run, base_url=base_url, api_key=api_key, within=within)
        self._client = clients[key]

    @rollout_trace_op
    async def run(self, sampling_params: Dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        task = kwargs.get("espalier_task")
        if task is None:
            raise KeyError("the sample has no espalier_task: add the task as a column of the dataset")
        task = json.loads(task) if isinstance(task, str) else task
        purpose = str(kwargs.get("espalier_purpose") or "train")
        size = int(self.rollout_config.val_kwargs.n if purpose == "eval" else self.rollout_config.n)
        uid, place = kwargs.get("uid"), 0
        if uid is None:
            size = 1
        elif "priority" in kwargs:
            # Counts the samples of the whole batch, in which those of a uid follow one another: workers need not know of each other.
            place = int(kwargs["priority"]) % size
        elif size > 1:
            raise KeyError("the batch has no priority: it tells which sample of its uid this is; let verl's AgentLoopManager make the batch")
        client_id = None if uid is None else f"verl {purpose} {uid}"
        group = await self._client.rollout(task, group_size=size, purpose=purpose, endpoint=self._endpoint, client_id=client_id)
        return self.output(scored(group, size, TRAINER)[place], group.group_id)

    def output(self, trajectory: Any, group_id: str) -> AgentLoopOutput:
        """A trajectory as verl takes it."""
        row = only_row(trajectory, TRAINER)
        start = row.prompt_len
        for name, length, most in (
            ("prompt_length", start, self.rollout_config.prompt_length),
            ("response_length", len(row) - start, self.rollout_config.response_length),
        ):
            if length > most:
                raise ValueError(f"a row of {trajectory.traj_id} has {length} tokens where rollout.{name} is {most}: verl would cut it")
        labels = [run.label for run in row.version_runs]
        extra: Mapping[str, Any] = {
            "group_id": group_id,
            "traj_id": trajectory.traj_id,
            "min_version": labels[0] if labels else None,
            "max_version": labels[-1] if labels else None,
            "turn_scores": [],
            "tool_rewards": [],
        }
        return AgentLoopOutput(
            prompt_ids=row.tokens[:start].tolist(),
            response_ids=row.tokens[start:].tolist(),
            response_mask=row.mask[start:].tolist(),
            response_logprobs=row.logprobs[start:].tolist(),
            reward_score=float(trajectory.reward),
            num_turns=2 * len(trajectory.calls),
            metrics=AgentLoopMetrics(generate_sequences=trajectory.timing_ms.get("model", 0) / 1000.0),
            extra_fields=dict(extra),
        )
