"""The requests that Orchard's client sends, and of the answers what it reads."""

from __future__ import annotations

import base64
import json
import socket
import time
from typing import Any, Dict, Iterator

import daemon
import httpx
import pytest

pytestmark = daemon.needed


class Orchard:
    """A connection as its client has it: the key in `X-API-Key`, every answer an object of JSON."""

    def __init__(self, served: Any) -> None:
        self.url, self.key = served.url, served.key
        self.http = httpx.Client(base_url=served.url, headers={"X-API-Key": served.key}, timeout=120)

    def __call__(self, method: str, path: str, **more: Any) -> Dict[str, Any]:
        answer = self.http.request(method, path, **more)
        assert answer.status_code < 400, answer.text
        value = answer.json()
        assert isinstance(value, dict)
        return value


@pytest.fixture(scope="module")
def orchard(served: Any) -> Orchard:
    return Orchard(served)


@pytest.fixture(scope="module")
def id(orchard: Orchard) -> Iterator[str]:
    payload = {"image": "host", "block_network": True, "cpu": "1", "memory": "1Gi", "timeout": 600}
    made = orchard("POST", "/sandboxes", json=payload)
    assert made["status"] in ("pending", "ready", "running")
    ready = orchard("GET", f"/sandboxes/{made['sandbox_id']}/wait", params={"timeout": 600})
    # The one thing by which its client knows that it may go on.
    assert ready.get("ready") or ready["status"] == "ready", ready
    assert (ready["sandbox_id"], ready["image"], ready["block_network"]) == (made["sandbox_id"], "host", True)
    yield made["sandbox_id"]
    gone = orchard("DELETE", f"/sandboxes/{made['sandbox_id']}")
    assert gone["sandbox_id"] == made["sandbox_id"]


JOB = {
    "job_id", "sandbox_id", "command", "status", "stdout", "stderr", "exit_code", "created_at", "started_at", "completed_at",
    "error",
}  # fmt: skip


def exec_body(command: Any, wait: bool, **more: Any) -> Dict[str, Any]:
    """As its client fills it: what is not said is null."""
    return {"command": command, "timeout_seconds": None, "cwd": None, "env": None, "login_shell": False, "wait": wait, **more}


def test_a_command_that_is_waited_for(orchard: Orchard, id: str) -> None:
    job = orchard("POST", f"/sandboxes/{id}/exec", json=exec_body("echo Hello; echo err >&2", True))
    assert JOB <= set(job), JOB - set(job)
    assert (job["status"], job["stdout"], job["stderr"], job["exit_code"]) == ("succeeded", "Hello\n", "err\n", 0)
    assert job["sandbox_id"] == id and job["error"] is None
    assert job["created_at"] <= job["started_at"] <= job["completed_at"] and abs(job["created_at"] - time.time()) < 60
    again = orchard("GET", f"/jobs/{job['job_id']}")
    assert again["stdout"] == "Hello\n" and again["status"] == "succeeded"


def test_forms_of_commands(orchard: Orchard, id: str) -> None:
    run = lambda command, **more: orchard("POST", f"/sandboxes/{id}/exec", json=exec_body(command, True, **more))  # noqa: E731
    assert run(["printf", "%s", "a b"])["stdout"] == "a b"
    assert run("pwd; echo $KEY", cwd="/tmp", env={"KEY": "value"})["stdout"] == "/tmp\nvalue\n"
    assert run("shopt -q login_shell && echo yes", login_shell=True)["stdout"] == "yes\n"
    failed = run("exit 3")
    assert (failed["status"], failed["exit_code"]) == ("failed", 3)
    late = run("echo begun; sleep 100", timeout_seconds=1)
    assert late["status"] == "failed" and late["stdout"] == "begun\n" and late["error"]


def test_a_job_that_is_asked_for_later(orchard: Orchard, id: str) -> None:
    body = exec_body("sleep 1; echo done", False)
    del body["wait"]
    started = orchard("POST", f"/sandboxes/{id}/exec", json=body)
    assert started["status"] in ("queued", "running")
    running = orchard("GET", f"/jobs/{started['job_id']}")
    assert running["status"] in ("queued", "running") and running["exit_code"] is None
    ended = orchard("GET", f"/jobs/{started['job_id']}/wait", params={"timeout": 300})
    assert (ended["status"], ended["stdout"]) == ("succeeded", "done\n")
    missing = orchard.http.get("/jobs/nobody")
    assert missing.status_code == 404 and missing.json()["detail"]


def test_files(orchard: Orchard, id: str) -> None:
    content = base64.b64encode(b"\x00\xffbytes").decode()
    put = orchard("POST", f"/sandboxes/{id}/files", json={"path": "/workspace/test.bin", "content": content})
    assert put["size"] == 7
    got = orchard("GET", f"/sandboxes/{id}/files", params={"path": "/workspace/test.bin"})
    assert base64.b64decode(got["content"]) == b"\x00\xffbytes"
    orchard("POST", f"/sandboxes/{id}/files", json={"path": "/workspace/src/a.py", "content": ""})
    listed = orchard("GET", f"/sandboxes/{id}/files/list", params={"path": "/workspace"})["files"]
    assert {(each["name"], each["type"]) for each in listed} == {("test.bin", "file"), ("src", "directory")}
    assert all(isinstance(each["size"], int) and "modified" in each for each in listed)
    assert orchard.http.get(f"/sandboxes/{id}/files", params={"path": "/missing"}).status_code == 404


