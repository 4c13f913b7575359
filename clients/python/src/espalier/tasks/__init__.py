"""Tasks that a trainer gives to a run one by one (`[tasks.trainer]` of the experiment), and the groups that they become.

```python
from espalier import TaskClient

with TaskClient("RUN") as tasks:                                     # ESPALIER_URL, ESPALIER_API_KEY
    group = tasks.rollout({"id": "t1", "instruction": "..."}, group_size=8)
    for trajectory in group.trajectories:
        print(trajectory.reward, len(trajectory.segments))
    tasks.close_tasks()                                              # no more come: the run ends
```

`AsyncTaskClient` is the same for asyncio.
"""

from __future__ import annotations

from .aio.client import AsyncTaskClient
from .errors import GroupNotReady, RunNotWorking, TaskRejected
from .sync.client import TaskClient

__all__ = ["AsyncTaskClient", "GroupNotReady", "RunNotWorking", "TaskClient", "TaskRejected"]
