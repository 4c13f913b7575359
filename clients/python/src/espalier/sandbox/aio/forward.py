"""A port here that leads to a port inside of a sandbox: one tunnel for each connection."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Optional, Set, Tuple, Type

from ..core.retry import Cut
from ..errors import EspalierError
from .connection import AsyncConnection
from .io import AsyncSocket

#: Connections at once; more wait in the system's queue.
TUNNELS_MAX = 256
PIECE_BYTES = 64 << 10


class AsyncForwarder:
    """Listens until it is closed. A tunnel that does not open or breaks closes its connection."""

    def __init__(self, connection: AsyncConnection, path: str) -> None:
        self._connection, self._path = connection, path
        self._server: Optional[asyncio.AbstractServer] = None
        self._tasks: "Set[asyncio.Task[None]]" = set()
        self._places = asyncio.Semaphore(TUNNELS_MAX)
        #: `(host, port)` to connect to.
        self.address: Tuple[str, int] = ("", 0)
        #: Why the last tunnel failed to open.
        self.error: Optional[Exception] = None

    @property
    def port(self) -> int:
        return self.address[1]

    async def open(self, host: str, port: int) -> None:
        self._server = await asyncio.start_server(self._serve, host, port)
        self.address = self._server.sockets[0].getsockname()[:2]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
        try:
            async with self._places:
                await self._tunnel(reader, writer)
        except asyncio.CancelledError:
            pass
        finally:
            if task is not None:
                self._tasks.discard(task)
            writer.close()

    async def _tunnel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            socket = await AsyncSocket.open(self._connection.settings, self._path, self._connection.verify)
        except (Cut, EspalierError) as error:
            self.error = error
            return
        up = asyncio.ensure_future(_up(reader, socket))
        try:
            while True:
                message = await socket.receive(None)
                if isinstance(message, bytes):
                    writer.write(message)
                    await writer.drain()
        except (Cut, OSError):
            pass
        finally:
            up.cancel()
            await socket.aclose()

    async def close(self) -> None:
        """Closes the listener and its tunnels."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=5)

    async def __aenter__(self) -> "AsyncForwarder":
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.close()


async def _up(reader: asyncio.StreamReader, socket: AsyncSocket) -> None:
    try:
        while True:
            piece = await reader.read(PIECE_BYTES)
            if not piece:
                # A WebSocket has no half of a connection: the tunnel ends when the other side has nothing more to say.
                await socket.send(b"")
                return
            await socket.send(piece)
    except (Cut, OSError):
        # A connection here that was reset hears no answer, either: the tunnel ends.
        await socket.aclose()
