"""A second key sees, lists, names, deletes and reaches nothing of the first, over every route that the service says it has."""

from __future__ import annotations

import json
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, Iterator, List, Tuple

import daemon
import httpx
import pytest
from espalier import SandboxClient
from espalier import sandbox as api

pytestmark = daemon.needed

METHODS = ("get", "put", "post", "delete", "options", "head", "patch")
#: Routes that everybody may ask, and that name nobody's things.
OPEN = {"/", "/health", "/ready", "/openapi.json"}
#: Answers that tell a stranger nothing: it is not there, the request has no meaning, or it is of another's key.
TELL_NOTHING = (400, 401, 403, 404, 405, 410, 415, 422)


class Owner:
    """The first key, with one of everything."""

    def __init__(self, served: Any) -> None:
        self.url, self.key = served.url, served.key
        self.client = SandboxClient(served.url, served.key)
        self.sandbox = self.client.create_sandbox(
            network="loopback", labels={"secret": "label-7421"}, name="name-7421", files={"/secret-7421": "content-7421"}
        )
        self.checkpoint = self.sandbox.checkpoint()
        self.process = self.sandbox.start("echo output-7421; sleep 3600", timeout=None)
        self.shell = self.sandbox.shell()
        self.marks = [self.sandbox.id, self.checkpoint.id, self.process.id, self.shell.id, "7421"]

    def alive(self) -> None:
        """Everything is as it was."""
        assert self.sandbox.refresh().state == "running"
        assert self.sandbox.labels == {"secret": "label-7421"}
        assert self.sandbox.download_content("/secret-7421") == b"content-7421"
        assert [entry.name for entry in self.sandbox.list_files("/") if "7421" in entry.name] == ["secret-7421"]
        assert self.process.poll().status == "running"
        assert self.shell.exec("echo here").stdout == "here\n"
        self.client.get_checkpoint(self.checkpoint.id)


@pytest.fixture(scope="module")
def owner(served: Any) -> Iterator[Owner]:
    owner = Owner(served)
    yield owner
    owner.client.delete_checkpoint(owner.checkpoint.id)
    owner.client.cleanup_all()
    owner.client.close()


@pytest.fixture(scope="module")
def stranger(served: Any) -> str:
    return str(served.another_key("stranger"))


def routes(url: str) -> List[Tuple[str, str, Dict[str, Any]]]:
    """Every method of every path of the service's own description."""
    paths = httpx.get(f"{url}/openapi.json").json()["paths"]
    return [(method, path, each[method]) for path, each in paths.items() for method in METHODS if method in each]


def filled(path: str, owner: Owner) -> str:
    """The path with the first key's own names in it."""
    ids = {"shell": owner.shell.id, "sid": owner.shell.id, "port": "8000", "path": "x", "rest": "x"}

    def name(found: "re.Match[str]") -> str:
        word = found.group(1).lstrip("*")
        before = path[: found.start()]
        if "checkpoints/" in before:
            return str(owner.checkpoint.id)
        if "jobs/" in before:
            return f"{owner.sandbox.id}.{owner.process.id}"
        if before.endswith("sandboxes/"):
            return str(owner.sandbox.id)
        if before.endswith("commands/"):
            return str(owner.process.id)
        if before.endswith("shells/"):
            return str(owner.shell.id)
        return ids.get(word, "x")

    return re.sub(r"\{([^}]+)\}", name, path)


