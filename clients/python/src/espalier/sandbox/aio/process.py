"""A command in a sandbox and its stream, both known by the command's id and therefore had again after a cut or a restart."""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Any, AsyncIterator, Deque, Dict, Optional, Tuple, Type, Union

from ..core.calls import CallId
from ..core.commands import input_given
from ..core.output import Assembly, Lines
from ..core.requests import Request, command_path, get, sandbox_path, send_json, with_query
from ..core.retry import Cut
from ..core.settings import WAIT_SECONDS
from ..core.sse import Parser
from ..errors import ApiError, ConnectionFailed, Lost, NotFound, WaitTimeout
from ..model import Ended, Event, Result
from .connection import AsyncConnection
from .io import AsyncAnswer, now, sleep

#: Seconds that a wait takes at most, beyond the command's own time limit.
GRACE_SECONDS = 60.0
#: Seconds that a wait takes at most where the command has no time limit.
WAIT_SECONDS_MAX = 86_400.0
#: Bytes of standard input that are sent at once.
INPUT_BYTES = 1 << 20


class AsyncProcess:
    """A command. It keeps running when no client is attached."""

    def __init__(
        self,
        connection: AsyncConnection,
        sandbox_id: str,
        id: str,
        body: Optional[Dict[str, Any]] = None,
        call: Optional[CallId] = None,
        excerpt: Tuple[Optional[int], Optional[int]] = (None, None),
    ) -> None:
        self._connection, self.sandbox_id = connection, sandbox_id
        #: Id for `sandbox.attach(id)`, also from another process.
        self.id = id
        # What starts it, as long as the service has not said that it did.
        self._unsent = body
        # Allotted here; None where the caller named the id.
        self._call = call
        self._excerpt = excerpt
        limit = body.get("timeout_s") if body else None
        self._wait_max = limit + GRACE_SECONDS if limit else WAIT_SECONDS_MAX
        self._written = input_given(body or {})

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} in {self.sandbox_id}>"

    def _path(self, rest: str = "") -> str:
        return command_path(self.sandbox_id, self.id, rest)

    def _post(self, **more: Any) -> Request:
        """What starts the command, or attaches to it where an earlier one came through."""
        floor = self._connection.calls.floor(self.sandbox_id) if self._call else 0
        body = dict(self._unsent or {}, id=self.id, floor=floor or None, **more)
        return send_json("POST", sandbox_path(self.sandbox_id, "/commands"), body)

    def _answered(self) -> None:
        self._unsent = None
        if self._call:
            self._connection.calls.settle(self.sandbox_id, self._call)

    def _unknown(self, error: ConnectionFailed) -> None:
        """Whether it came through is not known: its id is never settled, so that who wants to may send it again."""
        error.of("command", self.id)
        self._call = None

    def __del__(self) -> None:
        # Never sent or never answered, and nobody can send it any more.
        if getattr(self, "_unsent", None) is not None:
            self._answered()

    async def _start(self, wait_s: float) -> Result:
        """Starts it and waits so many seconds for its end."""
        head, tail = self._excerpt
        request = self._post(wait_s=wait_s, head_bytes=head, tail_bytes=tail)
        request.wait = wait_s
        try:
            response = await self._connection.call(request)
        except ConnectionFailed as error:
            self._unknown(error)
            raise
        except BaseException:
            self._answered()
            raise
        self._answered()
        return Result.read(response.object())

    async def poll(self, wait: float = 0.0) -> Result:
        """The current state, after waiting at most `wait` seconds for its end."""
        head, tail = self._excerpt
        request = get(self._path(), wait=wait, wait_s=round(max(wait, 0.0), 3), head_bytes=head, tail_bytes=tail)
        return Result.read((await self._connection.call(request)).object())

    async def wait(self, timeout: Optional[float] = None) -> Result:
        """Waits for its end; the result has the output. `WaitTimeout` after `timeout` seconds; default: a minute more than its own time limit."""
        end = now() + (self._wait_max if timeout is None else timeout)
        while True:
            result = await self.poll(min(max(end - now(), 0.0), WAIT_SECONDS))
            if result.is_complete:
                return result
            if now() >= end:
                raise WaitTimeout(f"command {self.id} is still running", result=result)

    def events(
        self, stdout_from: int = 0, stderr_from: int = 0, follow: bool = False, timeout: Optional[float] = None
    ) -> "AsyncStream":
        """What it prints, from these offsets on; `follow`: also what it left running, until that ends.

        `timeout` bounds the whole, in seconds; by default a minute after the command's own time limit.
        """
        return AsyncStream(self, stdout_from, stderr_from, follow, self._wait_max if timeout is None else timeout)

    async def output(self, stream: str = "stdout", start: int = 0, allow_gaps: bool = False) -> bytes:
        """Everything that is kept of a stream from byte `start` on. `Lost` where bytes in between are no longer kept."""
        response = await self._connection.call(get(self._path("/output"), stream=stream, **{"from": start}))
        gap, end = response.headers.get("espalier-gap"), response.headers.get("espalier-end")
        if gap and not allow_gaps:
            lost_from, _, lost_to = gap.partition("-")
            raise Lost(stream, int(lost_from), int(lost_to))
        # What is lost while the answer comes is named by no header: only that bytes are missing is seen, not where.
        had = start + len(response.body)
        if end and had < int(end) and not allow_gaps:
            raise Lost(stream, had, int(end))
        return response.body

    async def write(self, data: Union[str, bytes], end: bool = False, timeout: float = 60.0) -> bool:
        """Writes to its standard input (`stdin_open`); every byte once. False where it reads no more.

        `WaitTimeout` where it did not take all of it within `timeout` seconds.
        """
        rest = data.encode() if isinstance(data, str) else data
        until = now() + timeout
        while True:
            piece, last = rest[:INPUT_BYTES], len(rest) <= INPUT_BYTES
            # Then it says how much was taken, be it nothing.
            wait = min(max(until - now(), 0.0), WAIT_SECONDS)
            query = [("offset", self._written), ("end", True if end and last else None), ("wait_s", round(wait, 3))]
            path = with_query(self._path("/input"), query)
            request = Request("POST", path, {"content-type": "application/octet-stream"}, piece, wait=wait)
            answer = (await self._connection.change(self.sandbox_id, request)).object()
            taken = max(int(answer.get("taken", 0)) - self._written, 0)
            self._written += taken
            rest = rest[taken:]
            if answer.get("closed") and not (end and not rest):
                return False
            if not rest:
                return True
            if now() >= until:
                raise WaitTimeout(f"command {self.id} did not take {len(rest)} bytes of input within {timeout:g} s")
            if taken < len(piece):
                await sleep(0.05)

    async def close_stdin(self) -> None:
        """Closes its standard input."""
        await self.write(b"", end=True)

    async def signal(self, signal: Union[int, str], tree: bool = False) -> int:
        """Sends a signal (`"TERM"`, 15) to it, or to all of its tree; returns the number of processes that received it."""
        body = {"signal": signal, "tree": tree}
        response = await self._connection.change(self.sandbox_id, send_json("POST", self._path("/signal"), body))
        return int(response.object().get("reached", 0))

    async def kill(self) -> int:
        """Kills it and all processes that it started."""
        return await self.signal("KILL", tree=True)

    async def resize(self, rows: int, columns: int) -> None:
        """Sets the size of its terminal."""
        await self._connection.call(send_json("POST", self._path("/resize"), {"rows": rows, "columns": columns}))

    async def forget(self) -> None:
        """Kills its tree if it runs, and deletes its record and output."""
        try:
            await self._connection.change(self.sandbox_id, Request("DELETE", self._path()))
        except NotFound as error:
            if error.attempts == 1:
                raise


