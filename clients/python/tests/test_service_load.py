"""Clients that leave, dawdle, say nothing, say too much or guess keys; and a drain: nothing is lost or stuck, memory is bounded."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Iterator, List

import daemon
import httpx
import pytest
from daemon import Daemon
from espalier import SandboxClient
from espalier import sandbox as api

pytestmark = daemon.needed

MIB = 1 << 20


class Own:
    """A service of its own, so that its memory and descriptors tell of one test alone."""

    def __init__(self) -> None:
        self.daemon = Daemon("--drain", "8s")
        self.key = self.daemon.key("load", "sandboxes:write,metrics", "--sandboxes", "200")
        self.client = SandboxClient(self.daemon.url, self.key)
        self.sandbox: Any = None

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.daemon.pid}/fd"))

    def answers(self) -> float:
        """Seconds for one command: that it still does its work."""
        began = time.monotonic()
        with SandboxClient(self.daemon.url, self.key, reconnect_within=0) as client:
            assert client.get_sandbox(self.sandbox.id).exec("echo well", timeout=10).stdout == "well\n"
        return time.monotonic() - began

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.daemon.port), timeout=20)

    def head(self, method: str, path: str, *headers: str) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", "host: x", f"authorization: Bearer {self.key}", *headers, "", ""]
        return "\r\n".join(lines).encode()


@pytest.fixture(scope="module")
def service() -> Iterator[Own]:
    own = Own()
    yield own
    own.client.close()
    own.daemon.end([own.key])


@pytest.fixture
def own(service: Own) -> Iterator[Own]:
    service.sandbox = service.client.create_sandbox()
    yield service
    service.sandbox.delete()


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not come to be"
        time.sleep(0.1)


def test_clients_that_leave_in_the_middle_of_a_stream(own: Own) -> None:
    before = own.descriptors()
    script = "for i in $(seq 60); do echo line $i; sleep 0.1; done"
    processes = [own.sandbox.start(script) for _ in range(50)]
    peers = []
    for process in processes:
        peer = own.connect()
        path = f"/v1/sandboxes/{own.sandbox.id}/commands/{process.id}"
        peer.sendall(own.head("GET", path, "accept: text/event-stream"))
        assert b"200" in peer.recv(1000)
        peers.append(peer)
    for number, peer in enumerate(peers):
        if number % 2:
            # A reset, not an end.
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer.close()
    until(lambda: own.descriptors() <= before + 20)
    for process in processes:
        assert process.wait(60).stdout == "".join(f"line {number}\n" for number in range(1, 61))


def test_slow_readers(own: Own) -> None:
    """Ten clients that hardly read a command's 100 MB: what the service holds for them is bounded, and the last gets its end."""
    process = own.sandbox.start("head -c 100000000 /dev/zero | tr '\\0' 'a'", output_max=200 * MIB)
    process.wait(120)
    before = own.daemon.memory()
    peers = []
    for _ in range(10):
        peer = own.connect()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        path = f"/v1/sandboxes/{own.sandbox.id}/commands/{process.id}"
        peer.sendall(own.head("GET", path, "accept: text/event-stream"))
        peers.append(peer)
    most = before
    for _ in range(30):
        for peer in peers:
            peer.recv(512)
        most = max(most, own.daemon.memory())
        time.sleep(0.1)
    assert own.answers() < 5
    print(f"resident before {before / MIB:.0f} MiB, at most {most / MIB:.0f} MiB with ten slow readers")
    assert most - before < 100 * MIB
    for peer in peers:
        peer.close()
    size = sum(len(event.data) for event in process.events() if isinstance(event, api.Output))
    assert size == 100_000_000


def test_ten_thousand_idle_connections(own: Own) -> None:
    before = own.daemon.memory()
    count = 10_000
    command = [sys.executable, str(Path(__file__).parent / "idle.py"), "127.0.0.1", str(own.daemon.port), str(count)]
    idle = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert idle.stdout is not None and idle.stdin is not None
        assert idle.stdout.readline().strip() == str(count)
        took = [own.answers() for _ in range(10)]
        held = own.daemon.memory()
        idle.stdin.write("\n")
        idle.stdin.flush()
        still = idle.stdout.readline().strip()
        print(
            f"{count} connections, {still} still open; resident {before / MIB:.0f} -> {held / MIB:.0f} MiB, "
            f"{(held - before) / count / 1024:.1f} KiB each; a command takes {sorted(took)[5] * 1000:.0f} ms beside them"
        )
        assert held - before < 400 * MIB and max(took) < 10
    finally:
        idle.kill()
        idle.wait()
    until(lambda: own.descriptors() < 500, 180)
    assert own.answers() < 5


CHUNKED = ("content-type: application/json", "transfer-encoding: chunked")


