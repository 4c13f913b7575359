"""The requests that Orchard's client sends and those that its service takes, route by route, and of the answers what it reads."""

from __future__ import annotations

import base64
import json
import socket
import time
from typing import Any, Dict, Iterator, List, Tuple

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
    # Ready within a second or not: that is how long its client waits, not how long the sandbox lives.
    payload = {"image": "host", "block_network": True, "cpu": "1", "memory": "1Gi", "timeout": 1}
    made = orchard("POST", "/sandboxes", json=payload)
    assert made["status"] in ("pending", "ready", "running") and made["timeout"] == 1
    ready = orchard("GET", f"/sandboxes/{made['sandbox_id']}/wait", params={"timeout": 7200.0})
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
    assert run(["printf", "%s", "a'b c"], login_shell=True)["stdout"] == "a'b c"
    # Its login shell is an interactive one, which has nothing to say of a terminal that is not there.
    run("echo 'case $- in *i*) export ACTIVATED=yes;; esac' >~/.bashrc")
    activated = run("echo $ACTIVATED; echo err >&2", login_shell=True)
    assert (activated["stdout"], activated["stderr"]) == ("yes\n", "err\n")
    failed = run("exit 3")
    assert (failed["status"], failed["exit_code"]) == ("failed", 3)
    late = run("echo begun; sleep 100", timeout_seconds=1)
    assert late["status"] == "failed" and late["stdout"] == "begun\n" and late["error"] and late["exit_code"] == 124
    assert run(["no-such-program"])["exit_code"] == 127
    assert run("kill -9 $$")["exit_code"] == -9


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


def test_every_form_of_a_command(orchard: Orchard, id: str) -> None:
    """What is left out, null, or a number or flag in another form; and bounds far beyond what a request waits."""
    forms: List[Dict[str, Any]] = [
        {},
        {"wait": None, "login_shell": None, "timeout_seconds": None, "cwd": None, "env": None},
        {"wait": False, "timeout_seconds": 0},
        {"wait": False, "timeout_seconds": 604800},
        {"wait": True, "timeout_seconds": 604800},
        {"wait": True, "timeout_seconds": 7200.0},
        {"wait": "yes", "timeout_seconds": "30", "login_shell": "false"},
        {"wait": 1, "timeout_seconds": 10**9, "cwd": "", "env": {}},
        {"wait": True, "timeout_seconds": 0, "unknown": 1},
    ]
    for form in forms:
        job = orchard("POST", f"/sandboxes/{id}/exec", json={"command": "echo done", **form})
        if form.get("wait"):
            assert job["status"] == "succeeded", (form, job)
        for timeout in ("7200.0", "300", "604800"):
            job = orchard("GET", f"/jobs/{job['job_id']}/wait", params={"timeout": timeout})
            assert (job["status"], job["stdout"]) == ("succeeded", "done\n"), (form, job)
    assert orchard("POST", f"/sandboxes/{id}/exec", json={"command": [], "wait": True})["exit_code"] == 0
    killed = orchard("POST", f"/sandboxes/{id}/exec", json={"command": "sleep 100", "wait": True, "timeout_seconds": -1})
    assert killed["exit_code"] == 124


def test_a_command_that_outlasts_the_wait_runs_on(orchard: Orchard, id: str) -> None:
    # Its end is ours to give.
    orchard("POST", f"/sandboxes/{id}/exec", json=exec_body("mkfifo /tmp/fifo", True))
    long = orchard("POST", f"/sandboxes/{id}/exec", json=exec_body("read line </tmp/fifo; echo $line", False, timeout_seconds=604800))
    for timeout in ("0", "0.2"):
        waited = orchard("GET", f"/jobs/{long['job_id']}/wait", params={"timeout": timeout})
        assert waited["status"] == "running" and waited["exit_code"] is None
    orchard("POST", f"/sandboxes/{id}/exec", json=exec_body("echo went on >/tmp/fifo", True))
    ended = orchard("GET", f"/jobs/{long['job_id']}/wait", params={"timeout": 7200.0})
    assert (ended["status"], ended["stdout"]) == ("succeeded", "went on\n")


