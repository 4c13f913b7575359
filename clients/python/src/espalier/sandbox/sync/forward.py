"""A port here that leads to a port inside of a sandbox: one tunnel for each connection."""

from __future__ import annotations

import socket as sockets
import threading
from types import TracebackType
from typing import Optional, Set, Tuple, Type

from ..aio.forward import PIECE_BYTES, TUNNELS_MAX
from ..core.retry import Cut
from ..errors import EspalierError
from .connection import Connection
from .io import Socket


class Forwarder:
    """Listens until it is closed, by threads of its own. A tunnel that does not open or breaks closes its connection."""

    def __init__(self, connection: Connection, path: str) -> None:
        self._connection, self._path = connection, path
        self._listener: Optional[sockets.socket] = None
        self._open: Set[sockets.socket] = set()
        self._lock = threading.Lock()
        self._places = threading.Semaphore(TUNNELS_MAX)
        #: `(host, port)` to connect to.
        self.address: Tuple[str, int] = ("", 0)
        #: Why the last tunnel failed to open.
        self.error: Optional[Exception] = None

    @property
    def port(self) -> int:
        return self.address[1]

    def open(self, host: str, port: int) -> None:
        self._listener = sockets.create_server((host, port))
        self.address = self._listener.getsockname()[:2]
        threading.Thread(target=self._accept, args=(self._listener,), name=f"forward-{self.port}", daemon=True).start()

    def _accept(self, listener: sockets.socket) -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.add(peer)
            self._places.acquire()
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: sockets.socket) -> None:
        try:
            tunnel = Socket.open(self._connection.settings, self._path, self._connection.verify)
            threading.Thread(target=_up, args=(peer, tunnel), daemon=True).start()
            try:
                while True:
                    message = tunnel.receive(None)
                    if isinstance(message, bytes):
                        peer.sendall(message)
            finally:
                tunnel.close()
        except (Cut, OSError):
            pass
        except EspalierError as error:
            self.error = error
        finally:
            with self._lock:
                self._open.discard(peer)
            _shut(peer)
            self._places.release()

    def close(self) -> None:
        """Closes the listener and its tunnels."""
        if self._listener is not None:
            _shut(self._listener)
        with self._lock:
            peers = list(self._open)
        for peer in peers:
            _shut(peer)

    def __enter__(self) -> "Forwarder":
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()


def _up(peer: sockets.socket, tunnel: Socket) -> None:
    try:
        while True:
            piece = peer.recv(PIECE_BYTES)
            # None: a WebSocket has no half of a connection; an empty message says that nothing more is sent.
            tunnel.send(piece)
            if not piece:
                return
    except (Cut, OSError):
        tunnel.close()


def _shut(socket: sockets.socket) -> None:
    """Wakes whoever waits on it, which closing alone does not."""
    try:
        socket.shutdown(sockets.SHUT_RDWR)
    except OSError:
        pass
    socket.close()
