"""What stands around the service: certificates of its own, and a collector of traces."""

from __future__ import annotations

import http.server
import queue
import ssl
import subprocess
import threading
from pathlib import Path
from typing import Any, Iterator, Tuple

import daemon
import httpx
import pytest
import trustme
from both import KINDS, client
from daemon import Daemon
from espalier import sandbox as api

pytestmark = daemon.needed


class Secured:
    """A service with a certificate for 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1")
        self.certificate, self.private = folder / "certificate.pem", folder / "key.pem"
        # The whole chain in one file, as those who issue certificates hand it out.
        for number, part in enumerate(issued.cert_chain_pems):
            part.write_to_path(str(self.certificate), append=number > 0)
        issued.private_key_pem.write_to_path(str(self.private))
        self.trusting = ssl.create_default_context()
        authority.configure_trust(self.trusting)
        words = ("--tls-cert", str(self.certificate), "--tls-key", str(self.private))
        self.daemon = Daemon(*words, verify=self.trusting)
        self.key = self.daemon.key("tls")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    secured = Secured(tmp_path_factory.mktemp("tls"))
    yield secured
    secured.daemon.end([secured.key])


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_of_connections_over_tls(secured: Secured, kind: Any) -> None:
    with client(kind, secured.daemon.url, secured.key, verify=secured.trusting) as c:
        sandbox = c.create_sandbox(network="loopback")
        assert sandbox.exec("echo secured").stdout == "secured\n"
        sandbox.upload_content(b"\x00" * 300_000, "/tmp/a")
        assert sandbox.download_content("/tmp/a") == b"\x00" * 300_000
        stream = sandbox.stream("echo streamed")
        assert b"".join(event.data for event in stream if isinstance(event, api.Output)) == b"streamed\n"
        # A WebSocket.
        with sandbox.terminal(["sh"], env={"PS1": "> ", "TERM": "dumb"}) as terminal:
            terminal.write("echo in-a-'terminal'\n")
            terminal.read_until("in-a-terminal\r\n")
        sandbox.delete()


def test_both_versions_of_http_are_offered(secured: Secured) -> None:
    for http2, version in ((True, "HTTP/2"), (False, "HTTP/1.1")):
        with httpx.Client(http2=http2, verify=secured.trusting, timeout=30) as c:
            answer = c.get(f"{secured.daemon.url}/health")
            assert (answer.status_code, answer.http_version) == (200, version)


def test_whoever_does_not_trust_the_certificate_or_speaks_plainly_gets_nothing(secured: Secured) -> None:
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        daemon.raw("GET", f"{secured.daemon.url}/health")
    with pytest.raises(httpx.TransportError):
        daemon.raw("GET", secured.daemon.url.replace("https", "http") + "/health")
    assert daemon.raw("GET", f"{secured.daemon.url}/health", verify=secured.trusting).status_code == 200


def test_files_that_are_no_certificate_are_named(secured: Secured, tmp_path: Path) -> None:
    def refused(certificate: Path, private: Path) -> str:
        words = ["serve", "--listen", "127.0.0.1:0", "--store", str(tmp_path / "store")]
        words += ["--tls-cert", str(certificate), "--tls-key", str(private)]
        run = subprocess.run([str(daemon.PROGRAM), *words], capture_output=True, text=True, timeout=60, check=False)
        assert run.returncode == 2, run.stderr
        return " ".join(run.stderr.split())

    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for said, wrong in (
        (refused(empty, secured.private), empty),
        (refused(secured.certificate, empty), empty),
        (refused(tmp_path / "missing.pem", secured.private), tmp_path / "missing.pem"),
    ):
        assert str(wrong) in said


@pytest.fixture
def collector() -> Iterator[Tuple[str, "queue.Queue[Tuple[str, bytes]]"]]:
    """Keeps what is posted to it."""
    posted: "queue.Queue[Tuple[str, bytes]]" = queue.Queue()

    class Keep(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.put((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Keep)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", posted
    server.shutdown()
    server.server_close()


def test_each_request_is_a_span_at_the_collector(collector: Any) -> None:
    url, posted = collector
    served = Daemon(environment={"OTEL_EXPORTER_OTLP_ENDPOINT": url})
    try:
        key = served.key("traces")
        answer = daemon.raw("GET", f"{served.url}/v1/sandboxes", key, headers={"x-request-id": "request-of-the-trace"})
        assert (answer.status_code, answer.headers["x-request-id"]) == (200, "request-of-the-trace")
    finally:
        # Ends in order: the last spans are sent then.
        served.end([])
    bodies = b""
    while not posted.empty():
        path, body = posted.get()
        assert path == "/v1/traces"
        bodies += body
    for told in (b"espalier", b"/v1/sandboxes", b"request-of-the-trace", b"http.response.status_code"):
        assert told in bodies