#: Bodies that would do something, had they the right to.
BODIES: Dict[str, Any] = {
    "commands": {"command": "touch /touched-7421"},
    "exec": {"command": "touch /touched-7421"},
    "shells": {},
    "fork": {"count": 1},
    "checkpoints": {},
    "move": {"from": "/secret-7421", "to": "/moved"},
    "patch": {"patch": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"},
    "apply_patch": {"patch": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"},
    "signal": {"signal": "KILL", "tree": True},
    "resize": {"rows": 3, "columns": 3},
    "files": {"path": "/secret-7421", "content": "eA=="},
}


def test_over_every_route(served: Any, owner: Owner, stranger: str) -> None:
    known = routes(served.url)
    assert len(known) >= 30, [f"{method} {path}" for method, path, _ in known]
    asked = 0
    for method, path, _ in known:
        if path in OPEN:
            continue
        target = filled(path, owner) + "?path=/secret-7421&offset=0&stream=stdout&recursive=true"
        bare = filled(path, owner)
        last = path.rstrip("/").rsplit("/", 1)[-1]
        body = {"labels": {"taken": "1"}, "lifetime_s": 5} if method == "patch" else BODIES.get(last)
        for address in (target, bare):
            more = {"json": body} if body is not None else {}
            answer = daemon.raw(method.upper(), served.url + address, stranger, **more)
            asked += 1
            text = answer.text
            problem = json.dumps(answer.json()) if "json" in answer.headers.get("content-type", "") else text
            # A detail may repeat what the stranger gave; it may not tell another thing.
            named = [mark for mark in owner.marks if mark in problem and mark not in address]
            if (method, path) == ("delete", "/sandboxes/{id}"):
                # Orchard's service deletes what is nowhere with success, so this must be told as if it were nowhere.
                nowhere = daemon.raw("DELETE", served.url + address.replace(owner.sandbox.id, "aaaaaaaaaaaa"), stranger)
                assert answer.status_code == nowhere.status_code
                assert text.replace(owner.sandbox.id, "ID") == nowhere.text.replace("aaaaaaaaaaaa", "ID")
            elif "{" in path:
                assert answer.status_code in TELL_NOTHING, f"{method} {address}: {answer.status_code} {text[:200]}"
            assert not named, f"{method} {address}: tells {named}: {text[:300]}"
    print(f"{asked} requests over {len(known)} routes")
    owner.alive()


def test_it_is_as_if_there_were_nothing(served: Any, owner: Owner, stranger: str) -> None:
    """The answers for what is another's and for what is nowhere are the same but for the name."""
    for there, nowhere in [
        (f"/v1/sandboxes/{owner.sandbox.id}", "/v1/sandboxes/aaaaaaaaaaaa"),
        (f"/v1/sandboxes/{owner.sandbox.id}/files?path=/secret-7421", "/v1/sandboxes/aaaaaaaaaaaa/files?path=/secret-7421"),
        (f"/v1/checkpoints/{owner.checkpoint.id}", f"/v1/checkpoints/{'a' * len(owner.checkpoint.id)}"),
    ]:
        one, other = (daemon.raw("GET", served.url + path, stranger) for path in (there, nowhere))
        assert one.status_code == other.status_code == 404
        same = [
            {key: str(value).replace(name, "NAME") for key, value in answer.json().items() if key != "request_id"}
            for answer, name in ((one, there.split("/")[3].split("?")[0]), (other, nowhere.split("/")[3].split("?")[0]))
        ]
        assert same[0] == same[1]


def test_by_the_client(served: Any, owner: Owner, stranger: str) -> None:
    with SandboxClient(served.url, stranger, reconnect_within=2) as client:
        assert client.list_sandboxes() == [] and client.list_checkpoints() == []
        with pytest.raises(api.NotFound):
            client.get_sandbox(owner.sandbox.id)
        with pytest.raises(api.ApiError):
            client.create_sandbox(checkpoint=owner.checkpoint.id)
        for path in ("/sandboxes", "/v1/sandboxes"):
            body = {"image": f"checkpoint:{owner.checkpoint.id}"}
            answer = daemon.raw("POST", f"{served.url}{path}", stranger, json=body)
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
        theirs = api.Sandbox(client, owner.sandbox.info)
        for attempt in [
            lambda: theirs.exec("true"),
            lambda: list(theirs.stream("true")),
            lambda: list(theirs.attach(owner.process.id).events()),
            lambda: theirs.attach(owner.process.id).output(),
            lambda: theirs.terminal("sh"),
            lambda: theirs.checkpoint(),
            lambda: theirs.fork(),
            lambda: theirs.download_content("/secret-7421"),
            lambda: theirs.shell(),
            lambda: theirs.exec("true", shell=owner.shell.id),
        ]:
            with pytest.raises(api.NotFound):
                attempt()
        client.delete_sandbox(owner.sandbox.id)
        for path in ("", "/", "/x"):
            port = f"{served.url}/v1/sandboxes/{owner.sandbox.id}/ports/8000{path}"
            assert daemon.raw("GET", port, stranger).status_code == 404
        with theirs.forward(8000) as forwarder:
            with socket.create_connection(tuple(forwarder.address), timeout=20) as peer:
                assert peer.recv(10) == b""
            assert isinstance(forwarder.error, api.NotFound)
    owner.alive()


def test_ids_and_idempotency_keys_are_each_keys_own(served: Any, owner: Owner, stranger: str) -> None:
    more = {"idempotency-key": "shared-name"}
    mine, theirs = (
        daemon.raw("POST", f"{served.url}/v1/sandboxes", key, json={}, headers=more).json()["id"]
        for key in (owner.key, stranger)
    )
    assert mine != theirs
    with SandboxClient(served.url, stranger) as client:
        # Another's shell, command or checkpoint is not had by its own sandbox either.
        own = client.get_sandbox(theirs)
        with pytest.raises(api.ApiError):
            own.exec("true", shell=owner.shell.id)
        with pytest.raises((api.NotFound, api.Expired)):
            own.attach(owner.process.id).poll()
        own.delete()
    owner.client.delete_sandbox(mine)


def test_scopes_and_revoked_keys(served: Any, owner: Owner) -> None:
    reader = served.another_key("reader", scopes="sandboxes:read")
    with SandboxClient(served.url, reader) as client:
        assert client.list_sandboxes() == []
        with pytest.raises(api.Forbidden):
            client.create_sandbox()
    assert daemon.raw("GET", f"{served.url}/metrics", reader).status_code == 403
    for wrong in (None, "", "esp_", "esp_" + "a" * 40, owner.key[:-1], owner.key + "a"):
        assert daemon.raw("GET", f"{served.url}/v1/sandboxes", wrong).status_code == 401
    other = served.another_key("revoked")
    id = daemon.raw("GET", f"{served.url}/v1/key", other).json()["id"]
    assert daemon.raw("GET", f"{served.url}/v1/key", headers={"x-api-key": other}).status_code == 200
    served.daemon.command("key", "revoke", id)
    end = time.monotonic() + 30
    while daemon.raw("GET", f"{served.url}/v1/key", other).status_code != 401:
        assert time.monotonic() < end, "a revoked key still works"
        time.sleep(0.5)
    served.keys.remove(other)


def test_quotas_are_of_the_key(served: Any) -> None:
    small = served.another_key("small", "--sandboxes", "2", "--memory", "3GiB")
    with SandboxClient(served.url, small) as client:
        first = client.create_sandbox(memory="1GiB")
        with pytest.raises(api.QuotaExceeded):
            client.create_sandbox(memory="2560MiB")
        client.create_sandbox(memory="1GiB")
        with pytest.raises(api.QuotaExceeded) as caught:
            client.create_sandbox(memory="100MiB")
        assert caught.value.hint
        with pytest.raises(api.QuotaExceeded):
            first.fork()
        first.delete()
        client.create_sandbox(memory="100MiB")


def test_the_quota_of_disk_counts_checkpoints(served: Any) -> None:
    bound = served.another_key("bound", "--disk", "200MiB")
    with SandboxClient(served.url, bound) as client:
        with pytest.raises(api.QuotaExceeded, match="of disk"):
            client.create_sandbox(disk="201MiB")
        sandbox = client.create_sandbox(disk="150MiB")
        sandbox.exec("head -c 30000000 /dev/urandom > /root/x")
        kept = sandbox.checkpoint()
        key = client.key()
        assert key.quotas["disk"] == 200 << 20 and key.used["disk"] == 150 << 20
        assert 30_000_000 <= key.used["checkpoints"] < 40_000_000
        # 150 MiB, and twice what it has written.
        with pytest.raises(api.QuotaExceeded, match="this checkpoint would"):
            sandbox.checkpoint()
        assert [one.id for one in client.list_checkpoints()] == [kept.id]
        with pytest.raises(api.QuotaExceeded, match="checkpoints included"):
            client.create_sandbox(disk="40MiB")
        client.delete_checkpoint(kept.id)
        client.create_sandbox(disk="40MiB")


#: Set-up that lasts longer than any test.
SLOW = "sleep 600"


def begun(served: Any, key: str, body: Dict[str, Any]) -> httpx.Response:
    """A creation that is not waited for."""
    return daemon.raw("POST", f"{served.url}/v1/sandboxes?wait_s=0", key, json={"memory": "64MiB", **body})


def test_set_up_of_one_key_holds_up_no_other(served: Any) -> None:
    """More sandboxes than are made at once sit in their set-up; another key's is made beside them."""
    slow, other = served.another_key("slow-set-up"), served.another_key("beside-set-up")
    for _ in range(60):
        assert begun(served, slow, {"setup": SLOW}).status_code == 202
    answer = daemon.raw("POST", f"{served.url}/v1/sandboxes?wait_s=50", other, json={"memory": "64MiB"})
    assert (answer.status_code, answer.json()["state"]) == (201, "running")
    with SandboxClient(served.url, slow) as client:
        assert {each.info.state for each in client.list_sandboxes()} == {"creating"}
        client.cleanup_all()
        for each in client.list_sandboxes():
            each.delete()


def test_large_bodies_of_one_key_are_no_others_affair(served: Any) -> None:
    large, other = served.another_key("large"), served.another_key("beside-large")
    body = {"files": {"/large": "x" * 15_000_000}}
    statuses = [begun(served, large, {**body, "setup": SLOW, "disk": "64MiB"}).status_code for _ in range(17)]
    # It has a share of the memory, and hears of its end by itself.
    assert set(statuses) == {202, 429}, statuses
    answer = daemon.raw("POST", f"{served.url}/v1/sandboxes?wait_s=50", other, json={**body, "memory": "64MiB"})
    assert (answer.status_code, answer.json().get("state")) == (201, "running"), answer.text
    with SandboxClient(served.url, large) as client:
        for each in client.list_sandboxes():
            each.delete()


def test_labels_are_the_same_here_and_in_the_sandbox(served: Any) -> None:
    """Whatever order concurrent changes come in, the last one stands in both places, and nothing of the others."""
    with SandboxClient(served.url, served.key) as client:
        sandbox = client.create_sandbox()
        url = f"{served.url}/v1/sandboxes/{sandbox.id}"

        def change(number: int) -> int:
            labels = {"order-7421": sandbox.id, f"of-{number}": str(number)}
            return daemon.raw("PATCH", url, served.key, json={"labels": labels}).status_code

        with ThreadPoolExecutor(8) as threads:
            for turn in range(20):
                assert set(threads.map(change, range(8 * turn, 8 * turn + 8))) == {200}
                here = daemon.raw("GET", url, served.key).json()["labels"]
                shown = served.daemon.command("sandbox", "list", "--json", "--label", f"order-7421={sandbox.id}")
                (found,) = json.loads(shown)
                there = {name: value for name, value in found["labels"].items() if not name.startswith("espalier.")}
                assert json.loads(found["labels"]["espalier.api"])["labels"] == here
                assert {name: value for name, value in there.items() if value} == here
        sandbox.delete()
