"""The client of a service: makes, finds and deletes sandboxes."""

from __future__ import annotations

import ssl
from types import TracebackType
from typing import Any, Dict, List, Mapping, Optional, Sequence, Type, Union

from ..core.calls import Calls
from ..core.commands import Network, sandbox_body
from ..core.requests import Labels, Request, list_sandboxes, once, sandbox_path, segment, send_json, with_query
from ..core.retry import Policy
from ..core.settings import LAST_SECONDS, Settings
from ..errors import ConnectionFailed, EspalierError, Gone, NotFound, SandboxFailed, Unavailable, WaitTimeout
from ..model import Checkpoint, Json, Key, Resources, SandboxInfo
from .connection import AsyncConnection
from .io import Transport, at_last, for_each, now, sleep
from .sandbox import AsyncSandbox

#: Sandboxes of one page of a list.
PAGE = 500
#: Sandboxes that are deleted at once; one after the other by threads.
DELETED_AT_ONCE = 16
#: Seconds before one is asked for again that went with a restart of the service.
ANEW_SECONDS = 0.2


class AsyncSandboxClient:
    """Client of one service with one API key. As a context manager, it deletes the sandboxes it created and closes its connections.

    `base_url` and `api_key` default to `ESPALIER_URL` and `ESPALIER_API_KEY`. Calls that fail on the
    way are made again with the same id for `reconnect_within` seconds (`connect_within` as long as the service was never
    reached), and never act twice. `verify`: as of httpx, for the service's certificate.
    """

    def __init__(
        self,
        base_url: Optional[str] = None,
        api_key: Optional[str] = None,
        *,
        reconnect_within: float = 60.0,
        connect_within: float = 10.0,
        auto_cleanup: bool = True,
        verify: Union[bool, ssl.SSLContext] = True,
        connections: int = 1000,
        session: Optional[str] = None,
        transport: Optional[Transport] = None,
    ) -> None:
        policy = Policy(reconnect_within=reconnect_within, connect_within=connect_within)
        settings = Settings.of(base_url, api_key, connections)
        self.connection = AsyncConnection(settings, policy, Calls(session), verify, transport)
        self._auto_cleanup = auto_cleanup
        self._made: Dict[str, AsyncSandbox] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.base_url}>"

    @property
    def base_url(self) -> str:
        return self.connection.settings.base_url

    async def create_sandbox(
        self,
        image: Optional[str] = None,
        block_network: Optional[bool] = None,
        *,
        cpu: Union[int, float, str, None] = None,
        memory: Union[int, str, None] = None,
        disk: Union[int, str, None] = None,
        network: Optional[Network] = None,
        env: Optional[Mapping[str, str]] = None,
        files: Optional[Mapping[str, Any]] = None,
        setup: Union[str, Sequence[str], None] = None,
        user: Optional[str] = None,
        workdir: Optional[str] = None,
        entrypoint: Optional[bool] = None,
        files_max: Optional[int] = None,
        processes_max: Optional[int] = None,
        user_namespaces: Optional[bool] = None,
        checkpoint: Optional[str] = None,
        labels: Optional[Labels] = None,
        name: Optional[str] = None,
        lifetime_s: Optional[float] = None,
        idle_s: Optional[float] = None,
        require: Optional[Sequence[str]] = None,
        timeout: float = 600.0,
        wait_ready: bool = True,
        poll_interval: Optional[float] = None,
    ) -> AsyncSandbox:
        """Makes a sandbox and waits until it runs: `SandboxFailed` says why it does not, `WaitTimeout` that `timeout` is over.

        `image`: `host` (the service's own programs), or any OCI image; or `checkpoint`, the id of one. `memory`, `disk`:
        bytes or text such as `2GiB`. `network`: `"none"` (default), `"loopback"`, or what may be reached, such as
        `["pypi.org:443"]`. `files`: path to text, or to `{"text": ..., "mode": "0755"}`. `lifetime_s` (2 h) ends it for
        certain, and so do `idle_s` seconds without a call or a heartbeat. `poll_interval` is taken and not needed.

        Where the wait fails, is cancelled or interrupted, the sandbox is deleted again.
        """
        body = sandbox_body(
            image, block_network, cpu, memory, disk, network, env, files, setup, labels, require, checkpoint,
            user=user, workdir=workdir, entrypoint=entrypoint, files_max=files_max, processes_max=processes_max,
            user_namespaces=user_namespaces, name=name, lifetime_s=lifetime_s, idle_s=idle_s,
        )  # fmt: skip
        end = now() + timeout
        # Answered at once: whatever becomes of the wait, there is an id to delete.
        request = once(send_json("POST", with_query("/v1/sandboxes", [("wait_s", 0)]), body))
        sandbox = await self._make(request)
        if not wait_ready:
            return sandbox
        try:
            while sandbox.info.state == "creating":
                try:
                    await sandbox.wait("running", max(end - now(), 0.0))
                except NotFound:
                    # A service that starts drops what is half made; the same request makes it again.
                    if now() >= end:
                        raise
                    await sleep(ANEW_SECONDS)
                    self._made.pop(sandbox.id, None)
                    sandbox = await self._make(request)
            if sandbox.info.state != "running":
                raise SandboxFailed(sandbox.info)
        except (SandboxFailed, WaitTimeout):
            # Nobody else could: the caller gets no sandbox.
            await self._delete_quietly(sandbox)
            raise
        except BaseException:
            left = sandbox
            await at_last(lambda: self._delete_quietly(left, LAST_SECONDS), LAST_SECONDS)
            raise
        return sandbox

    async def _make(self, request: Request) -> AsyncSandbox:
        return self._track(SandboxInfo.read((await self.connection.call(request)).object()))

    def _track(self, info: SandboxInfo) -> AsyncSandbox:
        """One that this client made, and deletes at its end."""
        sandbox = AsyncSandbox(self, info)
        self._made[info.id] = sandbox
        return sandbox

    def _known(self, info: SandboxInfo) -> AsyncSandbox:
        """The one that this client made, as it is now; else a new object."""
        found = self._made.get(info.id)
        if found is None:
            return AsyncSandbox(self, info)
        found.info = info
        return found

    async def get_sandbox(self, sandbox_id: str) -> AsyncSandbox:
        """The sandbox with this id. It is not deleted with this client."""
        info = SandboxInfo.read((await self.connection.call(Request("GET", sandbox_path(sandbox_id)))).object())
        return self._known(info)

    async def list_sandboxes(
        self,
        labels: Optional[Labels] = None,
        state: Optional[str] = None,
        name: Optional[str] = None,
        limit: int = 10_000,
    ) -> List[AsyncSandbox]:
        """The key's sandboxes, newest first. `labels`: only sandboxes with all of these; an empty value matches any value."""
        found: List[AsyncSandbox] = []
        after: Optional[str] = None
        while len(found) < limit:
            request = list_sandboxes(labels or {}, state, name, min(PAGE, limit - len(found)), after)
            answer = (await self.connection.call(request)).object()
            page = [SandboxInfo.read(each) for each in answer.get("sandboxes", [])]
            found += [self._known(info) for info in page]
            after = answer.get("next")
            if not after or not page:
                break
        return found

    async def delete_sandbox(self, sandbox_id: str) -> None:
        """Deletes a sandbox. Deleting one that no longer exists is not an error."""
        await self._delete(sandbox_id)

    async def _delete(self, sandbox_id: str, within: Optional[float] = None) -> bool:
        """Whether it was there. One whose end fails stays known, so that `cleanup_all` tries again."""
        there = True
        try:
            await self.connection.call(Request("DELETE", sandbox_path(sandbox_id)), within)
        except (NotFound, Gone) as error:
            # An attempt before this one may have ended it, without an answer.
            there = error.attempts > 1
        self._made.pop(sandbox_id, None)
        self.connection.calls.forget(sandbox_id)
        return there

    async def _delete_quietly(self, sandbox: AsyncSandbox, within: Optional[float] = None) -> None:
        try:
            sandbox.stop_heartbeat()
            await self._delete(sandbox.id, within)
        except EspalierError:
            # `cleanup_all` tries again, and its lifetime ends it.
            pass

    async def cleanup_all(self) -> int:
        """Deletes every sandbox that this client made and that is not deleted yet; how many were.

        Stops where the service is away; what is left stays known, for the next call.
        """
        deleted = 0

        async def delete(sandbox: AsyncSandbox) -> bool:
            nonlocal deleted
            try:
                sandbox.stop_heartbeat()
                there = await self._delete(sandbox.id)
                deleted += there
            except (ConnectionFailed, Unavailable):
                return False
            except EspalierError:
                # Its lifetime ends it.
                pass
            return True

        await for_each(list(self._made.values()), delete, DELETED_AT_ONCE)
        return deleted

    async def list_checkpoints(self, labels: Optional[Labels] = None) -> List[Checkpoint]:
        """This key's checkpoints."""
        query = [("label", f"{key}={value}" if value else key) for key, value in (labels or {}).items()]
        answer = (await self.connection.call(Request("GET", with_query("/v1/checkpoints", query)))).object()
        return [Checkpoint.read(each) for each in answer.get("checkpoints", [])]

    async def get_checkpoint(self, checkpoint_id: str) -> Checkpoint:
        path = f"/v1/checkpoints/{segment(checkpoint_id)}"
        return Checkpoint.read((await self.connection.call(Request("GET", path))).object())

    async def delete_checkpoint(self, checkpoint_id: str) -> None:
        """Sandboxes that were made from it stay."""
        try:
            await self.connection.call(Request("DELETE", f"/v1/checkpoints/{segment(checkpoint_id)}"))
        except NotFound as error:
            if error.attempts == 1:
                raise

    async def health(self) -> Json:
        """State of the service; needs no key."""
        return (await self.connection.call(Request("GET", "/health"))).object()

    async def ready(self) -> bool:
        """Whether the service accepts work."""
        try:
            await self.connection.call(Request("GET", "/ready", repeatable=False))
            return True
        except Unavailable:
            return False

    async def resources(self) -> Resources:
        """Quotas and use of the key, and the capacity of the machine."""
        return Resources.read((await self.connection.call(Request("GET", "/resources"))).object())

    async def key(self) -> Key:
        """The key in use, with its scopes and quotas."""
        return Key.read((await self.connection.call(Request("GET", "/v1/key"))).object())

    async def aclose(self) -> None:
        """Closes the connections. Deletes nothing."""
        for sandbox in list(self._made.values()):
            sandbox.stop_heartbeat()
        await self.connection.aclose()

    async def __aenter__(self) -> "AsyncSandboxClient":
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        try:
            if self._auto_cleanup:
                await self.cleanup_all()
        finally:
            await self.aclose()
