"""Input and output by asyncio: HTTP by httpx, WebSockets by websockets, waiting, work in the background."""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import Any, AsyncIterator, Awaitable, Callable, Dict, Optional, Sequence, Set, TypeVar, Union

import httpx

from ..core.requests import Body, Request, Response
from ..core.retry import Cut
from ..core.settings import ANSWER_BYTES_MAX, ANSWER_SECONDS, CONNECT_SECONDS, SILENCE_SECONDS, Settings
from ..errors import EspalierError, ProtocolError

Transport = httpx.AsyncBaseTransport
T = TypeVar("T")

# Held here as long as they run: the loop alone would let them be collected.
_last: "Set[asyncio.Task[None]]" = set()


def now() -> float:
    return time.monotonic()


async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def at_last(action: Callable[[], Awaitable[None]], seconds: float) -> None:
    """Carries it out for so many seconds at most, also where the caller is cancelled meanwhile. For what raises nothing."""
    task = asyncio.ensure_future(asyncio.wait_for(action(), seconds))
    _last.add(task)
    task.add_done_callback(_forget)
    # Waits, and does not cancel it when it is cancelled itself.
    await asyncio.wait([task])


def _forget(task: "asyncio.Task[None]") -> None:
    _last.discard(task)
    if not task.cancelled():
        # Asked for, or asyncio would complain: its time was over.
        task.exception()


async def for_each(items: Sequence[T], action: Callable[[T], Awaitable[bool]], at_once: int) -> None:
    """Carries it out for every item, for so many at once. Where it says False, no other is begun."""
    rest = iter(items)
    goes_on = True

    async def work() -> None:
        nonlocal goes_on
        for item in rest:
            if not (goes_on and await action(item)):
                goes_on = False
                return

    tasks = [asyncio.ensure_future(work()) for _ in range(min(at_once, len(items)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


class AsyncAnswer:
    """An answer whose body is still coming."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._pieces = response.aiter_bytes()
        self.status = response.status_code
        self.headers: Dict[str, str] = {key.lower(): value for key, value in response.headers.items()}

    async def piece(self) -> bytes:
        """The next bytes; none at the end. `Cut` where the connection ended before the body, or was silent."""
        try:
            async for piece in self._pieces:
                if piece:
                    return piece
            return b""
        except httpx.TransportError as error:
            raise Cut(_words(error)) from error

    async def rest(self, bytes_max: int = ANSWER_BYTES_MAX) -> bytes:
        """All that is left."""
        body = bytearray()
        while True:
            piece = await self.piece()
            if not piece:
                return bytes(body)
            body += piece
            if len(body) > bytes_max:
                raise ProtocolError(f"an answer of over {bytes_max} bytes")

    async def aclose(self) -> None:
        await self._response.aclose()


class AsyncHttp:
    """Connections to one service."""

    def __init__(self, settings: Settings, verify: Union[bool, ssl.SSLContext], transport: Optional[Transport]) -> None:
        if settings.socket is not None and transport is None:
            transport = httpx.AsyncHTTPTransport(uds=settings.socket)
        limits = httpx.Limits(max_connections=settings.connections, max_keepalive_connections=100)
        self._client = httpx.AsyncClient(
            base_url=settings.base_url, headers=settings.headers(), verify=verify, limits=limits, transport=transport
        )

    async def open(self, request: Request, silence: float = SILENCE_SECONDS) -> AsyncAnswer:
        """Sends a request; `Cut` where no answer begins."""
        timeout = httpx.Timeout(connect=CONNECT_SECONDS, read=silence, write=ANSWER_SECONDS, pool=ANSWER_SECONDS)
        headers = dict(request.headers)
        content: Any = request.body
        if isinstance(content, Body):
            headers["content-length"] = str(content.size)
            content = _pieces(content)
        elif not content and request.method in ("GET", "HEAD", "DELETE"):
            content = None
        built = self._client.build_request(request.method, request.path, headers=headers, content=content, timeout=timeout)
        try:
            return AsyncAnswer(await self._client.send(built, stream=True))
        except httpx.TransportError as error:
            raise Cut(_words(error)) from error

    async def send(self, request: Request) -> Response:
        """Sends a request and reads the whole answer."""
        answer = await self.open(request, ANSWER_SECONDS + request.wait)
        try:
            return Response(answer.status, answer.headers, await answer.rest())
        finally:
            await answer.aclose()

    async def aclose(self) -> None:
        await self._client.aclose()


async def _pieces(body: Body) -> AsyncIterator[bytes]:
    for piece in body.pieces():
        yield piece


class AsyncBackground:
    """One action again and again, by a task of its own, until it says that it is over or `stop` is called."""

    def __init__(self, name: str, interval: float, action: Callable[[], Awaitable[bool]]) -> None:
        self._task = asyncio.ensure_future(self._repeat(interval, action))

    async def _repeat(self, interval: float, action: Callable[[], Awaitable[bool]]) -> None:
        while True:
            await asyncio.sleep(interval)
            if not await action():
                return

    @property
    def running(self) -> bool:
        return not self._task.done()

    def stop(self) -> None:
        self._task.cancel()


class AsyncSocket:
    """A WebSocket. `Cut` where it does not open, breaks, or ends before it should."""

    def __init__(self, connection: Any, closed: Any) -> None:
        self._connection, self._closed = connection, closed

    @staticmethod
    async def open(settings: Settings, path: str, verify: Union[bool, ssl.SSLContext]) -> "AsyncSocket":
        websockets = _websockets()
        from websockets.asyncio.client import connect

        try:
            connection = await connect(
                settings.socket_url(path),
                additional_headers=settings.headers(),
                user_agent_header=None,
                open_timeout=CONNECT_SECONDS,
                close_timeout=2,
                max_size=16 << 20,
                compression=None,
                proxy=None,
                ssl=tls(settings, verify),
            )
        except (OSError, websockets.exceptions.WebSocketException, TimeoutError, asyncio.TimeoutError) as error:
            raise refusal(error) from error
        return AsyncSocket(connection, websockets.exceptions.ConnectionClosed)

    async def send(self, message: Union[str, bytes]) -> None:
        try:
            await self._connection.send(message)
        except (OSError, self._closed) as error:
            raise Cut(f"the connection broke: {error}") from error

    async def receive(self, timeout: Optional[float] = None) -> Union[str, bytes, None]:
        """The next message; None where none came within `timeout` seconds."""
        try:
            message: Union[str, bytes] = await asyncio.wait_for(self._connection.recv(), timeout)
            return message
        except (TimeoutError, asyncio.TimeoutError):
            return None
        except (OSError, self._closed) as error:
            raise Cut(f"the connection ended: {error}") from error

    async def aclose(self) -> None:
        await self._connection.close()


def _websockets() -> Any:
    try:
        import websockets.exceptions

        return websockets
    except ImportError:
        raise EspalierError("this goes over a WebSocket: pip install 'espalier[websocket]'") from None


def tls(settings: Settings, verify: Union[bool, ssl.SSLContext]) -> Optional[ssl.SSLContext]:
    """As httpx has it of the same `verify`."""
    if not settings.base_url.startswith("https"):
        return None
    return verify if isinstance(verify, ssl.SSLContext) else httpx.create_ssl_context(verify=verify)


def refusal(error: Exception) -> Exception:
    """What the service answered instead of opening a WebSocket; else a cut."""
    from ..errors import api_error

    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if response is None or not isinstance(status, int) or status < 400:
        return Cut(f"no WebSocket: {error or type(error).__name__}")
    headers = {key.lower(): value for key, value in response.headers.raw_items()}
    return api_error(status, headers, response.body or b"")


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
