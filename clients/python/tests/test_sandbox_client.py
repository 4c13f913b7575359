"""Both clients against a service whose connections fail: every byte comes once, and no id acts twice."""

from __future__ import annotations

import gc
import json
import os
import random
import threading
import time
from pathlib import Path
from typing import Any, Callable, List, Optional

import httpx
import pytest
from both import client
from espalier import sandbox as api
from fake import KEY, Fault, Service, printed
from faulty import both, is_command, kind, once, quick, runs, service  # noqa: F401


def test_life(kind: str, service: Service) -> None:
    with client(kind, service.url, KEY) as c:
        with c.create_sandbox("python:3.12", cpu="2", memory="2Gi", labels={"run": "a"}) as sandbox:
            assert sandbox.sandbox_id == sandbox.id and sandbox.image == "python:3.12" and sandbox.block_network
            asked = service.sandboxes[sandbox.id]["asked"]
            assert asked == {"image": "python:3.12", "cpu": 2.0, "memory": "2GiB", "labels": {"run": "a"}}
            assert c.get_sandbox(sandbox.id).id == sandbox.id
            result = sandbox.exec("fail 3")
            assert (result.status, result.exit_code, result.job_id) == ("failed", 3, sandbox.get_job(result.job_id).job_id)
            with pytest.raises(api.CommandFailed):
                sandbox.exec("fail 1", check=True)
        assert service.sandboxes[sandbox.id]["state"] == "ended"
        left = c.create_sandbox()
        with pytest.raises(api.NotFound):
            c.get_sandbox("nobody")
        c.delete_sandbox("nobody")
    assert service.sandboxes[left.id]["state"] == "ended", "the client deletes what it made"


def test_a_sandbox_that_fails_says_why(kind: str, service: Service) -> None:
    with client(kind, service.url, KEY) as c:
        with pytest.raises(api.SandboxFailed, match="no such image") as caught:
            c.create_sandbox("missing")
        assert caught.value.hint == "check its name"


def test_a_wrong_key_is_told_at_once(kind: str, service: Service) -> None:
    with client(kind, service.url, "esp_wrong") as c:
        with pytest.raises(api.Unauthenticated, match="hint: set ESPALIER_API_KEY"):
            c.create_sandbox()
    assert len(service.requests) == 1


def test_nobody_there(kind: str) -> None:
    with client(kind, "http://127.0.0.1:9", KEY, connect_within=0.2) as c:
        began = time.monotonic()
        with pytest.raises(api.ConnectionFailed):
            c.create_sandbox()
        assert time.monotonic() - began < 10


FAULTS = [Fault("refuse"), Fault("drop"), Fault("status", 503), Fault("restart"), *(Fault("cut", at) for at in (0, 60, 200))]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.kind}{fault.after or ''}")
def test_each_fault_of_each_call(kind: str, service: Service, fault: Fault, tmp_path: Path) -> None:
    """The first try of each kind of call fails; the second is answered from the record of the first."""
    data = printed(500, 1, "f")
    calls: List[Callable[[Any], None]] = [
        lambda s: same(s.exec("print 300 7").stdout_raw, printed(300, 7, "stdout")),
        lambda s: same(both(s.stream("print 300 8"))[:2], (printed(300, 8, "stdout"), printed(300, 8, "stderr"))),
        lambda s: same(s.upload_content(data, "/x").size, 500),
        lambda s: same(s.download_content("/x"), data),
        lambda s: same(s.refresh().id, s.id),
    ]
    with client(kind, service.url, KEY) as c:
        sandbox = c.create_sandbox()
        for number, call in enumerate(calls):
            service.fault = once(lambda method, path: True, fault)
            call(sandbox)
            assert runs(service) == min(number + 1, 2)
        service.fault = once(lambda method, path: method == "POST", fault)
        c.create_sandbox()
        assert len(service.sandboxes) == 2


def same(got: Any, expected: Any) -> None:
    assert got == expected


