# Made of aio/terminal.py by clients/python/generate.py; change that, not this.
"""A command on a terminal, over a WebSocket that is opened again when it breaks: every byte once, both ways."""

from __future__ import annotations

from types import TracebackType
from typing import Optional, Type, Union

from ..core.requests import Request, sandbox_path, with_query
from ..core.retry import Cut
from ..core.terminal import MESSAGE_BYTES, Dialogue
from ..errors import ApiError, ProtocolError, WaitTimeout
from ..model import Ended, Gap, Output, Result
from .connection import Connection
from .io import Socket, now, sleep
from .process import Process

#: Seconds that one wait for a message takes at most.
RECEIVE_SECONDS = 30.0


class Terminal:
    """Reads and writes as at a keyboard. Leaving it as a context manager kills what still runs."""

    def __init__(self, connection: Connection, process: Process) -> None:
        #: The command; `process.id` attaches to it later.
        self.process = process
        #: The result, once the command has ended.
        self.result: Optional[Result] = None
        #: Number of output bytes that are no longer kept.
        self.lost = 0
        self._connection = connection
        self._dialogue = Dialogue(process.id)
        self._attempts = connection.attempts()
        self._socket: Optional[Socket] = None
        self._read = bytearray()

    @property
    def pid(self) -> Optional[int]:
        """Process id inside the sandbox, if known."""
        return self._dialogue.pid

    @property
    def exit_code(self) -> Optional[int]:
        return self.result.exit_code if self.result else None

    def connect(self) -> None:
        """Opens the connection and starts the command, or attaches to it. Called by `sandbox.terminal`."""
        while self._socket is None:
            socket = self._connection.socket(sandbox_path(self.process.sandbox_id, "/stream"), self._attempts)
            if socket is None:
                continue
            try:
                self._dialogue.assembly.started = False
                if not self._dialogue.assembly.certain and self.process._unsent is not None:
                    floor = self._connection.calls.floor(self.process.sandbox_id)
                    body = dict(self.process._unsent or {}, id=self.process.id)
                    if floor and self.process._call:
                        body["floor"] = floor
                    socket.send(Dialogue.start(body))
                else:
                    socket.send(self._dialogue.attach())
                self._socket = socket
                while not self._dialogue.assembly.started and self.result is None:
                    self._receive(RECEIVE_SECONDS)
                self._resend(socket)
            except Cut as cut:
                self._broke(cut)
            except BaseException as error:
                # Where the caller is cancelled, whether it came through is not known: the next step sends it again.
                if isinstance(error, Exception):
                    self.process._answered()
                self.close()
                raise

    def _resend(self, socket: Socket) -> None:
        """What was sent into the cut and not taken."""
        if not (self._dialogue.written or self._dialogue.input_ended) or self.result is not None:
            return
        path = with_query(self.process._path("/input"), [("offset", 0)])
        answer = (self._connection.change(self.process.sandbox_id, Request("POST", path))).object()
        if answer.get("closed"):
            return
        for message in self._dialogue.again(int(answer.get("taken", 0))):
            socket.send(message)
        if self._dialogue.input_ended:
            socket.send(self._dialogue.end())

    def _broke(self, cut: Cut) -> None:
        self._drop()
        sleep(self._attempts.delay(cut, now()))

    def _drop(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.close()

    def _receive(self, timeout: float) -> bool:
        """One message; False where none came in time."""
        if self._socket is None:
            raise Cut("not connected")
        message = self._socket.receive(timeout)
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

    def _step(self, until: float) -> None:
        """Something new, a connection again, or the time is over."""
        try:
            if self._socket is None:
                self.connect()
            self._receive(min(max(until - now(), 0.0), RECEIVE_SECONDS))
        except Cut as cut:
            self._broke(cut)
        except ApiError as error:
            self._drop()
            sleep(self._attempts.delay(error, now()))

    def read(self, timeout: float = 10.0, bytes_max: int = 1 << 20) -> bytes:
        """Waits for output and returns it. Empty after `timeout` seconds, or if the command has ended."""
        until = now() + timeout
        while not self._read and self.result is None and now() < until:
            self._step(until)
        data = bytes(self._read[:bytes_max])
        del self._read[:bytes_max]
        return data

    def read_until(self, expected: Union[str, bytes], timeout: float = 30.0) -> bytes:
        """Reads up to and including these bytes. `WaitTimeout` if they do not come; the output received stays readable."""
        mark = expected.encode() if isinstance(expected, str) else expected
        until = now() + timeout
        while mark not in self._read:
            if self.result is not None or now() >= until:
                raise WaitTimeout(f"{mark!r} did not come; the last was {bytes(self._read[-200:])!r}", result=self.result)
            self._step(until)
        end = self._read.index(mark) + len(mark)
        data = bytes(self._read[:end])
        del self._read[:end]
        return data

    def write(self, data: Union[str, bytes]) -> None:
        """Writes input. Input that may have been lost with a broken connection is sent again, once."""
        rest = data.encode() if isinstance(data, str) else data
        while rest:
            self._send(self._dialogue.input(rest[:MESSAGE_BYTES]), resent=True)
            rest = rest[MESSAGE_BYTES:]

    write_stdin = write

    def close_stdin(self) -> None:
        """Closes its standard input."""
        self._send(self._dialogue.end(), resent=True)

    def resize(self, rows: int, columns: int) -> None:
        self._send(Dialogue.resize(rows, columns))

    def signal(self, signal: Union[int, str], tree: bool = False) -> None:
        self.process.signal(signal, tree)

    def kill(self) -> None:
        """Kills it and all processes that it started."""
        self.process.kill()

    def _send(self, message: Union[str, bytes], resent: bool = False) -> None:
        """`resent`: is also sent on reconnecting."""
        if self.result is not None:
            raise ProtocolError(f"command {self.process.id} has ended")
        while True:
            try:
                if self._socket is None:
                    self.connect()
                    if resent:
                        return
                if self._socket is not None:
                    self._socket.send(message)
                return
            except Cut as cut:
                self._broke(cut)

    def wait(self, timeout: float = 300.0) -> Result:
        """Waits for its end; its output stays readable. `WaitTimeout` after `timeout` seconds."""
        until = now() + timeout
        while self.result is None:
            if now() >= until:
                raise WaitTimeout(f"command {self.process.id} did not end within {timeout:g} s")
            self._step(until)
        return self.result

    def close(self) -> None:
        """Closes the connection; the command keeps running."""
        self._drop()

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()
        if self.result is None:
            try:
                self.kill()
            except ApiError:
                # It is gone already.
                pass
