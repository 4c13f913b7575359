"""Runs of Espalier in the loops of trainers, one module a trainer, none of which is loaded before it is asked for.

| module | trainer | what the trainer does |
|---|---|---|
| `espalier.adapters.verl` | verl 0.9.1 | calls an agent loop for each sample: posts its task, and gives the row of the group |
| `espalier.adapters.verifiers` | verifiers 0.4.0 | runs episodes of an environment: posts its task, and gives a trace |
| `espalier.adapters.trl` | TRL 1.16 | asks `rollout_func` of `GRPOTrainer` for the completions of its prompts |
| `espalier.adapters.tinker` | tinker, and SkyRL 0.3.0 as its server | takes the rows of leased groups as `Datum` |

Nothing is lost on the way without a word: what the interface of a trainer cannot hold is refused, by name (`SeveralRows`,
`ImagesLost`, `NoReward`).
"""

from __future__ import annotations

from .rows import ImagesLost, NoReward, SeveralRows, only_row, scored

__all__ = ["ImagesLost", "NoReward", "SeveralRows", "only_row", "scored"]
