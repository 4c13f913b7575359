"""Sandboxes of `espalier serve`: made, run in, streamed from, copied to and from, forked.

```python
from espalier import SandboxClient

with SandboxClient() as client:                      # ESPALIER_URL, ESPALIER_API_KEY
    with client.create_sandbox("python:3.12-slim") as sandbox:
        print(sandbox.exec("python -V").stdout)
```

`AsyncSandboxClient` is the same for asyncio. Nothing is ever run twice because a connection failed: every changing call
carries an id, and a repeat is answered from its record or attached to.
"""

from __future__ import annotations

from .aio.client import AsyncSandboxClient
from .aio.forward import AsyncForwarder
from .aio.process import AsyncProcess, AsyncStream
from .aio.sandbox import AsyncSandbox
from .aio.shell import AsyncShell
from .aio.terminal import AsyncTerminal
from .errors import (
    ApiError,
    ChangedMeanwhile,
    CommandFailed,
    Conflict,
    ConnectionFailed,
    Denied,
    DiskFull,
    EspalierError,
    Expired,
    FileChanged,
    Forbidden,
    Gone,
    IdReused,
    Internal,
    Invalid,
    Lost,
    NoListener,
    NotFound,
    PatchRejected,
    ProtocolError,
    QuotaExceeded,
    RangeNotSatisfiable,
    RateLimited,
    SandboxFailed,
    SandboxLost,
    ServiceTimeout,
    ShellEnded,
    TooLarge,
    Unauthenticated,
    Unavailable,
    WaitTimeout,
)
from .model import (
    Checkpoint,
    Ended,
    Event,
    Fault,
    Gap,
    Key,
    Output,
    Patched,
    PatchedFile,
    Resources,
    Result,
    SandboxInfo,
    Started,
    Stat,
)
from .sync.client import SandboxClient
from .sync.forward import Forwarder
from .sync.process import Process, Stream
from .sync.sandbox import Sandbox
from .sync.shell import Shell
from .sync.terminal import Terminal

#: Orchard's names.
SandboxInstance, AsyncSandboxInstance, JobResult = Sandbox, AsyncSandbox, Result

__all__ = [
    "ApiError",
    "AsyncForwarder",
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncSandboxClient",
    "AsyncSandboxInstance",
    "AsyncShell",
    "AsyncStream",
    "AsyncTerminal",
    "ChangedMeanwhile",
    "Checkpoint",
    "CommandFailed",
    "Conflict",
    "ConnectionFailed",
    "Denied",
    "DiskFull",
    "Ended",
    "EspalierError",
    "Event",
    "Expired",
    "Fault",
    "FileChanged",
    "Forbidden",
    "Forwarder",
    "Gap",
    "Gone",
    "IdReused",
    "Internal",
    "Invalid",
    "JobResult",
    "Key",
    "Lost",
    "NoListener",
    "NotFound",
    "Output",
    "PatchRejected",
    "Patched",
    "PatchedFile",
    "Process",
    "ProtocolError",
    "QuotaExceeded",
    "RangeNotSatisfiable",
    "RateLimited",
    "Resources",
    "Result",
    "Sandbox",
    "SandboxClient",
    "SandboxFailed",
    "SandboxInfo",
    "SandboxInstance",
    "SandboxLost",
    "ServiceTimeout",
    "Shell",
    "ShellEnded",
    "Started",
    "Stat",
    "Stream",
    "Terminal",
    "TooLarge",
    "Unauthenticated",
    "Unavailable",
    "WaitTimeout",
]