def test_a_stream_cut_at_any_byte(kind: str) -> None:
    """One cut at every place of the answer, each time with a new command."""
    size = 90
    service = Service(chunk=29)
    try:
        with client(kind, service.url, KEY) as c:
            sandbox = c.create_sandbox()
            whole = 1
            at = 0
            while at < whole:
                service.fault = once(is_command, Fault("cut", at))
                stdout, stderr, others = both(sandbox.stream(f"print {size} {at}"))
                assert (stdout, stderr) == (printed(size, at, "stdout"), printed(size, at, "stderr")), f"cut at {at}"
                assert [type(event).__name__ for event in others] == ["Started", "Ended"], f"cut at {at}"
                # About as long as the answer; a cut behind its end is none.
                whole, at = 1900, at + 7 if kind == "sync" else at + 23
            assert all(command.runs == 1 for command in service.commands.values())
    finally:
        service.close()


@pytest.mark.parametrize("seed", range(12))
def test_seeded_faults(kind: str, seed: int) -> None:
    """Any fault at any request, one in three of them; the client's work is as if there were none."""
    chance = random.Random(seed)

    def fault(number: int, method: str, path: str) -> Optional[Fault]:
        if chance.random() > 0.33:
            return None
        kinds = ["refuse", "drop", "cut", "cut", "cut", "status"] + ["restart"] * (number % 5 == 0)
        chosen = chance.choice(kinds)
        return Fault(chosen, 503 if chosen == "status" else chance.randrange(3000))

    service = Service(fault, chunk=chance.choice([1, 11, 4096]))
    print(f"seed {seed}")
    try:
        with client(kind, service.url, KEY) as c:
            sandbox = c.create_sandbox()
            for number in range(12):
                size = chance.randrange(1, 1500)
                stdout, stderr = printed(size, number, "stdout"), printed(size, number, "stderr")
                doing = chance.randrange(3)
                if doing == 0:
                    result = sandbox.exec(f"print {size} {number}")
                    assert (result.stdout_raw, result.stderr_raw) == (stdout, stderr)
                elif doing == 1:
                    assert both(sandbox.stream(f"print {size} {number}"))[:2] == (stdout, stderr)
                else:
                    path = f"/f{number}".encode() + b"\xff"
                    sandbox.upload_content(stdout, path)
                    assert sandbox.download_content(path) == stdout
                    assert sandbox.download_content(path, 5, 20) == stdout[5:20]
            assert len(service.sandboxes) == 1
            assert all(command.runs == 1 for command in service.commands.values())
            commands = [json.loads(body) for method, path, _, body in service.requests if path.endswith("/commands")]
            assert all(each.get("floor", 0) < int(each["id"].rsplit(".", 1)[1]) for each in commands)
    finally:
        service.close()


def test_expired_and_reused_ids_are_errors_and_nothing_runs(kind: str, service: Service) -> None:
    with client(kind, service.url, KEY) as c:
        sandbox = c.create_sandbox()
        first = sandbox.exec("print 10 1")
        assert sandbox.exec("print 10 1", id=first.id).stdout_raw == first.stdout_raw
        with pytest.raises(api.IdReused):
            sandbox.exec("print 10 2", id=first.id)
        assert runs(service) == 1
        # Lost with its answer: the service forgot the record, and the floor says that the id is not new.
        service.commands.clear()
        body = {"id": first.id, "floor": 5, "command": "print 10 1"}
        answer = httpx.post(
            f"{service.url}/v1/sandboxes/{sandbox.id}/commands", json=body, headers={"authorization": f"Bearer {KEY}"}
        )
        assert answer.status_code == 410
        service.fault = lambda number, method, path: Fault("status", 410) if is_command(method, path) else None
        with pytest.raises(api.ApiError):
            sandbox.exec("print 10 1")
        assert runs(service) == 0


def test_gaps_come_as_events_and_lines_do_not_pass_over_them(kind: str, service: Service) -> None:
    with client(kind, service.url, KEY) as c:
        sandbox = c.create_sandbox()
        process = sandbox.start("print 100 1")
        service.commands[(sandbox.id, process.id)].kept_from = 40
        events = list(process.events())
        assert api.Gap("stdout", 0, 40) in events and api.Gap("stderr", 0, 40) in events
        assert b"".join(e.data for e in events if isinstance(e, api.Output) and e.stream == "stdout") == (
            printed(100, 1, "stdout")[40:]
        )
        with pytest.raises(api.Lost):
            list(process.events().lines())
        assert process.events(stdout_from=60, stderr_from=100).offsets == (60, 100)


