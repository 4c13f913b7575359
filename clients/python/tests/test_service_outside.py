"""What reaches beyond the sandboxes of the service: images that keys name, and servers inside that answer as they like."""

from __future__ import annotations

import base64
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Iterator, List, Tuple

import httpx
import pytest
from daemon import Daemon, needed, raw
from espalier import SandboxClient

pytestmark = needed

SERVER = """
import socket
door = socket.create_server(("127.0.0.1", 8000))
while True:
    peer, _ = door.accept()
    peer.recv(65536)
    peer.sendall(b"HTTP/1.1 101 Switching Protocols\\r\\nConnection: upgrade\\r\\nUpgrade: websocket\\r\\n\\r\\nsmuggled")
    peer.close()
"""


class Registry:
    """One that has nothing, and wants a name and a password to say so."""

    def __init__(self) -> None:
        asked: List[Tuple[str, str]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                shown = self.headers.get("authorization", "none")
                asked.append((self.path, shown))
                self.send_response(404 if shown != "none" else 401)
                self.send_header("www-authenticate", 'Basic realm="test"')
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.asked = asked
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Place:
    """A service with a folder of images and a registry, and another registry that was not opened."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.given = folder / "given"
        self.given.mkdir()
        self.opened, self.inner = Registry(), Registry()
        auth = {"auth": base64.b64encode(b"operator:secret").decode()}
        config = {"auths": {self.opened.address: auth, self.inner.address: auth}}
        (folder / "config.json").write_text(json.dumps(config))
        self.daemon = Daemon(
            *("--image-folder", str(self.given), "--registry", self.opened.address),
            environment={"DOCKER_CONFIG": str(folder)},
        )
        self.key = self.daemon.key("tests")

    def create(self, image: str, key: str = "") -> httpx.Response:
        return raw("POST", f"{self.daemon.url}/v1/sandboxes", key or self.key, json={"image": image})

    def why(self, image: str, key: str = "") -> str:
        made = self.create(image, key).json()
        assert made["state"] == "failed" and made["error"]["code"] == "invalid", made
        return str(made["error"]["detail"])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("outside"))
    yield place
    place.daemon.end([place.key])


def test_folders_that_were_told_and_nothing_else(place: Place) -> None:
    made = place.daemon.command("sandbox", "create", "--setup", "echo theirs > /root/kept")
    kept = place.daemon.command("sandbox", "checkpoint", made)
    for to in (place.given, place.folder):
        place.daemon.command("sandbox", "export", kept, str(to / "work.tar"))
    place.daemon.command("sandbox", "delete", made, "--checkpoint", kept)
    os.mkfifo(place.given / "pipe.tar")
    (place.given / "link.tar").symlink_to(place.folder / "work.tar")
    with SandboxClient(place.daemon.url, place.key) as client:
        for image in ("oci-archive:work.tar", f"oci-archive:{place.given}/work.tar:latest"):
            with client.create_sandbox(image=image) as sandbox:
                assert sandbox.download_content("/root/kept") == b"theirs\n"
    names = [f"{place.folder}/work.tar", f"{place.folder}/nothing.tar", "../work.tar", "pipe.tar", "link.tar", "nothing.tar"]
    names += ["/dev/zero", "/etc/shadow", "/etc/nothing", str(place.daemon.store)]
    said = {place.why(f"oci-archive:{name}").replace(name, "NAME") for name in names}
    said |= {place.why(f"oci:{name}").replace(f"oci:{name}", "oci-archive:NAME") for name in names}
    assert len(said) == 1, said
    assert "no image oci-archive:NAME in the image folders of the service" in said.pop()


def test_addresses_of_this_machine_and_its_credentials(place: Place) -> None:
    for host in (place.inner.address, place.inner.address.replace("127.0.0.1", "localhost")):
        assert "is a private or local address" in place.why(f"{host}/a:v1")
    for host in ("169.254.169.254", "10.0.0.1:5000", "192.168.0.1", "0.0.0.0:80", "metadata.internal.invalid:80"):
        assert place.create(f"{host}/a:v1").json()["state"] in ("failed", "creating")
    assert place.inner.asked == []
    image = f"{place.opened.address}/a:v1"
    place.why(image)
    assert {shown for _, shown in place.opened.asked} == {"none"}
    granted = place.daemon.key("granted", "sandboxes:write,registry:credentials")
    place.why(image, granted)
    expect = f"Basic {base64.b64encode(b'operator:secret').decode()}"
    assert {shown for _, shown in place.opened.asked} == {"none", expect}
    assert "is a private or local address" in place.why(f"{place.inner.address}/a:v1", granted)
    assert place.inner.asked == []


def test_a_protocol_that_nobody_asked_for(place: Place) -> None:
    with SandboxClient(place.daemon.url, place.key) as client, client.create_sandbox(network="loopback") as sandbox:
        sandbox.upload_content(SERVER, "/root/server.py")
        sandbox.start("python3 /root/server.py", timeout=None)
        sandbox.exec("for i in $(seq 100); do (: </dev/tcp/127.0.0.1/8000) && exit 0; sleep 0.1; done; exit 1", check=True)
        url = sandbox.url(8000, "/")
        answer = httpx.get(url, headers=sandbox.headers)
        assert (answer.status_code, answer.json()["code"]) == (502, "no-listener")
        asks = {**sandbox.headers, "connection": "upgrade", "upgrade": "h2c"}
        assert httpx.get(url, headers=asks).status_code == 502


def test_a_file_of_holes_is_not_sent_for_ever(place: Place) -> None:
    with SandboxClient(place.daemon.url, place.key) as client, client.create_sandbox() as sandbox:
        sandbox.exec("truncate -s 4E /root/huge", check=True)
        url = f"{place.daemon.url}/v1/sandboxes/{sandbox.id}/files?path=/root/huge"
        answer = raw("GET", url, place.key)
        assert (answer.status_code, answer.json()["code"]) == (413, "payload-too-large")
        assert raw("HEAD", url, place.key).status_code == 200
        assert raw("GET", url, place.key, headers={"range": "bytes=0-9"}).content == bytes(10)
        assert raw("GET", url, place.key, headers={"range": "bytes=0-99999999999"}).status_code == 413