def test_what_is_asked_right_after_create_waits(orchard: Orchard) -> None:
    """Without `/wait`, as clients do that do not wait for readiness."""
    requests: List[Tuple[str, str, Dict[str, Any]]] = [
        ("POST", "exec", {"json": exec_body("pwd", True)}),
        ("POST", "exec", {"json": {"command": "pwd"}}),
        ("POST", "files", {"json": {"path": "a", "content": "YQ"}}),
        ("GET", "files", {"params": {"path": "/etc/passwd"}}),
        ("GET", "files/list", {}),
        ("POST", "apply_patch", {"json": {"patch": "--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+new"}}),
    ]
    for method, path, more in requests:
        made = orchard("POST", "/sandboxes", json={"image": "host", "cpu": "1", "memory": "1Gi"})
        assert made["status"] == "pending"
        answer = orchard(method, f"/sandboxes/{made['sandbox_id']}/{path}", **more)
        assert answer.get("status", "succeeded") in ("succeeded", "running") and answer.get("success", True), (path, answer)
        orchard("DELETE", f"/sandboxes/{made['sandbox_id']}")


def test_a_sandbox_that_is_asked_for_twice_is_one(orchard: Orchard) -> None:
    """Its client sends the request again where no answer came."""
    body = {"image": "host", "cpu": "1", "memory": "1Gi", "sandbox_id": "twice-1234abcd"}
    made = [orchard("POST", "/sandboxes", json=body) for _ in range(2)]
    assert made[0]["created_at"] == made[1]["created_at"]
    orchard("DELETE", "/sandboxes/twice-1234abcd")


def test_what_is_gone_or_another_keys_is_not_there(orchard: Orchard, id: str, served: Any) -> None:
    other = httpx.Client(base_url=orchard.url, headers={"X-API-Key": served.another_key("other")}, timeout=60)
    never = other.delete("/sandboxes/never")
    foreign = other.delete(f"/sandboxes/{id}")
    assert (foreign.status_code, foreign.json()) == (never.status_code, {**never.json(), "sandbox_id": id}) == (
        200, {"sandbox_id": id, "status": "deleted"},
    )  # fmt: skip
    assert orchard("GET", f"/sandboxes/{id}")["ready"] is True
    gone = orchard("POST", "/sandboxes", json={"image": "host", "cpu": "1", "memory": "1Gi"})["sandbox_id"]
    for _ in range(3):
        assert orchard("DELETE", f"/sandboxes/{gone}") == {"sandbox_id": gone, "status": "deleted"}
    for client, name in ((orchard.http, gone), (orchard.http, "never"), (other, id)):
        for method, path in [("GET", ""), ("GET", "/wait"), ("POST", "/heartbeat")]:
            assert client.request(method, f"/sandboxes/{name}{path}").status_code == 404, (name, path)


def test_files(orchard: Orchard, id: str) -> None:
    content = base64.b64encode(b"\x00\xffbytes").decode()
    put = orchard("POST", f"/sandboxes/{id}/files", json={"path": "/workspace/test.bin", "content": content})
    assert put["size"] == 7
    got = orchard("GET", f"/sandboxes/{id}/files", params={"path": "/workspace/test.bin"})
    assert base64.b64decode(got["content"]) == b"\x00\xffbytes"
    orchard("POST", f"/sandboxes/{id}/files", json={"path": "/workspace/src/a.py", "content": ""})
    orchard("POST", f"/sandboxes/{id}/exec", json=exec_body("ln -s src link; ln -s nothing broken", True, cwd="/workspace"))
    expected = [("broken", "file"), ("link", "directory"), ("src", "directory"), ("test.bin", "file")]
    for params in ({"path": "/workspace"}, {}, {"path": ""}):
        listed = orchard("GET", f"/sandboxes/{id}/files/list", params=params)["files"]
        assert [(each["name"], each["type"]) for each in listed] == expected, params
        assert all(isinstance(each["size"], int) for each in listed)
        assert all(time.strptime(each["modified"], "%Y-%m-%dT%H:%M:%S") for each in listed)
    orchard("POST", f"/sandboxes/{id}/exec", json=exec_body("rm link broken", True, cwd="/workspace"))
    for same in ("AP9ieXRlcw", "AP9i\r\neXRl\ncw==\n", " AP9ieXRlcw=="):
        body = {"path": "/workspace/test.bin", "content": same, "mode": None}
        assert orchard("POST", f"/sandboxes/{id}/files", json=body)["size"] == 7, same
        assert orchard("GET", f"/sandboxes/{id}/files", params={"path": "/workspace/test.bin"})["content"] == content
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
    lines = 2
    for form in ({}, {"timeout_seconds": None}, {"timeout_seconds": 0}, {"timeout_seconds": 7200.0}, {"timeout_seconds": 604800}):
        # Without the newline at its end, as its documents have it.
        patch = f"--- a/file.txt\n+++ b/file.txt\n@@ -{lines} +{lines},2 @@\n line{lines}\n+line{lines + 1}"
        assert orchard("POST", f"/sandboxes/{id}/apply_patch", json={"patch": patch, **form})["success"] is True, form
        lines += 1