def test_a_stream_that_is_left_early_leaves_the_command(kind: str, service: Service) -> None:
    with client(kind, service.url, KEY) as c:
        sandbox = c.create_sandbox()
        stream = sandbox.stream("print 3000 1")
        next(stream)
        first = next(stream)
        stream.close()
        assert list(stream) == []
        rest = both_from(stream.process.events(*stream.offsets), len(first.data))
        assert first.data + rest == printed(3000, 1, "stdout")
        assert stream.process.wait().exit_code == 0 and runs(service) == 1


def both_from(stream: Any, offset: int) -> bytes:
    out = b""
    for event in stream:
        if isinstance(event, api.Output) and event.stream == "stdout":
            assert event.offset == offset + len(out)
            out += event.data
    return out


def test_input_goes_once_through_a_pipe_that_fills(kind: str, service: Service) -> None:
    chance = random.Random(5)
    data = bytes(chance.randrange(256) for _ in range(5000))
    with client(kind, service.url, KEY) as c:
        sandbox = c.create_sandbox()
        process = sandbox.start("cat", stdin_open=True)
        faults = iter([Fault("drop"), None, Fault("cut", 30), Fault("refuse"), None, Fault("drop")])
        service.fault = lambda number, method, path: next(faults, None) if "/input" in path else None
        assert process.write(data[:3000])
        assert process.write(data[3000:])
        process.close_stdin()
        assert process.wait().stdout_raw == data


def test_a_command_that_was_only_said_to_start_is_sent_again(kind: str, service: Service) -> None:
    """The service died between `started` and the start: the same id again is the command's first run."""
    with client(kind, service.url, KEY) as c:
        sandbox = c.create_sandbox()
        service.chunk = 10_000
        endings = set()
        for after in range(80, 500, 20):
            service.commands.clear()
            service.fault = once(is_command, Fault("phantom", after))
            stream, out = sandbox.stream("print 200 6"), b""
            try:
                for event in stream:
                    out += event.data if isinstance(event, api.Output) and event.stream == "stdout" else b""
                assert out == printed(200, 6, "stdout") and runs(service) == 1
                endings.add("run")
            except api.NotFound:
                # What was seen and is gone is not run again.
                assert out and runs(service) == 0
                endings.add("gone")
        assert endings == {"run", "gone"}


def test_a_stream_that_is_never_begun_does_not_hold_the_floor(kind: str, service: Service) -> None:
    with client(kind, service.url, KEY) as c:
        sandbox = c.create_sandbox()
        stream = sandbox.stream("print 1 1")
        del stream
        gc.collect()
        sandbox.exec("print 1 1")
        sandbox.exec("print 1 1")
        assert json.loads(service.requests[-1][3])["floor"] == 2 and runs(service) == 2


def test_a_command_of_which_nothing_is_known_may_be_sent_again(kind: str, service: Service) -> None:
    """Its id stays above the floor, so that the service does not take it for an old one."""
    with client(kind, service.url, KEY, reconnect_within=0.02) as c:
        sandbox = c.create_sandbox()
        service.fault = lambda number, method, path: Fault("refuse")
        with pytest.raises(api.ConnectionFailed) as caught:
            sandbox.exec("print 5 5")
        service.fault = lambda number, method, path: None
        sandbox.exec("print 1 1")
        id = caught.value.id
        assert id in str(caught.value)
        assert sandbox.exec("print 5 5", id=id).stdout_raw == printed(5, 5, "stdout")
        assert runs(service) == 2


def test_a_wait_has_a_bound(kind: str, service: Service) -> None:
    with client(kind, service.url, KEY) as c:
        sandbox = c.create_sandbox()
        process = sandbox.start("cat", stdin_open=True)
        with pytest.raises(api.WaitTimeout) as caught:
            process.wait(0.05)
        assert caught.value.result is not None and caught.value.result.status == "running"
        assert isinstance(caught.value, TimeoutError)
        assert sandbox.exec("cat", wait=False).status == "running"