def test_patches(orchard: Orchard, id: str) -> None:
    where = orchard("POST", f"/sandboxes/{id}/exec", json=exec_body("pwd", True))["stdout"].strip().rstrip("/")
    text = base64.b64encode(b"line1\n").decode()
    orchard("POST", f"/sandboxes/{id}/files", json={"path": f"{where}/file.txt", "content": text})
    patch = "--- a/file.txt\n+++ b/file.txt\n@@ -1 +1,2 @@\n line1\n+line2\n"
    done = orchard("POST", f"/sandboxes/{id}/apply_patch", json={"patch": patch, "timeout_seconds": 30})
    assert set(done) >= {"success", "stdout", "stderr", "exit_code"}
    assert done["success"] is True, done
    other = "--- a/file.txt\n+++ b/file.txt\n@@ -1 +1 @@\n-another\n+line\n"
    again = orchard("POST", f"/sandboxes/{id}/apply_patch", json={"patch": other, "timeout_seconds": 30})
    assert again["success"] is False and again["stderr"]


def test_life(orchard: Orchard, id: str) -> None:
    assert orchard("GET", "/health")
    assert orchard("GET", "/resources")
    assert orchard("GET", f"/sandboxes/{id}")["sandbox_id"] == id
    orchard("POST", f"/sandboxes/{id}/heartbeat")
    with_prefix = orchard("POST", "/sandboxes", json={"image": "host", "block_network": True, "sandbox_id": "mine-1234abcd"})
    orchard("DELETE", f"/sandboxes/{with_prefix['sandbox_id']}")
    missing = orchard.http.get("/sandboxes/nobody")
    assert missing.status_code == 404 and missing.json()["detail"]
    assert httpx.get(f"{orchard.url}/sandboxes").status_code == 401
    failed = orchard("POST", "/sandboxes", json={"image": "oci:/no/such/image", "block_network": True})
    told = orchard.http.get(f"/sandboxes/{failed['sandbox_id']}/wait", params={"timeout": 30})
    assert told.status_code >= 400 or told.json()["status"] == "failed"


def test_a_terminal(orchard: Orchard, id: str) -> None:
    connect = pytest.importorskip("websockets.sync.client").connect
    url = f"ws{orchard.url[4:]}/sandboxes/{id}/exec/pty?api_key={orchard.key}"
    command = "echo tty:$(stty size):$A; read line; echo got:$line; exit 5"
    init = {
        "type": "init", "cmd": ["bash", "-c", command], "env": {"A": "b"}, "cwd": None, "rows": 24, "cols": 80,
        "login_shell": False,
    }  # fmt: skip
    with connect(url, proxy=None) as peer:
        peer.send(json.dumps(init))
        seen, code = b"", None
        ready = json.loads(peer.recv(20))
        assert ready["type"] == "ready"
        peer.send(json.dumps({"type": "resize", "rows": 30, "cols": 90}))
        peer.send(json.dumps({"type": "stdin", "data": base64.b64encode(b"typed\n").decode()}))
        while code is None:
            frame = json.loads(peer.recv(20))
            if frame["type"] == "stdout":
                seen += base64.b64decode(frame["data"])
            elif frame["type"] == "exit":
                code = frame["code"]
        assert code == 5 and b":b\r\n" in seen and b"got:typed\r\n" in seen


def test_a_terminal_whose_client_leaves_behind_input_that_nobody_reads(orchard: Orchard, id: str) -> None:
    connect = pytest.importorskip("websockets.sync.client").connect
    url = f"ws{orchard.url[4:]}/sandboxes/{id}/exec/pty?api_key={orchard.key}"

    def runs() -> bool:
        body = exec_body("pgrep -f 'sleep 4321[0]'", True)
        return bool(orchard("POST", f"/sandboxes/{id}/exec", json=body)["exit_code"] == 0)

    # Neither does the terminal throw it away.
    init = {"type": "init", "cmd": ["bash", "-c", "stty raw -echo; echo set; exec sleep 43210"]}
    typed = json.dumps({"type": "stdin", "data": base64.b64encode(b"x" * 8192).decode()})
    with connect(url, proxy=None) as peer:
        peer.send(json.dumps(init))
        seen = b""
        while b"set" not in seen:
            frame = json.loads(peer.recv(20))
            seen += base64.b64decode(frame.get("data", ""))
        for _ in range(40):
            peer.send(typed)
        assert runs()
        peer.socket.shutdown(socket.SHUT_RDWR)
    end = time.monotonic() + 120
    while runs():
        assert time.monotonic() < end, "it outlives its client"
        time.sleep(1)
