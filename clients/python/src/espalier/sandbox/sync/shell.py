# Made of aio/shell.py by clients/python/generate.py; change that, not this.
"""A shell that stays: what one command sets, the next one finds."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Optional, Type

from ..core.requests import Request, sandbox_path, segment
from ..errors import NotFound, ShellEnded
from ..model import Result
from .connection import Connection
from .process import Process, Stream


class Shell:
    """A shell that keeps its folder, variables and functions between commands. `exit` ends it (`Result.shell_ended`)."""

    def __init__(self, sandbox: Any, connection: Connection, id: str, pid: Optional[int]) -> None:
        self._sandbox, self._connection = sandbox, connection
        self.id = id
        #: Process id inside the sandbox.
        self.pid = pid

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} in {self._sandbox.id}>"

    def exec(self, command: str, timeout: Optional[float] = 300, **more: Any) -> Result:
        """As the sandbox's `exec`, in this shell. Commands of one shell run one after the other."""
        result: Result = self._sandbox.exec(command, timeout, shell=self.id, **more)
        return result

    def start(self, command: str, timeout: Optional[float] = 300, **more: Any) -> Process:
        """As the sandbox's `start`, in this shell."""
        process: Process = self._sandbox.start(command, timeout, shell=self.id, **more)
        return process

    def stream(self, command: str, timeout: Optional[float] = 300, **more: Any) -> Stream:
        """As the sandbox's `stream`, in this shell."""
        stream: Stream = self._sandbox.stream(command, timeout, shell=self.id, **more)
        return stream

    def close(self) -> None:
        """Ends the shell and what it started."""
        request = Request("DELETE", sandbox_path(self._sandbox.id, f"/shells/{segment(self.id)}"))
        try:
            self._connection.change(self._sandbox.id, request)
        except NotFound as error:
            if error.attempts == 1:
                raise

    def __enter__(self) -> "Shell":
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        try:
            self.close()
        except (NotFound, ShellEnded):
            # Its own `exit` ended it.
            pass