def test_input_that_is_not_taken_has_a_bound(kind: str, service: Service) -> None:
    with client(kind, service.url, KEY) as c:
        process = c.create_sandbox().start("deaf", stdin_open=True)
        began = time.monotonic()
        with pytest.raises(api.WaitTimeout, match="did not take 10 bytes of input within 0.3 s"):
            process.write(b"x" * 10, timeout=0.3)
        assert 0.3 <= time.monotonic() - began < 10
        asked = [httpx.URL(path).params["wait_s"] for _, path, _, _ in service.requests if "/input" in path]
        assert 0.2 < float(asked[0]) <= 0.3 and all(0 <= float(each) <= 0.3 for each in asked)
        process.close_stdin()


def test_what_the_service_waits_for_the_client_waits_for(kind: str) -> None:
    """The bound of an answer lies beyond what the service may take for it."""
    bounds = {}

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method != "DELETE":
            bounds[request.url.path.rsplit("/", 1)[1]] = (request.extensions["timeout"]["read"], dict(request.url.params))
        if request.url.path.endswith("/input"):
            return httpx.Response(200, json={"taken": 1, "closed": False})
        fork = [{"id": "fork", "state": "running"}]
        return httpx.Response(201, json={"id": "a.1.1", "state": "running", "sandboxes": fork})

    with client(kind, "http://x", "k", transport=httpx.MockTransport(answer)) as c:
        sandbox = c.create_sandbox()
        assert [each.id for each in sandbox.fork()] == ["fork"]
        sandbox.checkpoint()
        sandbox.attach("a.1.1").write("x", timeout=100)
        sandbox.wait(timeout=100)
    assert bounds["fork"][0] > 600 and bounds["checkpoints"][0] > 600
    assert bounds["input"][1]["wait_s"] == "30.0" and bounds["input"][0] == 90
    assert bounds["sandboxes"][1] == {"wait_s": "0"}


def test_output_says_what_is_missing(kind: str, service: Service) -> None:
    data = printed(100, 1, "stdout")
    with client(kind, service.url, KEY) as c:
        sandbox = c.create_sandbox()
        process = sandbox.start("print 100 1")
        record = service.commands[(sandbox.id, process.id)]
        assert process.output() == data and process.output(start=60) == data[60:] and process.output(start=200) == b""
        record.kept_from = 40
        with pytest.raises(api.Lost) as caught:
            process.output(start=10)
        assert (caught.value.stream, caught.value.start, caught.value.end) == ("stdout", 10, 40)
        assert process.output(start=40) == process.output(allow_gaps=True) == data[40:]
        # Dropped between the head of the answer and its body.
        record.kept_from, record.lost_meanwhile = 0, 30
        with pytest.raises(api.Lost) as caught:
            process.output(start=10)
        assert (caught.value.stream, caught.value.start, caught.value.end) == ("stdout", 80, 100)
        assert process.output(allow_gaps=True) == data[30:]
        # A service that does not say where it ends.
        record.end_told = False
        assert process.output() == data[30:]


