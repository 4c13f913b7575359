"""tinker, and SkyRL 0.3.0 as a server that speaks it (extras tinker and jax): rows of leased groups as `Datum`, and a step with them.

```python
with GroupReader("RUN", groups=8, exact=True, advantages="grpo") as reader:
    for step, batch in enumerate(reader, start=1):
        train(training, batch, learning_rate=1e-5)     # training: ServiceClient(...).create_lora_training_client(...)
        reader.trained(batch, step)
        reader.ack(step)                               # once the checkpoint is written
```

Every row of a trajectory is a `Datum`, so several rows are no loss. Rows with images are refused (`ImagesLost`): their pixels would have to be
uploaded as chunks of the input.
"""

from __future__ import annotations

from typing import Any, Iterable, List

import tinker

from .. import trainers
from ..delivery import Batch
from ..samples import Group, Segment
from .rows import ImagesLost

TRAINER = "a Datum of the tinker adapter"


def datum(segment: Segment) -> tinker.Datum:
    """A row that carries advantages, as `importance_sampling`, `ppo` and `cispo` take it. A token that does not train has advantage 0."""
    arrays = trainers.tinker(segment)
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(arrays["input_tokens"].tolist()),
        loss_fn_inputs={
            "target_tokens": arrays["target_tokens"].astype("int64"),
            "logprobs": arrays["logprobs"].astype("float32"),
            "advantages": arrays["advantages"],
        },
    )


def data(groups: Iterable[Group]) -> List[tinker.Datum]:
    """The rows of groups that train. Raises `ImagesLost`, and `ValueError` at a row without advantages."""
    out = []
    for group in groups:
        for trajectory, segment in trainers.rows(group):
            if not trajectory.trainable or not segment.mask.any():
                continue
            if segment.images:
                raise ImagesLost(trajectory, len(segment.images), TRAINER)
            out.append(datum(segment))
    return out


def train(training: Any, batch: Batch, *, learning_rate: float, loss_fn: str = "importance_sampling") -> Any:
    """One step of a `TrainingClient`: forward, backward, optimizer. What `forward_backward` gave, or None where no row of the batch trains."""
    rows = data(batch.groups)
    if not rows:
        return None
    # Sent in this order before either is awaited, as tinker has it.
    forward_backward = training.forward_backward(rows, loss_fn)
    step = training.optim_step(tinker.AdamParams(learning_rate=learning_rate))
    result = forward_backward.result()
    step.result()
    return result
