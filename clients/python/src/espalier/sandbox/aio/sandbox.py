"""A sandbox: commands, shells, files, ports, checkpoints, and its life."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Tuple, Type, Union

from ..core.calls import CallId
from ..core.commands import Command, command_body
from ..core.requests import Labels, Request, get, once, sandbox_path, send_json
from ..core.settings import MAKE_SECONDS, WAIT_SECONDS
from ..errors import ApiError, EspalierError, Gone, NotFound, WaitTimeout
from ..model import Checkpoint, Json, Result, SandboxInfo
from .connection import AsyncConnection
from .files import AsyncFiles
from .forward import AsyncForwarder
from .io import AsyncBackground, now
from .process import AsyncProcess, AsyncStream
from .shell import AsyncShell
from .terminal import AsyncTerminal

if TYPE_CHECKING:
    from .client import AsyncSandboxClient


class AsyncSandbox(AsyncFiles):
    """One sandbox. As a context manager it is deleted at the end of the block."""

    def __init__(self, client: "AsyncSandboxClient", info: SandboxInfo) -> None:
        self._client = client
        self._connection: AsyncConnection = client.connection
        self.id = info.id
        #: The last state reported by the service; `refresh` updates it.
        self.info = info
        #: Error of the last heartbeat, if it failed.
        self.heartbeat_error: Optional[Exception] = None
        self._heartbeat: Optional[AsyncBackground] = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} ({self.info.image}) {self.info.state}>"

    @property
    def sandbox_id(self) -> str:
        return self.id

    @property
    def image(self) -> str:
        return self.info.image

    @property
    def labels(self) -> Dict[str, str]:
        return self.info.labels

    @property
    def block_network(self) -> bool:
        return self.info.network in (None, "none")

    # Commands.

    async def exec(
        self,
        command: Command,
        timeout: Optional[float] = 300,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        wait: bool = True,
        *,
        login_shell: bool = False,
        user: Optional[str] = None,
        stdin: Union[str, bytes, None] = None,
        shell: Optional[str] = None,
        output_max: Optional[int] = None,
        head_bytes: Optional[int] = None,
        tail_bytes: Optional[int] = None,
        merge_stderr: bool = False,
        label: Optional[str] = None,
        id: Optional[str] = None,
        check: bool = False,
        poll_interval: Optional[float] = None,
    ) -> Result:
        """Runs a command to its end: text by a shell, a list as it stands.

        `timeout`: seconds after which its whole tree is killed and the result says so (None or 0: never). Of each stream
        `head_bytes` and `tail_bytes` (32 KiB each) are in the result, which says what is left out (`stdout_omitted`);
        `output_max` (8 MiB) is what the sandbox keeps for `attach(result.id).output()`. `check`: raises `CommandFailed`
        unless it ends with exit code 0. `wait=False` returns at once; `get_job(result.job_id)` asks later. `poll_interval` is
        taken and not needed: the service says when it has ended.

        A connection that fails is had again, and the command is attached to, never run twice. `id` repeats an earlier call.
        """
        body = command_body(
            command, timeout, cwd, env, login_shell=login_shell, user=user, stdin=stdin, shell=shell, output_max=output_max,
            merge_stderr=merge_stderr, label=label,
        )  # fmt: skip
        process = self._process(body, id, (head_bytes, tail_bytes))
        if not wait:
            return await process._start(0)
        result = await process._start(min(WAIT_SECONDS, timeout or WAIT_SECONDS))
        if not result.is_complete:
            result = await process.wait()
        return result.check() if check else result

    async def start(
        self,
        command: Command,
        timeout: Optional[float] = 300,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        *,
        login_shell: bool = False,
        user: Optional[str] = None,
        stdin: Union[str, bytes, None] = None,
        stdin_open: bool = False,
        shell: Optional[str] = None,
        output_max: Optional[int] = None,
        merge_stderr: bool = False,
        label: Optional[str] = None,
        rows: Optional[int] = None,
        columns: Optional[int] = None,
        id: Optional[str] = None,
    ) -> AsyncProcess:
        """Starts a command and returns at once. `stdin_open`: `process.write` follows. `rows`, `columns`: it gets a terminal."""
        body = command_body(
            command, timeout, cwd, env, login_shell=login_shell, user=user, stdin=stdin, stdin_open=stdin_open, shell=shell,
            output_max=output_max, merge_stderr=merge_stderr, label=label, terminal=_terminal(rows, columns),
        )  # fmt: skip
        process = self._process(body, id)
        await process._start(0)
        return process

    def stream(
        self,
        command: Command,
        timeout: Optional[float] = 300,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        *,
        login_shell: bool = False,
        user: Optional[str] = None,
        stdin: Union[str, bytes, None] = None,
        stdin_open: bool = False,
        shell: Optional[str] = None,
        output_max: Optional[int] = None,
        merge_stderr: bool = False,
        label: Optional[str] = None,
        id: Optional[str] = None,
    ) -> AsyncStream:
        """Starts a command with the first step of the iteration, and gives what it prints as it comes."""
        body = command_body(
            command, timeout, cwd, env, login_shell=login_shell, user=user, stdin=stdin, stdin_open=stdin_open, shell=shell,
            output_max=output_max, merge_stderr=merge_stderr, label=label,
        )  # fmt: skip
        return self._process(body, id).events()

    async def terminal(
        self,
        command: Command = "exec bash -i",
        rows: int = 24,
        columns: int = 80,
        timeout: Optional[float] = None,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
    ) -> AsyncTerminal:
        """A command on a terminal of its own, read and written over one WebSocket (`espalier[websocket]`)."""
        body = command_body(command, timeout, cwd, env, user=user, stdin_open=True, terminal=(rows, columns))
        terminal = AsyncTerminal(self._connection, self._process(body, None))
        await terminal.connect()
        return terminal

    def attach(self, id: str) -> AsyncProcess:
        """A command by its id, started by any client. Sends no request."""
        return AsyncProcess(self._connection, self.id, id)

    async def get_job(self, job_id: str) -> Result:
        """The current state of a command."""
        return await self.attach(job_id).poll()

    async def list_commands(self) -> List[Result]:
        """The commands that run or are remembered, without output."""
        answer = (await self._connection.call(Request("GET", sandbox_path(self.id, "/commands")))).object()
        return [Result.read(each) for each in answer.get("commands", [])]

    def _process(
        self, body: Json, id: Optional[str], excerpt: Tuple[Optional[int], Optional[int]] = (None, None)
    ) -> AsyncProcess:
        if id is not None:
            CallId.parse(id)
            return AsyncProcess(self._connection, self.id, id, body, None, excerpt)
        call = self._connection.calls.allot(self.id)
        return AsyncProcess(self._connection, self.id, str(call), body, call, excerpt)

    async def shell(
        self,
        shell: Optional[str] = None,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        label: Optional[str] = None,
    ) -> AsyncShell:
        """Opens a shell that keeps its state between commands; `shell`: `bash` or `sh`."""
        call = self._connection.calls.allot(self.id)
        try:
            body = {
                "id": str(call), "floor": self._connection.calls.floor(self.id) or None, "shell": shell, "cwd": cwd,
                "env": dict(env) if env else None, "user": user, "label": label,
            }  # fmt: skip
            response = await self._connection.call(send_json("POST", sandbox_path(self.id, "/shells"), body))
        finally:
            self._connection.calls.settle(self.id, call)
        raw = response.object()
        return AsyncShell(self, self._connection, str(raw.get("id", call)), raw.get("pid"))

    async def list_shells(self) -> List[Json]:
        """The shells that are open, and those that are remembered (`ended`)."""
        answer = (await self._connection.call(Request("GET", sandbox_path(self.id, "/shells")))).object()
        return list(answer.get("shells", []))

    # Ports.

    def url(self, port: int, path: str = "/") -> str:
        """The address under which the service passes HTTP on to a port inside. It wants the key: `headers`."""
        rest = f"/ports/{port}/{path.lstrip('/')}"
        return self._connection.settings.base_url + sandbox_path(self.id, rest)

    @property
    def headers(self) -> Dict[str, str]:
        """The key, for requests to `url` by other clients."""
        key = self._connection.settings.api_key
        return {"authorization": f"Bearer {key}"} if key else {}

    async def forward(self, port: int, local_port: int = 0, host: str = "127.0.0.1") -> AsyncForwarder:
        """Opens a port here that leads to one inside, for any protocol over TCP (`espalier[websocket]`)."""
        forwarder = AsyncForwarder(self._connection, sandbox_path(self.id, f"/tunnels/{port}"))
        await forwarder.open(host, local_port)
        return forwarder

    # Its life.

    async def refresh(self) -> SandboxInfo:
        """The current state, from the service."""
        return self._told(await self._connection.call(Request("GET", sandbox_path(self.id))))

    def _told(self, response: Any) -> SandboxInfo:
        self.info = SandboxInfo.read(response.object())
        return self.info

    async def wait(self, state: str = "running", timeout: float = 60.0) -> SandboxInfo:
        """Waits until it is `running` (or has failed or ended), or `ended`. `WaitTimeout` after `timeout` seconds."""
        end = now() + timeout
        while True:
            left = min(max(end - now(), 0.0), WAIT_SECONDS)
            request = get(sandbox_path(self.id, "/wait"), wait=left, state=state, timeout_s=round(left, 3))
            info = self._told(await self._connection.call(request))
            if info.state in (state, "failed", "ended"):
                return info
            if now() >= end:
                raise WaitTimeout(f"sandbox {self.id} is {info.state}, not {state}, after {round(timeout, 1):g} s", sandbox=info)

    async def update(
        self,
        labels: Optional[Labels] = None,
        lifetime_s: Optional[float] = None,
        idle_s: Optional[float] = None,
    ) -> SandboxInfo:
        """Other labels (all of them), another lifetime from now on, another bound of silence."""
        body = {"labels": dict(labels) if labels is not None else None, "lifetime_s": lifetime_s, "idle_s": idle_s}
        return self._told(await self._connection.call(send_json("PATCH", sandbox_path(self.id), body)))

    async def heartbeat(self) -> SandboxInfo:
        """Resets the time of `idle_s`."""
        return self._told(await self._connection.call(Request("POST", sandbox_path(self.id, "/heartbeat"))))

    def start_heartbeat(self, interval: float = 60) -> None:
        """Heartbeats in the background, every `interval` seconds (or a third of `idle_s`), until it is stopped or gone."""
        if self._heartbeat is not None and self._heartbeat.running:
            return
        if self.info.idle_s:
            interval = min(interval, self.info.idle_s / 3)
        self._heartbeat = AsyncBackground(f"heartbeat-{self.id}", interval, self._beat)

    async def _beat(self) -> bool:
        try:
            self.heartbeat_error = None
            return (await self.heartbeat()).state not in ("failed", "ended")
        except EspalierError as error:
            self.heartbeat_error = error
            return not isinstance(error, (NotFound, Gone))

    def stop_heartbeat(self) -> None:
        """Stops `start_heartbeat`."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
            self._heartbeat = None

    async def fork(
        self, count: int = 1, labels: Optional[Labels] = None, lifetime_s: Optional[float] = None
    ) -> "List[AsyncSandbox]":
        """Creates `count` sandboxes with a copy of its current files. Processes are not copied."""
        body = {"count": count, "labels": dict(labels) if labels is not None else None, "lifetime_s": lifetime_s}
        request = once(send_json("POST", sandbox_path(self.id, "/fork"), body, wait=MAKE_SECONDS))
        answer = (await self._connection.call(request)).object()
        return [self._client._track(SandboxInfo.read(each)) for each in answer.get("sandboxes", [])]

    async def checkpoint(self, labels: Optional[Labels] = None) -> Checkpoint:
        """Saves its current files; `create_sandbox(checkpoint=checkpoint.id)` creates a sandbox from them."""
        body = {"labels": dict(labels) if labels else None}
        request = once(send_json("POST", sandbox_path(self.id, "/checkpoints"), body, wait=MAKE_SECONDS))
        return Checkpoint.read((await self._connection.call(request)).object())

    async def delete(self) -> None:
        """Deletes the sandbox. Deleting one that no longer exists is not an error."""
        self.stop_heartbeat()
        await self._client.delete_sandbox(self.id)

    async def __aenter__(self) -> "AsyncSandbox":
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        try:
            await self.delete()
        except (ApiError, ConnectionError):
            # The error of the block is the one to see; the service ends it by its lifetime.
            if error is None:
                raise


def _terminal(rows: Optional[int], columns: Optional[int]) -> Optional[Tuple[int, int]]:
    return None if rows is None and columns is None else (rows or 24, columns or 80)