def test_a_download_has_the_permissions_of_a_new_file(
    kind: str, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And leaves those of other threads' files alone, which `umask` would not."""
    with client(kind, service.url, KEY) as c:
        sandbox = c.create_sandbox()
        sandbox.upload_content("x", "/f")
        before = os.umask(0o027)
        try:
            monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("it is the whole process's"))
            assert sandbox.download_file("/f", tmp_path / "f") == 1
            assert (tmp_path / "f").stat().st_mode & 0o777 == 0o640
        finally:
            monkeypatch.undo()
            os.umask(before)
        assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_files_by_path(kind: str, service: Service, tmp_path: Path) -> None:
    data = printed(300_000, 3, "f")
    (tmp_path / "in").write_bytes(data)
    (tmp_path / "in").chmod(0o750)
    with client(kind, service.url, KEY) as c:
        sandbox = c.create_sandbox()
        service.fault = once(lambda method, path: method == "PUT", Fault("drop"))
        sandbox.upload_file(tmp_path / "in", "/d/in")
        assert "mode=0750" in service.requests[-1][1] and service.files[b"/d/in"] == data
        # Three cuts in one download: each request asks for what is missing, of the version that was begun.
        cuts = iter([100_000, 100_000, 50_000])
        service.fault = lambda number, method, path: Fault("cut", after) if (after := next(cuts, 0)) else None
        assert sandbox.download_file("/d/in", tmp_path / "out") == len(data)
        assert (tmp_path / "out").read_bytes() == data
        ranges = [headers.get("range") for method, path, headers, _ in service.requests if method == "GET" and "files" in path]
        assert ranges[0] is None and len(ranges) == 4 and all(each and each.startswith("bytes=") for each in ranges[1:])
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]
        with pytest.raises(api.NotFound):
            sandbox.download_file("/missing", tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == data
        with pytest.raises(ValueError, match="over 1000 bytes"):
            sandbox.download_content("/d/in", bytes_max=1000)


def test_a_file_that_is_replaced_while_it_is_read_is_begun_anew(kind: str, service: Service, tmp_path: Path) -> None:
    with client(kind, service.url, KEY) as c:
        sandbox = c.create_sandbox()
        sandbox.upload_content(b"old" * 1000, "/f")

        def replaced() -> None:
            service.answered = lambda: None
            service.version, service.files[b"/f"] = 3, b"new" * 1000

        service.answered = replaced
        service.fault = once(lambda method, path: method == "GET", Fault("cut", 1000))
        assert sandbox.download_file("/f", tmp_path / "f") == 3000
        assert (tmp_path / "f").read_bytes() == b"new" * 1000
        service.answered = replaced_again(service)
        service.fault = once(lambda method, path: method == "GET", Fault("cut", 1000))
        with pytest.raises(api.FileChanged):
            sandbox.download_content("/f")


def replaced_again(service: Service) -> Callable[[], None]:
    def replace() -> None:
        service.version += 1

    return replace


def test_a_download_that_failed_goes_on_where_it_stopped(kind: str, service: Service, tmp_path: Path) -> None:
    data = printed(200_000, 4, "f")
    with client(kind, service.url, KEY, reconnect_within=0.05) as c:
        sandbox = c.create_sandbox()
        sandbox.upload_content(data, "/f")
        first = [True]

        def fault(number: int, method: str, path: str) -> Fault:
            cut = Fault("cut", 90_000) if first else Fault("refuse")
            first.clear()
            return cut

        service.fault = fault
        with pytest.raises(api.ConnectionFailed):
            sandbox.download_file("/f", tmp_path / "f", resume=True)
        (part,) = tmp_path.iterdir()
        assert part.name.endswith(".part") and 0 < part.stat().st_size < 90_000
        service.fault = lambda number, method, path: None
        assert sandbox.download_file("/f", tmp_path / "f", resume=True) == len(data)
        assert service.requests[-1][2]["range"].startswith("bytes=8")
        assert [path.name for path in tmp_path.iterdir()] == ["f"] and (tmp_path / "f").read_bytes() == data


def test_heartbeats_go_on_until_they_are_stopped_or_it_is_gone(kind: str, service: Service) -> None:
    with client(kind, service.url, KEY) as c:
        sandbox = c.create_sandbox()
        sandbox.start_heartbeat(0.01)
        sandbox.start_heartbeat(0.01)
        until(lambda: service.sandboxes[sandbox.id].get("heartbeats", 0) >= 3)
        sandbox.stop_heartbeat()
        sandbox.start_heartbeat(0.01)
        gone = service.sandboxes.pop(sandbox.id)
        until(lambda: isinstance(sandbox.heartbeat_error, api.NotFound))
        service.sandboxes[sandbox.id] = gone


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_many_threads_share_a_client(service: Service) -> None:
    with client("sync", service.url, KEY) as c:
        sandbox = c.create_sandbox()
        failures: List[BaseException] = []

        def work(number: int) -> None:
            try:
                for each in range(10):
                    seed = number * 100 + each
                    assert sandbox.exec(f"print 50 {seed}").stdout_raw == printed(50, seed, "stdout")
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failures and len(service.commands) == 160


def test_no_service_is_needed_to_test_a_program_that_uses_it() -> None:
    """`transport` is httpx's: a program's tests answer by a function."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "DELETE":
            return httpx.Response(204)
        if request.url.path.endswith("/commands"):
            return httpx.Response(200, json={"id": json.loads(request.content)["id"], "state": "ended", "stdout": "hi"})
        return httpx.Response(201, json={"id": "abc", "state": "running"})

    with api.SandboxClient("http://x", "k", transport=httpx.MockTransport(answer)) as c:
        with c.create_sandbox() as sandbox:
            assert sandbox.exec("true").stdout == "hi"
