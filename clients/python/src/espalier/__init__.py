"""Client library of the Espalier rollout engine.

`espalier.samples` reads and checks exported groups; `espalier.trainers` maps them onto the forms of trainers;
`espalier.delivery` reads the groups of a run as they come, each for one trainer; `espalier.tasks` gives tasks to a run;
`espalier.adapters` puts these into the loops of trainers; `espalier.sandbox` runs sandboxes of a service. Their clients (`GroupReader`,
`TaskClient`, `SandboxClient`, and the same with `Async` in front) are here, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .delivery import AsyncGroupReader as AsyncGroupReader
    from .delivery import GroupReader as GroupReader
    from .sandbox import AsyncSandboxClient as AsyncSandboxClient
    from .sandbox import SandboxClient as SandboxClient
    from .tasks import AsyncTaskClient as AsyncTaskClient
    from .tasks import TaskClient as TaskClient

__version__ = "0.1.0"

__all__ = [
    "AsyncGroupReader",
    "AsyncSandboxClient",
    "AsyncTaskClient",
    "GroupReader",
    "SandboxClient",
    "TaskClient",
    "__version__",
]


def __getattr__(name: str) -> Any:
    # Who only reads samples does not load an HTTP client.
    if name in ("AsyncSandboxClient", "SandboxClient"):
        from . import sandbox

        return getattr(sandbox, name)
    if name in ("AsyncGroupReader", "GroupReader"):
        from . import delivery

        return getattr(delivery, name)
    if name in ("AsyncTaskClient", "TaskClient"):
        from . import tasks

        return getattr(tasks, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
