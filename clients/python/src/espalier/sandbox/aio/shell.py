"""A shell that stays: what one command sets, the next one finds."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Optional, Type

from ..core.requests import Request, sandbox_path, segment
from ..errors import NotFound, ShellEnded
from ..model import Result
from .connection import AsyncConnection
from .process import AsyncProcess, AsyncStream


class AsyncShell:
    """A shell that keeps its folder, variables and functions between commands. `exit` ends it (`Result.shell_ended`)."""

    def __init__(self, sandbox: Any, connection: AsyncConnection, id: str, pid: Optional[int]) -> None:
        self._sandbox, self._connection = sandbox, connection
        self.id = id
        #: Process id inside the sandbox.
        self.pid = pid

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} in {self._sandbox.id}>"

    async def exec(self, command: str, timeout: Optional[float] = 300, **more: Any) -> Result:
        """As the sandbox's `exec`, in this shell. Commands of one shell run one after the other."""
        result: Result = await self._sandbox.exec(command, timeout, shell=self.id, **more)
        return result

    async def start(self, command: str, timeout: Optional[float] = 300, **more: Any) -> AsyncProcess:
        """As the sandbox's `start`, in this shell."""
        process: AsyncProcess = await self._sandbox.start(command, timeout, shell=self.id, **more)
        return process

    def stream(self, command: str, timeout: Optional[float] = 300, **more: Any) -> AsyncStream:
        """As the sandbox's `stream`, in this shell."""
        stream: AsyncStream = self._sandbox.stream(command, timeout, shell=self.id, **more)
        return stream

    async def close(self) -> None:
        """Ends the shell and what it started."""
        request = Request("DELETE", sandbox_path(self._sandbox.id, f"/shells/{segment(self.id)}"))
        try:
            await self._connection.change(self._sandbox.id, request)
        except NotFound as error:
            if error.attempts == 1:
                raise

    async def __aenter__(self) -> "AsyncShell":
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        try:
            await self.close()
        except (NotFound, ShellEnded):
            # Its own `exit` ended it.
            pass