class AsyncStream:
    """The events of a command. Reconnects if the connection breaks: every byte comes once, and lost output is a `Gap`.

    `async for event in stream`, or `async for line in stream.lines()`. Leaving it early leaves the command running.
    """

    def __init__(self, process: AsyncProcess, stdout_from: int, stderr_from: int, follow: bool, timeout: float) -> None:
        #: The command.
        self.process = process
        #: The result, once the command has ended; without output.
        self.result: Optional[Result] = None
        self._connection = process._connection
        self._assembly = Assembly(stdout_from, stderr_from)
        self._follow = follow
        self._timeout, self._until = timeout, now() + timeout
        self._attempts = self._connection.attempts()
        self._answer: Optional[AsyncAnswer] = None
        self._parser = Parser()
        self._pending: Deque[Event] = deque()
        self._closed = False

    @property
    def offsets(self) -> Tuple[int, int]:
        """Offsets of standard output and standard error received so far: `process.events(*offsets)` continues there."""
        return self._assembly.at["stdout"], self._assembly.at["stderr"]

    def __aiter__(self) -> "AsyncStream":
        return self

    async def __anext__(self) -> Event:
        while not self._pending:
            if self._assembly.ended or self._closed:
                await self.aclose()
                raise StopAsyncIteration
            if now() >= self._until:
                await self.aclose()
                raise WaitTimeout(f"command {self.process.id} did not end within {self._timeout:g} s")
            await self._more()
        event = self._pending.popleft()
        if isinstance(event, Ended):
            self.result = event.result
        return event

    async def _more(self) -> None:
        """One piece more, or one attempt to have a connection."""
        if self._answer is None:
            try:
                self._answer = await self._connection.open(self._request(), self._attempts)
            except ConnectionFailed as error:
                self.process._unknown(error)
                raise
            except Exception:
                # Not where the caller is cancelled: whether it came through is not known, and the next step sends it again.
                self.process._answered()
                raise
            self._parser = Parser()
            return
        try:
            piece = await self._answer.piece()
            if not piece:
                raise Cut("the stream ended before the command")
        except Cut as cut:
            await self._drop()
            await sleep(self._attempts.delay(cut, now()))
            return
        except BaseException:
            # Cancelled: an answer that was left half read cannot be read on. The next step asks for the rest at once, for no
            # attempt has failed.
            await self._drop()
            raise
        try:
            for message in self._parser.feed(piece):
                began = len(self._pending)
                self._pending.extend(self._assembly.take(message))
                if len(self._pending) > began or message.event is None:
                    self._attempts.progressed()
                if self._assembly.certain and self.process._unsent is not None:
                    self.process._answered()
        except ApiError as error:
            # In mid-stream, as of a service that drains.
            await self._drop()
            await sleep(self._attempts.delay(error, now()))

    def _request(self) -> Request:
        stdout, stderr = self.offsets
        if self.process._unsent is not None:
            request = self.process._post()
        else:
            query = [("stdout_from", stdout), ("stderr_from", stderr), ("follow", self._follow or None)]
            request = Request("GET", with_query(self.process._path(), query))
        request.headers["accept"] = "text/event-stream"
        return request

    async def lines(self) -> AsyncIterator[str]:
        """Whole lines of both streams without their ends, in the order in which they were completed. Gaps raise `Lost`."""
        lines = Lines()
        async for event in self:
            for line in lines.take(event):
                yield line

    async def aclose(self) -> None:
        """Closes the stream."""
        self._closed = True
        await self._drop()

    async def _drop(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            await answer.aclose()

    async def __aenter__(self) -> "AsyncStream":
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.aclose()
