"""Client library of the Espalier rollout engine.

`espalier.samples` reads and checks exported groups; `espalier.trainers` maps them onto the forms of trainers;
`espalier.sandbox` runs sandboxes of a service (`SandboxClient` and `AsyncSandboxClient` are here, too).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .sandbox import AsyncSandboxClient as AsyncSandboxClient
    from .sandbox import SandboxClient as SandboxClient

__version__ = "0.1.0"

__all__ = ["AsyncSandboxClient", "SandboxClient", "__version__"]


def __getattr__(name: str) -> Any:
    # Who only reads samples does not load an HTTP client.
    if name in ("AsyncSandboxClient", "SandboxClient"):
        from . import sandbox

        return getattr(sandbox, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
