"""A command on a terminal, over a WebSocket that is opened again when it breaks: every byte once, both ways."""

from __future__ import annotations

from types import TracebackType
from typing import Optional, Type, Union

from ..core.requests import Request, sandbox_path, with_query
from ..core.retry import Cut
from ..core.terminal import MESSAGE_BYTES, Dialogue
from ..errors import ApiError, ProtocolError, WaitTimeout
from ..model import Ended, Gap, Output, Result
from .connection import AsyncConnection
from .io import AsyncSocket, now, sleep
from .process import AsyncProcess

#: Seconds that one wait for a message takes at most.
RECEIVE_SECONDS = 30.0


class AsyncTerminal:
    """Reads and writes as at a keyboard. Leaving it as a context manager kills what still runs."""

    def __init__(self, connection: AsyncConnection, process: AsyncProcess) -> None:
        #: The command; `process.id` attaches to it later.
        self.process = process
        #: The result, once the command has ended.
        self.result: Optional[Result] = None
        #: Number of output bytes that are no longer kept.
        self.lost = 0
        self._connection = connection
        self._dialogue = Dialogue(process.id)
        self._attempts = connection.attempts()
        self._socket: Optional[AsyncSocket] = None
        self._read = bytearray()

    @property
    def pid(self) -> Optional[int]:
        """Process id inside the sandbox, if known."""
        return self._dialogue.pid

    @property
    def exit_code(self) -> Optional[int]:
        return self.result.exit_code if self.result else None

    async def connect(self) -> None:
        """Opens the connection and starts the command, or attaches to it. Called by `sandbox.terminal`."""
        while self._socket is None:
            socket = await self._connection.socket(sandbox_path(self.process.sandbox_id, "/stream"), self._attempts)
            if socket is None:
                continue
            try:
                self._dialogue.assembly.started = False
                if not self._dialogue.assembly.certain and self.process._unsent is not None:
                    floor = self._connection.calls.floor(self.process.sandbox_id)
                    body = dict(self.process._unsent or {}, id=self.process.id)
                    if floor and self.process._call:
                        body["floor"] = floor
                    await socket.send(Dialogue.start(body))
                else:
                    await socket.send(self._dialogue.attach())
                self._socket = socket
                while not self._dialogue.assembly.started and self.result is None:
                    await self._receive(RECEIVE_SECONDS)
                await self._resend(socket)
            except Cut as cut:
                await self._broke(cut)
            except BaseException as error:
                # Where the caller is cancelled, whether it came through is not known: the next step sends it again.
                if isinstance(error, Exception):
                    self.process._answered()
                await self.aclose()
                raise

    async def _resend(self, socket: AsyncSocket) -> None:
        """What was sent into the cut and not taken."""
        if not (self._dialogue.written or self._dialogue.input_ended) or self.result is not None:
            return
        path = with_query(self.process._path("/input"), [("offset", 0)])
        answer = (await self._connection.change(self.process.sandbox_id, Request("POST", path))).object()
        if answer.get("closed"):
            return
        for message in self._dialogue.again(int(answer.get("taken", 0))):
            await socket.send(message)
        if self._dialogue.input_ended:
            await socket.send(self._dialogue.end())

    async def _broke(self, cut: Cut) -> None:
        await self._drop()
        await sleep(self._attempts.delay(cut, now()))

    async def _drop(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.aclose()

    async def _receive(self, timeout: float) -> bool:
        """One message; False where none came in time."""
        if self._socket is None:
            raise Cut("not connected")
        message = await self._socket.receive(timeout)
        if message is None:
            return False
        for event in self._dialogue.take(message):
            if self._dialogue.assembly.certain:
                self.process._answered()
            self._attempts.progressed()
            if isinstance(event, Output):
                self._read += event.data
            elif isinstance(event, Gap):
                self.lost += event.end - event.start
            elif isinstance(event, Ended):
                self.result = event.result
        return True

    async def _step(self, until: float) -> None:
        """Something new, a connection again, or the time is over."""
        try:
            if self._socket is None:
                await self.connect()
            await self._receive(min(max(until - now(), 0.0), RECEIVE_SECONDS))
        except Cut as cut:
            await self._broke(cut)
        except ApiError as error:
            await self._drop()
            await sleep(self._attempts.delay(error, now()))

    async def read(self, timeout: float = 10.0, bytes_max: int = 1 << 20) -> bytes:
        """Waits for output and returns it. Empty after `timeout` seconds, or if the command has ended."""
        until = now() + timeout
        while not self._read and self.result is None and now() < until:
            await self._step(until)
        data = bytes(self._read[:bytes_max])
        del self._read[:bytes_max]
        return data

    async def read_until(self, expected: Union[str, bytes], timeout: float = 30.0) -> bytes:
        """Reads up to and including these bytes. `WaitTimeout` if they do not come; the output received stays readable."""
        mark = expected.encode() if isinstance(expected, str) else expected
        until = now() + timeout
        while mark not in self._read:
            if self.result is not None or now() >= until:
                raise WaitTimeout(f"{mark!r} did not come; the last was {bytes(self._read[-200:])!r}", result=self.result)
            await self._step(until)
        end = self._read.index(mark) + len(mark)
        data = bytes(self._read[:end])
        del self._read[:end]
        return data

    async def write(self, data: Union[str, bytes]) -> None:
        """Writes input. Input that may have been lost with a broken connection is sent again, once."""
        rest = data.encode() if isinstance(data, str) else data
        while rest:
            await self._send(self._dialogue.input(rest[:MESSAGE_BYTES]), resent=True)
            rest = rest[MESSAGE_BYTES:]

    write_stdin = write

    async def close_stdin(self) -> None:
        """Closes its standard input."""
        await self._send(self._dialogue.end(), resent=True)

    async def resize(self, rows: int, columns: int) -> None:
        await self._send(Dialogue.resize(rows, columns))

    async def signal(self, signal: Union[int, str], tree: bool = False) -> None:
        await self.process.signal(signal, tree)

    async def kill(self) -> None:
        """Kills it and all processes that it started."""
        await self.process.kill()

    async def _send(self, message: Union[str, bytes], resent: bool = False) -> None:
        """`resent`: is also sent on reconnecting."""
        if self.result is not None:
            raise ProtocolError(f"command {self.process.id} has ended")
        while True:
            try:
                if self._socket is None:
                    await self.connect()
                    if resent:
                        return
                if self._socket is not None:
                    await self._socket.send(message)
                return
            except Cut as cut:
                await self._broke(cut)

    async def wait(self, timeout: float = 300.0) -> Result:
        """Waits for its end; its output stays readable. `WaitTimeout` after `timeout` seconds."""
        until = now() + timeout
        while self.result is None:
            if now() >= until:
                raise WaitTimeout(f"command {self.process.id} did not end within {timeout:g} s")
            await self._step(until)
        return self.result

    async def aclose(self) -> None:
        """Closes the connection; the command keeps running."""
        await self._drop()

    async def __aenter__(self) -> "AsyncTerminal":
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.aclose()
        if self.result is None:
            try:
                await self.kill()
            except ApiError:
                # It is gone already.
                pass
