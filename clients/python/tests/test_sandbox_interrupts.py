"""Both clients where a call is interrupted or a state is old: nothing is left behind, and it can be gone on with."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, List, Optional

import httpx
import pytest
from both import client
from espalier import sandbox as api
from espalier.sandbox.aio.client import DELETED_AT_ONCE
from fake import KEY, Fault, Service, printed
from faulty import both, is_command, kind, once, quick, runs, service  # noqa: F401


def test_what_is_asked_for_again_is_as_it_is_now(kind: str, service: Service) -> None:
    with client(kind, service.url, KEY) as c:
        sandbox = c.create_sandbox("slow", wait_ready=False)
        other = client(kind, service.url, KEY)
        assert sandbox.info.state == c.get_sandbox(sandbox.id).info.state == "creating"
        service.sandboxes[sandbox.id]["state"] = "running"
        assert c.get_sandbox(sandbox.id).info.state == sandbox.info.state == "running"
        service.sandboxes[sandbox.id]["state"] = "ended"
        assert [each.info.state for each in c.list_sandboxes()] == [sandbox.info.state] == ["ended"]
        assert other.get_sandbox(sandbox.id).info.state == "ended"
        other.close()


def test_a_sandbox_that_is_waited_for(kind: str, service: Service) -> None:
    """One call makes it, so that its id is known, and one waits; neither has a pause."""
    with client(kind, service.url, KEY) as c:
        sandbox = c.create_sandbox()
        assert sandbox.info.state == "running"
        asked = [(method, httpx.URL(path).path.rsplit("/", 1)[1]) for method, path, _, _ in service.requests]
        assert asked == [("POST", "sandboxes"), ("GET", "wait")]
        with pytest.raises(api.WaitTimeout, match=r"is creating, not running, after 0\.[12] s"):
            c.create_sandbox("slow", timeout=0.2)
        assert [each["state"] for each in service.sandboxes.values()] == ["running", "ended"]
        assert c.cleanup_all() == 1


class Interrupted(BaseException):
    """As a key that is pressed, or a cancelled task."""


def interrupted(monkeypatch: pytest.MonkeyPatch, kind: str, where: str, name: str) -> None:
    """The method's next call does nothing and is interrupted."""
    one = __import__(f"espalier.sandbox.{'aio' if kind == 'async' else 'sync'}.{where}", fromlist=["x"])
    owner = getattr(one, ("Async" if kind == "async" else "") + where.capitalize().replace("Io", "Http"))
    before = getattr(owner, name)

    def interrupt(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(owner, name, before)
        raise Interrupted

    monkeypatch.setattr(owner, name, interrupt)


def test_a_creation_that_is_interrupted_leaves_no_sandbox(
    kind: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client(kind, service.url, KEY, auto_cleanup=False) as c:
        interrupted(monkeypatch, kind, "sandbox", "wait")
        with pytest.raises(Interrupted):
            c.create_sandbox("slow")
        assert [each["state"] for each in service.sandboxes.values()] == ["ended"]
        # Where it cannot be deleted, that is tried for seconds only, and it stays known.
        service.fault = lambda number, method, path: Fault("refuse") if method == "DELETE" else None
        monkeypatch.setattr(f"espalier.sandbox.{'aio' if kind == 'async' else 'sync'}.client.LAST_SECONDS", 0.2)
        interrupted(monkeypatch, kind, "sandbox", "wait")
        began = time.monotonic()
        with pytest.raises(Interrupted):
            c.create_sandbox("slow")
        assert time.monotonic() - began < 10
        service.fault = lambda number, method, path: None
        assert c.cleanup_all() == 1
        assert [each["state"] for each in service.sandboxes.values()] == ["ended", "ended"]


def test_a_creation_that_is_cancelled_leaves_no_sandbox(service: Service) -> None:
    async def main() -> None:
        async with api.AsyncSandboxClient(service.url, KEY, auto_cleanup=False) as c:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(c.create_sandbox("slow"), 0.5)
            assert [each["state"] for each in service.sandboxes.values()] == ["ended"]
            # Cancelled again while it is deleted: it is deleted all the same.
            task = asyncio.ensure_future(c.create_sandbox("slow"))
            while len(service.sandboxes) < 2:
                await asyncio.sleep(0.01)
            deleting = threading.Event()

            def slow(number: int, method: str, path: str) -> Optional[Fault]:
                if method == "DELETE":
                    deleting.set()
                    time.sleep(0.1)
                return None

            service.fault = slow
            task.cancel()
            while not deleting.is_set():
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            end = time.monotonic() + 5
            while time.monotonic() < end and "creating" in [each["state"] for each in service.sandboxes.values()]:
                await asyncio.sleep(0.01)
            assert [each["state"] for each in service.sandboxes.values()] == ["ended", "ended"]

    asyncio.run(main())


def test_a_sandbox_that_went_with_a_restart_is_made_again(kind: str, service: Service) -> None:
    """The service drops what is half made when it starts; the same request makes it anew."""
    with client(kind, service.url, KEY) as c:
        lost: List[str] = []

        def restarted(number: int, method: str, path: str) -> None:
            if "/wait" in path and not lost:
                lost.extend(service.sandboxes)
                service.sandboxes.clear()

        service.fault = restarted
        sandbox = c.create_sandbox()
        assert sandbox.info.state == "running" and lost and sandbox.id not in lost
        keys = {headers["idempotency-key"] for method, path, headers, _ in service.requests if method == "POST"}
        assert len(keys) == 1
        assert c.cleanup_all() == 1


def test_what_could_not_be_deleted_stays_known(kind: str, service: Service) -> None:
    with client(kind, service.url, KEY, reconnect_within=0.1) as c:
        made = [c.create_sandbox() for _ in range(4)]
        service.fault = lambda number, method, path: Fault("status", 500) if method == "DELETE" else None
        with pytest.raises(api.Internal):
            made[0].delete()
        assert c.cleanup_all() == 0
        # The service is away: that is found out once, not for each of them.
        service.fault = lambda number, method, path: Fault("refuse") if method == "DELETE" else None
        before = len(service.requests)
        assert c.cleanup_all() == 0
        if kind == "sync":
            assert len({path for _, path, _, _ in service.requests[before:]}) == 1
        # One is gone already, and of one the first answer is lost.
        del service.sandboxes[made[1].id]
        service.fault = once(lambda method, path: made[2].id in path, Fault("drop"))
        assert c.cleanup_all() == 3 and c.cleanup_all() == 0
        assert {each["state"] for each in service.sandboxes.values()} == {"ended"}


def test_many_are_deleted_at_once() -> None:
    async def main() -> None:
        now = most = made = 0

        async def answer(request: httpx.Request) -> httpx.Response:
            nonlocal now, most, made
            if request.method == "POST":
                made += 1
                return httpx.Response(201, json={"id": f"s{made}", "state": "running"})
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.01)
            now -= 1
            return httpx.Response(204)

        async with api.AsyncSandboxClient("http://x", "k", transport=httpx.MockTransport(answer)) as c:
            for _ in range(3 * DELETED_AT_ONCE):
                await c.create_sandbox()
            assert await c.cleanup_all() == 3 * DELETED_AT_ONCE and most == DELETED_AT_ONCE

    asyncio.run(main())


def test_a_first_step_that_is_interrupted_may_be_made_again(
    kind: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client(kind, service.url, KEY) as c:
        stream = c.create_sandbox().stream("print 50 2")
        interrupted(monkeypatch, kind, "io", "open")
        with pytest.raises(Interrupted):
            next(stream)
        assert runs(service) == 0
        assert both(stream)[0] == printed(50, 2, "stdout") and runs(service) == 1


def test_steps_that_are_cancelled(service: Service) -> None:
    """In the first one, before the service did anything; and while it says nothing, with no attempt counted as failed."""

    async def main() -> None:
        async with api.AsyncSandboxClient(service.url, KEY, reconnect_within=0.5) as c:
            sandbox = await c.create_sandbox()
            stream = sandbox.stream("print 50 2")
            for fault in (Fault("silent"), Fault("silent")):
                service.fault = once(is_command, fault)
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(stream.__anext__(), 0.2)
                assert runs(service) == 0
            out = b"".join([e.data async for e in stream if isinstance(e, api.Output) and e.stream == "stdout"])
            assert out == printed(50, 2, "stdout") and runs(service) == 1

            stream = sandbox.stream("print 50 3")
            service.fault = lambda number, method, path: Fault("begun") if is_command(method, path) else None
            began = time.monotonic()
            while time.monotonic() - began < 1:
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(stream.__anext__(), 0.1)
            service.fault = lambda number, method, path: None
            out = b"".join([e.data async for e in stream if isinstance(e, api.Output) and e.stream == "stdout"])
            assert out == printed(50, 3, "stdout") and runs(service) == 2

    asyncio.run(main())