def test_bodies_that_are_too_large(own: Own) -> None:
    before = own.daemon.memory()
    path = f"/v1/sandboxes/{own.sandbox.id}/commands"
    said = own.head("POST", path, "content-type: application/json", f"content-length: {1 << 40}")
    for what, head, piece in [
        ("said to be a tebibyte", said, b"a" * 0x10000),
        ("without end", own.head("POST", path, *CHUNKED), b"10000\r\n" + b"a" * 0x10000 + b"\r\n"),
    ]:
        sent = 0
        with own.connect() as peer:
            peer.sendall(head)
            try:
                while sent < 1 << 28:
                    peer.sendall(piece)
                    sent += 0x10000
            except OSError:
                pass
            try:
                assert b" 413 " in peer.recv(4096)
            except ConnectionResetError:
                # What was sent and not read took the answer along.
                pass
        print(f"{sent / MIB:.0f} MiB were taken of a body {what}")
        assert sent < 64 * MIB
    # A file may be large; that of a whole disk is not held in memory, and leaves nothing.
    small = own.client.create_sandbox(disk="64MiB")
    with own.connect() as peer:
        peer.sendall(own.head("PUT", f"/v1/sandboxes/{small.id}/files?path=/big", CHUNKED[1]))
        try:
            for _ in range(300):
                peer.sendall(b"100000\r\n" + os.urandom(1 << 20) + b"\r\n")
        except OSError:
            pass
    until(lambda: not small.exists("/big"))
    small.delete()
    after = own.daemon.memory()
    print(f"resident {before / MIB:.0f} -> {after / MIB:.0f} MiB")
    assert after - before < 150 * MIB
    many = {"authorization": f"Bearer {own.key}", **{f"x-{number}": "y" * 1000 for number in range(200)}}
    answer = httpx.get(f"{own.daemon.url}/v1/sandboxes", headers=many)
    assert 400 <= answer.status_code < 500
    assert own.answers() < 5


def test_slow_headers(own: Own) -> None:
    """Connections that never finish what they begin are ended; others are served meanwhile."""
    head = own.head("GET", "/health")
    peers = [own.connect() for _ in range(200)]
    began = time.monotonic()
    open_peers = list(peers)
    at = 0
    while open_peers and time.monotonic() - began < 150:
        for peer in list(open_peers):
            try:
                peer.sendall(head[at : at + 1] or b"x")
                peer.setblocking(False)
                try:
                    if not peer.recv(1000):
                        open_peers.remove(peer)
                except BlockingIOError:
                    pass
                finally:
                    peer.setblocking(True)
            except OSError:
                open_peers.remove(peer)
        # Never the empty line that would end it.
        at = min(at + 1, len(head) - 5)
        assert own.answers() < 5
        time.sleep(1)
    print(f"200 slow connections were ended within {time.monotonic() - began:.0f} s")
    assert not open_peers
    for peer in peers:
        peer.close()


def test_a_thousand_wrong_keys_are_slowed(own: Own) -> None:
    statuses: List[int] = []
    with httpx.Client(base_url=own.daemon.url, limits=httpx.Limits(max_connections=20), timeout=120) as guesser:

        def guess(number: int) -> int:
            return guesser.get("/v1/sandboxes", headers={"x-api-key": f"esp_{number:040}"}).status_code

        began = time.monotonic()
        with ThreadPoolExecutor(20) as threads:
            for status in threads.map(guess, range(1000)):
                statuses.append(status)
        took = time.monotonic() - began
    tried = statuses.count(401)
    print(f"1,000 wrong keys in {took:.1f} s: {tried} looked at ({tried / took:.0f}/s), {statuses.count(429)} put off")
    assert set(statuses) <= {401, 429}
    assert tried / took < 100 or tried < 200, "guessing is not slowed"
    # Who has the right key is not kept out, at the same time and from the same address.
    assert own.answers() < 5


def test_a_drain_with_fifty_streams_open(own: Own) -> None:
    """The service is asked to end under fifty streams: short commands come to their end, the others go on with the next service."""
    short = [own.sandbox.stream("for i in $(seq 20); do echo s$i; sleep 0.1; done") for _ in range(25)]
    long = [own.sandbox.stream("for i in $(seq 150); do echo l$i; sleep 0.1; done") for _ in range(25)]
    outputs: List[bytes] = [b""] * 50
    failures: List[BaseException] = []

    def follow(number: int, stream: Any) -> None:
        try:
            for event in stream:
                assert not isinstance(event, api.Gap)
                if isinstance(event, api.Output):
                    outputs[number] += event.data
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=follow, args=(number, stream)) for number, stream in enumerate(short + long)]
    for thread in threads:
        thread.start()
    until(lambda: all(outputs))
    process = own.daemon.process
    assert process is not None
    began = time.monotonic()
    own.daemon.terminate()
    time.sleep(0.5)
    refused = 0
    try:
        answer = httpx.get(f"{own.daemon.url}/ready", timeout=5)
        refused = answer.status_code
        assert refused == 503
    except httpx.TransportError:
        pass
    process.wait(30)
    took = time.monotonic() - began
    print(f"ended {took:.1f} s after it was asked to (drain 8 s), exit code {process.returncode}, /ready said {refused or 'nothing'}")
    assert took < 15 and process.returncode == 0
    own.daemon.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert not failures, failures[:3]
    assert outputs[:25] == ["".join(f"s{i}\n" for i in range(1, 21)).encode()] * 25
    assert outputs[25:] == ["".join(f"l{i}\n" for i in range(1, 151)).encode()] * 25