def test_life(orchard: Orchard, id: str) -> None:
    assert orchard("GET", "/health")
    assert orchard("GET", "/resources")
    found = orchard("GET", f"/sandboxes/{id}")
    assert found["sandbox_id"] == id and found["status_message"] == "" and found["expires_at"] - time.time() > 6000
    assert orchard("POST", f"/sandboxes/{id}/heartbeat")["status"] == "ok"
    with_prefix = orchard("POST", "/sandboxes", json={"image": "host", "block_network": True, "sandbox_id": "mine-1234abcd"})
    orchard("DELETE", f"/sandboxes/{with_prefix['sandbox_id']}")
    missing = orchard.http.get("/sandboxes/nobody")
    assert missing.status_code == 404 and missing.json()["detail"]
    assert httpx.get(f"{orchard.url}/sandboxes").status_code == 401
    assert httpx.get(f"{orchard.url}/sandboxes", headers={"X-API-Key": f"{orchard.key}x"}).status_code == 403
    failed = orchard.http.post("/sandboxes", json={"image": "oci:/no/such/image", "block_network": True})
    if failed.status_code < 400:
        told = orchard.http.get(f"/sandboxes/{failed.json()['sandbox_id']}/wait", params={"timeout": 30})
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
        # What its service does not understand it leaves out.
        for unknown in ("no JSON", "{}", json.dumps({"type": "news"}), json.dumps({"type": "resize", "rows": None})):
            peer.send(unknown)
        peer.send(json.dumps({"type": "resize", "rows": 30.0, "cols": "90"}))
        peer.send(json.dumps({"type": "stdin", "data": base64.b64encode(b"typed\n").decode()}))
        while code is None:
            frame = json.loads(peer.recv(20))
            if frame["type"] == "stdout":
                seen += base64.b64decode(frame["data"])
            elif frame["type"] == "exit":
                code = frame["code"]
        assert code == 5 and b":b\r\n" in seen and b"got:typed\r\n" in seen


def test_every_form_of_a_terminal(orchard: Orchard, id: str) -> None:
    connect = pytest.importorskip("websockets.sync.client").connect
    url = f"ws{orchard.url[4:]}/sandboxes/{id}/exec/pty"
    by_header: Dict[str, Any] = {"additional_headers": {"X-API-Key": orchard.key}}
    by_protocol: Dict[str, Any] = {"additional_headers": {"Sec-WebSocket-Protocol": f"api_key.{orchard.key}"}}
    forms: List[Tuple[Dict[str, Any], Dict[str, Any], List[Dict[str, Any]], int]] = [
        # How it is opened, what is run, what is sent, the code at its end.
        (by_header, {"cmd": ["bash", "-c", "exit 3"], "env": None, "rows": 0, "cols": None, "login_shell": None}, [], 3),
        (by_protocol, {"cmd": ["sh", "-c", "exit 4"], "rows": 24.0, "cols": "80", "login_shell": "false"}, [], 4),
        (by_header, {"cmd": ["sh", "-c", 'test "$0" = "a b" && exit 5', "a b"], "login_shell": True}, [], 5),
        (by_header, {"cmd": ["sleep", "100"]}, [{"type": "signal", "sig": "KILL"}], -9),
        (by_header, {"cmd": ["sleep", "100"]}, [{"type": "signal", "sig": "int"}], -2),
        (by_header, {"cmd": ["sleep", "100"]}, [{"type": "signal", "sig": "unheard-of"}], -15),
        (by_header, {"cmd": ["sleep", "100"]}, [{"type": "signal"}], -15),
        # A shell that waits for its child: the signal reaches both. It is the child that says so: one that is just being forked
        # still has the shell's trap, and would lose the signal.
        (by_header, {"cmd": ["bash", "-c", "trap 'exit 6' TERM; (echo set; exec sleep 100); exit 7"]}, [{"type": "signal", "sig": "TERM"}], 6),
    ]
    for how, init, sent, expected in forms:
        with connect(url, proxy=None, **how) as peer:
            peer.send(json.dumps({"type": "init", **init}))
            assert json.loads(peer.recv(20))["type"] == "ready"
            seen, frame = b"", {}
            while "echo set" in str(init) and b"set" not in seen:
                seen += base64.b64decode(json.loads(peer.recv(20)).get("data", ""))
            for message in sent:
                peer.send(json.dumps(message))
            while frame.get("type") != "exit":
                frame = json.loads(peer.recv(20))
            assert frame["code"] == expected, (init, sent)


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
