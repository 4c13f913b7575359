"""Terminals and forwarded ports over WebSockets that break."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from typing import Any, Iterator

import fake_sockets
import pytest
from both import KINDS, client
from espalier import sandbox as api
from fake import KEY, Service


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("espalier.sandbox.core.retry.DELAY_FIRST", 0.001)
    monkeypatch.setattr("espalier.sandbox.core.retry.DELAY_MAX", 0.02)
    fake_sockets.cuts.clear()


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(8))
def test_a_terminal_over_connections_that_break(kind: str, seed: int, service: Service) -> None:
    """What is typed arrives once, and what is printed is read once, however often the connection is cut."""
    chance = random.Random(seed)
    fake_sockets.cuts.extend(chance.randrange(12) for _ in range(seed * 2))
    with client(kind, service.url, KEY) as c:
        sandbox = c.create_sandbox()
        with sandbox.terminal("cat", rows=10, columns=40) as terminal:
            assert terminal.pid == 7
            assert terminal.process.sandbox_id == sandbox.id
            typed = b""
            for number in range(10):
                word = f"word{number};".encode() * chance.randrange(1, 4)
                typed += word
                terminal.write(word)
                assert terminal.read_until(word.upper()) == word.upper()
            terminal.write("exit")
            assert terminal.wait(20).exit_code == 0 and terminal.exit_code == 0
            assert terminal.read() == b"EXIT" and terminal.read(0.01) == b""
            record = service.commands[(sandbox.id, terminal.process.id)]
            assert record.input == typed + b"exit" and record.runs == 1
            with pytest.raises(api.EspalierError):
                terminal.write("x")


@pytest.mark.parametrize("kind", KINDS)
def test_a_terminal_has_a_size_and_its_waits_a_bound(kind: str, service: Service) -> None:
    with client(kind, service.url, KEY) as c:
        terminal = c.create_sandbox().terminal("cat")
        terminal.resize(7, 9)
        assert terminal.read_until("[7x9]") == b"[7x9]"
        assert terminal.read(0.02) == b""
        with pytest.raises(api.WaitTimeout):
            terminal.read_until("never", 0.02)
        with pytest.raises(api.WaitTimeout):
            terminal.wait(0.02)
        terminal.close()


class Echo:
    """A server that says everything back, and ends when its peer has nothing more to say."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            peer, _ = self.listener.accept()
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: Any) -> None:
        with peer:
            while data := peer.recv(65536):
                peer.sendall(data)


@pytest.mark.parametrize("kind", KINDS)
def test_a_port_inside_is_a_port_here(kind: str, service: Service) -> None:
    echo = Echo()
    with client(kind, service.url, KEY) as c:
        sandbox = c.create_sandbox()
        assert sandbox.url(8000, "/a") == f"{service.url}/v1/sandboxes/{sandbox.id}/ports/8000/a"
        with sandbox.forward(echo.port) as forwarder:
            data = random.Random(1).randbytes(300_000)
            for _ in range(3):
                with socket.create_connection(tuple(forwarder.address), timeout=20) as peer:
                    threading.Thread(target=lambda: (peer.sendall(data), peer.shutdown(socket.SHUT_WR))).start()
                    got = b""
                    while piece := peer.recv(65536):
                        got += piece
                assert got == data
        with pytest.raises(OSError):
            socket.create_connection(tuple(forwarder.address), timeout=5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_connection_here_that_is_reset_ends_its_tunnel(kind: str, service: Service) -> None:
    """Also where the other side has nothing to say."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(20)
    with client(kind, service.url, KEY) as c:
        with c.create_sandbox().forward(listener.getsockname()[1]) as forwarder:
            peer = socket.create_connection(tuple(forwarder.address), timeout=20)
            peer.sendall(b"hello")
            inside, _ = listener.accept()
            inside.settimeout(20)
            assert inside.recv(5) == b"hello"
            # Closed so, it is reset.
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()
            began = time.monotonic()
            try:
                assert inside.recv(5) == b""
            except ConnectionResetError:
                pass
            assert time.monotonic() - began < 10
            inside.close()
    listener.close()
