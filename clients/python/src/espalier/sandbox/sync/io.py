"""Input and output by threads: HTTP by httpx, WebSockets by websockets, waiting, work in the background."""

from __future__ import annotations

import ssl
import threading
import time
from typing import Any, Callable, Dict, Optional, Sequence, TypeVar, Union

import httpx

from ..aio.io import _websockets, _words, refusal, tls
from ..core.requests import Body, Request, Response
from ..core.retry import Cut
from ..core.settings import ANSWER_BYTES_MAX, ANSWER_SECONDS, CONNECT_SECONDS, SILENCE_SECONDS, Settings
from ..errors import ProtocolError

Transport = httpx.BaseTransport
T = TypeVar("T")


def now() -> float:
    return time.monotonic()


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def at_last(action: Callable[[], None], seconds: float) -> None:
    """Carries it out. Nothing cancels a thread; the action bounds itself."""
    action()


def for_each(items: Sequence[T], action: Callable[[T], bool], at_once: int) -> None:
    """Carries it out for every item, one after the other whatever `at_once` says. Where it says False, no other is begun."""
    for item in items:
        if not action(item):
            return


class Answer:
    """An answer whose body is still coming."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._pieces = response.iter_bytes()
        self.status = response.status_code
        self.headers: Dict[str, str] = {key.lower(): value for key, value in response.headers.items()}

    def piece(self) -> bytes:
        """The next bytes; none at the end. `Cut` where the connection ended before the body, or was silent."""
        try:
            for piece in self._pieces:
                if piece:
                    return piece
            return b""
        except httpx.TransportError as error:
            raise Cut(_words(error)) from error

    def rest(self, bytes_max: int = ANSWER_BYTES_MAX) -> bytes:
        """All that is left."""
        body = bytearray()
        while True:
            piece = self.piece()
            if not piece:
                return bytes(body)
            body += piece
            if len(body) > bytes_max:
                raise ProtocolError(f"an answer of over {bytes_max} bytes")

    def close(self) -> None:
        self._response.close()


class Http:
    """Connections to one service."""

    def __init__(self, settings: Settings, verify: Union[bool, ssl.SSLContext], transport: Optional[Transport]) -> None:
        if settings.socket is not None and transport is None:
            transport = httpx.HTTPTransport(uds=settings.socket)
        limits = httpx.Limits(max_connections=settings.connections, max_keepalive_connections=100)
        self._client = httpx.Client(
            base_url=settings.base_url, headers=settings.headers(), verify=verify, limits=limits, transport=transport
        )

    def open(self, request: Request, silence: float = SILENCE_SECONDS) -> Answer:
        """Sends a request; `Cut` where no answer begins."""
        timeout = httpx.Timeout(connect=CONNECT_SECONDS, read=silence, write=ANSWER_SECONDS, pool=ANSWER_SECONDS)
        headers = dict(request.headers)
        content: Any = request.body
        if isinstance(content, Body):
            headers["content-length"] = str(content.size)
            content = content.pieces()
        elif not content and request.method in ("GET", "HEAD", "DELETE"):
            content = None
        built = self._client.build_request(request.method, request.path, headers=headers, content=content, timeout=timeout)
        try:
            return Answer(self._client.send(built, stream=True))
        except httpx.TransportError as error:
            raise Cut(_words(error)) from error

    def send(self, request: Request) -> Response:
        """Sends a request and reads the whole answer."""
        answer = self.open(request, ANSWER_SECONDS + request.wait)
        try:
            return Response(answer.status, answer.headers, answer.rest())
        finally:
            answer.close()

    def close(self) -> None:
        self._client.close()


class Background:
    """One action again and again, by a thread of its own, until it says that it is over or `stop` is called."""

    def __init__(self, name: str, interval: float, action: Callable[[], bool]) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._repeat, args=(interval, action), name=name, daemon=True)
        self._thread.start()

    def _repeat(self, interval: float, action: Callable[[], bool]) -> None:
        while not self._stop.wait(interval):
            if not action():
                return

    @property
    def running(self) -> bool:
        return self._thread.is_alive() and not self._stop.is_set()

    def stop(self) -> None:
        """Does not wait for an action that is under way."""
        self._stop.set()


class Socket:
    """A WebSocket. `Cut` where it does not open, breaks, or ends before it should."""

    def __init__(self, connection: Any, closed: Any) -> None:
        self._connection, self._closed = connection, closed

    @staticmethod
    def open(settings: Settings, path: str, verify: Union[bool, ssl.SSLContext]) -> "Socket":
        websockets = _websockets()
        from websockets.sync.client import connect

        try:
            connection = connect(
                settings.socket_url(path),
                additional_headers=settings.headers(),
                user_agent_header=None,
                open_timeout=CONNECT_SECONDS,
                close_timeout=2,
                max_size=16 << 20,
                compression=None,
                proxy=None,
                ssl=tls(settings, verify),
            ).__enter__()
        except (OSError, websockets.exceptions.WebSocketException, TimeoutError) as error:
            raise refusal(error) from error
        return Socket(connection, websockets.exceptions.ConnectionClosed)

    def send(self, message: Union[str, bytes]) -> None:
        try:
            self._connection.send(message)
        except (OSError, self._closed) as error:
            raise Cut(f"the connection broke: {error}") from error

    def receive(self, timeout: Optional[float] = None) -> Union[str, bytes, None]:
        """The next message; None where none came within `timeout` seconds."""
        try:
            message: Union[str, bytes] = self._connection.recv(timeout)
            return message
        except TimeoutError:
            return None
        except (OSError, self._closed) as error:
            raise Cut(f"the connection ended: {error}") from error

    def close(self) -> None:
        self._connection.close()
