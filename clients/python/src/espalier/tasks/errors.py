"""What can go wrong with posted tasks, beside the errors of every call (`espalier.sandbox.errors`)."""

from __future__ import annotations

from ..sandbox.errors import EspalierError


class TaskRejected(EspalierError, ValueError):
    """The engine cannot play the task: it needs something that the experiment does not have. Another task is another `client_id`."""


class RunNotWorking(EspalierError):
    """No engine works on the run, so the task waits; it is not lost. `POST /v1/runs/{run}/resume` or `espalier run` goes on with it."""

    def __init__(self, group_id: str, state: str) -> None:
        super().__init__(f"group {group_id} waits, but its run is {state}\nhint: continue the run, then ask for the group again")
        self.group_id, self.state = group_id, state


class GroupNotReady(EspalierError):
    """A group that closed without rows for a trainer: too few of its rollouts have a reward, or a filter kept it back."""

    def __init__(self, group_id: str, status: str, reason: str) -> None:
        super().__init__(f"group {group_id} is {status}: {reason}")
        self.group_id, self.status, self.reason = group_id, status, reason
